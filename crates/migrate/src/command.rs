//! What CRIU says to its page server, and we say to each other in the same form: `OPEN` for a process (or a piece of shared memory), `ADD`
//! for each run of pages, with the pages behind it, and a word for the end.

use std::io::{Read, Write};

use skiff_spec::fault::{Context as _, Fault, Result};

/// The length of a command: what to do, how many pages, from which address on, of what.
pub const COMMAND: usize = 32;
/// Bytes.
pub const PAGE: u64 = 4096;
/// In a command's flags: the pages themselves follow.
pub const PRESENT: u16 = 1 << 2;
/// What pages may be of.
pub const PROCESS: u8 = 1;
/// The other.
pub const SHARED: u8 = 2;

const ADD: u16 = 6;
const OPEN: u16 = 4;
/// Commands that end the connection: once all has been written down, or at once.
const CLOSE: [u16; 2] = [0x1024, 0x1023];

/// One of them. `of` has the number of a process, or of a piece of shared memory, above the eight bits that say which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Pages of this come now.
    Open(u64),
    /// A run of pages.
    Add {
        /// Whose.
        of: u64,
        /// Of the first.
        address: u64,
        /// How many.
        pages: u64,
        /// What is known of them.
        flags: u16,
    },
    /// The end of the pages.
    Close,
}

impl Command {
    /// The next one.
    ///
    /// # Errors
    /// When there is none, or one that is not known.
    pub fn read(socket: &mut impl Read) -> Result<Self> {
        let mut bytes = [0; COMMAND];
        socket.read_exact(&mut bytes).context(|| "pages from the other side")?;
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8; COMMAND]) -> Result<Self> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(number)
        };
        let (word, flags) = (number(0) as u16, (number(0) >> 16) as u16);
        match word {
            OPEN => Ok(Self::Open(number(24))),
            ADD => Ok(Self::Add { of: number(24), address: number(16), pages: number(8), flags }),
            word if CLOSE.contains(&word) => Ok(Self::Close),
            other => {
                Err(Fault::new(format!("pages from the other side: a command {other:#x} that is not known"))
                    .hint("CRIU must be of the same version on both machines"))
            }
        }
    }

    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> [u8; COMMAND] {
        let (word, flags, pages, address, of) = match *self {
            Self::Open(of) => (OPEN, 0, 0, 0, of),
            Self::Add { of, address, pages, flags } => (ADD, flags, pages, address, of),
            Self::Close => (CLOSE[0], 0, 0, 0, 0),
        };
        let mut bytes = [0; COMMAND];
        let numbers = [u64::from(word) | u64::from(flags) << 16, pages, address, of];
        for (at, number) in numbers.into_iter().enumerate() {
            bytes[at * 8..][..8].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// Sends it.
    ///
    /// # Errors
    /// When nobody is there any more.
    pub fn write(&self, socket: &mut impl Write) -> Result<()> {
        socket.write_all(&self.bytes()).context(|| "connection for pages")
    }
}

/// How many bytes so many pages are.
///
/// # Errors
/// When there cannot be so many.
pub fn bytes(pages: u64) -> Result<u64> {
    pages.checked_mul(PAGE).ok_or_else(|| Fault::new("pages from the other side: more than there can be"))
}

/// What pages of a process are of.
#[must_use]
pub fn of(pid: i32) -> u64 {
    u64::from(pid.unsigned_abs()) << 8 | u64::from(PROCESS)
}

/// The process that pages are of.
#[must_use]
pub fn process(of: u64) -> Option<i32> {
    (of as u8 == PROCESS).then(|| i32::try_from(of >> 8).ok()).flatten().filter(|pid| *pid > 0)
}

/// What another side is told that sends what it has not announced.
pub(crate) fn strange() -> Fault {
    Fault::new("pages from the other side: not as they were announced")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for command in [
            Command::Open(2 << 8 | 1),
            Command::Add { of: 9 << 8 | 2, address: 0x7fff_0000_1000, pages: 1 << 40, flags: PRESENT },
            Command::Close,
        ] {
            assert_eq!(Command::read(&mut &command.bytes()[..]).expect("known"), command);
        }
        let close = Command::Close.bytes();
        for (bytes, reason) in [
            (&[0; COMMAND][..], "a command 0x0 that is not known"),
            (&close[1..], "failed to fill whole buffer"),
        ] {
            let refused = Command::read(&mut &bytes[..]).expect_err(reason);
            assert_eq!(refused.message, format!("pages from the other side: {reason}"));
        }
    }

    #[test]
    fn whose_pages_they_are() {
        for (of, pid) in [(2 << 8 | 1, Some(2)), (2 << 8 | 2, None), (1, None), (u64::MAX << 8 | 1, None)] {
            assert_eq!(process(of), pid, "{of:#x}");
        }
        assert!(bytes(u64::MAX).expect_err("too many").message.ends_with("more than there can be"));
    }
}
