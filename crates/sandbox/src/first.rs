//! The command that an environment is made for: a child of process 1, forked before the root is there, so that all it
//! needs is done when the root is, and it only has to become the program.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{Child, CloneFlags, Fork, exit_now, fork, fork_as, pid_of, positive_pid};
use skiff_sys::signal::SignalMask;

use crate::command::CommandSpec;
use crate::confine::Confinement;
use crate::failed::Failed;
use crate::helper::Helper;
use crate::init::{ADOPT, IDLE};
use crate::join;
use crate::reaper;
use crate::rootfs_inputs::ROOT;
use crate::spawn_attr::SpawnAttr;
use crate::terminal::name_standard_descriptors;

/// Said to the waiting command: the new root hangs at its place, unfurnished.
const LOOK: u8 = b'l';
/// The root is there: become the program.
const GO: u8 = b'g';

/// What to run, and how.
pub struct First<'a> {
    /// The command.
    pub command: &'a CommandSpec,
    /// How the command stands to the terminal and to its maker.
    pub attr: SpawnAttr,
    /// The signal mask that it gets.
    pub mask: SignalMask,
    /// What it stands on.
    pub stdio: Stdio<'a>,
}

/// What a command has as its standard input, output and error.
#[derive(Clone, Copy, Debug)]
pub enum Stdio<'a> {
    /// What the maker of the command has.
    Inherited,
    /// The input of the maker; output and error are this pipe.
    Pipe(BorrowedFd<'a>),
    /// Nothing of its maker's.
    Apart(Apart<'a>),
}

impl Stdio<'_> {
    fn has_filter(&self) -> bool {
        !matches!(self, Self::Apart(Apart { filter: false, .. }))
    }

    fn has_reaper(&self) -> bool {
        matches!(self, Self::Apart(Apart { reaper: true, .. }))
    }

    fn stand(&self) -> Result<()> {
        match self {
            Self::Inherited => Ok(()),
            Self::Pipe(pipe) => dup2_stdout(pipe).and_then(|()| dup2_stderr(pipe)).context(|| "output"),
            Self::Apart(apart) => apart.stand(),
        }
    }
}

/// How a command stands that nobody waits for at a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart<'a> {
    /// The file, as seen inside, that takes its output; it is opened there, as is its empty input, so that no descriptor of it
    /// leads out of the environment: such a process CRIU could not dump.
    pub output: &'a Path,
    /// Whether it gets the system call filter. The kernel shows a process's filters only to the host's root, so one that a user is to
    /// dump must have none.
    pub filter: bool,
    /// Whether it is the child of a process that takes over what becomes of it; see [`crate::reaper`].
    pub reaper: bool,
}

impl Apart<'_> {
    fn stand(&self) -> Result<()> {
        let null = openat(CWD, "/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        null.and_then(|null| dup2_stdin(&null)).context(|| "/dev/null")?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        let output = openat(CWD, self.output, flags, Mode::empty());
        output
            .and_then(|output| dup2_stdout(&output).and_then(|()| dup2_stderr(&output)))
            .context(|| format!("output {}", self.output.display()))
    }
}

/// The command's process, waiting for the root.
pub(crate) struct Prepared {
    /// The process, as process 1 knows it.
    pub child: Child,
    gate: OwnedFd,
}

