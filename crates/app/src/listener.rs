//! Where an app listens: on a Unix socket in a directory of the user's, or on a port of 127.0.0.1.
//!
//! A port belongs to whoever takes it first, and `localhost` means two addresses: another user who listens on the one that the app does not
//! would be sent the user's token. In a directory that only its owner can enter nobody else can listen.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;

use crate::ports;

/// How to do without a socket.
const HINT: &str = "`--tcp` listens on a port of 127.0.0.1 instead";
/// What a socket's path may take up: unix(7).
const LONGEST_PATH: usize = 107;

/// Where an app listens.
#[derive(Debug)]
pub enum Listener {
    /// On this socket, which is removed with this.
    Socket(PathBuf),
    /// On this port of 127.0.0.1.
    Port(u16),
}

impl Listener {
    /// On a socket of this name in that directory.
    pub fn socket(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(format!("{name}.sock"));
        let bytes = path.as_os_str().as_bytes();
        // The path is printed, to be typed into a shell, where ssh takes a colon for the end of an address.
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@%=".contains(byte);
        if bytes.len() > LONGEST_PATH || !bytes.iter().all(plain) {
            return Err(Error::new(format!(
                "socket {}: a path of at most {LONGEST_PATH} plain characters is needed",
                path.display()
            ))
            .hint(format!("XDG_DATA_HOME names another directory; {HINT}")));
        }
        Ok(Self::Socket(path))
    }

    /// As the script is told.
    pub fn word(&self) -> String {
        match self {
            Self::Socket(path) => path.display().to_string(),
            Self::Port(port) => port.to_string(),
        }
    }

    /// What ssh forwards to.
    pub fn target(&self) -> String {
        match self {
            Self::Socket(path) => path.display().to_string(),
            Self::Port(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        }
    }

    /// Checks that an app can listen there.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Socket(path) => check_socket(path),
            Self::Port(port) if ports::is_taken(*port)? => {
                Err(Error::new(format!("port {port} is in use")).hint("without --port a free one is chosen"))
            }
            Self::Port(_) => Ok(()),
        }
    }

    /// Whether the app listens by now.
    pub fn is_ready(&self, uid: u32) -> Result<bool> {
        match self {
            Self::Socket(path) => Ok(UnixStream::connect(path).is_ok()),
            Self::Port(port) => ports::is_served_by(*port, uid),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Socket(path) = self {
            std::fs::remove_file(path).ignore_error("removed already if the app ended in order");
        }
    }
}

/// A port that is free here. Where the browser is it may be taken, which ssh says.
pub fn free_port() -> Result<u16> {
    let what = || "a free port of 127.0.0.1";
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
    Ok(socket.local_addr().context(what)?.port())
}

/// Checks that nobody but the user can enter the socket's directory, and that its file system has sockets: some network file systems do not.
fn check_socket(path: &Path) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let meta = dir.symlink_metadata().context(|| dir.display().to_string())?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(Error::new(format!("{}: others have access to it", dir.display()))
            .hint(format!("it must be a directory of yours: chmod 700 {}", dir.display())));
    }
    let tried = UnixListener::bind(path).and_then(|_listener| UnixStream::connect(path));
    tried
        .and_then(|_| std::fs::remove_file(path))
        .context(|| format!("socket {}", path.display()))
        .map_err(|e| e.hint(format!("the file system of {} may not support sockets; {HINT}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::Listener;
    use std::path::Path;

    #[test]
    fn paths_that_ssh_or_a_shell_would_read_otherwise_are_refused() {
        for (dir, sound) in [
            ("/home/alice/.local/share/skiff/apps", true),
            ("/home/a b", false),
            ("/home/a:b", false),
            ("/home/$(id)", false),
            ("/home/ä", false),
            (&"/long".repeat(20), false),
        ] {
            let listener = Listener::socket(Path::new(dir), "0123abcd");
            assert_eq!(listener.is_ok(), sound, "{dir}");
        }
    }
}
