//! How a supervisor comes to be: a process of its own, which says whether what it is to hold runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, pidfd_send_signal, set_parent_process_death_signal};
use skiff_output as output;
use skiff_sandbox::join::Failed;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::Plan;
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, close_inherited, exit_now, fork};
use skiff_sys::signal::{is_end_held, is_end_wanted};
use skiff_user::context::UserContext;

use crate::service::Restorer;
use crate::supervisor::{Lifetime, RuntimeDir, Supervisor};

/// How often is looked whether this process is asked to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Forks a process that has only `kept` of our descriptors, begins something, and if that is heard of, serves it until its end; if whoever
/// wanted it is gone, it is `unheard`, or that nothing has come of it. Gives the notes of the beginning, or the words that say why there was none; nothing if it ended without a word.
pub fn apart<S>(
    kept: &[BorrowedFd<'_>],
    begin: impl FnOnce() -> std::result::Result<(S, Vec<u8>), Vec<u8>>,
    serve: impl FnOnce(S),
    unheard: impl FnOnce(Option<S>),
) -> Result<Option<std::result::Result<Vec<u8>, Vec<u8>>>> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    match fork(CloneFlags::NONE).context(|| "supervisor")? {
        Fork::Parent(child) => {
            drop(reporter);
            hand_on_end(&child, report.as_fd())?;
            let mut word = vec![];
            std::io::Read::read_to_end(&mut std::fs::File::from(report), &mut word)
                .context(|| "supervisor")?;
            Ok(word.split_first().map(|(begun, rest)| match begun {
                b'+' => Ok(rest.to_vec()),
                _ => Err(rest.to_vec()),
            }))
        }
        Fork::Child => {
            close_all_except(&[kept, &[reporter.as_fd()]].concat());
            let (word, begun) = match begin() {
                Ok((begun, notes)) => ([b"+", &notes[..]].concat(), Some(begun)),
                Err(why) => ([b"-", &why[..]].concat(), None),
            };
            let told = rustix::io::write(&reporter, &word).is_ok();
            drop(reporter);
            match begun {
                Some(begun) if told => serve(begun),
                begun if !told => unheard(begun),
                _ => {}
            }
            exit_now(0)
        }
    }
}

/// While a [`skiff_sys::signal::HeldEnd`] keeps the end from us, a supervisor that begins hears of it as well; until it reports.
fn hand_on_end(supervisor: &Child, report: BorrowedFd<'_>) -> Result<()> {
    let mut is_told = !is_end_held();
    while !is_told {
        match poll(&mut [PollFd::new(&report, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) | Err(Errno::INTR) if is_end_wanted() => {
                pidfd_send_signal(&supervisor.pidfd, Signal::TERM)
                    .ignore_error("it has ended, which shows next");
                is_told = true;
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => is_told = true,
            Err(e) => return Err(e).context(|| "supervisor"),
        }
    }
    Ok(())
}

/// Starts the supervisor; returns when the environment runs, or why it does not.
pub fn launch(
    context: &UserContext,
    runtime: &RuntimeDir,
    lifetime: Lifetime<'_>,
    plan: &Plan,
    held: &[OwnedFd],
    lock: &OwnedFd,
) -> std::result::Result<(), Failed> {
    let gate = match lifetime {
        Lifetime::Instance(service) => service.restorer.and_then(Restorer::approval),
        Lifetime::WhileUsed | Lifetime::WhileEntered | Lifetime::UntilStopped(_) => None,
    };
    let only_now = gate.map_or(&[][..], |gate| gate.kept);
    let kept: Vec<BorrowedFd<'_>> =
        held.iter().map(AsFd::as_fd).chain([lock.as_fd()]).chain(only_now.iter().copied()).collect();
    let begin = || match Supervisor::begin(context, runtime, lifetime, plan) {
        Ok(supervisor) => {
            close_inherited(only_now);
            if gate.is_some_and(|gate| gate.bound) {
                set_parent_process_death_signal(Some(Signal::KILL))
                    .ignore_error("if it has ended already, its own end is not far");
            }
            let notes = supervisor.instance.notes.join("\n").into_bytes();
            Ok((supervisor, notes))
        }
        Err(why) => Err(why.to_bytes()),
    };
    let unheard = |begun: Option<Supervisor<'_>>| match (begun, lifetime) {
        // Another machine has given it away, to us: it is nowhere else.
        (Some(supervisor), _) if gate.is_some() => supervisor.serve(),
        // Whoever would have removed it is gone. If we cannot either, `skiff sweep` does.
        (begun, Lifetime::Instance(service)) => {
            drop(begun);
            if let Ok(lock) = lock.try_clone() {
                service.record.remove(context, lock).ignore_error("`skiff sweep` removes what stays");
            }
        }
        (begun, _) => drop(begun),
    };
    match apart(&kept, begin, Supervisor::serve, unheard)? {
        Some(Ok(notes)) => {
            String::from_utf8_lossy(&notes).lines().for_each(output::note);
            Ok(())
        }
        Some(Err(why)) => Err(match lifetime {
            Lifetime::Instance(service) => service.command.and_then(|c| Failed::reported(&why, c)),
            Lifetime::WhileUsed | Lifetime::WhileEntered | Lifetime::UntilStopped(_) => None,
        }
        .unwrap_or_else(|| Error::from_bytes(why.get(1..).unwrap_or_default()).into())),
        None => {
            Err(Error::new(format!("environment {}: its supervisor ended without a word", runtime.name))
                .into())
        }
    }
}
