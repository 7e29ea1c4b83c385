//! What went wrong, on which object, and how to mend it.

use std::fmt::Display;
use std::io;

/// An error for the user to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What, on which object, why.
    pub message: String,
    /// How to mend it; empty if there is nothing to say.
    pub hint: String,
}

/// The outcome of everything here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a cause below it.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: String::new() }
    }

    /// Adds how to mend it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Puts the object in front.
    #[must_use]
    pub fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// As bytes for a pipe.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        format!("{}\n{}", self.message.replace('\n', "; "), self.hint).into_bytes()
    }

    /// From bytes of a pipe.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (message, hint) = text.split_once('\n').unwrap_or((&text, ""));
        Self { message: message.into(), hint: hint.into() }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<skiff_site::Error> for Error {
    fn from(e: skiff_site::Error) -> Self {
        Self::new(e.to_string()).hint(e.hint())
    }
}

/// Adds what was being done to an error of the system.
pub trait Context<T> {
    /// `what` names the action and its object.
    ///
    /// # Errors
    /// The same error, said so that it can be understood.
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| of_system(e, what()))
    }
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| of_system(e.into(), what()))
    }
}

fn of_system(e: io::Error, what: impl Display) -> Error {
    let said = Error::new(format!("{what}: {e}"));
    if e.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) {
        return said.hint(
            "the kernel is too old (Linux 5.19 or newer is needed), or a filter of system calls is in force",
        );
    }
    said
}
