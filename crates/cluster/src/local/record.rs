//! What is kept of a cluster: a directory of the user's state with its name, which holds its settings, its Slurm's configuration, the key
//! of its authentication, what its daemons have written, and its supervisor's socket and lock. It goes with the cluster.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skiff_launch::handshake::SharedSecret;
use skiff_runtime::control::dial;
use skiff_runtime::lock;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::members::{MOST, Member};
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_store::index::ImageName;
use skiff_sys::{IgnoreError, small_file};
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, is_whole, make_private, new_in, own_dir, set_aside, with_umask};
use skiff_user::named;

use crate::slurm;
use crate::slurm_node;

const SETTINGS: &str = "cluster.json";
const IMAGE: &str = "image.json";
const CONF: &str = "slurm/slurm.conf";
const KEY: &str = "munge/key";

/// What a cluster was made as.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// What lies below each node: `host`, `image:REFERENCE` or `dir:PATH`.
    pub base: String,
    /// How many nodes it began with.
    pub nodes: u16,
    /// How many it can have.
    #[serde(default = "most")]
    pub most: u16,
    /// How many processors each says it has, where it is not its host that says so.
    pub cpus: usize,
    /// Whether an agent holds each of its nodes, as on several hosts.
    #[serde(default)]
    pub over_hosts: bool,
    /// The network of these.
    #[serde(default)]
    pub net: Net,
    /// The host where it was made, and where commands find it.
    #[serde(default)]
    pub host: String,
    /// Seconds since 1970.
    pub made: u64,
}

fn most() -> u16 {
    MOST
}

/// One cluster.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    /// Name of the cluster.
    pub name: EnvName,
    /// Directory of the cluster.
    pub dir: PathBuf,
}

/// The directory of a cluster before it has the cluster's name.
pub struct UnpublishedDir {
    /// Directory of the new cluster.
    pub dir: PathBuf,
    /// The lock that is held as long as the cluster is up.
    pub lock: OwnedFd,
}

fn home(context: &UserContext) -> Result<PathBuf> {
    own_dir(context, "cluster")
}

impl ClusterDir {
    /// By name, whether there is one or not.
    pub fn named(context: &UserContext, name: &EnvName) -> Result<Self> {
        Ok(Self { name: name.clone(), dir: home(context)?.join(name.as_str()) })
    }

    /// By name; there must be one.
    pub fn existing(context: &UserContext, name: &EnvName) -> Result<Self> {
        let record = Self::named(context, name)?;
        if record.is_there() {
            return Ok(record);
        }
        let making = format!("skiff cluster up {name} --slurm --nodes N");
        let all = Self::all(context)?;
        Err(named::no_such("cluster", name, all.iter().map(|record| &record.name), Some(&making)))
    }

    /// Whether it is there, whole.
    pub fn is_there(&self) -> bool {
        is_whole(&self.dir, SETTINGS)
    }

    /// All, by name.
    pub fn all(context: &UserContext) -> Result<Vec<Self>> {
        let dir = home(context)?;
        let record = |name: EnvName| Self { dir: dir.join(name.as_str()), name };
        Ok(named::all(&dir, SETTINGS)?.into_iter().map(record).collect())
    }

    /// Makes all that is kept of it, under another name.
    pub fn prepare(
        &self,
        context: &UserContext,
        settings: &ClusterSettings,
        image: Option<&ImageName>,
    ) -> Result<UnpublishedDir> {
        if self.is_there() {
            if !self.is_dead()? {
                return Err(self.taken());
            }
            // A job that was killed with all its processes can have removed nothing.
            self.remove()?;
        }
        let all = home(context)?;
        let dir = new_in(&all, &self.name);
        let filled = with_umask(|| {
            make_private(&all)?;
            self.fill(&dir, settings, image)
        });
        match filled {
            Ok(lock) => Ok(UnpublishedDir { dir, lock }),
            Err(e) => {
                fs::remove_dir_all(&dir)
                    .ignore_error("the first error is the one to tell; what stays `skiff sweep` removes");
                Err(e)
            }
        }
    }

    /// Gives it its name. Nothing half-made is ever seen under that.
    pub fn publish(&self, unnamed: &UnpublishedDir) -> Result<()> {
        fs::rename(&unnamed.dir, &self.dir).or_else(|e| {
            fs::remove_dir_all(&unnamed.dir)
                .ignore_error("the first error is the one to tell; what stays `skiff sweep` removes");
            match e.kind() {
                // Somebody else was faster.
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => Err(self.taken()),
                _ => Err(e).context(|| self.dir.display().to_string()),
            }
        })
    }

