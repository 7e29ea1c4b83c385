//! What devices that vendors describe (CDI) need in a root beside mounts.

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
