//! A control group by a descriptor, and the files and groups in it.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fgetxattr, fstatfs, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use skiff_sys::{IgnoreError, small_file};

use crate::process_info::InitProcess;
use crate::state_dir::open_dir;

pub const ROOT: &str = "/sys/fs/cgroup";
/// Below it are all groups. Unit tests take plain directories for groups.
const TOP: &str = if cfg!(test) { "/" } else { ROOT };
/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;
/// On a group that was made for what is below it. Of several containers there, the last one removes it, whoever has made it.
pub const MADE: &str = "user.skiff.made";
/// No more is read of a group's file, in bytes.
pub const LONGEST: u64 = 1 << 20;
/// No more groups below a container's are looked at.
const MOST_GROUPS: usize = 10_000;

/// A control group that is open. Its path is from the container's record, which its user can write: whatever else is there, a named pipe or a file
/// system that never answers, is no group, so that nothing is waited for.
pub struct OpenGroup(OwnedFd);

impl OpenGroup {
    /// # Errors
    /// When there is none, or the path leads to something else.
    pub fn open(path: &Path) -> rustix::io::Result<Self> {
        let below = path.strip_prefix(TOP).map_err(|_| Errno::INVAL)?;
        // The topmost has everybody's processes.
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        if below.as_os_str().is_empty() || !is_plain {
            return Err(Errno::INVAL);
        }
        let group = Self(open_dir(CWD, Path::new(TOP))?).below(below)?;
        match cfg!(test) || fstatfs(&group.0)?.f_type == CGROUP2 {
            true => Ok(group),
            false => Err(Errno::INVAL),
        }
    }

    fn below(&self, path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.0, path, flags, Mode::empty(), how).map(Self)
    }

    pub fn read(&self, file: &str) -> std::io::Result<String> {
        let bytes = small_file::read_below(&self.0, file, LONGEST)?;
        String::from_utf8(bytes).map_err(|_| std::io::ErrorKind::InvalidData.into())
    }

    pub fn write(&self, file: &str, value: &str) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.0, file, flags, Mode::empty())?;
        std::io::Write::write_all(&mut std::fs::File::from(file), value.as_bytes())
    }

    /// Whether a file says of the group what the line does.
    pub fn says(&self, file: &str, line: &str) -> bool {
        self.read(file).is_ok_and(|text| text.lines().any(|said| said == line))
    }

    /// Whether it was made for what is below it.
    pub fn is_marked(&self) -> bool {
        fgetxattr(&self.0, MADE, &mut [0; 0][..]).is_ok()
    }

    /// The groups below it, which the container may have made, by their paths; each before its own. No more than [`MOST_GROUPS`].
    pub fn tree(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = vec![];
        self.add_below(Path::new("."), &mut found);
        let mut at = 0;
        while let Some(path) = found.get(at).cloned() {
            at += 1;
            self.add_below(&path, &mut found);
        }
        found
    }

    fn add_below(&self, path: &Path, found: &mut Vec<PathBuf>) {
        // One that is gone has none.
        let Ok(entries) = self.below(path).and_then(|group| Dir::new(group.0)) else { return };
        let is_below = |name: &&CStr| !matches!(name.to_bytes(), b"." | b"..");
        for entry in entries.flatten().filter(|entry| entry.file_type() == FileType::Directory) {
            let name = Some(entry.file_name()).filter(is_below).and_then(|name| name.to_str().ok());
            if found.len() < MOST_GROUPS {
                found.extend(name.map(|name| path.join(name)));
            }
        }
    }

    /// The processes of this group alone.
    fn own_processes(&self) -> Vec<InitProcess> {
        let text = self.read("cgroup.procs").default_on_error("a group that is gone has none");
        let pids = text.lines().filter_map(|line| skiff_sys::process::positive_pid(line.parse().ok()?));
        pids.filter_map(|pid| InitProcess::of(pid).ok()).collect()
    }

    pub fn processes(&self) -> Vec<InitProcess> {
        let below = self.tree().into_iter().filter_map(|path| self.below(&path).ok());
        let below: Vec<_> = below.flat_map(|group| group.own_processes()).collect();
        self.own_processes().into_iter().chain(below).collect()
    }

    /// Whether there are processes in it, or below it.
    pub fn is_populated(&self) -> bool {
        self.says("cgroup.events", "populated 1")
    }

    pub fn is_frozen(&self) -> bool {
        self.says("cgroup.events", "frozen 1")
    }

    /// Removes those below it, as far as nobody is in them.
    pub fn remove_below(&self) {
        for path in self.tree().iter().rev() {
            unlinkat(&self.0, path, AtFlags::REMOVEDIR).ignore_error("others may have come into it");
        }
    }
}
