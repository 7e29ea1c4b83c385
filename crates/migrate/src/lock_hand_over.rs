//! Locks on files that both hosts may see go from the processes here to those there, which nobody else gets in between: exclusive ones are
//! shared by both for a moment, as the kernel changes one from exclusive to shared and back in one step. Until the instance is given
//! away nothing has changed here, so that whoever dies before then leaves the locks where they are.

use std::time::{Duration, Instant};

use skiff_checkpoint::locks::{self, FileLock, LockChange};
use skiff_output as output;
use skiff_sandbox::enter::EnterTarget;
use skiff_sandbox::join::alive;
use skiff_spec::fault::{Fault, Result};

use crate::peer::ControlChannel;
use crate::talk::{DestinationMessage, SourceMessage};

/// Locks on files, each with its process.
pub type HeldLocks = Vec<(i32, FileLock)>;

/// Between two rounds of tries to have locks again that another has.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the source may take to release what both share.
const RELEASING: Duration = Duration::from_secs(20);

/// At the source, whose processes stand still: others can share their locks.
pub fn share(inside: EnterTarget<'_>, held: &HeldLocks) -> Result<()> {
    locks::change(inside, held, LockChange::Share, Duration::ZERO)
}

/// At the source: says that the instance is given away, and releases the locks when those there share them; what has been said of it.
pub fn give(
    peer: &mut ControlChannel,
    (inside, held): (EnterTarget<'_>, &HeldLocks),
    patience: Duration,
) -> Result<DestinationMessage> {
    peer.tell(&SourceMessage::Go)?;
    match peer.hear(Instant::now() + patience)? {
        DestinationMessage::Locked => {
            locks::change(inside, held, LockChange::Release, Duration::ZERO)?;
            peer.tell(&SourceMessage::Released)?;
            peer.hear(Instant::now() + patience)
        }
        other => Ok(other),
    }
}

/// At the destination, whose processes stand still: shares the locks, waits for the source to release them, and has them as they were.
pub fn take(peer: &mut ControlChannel, inside: EnterTarget<'_>, held: &HeldLocks) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    locks::change(inside, held, LockChange::Share, locks::PATIENCE)?;
    peer.tell(&DestinationMessage::Locked)?;
    match peer.hear(Instant::now() + RELEASING) {
        Ok(SourceMessage::Released) => locks::change(inside, held, LockChange::Take, locks::PATIENCE),
        Ok(other) => Err(Fault::new(format!("unexpected message: {other:?}"))),
        // A source that has released them and is lost before it could say so: nobody else has them, and they must not become free.
        Err(lost) => locks::change(inside, held, LockChange::Take, Duration::ZERO).map_err(|_| lost),
    }
}

/// At the source, where the instance stays: its locks are what they were, before its processes go on. Others may have taken one, once it was
/// released. Then the processes stand still until these have done.
///
/// # Errors
/// Why one cannot be had at all. Waiting does not help then: the caller lets the processes go on without it, and says so.
pub fn take_back(inside: EnterTarget<'_>, held: &HeldLocks) -> Result<()> {
    let mut told = None;
    while let Some(file) = locks::try_change(inside, held, LockChange::Take, locks::PATIENCE)? {
        let why = locks::taken_by_another(&file);
        if !alive(inside.init) {
            return Err(why);
        }
        if told.as_ref() != Some(&file) {
            output::note(&format!("{why}; its processes stand still until then"));
            told = Some(file);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
