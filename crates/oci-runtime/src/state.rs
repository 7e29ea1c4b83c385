//! What is kept of a container: a directory of the user's for each, with its record, its configuration, and the socket by which it is started.
//!
//! A container's directory is locked by whoever changes its state. Its record is there as soon as its process is, so that whatever is killed
//! when, `delete --force` finds all that is left.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::clock::now;
use skiff_sys::small_file;

use crate::config::{BundleConfig, Hooks};
use crate::process_info::InitProcess;
use crate::state_dir::{self, open_dir};

const RECORD: &str = "state.json";
const NEW_RECORD: &str = ".state.json";
const CONFIG: &str = "config.json";
/// The socket on which a created container waits for its start.
pub const START: &str = "start";
/// How long another call on the same container is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// No record is longer, in bytes.
const LONGEST: u64 = 16 << 20;

/// What a container is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerId(String);

impl std::str::FromStr for ContainerId {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_+-.".contains(c);
        match text {
            "" | "." | ".." => Err("not a name for a container".into()),
            _ if text.len() > 255 => Err("longer than 255 characters".into()),
            _ if !text.chars().all(fits) => {
                Err("letters, digits, and _ + - . can be in the name of a container".into())
            }
            _ => Ok(Self(text.into())),
        }
    }
}

impl std::fmt::Display for ContainerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a container is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerStatus {
    /// Being made.
    Creating,
    /// Waiting for `start`.
    Created,
    /// Running its program.
    Running,
    /// Ended.
    Stopped,
    /// Frozen.
    Paused,
}

impl std::fmt::Display for ContainerStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Creating => "being created",
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
        })
    }
}

/// What is noted of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Version of the specification, as its configuration has it.
    pub oci_version: String,
    pub bundle: PathBuf,
    pub rootfs: PathBuf,
    /// RFC 3339.
    pub created: String,
    pub annotations: BTreeMap<String, String>,
    /// None until there is one.
    pub process: Option<InitProcess>,
    /// Whether `create` has come to its end.
    pub is_created: bool,
    /// Control group, if the container has one of its own.
    pub cgroup: Option<PathBuf>,
    /// Groups above it that were made for it, the topmost first.
    #[serde(default)]
    pub cgroups_above: Vec<PathBuf>,
    /// Whether the container has the user's id only, as its maps say.
    #[serde(default)]
    pub is_single: bool,
    /// Who waits for the container's end, and deletes it then.
    #[serde(default)]
    pub waiter: Option<InitProcess>,
    /// Of programs run after it.
    pub hooks: Hooks,
}

/// What `state` prints, and hooks get to read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerState<'a> {
    oci_version: &'a str,
    id: String,
    status: ContainerStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    bundle: &'a Path,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
    // As runc has them besides.
    rootfs: &'a Path,
    created: &'a str,
    owner: String,
}

impl ContainerRecord {
    /// The record of a container that is made now, of which nothing else is known yet.
    pub fn new(rootfs: PathBuf, bundle: PathBuf) -> Self {
        Self {
            oci_version: String::new(),
            bundle,
            rootfs,
            created: skiff_output::rfc3339(now()),
            annotations: BTreeMap::new(),
            process: None,
            is_created: false,
            cgroup: None,
            cgroups_above: vec![],
            is_single: false,
            waiter: None,
            hooks: Hooks::default(),
        }
    }

    /// The container as the specification has it.
    pub fn state(&self, id: &ContainerId, status: ContainerStatus) -> ContainerState<'_> {
        ContainerState {
            oci_version: &self.oci_version,
            id: id.to_string(),
            status,
            pid: self.process.map(|process| process.pid).filter(|_| status != ContainerStatus::Stopped),
            bundle: &self.bundle,
            annotations: &self.annotations,
            rootfs: &self.rootfs,
            created: &self.created,
            owner: geteuid().as_raw().to_string(),
        }
    }
}

/// The directory of all containers.
pub struct States {
    dir: OwnedFd,
    path: PathBuf,
    /// Whether root has become the owner for this call: then no program of the owner's is run.
    pub is_for_owner: bool,
}

