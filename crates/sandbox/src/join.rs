//! Puts a process into a running environment: as root inside, or as the user himself.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_sys::process::{Child, CloneFlags, Fork, exit_now, fork};
use skiff_sys::signal::{self, Mask};

use crate::command::{Command, NotStarted, exit_code};
use crate::helper::Helper;
use crate::order::Order;
use crate::start::{read_all, reap};
use crate::{Context, Error, Result};

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

/// Whose network namespace an environment is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetSpace {
    /// The one that this process is in too.
    Ours,
    /// Its own.
    Its,
    /// Its own, and so is its host name: a machine in a group.
    Machine,
    /// Ours, but the host name is its own: a machine in a group without networks.
    MachineInOurs,
}

/// Starts `command` as root of the environment whose process 1 is `init`, as a child of this process; which moves, for
/// that, into the environment's user namespace, and has no privilege there either when this returns.
///
/// # Errors
/// When the environment is gone, or the command could not be started; see [`Failed`].
pub fn as_root(
    init: BorrowedFd<'_>,
    net: NetSpace,
    command: &Command,
    place: Place,
    mask: Mask,
) -> std::result::Result<Child, Failed> {
    let gone = |e: Error| e.hint("the environment may just have been stopped");
    // Not into its mount namespace: that is to go when the environment does, not when we do.
    let mut ours = ThreadNameSpaceType::USER | ThreadNameSpaceType::PROCESS_ID;
    if matches!(net, NetSpace::Its | NetSpace::Machine) {
        ours |= ThreadNameSpaceType::NETWORK;
    }
    move_into_thread_name_spaces(init, ours).context(|| "the environment's namespaces").map_err(gone)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let Fork::Parent(child) = fork(CloneFlags::NONE).context(|| "process inside").map_err(gone)? else {
        let e = become_root(init, net, command, place, mask);
        e.report(&reporter);
        exit_now(e.exit_code())
    };
    drop(reporter);
    skiff_sys::caps::set_to(CapabilitySet::empty()).context(|| "capabilities")?;
    match Failed::reported(&read_all(report.as_fd()), command) {
        None => Ok(child),
        Some(why) => {
            reap(child.pid);
            Err(why)
        }
    }
}

fn become_root(init: BorrowedFd<'_>, net: NetSpace, command: &Command, place: Place, mask: Mask) -> Failed {
    let mut theirs = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    if matches!(net, NetSpace::Machine | NetSpace::MachineInOurs) {
        theirs |= ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    }
    let ready = move_into_thread_name_spaces(init, theirs)
        .context(|| "the environment's namespaces")
        .and_then(|()| drop_bounding())
        .and_then(|()| confine(true))
        .and_then(|()| place.take().context(|| "place of the process inside"));
    match ready {
        Ok(()) => become_command(command, mask),
        Err(e) => e.into(),
    }
}

/// Takes what no program inside may have out of what an exec could bring.
pub(crate) fn drop_bounding() -> Result<()> {
    skiff_sys::caps::drop_from_bounding(skiff_sys::caps::INSIDE_ROOT)
        .context(|| "capabilities of a process inside")
}

/// Makes this process what every program inside is: without the capabilities that reach beyond, for good; and without some system
/// calls, if it gets the filter.
pub(crate) fn confine(filter: bool) -> Result<()> {
    skiff_sys::caps::set_to(skiff_sys::caps::INSIDE_ROOT).context(|| "capabilities of a process inside")?;
    rustix::thread::set_no_new_privs(true).context(|| "no_new_privs")?;
    if !filter {
        return Ok(());
    }
    skiff_sys::seccomp::load()
        .context(|| "system call filter")
        .map_err(|e| e.hint("the kernel needs CONFIG_SECCOMP_FILTER and must allow one more user namespace (user.max_user_namespaces)"))
}

/// The last step.
pub(crate) fn become_command(command: &Command, mask: Mask) -> Failed {
    signal::default_action(rustix::process::Signal::PIPE.as_raw());
    signal::restore(mask);
    Failed::to_start(command, &command.exec())
}

