//! Puts a process into a running environment: as root inside, or as the user himself.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_spec::wire::Request;
use skiff_sys::process::{Child, CloneFlags, Fork, exit_now, fork};
use skiff_sys::signal::{self, Mask};

use crate::command::{Command, exit_code};
use crate::helper::Helper;
use crate::start::{read_all, reap};
use crate::{Context, Error};

/// How the process stands to the terminal and to its maker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// It gets a process group of its own.
    pub own_group: bool,
    /// That group becomes the terminal's foreground.
    pub foreground: bool,
    /// It begins a session of its own, which its standard input (or error) rules, being a terminal.
    pub own_session: bool,
    /// The signal it gets when its maker dies.
    pub death_signal: i32,
}

impl Place {
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

    /// Takes this place, in the new process.
    ///
    /// # Errors
    /// None that matters: a terminal that is gone is no reason not to run.
    pub fn take(self) -> io::Result<()> {
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

/// Starts `command` as root of the environment whose process 1 is `init`, as a child of this process.
///
/// # Errors
/// When the environment is gone, or the command could not be started: the error's hint is then empty and its message ends in the
/// reason; see [`Failed`].
pub fn as_root(
    init: BorrowedFd<'_>,
    command: &Command,
    place: Place,
    mask: Mask,
) -> std::result::Result<Child, Failed> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    // The one who enters cannot come back, so that is not us; its child becomes ours (CLONE_PARENT).
    let entered = fork(CloneFlags::NONE).context(|| "fork")?;
    let Fork::Parent(enterer) = entered else {
        drop(report);
        exit_now(enter_and_fork(init, command, place, mask, &reporter));
    };
    drop(reporter);
    let told = read_all(report.as_fd());
    reap(enterer.pid);
    outcome(&told, command)
}

fn enter_and_fork(
    init: BorrowedFd<'_>,
    command: &Command,
    place: Place,
    mask: Mask,
    reporter: &OwnedFd,
) -> i32 {
    let spaces = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    let say = |bytes: &[u8]| rustix::io::write(reporter, bytes).map_or(125, |_| 0);
    if let Err(e) = move_into_thread_name_spaces(init, spaces) {
        let why = format!("the environment's namespaces: {e}");
        return say(&[b"E", &Error::new(why).hint("it may just have been stopped").to_bytes()[..]].concat());
    }
    match fork(CloneFlags::SIBLING) {
        Err(e) => say(&[b"E", format!("process inside: {e}").as_bytes()].concat()),
        Ok(Fork::Parent(child)) => {
            let pid = child.pid.as_raw_nonzero().get();
            // Not `say`: what the child says (if exec fails) may stand before or after this; both are whole writes.
            say(&[b"P", &pid.to_le_bytes()[..]].concat())
        }
        Ok(Fork::Child) => {
            let e = as_inside_root(place, mask, command);
            let code = e.raw_os_error().unwrap_or(0);
            say(&[b"X", &code.to_le_bytes()[..]].concat());
            exit_now(exit_code(&e))
        }
    }
}

fn as_inside_root(place: Place, mask: Mask, command: &Command) -> io::Error {
    let ready = place
        .take()
        .and_then(|()| skiff_sys::caps::limit_to(skiff_sys::caps::INSIDE_ROOT))
        .and_then(|()| Ok(rustix::thread::set_no_new_privs(true)?))
        .and_then(|()| skiff_sys::seccomp::load());
    if let Err(e) = ready {
        return e;
    }
    signal::default_action(rustix::process::Signal::PIPE.as_raw());
    signal::restore(mask);
    command.exec()
}

/// Why a command does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Something of ours.
    Skiff(Error),
    /// The command itself could not be started: it, and the errno.
    Command(OsString, i32),
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        Self::Skiff(e)
    }
}

/// Reads the reports of those who entered: `P` pid, `X` errno of exec, `E` error.
fn outcome(mut told: &[u8], command: &Command) -> std::result::Result<Child, Failed> {
    let mut pid = None;
    let mut failed = None;
    while let [kind, rest @ ..] = told {
        match (kind, rest) {
            (b'E', text) => return Err(Error::from_bytes(text).into()),
            (b'P' | b'X', [a, b, c, d, rest @ ..]) => {
                let number = i32::from_le_bytes([*a, *b, *c, *d]);
                if *kind == b'P' {
                    pid = Pid::from_raw(number)
                } else {
                    failed = Some(number)
                }
                told = rest;
            }
            _ => break,
        }
    }
    let gone = || Failed::Skiff(Error::new("the process that enters the environment ended without a word"));
    let pid = pid.ok_or_else(gone)?;
    if let Some(errno) = failed {
        reap(pid);
        return Err(Failed::Command(command.argv.first().cloned().unwrap_or_default(), errno));
    }
    // It is our child and not yet waited for: the number cannot mean another.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context(|| "process inside")?;
    Ok(Child { pid, pidfd })
}

/// Starts `command` in the environment whose process 1 is `init` as the user himself: no user namespace, no capability.
///
/// # Errors
/// As [`as_root`], and what the helper refuses.
pub fn as_me(
    program: &Path,
    init: Pid,
    command: &Command,
    place: Place,
    mask: Mask,
) -> std::result::Result<Child, Failed> {
    let mask = format!("{:x}", mask.to_bits());
    let mut arguments: Vec<OsString> = vec![place.to_word().into(), mask.into(), command.cwd.clone().into()];
    arguments.push(command.argv0.clone().unwrap_or_default());
    arguments.extend(command.argv.iter().cloned());
    let helper = Helper::spawn_with(program, &arguments, &command.env)?;
    helper.ask(Request::Join { pid: init.as_raw_nonzero().get().unsigned_abs() }, &[])?;
    let answer = helper.answer();
    let late = helper.late_error();
    helper.finish()?;
    let (pid, fds) = answer?;
    let pidfd = fds.into_iter().next();
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let (Some(pid), Some(pidfd)) = (pid, pidfd) else {
        return Err(Error::new("helper: answer without a process").into());
    };
    if let Some([a, b, c, d]) = late.as_deref() {
        reap(pid);
        let errno = i32::from_le_bytes([*a, *b, *c, *d]);
        return Err(Failed::Command(command.argv.first().cloned().unwrap_or_default(), errno));
    }
    Ok(Child { pid, pidfd })
}

/// Whether a process still lives.
#[must_use]
pub fn alive(pidfd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)], Some(&none)) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_as_they_went() {
        for p in [
            Place::default(),
            Place { own_group: true, foreground: true, own_session: true, death_signal: 9 },
        ] {
            assert_eq!(Place::from_word(&p.to_word()), Some(p));
        }
        for bad in ["", "0", "00", "000", "2009", "000-1", "00065", "000x"] {
            assert_eq!(Place::from_word(bad), None, "{bad}");
        }
    }
}
