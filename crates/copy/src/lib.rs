//! Copies files between two mount namespaces: one process packs what it sees into a tar stream, another unpacks that where it is.
//!
//! A container may have no tar, and what is in it may be anybody's. So the stream is foreign to whoever unpacks it: nothing in it leads out of
//! the destination, becomes a device, or gets rights beyond those of a plain file.

mod destination;
mod holes;
mod pack;
mod stream;
mod unpack;

use serde::{Deserialize, Serialize};
use skiff_spec::fault::Fault;
use skiff_sys::SystemError;

pub use destination::{Destination, Rights};
pub use pack::{Packed, pack};
pub use unpack::{unpack, unpack_archive};

/// Permission bits of files. Setuid and setgid bits are not copied: they would give the rights of another owner.
const FILE_MODE: u16 = 0o777;
/// Permission bits of directories.
const DIRECTORY_MODE: u16 = 0o1777;

/// Why files were not copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyError {
    /// The stream broke off: the other side knows why.
    Stream(Fault),
    /// Something failed on this side.
    Here(Fault),
}

impl CopyError {
    /// What the user reads.
    #[must_use]
    pub fn into_fault(self) -> Fault {
        match self {
            Self::Stream(fault) | Self::Here(fault) => fault,
        }
    }
}

impl From<Fault> for CopyError {
    fn from(fault: Fault) -> Self {
        Self::Here(fault)
    }
}

impl From<SystemError> for CopyError {
    fn from(error: SystemError) -> Self {
        use rustix::io::Errno;
        let fault = Fault::new(error.to_string());
        Self::Here(match error.source {
            Errno::ROFS => fault.hint(
                "it is read-only there: an image takes changes with `skiff run -d --writable`, or as the base of an environment",
            ),
            Errno::BUSY => fault.hint("something is mounted there: copy to another name"),
            _ => match error.hint() {
                Some(hint) => fault.hint(hint),
                None => fault,
            },
        })
    }
}

/// The result of one side.
pub type Result<T> = std::result::Result<T, CopyError>;

/// So many files that cannot be read are named.
const MOST_NAMED: usize = 1000;

/// What was not copied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCopied {
    /// Devices, named pipes and sockets.
    pub special: u64,
    /// Directories in which the kernel shows its state, such as /proc.
    pub kernel: u64,
    /// Files that lack their setuid and setgid bits.
    pub setuid: u64,
    /// Files and directories that cannot be read.
    pub unread: u64,
    /// Why, of the first of these.
    pub reasons: Vec<String>,
}

impl NotCopied {
    /// What both sides have left out.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            special: self.special + other.special,
            kernel: self.kernel + other.kernel,
            setuid: self.setuid + other.setuid,
            unread: self.unread + other.unread,
            reasons: [self.reasons, other.reasons].concat(),
        }
    }

    /// What was read. If it cannot be, that is noted, and all else is copied.
    fn unless_unread<T>(&mut self, read: std::result::Result<T, SystemError>) -> Option<T> {
        read.map_err(|why| {
            self.unread += 1;
            if self.reasons.len() < MOST_NAMED {
                self.reasons.push(why.to_string());
            }
        })
        .ok()
    }

    /// The fault that is left when all else is copied, if there is one.
    ///
    /// # Errors
    /// Something could not be read.
    pub fn complete(&self) -> std::result::Result<(), Fault> {
        match self.unread {
            0 => Ok(()),
            count => Err(Fault::new(format!("cp: files and directories that cannot be read: {count}"))
                .hint("the copy has all but these: make them readable and copy again")),
        }
    }

    /// What a user is told of it.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let rows = [
            (self.special, "devices, pipes and sockets are left out"),
            (self.kernel, "directories of the kernel's, such as /proc, are left out"),
            (self.setuid, "files are copied without their setuid and setgid bits"),
        ];
        let counted = rows.iter().filter(|(count, _)| *count > 0);
        let counted = counted.map(|(count, what)| format!("{what}: {count}"));
        self.reasons.iter().cloned().chain(counted).collect()
    }
}

/// A file's permission bits as they are copied; counts what that takes away.
fn file_mode(mode: u16, rights: Rights, left_out: &mut NotCopied) -> u16 {
    if rights != Rights::Plain {
        return mode & 0o7777;
    }
    left_out.setuid += u64::from(mode & 0o6000 != 0);
    mode & FILE_MODE
}

#[cfg(test)]
mod tests;
