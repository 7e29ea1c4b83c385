//! The output of an instance: a file that its command appends to, of which only the end is kept. What is older loses its blocks on the
//! disk, while the file's length stays what it is: nobody who has it open, a checkpoint included, sees it shrink.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FallocateFlags, fallocate};
use skiff_spec::fault::{Context as _, Result};

/// How many bytes are kept at least; twice as many are the most, but for what is written within `PAUSE`.
pub const AT_LEAST: u64 = 64 << 20;
/// How long after news we look again.
const PAUSE: Duration = Duration::from_secs(1);
/// How often we look where there can be no news.
const BLIND: Duration = Duration::from_secs(10);
/// Holes begin and end at multiples of this.
const BLOCK: u64 = 1 << 16;

/// Keeper of what an instance's command writes. As long as nothing is written it is not woken, unless the user has no
/// inotify instances left (the kernel gives them 128).
pub struct OutputLimiter {
    path: PathBuf,
    file: File,
    news: Option<OwnedFd>,
    look_at: Option<Instant>,
    gone: u64,
}

impl OutputLimiter {
    /// Begins to watch a file.
    pub fn watch(path: &Path) -> Result<Self> {
        let about = || format!("output {}", path.display());
        let file = File::options().write(true).open(path).context(about)?;
        let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        let mut limiter = Self { path: path.into(), file, news, look_at: None, gone: 0 };
        limiter.listen();
        Ok(limiter)
    }

    /// Readable once something has been written since the last look.
    pub fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(AsFd::as_fd)
    }

    /// How long until the next look.
    pub fn patience(&self) -> Option<Duration> {
        self.look_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// To be called whenever there may be news, or time is up.
    pub fn look(&mut self) {
        match (self.look_at, &self.news) {
            (None, Some(news)) if rustix::io::read(news, &mut [0; 512]).is_ok() => {
                self.look_at = Some(Instant::now() + PAUSE);
            }
            (Some(at), _) if Instant::now() >= at => {
                self.look_at = None;
                self.trim();
                self.listen();
            }
            _ => {}
        }
    }

    /// The next write is news, and no other after it: who writes a lot is not slowed down.
    fn listen(&mut self) {
        let once = WatchFlags::MODIFY | WatchFlags::ONESHOT;
        let watch = |news| inotify::add_watch(news, &self.path, once).is_ok();
        if !self.news.as_ref().is_some_and(watch) {
            self.look_at = Some(Instant::now() + BLIND);
        }
    }

    fn trim(&mut self) {
        let Ok(length) = self.file.metadata().map(|meta| meta.size()) else { return };
        if length.saturating_sub(self.gone) <= 2 * AT_LEAST {
            return;
        }
        let old = (length - AT_LEAST) / BLOCK * BLOCK;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that makes no holes keeps all of it.
        if fallocate(&self.file, hole, 0, old).is_ok() {
            self.gone = old;
        }
    }
}
