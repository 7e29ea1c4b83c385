//! RPM's database, as a list of headers: that is what `rpmdb --exportdb` prints and `rpmdb --importdb` reads. RPM alone knows the files in which
//! it keeps them.

mod ancestor;
mod header;
mod merge;
mod version;

pub use ancestor::RpmAncestor;
pub use header::{HeaderReader, RpmHeader, RpmPackage};
pub use merge::{RpmMerge, differences, merge};
pub use version::compare;

/// Why a list of headers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RpmError {
    /// The source failed, or the list ends inside a header.
    #[error("header {0}: {1}")]
    Read(usize, std::io::Error),
    /// These bytes are no header.
    #[error("header {0}: {1}")]
    Header(usize, &'static str),
    /// More headers than a system can have.
    #[error("more than {0} headers")]
    TooMany(usize),
}
