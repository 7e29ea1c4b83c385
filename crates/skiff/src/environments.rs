//! The user's environments on disk: one directory each, with `env.toml`, `upper`, `work`, `tmp` and what a running one needs.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::process::getuid;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_site::TrustedDir;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::Base;
use skiff_spec::settings::{self, Settings};

use crate::context::Context;
use crate::images;
use crate::images::index::Entry;
use crate::named;

/// One environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Its name.
    pub name: EnvName,
    /// Its directory.
    pub dir: PathBuf,
}

/// What lies below an environment, with all that is needed to run something in it.
pub enum Ground {
    /// The host's root.
    Host,
    /// An image, as it was when the environment was made: its name may come to mean another.
    Image(Entry),
}

impl Ground {
    /// For the plan.
    pub fn base(&self) -> Base {
        self.image().map_or(Base::Host, |entry| Base::Image(entry.id))
    }

    /// The image, if it is one.
    pub fn image(&self) -> Option<&Entry> {
        match self {
            Self::Host => None,
            Self::Image(entry) => Some(entry),
        }
    }
}

/// As a user names it.
impl std::fmt::Display for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Image(entry) => write!(f, "{}{}", images::PREFIX, entry.reference),
        }
    }
}

/// In an environment over an image: its name, and how its programs are run.
const IMAGE: &str = "image.json";

/// Directories of an environment and their modes. Work must be on the file system of upper.
const PARTS: [(&str, u32); 4] = [("upper", 0o755), ("work", 0o700), ("tmp", 0o1777), ("vartmp", 0o1777)];

/// What is being removed has this in front of its name until it is gone.
const TRASH: &str = ".trash.";
/// What is being made has this.
const NEW: &str = ".new.";

/// What to do where a directory cannot be had.
const HINT: &str = "the directory for environments must be yours to write to, and have room: `state` in the configuration, or SKIFF_STATE";

/// Where all of them are, or will be. If it is there, nobody else can exchange it: what is in it is run as this user.
pub fn home(context: &Context) -> Result<PathBuf> {
    own_dir(context, "env")
}

/// A directory of the user's state, likewise.
pub fn own_dir(context: &Context, name: &str) -> Result<PathBuf> {
    own_dir_in(context.state()?.join(name))
}

/// A directory of the user's, likewise. If it is missing, somebody else may make it meanwhile: what is in it counts once [`is_whole`] has said
/// so or [`make_private`] has made it.
pub fn own_dir_in(dir: PathBuf) -> Result<PathBuf> {
    find(&dir).map(|_| dir)
}

/// A directory of the user's, if it is there.
pub fn find(dir: &Path) -> Result<Option<TrustedDir>> {
    let found = TrustedDir::find(dir, getuid().as_raw());
    found.and_then(|found| found.map(TrustedDir::private).transpose()).map_err(hinted)
}

/// Whether a directory is there, the user's, and has this in it.
pub fn is_whole(dir: &Path, mark: &str) -> bool {
    // What cannot be looked at is none of this user's.
    open(dir).is_ok_and(|dir| dir.stat(mark).is_ok_and(|found| found.is_some()))
}

fn open(dir: &Path) -> Result<TrustedDir> {
    TrustedDir::open(dir, getuid().as_raw()).map_err(hinted)
}

fn hinted(e: skiff_site::Error) -> Error {
    let e = Error::from(e);
    if e.hint.is_empty() { e.hint(HINT) } else { e }
}

impl Environment {
    /// By name, whether it exists or not.
    pub fn named(context: &Context, name: EnvName) -> Result<Self> {
        let dir = home(context)?.join(name.as_str());
        Ok(Self { name, dir })
    }

    /// By name; it must exist.
    pub fn existing(context: &Context, name: EnvName) -> Result<Self> {
        let env = Self::named(context, name)?;
        if env.exists() {
            return Ok(env);
        }
        let there = named::there_are(list(context)?.iter().map(|env| &env.name));
        Err(Error::new(format!("environment {}: there is no such environment", env.name))
            .hint(format!("{there}; `skiff env create {}` makes it", env.name)))
    }

