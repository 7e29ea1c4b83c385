//! What went wrong, on which object, and how to mend it: what is printed in the end, and what crosses pipes and sockets until then.

use std::fmt::Display;
use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize};

/// What ends well, or with a fault.
pub type Result<T> = std::result::Result<T, Fault>;

/// The number of `ENOSYS`, which the standard library has no name of its own for.
const ENOSYS: i32 = 38;

/// What helps where a file system or a quota is full.
pub const NO_ROOM: &str = "make room there: `df -h`, `df -i` and `quota -s` show what is full";

/// An error for the user to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What, on which object, why.
    pub message: String,
    /// How to mend it; empty if there is nothing to say.
    pub hint: String,
    /// Whether it passes by itself, so that to try again soon helps. Only known in the process in which it has happened.
    #[serde(skip)]
    pub passes: bool,
}

impl Fault {
    /// A fault without a cause below it.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: String::new(), passes: false }
    }

    /// Adds how to mend it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Says that it passes by itself.
    #[must_use]
    pub fn passing(self) -> Self {
        Self { passes: true, ..self }
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
        Self::new(message).hint(hint)
    }

    fn of_system(e: &io::Error, what: impl Display) -> Self {
        let fault = Self::new(format!("{what}: {e}"));
        match e.kind() {
            _ if e.raw_os_error() == Some(ENOSYS) => fault.hint(
                "the kernel is too old (Linux 5.19 or newer is needed), or a filter of system calls is in force",
            ),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => fault.hint(NO_ROOM),
            _ => fault,
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

/// Adds what was being done to an error of the system.
pub trait Context<T> {
    /// `what` names the action and its object.
    ///
    /// # Errors
    /// The same error, said so that it can be understood.
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| Fault::of_system(&e.into(), what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_back_from_bytes_on_one_line_each() {
        let cases = [
            (Fault::new("a: b"), Fault::new("a: b")),
            (Fault::new("a\nb").hint("c"), Fault::new("a; b").hint("c")),
            (Fault::new("b").about("a").hint("c\nd"), Fault::new("a: b").hint("c\nd")),
        ];
        for (fault, expected) in cases {
            assert_eq!(Fault::from_bytes(&fault.to_bytes()), expected);
        }
    }

    #[test]
    fn json_is_what_programs_of_other_versions_know() {
        let text = r#"{"message":"a: b","hint":"c"}"#;
        let fault = Fault::new("a: b").hint("c");
        assert_eq!(serde_json::to_string(&fault).unwrap(), text);
        assert_eq!(serde_json::from_str::<Fault>(text).unwrap(), fault);
    }

    #[test]
    fn what_the_kernel_says_has_a_hint_where_one_helps() {
        let fault =
            |number| Err::<(), _>(io::Error::from_raw_os_error(number)).context(|| "fork").unwrap_err();
        assert!(fault(ENOSYS).hint.contains("kernel"));
        // ENOSPC, EDQUOT.
        assert_eq!([28, 122].map(|number| fault(number).hint), [NO_ROOM; 2]);
        assert_eq!(fault(12).hint, "");
        assert!(fault(12).message.starts_with("fork: "), "{}", fault(12));
    }
}
