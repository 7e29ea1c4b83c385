//! Whether this host has a path, found out in bounded time: it may lie on a file server that does not answer.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::process::CloneFlags;

/// How long all paths together may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Paths that are looked for one after the other.
#[derive(Default)]
pub(crate) struct HostPaths {
    /// When nothing is waited for any more, once something has been waited for.
    end: Cell<Option<Instant>>,
}

impl HostPaths {
    /// Whether there is something at a path; nothing if that could not be found out in time.
    pub fn has(&self, path: &str) -> Option<bool> {
        // What the kernel knows already takes no process.
        match openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED) {
            Ok(_) => Some(true),
            // Kernels before 5.12 do not have this flag.
            Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                let end = self.end.get().unwrap_or_else(|| Instant::now() + PATIENCE);
                self.end.set(Some(end));
                by_process(path, end).unwrap_or(None)
            }
            Err(_) => Some(false),
        }
    }
}

/// A process that waits for a dead server may not end before that answers. So it is left behind.
fn by_process(path: &str, end: Instant) -> Result<Option<bool>> {
    let child = ReportingChild::begin("search for a path", CloneFlags::NONE, Descriptors::Only(&[]), || {
        set_parent_process_death_signal(Some(Signal::KILL)).context(|| "parent's death signal")?;
        Ok(Path::new(path).metadata().is_ok())
    });
    child?.end_by(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_by_the_kernel_or_by_a_process() {
        let paths = HostPaths::default();
        let (here, gone) = ("/proc/self/status", "/proc/self/none");
        assert_eq!((paths.has(here), paths.has(gone)), (Some(true), Some(false)));
        assert_eq!(paths.has("relative/../none"), Some(false));
    }
}
