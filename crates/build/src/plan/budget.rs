//! A limit to what values come to: a Dockerfile of some lines can double a variable again and again, and have it in each step.

use std::cell::Cell;

use skiff_spec::fault::{Fault, Result};

use crate::dockerfile::words::{WordError, expand, expand_text};

/// No plan has more of values, in MiB.
const MOST: usize = 16;

/// How many bytes are left for values, in all stages together.
#[derive(Debug)]
pub(crate) struct ValueBudget(Cell<Option<usize>>);

impl Default for ValueBudget {
    fn default() -> Self {
        Self(Cell::new(Some(MOST << 20)))
    }
}

impl ValueBudget {
    /// Counts so many bytes.
    ///
    /// # Errors
    /// There are too many with them, or were before.
    pub fn count(&self, bytes: usize) -> Result<()> {
        self.0.set(self.0.get().and_then(|left| left.checked_sub(bytes)));
        match self.0.get() {
            Some(_) => Ok(()),
            None => Err(Fault::new(format!(
                "values of variables and settings take more than {MOST} MiB in all steps"
            ))
            .hint("shorten what ENV, ARG and LABEL name, or COPY it as a file")),
        }
    }

    /// A word as [`expand`] reads it. Each value that is put in counts, whatever becomes of it.
    ///
    /// # Errors
    /// The word cannot be read, or takes too much.
    pub fn expand(&self, word: &str, escape: char, value: &dyn Fn(&str) -> Option<String>) -> Result<String> {
        self.checked(|value| expand(word, escape, value), value)
    }

    /// A text as [`expand_text`] reads it.
    ///
    /// # Errors
    /// As [`expand`](Self::expand).
    pub fn expand_text(
        &self,
        text: &str,
        escape: char,
        value: &dyn Fn(&str) -> Option<String>,
    ) -> Result<String> {
        self.checked(|value| expand_text(text, escape, value), value)
    }

    fn checked(
        &self,
        read: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> std::result::Result<String, WordError>,
        value: &dyn Fn(&str) -> Option<String>,
    ) -> Result<String> {
        // Once too much was asked for, nothing more is given.
        let counted = |name: &str| value(name).filter(|value| self.count(value.len()).is_ok());
        let word = read(&counted);
        self.count(0)?;
        word.map_err(|error| Fault::new(error.to_string()))
    }
}
