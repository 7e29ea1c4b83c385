//! Whether a root's glibc is as new as the host's libraries need. Of the root's files only bounded pieces are read.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use skiff_cdi::{ElfFacts, GlibcVersion};
use skiff_spec::device::NeededGlibc;
use skiff_spec::fault::{Context, Fault, Result};

use crate::mounts::open_in_root;

/// Where systems have glibc.
const GLIBC: [&str; 7] = [
    "lib/x86_64-linux-gnu/libc.so.6",
    "lib/aarch64-linux-gnu/libc.so.6",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/aarch64-linux-gnu/libc.so.6",
    "lib64/libc.so.6",
    "usr/lib64/libc.so.6",
    "lib/libc.so.6",
];
/// Where systems have musl's linker, which is its library.
const MUSL: [&str; 2] = ["lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"];

/// A file of the root's; nothing if there is none that could be it.
pub(crate) fn open(root: BorrowedFd<'_>, path: &Path) -> Result<Option<File>> {
    let shown = || path.display().to_string();
    match open_in_root(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
        Ok(file) => {
            let kind = FileType::from_raw_mode(fstat(&file).context(shown)?.st_mode);
            Ok((kind == FileType::RegularFile).then(|| File::from(file)))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NXIO) => Ok(None),
        Err(e) => Err(e).context(shown),
    }
}

/// Refuses a root whose glibc is older than the driver's libraries need: they would fail when a program is in the middle of its work.
pub(crate) fn check(root: BorrowedFd<'_>, needed: &NeededGlibc) -> Result<()> {
    let NeededGlibc { version: [major, minor], library, optional: _ } = needed;
    let needs = GlibcVersion(*major, *minor);
    for path in GLIBC {
        let Some(file) = open(root, Path::new(path))? else { continue };
        return match ElfFacts::of(&file).and_then(|elf| elf.has) {
            Some(has) if has < needs => Err(Fault::new(format!(
                "{library}: needs glibc {needs}, and this root has glibc {has}"
            ))
            .hint("run it in an image of a newer system: Debian 12 has glibc 2.36, Ubuntu 24.04 has 2.39")),
            _ => Ok(()),
        };
    }
    for path in MUSL {
        if open(root, Path::new(path))?.is_some() {
            return Err(Fault::new(format!(
                "{library}: needs glibc {needs}, and this root has musl in its place"
            ))
            .hint("drivers are made for glibc: run it in an image of Debian, Ubuntu or a RHEL clone"));
        }
    }
    // Nothing in it looks for libraries.
    Ok(())
}
