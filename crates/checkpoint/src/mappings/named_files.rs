//! Mapped files that seem to have no name, and their names.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{major, minor, statfs};
use serde::{Deserialize, Serialize};
use skiff_sys::IgnoreError;

use super::mapping::{Mapping, ObjectId, object, of_process};

/// Of a file system in memory so many files are looked at.
const MOST_FILES: usize = 1 << 20;
/// `TMPFS_MAGIC`. Source: `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

/// The device of a file system in memory that is mounted there.
pub(super) fn tmpfs_device(path: &str) -> Option<(u32, u32)> {
    let is_one = statfs(path).is_ok_and(|found| found.f_type as u64 == TMPFS);
    let device = fs::metadata(path).ok()?.dev();
    is_one.then(|| (major(device), minor(device)))
}

/// Mapped files that have names. The kernel says of a mapping that its file is deleted if the name is gone by which it was opened, though it
/// may have another: `sem_open` makes one, gives it its name as another, and removes the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NamedFiles {
    /// The device of `/dev/shm`, if that is in memory.
    pub device: Option<(u32, u32)>,
    /// Files there with names, and files of other devices that have the name by which they were opened.
    pub named: BTreeSet<ObjectId>,
    /// Whether these are all of `/dev/shm`.
    pub is_whole: bool,
}

impl NamedFiles {
    /// In this process's mounts. Names are only looked for if one of these processes has something mapped there that seems to have none.
    pub(crate) fn of(processes: impl IntoIterator<Item = i32>) -> Self {
        let device = tmpfs_device("/dev/shm");
        let all = processes
            .into_iter()
            .flat_map(|pid| of_process(pid).default_on_error("one that has ended has nothing"));
        let (shared, others): (Vec<_>, Vec<_>) =
            all.filter(Mapping::is_deleted).partition(|mapping| Some(mapping.device()) == device);
        let (files, is_whole) = match device.filter(|_| !shared.is_empty()) {
            Some(device) => named_files(device),
            None => (HashMap::new(), device.is_some()),
        };
        let is_named = |one: &Mapping| one.by_its_own_name().is_ok_and(|file| file.is_some());
        let others = others.into_iter().filter(is_named).map(|one| one.object);
        Self { device, named: files.into_keys().chain(others).collect(), is_whole }
    }
}

/// The files of a device, each with one of its names, wherever it is mounted; and whether these are all. (What lies below another mount nobody can
/// open.)
pub(super) fn named_files(device: (u32, u32)) -> (HashMap<ObjectId, PathBuf>, bool) {
    let (mut files, mut is_whole) = (HashMap::new(), true);
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    is_whole &= mounts.is_ok();
    let mounts = mounts.default_on_error("then it is not known where it is mounted");
    let (number, mut open) = (format!("{}:{}", device.0, device.1), vec![]);
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words.get(2) == Some(&number.as_str()) {
            // A path with characters that are written as numbers is not looked at.
            is_whole &= words.get(4).is_some_and(|path| !path.contains('\\'));
            open.extend(words.get(4).map(PathBuf::from));
        }
    }
    while let Some(dir) = open.pop() {
        // One that another mount hides.
        let found = fs::symlink_metadata(&dir).ok().filter(|found| device_of(found) == device);
        match found {
            Some(found) if found.is_dir() => is_whole &= list(&dir, device, &mut files, &mut open).is_ok(),
            // A file may be mounted by itself.
            Some(found) if found.is_file() => drop(files.insert(object(&found), dir)),
            _ => {}
        }
        if files.len() + open.len() > MOST_FILES {
            return (files, false);
        }
    }
    (files, is_whole)
}

/// Adds files of a directory, and directories that are to be listed.
fn list(
    dir: &Path,
    device: (u32, u32),
    files: &mut HashMap<ObjectId, PathBuf>,
    open: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match fs::symlink_metadata(&path)? {
            found if device_of(&found) != device => {}
            found if found.is_dir() => open.push(path),
            found if found.is_file() => drop(files.insert(object(&found), path)),
            _ => {}
        }
    }
    Ok(())
}

fn device_of(file: &fs::Metadata) -> (u32, u32) {
    (major(file.dev()), minor(file.dev()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::mapping::nameless;
    use super::*;

    /// What `sem_open` does: the mapping's name is gone, the file has another.
    #[test]
    fn another_name_is_found() {
        let device = tmpfs_device("/dev/shm").expect("/dev/shm is in memory");
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (first, last) = (dir.path().join("first"), dir.path().join("last"));
        let file = File::create_new(&first).expect("made");
        fs::hard_link(&first, &last).and_then(|()| fs::remove_file(&first)).expect("another name");
        let wanted = object(&file.metadata().expect("known"));
        assert_eq!(named_files(device).0.get(&wanted), Some(&last));
        fs::remove_file(&last).expect("removed");
        assert_eq!(named_files(device).0.get(&wanted), None);
        assert_eq!(nameless(&file.metadata().expect("known")), Some(wanted));
    }
}
