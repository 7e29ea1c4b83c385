//! A line of `/proc/PID/maps`, and how the object behind it is told apart from others.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, major, memfd_create, minor, openat,
};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::memory::MappedPage;

/// How the line of a memfd's mapping begins, of a System V segment's, and that of memory shared by `mmap`.
pub(super) const MEMFD: &str = "/memfd:";
const SYSTEM_V: &str = "/SYSV";
const ANONYMOUS: &str = "/dev/zero (deleted)";
/// How the line of one ends whose name is gone.
const DELETED: &str = " (deleted)";

/// An object as the kernel numbers it: its device, and its number there.
pub(crate) type ObjectId = (u32, u32, u64);

/// Kinds of mapped objects. One of a kind may have the number of one of another: a segment has that of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ObjectKind {
    SystemV,
    Memfd,
    Anonymous,
    File,
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Four letters: to be read, written, executed; shared or private.
    pub rights: String,
    pub offset: u64,
    pub object: ObjectId,
    pub path: String,
}

impl Mapping {
    /// Of a line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = words.first()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let (major, minor) = words.get(3)?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        (start < end).then_some(())?;
        Some(Self {
            start,
            end,
            rights: (*words.get(1)?).to_owned(),
            offset: hex(words.get(2)?)?,
            object: (number(major)?, number(minor)?, words.get(4)?.parse().ok()?),
            path: words.get(5).map_or("", |path| path.trim_start()).to_owned(),
        })
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.rights.ends_with('s')
    }

    pub(crate) fn is_memfd(&self) -> bool {
        self.path.starts_with(MEMFD)
    }

    pub(crate) fn is_system_v(&self) -> bool {
        self.path.starts_with(SYSTEM_V) && self.path.ends_with(DELETED)
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.path == ANONYMOUS
    }

    pub(crate) fn device(&self) -> (u32, u32) {
        (self.object.0, self.object.1)
    }

    /// What is mapped, as no other object is named while this one is there.
    pub(super) fn key(&self) -> (ObjectKind, ObjectId) {
        let kind = if self.is_system_v() {
            ObjectKind::SystemV
        } else if self.is_memfd() {
            ObjectKind::Memfd
        } else if self.is_anonymous() {
            ObjectKind::Anonymous
        } else {
            ObjectKind::File
        };
        (kind, self.object)
    }

    /// Whether the name is gone by which it was opened. (It may have others: [`super::NamedFiles`].)
    pub(crate) fn is_deleted(&self) -> bool {
        self.path.starts_with('/')
            && self.path.ends_with(DELETED)
            && !self.is_system_v()
            && !self.is_anonymous()
            && !self.is_memfd()
    }

    /// The file, if the name by which it was opened leads to it in spite of what the kernel says. It has been given that name again; or it is in a file
    /// system of FUSE, and Linux 6.16 and newer has forgotten the name, as two processes have looked it up at the same moment for the first time.
    pub(super) fn by_its_own_name(&self) -> io::Result<Option<File>> {
        let Some(path) = self.path.strip_suffix(DELETED) else { return Ok(None) };
        file_at(Path::new(path), self.object)
    }

    /// The file of its name, if the kernel gives other numbers for the mapping than for the file. Before Linux 6.8 a mapping in an overlay has those of the file
    /// in the layer below, and CRIU takes that for another file. Both are the same if a mapping of our own by this name has the same numbers.
    pub(super) fn in_overlay(&self) -> io::Result<Option<File>> {
        let path = Path::new(&self.path);
        let has_name = self.path.starts_with('/') && !self.path.ends_with(DELETED);
        let found = if has_name { fs::symlink_metadata(path).ok() } else { None };
        let Some(found) = found.filter(|found| found.is_file() && object(found) != self.object) else {
            return Ok(None);
        };
        let Some(file) = file_at(path, object(&found))? else { return Ok(None) };
        let page = MappedPage::of(file.as_fd())?;
        let is_it = own()?.iter().any(|one| one.start == page.address() && one.object == self.object);
        Ok(is_it.then_some(file))
    }
}

