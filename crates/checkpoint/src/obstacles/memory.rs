//! Memory that cannot be saved.
//!
//! CRIU without the host's rights may not follow `/proc/PID/map_files`, so it does not know the object behind a mapping of what has no name.
//! [`crate::mappings`] opens it for CRIU, if some process has it open, or it lies in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use skiff_spec::fault::Result;
use skiff_sys::intercept;

use super::descriptors::{IO_URING, device_in_the_way};
use crate::criu::GHOST_LIMIT;
use crate::mappings::{Mapping, NamedFiles, ObjectId, Placeholders, memory_device, nameless};

/// Nothing of these is a device, or a file that must be found again.
const HARMLESS: [&str; 2] = ["/dev/zero", "/dev/shm/"];

/// What of all that processes have mapped can be opened for CRIU.
#[derive(Clone, Default)]
pub(super) struct Openable {
    /// Whether the kernel lets us.
    is_available: bool,
    /// Objects without names that any process has open.
    open: BTreeSet<ObjectId>,
    /// The kernel's own device of what lies in memory, and `/dev/shm`.
    own: (u32, u32),
    shared: NamedFiles,
    /// Where files are that stand for System V segments.
    placeholders: Placeholders,
    /// Whether descriptors are in transit through sockets, where nobody sees what they lead to.
    in_flight: bool,
    /// Memory shared by `mmap`, each with how much of it is mapped; nothing if that differs or is not from the beginning on. Where it cannot be
    /// opened, CRIU takes the first mapping for the whole.
    shared_parts: BTreeMap<ObjectId, Option<u64>>,
}

impl Openable {
    /// In an instance with this `/dev/shm` and these placeholders.
    pub(super) fn with(shared: NamedFiles, placeholders: Placeholders) -> Result<Self> {
        let is_available = intercept::is_available();
        Ok(Self { is_available, own: memory_device()?, shared, placeholders, ..Self::default() })
    }

    /// Takes note of a descriptor, with what its link and its `fdinfo` say.
    pub(super) fn add(&mut self, path: &Path, link: &str, info: &str) {
        if link.ends_with(" (deleted)") {
            let file = path.metadata().ok();
            self.open.extend(file.and_then(|file| nameless(&file)));
        }
        let under_way = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
        self.in_flight |= under_way.is_some_and(|count| count.trim() != "0");
    }

    /// Takes note of what a process has mapped, as `/proc/PID/maps` says it.
    pub(super) fn add_mapped(&mut self, lines: &str) {
        if self.is_available {
            return;
        }
        for mapping in lines.lines().filter_map(Mapping::parse).filter(Mapping::is_anonymous) {
            let length = (mapping.offset == 0).then_some(mapping.end - mapping.start);
            let known = self.shared_parts.entry(mapping.object).or_insert(length);
            if *known != length {
                *known = None;
            }
        }
    }

    /// Whether an object is what all its mappings and descriptors lead to when it comes back.
    fn has(&self, mapping: &Mapping) -> bool {
        let in_shared = Some(mapping.device()) == self.shared.device;
        // The file is mapped again by that name.
        let has_name = self.shared.named.contains(&mapping.object);
        let in_memory = mapping.device() == self.own || in_shared && self.shared.is_whole;
        // Whoever makes a semaphore by `sem_open` gets no descriptor of it.
        let alone = !self.in_flight || mapping.path.starts_with("/dev/shm/sem.");
        self.is_available && (self.open.contains(&mapping.object) || has_name || in_memory && alone)
    }
}

/// What is in the way of a line of `/proc/PID/maps`.
pub(super) fn mapping(line: &str, openable: &Openable) -> Option<String> {
    let mapping = Mapping::parse(line)?;
    let path = &*mapping.path;
    let (major, minor, _) = mapping.object;
    let is_harmless = HARMLESS.iter().any(|start| path.starts_with(start));
    let of_memory = (major, minor) == openable.own;
    if mapping.is_system_v() {
        let why = match (of_memory, openable.is_available) {
            (false, _) => Some("it has huge pages"),
            (true, false) => Some("this kernel does not let CRIU save it"),
            (true, true) => openable.placeholders.missing(),
        };
        why.map(|why| format!("System V shared memory: {why}"))
    } else if path.starts_with("/secretmem") {
        Some("secret memory (memfd_secret)".into())
    } else if path.starts_with("anon_inode:[io_uring]") {
        Some(IO_URING.into())
    } else if mapping.is_memfd() {
        let name = path.trim_start_matches("/memfd:").trim_end_matches(" (deleted)");
        let is_kept = of_memory && openable.has(&mapping);
        (!is_kept).then(|| format!("mapping of memfd {name}: {}", lost(of_memory, openable)))
    } else if mapping.is_anonymous() && openable.shared_parts.get(&mapping.object) == Some(&None) {
        Some("shared memory (mmap) of which it has a part: this kernel does not let CRIU save it".into())
    } else if mapping.is_deleted() && openable.has(&mapping) {
        None
    } else if path.starts_with("/dev/shm/") && path.ends_with(" (deleted)") {
        let name = path.trim_end_matches(" (deleted)");
        Some(format!("mapped POSIX shared memory {name}: {}", lost(true, openable)))
    } else if let Some(device) = path.strip_prefix("/dev/").filter(|_| !is_harmless) {
        Some(device_in_the_way(&format!("/dev/{device}"), "memory of the device"))
    } else if mapping.is_deleted() {
        Some(format!("mapped file {path}: it has no name any more"))
    } else {
        None
    }
}

