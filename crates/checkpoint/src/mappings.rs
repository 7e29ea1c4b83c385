//! Objects that processes have mapped and that have no name: memfds, deleted files, System V segments.
//!
//! The kernel lets only the host's root follow `/proc/PID/map_files`, by which CRIU opens what is mapped. So a process inside answers CRIU where it
//! tries that: with a descriptor of the same object, which some process has open; or, where none has, with a memfd of the same content. CRIU then
//! does what it does for the host's root. All processes stand still meanwhile.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, fstat, ftruncate, major, memfd_create, minor, statfs};
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::inside;
use skiff_sys::IgnoreError;
use skiff_sys::intercept::{OpenCall, OpenListener};
use skiff_sys::memory::{page_size, read_of};

/// In messages.
const NAME: &str = "what processes have mapped";
/// How the line of a memfd's mapping begins, of a System V segment's, and that of memory shared by `mmap`.
const MEMFD: &str = "/memfd:";
const SYSTEM_V: &str = "/SYSV";
const ANONYMOUS: &str = "/dev/zero (deleted)";
/// How the line of one ends whose name is gone.
const DELETED: &str = " (deleted)";
/// Longest path that says which mapping is wanted: two addresses.
const LONGEST: usize = 64;
/// Content is read in pieces of this size.
const PIECE: usize = 1 << 20;
/// Of a page of `/proc/PID/pagemap`: it is in memory, in swap space, of a file. Source: `admin-guide/mm/pagemap.rst`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// `TMPFS_MAGIC`. Source: `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

/// An object as the kernel numbers it: its device, and its number there.
pub(crate) type ObjectId = (u32, u32, u64);

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

    fn is_anonymous(&self) -> bool {
        self.path == ANONYMOUS
    }

    /// Whether it has lost its name.
    pub(crate) fn is_deleted(&self) -> bool {
        self.path.starts_with('/')
            && self.path.ends_with(DELETED)
            && !self.is_system_v()
            && !self.is_anonymous()
            && !self.is_memfd()
    }
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
    (file.is_file() && file.nlink() == 0).then(|| (major(file.dev()), minor(file.dev()), file.ino()))
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

/// The device of a file system in memory that is mounted there.
pub(crate) fn tmpfs_device(path: &str) -> Option<(u32, u32)> {
    let is_one = statfs(path).is_ok_and(|found| found.f_type as u64 == TMPFS);
    let device = fs::metadata(path).ok()?.dev();
    is_one.then(|| (major(device), minor(device)))
}

/// A file with a name that stands for a System V segment while CRIU saves or restores the processes that have it attached.
pub(crate) fn placeholder(id: i32) -> PathBuf {
    PathBuf::from(format!("{}/sysv.{id}", inside::DIR))
}

/// Makes it, as long as the segment.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn make_placeholder(id: i32, length: u64) -> Result<File> {
    let path = placeholder(id);
    let about = || path.display().to_string();
    fs::remove_file(&path).ignore_error("it is there only if one was killed that made it");
    let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file = made.context(about)?;
    ftruncate(&file, length.next_multiple_of(page_size() as u64)).context(about)?;
    Ok(file)
}

/// Answers CRIU's calls as long as it runs.
///
/// # Errors
/// The first that could not be answered rightly: that call has failed.
pub(crate) fn serve(listener: OwnedFd) -> Result<()> {
    let listener = OpenListener::from(listener);
    let mut server = Server { frozen: None, given: HashMap::new(), placeholders: vec![] };
    let mut served = Ok(());
    while let Some(call) = listener.next_call().context(|| NAME)? {
        let answered = match server.wanted(call) {
            Ok(Some(file)) => listener.give(call, file.as_fd()),
            Ok(None) => listener.proceed(call),
            Err(why) => {
                served = served.and(Err(why));
                listener.fail(call)
            }
        };
        answered.context(|| NAME)?;
    }
    for id in server.placeholders {
        fs::remove_file(placeholder(id)).ignore_error("whoever saves removes it, too");
    }
    served
}

/// What processes had when they stood still.
struct FrozenMappings {
    mappings: Vec<(i32, Mapping)>,
    /// Where an object is open that has no name.
    open: HashMap<ObjectId, PathBuf>,
    /// Devices of files in memory.
    memory: Vec<(u32, u32)>,
}

struct Server {
    frozen: Option<FrozenMappings>,
    given: HashMap<ObjectId, File>,
    placeholders: Vec<i32>,
}

impl Server {
    /// What a call is to get; nothing if the kernel is to answer.
    fn wanted(&mut self, call: OpenCall) -> Result<Option<&File>> {
        let Some((pid, start, end)) = mapping_of(call) else { return Ok(None) };
        let about = || format!("process {pid}");
        let all = of_process(pid).context(about)?;
        let Some(mapping) = all.into_iter().find(|one| (one.start, one.end) == (start, end)) else {
            return Ok(None);
        };
        if mapping.is_system_v() {
            return self.segment(&mapping).map(Some);
        }
        if !(mapping.is_memfd() || mapping.is_deleted() || mapping.is_anonymous()) {
            return Ok(None);
        }
        if self.frozen.is_none() {
            self.frozen = Some(FrozenMappings::of(call.pid.as_raw_nonzero().get())?);
        }
        let Some(frozen) = &self.frozen else { return Ok(None) };
        if let Entry::Vacant(place) = self.given.entry(mapping.object) {
            let Some(file) = frozen.file(&mapping).context(|| mapping.path.clone())? else { return Ok(None) };
            place.insert(file);
        }
        Ok(self.given.get(&mapping.object))
    }

