//! Devices as the Container Device Interface describes them ([its specification](https://github.com/cncf-tags/container-device-interface)): the
//! files of vendors are read and checked, requests become devices, and these what a container needs. Uses nothing else of Skiff's. Nothing that a
//! file names is executed. Files are foreign input, so each length and each depth has a limit.

mod catalog;
mod description;
mod elf;
mod fields;
#[doc(hidden)]
pub mod fuzz;
mod hook;
mod ld_cache;
mod merge;
mod name;
mod node;
mod request;
mod site_files;
mod symbol_versions;

pub use catalog::{Catalog, CdiError, CdiFile, FoundDevice};
pub use description::{CdiDescription, CdiDevice, DeviceNode, Edits, HostMount};
pub use elf::{ElfFacts, GlibcVersion};
pub use fields::Problem;
pub use hook::{CdiHook, Link};
pub use ld_cache::{Library, listed, merged};
pub use merge::Needs;
pub use name::{ALL, DeviceName};
pub use request::{DeviceRequest, Granted, WhichGpus};
pub use site_files::{SiteFiles, files_in, read_text};
pub use symbol_versions::SymbolVersions;

#[cfg(test)]
mod tests;
