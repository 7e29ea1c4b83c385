//! What went wrong, on which object, and how to mend it.

pub use skiff_spec::fault::{Context, Fault as Error};

/// The outcome of everything here.
pub type Result<T> = std::result::Result<T, Error>;
