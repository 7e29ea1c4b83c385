//! Files that stand for System V segments, which CRIU does not map.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::ftruncate;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::{Mount, Plan, Source, covering, inside};
use skiff_sys::IgnoreError;
use skiff_sys::memory::page_size;

/// How their names begin in Skiff's directory, and in a directory that programs use, too. The number of the segment follows.
const NAME: &str = "sysv.";
const HIDDEN_NAME: &str = ".skiff.sysv.";
/// Where they are in a root that takes no changes, if nothing else is mounted there.
const SHARED_MEMORY: &str = "/dev/shm";
/// Why there are none.
const NO_DIRECTORY: &str = "the instance has no directory for the file that stands for it: its root is read-only, and all of its own directories are mounted from elsewhere";

/// Where files are that stand for System V segments while CRIU saves or restores the processes that have these attached. CRIU notes their paths, so
/// a restore has them where the save had them: the place follows from the plan, which both have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placeholders {
    /// Nothing if the instance has no directory that takes new files.
    dir: Option<PathBuf>,
    /// How their names begin.
    name: &'static str,
}

impl Placeholders {
    /// In an instance with this plan: in Skiff's directory, or, if the root takes no changes, in one of the instance's own mounts.
    pub(crate) fn of(plan: &Plan) -> Self {
        match plan.read_only {
            false => Self { dir: Some(inside::DIR.into()), name: NAME },
            true => Self { dir: own_dir(&plan.mounts).map(Path::to_owned), name: HIDDEN_NAME },
        }
    }

    /// In a directory, by their hidden names.
    #[cfg(test)]
    pub(crate) fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), name: HIDDEN_NAME }
    }

    /// Why there can be none, if there can be none.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        self.dir.is_none().then_some(NO_DIRECTORY)
    }

    /// Inside: makes the one of a segment, as long as that.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn make(&self, id: i32, length: u64) -> Result<File> {
        let segment = format!("System V shared memory {id}");
        let Some(dir) = &self.dir else {
            return Err(Fault::new(format!("{segment}: {NO_DIRECTORY}")).hint("start it with --writable"));
        };
        let path = dir.join(format!("{}{id}", self.name));
        let about = || format!("{segment}: the file that stands for it, {}", path.display());
        fs::remove_file(&path).ignore_error("it is there only if one was killed that made it");
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let made: io::Result<File> = made.and_then(|file| {
            ftruncate(&file, length.next_multiple_of(page_size() as u64))?;
            Ok(file)
        });
        let is_full =
            matches!(&made, Err(e) if [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&e.kind()));
        made.context(about).map_err(|fault| match is_full {
            true => fault.hint(format!(
                "make room for one more file in {0}: inside, `df {0}` and `df -i {0}` show what is full",
                dir.display()
            )),
            false => fault,
        })
    }

    /// Inside: removes all that are there, as one may have been killed that made them.
    pub(crate) fn remove_all(&self) {
        let entries = self.dir.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix(self.name));
            if id.is_some_and(|id| id.parse::<i32>().is_ok()) {
                fs::remove_file(entry.path()).ignore_error("somebody else has removed it");
            }
        }
    }
}

/// A directory of the instance's own that takes new files, also where the root does not: if it can be, that of POSIX shared memory.
fn own_dir(mounts: &[Mount]) -> Option<&Path> {
    let is_own = |mount: &Mount| matches!(mount.source, Source::Own(_) | Source::Memory { .. });
    let own: Vec<&Path> = (0..)
        .zip(mounts)
        .filter(|(at, mount)| is_own(mount) && !mount.read_only && covering(mounts, *at).next().is_none())
        .map(|(_, mount)| mount.target.as_path())
        .collect();
    own.iter().find(|dir| **dir == Path::new(SHARED_MEMORY)).or(own.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(source: Source, target: &str, read_only: bool) -> Mount {
        Mount { source, target: target.into(), read_only, optional: false, propagation: None }
    }

    #[test]
    fn they_are_in_a_directory_of_the_instances_own() {
        let memory =
            |target: &str, read_only| mount(Source::Memory { mode: 0o1777, size: None }, target, read_only);
        let own = |target: &str| mount(Source::Own("tmp".into()), target, false);
        let bind = |target: &str| mount(Source::Bind("/x".into()), target, false);
        for (mounts, want) in [
            (vec![own("/tmp"), memory("/dev/shm", false)], Some("/dev/shm")),
            (vec![own("/tmp"), memory("/dev/shm", true)], Some("/tmp")),
            (vec![own("/tmp"), memory("/dev/shm", false), bind("/dev/shm")], Some("/tmp")),
            (
                vec![memory("/dev/shm", false), bind("/dev"), memory("/home", false), bind("/home/a")],
                Some("/home"),
            ),
            (vec![memory("/dev/shm", false), bind("/dev/shm"), own("/tmp"), bind("/tmp")], None),
            (vec![memory("/dev/shm", false), bind("/dev/shm2")], Some("/dev/shm")),
            (vec![], None),
        ] {
            assert_eq!(own_dir(&mounts), want.map(Path::new), "{mounts:?}");
        }
    }

    #[test]
    fn those_that_are_left_are_removed_and_nothing_else() {
        let temp = tempfile::tempdir().expect("a directory");
        let all = Placeholders::in_dir(temp.path());
        let names = || {
            let entries = fs::read_dir(temp.path()).expect("listed");
            entries
                .map(|entry| entry.expect("listed").file_name().into_string().expect("text"))
                .collect::<Vec<_>>()
        };
        let page = page_size() as u64;
        for length in [1, page] {
            assert_eq!(all.make(3, length).expect("made").metadata().expect("known").len(), page);
        }
        all.make(40, 1).expect("made");
        assert_eq!(names().len(), 2);
        fs::write(temp.path().join(".skiff.sysv.x"), "x").expect("written");
        all.remove_all();
        assert_eq!(names(), [".skiff.sysv.x"]);
        let why = Placeholders::default().make(3, 1).expect_err("no directory to make it in");
        assert!(why.to_string().contains("shared memory 3"));
    }
}