    /// Whether it is there, whole.
    pub fn exists(&self) -> bool {
        is_whole(&self.dir, settings::FILE)
    }

    /// Makes it. Nothing half-made is ever seen under its name.
    pub fn create(&self, base: &Ground, mounts: Vec<String>, net: Net) -> Result<()> {
        let all = self.dir.parent().unwrap_or(Path::new("/"));
        with_umask(|| self.create_in(all, base, mounts, net))
    }

    fn create_in(&self, all: &Path, base: &Ground, mounts: Vec<String>, net: Net) -> Result<()> {
        let all = make_ready(all)?;
        sweep(&all);
        if self.exists() {
            return Err(Error::new(format!("environment {}: it is there already", self.name))
                .hint(format!("`skiff env rm {}` removes it", self.name)));
        }
        let new = new_name(&self.name);
        let made = self
            .fill(&all, &new, base, mounts, net)
            .and_then(|()| Ok(all.rename(&new, &all, self.name.as_str())?));
        if made.is_err() {
            // The first error is the one to tell; what stays is swept by the next `create`.
            all.remove_tree(&new).unwrap_or_default();
        }
        made.map_err(|e| if e.hint.is_empty() { e.hint(HINT) } else { e })
    }

    fn fill(&self, all: &TrustedDir, new: &str, base: &Ground, mounts: Vec<String>, net: Net) -> Result<()> {
        let new = all.new_dir(new, 0o700)?;
        make_parts(&new)?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (text, image) = (base.to_string(), base.image().map(|entry| entry.id));
        let settings = Settings { name: self.name.clone(), base: text, image, created, mounts, net };
        let text = settings.to_toml().map_err(|e| Error::new(format!("{}: {e}", settings::FILE)))?;
        new.write(settings::FILE, text.as_bytes(), 0o644)?;
        let Some(entry) = base.image() else { return Ok(()) };
        entry.write(&new.path_of(IMAGE))
    }

    /// What lies below it.
    pub fn ground(&self) -> Result<Ground> {
        let Some(id) = self.settings()?.image else { return Ok(Ground::Host) };
        let path = self.dir.join(IMAGE);
        match Entry::read(&path)? {
            Some(entry) if entry.id == id => Ok(Ground::Image(entry)),
            _ => {
                Err(Error::new(format!("{}: not of the image that {} names", path.display(), settings::FILE))
                    .hint("somebody has removed or changed one of the two; they belong together"))
            }
        }
    }

    /// What is remembered of it.
    pub fn settings(&self) -> Result<Settings> {
        let dir = open(&self.dir)?;
        let path = dir.path_of(settings::FILE);
        let bytes = dir.read(settings::FILE)?;
        let bytes = bytes.ok_or_else(|| Error::new(format!("{}: {}", path.display(), Errno::NOENT)))?;
        let text = String::from_utf8(bytes).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        Settings::from_toml(&text).map_err(|e| Error::new(format!("{}: {e}", path.display())))
    }

    /// Takes it away from under its name at once; gives what is left to delete.
    pub fn set_aside(&self) -> Result<PathBuf> {
        set_aside(&self.dir, &self.name)
    }
}

/// Where something is made before it gets its name.
pub fn new_in(all: &Path, name: &EnvName) -> PathBuf {
    all.join(new_name(name))
}

fn new_name(name: &EnvName) -> String {
    format!("{NEW}{}.{name}", std::process::id())
}

/// Takes a directory away from under its name; gives where it is now.
pub fn set_aside(dir: &Path, name: &EnvName) -> Result<PathBuf> {
    let all = open(dir.parent().unwrap_or(Path::new("/")))?;
    let aside = format!("{TRASH}{}.{name}", std::process::id());
    all.rename(dir.file_name().unwrap_or_default(), &all, &aside)?;
    Ok(all.path_of(aside))
}

