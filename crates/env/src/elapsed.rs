//! For how long something has been going on of which no parts show: a line on a terminal that is gone when it ends.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_output as output;
use skiff_sandbox::visit::as_root_of_ids_watched;
use skiff_spec::fault::Result;
use skiff_spec::plan::Base;
use skiff_sys::signal::HeldEnd;
use skiff_user::context::UserContext;

/// What takes less is over before anybody wonders.
const SHORT: Duration = Duration::from_secs(2);

/// [`skiff_sandbox::visit::as_root_of_ids`] of what may take long; `what` says on a terminal what it is.
pub fn as_root_of_ids_shown<T: Serialize + DeserializeOwned>(
    context: &UserContext,
    base: Base,
    what: impl Into<String>,
    act: impl FnOnce(Option<OwnedFd>) -> Result<T>,
) -> Result<T> {
    let mut elapsed = Elapsed::begin(what.into());
    let done = as_root_of_ids_watched((context.helper.as_deref(), base), act, || elapsed.show());
    if done.is_err() && elapsed.is_interrupted() {
        elapsed.end_interrupted();
    }
    done
}

struct Elapsed {
    what: String,
    since: Instant,
    is_shown: bool,
    drawn: bool,
    held: Option<HeldEnd>,
}

impl Elapsed {
    /// Begins now; shows where standard error is a terminal that can take a line back.
    fn begin(what: String) -> Self {
        let is_shown = output::can_redraw();
        Self { what, since: Instant::now(), is_shown, drawn: false, held: None }
    }

    /// Shows how long it has been. From the first time on, an end by the user is said as well: the process that works has begun by then, so
    /// that it does not inherit the held signals, and Ctrl-C ends it.
    fn show(&mut self) {
        if self.is_interrupted() {
            self.end_interrupted();
        }
        self.held.get_or_insert_with(HeldEnd::begin);
        let elapsed = self.since.elapsed();
        if self.is_shown && elapsed >= SHORT {
            self.drawn = true;
            let what: String = self.what.chars().take(60).collect();
            output::draw(&format!("\r\x1b[2K{what}: {} s", elapsed.as_secs()));
        }
    }

    /// Whether the user has ended it. (Where somebody else holds the signals, they say so.)
    fn is_interrupted(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.caught().is_some())
    }

    /// Says that the user has ended it; the signal that is held then ends this process.
    fn end_interrupted(&mut self) {
        self.clear();
        output::note(&format!("{}: interrupted", self.what));
        drop(self.held.take());
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            output::draw("\r\x1b[2K");
        }
    }
}

impl Drop for Elapsed {
    fn drop(&mut self) {
        self.clear();
    }
}