    /// The file that stands for a segment. Its mapping is made again by us.
    fn segment(&mut self, mapping: &Mapping) -> Result<&File> {
        if !self.given.contains_key(&mapping.object) {
            let id = i32::try_from(mapping.object.2).map_err(|_| Fault::new("a segment without a number"))?;
            // No mapping leads beyond the end of its segment.
            let table = crate::sysv_tables::table(skiff_sys::sysv::Kind::Segment)?;
            let size = table.iter().find(|entry| entry.id == id).map(|entry| entry.size);
            let size = size.ok_or_else(|| Fault::new(format!("System V segment {id}: it is not there")))?;
            let file = make_placeholder(id, size)?;
            self.placeholders.push(id);
            self.given.insert(mapping.object, file);
        }
        self.given.get(&mapping.object).ok_or_else(|| Fault::new(NAME))
    }
}

/// Which mapping of which process a call wants to open, if that is what it wants.
fn mapping_of(call: OpenCall) -> Option<(i32, u64, u64)> {
    let caller = call.pid.as_raw_nonzero();
    let dir = fs::read_link(format!("/proc/{caller}/fd/{}", call.dir)).ok()?;
    let pid = dir.to_str()?.strip_prefix("/proc/")?.strip_suffix("/map_files")?.parse().ok()?;
    let mut path = [0; LONGEST];
    let length = read_of(caller.get(), call.path, &mut path).ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path[..length]).ok()?;
    let (start, end) = path.to_str().ok()?.split_once('-')?;
    Some((pid, u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

impl FrozenMappings {
    /// Of all processes but this one and CRIU.
    fn of(criu: i32) -> Result<Self> {
        let about = || "processes";
        let own = std::process::id().cast_signed();
        let (mut mappings, mut open) = (vec![], HashMap::new());
        for entry in fs::read_dir("/proc").context(about)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if pid == own || pid == criu {
                continue;
            }
            let all = of_process(pid).default_on_error("one that has ended has nothing");
            mappings.extend(all.into_iter().map(|mapping| (pid, mapping)));
            for fd in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
                let object = fd.path().metadata().ok().and_then(|file| nameless(&file));
                open.extend(object.map(|object| (object, fd.path())));
            }
        }
        let memory = [Some(memory_device()?), tmpfs_device("/dev/shm")].into_iter().flatten().collect();
        Ok(Self { mappings, open, memory })
    }

    /// What stands for a mapped object; nothing if CRIU sees it as it is.
    fn file(&self, wanted: &Mapping) -> io::Result<Option<File>> {
        if let Some(path) = self.open.get(&wanted.object) {
            return File::open(path).map(Some);
        }
        let (major, minor, _) = wanted.object;
        if !self.memory.contains(&(major, minor)) {
            return Ok(None);
        }
        let mut views: Vec<&(i32, Mapping)> =
            self.mappings.iter().filter(|(_, mapping)| mapping.object == wanted.object).collect();
        // CRIU reads memory that is shared by `mmap` as if the first mapping of it that it comes by were of the whole.
        let whole = views.iter().map(|(_, view)| view.offset + (view.end - view.start)).max().unwrap_or(0);
        let is_plain = |(_, view): &&(i32, Mapping)| view.offset == 0 && view.end - view.start == whole;
        if wanted.is_anonymous() && views.iter().all(is_plain) {
            return Ok(None);
        }
        views.sort_by_key(|(_, view)| (!view.is_shared(), view.offset));
        copy(&views).map(Some)
    }
}

/// A memfd with what processes see by their mappings of one object.
fn copy(views: &[&(i32, Mapping)]) -> io::Result<File> {
    let file = File::from(memfd_create("", MemfdFlags::CLOEXEC)?);
    let mut seen: Vec<(u64, u64)> = vec![];
    let mut length = 0;
    for (pid, view) in views {
        let range = (view.offset, view.end - view.start);
        if view.is_shared() && seen.contains(&range) {
            continue;
        }
        length = length.max(copy_view(*pid, view, &file)?);
        seen.push(range);
    }
    ftruncate(&file, length)?;
    Ok(file)
}

/// Copies one; up to where the object goes, as far as it shows.
fn copy_view(pid: i32, view: &Mapping, into: &File) -> io::Result<u64> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let pages = File::open(format!("/proc/{pid}/pagemap"))?;
    let page = page_size();
    let (mut at, mut piece) = (view.start, vec![0; PIECE]);
    while at < view.end {
        let wanted = usize::try_from(view.end - at).unwrap_or(PIECE).min(PIECE);
        let got = match memory.read_at(&mut piece[..wanted], at) {
            // Beyond the end of the object there is nothing.
            Ok(0) => break,
            Err(e) if Errno::from_io_error(&e) == Some(Errno::IO) => break,
            got => got?,
        };
        for (number, bytes) in piece[..got].chunks(page).enumerate() {
            let address = at + (number * page) as u64;
            if bytes.iter().all(|byte| *byte == 0)
                || !view.is_shared() && is_own(&pages, address / page as u64)?
            {
                continue;
            }
            into.write_all_at(bytes, view.offset + (address - view.start))?;
        }
        at += got as u64;
    }
    Ok(view.offset + (at - view.start))
}

/// Whether a page of a private mapping is the process's own, and no longer the object's.
fn is_own(pages: &File, number: u64) -> io::Result<bool> {
    let mut entry = [0; 8];
    pages.read_exact_at(&mut entry, number * 8)?;
    let entry = u64::from_ne_bytes(entry);
    Ok(entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
