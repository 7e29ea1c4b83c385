//! The resolved plan of an environment: everything that will be mounted, in order, and as whom. `--dry-run` prints it, the
//! sandbox carries it out, tests compare it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::DeviceSupport;
use crate::image::ImageId;
use crate::name::HostName;
use crate::network::{Net, NetName};

/// The list of hosts.
pub const HOSTS: &str = "/etc/hosts";

/// Who the user is inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// Inside 0 is the user; they may install packages.
    #[default]
    Root,
    /// As the user, without any capability.
    Me,
}

/// How an environment's root comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// The helper gives the view of the host; the kernel's overlay stacks it.
    Helper,
    /// No privilege anywhere: fuse-overlayfs stacks it.
    Rootless,
}

/// What lies below the user's own layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// This node's own `/`.
    Host,
    /// An image of the store.
    Image(ImageId),
    /// The directory that the plan names as where the root's files are.
    Directory,
}

/// Where the environment's changes go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upper {
    /// A directory that holds `upper`, `work` and `tmp`; kept.
    Directory(PathBuf),
    /// A directory like that, which is removed with the environment: its contents need not survive a crash of the host.
    Scratch(PathBuf),
    /// Memory; gone with the environment. The size as tmpfs takes it (`50%`, `2G`).
    Memory {
        /// Limit of the memory, as tmpfs takes it.
        size: String,
    },
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A file or directory of the host, with what is mounted below it.
    Bind(PathBuf),
    /// The files of an image of the store, read-only: data that came as a squashfs. The helper mounts it.
    Image(ImageId),
    /// The host's directory that the command begins in, where the root has none at that path.
    WorkingDir(PathBuf),
    /// A directory or file inside the upper directory's parent (the environment's own `tmp`).
    Own(String),
    /// An empty file system in memory with this mode.
    Memory {
        /// Permissions of its root.
        mode: u32,
        /// Limit in bytes, of a file system that is not to share the one of the environment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// What the root itself has there, which takes changes even if the root takes none: a volume of an image.
    Volume,
    /// A file with this content.
    Text(String),
    /// The host's list of hosts, where its own name and these mean the address that the environment has on a network of the site's: that is
    /// known only when it starts. On any other network these mean a loopback address, and the host's name what it does there.
    Hosts(Vec<String>),
    /// A directory with these files.
    Files(Vec<File>),
    /// A program with these bytes, in hexadecimal. (One that is part of saved processes goes along with them.)
    Program(String),
    /// The processes of the environment.
    Proc,
    /// POSIX message queues of the environment.
    Mqueue,
    /// A directory for `/dev` without devices, with the usual links.
    Devices,
    /// The devices of this host, of those for networks only the environment's own (`/sys`).
    Sys,
    /// Pseudo terminals of the environment, with numbers of its own; what makes them is shown beside, as `ptmx`.
    Terminals,
}

/// A file that is made for an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path below the directory that the shim is for.
    pub name: String,
    /// Permissions.
    pub mode: u32,
    /// What is in it.
    pub text: String,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What it shows.
    pub source: Source,
    /// Where, as seen inside.
    pub target: PathBuf,
    /// Whether writing is refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether it is left out when the source does not exist.
    #[serde(default)]
    pub optional: bool,
    /// How it takes part in mounts that are made below it later, where its user has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
}

/// The later of these mounts that hide all of an earlier one.
pub fn covering(mounts: &[Mount], at: usize) -> impl Iterator<Item = &Mount> {
    let earlier = mounts.get(at).map(|mount| &mount.target);
    let later = mounts.get(at + 1..).unwrap_or_default();
    later.iter().filter(move |later| earlier.is_some_and(|earlier| earlier.starts_with(&later.target)))
}

/// How a mount, with all that is mounted below it, takes part in mounts that others make (mount_namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Propagation {
    /// What is mounted later comes in no more.
    Private,
    /// What the host mounts there later comes in, and nothing goes out.
    Slave,
    /// As private, and it cannot be mounted elsewhere.
    Unbindable,
}

/// Who is to be known inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// Lines as in `/etc/passwd`.
    pub users: Vec<String>,
    /// Lines as in `/etc/group`.
    pub groups: Vec<String>,
}