/// Makes what an upper on disk consists of, unless it is there.
pub fn make_parts(dir: &TrustedDir) -> Result<()> {
    for (part, mode) in PARTS {
        match dir.new_dir(part, mode) {
            // Root inside may have given it to another of the user's ids.
            Err(e) if e.errno() == Some(Errno::EXIST) => {}
            made => made.map(drop)?,
        }
    }
    Ok(())
}

/// Makes files with the modes written here: the user's umask is for his commands, and may be any.
pub fn with_umask<T>(make: impl FnOnce() -> T) -> T {
    let users = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let made = make();
    rustix::process::umask(users);
    made
}

/// All environments of the user, by name.
pub fn list(context: &Context) -> Result<Vec<Environment>> {
    let dir = home(context)?;
    let environment = |name: EnvName| Environment { dir: dir.join(name.as_str()), name };
    Ok(named::all(&dir, settings::FILE)?.into_iter().map(environment).collect())
}

/// What removals and creations that were interrupted have left in the directory of environments.
pub fn leftovers(all: &Path) -> Vec<PathBuf> {
    // What cannot be looked at is none of this user's.
    let all = find(all).ok().flatten();
    all.iter().flat_map(|all| left_in(all).into_iter().map(|name| all.path_of(name))).collect()
}

fn left_in(all: &TrustedDir) -> Vec<String> {
    let ours = |name: &str| name.starts_with(TRASH) || name.starts_with(NEW);
    let dead = |name: &str| {
        let pid =
            name.trim_start_matches(TRASH).trim_start_matches(NEW).split('.').next().unwrap_or_default();
        !Path::new("/proc").join(pid).exists()
    };
    // What cannot be listed shows when it is used.
    let names = all.names().unwrap_or_default().into_iter();
    names.filter_map(|name| name.into_string().ok()).filter(|name| ours(name) && dead(name)).collect()
}

/// Removes leftovers as far as the user's own rights go (the rest `skiff sweep` does).
fn sweep(all: &TrustedDir) {
    for name in left_in(all) {
        all.remove_tree(name).unwrap_or_default();
    }
}

/// Makes the directory of environments, and makes sure that it can hold any.
pub fn make_ready(all: &Path) -> Result<TrustedDir> {
    let all = make_private(all)?;
    check_file_system(all.path())?;
    Ok(all)
}

/// Makes a directory that is the user's alone.
pub fn make_private(dir: &Path) -> Result<TrustedDir> {
    TrustedDir::make(dir, getuid().as_raw(), 0o700).and_then(TrustedDir::private).map_err(hinted)
}

/// An upper must be on a file system that overlayfs can write to.
pub fn check_file_system(dir: &Path) -> Result<()> {
    const GOOD: [(u64, &str); 7] = [
        (0xEF53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0xF2F5_2010, "f2fs"),
        (0x2FC1_2FC1, "zfs"),
        (0x8584_58F6, "ramfs"),
    ];
    const BAD: [(u64, &str); 8] = [
        (0x6969, "NFS"),
        (0x0BD0_0BD0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x6573_5546, "FUSE"),
        (0xFF53_4D42, "CIFS"),
        (0x794C_7630, "overlay"),
        (0x1983_0326, "BeeGFS"),
        (0x00C3_6400, "Ceph"),
    ];
    let kind = rustix::fs::statfs(dir).context(|| dir.display().to_string())?.f_type as u64;
    if GOOD.iter().any(|(magic, _)| *magic == kind) {
        return Ok(());
    }
    let name = BAD
        .iter()
        .find(|(magic, _)| *magic == kind)
        .map_or_else(|| format!("type {kind:#x}"), |b| b.1.into());
    Err(Error::new(format!(
        "{}: its file system ({name}) cannot hold the changes of an environment",
        dir.display()
    ))
    .hint("set `state` in the configuration (or SKIFF_STATE) to a directory on a local disk"))
}
