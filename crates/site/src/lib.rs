//! Accounts of the site, and directories that no other user can exchange: what root's processes, and a user's processes on shared file systems, keep their
//! files in. A path that was checked and is resolved again later may lead elsewhere by then; a descriptor does not.

pub mod account;
mod dir;
mod error;
mod remove;
mod walk;

pub use dir::TrustedDir;
pub use error::{Error, Result};
pub use remove::{NotRemoved, remove_all};