/// Why a command does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Something of ours.
    Skiff(Error),
    /// The command itself could not be started: it, and the errno.
    Command(OsString, i32),
}

impl Failed {
    /// As an error for where no command of the user's is started.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self {
            Self::Skiff(e) => e,
            Self::Command(name, errno) => {
                Error::new(format!("{}: {}", name.display(), io::Error::from_raw_os_error(errno)))
            }
        }
    }

    pub(crate) fn to_start(command: &Command, why: &NotStarted) -> Self {
        match why {
            NotStarted::Program(e) => {
                let name = command.argv.first().cloned().unwrap_or_default();
                Self::Command(name, e.raw_os_error().unwrap_or(0))
            }
            NotStarted::User(e) => {
                let user = command.user.as_deref().unwrap_or_default();
                let (why, hint) = match e.kind() {
                    io::ErrorKind::NotFound => (
                        "no such user or group inside".into(),
                        "--user takes a name of /etc/passwd inside, or a number; root is always there",
                    ),
                    io::ErrorKind::InvalidInput => (
                        "you have no such id inside".into(),
                        "there are as many as /etc/subuid gives you: `skiff doctor`; root is always there",
                    ),
                    _ => (e.to_string(), ""),
                };
                Error::new(format!("user {user:?}: {why}")).hint(hint).into()
            }
            NotStarted::Untrusted(e) => Error::new(format!("confinement of an untrusted program: {e}"))
                .hint("the kernel needs CONFIG_SECCOMP_FILTER and must allow one more user namespace (user.max_user_namespaces)")
                .into(),
            NotStarted::Directory(e) => {
                Error::new(format!("working directory {}: {e}", command.cwd.display()))
                    .hint("-w names a directory inside the environment, open to the one who works there")
                    .into()
            }
        }
    }

    /// For the maker of this process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Command(_, errno) => [b"X", &errno.to_le_bytes()[..]].concat(),
            Self::Skiff(e) => [b"E", &e.to_bytes()[..]].concat(),
        }
    }

    /// Says it to the maker of this process.
    pub(crate) fn report(&self, reporter: &OwnedFd) {
        // If the maker is gone there is nobody to tell.
        rustix::io::write(reporter, &self.to_bytes()).unwrap_or_default();
    }

    /// What was said of `command`; nothing, by the end of the pipe, when it has become the program.
    #[must_use]
    pub fn reported(word: &[u8], command: &Command) -> Option<Self> {
        match word.split_first()? {
            (b'X', errno) => {
                let errno = errno.try_into().map_or(0, i32::from_le_bytes);
                Some(Self::Command(command.argv.first().cloned().unwrap_or_default(), errno))
            }
            (_, text) => Some(Self::Skiff(Error::from_bytes(text))),
        }
    }

    fn exit_code(&self) -> i32 {
        match self {
            Self::Command(_, errno) => exit_code(&io::Error::from_raw_os_error(*errno)),
            Self::Skiff(_) => 125,
        }
    }
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        Self::Skiff(e)
    }
}

/// Starts a command in the environment whose process 1 is `init`, as the user himself: no user namespace, no capability.
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
    let helper = Helper::spawn(program)?;
    let order = Order { command: Cow::Borrowed(command), place, mask };
    let asked = helper.order(&order, init).and_then(|()| helper.go());
    let joined = asked.map_err(Failed::from).and_then(|()| helper.joined(command));
    helper.finish();
    joined
}

/// Starts `command` where this process is, as what it is.
///
/// # Errors
/// As [`as_root`].
pub fn as_we_are(command: &Command, place: Place, mask: Mask) -> std::result::Result<Child, Failed> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let Fork::Parent(child) = fork(CloneFlags::NONE).context(|| "process")? else {
        let e = match place.take().context(|| "place of the process") {
            Ok(()) => become_command(command, mask),
            Err(e) => e.into(),
        };
        e.report(&reporter);
        exit_now(e.exit_code())
    };
    drop(reporter);
    match Failed::reported(&read_all(report.as_fd()), command) {
        None => Ok(child),
        Some(why) => {
            reap(child.pid);
            Err(why)
        }
    }
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
