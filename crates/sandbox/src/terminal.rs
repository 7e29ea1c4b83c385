//! Terminals of our own, for commands whose user sits at one that is not there for them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

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

/// Gives it other rows and columns; who works at it is told by the kernel.
///
/// # Errors
/// When it is gone.
pub fn resize(terminal: impl AsFd, [ws_row, ws_col]: [u16; 2]) -> io::Result<()> {
    tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
}