impl First<'_> {
    /// Forks it, in process 1, which has dropped its bounding set. Why it cannot be started, if so, goes to `reporter`, behind
    /// process 1's word.
    pub(crate) fn prepare(&self, confinement: Confinement, reporter: &OwnedFd) -> Result<Prepared> {
        let (go, gate) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        let number = positive_pid(reaper::NUMBER).filter(|_| self.stdio.has_reaper());
        let forked =
            number.map_or_else(|| fork(CloneFlags::NONE), |number| fork_as(number, CloneFlags::NONE));
        match forked.context(|| "process inside")? {
            Fork::Parent(child) => Ok(Prepared { child, gate }),
            Fork::Child => {
                drop(gate);
                self.become_it(confinement, &go).report(reporter);
                exit_now(125)
            }
        }
    }

    fn become_it(&self, confinement: Confinement, go: &OwnedFd) -> Failed {
        let ready = confinement.confine(self.stdio.has_filter());
        // Without the word there is no root, and process 1 has said why.
        let mut word = [0];
        loop {
            match rustix::io::read(go, &mut word) {
                Ok(1) if word == [LOOK] => self.command.look_ahead(Path::new(ROOT)),
                Ok(1) => break,
                _ => exit_now(125),
            }
        }
        let apply = || self.attr.apply().context(|| "terminal and group of the process inside");
        let come_between = || if self.stdio.has_reaper() { reaper::come_between() } else { Ok(()) };
        match ready.and_then(|()| come_between()).and_then(|()| self.stdio.stand()).and_then(|()| apply()) {
            Ok(()) => {
                name_standard_descriptors();
                join::become_command(self.command, self.mask)
            }
            Err(e) => e.into(),
        }
    }
}

impl Prepared {
    /// What is needed until it goes.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.child.pidfd.as_fd(), self.gate.as_fd()]
    }

    /// Has it look up now, in the root that is still being furnished, what it will need there: the kernel remembers what it has found, and
    /// to find it first takes long in so many layers. (It would only be waiting.)
    pub(crate) fn look_ahead(&self) {
        rustix::io::write(&self.gate, &[LOOK])
            .ignore_error("if this fails it is gone, which process 1 sees soon enough");
    }

    /// Lets it go, and tells the maker of the environment who it is.
    pub(crate) fn go(self, control: BorrowedFd<'_>) {
        rustix::io::write(&self.gate, &[GO]).ignore_error("if this fails the maker is gone, and so are we");
        fdpass::send(control, b"c", &[self.child.pidfd.as_fd()])
            .ignore_error("without its maker this process ends as well");
    }
}

/// The command's process, as the maker of the environment knows it: process 1 is its parent and tells how it fares.
pub struct Process {
    /// A handle of it, or of its reaper, which ends as it does.
    pub pidfd: OwnedFd,
    /// The helper that was needed, which ends meanwhile.
    pub(crate) helper: Option<Helper>,
}

impl Process {
    /// PID of the command, which is also its process group; nothing if it has ended. Not kept: process 1, or its reaper, buries it at once, so
    /// the number may soon mean another.
    #[must_use]
    pub fn group(&self) -> Option<Pid> {
        // Process 1 knows it by another number than we do; the kernel tells ours.
        let pid = pid_of(self.pidfd.as_fd()).filter(|pid| pid.as_raw_nonzero().get() > 1);
        pid.and_then(reaper::command_of).filter(|_| join::alive(self.pidfd.as_fd()))
    }
}

/// In the maker of an environment without a command: makes a process inside, by its number there, the one that the environment is for.
/// Whoever made it may still be its parent; process 1 is so once that ends.
///
/// # Errors
/// When there is no such process.
pub fn adopt(control: BorrowedFd<'_>, number: Pid) -> Result<Process> {
    let number = number.as_raw_nonzero().get().to_le_bytes();
    let about = || "process 1 of the environment";
    rustix::io::write(control, &[&[ADOPT], &number[..]].concat()).context(about)?;
    loop {
        let (word, fds) = fdpass::receive(control, 1).context(about)?;
        match (&word[..], fds.into_iter().next()) {
            (b"c", Some(pidfd)) => return Ok(Process { pidfd, helper: None }),
            // As long as it had nobody to look after it may have said so.
            ([word], None) if *word == IDLE => {}
            ([], _) => return Err(Fault::new("process 1 of the environment has ended")),
            _ => return Err(Fault::new("process 1 of the environment sees no such process")),
        }
    }
}

/// In the maker: takes what [`Prepared::go`] tells.
pub(crate) fn receive(control: BorrowedFd<'_>, helper: Option<Helper>) -> Result<Process> {
    let (_, fds) = fdpass::receive(control, 1).context(|| "the command's process")?;
    let pidfd = fds
        .into_iter()
        .next()
        .ok_or_else(|| Fault::new("process 1 of the environment has not told of the command"))?;
    Ok(Process { pidfd, helper })
}
