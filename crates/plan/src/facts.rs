//! What a plan depends on beside its options: who the user is, how this machine is set up, what the base is. All that planning looks up is
//! looked up here.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use skiff_sandbox::command::CommandSpec;
use skiff_site::account;
use skiff_spec::account::Group;
use skiff_spec::config::Config;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::job::names::JOB;
use skiff_spec::plan::{Accounts, Mount, Route};
use skiff_sys::IgnoreError;
use skiff_user::context::{UserContext, is_inside};

use crate::devices::{self, DeviceFacts};
use crate::inside::ProcessArgs;
use crate::ssh_user;

/// Parts of a system that may lie on a disk of their own; a clone of `/` does not show them.
const PARTS: [&str; 5] = ["/usr", "/var", "/opt", "/srv", "/usr/local"];

/// Facts about the user, the site, this machine, and the base of an environment.
#[derive(Clone)]
pub struct Facts<'a> {
    /// The merged configuration.
    pub config: &'a Config,
    /// How environments are made here.
    pub route: Route,
    /// The user's uid.
    pub uid: u32,
    /// The user's home.
    pub home: &'a Path,
    /// The user's name, as their login says; nothing if that is not a plain one.
    pub login: Option<String>,
    /// What `/etc/resolv.conf` leads to, if that is in `/run`, which is new inside.
    pub resolv_conf: Option<PathBuf>,
    /// The host's directory in which the command begins, if it is to begin in one of these.
    pub working_dir: Option<PathBuf>,
    /// The directory with the socket of the user's ssh agent, if it lies in the host's `/tmp`.
    pub agent_dir: Option<PathBuf>,
    /// What devices need that were asked for, if any were.
    pub devices: Option<DeviceFacts>,
    /// Mounts of files with a file system in them, which the store has read.
    pub data: Vec<Mount>,
    /// The base.
    pub base: BaseFacts,
}

/// What lies below an environment.
#[derive(Clone)]
pub enum BaseFacts {
    /// The host's root.
    Host {
        /// Parts of it on file systems of their own.
        separate: Vec<&'static str>,
    },
    /// An image.
    Image {
        /// Digest of the image.
        id: ImageId,
        /// Directories for data that it names.
        volumes: BTreeSet<String>,
        /// Where its files are, or will be, if they cannot be mounted.
        unpacked: Option<PathBuf>,
        /// The user, as known inside.
        accounts: Accounts,
    },
    /// A directory with the files of a root.
    Directory {
        /// Path of the directory.
        tree: PathBuf,
        /// The user, as known inside.
        accounts: Accounts,
    },
}

impl<'a> Facts<'a> {
    /// Facts for an environment over the host's root.
    pub fn of_host(context: &'a UserContext) -> Result<Self> {
        Self::over(context, BaseFacts::Host { separate: separate_parts() })
    }

    /// Facts for an environment over an image, whose files are in the directory `unpacked` if they cannot be mounted.
    pub fn of_image(
        context: &'a UserContext,
        id: ImageId,
        volumes: BTreeSet<String>,
        unpacked: Option<PathBuf>,
    ) -> Result<Self> {
        Self::over(context, BaseFacts::Image { id, volumes, unpacked, accounts: accounts(context) })
    }

    /// Facts for an environment over a directory.
    pub fn of_directory(context: &'a UserContext, tree: &Path) -> Result<Self> {
        Self::over(context, BaseFacts::Directory { tree: tree.into(), accounts: accounts(context) })
    }

    /// With what the described devices among these words need, in a root that has the host's `/dev` unless it is contained.
    ///
    /// # Errors
    /// One is not there, or not for this user, or its description names what is not there.
    pub fn with_devices(self, words: &[String], contain: bool) -> Result<Self> {
        let is_host = matches!(self.base, BaseFacts::Host { .. });
        let devices = DeviceFacts::looked_up(words, self.config, (contain, is_host))?;
        Ok(Self { devices, ..self })
    }

    /// Sets the variables of devices, but for those that the user has named.
    pub fn set_variables(&self, command: &mut CommandSpec, inside: &ProcessArgs) {
        if let Some(found) = &self.devices {
            devices::set(&found.support.variables, command, inside);
        }
    }

    fn over(context: &'a UserContext, base: BaseFacts) -> Result<Self> {
        refuse_inside(context)?;
        // Its target where it is a link.
        let real = skiff_sys::path::canonical(Path::new("/etc/resolv.conf")).ok();
        Ok(Self {
            config: &context.config,
            route: context.route(),
            uid: context.uid,
            home: &context.home,
            login: login_name(),
            resolv_conf: real.filter(|real| real.starts_with("/run")),
            working_dir: None,
            agent_dir: None,
            devices: None,
            data: vec![],
            base,
        })
    }
}

/// Not by the account: to look that up takes longer than all else here.
fn login_name() -> Option<String> {
    ["LOGNAME", "USER"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|name| ssh_user::is_plain(name))
}

/// Refuses inside an environment: the helper has no power there.
pub fn refuse_inside(context: &UserContext) -> Result<()> {
    match context.route() == Route::Helper && is_inside() {
        true => Err(fault_inside(std::env::var_os(JOB).is_some())),
        false => Ok(()),
    }
}

fn fault_inside(is_job: bool) -> Error {
    match is_job {
        true => Error::new("environments cannot be used or changed from inside a job's environment")
            .hint("run this on the login node, or on this node by `srun --overlap --environment=none skiff ...`; a command in an image: `srun --overlap --container-image=IMAGE COMMAND`"),
        false => Error::new("this is the inside of an environment, from where no other can be used")
            .hint("leave it first, or ask for it from another login; in a job: srun --overlap --container-image=IMAGE COMMAND"),
    }
}

fn separate_parts() -> Vec<&'static str> {
    let device = |path: &str| Path::new(path).symlink_metadata().map(|m| m.dev()).ok();
    let root = device("/");
    let apart = |part: &str| {
        let parent = Path::new(part).parent().and_then(Path::to_str).unwrap_or("/");
        device(part).is_some_and(|d| Some(d) != root && Some(d) != device(parent))
    };
    PARTS.into_iter().filter(|part| apart(part)).collect()
}

/// The user's own account and groups, as a root over an image knows them: programs look up who they are.
#[must_use]
pub fn accounts(context: &UserContext) -> Accounts {
    let home = context.home.display();
    let (uid, gid) = (context.uid, rustix::process::getgid().as_raw());
    let user = account::user(uid)
        .map_or_else(|| format!("user{uid}:x:{uid}:{gid}::{home}:/bin/sh"), |user| user.to_line());
    let mut wanted = vec![gid];
    wanted.extend(
        rustix::process::getgroups()
            .default_on_error("a user of more groups than can be asked for is not to be kept from running")
            .iter()
            .map(|g| g.as_raw()),
    );
    // Without the other members, who are of no concern here.
    let groups = account::groups(&wanted).iter().map(Group::to_line).collect();
    Accounts { users: vec![user], groups }
}
