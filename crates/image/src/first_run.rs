//! The first run of an image reads from a file whose data left memory when it was written (`uncached.rs`). What nearly every program
//! reads when it starts, a few megabytes, is brought back at the end of a pull, so that nobody waits for it.

use std::os::fd::BorrowedFd;

use rustix::fs::{Advice, fadvise};
use skiff_erofs::{InodeKind, ReadAt, Reader, StoredInode};
use skiff_sys::IgnoreError;

use crate::Result;

/// Where the loader and the C library are; in directories of a machine's kind below these too (`x86_64-linux-gnu`).
const LIBRARIES: [&[u8]; 4] = [b"lib", b"lib64", b"usr/lib", b"usr/lib64"];
const PROGRAMS: [&[u8]; 2] = [b"bin", b"usr/bin"];
/// How their files' names begin: glibc's, musl's, and what shells need besides.
const LIBRARY_NAMES: [&[u8]; 6] = [b"ld-", b"libc.so", b"libc-", b"libc.musl", b"libtinfo.so", b"libm.so"];
const PROGRAM_NAMES: [&[u8]; 6] = [b"sh", b"bash", b"dash", b"busybox", b"env", b"true"];
/// Directories, and names in them, that every start mounts something on or looks for.
const PLACES: [(&[u8], &[&[u8]]); 3] = [
    (
        b"",
        &[
            b"bin", b"dev", b"etc", b"home", b"opt", b"proc", b"root", b"run", b"srv", b"sys", b"tmp",
            b"usr", b"var",
        ],
    ),
    (
        b"etc",
        &[
            b"group",
            b"hosts",
            b"ld.so.cache",
            b"ld.so.preload",
            b"localtime",
            b"nsswitch.conf",
            b"passwd",
            b"resolv.conf",
        ],
    ),
    (b"var", &[b"run", b"spool", b"tmp"]),
];
/// A larger file is none of these.
const LARGEST: u64 = 16 << 20;

/// Has the kernel read what a first run will want. `file` is the image's.
///
/// # Errors
/// The image cannot be read, or is damaged.
pub fn prepare<S: ReadAt>(reader: &Reader<S>, file: BorrowedFd<'_>) -> Result<()> {
    find_places(reader)?;
    for inode in wanted(reader)? {
        for extent in reader.extents(&inode) {
            let extent = extent?;
            if let (Some(place), Some(length)) = (extent.place, std::num::NonZeroU64::new(extent.length)) {
                fadvise(file, place, Some(length), Advice::WillNeed)
                    .ignore_error("where advice is not taken, the first run is slower; that is all");
            }
        }
    }
    Ok(())
}

/// To find them is to have the kernel read what the image says of them, there or not.
fn find_places<S: ReadAt>(reader: &Reader<S>) -> Result<()> {
    for (path, names) in PLACES {
        if let Some(directory) = directory(reader, path)? {
            reader.children(&directory, |name| names.contains(&name))?;
        }
    }
    Ok(())
}

fn wanted<S: ReadAt>(reader: &Reader<S>) -> Result<Vec<StoredInode>> {
    let mut wanted = vec![];
    for path in LIBRARIES {
        let Some(directory) = directory(reader, path)? else { continue };
        let of_machines =
            reader.children(&directory, |name| name.windows(6).any(|part| part == b"-linux"))?;
        let of_machines = of_machines.into_iter().filter(|child| child.kind == InodeKind::Directory);
        for directory in std::iter::once(directory).chain(of_machines) {
            let is_one = |name: &[u8]| LIBRARY_NAMES.iter().any(|begin| name.starts_with(begin));
            wanted.extend(reader.children(&directory, is_one)?);
        }
    }
    for path in PROGRAMS {
        if let Some(directory) = directory(reader, path)? {
            wanted.extend(reader.children(&directory, |name| PROGRAM_NAMES.contains(&name))?);
        }
    }
    wanted.retain(|inode| inode.kind == InodeKind::File && inode.size <= LARGEST);
    Ok(wanted)
}

/// The directory of this path, if there is one on which no link lies: behind a link are files that have another path too.
fn directory<S: ReadAt>(reader: &Reader<S>, path: &[u8]) -> Result<Option<StoredInode>> {
    let mut inode = reader.root()?;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        match reader.children(&inode, |name| name == part)?.first() {
            Some(next) if next.kind == InodeKind::Directory => inode = *next,
            _ => return Ok(None),
        }
    }
    Ok(Some(inode))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;
    use crate::assemble::{AssemblyJob, AssemblyProgress, ImageLimits, assemble};
    use crate::blob::FileBlob;
    use skiff_tar::build::{RawEntry, archive};

    /// Files of so many bytes.
    fn image_of(files: &[(&str, usize)]) -> Reader<File> {
        let mut entries: Vec<RawEntry> =
            files.iter().map(|(name, size)| RawEntry::file(name, vec![7; *size])).collect();
        entries.push(RawEntry::symlink("lib64", "usr/lib64"));
        entries.push(RawEntry::symlink("bin/sh", "dash"));
        let (mut layer, image, dir) =
            (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap(), tempfile::tempdir().unwrap());
        layer.write_all(&archive(&entries)).unwrap();
        let (blob, scratch) = (FileBlob::new(layer, "layer", None).unwrap(), File::open(dir.path()).unwrap());
        let (image_fd, scratch_fd) = (image.as_fd(), scratch.as_fd());
        let (limits, threads) = (ImageLimits::default(), 1);
        let job = AssemblyJob {
            blobs: &[&blob],
            image: image_fd,
            name: "image",
            scratch: scratch_fd,
            scratch_name: "scratch",
            limits,
            threads,
            room: &|_| true,
            keeps_whiteouts: false,
        };
        assemble(&job, &AssemblyProgress::new(1)).unwrap();
        Reader::open(image, "image").unwrap()
    }

    #[test]
    fn the_loader_the_library_and_the_shell_are_wanted_once() {
        let reader = image_of(&[
            ("bin/dash", 5001),
            ("bin/large", 5002),
            ("lib/modules/libc.so.6", 5003),
            ("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", 5004),
            ("lib/x86_64-linux-gnu/libc.so.6", 5005),
            ("lib/x86_64-linux-gnu/libclang.so", 5006),
            ("usr/lib64/libtinfo.so.6", 5007),
            ("usr/lib/libc-2.31.so", 1),
        ]);
        let mut sizes: Vec<u64> = wanted(&reader).unwrap().iter().map(|inode| inode.size).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 5001, 5004, 5005, 5007]);
        let any = tempfile::tempfile().unwrap();
        prepare(&reader, any.as_fd()).unwrap();
        assert!(directory(&reader, b"").unwrap().is_some() && directory(&reader, b"etc").unwrap().is_none());
    }

    #[test]
    fn an_image_of_one_program_has_none_of_them() {
        assert!(wanted(&image_of(&[("program", 9000)])).unwrap().is_empty());
    }
}
