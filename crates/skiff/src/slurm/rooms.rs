//! The part of a job's directory that its user can write in. It lies beside his cache on the node's disk and outlives the node's
//! boot; `/run/skiff/jobs`, which does not, tells what is of this boot.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use skiff_sandbox::{Context as _, Error, Result};

use super::job::{JOBS, USER, dir};
use super::node::numbered;
use super::trash;
use crate::context::Context;

/// In the cache's directory, beside those of the users; root's.
const ROOMS: &str = "jobs";

/// Where they are.
pub struct Rooms {
    /// Root's directory: users cannot exchange what is in there.
    pub path: PathBuf,
}

impl Rooms {
    /// As the configuration says.
    pub fn of(context: &Context) -> Self {
        Self { path: Path::new(&context.config.slurm.cache).join(ROOMS) }
    }

    /// A job's.
    pub fn room(&self, id: u32) -> PathBuf {
        self.path.join(id.to_string())
    }

    /// Makes a job's directory and its user's room, an empty one unless this boot has made it already.
    pub fn give(&self, id: u32, uid: u32, gid: u32) -> Result<()> {
        let _alone = alone()?;
        self.make(id, uid, gid).map_err(|e| e.hint(format!(
            "administrator: {} (by `slurm.cache` in the configuration) and {JOBS} must be root's, writable and have room",
            self.path.display()
        )))
    }

    fn make(&self, id: u32, uid: u32, gid: u32) -> Result<()> {
        if !Path::new(JOBS).exists() {
            // The first job of this boot: whatever is there, the last one has left.
            for id in numbered(&self.path)? {
                trash::remove(&self.room(id))?;
            }
        }
        make_dir(&dir(id), None)?;
        make_dir(&self.path, None)?;
        let (room, link) = (self.room(id), dir(id).join(USER));
        if fs::read_link(&link).is_ok_and(|target| target == room) {
            return make_dir(&room, Some((uid, gid)));
        }
        // A job that is queued again keeps its number.
        trash::remove(&room)?;
        make_dir(&room, Some((uid, gid)))?;
        symlink(&room, &link).context(|| link.display().to_string())
    }
}

/// Several jobs, and steps that bring an environment, may begin at once. The lock is a file that only root can open: a user who held
/// it would keep jobs from beginning.
fn alone() -> Result<fs::File> {
    let path = Path::new(JOBS).with_extension("lock");
    let shown = || path.display().to_string();
    if let Some(run) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(run).context(shown)?;
    }
    let lock = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .context(shown)?;
    flock(&lock, FlockOperation::LockExclusive).context(shown)?;
    Ok(lock)
}

/// A directory that is root's, or the user's alone; one that is there already must be so.
pub fn make_dir(path: &Path, owner: Option<(u32, u32)>) -> Result<()> {
    let shown = || path.display().to_string();
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).context(shown)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let meta = path.symlink_metadata().context(shown)?;
            let want = owner.map_or(0, |o| o.0);
            if !meta.is_dir() || meta.uid() != want {
                return Err(Error::new(format!(
                    "{}: is there and not a directory of uid {want}",
                    path.display()
                )));
            }
            return Ok(());
        }
        Err(e) => return Err(e).context(shown),
    }
    match owner {
        // The parents are root's, so nobody could have put another thing here meanwhile.
        Some((uid, gid)) => chown(path, Some(uid), Some(gid)).context(shown),
        None => fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context(shown),
    }
}
