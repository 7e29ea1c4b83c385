//! The part of a job's directory that its user can write in. It lies beside their cache on the node's disk and outlives the node's
//! boot; `/run/skiff/jobs`, which does not, tells what is of this boot.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::config::{JobTmp, TmpQuota};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{JOBS, TEMPORARY};
use skiff_sys::lock::within;
use skiff_user::context::UserContext;

use crate::job::{USER, dir};
use crate::{tmp_quota, trash};

/// In the cache's directory, beside those of the users; root's.
const JOB_DIRS: &str = "jobs";
/// In the directory that `slurm.tmp` names, which may be everybody's; root's.
const TMP_DIRS: &str = "skiff-jobs";
/// How long a prolog waits for others, which need milliseconds; the plugin ends it after a minute.
const LIMIT: Duration = Duration::from_secs(30);

/// Root's directories on a node's disk: nobody else can exchange them, or anything in them.
pub struct JobDirs {
    /// The directory of the cache.
    cache: TrustedDir,
    /// The directory that holds the users' job directories.
    pub dir: TrustedDir,
    /// Where the jobs' `/tmp` are.
    tmp: TmpPlace,
    /// How many bytes each job may write there.
    quota: TmpQuota,
}

/// Where the jobs' `/tmp` are.
enum TmpPlace {
    /// In the users' job directories.
    JobDirs,
    /// In memory, which needs no directory.
    Memory,
    /// In this one.
    Dir(TrustedDir),
}

impl JobDirs {
    /// As the configuration says; made where they are missing.
    pub fn make(context: &UserContext) -> Result<Self> {
        let path = Path::new(&context.config.slurm.cache);
        let cache = TrustedDir::make(path, 0, 0o755).and_then(TrustedDir::private);
        let both = cache.and_then(|cache| Ok((cache.make_dir(JOB_DIRS, 0o755)?.private()?, cache)));
        let (dir, cache) = both.map_err(|e| mend(e.into(), path, CACHE))?;
        let tmp = match &context.config.slurm.tmp {
            JobTmp::Disk => TmpPlace::JobDirs,
            JobTmp::Memory => TmpPlace::Memory,
            JobTmp::Directory(path) => {
                let path = path.join(TMP_DIRS);
                let made = TrustedDir::make(&path, 0, 0o755).and_then(TrustedDir::private);
                TmpPlace::Dir(made.map_err(|e| mend(e.into(), &path, TMP))?)
            }
        };
        Ok(Self { cache, dir, tmp, quota: context.config.slurm.tmp_quota })
    }

    /// Finds the directories that hold the users' job directories; why one of them is not to be used hides no other.
    pub fn find(context: &UserContext) -> (Vec<TrustedDir>, Result<()>) {
        let slurm = &context.config.slurm;
        let cache = (Path::new(&slurm.cache).join(JOB_DIRS), CACHE);
        let tmp = match &slurm.tmp {
            JobTmp::Directory(path) => Some((path.join(TMP_DIRS), TMP)),
            JobTmp::Disk | JobTmp::Memory => None,
        };
        let (mut all, mut failed) = (vec![], Ok(()));
        for (path, setting) in std::iter::once(cache).chain(tmp) {
            match TrustedDir::find(&path, 0).and_then(|dir| dir.map(TrustedDir::private).transpose()) {
                Ok(found) => all.extend(found),
                Err(e) => failed = failed.and(Err(mend(e.into(), &path, setting))),
            }
        }
        (all, failed)
    }

    /// Makes a job's directory and its user's part of it, an empty one unless this boot has made it already; and the user's cache.
    /// Gives the job's directory.
    pub fn give(&self, id: u32, user: (u32, u32)) -> Result<TrustedDir> {
        let _alone = alone()?;
        self.give_alone(id, user).map_err(|e| mend(e, self.cache.path(), CACHE))
    }

