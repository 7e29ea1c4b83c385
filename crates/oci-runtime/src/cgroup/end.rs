//! The end of a container's control group, with the processes in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use skiff_spec::fault::{Fault, Result};
use skiff_sys::IgnoreError;

use super::above::remove_above;
use super::open_group::OpenGroup;
use crate::process_info::{InitProcess, send};

/// How long processes that have been killed may take to be gone.
pub const DYING: Duration = Duration::from_secs(10);

/// Ends all processes of a group that this runtime has made, and removes it with those below. Those above it go as well that were made for it (by the
/// container's record) or for other containers, as far as nobody is in them.
///
/// # Errors
/// When processes do not end: then it stays.
pub fn end(path: &Path, above: &[PathBuf]) -> Result<()> {
    if let Ok(group) = OpenGroup::open(path) {
        end_open(&group, path)?;
    }
    remove_above(path, above);
    Ok(())
}

fn end_open(group: &OpenGroup, path: &Path) -> Result<()> {
    if group.write("cgroup.kill", "1").is_err() {
        // Kernels before 5.14 have no such file.
        group.processes().into_iter().try_for_each(kill)?;
    }
    let removed = skiff_sys::lock::within(DYING, || {
        if group.is_populated() {
            group.processes().into_iter().try_for_each(kill)?;
            return Ok(None);
        }
        group.remove_below();
        std::fs::remove_dir(path).ignore_error("whether it is there is asked next");
        Ok::<_, Fault>((!path.exists()).then_some(()))
    })?;
    match removed {
        None if group.is_populated() => {
            Err(Fault::new(format!("control group {}: its processes do not end", path.display()))
                .hint("they wait in the kernel, perhaps for a file server; delete the container again later"))
        }
        // What is empty, and cannot be removed, does no harm.
        _ => Ok(()),
    }
}

fn kill(process: InitProcess) -> Result<()> {
    send(process, rustix::process::Signal::KILL.as_raw())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::above::{TRIES, make_all};
    use super::*;

    #[test]
    fn groups_above_go_as_far_as_nobody_is_in_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = |name: &str| dir.path().join(name);
        let mut made = vec![];
        make_all(&group("a/b/c"), &mut made).expect("made");
        assert_eq!(made, [group("a"), group("a/b"), group("a/b/c")]);
        std::fs::create_dir(group("a/other")).expect("made");
        let (own, above) = made.split_last().expect("some");
        assert_eq!(end(own, above), Ok(()));
        assert!(!group("a/b").exists() && group("a").exists());
    }

    #[test]
    fn the_last_container_in_a_group_removes_it_whoever_has_made_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = |name: &str| dir.path().join(name);
        let made = |name: &str| {
            let mut made = vec![];
            make_all(&group(name), &mut made).expect("made");
            made.pop();
            made
        };
        std::fs::create_dir(group("of-others")).expect("made");
        let first = made("of-others/a/b/first");
        let second = made("of-others/a/second");
        assert_eq!((first.len(), second.len()), (2, 0));
        assert_eq!(end(&group("of-others/a/b/first"), &first), Ok(()));
        assert!(!group("of-others/a/b").exists() && group("of-others/a/second").exists());
        assert_eq!(end(&group("of-others/a/second"), &second), Ok(()));
        assert!(!group("of-others/a").exists() && group("of-others").exists());
    }

    #[test]
    fn groups_that_are_removed_while_one_is_made_below_are_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let above = dir.path().join("above");
        let done = AtomicBool::new(false);
        // Once less than is tried, so that it cannot be too often.
        let remove = || {
            let mut left = TRIES - 1;
            for _ in 0..1_000_000 {
                if left == 0 || done.load(Ordering::Relaxed) {
                    return;
                }
                left -= usize::from(std::fs::remove_dir(&above).is_ok());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(remove);
            for number in 0..200 {
                let (own, mut made) = (above.join(number.to_string()), vec![]);
                make_all(&own, &mut made).expect("made");
                made.pop();
                assert_eq!(end(&own, &made), Ok(()));
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn groups_below_are_removed_before_their_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().join("top");
        std::fs::create_dir_all(top.join("a/b/c")).expect("made");
        std::fs::create_dir(top.join("d")).expect("made");
        let group = OpenGroup::open(&top).expect("opened");
        assert_eq!(group.tree().len(), 4);
        group.remove_below();
        assert_eq!(std::fs::read_dir(&top).expect("read").count(), 0);
        assert_eq!(end(&top, &[]), Ok(()));
        assert!(!top.exists());
    }
}
