//! How a new process stands to the terminal and to its maker.

use std::io;
use std::os::fd::OwnedFd;

use skiff_sys::signal;

/// How the process stands to the terminal and to its maker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnAttr {
    /// Whether the process gets a process group of its own.
    pub own_group: bool,
    /// Whether its process group becomes the terminal's foreground.
    pub foreground: bool,
    /// Whether the process begins a session of its own, with its standard input (or error) as the controlling terminal.
    pub own_session: bool,
    /// The signal it gets when its maker dies.
    pub death_signal: i32,
}

impl SpawnAttr {
    /// As one word for the helper's command line.
    #[must_use]
    pub fn to_word(self) -> String {
        let flags = [self.own_group, self.foreground, self.own_session].map(|f| if f { '1' } else { '0' });
        format!("{}{}", flags.iter().collect::<String>(), self.death_signal)
    }

    /// From that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        let flag = |at: usize| match word.as_bytes().get(at) {
            Some(b'0') => Some(false),
            Some(b'1') => Some(true),
            _ => None,
        };
        let death_signal = word.get(3..)?.parse().ok().filter(|n| (0..=64).contains(n))?;
        Some(Self { own_group: flag(0)?, foreground: flag(1)?, own_session: flag(2)?, death_signal })
    }

    /// Makes it so, in the new process.
    ///
    /// # Errors
    /// None that matters: a terminal that is gone is no reason not to run.
    pub fn apply(self) -> io::Result<()> {
        if self.own_session {
            rustix::process::setsid()?;
            let terminal = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
            if let Some(terminal) = terminal.into_iter().find(|fd| rustix::termios::isatty(fd)) {
                rustix::process::ioctl_tiocsctty(terminal)?;
            }
        } else if self.own_group {
            rustix::process::setpgid(None, None)?;
        }
        if self.foreground
            && let Some(tty) = controlling_terminal()
        {
            // From the background this raises SIGTTOU, whose default is to stop us.
            signal::block_one(rustix::process::Signal::TTOU.as_raw());
            match rustix::termios::tcsetpgrp(&tty, rustix::process::getpid()) {
                Ok(()) | Err(_) => {}
            }
        }
        let death = rustix::process::Signal::from_named_raw(self.death_signal);
        rustix::process::set_parent_process_death_signal(death)?;
        Ok(())
    }
}

/// The terminal that rules this session, if any.
#[must_use]
pub fn controlling_terminal() -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_went() {
        for p in [
            SpawnAttr::default(),
            SpawnAttr { own_group: true, foreground: true, own_session: true, death_signal: 9 },
        ] {
            assert_eq!(SpawnAttr::from_word(&p.to_word()), Some(p));
        }
        for bad in ["", "0", "00", "000", "2009", "000-1", "00065", "000x"] {
            assert_eq!(SpawnAttr::from_word(bad), None, "{bad}");
        }
    }
}
