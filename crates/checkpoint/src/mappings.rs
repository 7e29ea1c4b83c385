//! Objects that processes have mapped and that have no name: memfds, deleted files, System V segments.
//!
//! The kernel lets only the host's root follow `/proc/PID/map_files`, by which CRIU opens what is mapped. So a process inside answers CRIU where it
//! tries that: with a descriptor of the same object, which some process has open; or, where none has, with a memfd of the same content. CRIU then
//! does what it does for the host's root. All processes stand still meanwhile.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, fstat, ftruncate, major, memfd_create, minor, statfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::inside;
use skiff_sys::IgnoreError;
use skiff_sys::intercept::{InterceptedCall, OpenCall, OpenListener};
use skiff_sys::memory::{page_size, read_of};

use crate::page_scan::ScanAnswers;

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
/// The end of a mapping, where nothing can be read, is looked at up to this length.
const LONGEST_END: u64 = 1 << 30;
/// So many pages of a process are looked at at once.
const ENTRIES: u64 = 8192;
/// Of a file system in memory so many files are looked at.
const MOST_FILES: usize = 1 << 20;
/// `TMPFS_MAGIC`. Source: `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

/// An object as the kernel numbers it: its device, and its number there.
pub(crate) type ObjectId = (u32, u32, u64);

/// Kinds of mapped objects. One of a kind may have the number of one of another: a segment has that of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ObjectKind {
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
    fn key(&self) -> (ObjectKind, ObjectId) {
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

    /// Whether the name is gone by which it was opened. (It may have others: [`SharedMemory`].)
    pub(crate) fn is_deleted(&self) -> bool {
        self.path.starts_with('/')
            && self.path.ends_with(DELETED)
            && !self.is_system_v()
            && !self.is_anonymous()
            && !self.is_memfd()
    }

    /// The file, if the name by which it was opened leads to it in spite of what the kernel says. It has been given that name again; or it is in a file
    /// system of FUSE, and Linux 6.16 and newer has forgotten the name, as two processes have looked it up at the same moment for the first time.
    fn by_its_own_name(&self) -> io::Result<Option<File>> {
        let Some(path) = self.path.strip_suffix(DELETED) else { return Ok(None) };
        file_at(Path::new(path), self.object)
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
    let file = File::open(path)?;
    Ok(is_it(file.metadata()).then_some(file))
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

fn object(file: &fs::Metadata) -> ObjectId {
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

/// The device of a file system in memory that is mounted there.
pub(crate) fn tmpfs_device(path: &str) -> Option<(u32, u32)> {
    let is_one = statfs(path).is_ok_and(|found| found.f_type as u64 == TMPFS);
    let device = fs::metadata(path).ok()?.dev();
    is_one.then(|| (major(device), minor(device)))
}

/// Mapped files that have names. The kernel says of a mapping that its file is deleted if the name is gone by which it was opened, though it
/// may have another: `sem_open` makes one, gives it its name as another, and removes the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SharedMemory {
    /// The device of `/dev/shm`, if that is in memory.
    pub device: Option<(u32, u32)>,
    /// Files there with names, and files of other devices that have the name by which they were opened.
    pub named: BTreeSet<ObjectId>,
    /// Whether these are all of `/dev/shm`.
    pub is_whole: bool,
}

impl SharedMemory {
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
fn named_files(device: (u32, u32)) -> (HashMap<ObjectId, PathBuf>, bool) {
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
pub(crate) fn serve(listener: OwnedFd, mut scans: Option<ScanAnswers<'_>>) -> Result<()> {
    let listener = OpenListener::from(listener);
    let mut server = Server::default();
    let mut served = Ok(());
    while let Some(call) = listener.next_call().context(|| NAME)? {
        let call = match call {
            InterceptedCall::Open(call) => call,
            InterceptedCall::Scan(call) => {
                let answer = scans.as_mut().map_or(Ok(None), |scans| scans.answer(call));
                let about = || "pages that have not changed";
                // Where that fails the kernel answers, and all is read. What was noted by then is found twice, and the save fails.
                listener.answer_scan(call, answer.default_on_error("all is read")).context(about)?;
                continue;
            }
        };
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
    open: HashMap<(ObjectKind, ObjectId), PathBuf>,
    /// The kernel's own device of files in memory.
    memory: (u32, u32),
    /// The device of `/dev/shm`, if that is in memory. Behind it: its files with names, and whether these are all.
    shared: Option<(u32, u32)>,
    named: (HashMap<ObjectId, PathBuf>, bool),
}

#[derive(Default)]
struct Server {
    frozen: Option<FrozenMappings>,
    /// What processes have mapped, as far as it has been asked for.
    maps: HashMap<i32, Vec<Mapping>>,
    given: HashMap<(ObjectKind, ObjectId), File>,
    /// The one that was given last.
    program: Option<File>,
    placeholders: Vec<i32>,
}

impl Server {
    /// What a call is to get; nothing if the kernel is to answer.
    fn wanted(&mut self, call: OpenCall) -> Result<Option<&File>> {
        let (pid, range) = match wanted_of(call) {
            Some(Wanted::Program(pid)) => {
                self.program = program(pid).context(|| format!("process {pid}: its program"))?;
                return Ok(self.program.as_ref());
            }
            Some(Wanted::Mapping(pid, range)) => (pid, range),
            None => return Ok(None),
        };
        let Some(mapping) = self.mapping(pid, range)? else { return Ok(None) };
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
        if let Entry::Vacant(place) = self.given.entry(mapping.key()) {
            let Some(file) = frozen.file(&mapping).context(|| mapping.path.clone())? else { return Ok(None) };
            place.insert(file);
        }
        Ok(self.given.get(&mapping.key()))
    }

    /// A mapping of a process. It stands still: what it has mapped is read again only if CRIU asks for what was not there.
    fn mapping(&mut self, pid: i32, (start, end): (u64, u64)) -> Result<Option<Mapping>> {
        let find = |all: &[Mapping]| {
            let found = all.binary_search_by_key(&start, |one| one.start).ok().map(|place| &all[place]);
            found.filter(|one| one.end == end).cloned()
        };
        if let Some(found) = self.maps.get(&pid).and_then(|all| find(all)) {
            return Ok(Some(found));
        }
        let all = of_process(pid).context(|| format!("process {pid}"))?;
        let found = find(&all);
        self.maps.insert(pid, all);
        Ok(found)
    }

    /// The file that stands for a segment. Its mapping is made again by us.
    fn segment(&mut self, mapping: &Mapping) -> Result<&File> {
        if !self.given.contains_key(&mapping.key()) {
            let id = i32::try_from(mapping.object.2).map_err(|_| Fault::new("a segment without a number"))?;
            // No mapping leads beyond the end of its segment.
            let table = crate::sysv_tables::table(skiff_sys::sysv::Kind::Segment)?;
            let size = table.iter().find(|entry| entry.id == id).map(|entry| entry.size);
            let size = size.ok_or_else(|| Fault::new(format!("System V segment {id}: it is not there")))?;
            let file = make_placeholder(id, size)?;
            self.placeholders.push(id);
            self.given.insert(mapping.key(), file);
        }
        self.given.get(&mapping.key()).ok_or_else(|| Fault::new(NAME))
    }
}

/// What a call wants to open.
enum Wanted {
    /// What a process has mapped at these addresses.
    Mapping(i32, (u64, u64)),
    /// The program that a process runs.
    Program(i32),
}

/// Nothing if it is something else, which the kernel opens.
fn wanted_of(call: OpenCall) -> Option<Wanted> {
    let caller = call.pid.as_raw_nonzero();
    let dir = fs::read_link(format!("/proc/{caller}/fd/{}", call.dir)).ok()?;
    let dir = dir.to_str()?.strip_prefix("/proc/")?;
    let mappings = dir.strip_suffix("/map_files");
    let pid = mappings.unwrap_or(dir).parse().ok()?;
    let mut path = [0; LONGEST];
    let length = read_of(caller.get(), call.path, &mut path).ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path[..length]).ok()?.to_str().ok()?;
    if mappings.is_none() {
        return (path == "exe").then_some(Wanted::Program(pid));
    }
    let (start, end) = path.split_once('-')?;
    Some(Wanted::Mapping(pid, (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)))
}

/// The program of a process, by its name, if the kernel says of that that it is gone, and it is not ([`Mapping::by_its_own_name`]).
fn program(pid: i32) -> io::Result<Option<File>> {
    let link = format!("/proc/{pid}/exe");
    let name = fs::read_link(&link)?;
    match name.to_str().and_then(|name| name.strip_suffix(DELETED)) {
        Some(name) => file_at(Path::new(name), object(&fs::metadata(&link)?)),
        None => Ok(None),
    }
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
                let Some(object) = fd.path().metadata().ok().and_then(|file| nameless(&file)) else {
                    continue;
                };
                let link = fs::read_link(fd.path()).default_on_error("it has just been closed");
                let is_memfd = link.to_string_lossy().starts_with(MEMFD);
                let kind = if is_memfd { ObjectKind::Memfd } else { ObjectKind::File };
                open.insert((kind, object), fd.path());
            }
        }
        let shared = tmpfs_device("/dev/shm");
        let is_it = |(_, one): &(i32, Mapping)| one.is_deleted() && Some(one.device()) == shared;
        let named = match shared {
            Some(device) if mappings.iter().any(is_it) => named_files(device),
            _ => (HashMap::new(), true),
        };
        Ok(Self { mappings, open, memory: memory_device()?, shared, named })
    }

    /// The file of a mapping whose name is gone, if it has another.
    fn by_name(&self, wanted: &Mapping) -> io::Result<Option<File>> {
        let (files, is_whole) = &self.named;
        if let Some(path) = files.get(&wanted.object) {
            let file = File::open(path)?;
            return match object(&file.metadata()?) == wanted.object {
                true => Ok(Some(file)),
                false => Err(io::Error::other("it has been given another name just now")),
            };
        }
        is_whole.then_some(None).ok_or_else(|| io::Error::other("whether it has another name cannot be seen"))
    }

    /// What stands for a mapped object; nothing if CRIU sees it as it is.
    fn file(&self, wanted: &Mapping) -> io::Result<Option<File>> {
        if let Some(path) = self.open.get(&wanted.key()) {
            return File::open(path).map(Some);
        }
        if wanted.device() != self.memory {
            if Some(wanted.device()) != self.shared {
                return wanted.by_its_own_name();
            }
            if let Some(file) = self.by_name(wanted)? {
                return Ok(Some(file));
            }
        }
        let mut views: Vec<&(i32, Mapping)> =
            self.mappings.iter().filter(|(_, mapping)| mapping.key() == wanted.key()).collect();
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

/// A memfd with what processes see by their mappings of one object. To read what was never written makes the object take memory, and no process has
/// told the kernel of each page that is there: so there must be room for all that may not be.
fn copy(views: &[&(i32, Mapping)]) -> io::Result<File> {
    let room = room();
    let mut absent = views.iter().map(|(_, view)| view.end - view.start).fold(0, u64::saturating_add);
    if absent > room {
        absent = 0;
        for (pid, view) in views {
            absent += absent_pages(*pid, view, room - absent)?;
            refuse_without_room(absent)?;
        }
    }
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

/// Half of the memory that the host has free: so much may be taken beside what processes have.
fn room() -> u64 {
    let said = fs::read_to_string("/proc/meminfo")
        .default_on_error("then the free memory is unknown, and the copy is tried");
    let free = said.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    free.and_then(|kilobytes| kilobytes.parse().ok()).map_or(u64::MAX, |free: u64| free.saturating_mul(512))
}

/// Refuses to take so much memory only to see what is there.
///
/// # Errors
/// When it is too much.
pub(crate) fn refuse_without_room(bytes: u64) -> io::Result<()> {
    let why = || {
        let (bytes, room) = (skiff_output::size(bytes), skiff_output::size(room()));
        let why = format!(
            "to read it may take {bytes} of memory, as the kernel does not say what of it was ever written; there is room for {room}"
        );
        io::Error::other(why)
    };
    (bytes <= room()).then_some(()).ok_or_else(why)
}

/// How many bytes of a mapping its process has no pages of. More than the limit are not counted to the end.
fn absent_pages(pid: i32, view: &Mapping, limit: u64) -> io::Result<u64> {
    let pages = File::open(format!("/proc/{pid}/pagemap"))?;
    let page = page_size() as u64;
    let (mut at, end, mut absent) = (view.start / page, view.end / page, 0);
    let mut entries = vec![0; 8 * ENTRIES as usize];
    while at < end && absent <= limit {
        let count = ENTRIES.min(end - at);
        let wanted = &mut entries[..8 * count as usize];
        pages.read_exact_at(wanted, at * 8)?;
        let is_absent = |entry: &&[u8]| {
            let entry = <[u8; 8]>::try_from(*entry).map_or(0, u64::from_ne_bytes);
            entry & PRESENT == 0
        };
        absent += wanted.chunks(8).filter(is_absent).count() as u64 * page;
        at += count;
    }
    Ok(absent)
}

/// Refuses a mapping of which something is hidden: from there to its end nothing must be readable because the object ends there.
fn refuse_hidden((memory, pages): (&File, &File), view: &Mapping, from: u64) -> io::Result<()> {
    let hidden = || io::Error::other("a part of it cannot be read");
    let (page, mut byte) = (page_size() as u64, [0]);
    if !view.rights.starts_with('r') || view.end - from > LONGEST_END {
        return Err(hidden());
    }
    let mut at = from;
    while at < view.end {
        // What is guarded, or broken, has an entry.
        let is_none = entry(pages, at / page)? & (PRESENT | SWAPPED) == 0;
        match memory.read_at(&mut byte, at) {
            Err(e) if is_none && Errno::from_io_error(&e) == Some(Errno::IO) => at += page,
            _ => return Err(hidden()),
        }
    }
    Ok(())
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
            // The process has ended.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Beyond the end of the object there is nothing.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::IO) => {
                refuse_hidden((&memory, &pages), view, at)?;
                break;
            }
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
    let entry = entry(pages, number)?;
    Ok(entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0)
}

fn entry(pages: &File, number: u64) -> io::Result<u64> {
    let mut entry = [0; 8];
    pages.read_exact_at(&mut entry, number * 8)?;
    Ok(u64::from_ne_bytes(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `sem_open` does: the mapping's name is gone, the file has another.
    #[test]
    fn another_name_is_found() {
        let Some(device) = tmpfs_device("/dev/shm") else { return };
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

    #[test]
    fn what_is_hidden_is_not_taken_for_the_end() {
        let pid = std::process::id().cast_signed();
        let all = own().expect("its own");
        let stack = all.into_iter().find(|one| one.path == "[stack]").expect("a stack");
        let open = |name: &str| File::open(format!("/proc/self/{name}")).expect("opened");
        let files = (&open("mem"), &open("pagemap"));
        refuse_hidden(files, &stack, stack.end).expect("nothing follows");
        refuse_hidden(files, &stack, stack.start).expect_err("something follows");
        let size = stack.end - stack.start;
        let absent = absent_pages(pid, &stack, u64::MAX).expect("counted");
        assert!(absent < size, "{absent} of {size}");
        let hidden = Mapping { rights: "---s".into(), ..stack.clone() };
        refuse_hidden(files, &hidden, stack.start).expect_err("nobody knows");
        refuse_without_room(0).expect("none");
        refuse_without_room(u64::MAX - 1).expect_err("nobody has that");
    }

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
