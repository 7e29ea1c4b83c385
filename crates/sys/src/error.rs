//! A system call that failed: what was tried, on which object, and the kernel's reason.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// How to mend a full disk or quota.
pub const SPACE: &str = "free some space or quota there; nothing half made was left behind";

/// What was tried, on which object, and why it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemError {
    /// What was tried, as a verb: "open", "write to".
    pub what: &'static str,
    /// The path it was tried on; bytes that are not UTF-8 are escaped.
    pub object: String,
    /// The kernel's reason; `EIO` where the standard library has one of its own.
    pub source: Errno,
    /// The reason in words.
    pub reason: String,
}

impl SystemError {
    /// `what` is a verb, `object` the path. An error of the standard library stands for a system call's.
    #[must_use]
    pub fn new(what: &'static str, object: impl AsRef<[u8]>, e: impl Into<io::Error>) -> Self {
        let e = e.into();
        let source = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        Self { what, object: show(object.as_ref()), source, reason: e.to_string() }
    }

    /// How to mend it, where the reason alone tells: one sentence without a full stop.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self.source {
            Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP if self.what == "lock" => {
                Some("the file system there has no locks; mount it with them (Lustre: -o flock, NFS: lockd)")
            }
            Errno::NOSPC | Errno::DQUOT => Some(SPACE),
            _ => None,
        }
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.what, self.object, self.reason)
    }
}

impl std::error::Error for SystemError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Adds what was tried, and on what, to a failed system call.
pub trait SystemContext<T> {
    /// `what` is a verb, `object` the path.
    ///
    /// # Errors
    /// The same error, with both.
    fn on(self, what: &'static str, object: impl AsRef<[u8]>) -> Result<T, SystemError>;
}

impl<T, E: Into<io::Error>> SystemContext<T> for Result<T, E> {
    fn on(self, what: &'static str, object: impl AsRef<[u8]>) -> Result<T, SystemError> {
        self.map_err(|e| SystemError::new(what, object, e))
    }
}

/// Whether a character changes how those around it look: control characters, and those that turn the direction of writing.
#[must_use]
pub fn is_disguise(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A path for a message: as it is when it is UTF-8 in which each character looks like itself, else escaped.
#[must_use]
pub fn show(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok("") => "/".into(),
        Ok(text) if !text.chars().any(is_disguise) => text.into(),
        _ => path.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_what_object_and_reason() {
        let error = Err::<(), _>(Errno::NOSPC).on("write to", b"a\xff\n").unwrap_err();
        assert_eq!(error.to_string(), "cannot write to a\\xff\\n: No space left on device (os error 28)");
        assert_eq!(error.hint(), Some(SPACE));
    }

    #[test]
    fn an_error_of_the_standard_library_keeps_its_number() {
        let failed = |e: io::Error| Err::<(), _>(e).on("lock", "x").unwrap_err();
        let locks = failed(io::Error::from_raw_os_error(Errno::NOLCK.raw_os_error()));
        assert!(locks.source == Errno::NOLCK && locks.hint().is_some_and(|hint| hint.contains("flock")));
        let cut = failed(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(
            (cut.source, cut.to_string().as_str()),
            (Errno::IO, "cannot lock x: unexpected end of file")
        );
    }
}
