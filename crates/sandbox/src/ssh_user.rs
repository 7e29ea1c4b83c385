//! `ssh` for root inside. OpenSSH looks for keys and for its user's configuration in the home that `/etc/passwd` names, which is root's, and
//! not in `HOME`; and logs in as root if no other name is given. So root's `.ssh` leads to the user's, and a configuration names the user.
//!
//! What is the same for all users is in a layer below the environment's own, so that its user may have other files there. It leads to
//! Skiff's directory inside, which has what is the user's.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use skiff_spec::plan::{SshUser, inside};
use skiff_sys::IgnoreError;

use crate::mounts::{resolve, resolve_or_make};

/// The home that `/etc/passwd` names for root.
pub const ROOTS_HOME: &str = "/root";
/// What OpenSSH's configuration includes, as distributions ship it.
pub const CONFIGURATIONS: &str = "/etc/ssh/ssh_config.d";

/// In root's home.
const KEYS: &str = ".ssh";
/// In [`CONFIGURATIONS`]. Of what several files say the first counts: the site's come before this one.
const CONFIGURATION: &str = "zz-skiff.conf";

/// Whether a file of a root is one of these, by its path and, of a link, where it leads.
#[must_use]
pub fn is_own(path: &[u8], target: Option<&[u8]>) -> bool {
    let is_in = |dir: &str, name: &str| {
        let name_at = path.strip_prefix(dir.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        name_at == Some(name.as_bytes())
    };
    let is_link = is_in(ROOTS_HOME, KEYS) && target == Some(inside::SSH_DIR.as_bytes());
    is_link || (target.is_none() && is_in(CONFIGURATIONS, CONFIGURATION))
}

/// Makes the link to the user's `.ssh` in root's home.
///
/// # Errors
/// Of the system.
pub fn put_link(roots_home: BorrowedFd<'_>) -> rustix::io::Result<()> {
    symlinkat(inside::SSH_DIR, roots_home, KEYS)
}

/// Makes the file that includes what names the user.
///
/// # Errors
/// Of the system.
pub fn put_configuration(configurations: BorrowedFd<'_>) -> rustix::io::Result<()> {
    write(configurations, CONFIGURATION, &format!("Include {}\n", inside::SSH_CONFIG))
}

/// Makes both in a layer that has nothing else of this kind.
pub(crate) fn lead(layer: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let below = |path: &str| resolve_or_make(layer, Path::new(path.trim_start_matches('/')), true);
    mkdirat(layer, ROOTS_HOME.trim_start_matches('/'), Mode::RWXU)?;
    put_link(below(ROOTS_HOME)?.as_fd())?;
    put_configuration(below(CONFIGURATIONS)?.as_fd())
}

/// Makes what these lead to. In an environment that is kept, one's first key is made as well, for which there must be a directory.
pub(crate) fn tell(root: BorrowedFd<'_>, user: &SshUser, is_kept: bool) -> rustix::io::Result<()> {
    let below = |path: &Path| resolve(root, path.strip_prefix("/").unwrap_or(path));
    let own = below(Path::new(inside::DIR))?;
    let name = |path: &'static str| Path::new(path).file_name().ok_or(Errno::INVAL);
    symlinkat(user.home.join(KEYS), &own, name(inside::SSH_DIR)?)?;
    write(own.as_fd(), name(inside::SSH_CONFIG)?, &format!("User {}\n", user.name))?;
    if is_kept {
        let home = below(&user.home)?;
        mkdirat(&home, KEYS, Mode::RWXU).ignore_error("it is there, or the home takes no files");
    }
    Ok(())
}

fn write(dir: BorrowedFd<'_>, name: impl rustix::path::Arg, text: &str) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}
