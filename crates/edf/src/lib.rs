//! Environment definition files (EDF), as the container engine of the Swiss centre has them: a TOML file that says in which image a job runs,
//! what is mounted there, and which variables are set. Read here, with the files that they build upon; nothing is started, looked up, or
//! opened but by the caller's [`DefinitionContext`], and all text is foreign.

mod check;
mod definition;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod mount_flag;
mod search;
mod template;

pub use check::KEYS;
pub use definition::{Definition, DefinitionMount, DefinitionMountKind};
pub use mount_flag::MountFlag;
pub use search::{DefinitionContext, is_file_name};
pub use template::{Template, TemplateError, escaped};

/// No file is longer, in bytes.
pub const LONGEST: usize = 1 << 20;

/// What is wrong with a definition, in which file and line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Error {
    /// The file, with the line where there is one.
    pub place: String,
    /// What is wrong there.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}