    fn give_alone(&self, id: u32, user: (u32, u32)) -> Result<TrustedDir> {
        if TrustedDir::find(Path::new(JOBS), 0)?.is_none() {
            // The first job of this boot: whatever is there, the last one has left.
            for dir in self.all() {
                for id in numbered(dir)? {
                    if let Err(e) = discard(dir, id) {
                        // Nobody else's job is to fail for what one user has left.
                        output::complain(&e);
                    }
                }
            }
        }
        let job = TrustedDir::make(&dir(id), 0, 0o755)?.private()?;
        self.cache.give_dir(user.0.to_string(), user)?;
        let name = id.to_string();
        let user_dir = self.dir.path_of(&name);
        if job.read_link(USER)?.is_some_and(|target| target == user_dir) {
            self.dir.give_dir(&name, user)?;
            return Ok(job);
        }
        // A job that is queued again keeps its number.
        self.all().try_for_each(|dir| discard(dir, id))?;
        let tmp = match &self.tmp {
            TmpPlace::JobDirs => Some(&self.dir),
            TmpPlace::Memory => None,
            TmpPlace::Dir(dir) => Some(dir),
        };
        if let Some(dir) = tmp {
            let parts = TEMPORARY.map(|(part, _)| part);
            if let Some(bytes) = self.quota.0 {
                // What is made in it from now on counts.
                tmp_quota::limit(&dir.make_dir(&name, 0o700)?, bytes)?;
            }
            dir.give_dir_with(&name, user, &parts)?;
            for part in parts {
                // An interrupted prolog may have made it.
                job.remove_file(part)?;
                job.symlink(&dir.path_of(&name).join(part), part)?;
            }
        }
        self.dir.give_dir(&name, user)?;
        // Last: from now on the job has what it needs.
        job.symlink(&user_dir, USER)?;
        Ok(job)
    }

    /// The directories in which jobs have one.
    fn all(&self) -> impl Iterator<Item = &TrustedDir> {
        let tmp = if let TmpPlace::Dir(dir) = &self.tmp { Some(dir) } else { None };
        std::iter::once(&self.dir).chain(tmp)
    }
}

/// Takes a user's job directory away, at once: others wait for the lock. What was in it is for epilogs and `skiff sweep` to remove.
fn discard(dir: &TrustedDir, id: u32) -> Result<()> {
    let name = id.to_string();
    let Some((user_dir, owner)) = trash::opened(dir, name.as_ref())? else { return Ok(()) };
    tmp_quota::forget(user_dir.as_fd());
    trash::discard(dir, name.as_ref(), owner.st_uid)
}

/// The names in a directory that are numbers of jobs.
pub fn numbered(dir: &TrustedDir) -> Result<Vec<u32>> {
    Ok(dir.names()?.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// The settings that name the directories.
const CACHE: &str = "slurm.cache";
const TMP: &str = "slurm.tmp";

fn mend(e: Error, path: &Path, setting: &str) -> Error {
    if !e.hint.is_empty() {
        return e;
    }
    e.hint(format!(
        "administrator: {} (by `{setting}` in the configuration) and {JOBS} must be root's, writable and have room",
        path.display()
    ))
}

/// Several jobs, and steps that bring an environment, may begin at once. The lock is a file that only root can open: a user who held
/// it would keep jobs from beginning. Nor is it waited for without limit: whoever waits in the kernel says nothing in Slurm's log.
fn alone() -> Result<OwnedFd> {
    let lock = Path::new(JOBS).with_extension("lock");
    let failed = |why: String| Error::new(format!("{}: {why}", lock.display()));
    let (Some(run), Some(name)) = (lock.parent(), lock.file_name()) else {
        return Err(failed("not a path of a file".into()));
    };
    let run = TrustedDir::make(run, 0, 0o755)?.private()?;
    let taken = within(LIMIT, || run.lock(name, FlockOperation::NonBlockingLockExclusive))?;
    taken.ok_or_else(|| {
        failed(format!("another job's prolog has held this lock for {} s", LIMIT.as_secs()))
            .hint(format!("administrator: find what that prolog waits for: fuser -v {}", lock.display()))
    })
}