/// What is in the way of what `/proc/PID/smaps` says of mappings: protection keys, and seals.
pub(super) fn marked(smaps: &str) -> BTreeSet<String> {
    let (mut found, mut rights) = (BTreeSet::new(), "");
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            // What can be run and not read has one of the kernel's own.
            Some("ProtectionKey:") if words.next() != Some("0") && !rights.starts_with("--x") => {
                let why =
                    "memory with a protection key (pkey_mprotect), which could not be given to it again";
                found.insert(why.into());
            }
            Some("VmFlags:") if words.any(|flag| flag == "sl") => {
                found.insert("sealed memory (mseal), which could not be sealed again".into());
            }
            Some(range) if !range.ends_with(':') => rights = words.next().unwrap_or_default(),
            _ => {}
        }
    }
    found
}

/// Whether some memory is locked, and not all of it is there.
pub(super) fn is_locked_in_part(smaps: &str) -> bool {
    let (mut size, mut resident, mut is_readable) = (0, 0, false);
    smaps.lines().any(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
        match name {
            "Size:" => size = number(),
            "Rss:" => resident = number(),
            "VmFlags:" => return is_readable && resident < size && words.any(|flag| flag == "lo"),
            range if !range.ends_with(':') => {
                is_readable = words.next().is_some_and(|rights| rights.starts_with('r'))
            }
            _ => {}
        }
        false
    })
}

/// What is in the way of a descriptor of a file whose name is gone, which CRIU would find only when all stand still: it keeps what the file holds
/// up to a limit.
pub(super) fn nameless_file(target: &str, path: &Path) -> Option<String> {
    let name = target
        .strip_suffix(" (deleted)")
        .filter(|name| !name.starts_with("/memfd:") && *name != "/secretmem")?;
    let file = fs::metadata(path).ok()?;
    if file.is_file() && file.nlink() > 0 && !is_there(target, path) {
        return Some(format!(
            "open file {name}: it has no longer this name, but others, which are not known"
        ));
    }
    nameless(&file)?;
    // The kernel counts blocks of 512 bytes.
    let held = file.blocks().saturating_mul(512);
    let (size, limit) = (skiff_output::size(held), skiff_output::size(GHOST_LIMIT.into()));
    (held > GHOST_LIMIT.into()).then(|| {
        format!("open file {name}: it has no name any more, and is kept only up to {limit}; it has {size}")
    })
}

/// Whether the file of a descriptor has a name that ends so itself.
fn is_there(target: &str, path: &Path) -> bool {
    let root = path.parent().and_then(Path::parent).map(|process| process.join("root"));
    root.is_some_and(|root| fs::symlink_metadata(root.join(target.trim_start_matches('/'))).is_ok())
}

