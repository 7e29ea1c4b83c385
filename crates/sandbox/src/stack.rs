//! The soft limit of the stack. The kernel lowers it to 8 MiB for the helper, as that is setuid, and so for what the helper starts: who
//! asks the helper says which limit there was, as Fortran's arrays lie on the stack.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A soft limit of the stack in bytes; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackLimit(Option<u64>);

impl StackLimit {
    /// The limit of this process.
    #[must_use]
    pub fn own() -> Self {
        Self(getrlimit(Resource::Stack).current)
    }

    /// Gives this process the limit, or as much of it as the hard limit allows.
    ///
    /// # Errors
    /// The system's.
    pub fn apply(self) -> std::io::Result<()> {
        let Rlimit { current, maximum } = getrlimit(Resource::Stack);
        let wanted = match (self.0, maximum) {
            (Some(wanted), Some(most)) => Some(wanted.min(most)),
            (wanted, most) => wanted.or(most),
        };
        if wanted != current {
            setrlimit(Resource::Stack, Rlimit { current: wanted, maximum })?;
        }
        Ok(())
    }

    /// As text: the bytes in hexadecimal digits, and the largest number for no limit.
    #[must_use]
    pub fn to_word(self) -> String {
        format!("{:x}", self.0.unwrap_or(u64::MAX))
    }

    /// From text; nothing if that is not what it is.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        let bytes = u64::from_str_radix(word, 16).ok()?;
        Some(Self(Some(bytes).filter(|bytes| *bytes != u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (limit, word) in [(None, "ffffffffffffffff"), (Some(0), "0"), (Some(1 << 23), "800000")] {
            assert_eq!(StackLimit(limit).to_word(), word);
            assert_eq!(StackLimit::from_word(word), Some(StackLimit(limit)));
        }
        for word in ["", "-1", "x", "unlimited", "10000000000000000"] {
            assert_eq!(StackLimit::from_word(word), None, "{word}");
        }
    }
}
