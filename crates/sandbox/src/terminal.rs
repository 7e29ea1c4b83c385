//! Terminals of our own, for commands whose user sits at one that is not there for them; and names inside for the host's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, major, minor, open, openat};
use rustix::io;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};
use rustix::termios::{Winsize, tcsetwinsize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::inside;
use skiff_sys::IgnoreError;

/// The device numbers that the kernel gives to pseudo terminals, 256 each.
const MAJORS: std::ops::RangeInclusive<u32> = 136..=143;

/// The device number of what makes pseudo terminals.
const MAKER: (u32, u32) = (5, 2);

/// A new terminal of so many rows and columns: what it is operated by (the master), and itself (the slave). Nobody's session is ruled by it yet.
///
/// # Errors
/// When there can be no more terminals, or descriptors are used up.
pub fn new_pair(size: [u16; 2]) -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, vec![])?;
    let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    resize(&master, size)?;
    Ok((master, slave))
}

/// A new terminal of those that a container has, by the directory of theirs: its master, and its slave, by which name that may be there. Root
/// inside may have put anything in that directory.
///
/// # Errors
/// When it makes none.
pub fn new_pair_of(terminals: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd)> {
    let about = || "terminal";
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let master = openat(terminals, "ptmx", flags, Mode::empty()).context(about)?;
    let stat = fstat(&master).context(about)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_device || (major(stat.st_rdev), minor(stat.st_rdev)) != MAKER {
        return Err(Fault::new("/dev/pts/ptmx of the container makes no terminals"));
    }
    fcntl_setfl(&master, OFlags::RDWR).context(about)?;
    unlockpt(&master).context(about)?;
    // Its name may lead elsewhere in the container, or nowhere.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, flags).context(about)?;
    Ok((master, slave))
}

/// Gives it other rows and columns; who works at it is told by the kernel.
///
/// # Errors
/// When it is gone.
pub fn resize(terminal: impl AsFd, [ws_row, ws_col]: [u16; 2]) -> io::Result<()> {
    tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
}

/// In an environment with terminals of its own: opens the host's, on which this process stands, by its name inside, as the name by which it was
/// opened outside leads nowhere here, or to another. `tty`, tmux and screen ask for it. (A terminal that belongs to somebody else, as after `su`,
/// cannot be opened: it stays as it is.)
pub fn name_standard_descriptors() {
    for (fd, dup) in [
        (stdin(), dup2_stdin as fn(OwnedFd) -> io::Result<()>),
        (stdout(), dup2_stdout),
        (stderr(), dup2_stderr),
    ] {
        if let Ok(Some(again)) = open_by_name(fd) {
            dup(again).ignore_error("the terminal stays open under the name from outside");
        }
    }
}

/// The terminal once more, opened by its name inside, if it is one of the host's.
fn open_by_name(fd: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let device = fstat(fd)?;
    let (major, minor) = (major(device.st_rdev), minor(device.st_rdev));
    if FileType::from_raw_mode(device.st_mode) != FileType::CharacterDevice || !MAJORS.contains(&major) {
        return Ok(None);
    }
    let number = (major - MAJORS.start()) * 256 + minor;
    let path = format!("{}/{number}", inside::TERMINALS);
    let is_it = |found: &OwnedFd| -> io::Result<bool> {
        let found = fstat(found)?;
        Ok((found.st_dev, found.st_ino) == (device.st_dev, device.st_ino))
    };
    // Root inside can put something else there: what is opened must neither wait nor be asked anything before it is known to be the terminal.
    let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !is_it(&open(&path, look, Mode::empty())?)? {
        return Ok(None);
    }
    let kept = fcntl_getfl(fd)? & (OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK);
    let flags = kept | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let again = open(&path, flags, Mode::empty())?;
    fcntl_setfl(&again, kept)?;
    Ok(is_it(&again)?.then_some(again))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What is in place of `ptmx`, by a directory with nothing else.
    fn refused(put: impl FnOnce(&std::path::Path)) -> String {
        let dir = std::env::temp_dir().join(format!("skiff-terminals.{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        put(&dir.join("ptmx"));
        let opened = open(&dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("the directory");
        let refused = new_pair_of(opened.as_fd()).err();
        std::fs::remove_dir_all(&dir).expect("the directory");
        refused.expect("a refusal").message
    }

    #[test]
    fn what_makes_no_terminals_is_neither_waited_for_nor_followed() {
        let fifo = |path: &std::path::Path| {
            rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR).expect("a pipe");
        };
        assert!(refused(fifo).contains("makes no terminals"));
        assert!(refused(|path| std::fs::write(path, "").expect("a file")).contains("makes no terminals"));
        refused(|path| std::os::unix::fs::symlink("/dev/ptmx", path).expect("a link"));
        refused(|path| drop(UnixListener::bind(path).expect("a socket")));
        refused(|_| ());
    }

    #[test]
    fn a_terminal_has_the_name_that_its_makers_directory_gives_it() {
        let opened = open("/dev/pts", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("terminals");
        let (master, slave) = new_pair_of(opened.as_fd()).expect("a terminal");
        let name = ptsname(&master, vec![]).expect("its name");
        let found = rustix::fs::stat(name.as_c_str()).expect("it");
        assert_eq!(fstat(&slave).map(|is| (is.st_dev, is.st_ino)), Ok((found.st_dev, found.st_ino)));
    }
}
