//! dpkg's and RPM's databases as plain data: an environment's copy of one is merged with what the host's has become since the copy was made
//! (docs/decisions/024-the-hosts-changes-show-by-themselves.md). Nothing here opens a file, and all text is foreign.

mod ancestor;
#[doc(hidden)]
pub mod fuzz;
mod merge;
mod records;
pub mod rpm;
mod stanza;
mod version;

pub use ancestor::Ancestor;
pub use merge::{Conflict, MergedDatabase, PackageChange, Unmet, merge, summary};
pub use records::{Records, merge_records};
pub use stanza::{Database, Hash, Stanza, field, paragraphs};
pub use version::compare;

/// What is wrong with a package database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A paragraph without a name, or with one that is no package's.
    #[error("paragraph {0} names no package")]
    Name(usize),
    /// More packages than there can be.
    #[error("more than {0} packages")]
    TooMany(usize),
    /// A record of the last merge that this version did not write.
    #[error("not a record of package databases that this version reads")]
    Record,
}
