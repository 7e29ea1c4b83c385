//! What CRIU says to a page server while it dumps, if [`Options::page_server`](crate::rpc::Options::page_server) names one: `criu page-server`, or a
//! program of yours that does something better with the pages.
//!
//! CRIU opens the pages of a process (or of a piece of shared memory), adds runs of pages, each followed by their bytes, and closes. Numbers are in the
//! order of bytes of the host. After [`PageServerCommand::Close`] CRIU waits for four zero bytes. This is the protocol of CRIU 4.2 and later: before, the number of
//! pages had 32 bits. Source: `criu/page-xfer.c`.

use std::io::{Read, Write};

use crate::error::{Error, Result, WithObject as _};

/// Bytes of a command.
pub const COMMAND: usize = 32;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// In a command's flags: the bytes of the pages follow.
pub const PRESENT: u16 = 1 << 2;
/// Type of pages that belong to a process.
pub const PROCESS: u8 = 1;
/// Type of pages that belong to a piece of shared memory.
pub const SHARED: u8 = 2;

const ADD: u16 = 6;
const OPEN: u16 = 4;
/// Commands that end the connection: once all has been written down, or at once.
const CLOSE: [u16; 2] = [0x1024, 0x1023];

/// One command. `of` holds the number of a process, or of a piece of shared memory, above the eight bits of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageServerCommand {
    /// Pages of this follow.
    Open(u64),
    /// A run of pages.
    Add {
        /// What they belong to.
        of: u64,
        /// Address of the first, in bytes.
        address: u64,
        /// Number of pages.
        pages: u64,
        /// [`PRESENT`], and other flags of CRIU's `pagemap` images.
        flags: u16,
    },
    /// The end of the pages.
    Close,
}

impl PageServerCommand {
    /// Reads the next command.
    ///
    /// # Errors
    /// [`Error::Io`] when the connection ends before or within it, [`Error::UnknownCommand`].
    pub fn read(from: &mut impl Read) -> Result<Self> {
        let mut bytes = [0; COMMAND];
        from.read_exact(&mut bytes).on("read from", "the connection for pages")?;
        Self::parse(&bytes)
    }

    /// Reads a command's bytes.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`].
    pub fn parse(bytes: &[u8; COMMAND]) -> Result<Self> {
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
            other => Err(Error::UnknownCommand(other)),
        }
    }

    /// The bytes of the command.
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

    /// Sends the command.
    ///
    /// # Errors
    /// [`Error::Io`] when the other end is closed.
    pub fn write(&self, to: &mut impl Write) -> Result<()> {
        to.write_all(&self.bytes()).on("write to", "the connection for pages")
    }
}

/// Number of bytes in so many pages.
///
/// # Errors
/// [`Error::TooManyPages`] when 64 bits cannot count them.
pub fn bytes(pages: u64) -> Result<u64> {
    pages.checked_mul(PAGE).ok_or(Error::TooManyPages(pages))
}

/// What the pages of a process belong to, for [`PageServerCommand::Open`].
#[must_use]
pub fn of(pid: i32) -> u64 {
    u64::from(pid.unsigned_abs()) << 8 | u64::from(PROCESS)
}

/// PID of the process that pages belong to.
#[must_use]
pub fn process(of: u64) -> Option<i32> {
    (of as u8 == PROCESS).then(|| i32::try_from(of >> 8).ok()).flatten().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for command in [
            PageServerCommand::Open(2 << 8 | 1),
            PageServerCommand::Add {
                of: 9 << 8 | 2,
                address: 0x7fff_0000_1000,
                pages: 1 << 40,
                flags: PRESENT,
            },
            PageServerCommand::Close,
        ] {
            assert_eq!(PageServerCommand::read(&mut &command.bytes()[..]).expect("known"), command);
        }
        let close = PageServerCommand::Close.bytes();
        for (bytes, reason) in [
            (&[0; COMMAND][..], "unknown page command 0x0"),
            (&close[1..], "cannot read from the connection for pages: failed to fill whole buffer"),
        ] {
            let refused = PageServerCommand::read(&mut &bytes[..]).expect_err(reason);
            assert_eq!(refused.to_string(), reason);
        }
    }

    #[test]
    fn whose_pages_they_are() {
        for (of, pid) in [(2 << 8 | 1, Some(2)), (2 << 8 | 2, None), (1, None), (u64::MAX << 8 | 1, None)] {
            assert_eq!(process(of), pid, "{of:#x}");
        }
        assert!(matches!(bytes(u64::MAX), Err(Error::TooManyPages(u64::MAX))));
    }
}
