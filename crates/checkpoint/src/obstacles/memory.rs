//! Memory that cannot be saved.
//!
//! CRIU without the host's rights may not follow `/proc/PID/map_files`, so it does not know the object behind a mapping of a memfd: it takes a
//! shared one for anonymous shared memory, and the untouched pages of a private one for zeros.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::descriptors::{IO_URING, device_in_the_way};

/// The objects behind descriptors, by their numbers.
pub(super) type Inodes = BTreeSet<u64>;

/// How the link of a memfd's descriptor, and a line of its mapping, begin.
const MEMFD: &str = "/memfd:";
/// Nothing of these is a device, or a file that must be found again.
const HARMLESS: [&str; 3] = ["/dev/zero", "/dev/shm/", MEMFD];

/// The object of a descriptor, if that is a memfd.
pub(super) fn memfd(link: &str, descriptor: &Path) -> Option<u64> {
    link.starts_with(MEMFD).then(|| descriptor.metadata().ok())?.map(|file| file.ino())
}

/// What is in the way of a line of `/proc/PID/maps`. `open` are the memfds that any process has open.
pub(super) fn mapping(line: &str, open: &Inodes) -> Option<String> {
    let words: Vec<&str> = line.splitn(6, ' ').collect();
    let path = words.get(5)?.trim_start();
    let is_shared = words.get(1)?.ends_with('s');
    let is_harmless = HARMLESS.iter().any(|start| path.starts_with(start));
    if path.starts_with("/SYSV") {
        Some("System V shared memory; POSIX shared memory and mmap can be saved".into())
    } else if path.starts_with("/secretmem") {
        Some("secret memory (memfd_secret)".into())
    } else if path.starts_with("anon_inode:[io_uring]") {
        Some(IO_URING.into())
    } else if let Some(name) = path.strip_prefix(MEMFD) {
        let name = name.trim_end_matches(" (deleted)");
        let is_open = words.get(4)?.parse().is_ok_and(|inode| open.contains(&inode));
        if !is_shared {
            Some(format!(
                "private mapping of memfd {name}: its pages without changes would come back as zeros"
            ))
        } else {
            is_open.then(|| {
                format!("shared mapping of memfd {name}, which is also open: mapping and descriptor would no longer be one")
            })
        }
    } else if path.starts_with("/dev/shm/") && path.ends_with(" (deleted)") {
        let name = path.trim_end_matches(" (deleted)");
        Some(format!("mapped POSIX shared memory {name}: it has no name any more"))
    } else if let Some(device) = path.strip_prefix("/dev/").filter(|_| !is_harmless) {
        Some(device_in_the_way(&format!("/dev/{device}"), "memory of the device"))
    } else if path.starts_with('/') && path.ends_with(" (deleted)") && !is_harmless {
        Some(format!("mapped file {path}: it has no name any more"))
    } else {
        None
    }
}

/// What is in the way of a line of `/proc/PID/numa_maps`.
pub(super) fn policy(line: &str) -> Option<String> {
    // As `set_mempolicy` and `mbind` name them. (`prefer` may be the kernel's own for one node.)
    let named = line.split(' ').nth(1)?;
    let is_set =
        ["bind", "interleave", "prefer", "local", "weighted"].iter().any(|kind| named.starts_with(kind));
    is_set.then(|| "a NUMA memory policy, which could not be set again".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_would_come_back_wrong_are_named_and_nothing_else() {
        for (mode, path, word) in [
            ("rw-p", "/SYSV00000000 (deleted)", Some("System V")),
            ("rw-s", "/dev/zero (deleted)", None),
            ("rw-s", "/memfd:closed (deleted)", None),
            ("rw-p", "/memfd:private (deleted)", Some("zeros")),
            ("rw-p", "/dev/shm/sem.x", None),
            ("rw-s", "/dev/shm/sem.x (deleted)", Some("/dev/shm/sem.x")),
            ("rw-p", "/dev/nvidia0", Some("GPU")),
            ("rw-p", "/usr/lib/libc.so.6", None),
            ("rw-p", "/tmp/gone.so (deleted)", Some("/tmp/gone.so")),
            ("rw-p", "anon_inode:[io_uring]", Some("io_uring")),
            ("rw-p", "[heap]", None),
            ("rw-p", "", None),
        ] {
            let line = format!("7f00-7f01 {mode} 00000000 00:01 5 {path}");
            let why = mapping(&line, &Inodes::new());
            assert_eq!(why.is_some(), word.is_some(), "{path}: {why:?}");
            assert!(why.unwrap_or_default().contains(word.unwrap_or_default()), "{path}");
        }
        let line = "7f00-7f01 rw-s 00000000 00:01 5 /memfd:open (deleted)";
        assert_eq!(mapping(line, &Inodes::from([6])), None);
        assert!(mapping(line, &Inodes::from([5])).is_some_and(|why| why.contains("also open")));
    }

    #[test]
    fn memory_policies_are_named() {
        assert_eq!(policy("7f00 default file=/lib/libc.so mapped=3 N0=3"), None);
        assert_eq!(policy("7f00"), None);
        for kind in ["bind:0", "bind=static:0", "interleave:0-1", "prefer:1", "local"] {
            assert!(policy(&format!("7f00 {kind} anon=1")).is_some(), "{kind}");
        }
    }
}