/// Why an object that has no name is not kept.
fn lost(has_small_pages: bool, openable: &Openable) -> &'static str {
    let is_hidden = openable.is_available && openable.shared.device.is_some() && !openable.shared.is_whole;
    match (has_small_pages, openable.in_flight) {
        (false, _) => "it has huge pages",
        (true, _) if is_hidden => "whether it has another name cannot be seen",
        (true, true) => "it may be in transit through a socket; try again later",
        (true, false) => "it has no name by which it could be mapped again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_would_come_back_wrong_are_named_and_nothing_else() {
        let shared = NamedFiles { device: Some((0, 0x20)), named: [(0, 0x20, 6)].into(), is_whole: true };
        let all = Openable {
            is_available: true,
            open: [(8, 1, 5)].into(),
            own: (0, 1),
            shared: shared.clone(),
            placeholders: Placeholders::in_dir("/dev/shm"),
            ..Openable::default()
        };
        let flight = Openable { in_flight: true, open: BTreeSet::new(), ..all.clone() };
        let hidden = Openable { shared: NamedFiles { is_whole: false, ..shared }, ..all.clone() };
        let old = Openable { own: (0, 1), ..Openable::default() };
        for (device, path, words) in [
            ("00:01", "/SYSV00000000 (deleted)", [None, None, Some("kernel")]),
            ("00:0e", "/SYSV00000000 (deleted)", [Some("huge"); 3]),
            ("00:01", "/dev/zero (deleted)", [None; 3]),
            ("00:01", "/memfd:name (deleted)", [None, Some("in transit"), Some("name")]),
            ("00:0e", "/memfd:name (deleted)", [Some("huge"); 3]),
            ("00:20", "/dev/shm/sem.x", [None; 3]),
            ("00:20", "/dev/shm/x (deleted)", [None, Some("in transit"), Some("/dev/shm/x")]),
            ("00:05", "/dev/nvidia0", [Some("GPU"); 3]),
            ("08:01", "/usr/lib/libc.so.6", [None; 3]),
            ("08:01", "/tmp/gone.so (deleted)", [None, Some("/tmp/gone.so"), Some("/tmp/gone.so")]),
            ("08:02", "/tmp/gone.so (deleted)", [Some("/tmp/gone.so"); 3]),
            ("00:0f", "anon_inode:[io_uring]", [Some("io_uring"); 3]),
            ("00:00", "[heap]", [None; 3]),
            ("00:00", "", [None; 3]),
        ] {
            let line = format!("7f00-7f01 rw-s 00000000 {device} 5 {path}");
            for (openable, word) in [&all, &flight, &old].into_iter().zip(words) {
                let why = mapping(&line, openable);
                assert_eq!(why.is_some(), word.is_some(), "{path}: {why:?}");
                assert!(why.unwrap_or_default().contains(word.unwrap_or_default()), "{path}");
            }
        }

        // The root takes no changes, and neither does anything in it.
        let covered = Openable { placeholders: Placeholders::default(), ..all.clone() };
        let why = mapping("7f00-7f01 rw-s 0 00:01 5 /SYSV00000000 (deleted)", &covered);
        assert!(why.unwrap_or_default().contains("no directory for the file that stands for it"));

        // One with another name, whatever is under way; one that may have one.
        for (openable, number, word) in
            [(&flight, 6, None), (&hidden, 6, None), (&hidden, 5, Some("another name"))]
        {
            let why = mapping(&format!("7f00-7f01 rw-s 0 00:20 {number} /dev/shm/x (deleted)"), openable);
            assert_eq!(why.is_some(), word.is_some(), "{number}: {why:?}");
            assert!(why.unwrap_or_default().contains(word.unwrap_or_default()));
        }
    }

    #[test]
    fn parts_of_named_files_are_in_the_way_of_an_old_kernel() {
        let line = |number: u32, range: &str| format!("{range} 00:01 {number} /dev/zero (deleted)");
        let lines = [
            line(1, "1000-3000 rw-s 0"),
            line(1, "5000-7000 rw-s 0"),
            line(2, "8000-9000 rw-s 1000"),
            line(3, "a000-c000 rw-s 0"),
            line(3, "d000-e000 rw-s 0"),
        ];
        for (is_available, refused) in [(true, [false; 5]), (false, [false, false, true, true, true])] {
            let mut openable = Openable { is_available, own: (0, 1), ..Openable::default() };
            openable.add_mapped(&lines.join("\n"));
            assert_eq!(lines.each_ref().map(|line| mapping(line, &openable).is_some()), refused);
        }
    }

    #[test]
    fn a_large_file_without_a_name_is_in_the_way() {
        let file = tempfile::tempfile().expect("a file");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        file.set_len(2 * u64::from(GHOST_LIMIT)).expect("longer");
        // It has holes only.
        assert_eq!(nameless_file("/tmp/x (deleted)", Path::new(&path)), None);
        assert_eq!(nameless_file("/tmp/x", Path::new("/nowhere")), None);
    }

    /// As a race in a file system of FUSE leaves it (docs/decisions/038-criu-gets-what-has-no-name.md): the name is there, and the kernel says that it is not.
    #[test]
    fn an_open_file_whose_name_is_said_to_be_gone_is_in_the_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let (name, other) = (dir.path().join("name"), dir.path().join("other"));
        let file = fs::File::create_new(&name).expect("a file");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let why = || {
            let target = fs::read_link(&path).expect("open");
            nameless_file(&target.to_string_lossy(), Path::new(&path))
        };
        assert_eq!(why(), None);
        fs::hard_link(&name, &other).and_then(|()| fs::remove_file(&name)).expect("another name");
        assert!(why().expect("refused").contains("others, which are not known"));
        fs::hard_link(&other, &name).expect("the name again");
        let number = |of: fs::Metadata| (of.dev(), of.ino());
        assert_eq!(number(fs::metadata(&name).expect("there")), number(file.metadata().expect("open")));
        assert!(why().expect("refused").contains(&*name.to_string_lossy()));
    }

    #[test]
    fn keys_and_seals_are_named() {
        let of = |rights: &str, key: u32, flags: &str| {
            marked(&format!(
                "7f00-7f01 {rights} 00000000 00:00 0 \nSize: 4 kB\nProtectionKey: {key}\nVmFlags: {flags}\n"
            ))
        };
        assert_eq!(of("rw-p", 0, "rd wr"), BTreeSet::new());
        assert_eq!(of("--xp", 1, "ex"), BTreeSet::new());
        assert!(
            of("rw-p", 1, "rd").iter().all(|why| why.contains("pkey_mprotect"))
                && of("rw-p", 1, "rd").len() == 1
        );
        assert!(of("r--p", 0, "rd sl").iter().any(|why| why.contains("mseal")));
    }
}
