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
    /// Whether a root is refused where the module does not fit it. Otherwise the root goes without the module's libraries, mounts and variables.
    pub must_fit: bool,
    /// Whether it is for the host's MPI.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_mpi: bool,
    /// How the versions of libraries that take the place of the root's must match.
    #[serde(default, skip_serializing_if = "Compatibility::is_default")]
    pub compatibility: Compatibility,
    /// Libraries of the module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<ModuleLibrary>,
    /// The glibc that the root must have for what these load when they run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<NeededGlibc>,
    /// Where its files are mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
}

/// How the version of a library of the host's must match that of the root's own, whose place it takes. The names are those of Sarus'
/// `MPI_COMPATIBILITY_TYPE` ([its hook](https://sarus.readthedocs.io/en/stable/config/mpi-hook.html)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compatibility {
    /// Both have one name, and so one major number.
    Major,
    /// Of one name, and the host's is not the older one. (Sarus only logs that it is.)
    #[default]
    Full,
    /// Of one name, the host's is not the older one, and both have one minor number.
    Strict,
}

impl Compatibility {
    /// From the word for it.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "major" => Some(Self::Major),
            "full" => Some(Self::Full),
            "strict" => Some(Self::Strict),
            _ => None,
        }
    }

    /// Whether it is what holds where nobody has said another.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A library that a module brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleLibrary {
    /// The name that programs ask for.
    pub name: String,
    /// The host's file: its name says which interfaces it has.
    pub host: String,
    /// What it is for.
    pub role: LibraryRole,
    /// The oldest glibc with which it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<[u32; 2]>,
    /// The newest version of each kind of symbols that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
}

/// What a library of a module is for, and so what is done where the root has one of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LibraryRole {
    /// Takes the place of the root's own, which must be there and not the newer one.
    Replaces,
    /// Is found by programs. The root's own, if there is one, must not be the newer one.
    Named,
    /// Is needed by others. If the root's own is the newer one, that is taken.
    Needed,
    /// Comes with a compiler. The root's own is taken unless it is the older one.
    Compilers,
}

/// A variable that a command gets only where a module fits the root. Until it starts, it stands among the command's variables by a name that no
/// program's variable has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleVariable<'a> {
    /// Name of the module.
    pub module: &'a str,
    /// Name of the variable.
    pub name: &'a str,
}

impl<'a> ModuleVariable<'a> {
    const PREFIX: &'static str = "module/";

    /// From the name that it has until then; nothing if that is a plain variable's.
    #[must_use]
    pub fn parse(name: &'a str) -> Option<Self> {
        let (module, name) = name.strip_prefix(Self::PREFIX)?.split_once('/')?;
        Some(Self { module, name })
    }

    /// The name that it has until then.
    #[must_use]
    pub fn word(&self) -> String {
        format!("{}{}/{}", Self::PREFIX, self.module, self.name)
    }
}

/// Among a command's variables, by a name that no program's variable has: whoever starts the command says why libraries of drivers do not fit the
/// root, if they do not.
pub const TELL_UNFIT: &str = "device/tell-unfit";

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
