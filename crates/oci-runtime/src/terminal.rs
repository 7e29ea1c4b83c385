//! The terminal of a container, and the way of its master to whoever operates it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};
use skiff_sandbox::terminal::{new_pair, new_pair_of, resize};
use skiff_spec::fault::{Context as _, Result};

use crate::config::ConsoleSize;

/// A terminal.
pub struct Terminal {
    master: OwnedFd,
    /// What the container's process has.
    pub slave: OwnedFd,
}

/// Connects with the socket on which an engine waits for the master.
///
/// # Errors
/// When nobody listens there.
pub fn connect_to(path: &Path) -> Result<OwnedFd> {
    let about = || format!("console socket {}", path.display());
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).context(about)?;
    let address = SocketAddrUnix::new(path).context(about)?;
    connect(&socket, &address).context(about)?;
    Ok(socket)
}

impl Terminal {
    /// A new one: of these terminals of the container's, else of the host's.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn new(terminals: Option<BorrowedFd<'_>>, size: Option<ConsoleSize>) -> Result<Self> {
        let about = || "terminal";
        let size =
            size.filter(|size| size.height > 0 || size.width > 0).map(|size| [size.height, size.width]);
        let Some(terminals) = terminals else {
            let (master, slave) = new_pair(size.unwrap_or_default()).context(about)?;
            return Ok(Self { master, slave });
        };
        let (master, slave) = new_pair_of(terminals)?;
        if let Some(size) = size {
            resize(&master, size).context(about)?;
        }
        Ok(Self { master, slave })
    }

    /// Gives the master away.
    ///
    /// # Errors
    /// When nobody takes it.
    pub fn send(&self, to: BorrowedFd<'_>) -> Result<()> {
        skiff_sys::fdpass::send(to, b"/dev/ptmx", &[self.master.as_fd()]).context(|| "console socket")
    }

    /// Makes it the standard descriptors and the terminal of this process's session.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&self) -> Result<()> {
        let about = || "terminal of the process";
        dup2_stdin(&self.slave).context(about)?;
        dup2_stdout(&self.slave).context(about)?;
        dup2_stderr(&self.slave).context(about)?;
        rustix::process::ioctl_tiocsctty(stdin()).context(about)
    }
}
