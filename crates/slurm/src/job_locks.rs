//! Who begins, ends or sweeps a job on this node: one process at a time for each job. Otherwise a sweep that has heard of a job's end could
//! remove what the prolog of the same job, requeued, has made meanwhile.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names::JOBS;
use skiff_sys::lock::{self, Lock, within};

/// How long a prolog waits for a sweep to remove what the same job has left here earlier; the plug-in ends it after a minute.
pub const IN_PROLOG: Duration = Duration::from_secs(30);
/// How long an epilog waits for another that ends the same job; the plug-in ends it after 400 s.
pub const IN_EPILOG: Duration = Duration::from_secs(360);

/// The locks of all jobs: a byte each of one file, which only root can open. They end with the process, and leave nothing behind.
pub struct JobLocks {
    file: OwnedFd,
    path: PathBuf,
}

impl JobLocks {
    /// Opened once in a process: the kernel takes all of them away when one descriptor of the file is closed.
    pub fn open() -> Result<Self> {
        let path = Path::new(JOBS).with_extension("busy");
        let (Some(run), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::new(format!("{}: not a path of a file", path.display())));
        };
        let run = TrustedDir::make(run, 0, 0o755)?.private()?;
        let file = run.file(name, OFlags::RDWR | OFlags::CREATE, 0o600)?;
        Ok(Self { file, path })
    }

    /// Takes a job's lock, waiting for whoever has it, but no longer than `limit`.
    pub fn take(&self, id: u32, limit: Duration) -> Result<()> {
        let taken = within(limit, || self.try_take(id).map(|taken| taken.then_some(())))?;
        taken.ok_or_else(|| {
            let why = format!(
                "what it has left on this node earlier is still being removed after {} s",
                limit.as_secs()
            );
            Error::new(format!("job {id}: {why}"))
                .hint(format!("administrator: find what that waits for: fuser -v {}", self.path.display()))
        })
    }

    /// The same, if nobody has it.
    pub fn try_take(&self, id: u32) -> Result<bool> {
        self.set(id, Lock::Exclusive)
    }

    pub fn give_back(&self, id: u32) -> Result<()> {
        self.set(id, Lock::None).map(drop)
    }

    fn set(&self, id: u32, lock: Lock) -> Result<bool> {
        lock::set(self.file.as_fd(), byte(id), lock).context(|| self.path.display().to_string())
    }
}

fn byte(id: u32) -> Range<u64> {
    u64::from(id)..u64::from(id) + 1
}