impl States {
    /// Opens the directory named, or the user's, which is made if it is missing.
    ///
    /// # Errors
    /// As of [`States::find`].
    pub fn make(root: Option<&Path>) -> Result<Self> {
        let path = root.map_or_else(state_dir::usual, Path::to_owned);
        state_dir::make_all(&path).context(|| format!("directory of containers {}", path.display()))?;
        Self::find(root)?
            .ok_or_else(|| Fault::new(format!("directory of containers {}: it is gone", path.display())))
    }

    /// Opens the directory named, or the user's; nothing if it is missing. Nobody but its owner may be able to write to it. Root, as whom Slurm
    /// cleans up, becomes its owner for good.
    ///
    /// # Errors
    /// When the directory cannot be had, or is somebody else's.
    pub fn find(root: Option<&Path>) -> Result<Option<Self>> {
        let path = root.map_or_else(state_dir::usual, Path::to_owned);
        let found = match root {
            Some(root) if geteuid().is_root() => state_dir::find_as_root(root)?,
            _ => state_dir::find_own(&path)?.map(|dir| (dir, false)),
        };
        Ok(found.map(|(dir, is_for_owner)| Self { dir, path, is_for_owner }))
    }

    /// The names of all containers.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn names(&self) -> Result<Vec<ContainerId>> {
        let name = || self.path.display();
        let mut names = vec![];
        for entry in Dir::read_from(&self.dir).context(name)? {
            let entry = entry.context(name)?;
            names.extend(entry.file_name().to_str().ok().and_then(|name| name.parse().ok()));
        }
        names.sort_by(|a: &ContainerId, b| a.0.cmp(&b.0));
        Ok(names)
    }

    /// Makes the directory of a new container, and locks it.
    ///
    /// # Errors
    /// When there is one of that name.
    pub fn create(&self, id: &ContainerId) -> Result<Container> {
        match mkdirat(&self.dir, &*id.0, Mode::RWXU) {
            Err(Errno::EXIST) => {
                return Err(Fault::new(format!("container {id} already exists"))
                    .hint(format!("`skiff oci delete --force {id}` removes it")));
            }
            made => made.context(|| format!("container {id}"))?,
        }
        self.container(id)?.locked()
    }

    /// A container that is there.
    ///
    /// # Errors
    /// When it is not.
    pub fn container(&self, id: &ContainerId) -> Result<Container> {
        self.find_container(id)?.ok_or_else(|| self.missing(id))
    }

    /// That there is no such container.
    pub fn missing(&self, id: &ContainerId) -> Fault {
        Fault::new(format!("container {id} does not exist"))
            .hint(format!("`skiff oci list` shows those in {}", self.path.display()))
    }

    /// A container, or nothing if there is none of that name.
    ///
    /// # Errors
    /// When its directory cannot be opened.
    pub fn find_container(&self, id: &ContainerId) -> Result<Option<Container>> {
        match open_dir(&self.dir, Path::new(&id.0)) {
            Err(Errno::NOENT) => Ok(None),
            dir => Ok(Some(Container { dir: dir.context(|| format!("container {id}"))?, id: id.clone() })),
        }
    }

    /// Removes a container's directory with all in it.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, container: Container) -> Result<()> {
        let name = || format!("container {}: its directory", container.id);
        for entry in Dir::read_from(&container.dir).context(name)? {
            let entry = entry.context(name)?;
            let entry = entry.file_name();
            if !matches!(entry.to_bytes(), b"." | b"..") {
                unlinkat(&container.dir, entry, AtFlags::empty()).context(name)?;
            }
        }
        unlinkat(&self.dir, &*container.id.0, AtFlags::REMOVEDIR).context(name)
    }
}

/// A container's directory.
pub struct Container {
    dir: OwnedFd,
    /// What it is called.
    pub id: ContainerId,
}

impl AsFd for Container {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Container {
    /// Waits until no other call changes the container. It stays locked as long as this process, or one that it forks, has it.
    ///
    /// # Errors
    /// When another call takes too long, or the container has been deleted meanwhile.
    pub fn locked(self) -> Result<Self> {
        let id = self.id.clone();
        self.locked_if_there()?.ok_or_else(|| Fault::new(format!("container {id} does not exist")))
    }

