//! One bed's directory: where everything of it lies, on disk, outside of what the nodes hide.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::args::BedOptions;

/// Beds are made below this: on disk (overlay uppers lie in the homes) and visible on every node.
pub const PARENT: &str = "/var/tmp";
/// What every bed's directory is called, followed by a dot and something random.
pub const PREFIX: &str = "skiff-testbed.";
/// The ordinary users of the bed; in tests mallory is the one who wishes the others ill, and erin is there for the soak.
pub const USERS: [&str; 4] = ["alice", "bob", "mallory", "erin"];
/// The login node's host name.
pub const LOGIN: &str = "ctl";

/// A bed's directory and what was asked of it.
pub struct Bed {
    /// The directory, absolute.
    pub dir: PathBuf,
    /// The options it was made with.
    pub args: BedOptions,
}

impl Bed {
    /// Lays a new bed's directory out for `args`.
    pub fn create(args: BedOptions) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(PARENT)
            .with_context(|| format!("cannot make the bed's directory in {PARENT}"))?
            .keep();
        let bed = Self { dir, args };
        let nodes: Vec<_> = bed.args.node_names().iter().map(|name| format!("nodes/{name}")).collect();
        for name in ["bin", "etc", "home", "logs", "munge", "shared", "ssh"].into_iter().map(String::from) {
            bed.make_dir(&name, 0o755)?;
        }
        for name in nodes.iter().map(String::as_str).chain([LOGIN]) {
            bed.make_dir(name, 0o755)?;
            bed.make_dir(&format!("{name}/state"), 0o755)?;
            bed.make_dir(&format!("{name}/cache"), 0o755)?;
            bed.make_dir(&format!("{name}/spool"), 0o755)?;
        }
        bed.make_dir("shared", 0o1777)?;
        bed.write("bed.json", &serde_json::to_string(&bed.args)?)?;
        bed.write("lock", "")?;
        Ok(bed)
    }

    /// Reads an existing bed.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("bed.json");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { dir: dir.to_owned(), args: serde_json::from_str(&text)? })
    }

    /// A path in the bed.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The file that holds the process id (as the login node sees it) of a node's process 1.
    pub fn node_pid_file(&self, node: &str) -> PathBuf {
        self.dir.join("nodes").join(node).join("pid")
    }

    /// Makes a directory with exactly this mode, whatever the umask is.
    pub fn make_dir(&self, name: &str, mode: u32) -> anyhow::Result<()> {
        let path = self.path(name);
        fs::create_dir_all(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("cannot make {}", path.display()))
    }

    /// Writes a file that everybody may read.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        self.write_mode(name, text, 0o644)
    }

    /// Writes a file with exactly this mode.
    pub fn write_mode(&self, name: &str, text: &str, mode: u32) -> anyhow::Result<()> {
        let path = self.path(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}
