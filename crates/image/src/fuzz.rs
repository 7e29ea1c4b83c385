//! The parsers of what layers, archives and other file systems say, for fuzzing: each takes any bytes, tells whether they were
//! taken, and panics where what must hold of what was taken does not.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::MemfdFlags;
use skiff_erofs::tree::{Content, FileKind, Tree};
use skiff_oci::platform::Platform;
use skiff_tar::fuzz::with_checksums;
use skiff_tar::{EntryKind, TarReader};

use crate::assemble::ImageLimits;
use crate::convert::{ConversionJob, convert};
use crate::layer_entries::LayerEntries;
use crate::merge::Merger;
use crate::sif;
use crate::squashfs::Squashfs;
use crate::trailer;
use crate::transport::{self, Archive, FilePart, ImageLayout};

/// Layers, as tar streams one behind the other, each after its length in 512-byte records (two bytes, the lower first). Their
/// files' data is left out.
pub fn layers(mut bytes: &[u8]) -> bool {
    let mut merger = Merger::new(false, ImageLimits::default().entries);
    while let [low, high, rest @ ..] = bytes {
        let len = usize::from(u16::from_le_bytes([*low, *high])) * 512;
        let (layer, rest) = rest.split_at(len.min(rest.len()));
        let merged = records(layer).is_some_and(|records| merger.apply(records).is_ok());
        if !merged {
            return false;
        }
        bytes = rest;
    }
    check(&merger.finish());
    true
}

fn records(layer: &[u8]) -> Option<LayerEntries> {
    let layer = with_checksums(layer);
    let mut reader = TarReader::new(&layer[..]);
    let mut records = LayerEntries::default();
    while let Some(entry) = reader.next_entry().ok()? {
        crate::layer::note(&mut records, entry, false, |kind| match kind {
            EntryKind::File(size) | EntryKind::Sparse { size, .. } => {
                Ok(Content::Whole { size, block: 0, tail: 0 })
            }
            kind => unreachable!("{kind:?} has no data"),
        })
        .ok()?;
    }
    Some(records)
}

/// Each inode has as many names as lead to it, and each directory one.
fn check(tree: &Tree) {
    let mut names = vec![0; tree.len()];
    let mut ahead = vec![Tree::ROOT];
    while let Some(id) = ahead.pop() {
        names[id.0 as usize] += 1;
        if let FileKind::Directory(children) = &tree.inode(id).kind {
            assert_eq!(names[id.0 as usize], 1, "a directory with two parents");
            assert!(
                children.keys().all(|name| !name.is_empty() && !name.contains(&b'/') && **name != *b"..")
            );
            ahead.extend(children.values());
        }
    }
    let counted = tree.inodes().map(|inode| inode.names);
    assert!(names.into_iter().eq(counted), "names are not as counted");
}

/// An archive of an image, of either kind.
pub fn archive(bytes: &[u8]) -> bool {
    let (Some(part), Some(room)) = (part(&with_checksums(bytes)), room()) else { return false };
    let Ok(archive) = Archive::open(part, room.as_fd(), "room") else { return false };
    let platform = Platform::linux("amd64", None);
    let open = |layout: ImageLayout<'_>| transport::open(&archive, &layout, &platform).is_ok();
    open(ImageLayout::Docker(None)) | open(ImageLayout::Oci(None))
}

/// A file in Apptainer's format.
pub fn sif(bytes: &[u8]) -> bool {
    let Some(sif) = part(bytes).and_then(|part| sif::open(&part).ok()) else { return false };
    let end = sif.squashfs.offset + sif.squashfs.size;
    assert!(end <= bytes.len() as u64, "a partition beyond the file");
    converted(sif.squashfs)
}

/// A file system with an image's configuration behind it.
pub fn trailer(bytes: &[u8]) -> bool {
    let Some(whole) = part(bytes) else { return false };
    let Ok((file_system, config)) = trailer::split(&whole) else { return false };
    assert!(file_system.offset == whole.offset && file_system.size <= whole.size, "a part of the file");
    let Some(config) = config else {
        assert_eq!(file_system.size, whole.size, "a file without a configuration is the file system");
        return true;
    };
    // What was taken is written again as it was, where it then lies.
    let Some(again) = memory() else { return false };
    let beginning = &bytes[..file_system.size as usize];
    let written = std::io::Write::write_all(&mut &again, beginning);
    if written.is_err() || trailer::append(&again, "fuzzed", &config).is_err() {
        return false;
    }
    let again = FilePart::whole(again, "fuzzed".into()).expect("it is a file");
    let (_, taken) = trailer::split(&again).expect("what was written can be read");
    assert_eq!(taken, Some(config));
    true
}

/// A squashfs file.
pub fn squashfs(bytes: &[u8]) -> bool {
    part(bytes).is_some_and(converted)
}

/// What comes of a squashfs file is an image that can be verified.
fn converted(part: FilePart) -> bool {
    let Ok(squashfs) = Squashfs::open(part) else { return false };
    let (Some(image), Some(room)) = (memory(), room()) else { return false };
    let limits = ImageLimits { bytes: 16 << 20, entries: 2000, texts: 16 << 20 };
    let mut watch = |_| true;
    let (image_fd, scratch) = (image.as_fd(), room.as_fd());
    let job = ConversionJob {
        image: image_fd,
        name: "image",
        source: "fuzzed",
        scratch,
        scratch_name: "room",
        limits,
        watch: &mut watch,
        room: &|_| true,
    };
    if convert(&squashfs, job).is_err() {
        return false;
    }
    let reader = skiff_erofs::Reader::open(image, "image").expect("what was written can be opened");
    skiff_erofs::verify(&reader).expect("what was written is sound");
    true
}

fn memory() -> Option<File> {
    rustix::fs::memfd_create("fuzzed", MemfdFlags::CLOEXEC).map(File::from).ok()
}

fn part(bytes: &[u8]) -> Option<FilePart> {
    let mut file = memory()?;
    std::io::Write::write_all(&mut file, bytes).ok()?;
    FilePart::whole(file, "fuzzed".into()).ok()
}

/// In memory where there is some.
fn room() -> Option<File> {
    File::open("/dev/shm").or_else(|_| File::open(std::env::temp_dir())).ok()
}
