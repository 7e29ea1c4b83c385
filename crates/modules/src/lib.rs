//! A site's modules ([for users and administrators](../../../docs/modules.md)): files that say what of the host's fabric, MPI and software a container gets. Read
//! and checked, chosen, and turned into mounts, variables and libraries. Nothing that a file names is executed.

mod catalog;
mod file;
mod library;
mod needs;

pub use catalog::{AskedModules, ChosenModules, ModuleCatalog, SiteModule, WantedModule};
pub use file::{ModuleFile, Provided, When};
pub use library::{FoundLibraries, HostLibrary, HostLinker};
pub use needs::{ModuleNeeds, ModuleParts};

/// What is wrong with what is asked for, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleError {
    /// What, on which object, why.
    pub message: String,
    /// How to mend it.
    pub hint: String,
}

impl ModuleError {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

#[cfg(test)]
mod tests;
