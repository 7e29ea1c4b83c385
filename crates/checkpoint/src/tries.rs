//! A save or move is tried again where what is in its way passes by itself, and ends where the user asks for that.

use std::time::Duration;

use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::signal::{HeldEnd, is_end_wanted};

/// How often a save or move is tried where something is in the way that passes by itself.
pub const TRIES: u32 = 10;
/// Pauses between tries grow up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(640);

/// What is done to processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointAction {
    /// Saving them.
    Save,
    /// Moving them to another host.
    Move,
    /// Restoring them, which stops none.
    Restore,
}

impl CheckpointAction {
    /// What is then said of the instance, and the command that shows what is in the way.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Save => ("saved", "skiff checkpoint save --dry-run"),
            Self::Move => ("moved", "skiff migrate --dry-run"),
            Self::Restore => ("restored", "skiff checkpoint restore --dry-run"),
        }
    }
}

/// Carries out a save or move, and does so again as long as something is in the way that passes by itself: the programs go on meanwhile.
pub fn try_again<T>(
    (name, action): (&EnvName, CheckpointAction),
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut number = 1;
    loop {
        refuse_interrupted(action)?;
        match attempt() {
            Ok(done) if number > 1 => {
                output::note(&format!("instance {name}: {} at try {number}", action.words().0));
                return Ok(done);
            }
            Err(why) if why.passes && number < TRIES => {
                std::thread::sleep(pause_after(number));
                number += 1;
            }
            Err(why) if why.passes => {
                return Err(why.about(&format!("tried {TRIES} times")));
            }
            done => return done,
        }
    }
}

/// How long programs go on after the try of this number.
pub(crate) fn pause_after(number: u32) -> Duration {
    Duration::from_millis(5).saturating_mul(1 << number.min(16)).min(LONGEST_PAUSE)
}

/// Carries out what takes itself back once the user asks this process to end (Ctrl-C, SIGTERM), and says what has become of it before it ends.
pub fn take_back_at_end<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let held = HeldEnd::begin();
    let done = act();
    tell_interrupted(&held, &done);
    done
}

/// The same; once it is done, nothing ends this process before that is said.
pub fn take_back_until_done<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let held = HeldEnd::begin();
    let done = act();
    tell_interrupted(&held, &done);
    if done.is_ok() {
        held.keep();
    }
    done
}

/// The signal that is held back ends this process before the caller says why.
fn tell_interrupted<T>(held: &HeldEnd, done: &Result<T>) {
    match done {
        Err(why) if held.caught().is_some() => output::complain(why),
        _ => {}
    }
}

/// Refuses to go on once this process is asked to end (Ctrl-C, SIGTERM). The caller names the instance.
pub fn refuse_interrupted(action: CheckpointAction) -> Result<()> {
    if !is_end_wanted() {
        return Ok(());
    }
    Err(Error::new(match action {
        CheckpointAction::Restore => "interrupted: nothing is restored".into(),
        CheckpointAction::Save | CheckpointAction::Move => {
            format!("interrupted: nothing is {}, and the instance goes on", action.words().0)
        }
    }))
}