    /// As [`Container::locked`], but nothing if the container has been deleted meanwhile.
    ///
    /// # Errors
    /// When another call takes too long.
    pub fn locked_if_there(self) -> Result<Option<Self>> {
        let attempt = || match flock(&self.dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(())),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e),
        };
        let name = || format!("container {}", self.id);
        if skiff_sys::lock::within(PATIENCE, attempt).context(name)?.is_none() {
            return Err(Fault::new(format!("{} is locked by another call", name()))
                .hint("try again when that has ended; a hook that hangs keeps it locked"));
        }
        Ok(match fstat(&self.dir).context(name)?.st_nlink {
            0 => None,
            _ => Some(self),
        })
    }

    /// The record of the container; nothing if `create` has been ended before it wrote one.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn record(&self) -> Result<Option<ContainerRecord>> {
        let name = || format!("container {}: {RECORD}", self.id);
        match small_file::read_below(&self.dir, RECORD, LONGEST) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            bytes => serde_json::from_slice(&bytes.context(name)?)
                .map(Some)
                .map_err(|e| Fault::new(format!("{}: {e}", name()))),
        }
    }

    /// The record of a container that must have one.
    ///
    /// # Errors
    /// When there is none.
    pub fn whole_record(&self) -> Result<ContainerRecord> {
        self.record()?.ok_or_else(|| Fault::new(format!("container {} is being created", self.id)))
    }

    /// Writes a record, in the place of the one that was there.
    ///
    /// # Errors
    /// The system's.
    pub fn note(&self, record: &ContainerRecord) -> Result<()> {
        let name = || format!("container {}: {RECORD}", self.id);
        let text = serde_json::to_vec(record).map_err(|e| Fault::new(format!("{}: {e}", name())))?;
        self.write(NEW_RECORD, &text)?;
        renameat(&self.dir, NEW_RECORD, &self.dir, RECORD).context(name)
    }

    /// Keeps the configuration that the container was created with: `exec` follows that, whatever the bundle has then.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_config(&self, config: &BundleConfig) -> Result<()> {
        let text = serde_json::to_vec(config).map_err(|e| Fault::new(format!("{CONFIG}: {e}")))?;
        self.write(CONFIG, &text)
    }

    /// The configuration that [`Container::keep_config`] has kept.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub fn config(&self) -> Result<BundleConfig> {
        Ok(BundleConfig::read(&self.dir)?.0)
    }

    fn write(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let name = || format!("container {}: {file}", self.id);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&self.dir, file, flags, Mode::RUSR | Mode::WUSR).context(name)?;
        std::io::Write::write_all(&mut std::fs::File::from(opened), bytes).context(name)
    }

    /// What a container of this record is doing.
    pub fn status(&self, record: Option<&ContainerRecord>) -> ContainerStatus {
        let Some((record, process)) = record.and_then(|record| Some((record, record.process?))) else {
            return ContainerStatus::Creating;
        };
        if process.alive().is_none() {
            return ContainerStatus::Stopped;
        }
        if record.cgroup.as_deref().is_some_and(crate::cgroup::is_frozen) {
            return ContainerStatus::Paused;
        }
        match (record.is_created, statat(&self.dir, START, AtFlags::SYMLINK_NOFOLLOW)) {
            (false, _) => ContainerStatus::Creating,
            (true, Ok(_)) => ContainerStatus::Created,
            (true, Err(_)) => ContainerStatus::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl States {
        /// The containers in a directory, whoever it belongs to.
        pub fn of_test(path: &Path) -> Self {
            let dir = open_dir(rustix::fs::CWD, path).expect("opened");
            Self { dir, path: path.to_owned(), is_for_owner: false }
        }
    }

    #[test]
    fn a_container_that_is_deleted_while_its_lock_is_waited_for_is_not_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let states = States::of_test(dir.path());
        let id: ContainerId = "box".parse().expect("a name");
        let container = states.create(&id).expect("made");
        let opened = || states.container(&id).expect("there");
        let (first, second) = (opened(), opened());
        states.remove(container).expect("removed");
        assert!(first.locked_if_there().expect("locked").is_none());
        let why = second.locked().err().expect("an error").to_string();
        assert_eq!(why, "container box does not exist");
    }
}
