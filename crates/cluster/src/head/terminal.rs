//! The user's terminal, while the program has another one on its host: keys mean what that one says they mean.

use rustix::process::getpgrp;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

use skiff_sys::IgnoreError;

/// Rows and columns of the terminal; nothing unless both our input and our output are one, and we work in its foreground.
#[must_use]
pub fn size() -> Option<[u16; 2]> {
    let is_ours = || tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
    if !isatty(stdin()) || !isatty(stdout()) || !is_ours() {
        return None;
    }
    tcgetwinsize(stdin()).ok().map(|size| [size.ws_row, size.ws_col])
}

/// A terminal in raw mode: every key is handed on. Dropping it restores the terminal's settings.
pub struct Raw(Termios);

impl Raw {
    /// Nothing if it cannot be had so.
    pub fn begin() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        // What was typed ahead stays.
        tcsetattr(stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        tcsetattr(stdin(), OptionalActions::Drain, &self.0)
            .ignore_error("if it is gone, there is nothing to give back");
    }
}