/// The user as `ssh` has to know them. It asks for the name and the home of its uid, which inside are root's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshUser {
    /// The name to log in by elsewhere.
    pub name: String,
    /// The home, with `.ssh` in it.
    pub home: PathBuf,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The name shown as host name and in lists.
    pub name: String,
    /// How it is made.
    pub route: Route,
    /// What lies at the bottom.
    pub base: Base,
    /// Read-only directories between base and upper, the topmost first.
    pub layers: Vec<PathBuf>,
    /// Layers in the trusted store, the topmost first. The helper mounts each as it mounts an image. They lie below `layers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored_layers: Vec<ImageId>,
    /// Where changes go.
    pub upper: Upper,
    /// Whether the root, once it is put together, takes no changes.
    #[serde(default)]
    pub read_only: bool,
    /// Whether its processes are to be dumped: each file then has one number, in whatever layer it lies, which `stat` and
    /// `/proc/PID/maps` agree on, as CRIU needs it. (The number may have 64 bits, which old programs of 32 bits do not take.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dumpable: bool,
    /// Whether nothing of the host's is shown but what programs need to run: no commands and no sockets of it either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contain: bool,
    /// Whether the programs in it are kept from what no program needs, as nobody trusts them: more system calls are refused, and
    /// process 1, which needs some of these, is out of their reach.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untrusted: bool,
    /// Where the root's files are: of an image that the kernel may not mount, the rootless way; or of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked: Option<PathBuf>,
    /// Lines that the root's own `/etc/passwd` and `/etc/group` get where they lack the user and their groups.
    #[serde(default)]
    pub accounts: Accounts,
    /// Mounted on the root, in this order.
    pub mounts: Vec<Mount>,
    /// What devices need there beside mounts.
    #[serde(default, skip_serializing_if = "DeviceSupport::is_empty")]
    pub devices: DeviceSupport,
    /// Network of the container.
    #[serde(default, skip_serializing_if = "Net::is_host")]
    pub net: Net,
    /// Host name that programs see inside; the host's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<HostName>,
    /// Commands that are handed to the host, as absolute paths.
    pub shims: Vec<PathBuf>,
    /// As whom and with whose keys root inside logs in elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_user: Option<SshUser>,
}

impl Plan {
    /// Whether the root shows nothing but its layers: nothing is mounted on it, not even Skiff itself, so no place for a mount is made in it.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.mounts.is_empty()
    }

    /// What the helper is to mount of the store beside the base: the layers, then the images that hold data.
    #[must_use]
    pub fn stored(&self) -> Vec<ImageId> {
        self.stored_layers.iter().copied().chain(self.data()).collect()
    }

    /// The images that hold data.
    pub fn data(&self) -> impl Iterator<Item = ImageId> {
        self.mounts.iter().filter_map(|mount| match mount.source {
            Source::Image(id) => Some(id),
            _ => None,
        })
    }

    /// Whether the command's parent is a reaper. Plans of older versions have none.
    #[must_use]
    pub fn has_reaper(&self) -> bool {
        self.mounts.iter().any(|mount| mount.target == Path::new(inside::REAPER))
    }

    /// Whether programs get no descriptor of whoever starts them but the standard ones. One of a directory leads by `..` to all of the host's
    /// files, whatever is mounted. (MPI's launchers pass descriptors on to programs that share the host.)
    #[must_use]
    pub fn closes_descriptors(&self) -> bool {
        self.contain || self.untrusted
    }

    /// The network of the site's that whoever carries the plan out, or enters what runs by it, has to be on.
    #[must_use]
    pub fn network_to_join(&self) -> Option<&NetName> {
        self.net.of_site().filter(|_| !self.net.is_own(self.dumpable))
    }
}

/// Where the environment's own things are, inside.
pub mod inside {
    /// Skiff's directory.
    pub const DIR: &str = "/run/skiff";
    /// The program itself, which the shims are links to.
    pub const PROGRAM: &str = "/run/skiff/skiff";
    /// The host's root, as far as `other` may read it, without the user's changes.
    pub const HOST: &str = skiff_slurm_names::HOST_VIEW;
    /// The file that an instance's command writes its output to.
    pub const OUTPUT: &str = "/run/skiff/output";
    /// The program of the process that an instance's command is a child of, if it is to be saved.
    pub const REAPER: &str = "/run/skiff/skiff-reaper";
    /// The host's pseudo terminals. (Those in `/dev/pts` are the environment's own.)
    pub const TERMINALS: &str = "/run/skiff/terminals";
    /// A link to the user's `.ssh`, to which root's leads.
    pub const SSH_DIR: &str = "/run/skiff/ssh";
    /// What `ssh` reads last: as whom the user logs in elsewhere.
    pub const SSH_CONFIG: &str = "/run/skiff/ssh_config";
    /// The libraries of the site's modules: a directory for each module.
    pub const MODULES: &str = "/run/skiff/modules";
    /// Where a library of a module is, by their names.
    #[must_use]
    pub fn module_library(module: &str, library: &str) -> String {
        format!("{MODULES}/{module}/{library}")
    }
    /// Why the libraries of drivers do not fit the root, if they do not.
    pub const UNFIT_DRIVERS: &str = "/run/skiff/drivers.unfit";
    /// The names of the modules that are used, a line each.
    pub const USED_MODULES: &str = "/run/skiff/modules.used";
    /// The socket of the environment's supervisor outside.
    pub const SOCKET: &str = "/run/skiff/host.sock";

    /// A link to the list of mounts, in an image that has none.
    pub const MTAB: &str = "/etc/mtab";
    /// The list of mounts.
    pub const MOUNTS: &str = "/proc/self/mounts";

    /// Whether a file is there for Skiff only, and no part of an image that is made of a container: its directory, the links in the place
    /// of the host's commands, which lead to `target`, and the link to the list of mounts.
    #[must_use]
    pub fn is_own(path: &[u8], target: Option<&[u8]>) -> bool {
        let is_mtab = path == MTAB.as_bytes() && target == Some(MOUNTS.as_bytes());
        path == DIR.as_bytes() || target == Some(PROGRAM.as_bytes()) || is_mtab
    }
}
