//! How a supervisor comes to be: a process of its own, which says whether what it is to hold runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};
use skiff_env::LayerLease;
use skiff_sandbox::join::Failed;
use skiff_sandbox::{Context as _, Error};
use skiff_spec::plan::Plan;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exit_now, fork};

use super::{Keep, Place, Supervisor};
use crate::context::Context;
use crate::output;

/// Starts the supervisor; returns when the environment runs, or why it does not.
pub fn launch(
    context: &Context,
    place: &Place,
    keep: Keep<'_>,
    plan: &Plan,
    held: &[LayerLease],
    lock: &OwnedFd,
) -> std::result::Result<(), Failed> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    match fork(CloneFlags::NONE).context(|| "supervisor")? {
        Fork::Parent(_) => {
            drop(reporter);
            let mut text = vec![];
            std::io::Read::read_to_end(&mut std::fs::File::from(report), &mut text)
                .context(|| "supervisor")?;
            match text.split_first() {
                Some((b'+', notes)) => {
                    String::from_utf8_lossy(notes).lines().for_each(output::note);
                    Ok(())
                }
                Some((_, why)) => Err(match keep {
                    Keep::Instance(service) => service.command.and_then(|c| Failed::reported(why, c)),
                    Keep::WhileUsed | Keep::WhileEntered | Keep::UntilStopped => None,
                }
                .unwrap_or_else(|| Error::from_bytes(why.get(1..).unwrap_or_default()).into())),
                None => Err(Error::new(format!(
                    "environment {}: its supervisor ended without a word",
                    place.name
                ))
                .into()),
            }
        }
        Fork::Child => {
            let kept: Vec<BorrowedFd<'_>> =
                held.iter().map(AsFd::as_fd).chain([lock.as_fd(), reporter.as_fd()]).collect();
            close_all_except(&kept);
            let begun = Supervisor::begin(context, place, keep, plan);
            let word = match &begun {
                Ok(supervisor) => [b"+", supervisor.instance.notes.join("\n").as_bytes()].concat(),
                Err(why) => [b"-", &why.to_bytes()[..]].concat(),
            };
            let told = rustix::io::write(&reporter, &word).is_ok();
            drop(reporter);
            if let (Ok(supervisor), true) = (begun, told) {
                supervisor.serve();
            }
            exit_now(0);
        }
    }
}
