//! What devices that vendors describe (CDI), and a site's modules, need in a root beside mounts.

use serde::{Deserialize, Serialize};

/// What is made in a root for the devices that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSupport {
    /// What was asked for, as words of a plan's options have it.
    pub asked: Vec<String>,
    /// The devices, as `vendor.com/class=name`.
    pub devices: Vec<String>,
    /// Variables of the commands that run there, as `NAME=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    /// Symbolic links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<DeviceLink>,
    /// Libraries that the linker is to find.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<DeviceLibrary>,
    /// The glibc that the root must have for these libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<NeededGlibc>,
    /// The site's modules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleSupport>,
    /// Whether the host's MPI must fit the root's: one module for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_mpi: bool,
}

/// What a module needs of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleSupport {
    /// Name of the module.
    pub name: String,
    /// Whether a root that it does not fit is refused; otherwise it goes without the module's libraries.
    pub must_fit: bool,
    /// Whether it is for the host's MPI.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_mpi: bool,
    /// The root's libraries that its own take the place of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<ReplacedLibrary>,
    /// The glibc that the root must have for its libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<NeededGlibc>,
    /// Where its files are mounted, unless its libraries do not fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
}

/// A library of a root's in whose place the host's is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplacedLibrary {
    /// The name that both have.
    pub name: String,
    /// The host's file: its name says which interfaces it has.
    pub host: String,
}

/// A symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLink {
    /// Where it is.
    pub link: String,
    /// Where it leads.
    pub target: String,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLibrary {
    /// The name that programs ask for.
    pub name: String,
    /// Where it is.
    pub path: String,
    /// Whether one of this name that the root has already is the one to take.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
    /// The module that brings it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
}

/// The oldest glibc with which a library works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeededGlibc {
    /// Both parts of the version.
    pub version: [u32; 2],
    /// Which library needs it.
    pub library: String,
    /// Whether a root that has an older one goes without the libraries: nobody has asked for the devices but the image's maker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

impl DeviceSupport {
    /// Whether no device was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
