//! Which tasks get the system call filter ([decision 035](../../../docs/decisions/035-a-task-without-a-filter.md)).
//!
//! A process with any filter takes the kernel's slow way into each system call. A task that runs as its user, without privilege, could be
//! kept by it from two things only: from typing into a terminal, and from keys of the user's.

use std::io::IsTerminal;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use skiff_spec::config::TaskFilter;
use skiff_spec::job::{JobContainer, JobSpec};

/// Whether this task's program gets it.
pub fn is_needed(configured: TaskFilter, spec: &JobSpec, home: &Path) -> bool {
    configured == TaskFilter::Always || is_kept_from_home(spec, home) || has_terminal()
}

/// Who has the user's home, writable, has what reads their keys at the next login. Root inside has other rights.
fn is_kept_from_home(spec: &JobSpec, user_home: &Path) -> bool {
    match spec {
        JobSpec::Snapshot(_) => false,
        JobSpec::Container(JobContainer { home, root, mounts, data, .. }) => {
            let mut mounted = mounts.iter().chain(data.iter().map(|data| &data.target));
            !home || *root || mounted.any(|mount| is_about(mount, user_home))
        }
    }
}

/// Whether one of the paths in a word for a mount is the home, or above or below it: something else may be there then, or not writable.
fn is_about(mount: &str, home: &Path) -> bool {
    let paths = mount.split([':', '=', ',']).filter(|part| part.starts_with('/')).map(Path::new);
    paths.into_iter().any(|path| home.starts_with(path) || path.starts_with(home))
}

/// Whether a terminal rules this session, or a standard descriptor is one: only the first could be typed into.
fn has_terminal() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let without = open("/dev/tty", flags, Mode::empty()).is_err_and(|e| e == Errno::NXIO);
    let standard =
        [std::io::stdin().is_terminal(), std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
    !without || standard.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_over_the_home_are_seen() {
        let home = Path::new("/home/alice");
        for word in [
            "/home/alice:/home/alice:ro",
            "tmpfs:/home/alice",
            "/data:/home",
            "type=bind,source=/x,target=/home/alice/.ssh",
        ] {
            assert!(is_about(word, home), "{word}");
        }
        for word in ["/scratch:/scratch", "/data:/homes/alice:ro", "gpus:all", "module:cxi"] {
            assert!(!is_about(word, home), "{word}");
        }
    }
}
