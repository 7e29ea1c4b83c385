//! A session whose command sits at a terminal of its container's, which has a name inside, and not at the user's.
//!
//! A process of ours leads the session of that terminal, as a shell would: a command that led it itself could not be stopped by a key. It does
//! what is done without such a terminal as well. Another one, where the user is, passes on what is typed and shown, signals and stops.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, ioctl_tiocsctty, pidfd_send_signal, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::{Mount, Plan, Source, inside};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_inherited, exit_now, fork};

use crate::child::read_all;
use crate::command::CommandSpec;
use crate::enter;
use crate::join::Failed;
use crate::session::{CommandExit, Leadership, Session};
use crate::terminal_relay::{TerminalRelay, UserTerminal};

/// Whether who enters an environment of this plan needs a terminal of its own: the user's has no name there.
#[must_use]
pub fn is_needed(plan: &Plan) -> bool {
    let has = |found: fn(&Mount) -> bool| plan.mounts.iter().any(found);
    has(|mount| mount.source == Source::Terminals)
        && !has(|mount| mount.target == Path::new(inside::TERMINALS))
}

/// Runs `act`, which starts `command` in the environment whose process 1 is `init` and waits for it, at a new terminal of that environment. Without
/// `init`, or if the user sits at no terminal, it is run as it is.
///
/// # Errors
/// What `act` says, and that there is no terminal to be had.
pub fn run(
    init: Option<BorrowedFd<'_>>,
    command: &CommandSpec,
    act: impl FnOnce(Session) -> std::result::Result<CommandExit, Failed>,
) -> std::result::Result<CommandExit, Failed> {
    let (Some(init), Some(user)) = (init, UserTerminal::find()?) else { return act(Session::begin()?) };
    let [master, slave] = enter::open_terminal(init).map_err(|e| {
        e.hint("without a terminal it works: `... </dev/null 2>&1 | cat`; restart the instance for new ones")
    })?;
    user.copy_to(slave.as_fd()).context(|| "terminal of the environment")?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).context(|| "pipe")?;
    let leads = Leadership { maker: getpid(), in_background: Cell::new(!user.is_in_foreground()) };
    let leader = match fork(CloneFlags::NONE).context(|| "leader of the session")? {
        Fork::Parent(leader) => leader,
        Fork::Child => {
            close_inherited(&[master.as_fd(), report.as_fd()]);
            let ended = lead(&slave, user.standard, leads).map_err(Failed::from).and_then(act);
            rustix::io::write(&reporter, &to_bytes(&ended))
                .ignore_error("if the maker is gone there is nobody to tell");
            exit_now(0)
        }
    };
    drop((slave, reporter));
    let session = Session::begin()
        .and_then(|session| Ok(session.relaying(TerminalRelay::begin(user, master)?)))
        .inspect_err(|_| end(&leader))?;
    let ended = session.wait(&leader)?;
    // All is said by now; who was killed has said nothing.
    from_bytes(&read_all(report.as_fd()), command).unwrap_or(Ok(ended))
}

/// Ends the leader of the session, and with it what runs at its terminal: nobody would hear how that ends.
fn end(leader: &Child) {
    pidfd_send_signal(&leader.pidfd, Signal::KILL).ignore_error("it has ended by itself");
    enter::wait_for(leader);
}

/// In the child: begins the session, with that terminal in place of the user's.
fn lead(slave: &OwnedFd, standard: [bool; 3], leads: Leadership) -> Result<Session> {
    let about = || "session on a terminal of the environment";
    let dups = [dup2_stdin, dup2_stdout, dup2_stderr];
    for (dup, _) in dups.iter().zip(standard).filter(|(_, is_terminal)| *is_terminal) {
        dup(slave).context(about)?;
    }
    setsid().context(about)?;
    ioctl_tiocsctty(slave).context(about)?;
    Ok(Session::begin()?.leading(leads))
}

/// How the command ended, or why it was not started, for the maker.
fn to_bytes(ended: &std::result::Result<CommandExit, Failed>) -> Vec<u8> {
    match ended {
        Ok(CommandExit::Code(code)) => [&[EXITED][..], &code.to_le_bytes()].concat(),
        Ok(CommandExit::Signal(signal)) => [&[KILLED][..], &signal.to_le_bytes()].concat(),
        Err(why) => [&[FAILED][..], &why.to_bytes()].concat(),
    }
}

fn from_bytes(word: &[u8], command: &CommandSpec) -> Option<std::result::Result<CommandExit, Failed>> {
    let (kind, rest) = word.split_first()?;
    let number = || rest.try_into().ok().map(i32::from_le_bytes);
    match *kind {
        EXITED => number().map(|code| Ok(CommandExit::Code(code))),
        KILLED => number().map(|signal| Ok(CommandExit::Signal(signal))),
        FAILED => Failed::reported(rest, command).map(Err),
        _ => None,
    }
}

/// The first bytes of what a leader says.
const EXITED: u8 = b'c';
const KILLED: u8 = b's';
const FAILED: u8 = b'f';

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use skiff_spec::fault::Fault;

    use super::*;

    #[test]
    fn ends_come_back_as_they_went() {
        let command = CommandSpec { argv: vec!["x".into()], ..CommandSpec::default() };
        for ended in [
            Ok(CommandExit::Code(255)),
            Ok(CommandExit::Signal(64)),
            Err(Failed::Command("x".into(), Errno::NOENT.raw_os_error())),
            Err(Fault::new("why").hint("what to do").into()),
        ] {
            assert_eq!(from_bytes(&to_bytes(&ended), &command), Some(ended));
        }
        for bad in [&b""[..], b"c", b"s12", b"x0000", b"f"] {
            assert_eq!(from_bytes(bad, &command), None, "{bad:?}");
        }
    }
}