    fn taken(&self) -> Error {
        Error::new(format!("cluster {} already exists", self.name))
            .hint(format!("`skiff cluster down {}` ends it", self.name))
    }

    fn fill(&self, new: &Path, settings: &ClusterSettings, image: Option<&ImageName>) -> Result<OwnedFd> {
        make_private(new)?;
        for part in ["slurm", "munge", "logs"] {
            let dir = new.join(part);
            fs::create_dir(&dir)
                .and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)))
                .context(|| dir.display().to_string())?;
        }
        if !settings.over_hosts {
            let controller = (Member::Controller.address(), slurm::PORT).into();
            let workers =
                slurm::on_one_host(settings.nodes, settings.cpus, slurm_node::memory().unwrap_or(1024));
            write(&new.join(CONF), slurm::conf(controller, workers).as_bytes())?;
        }
        let path = new.join(KEY);
        let file = File::options().write(true).create_new(true).mode(0o400).open(&path);
        let key = SharedSecret::generate()?.to_hex();
        file.and_then(|mut file| file.write_all(key.as_bytes())).context(|| path.display().to_string())?;
        if let Some(entry) = image {
            entry.write(&new.join(IMAGE))?;
        }
        let text = serde_json::to_vec(settings).map_err(|e| Error::new(format!("{SETTINGS}: {e}")))?;
        write(&new.join(SETTINGS), &text)?;
        lock::try_lock(new)?.ok_or_else(|| Error::new(format!("{}: locked", new.display())))
    }

    /// What it was made as.
    pub fn settings(&self) -> Result<ClusterSettings> {
        let path = self.dir.join(SETTINGS);
        let text = small_file::read(&path).context(|| path.display().to_string())?;
        serde_json::from_slice(&text).map_err(|e| Error::new(format!("{}: {e}", path.display())))
    }

    /// Puts down the configuration of its Slurm, once it is known where its hosts are.
    pub fn configure(&self, conf: &str) -> Result<()> {
        write(&self.dir.join(CONF), conf.as_bytes())
    }

    /// By which its nodes know each other.
    pub fn key(&self) -> Result<String> {
        let path = self.dir.join(KEY);
        small_file::read_to_string(&path).context(|| path.display().to_string())
    }

    /// Adds to what a node has written, if its own file is not this one.
    pub fn write_down(&self, member: Member, words: &str) -> Result<()> {
        let path = self.log(member);
        let log = File::options().append(true).create(true).open(&path);
        log.and_then(|mut log| writeln!(log, "{words}")).context(|| path.display().to_string())
    }

    /// The image below it.
    pub fn image(&self) -> Result<Option<ImageName>> {
        Ok(ImageName::read(&self.dir.join(IMAGE))?)
    }

    /// What a node's daemon has written.
    pub fn log(&self, member: Member) -> PathBuf {
        self.dir.join(format!("logs/{member}"))
    }

    /// What went wrong on a node, as it has said itself: words and a hint, of which each may be empty.
    pub fn last_words(&self, member: Member) -> (String, String) {
        let tail = self.log_tail(member);
        match tail.rsplit_once("hint: ") {
            Some((said, hint)) => {
                (said.trim_start_matches("skiff: ").trim_end_matches("; ").to_owned(), hint.to_owned())
            }
            None => (tail, String::new()),
        }
    }

    fn log_tail(&self, member: Member) -> String {
        let path = self.log(member);
        let text = small_file::read(&path)
            .map_or_else(|e| e.to_string(), |t| String::from_utf8_lossy(&t).into_owned());
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }

    /// Whether its supervisor was killed.
    fn is_dead(&self) -> Result<bool> {
        Ok(dial(&self.dir)?.is_none() && lock::try_lock(&self.dir)?.is_some())
    }

    /// Removes what is kept; whoever has the lock may.
    pub fn remove(&self) -> Result<()> {
        let aside = set_aside(&self.dir, &self.name)?;
        fs::remove_dir_all(&aside).context(|| format!("removing {}", aside.display()))
    }
}

/// Clusters whose supervisors were killed, and what interrupted commands have left.
pub fn leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let mut left = dirs::leftovers(&home(context)?);
    for record in ClusterDir::all(context)? {
        if record.is_dead()? {
            left.push(record.dir);
        }
    }
    Ok(left)
}

/// Removes those.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let left = leftovers(context)?;
    for dir in &left {
        fs::remove_dir_all(dir).context(|| format!("removing {}", dir.display()))?;
    }
    Ok(left)
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text).context(|| path.display().to_string())
}