/// The program of a process, by its name, if the kernel says of that that it is gone, and it is not ([`Mapping::by_its_own_name`]).
pub(super) fn program(pid: i32) -> io::Result<Option<File>> {
    let link = format!("/proc/{pid}/exe");
    let name = fs::read_link(&link)?;
    match name.to_str().and_then(|name| name.strip_suffix(DELETED)) {
        Some(name) => file_at(Path::new(name), object(&fs::metadata(&link)?)),
        None => Ok(None),
    }
}

/// The file of this name, if that is this object.
fn file_at(path: &Path, wanted: ObjectId) -> io::Result<Option<File>> {
    let is_it = |found: io::Result<fs::Metadata>| {
        found.is_ok_and(|found| found.is_file() && object(&found) == wanted)
    };
    // What is no file is not opened: that may wait for somebody.
    if !is_it(fs::symlink_metadata(path)) {
        return Ok(None);
    }
    // Nor does what has taken its place since make anybody wait.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if !is_it(file.metadata()) {
        return Ok(None);
    }
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(Some(file))
}

/// All that a process has mapped.
pub(crate) fn of_process(pid: i32) -> io::Result<Vec<Mapping>> {
    read(&format!("/proc/{pid}/maps"))
}

/// All that this process has mapped.
pub(crate) fn own() -> io::Result<Vec<Mapping>> {
    read("/proc/self/maps")
}

fn read(path: &str) -> io::Result<Vec<Mapping>> {
    let text = fs::read(path)?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Mapping::parse).collect())
}

/// The object behind an open file, if it has no name.
pub(crate) fn nameless(file: &fs::Metadata) -> Option<ObjectId> {
    (file.is_file() && file.nlink() == 0).then(|| object(file))
}

pub(super) fn object(file: &fs::Metadata) -> ObjectId {
    (major(file.dev()), minor(file.dev()), file.ino())
}

/// The device of the kernel's own memory files: memfds, System V segments, shared memory by `mmap`.
///
/// # Errors
/// When the kernel has no memfds.
pub(crate) fn memory_device() -> Result<(u32, u32)> {
    let about = || "memfd";
    let one = memfd_create("", MemfdFlags::CLOEXEC).context(about)?;
    let device = fstat(&one).context(about)?.st_dev;
    Ok((major(device), minor(device)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn numbers_of_one_kind_are_not_those_of_another() {
        let of = |path: &str| {
            Mapping::parse(&format!("1000-2000 rw-s 0 00:01 5 {path} (deleted)")).map(|one| one.key())
        };
        let all =
            ["/SYSV00000000", "/memfd:x", "/dev/zero", "/dev/shm/x"].map(|path| of(path).expect("a line"));
        assert_eq!(HashMap::from(all.map(|key| (key, ()))).len(), 4);
    }

    #[test]
    fn another_file_of_the_name_is_not_given_to_criu() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        let (major, minor, number) = object(&fs::metadata(&path).unwrap());
        let of = |number: u64, path: &Path| {
            let line = format!("7f00-8000 r--p 0 {major:x}:{minor:x} {number} {}", path.display());
            Mapping::parse(&line).expect("a line").in_overlay().unwrap().is_some()
        };
        // CRIU sees for itself that it is this file; or it is another one.
        assert!(!of(number, &path) && !of(number + 1, &path) && !of(number, &dir.path().join("none")));
    }

    #[test]
    fn lines_are_told_apart() {
        let of = |path: &str| {
            let line = format!("7f00-8000 rw-s 00001000 00:1f 57                         {path}");
            Mapping::parse(&line).expect("a line")
        };
        let one = of("/memfd:a b (deleted)");
        assert_eq!((one.start, one.end, one.offset, one.object), (0x7f00, 0x8000, 0x1000, (0, 0x1f, 57)));
        assert!(one.is_shared() && one.is_memfd() && !one.is_deleted());
        assert!(of("/SYSV00005e3c (deleted)").is_system_v());
        assert!(of("/dev/zero (deleted)").is_anonymous() && !of("/dev/zero (deleted)").is_deleted());
        assert!(of("/dev/shm/x (deleted)").is_deleted() && !of("/dev/shm/x").is_deleted());
        for line in ["", "7f00", "8000-7f00 rw-s 0 00:01 1", "x-y rw-s 0 00:01 1", "1-2 rw-s 0 0001 1"] {
            assert_eq!(Mapping::parse(line), None, "{line}");
        }
    }
}
