//! The changes of an environment as one file, for another site.
//!
//! ```text
//! file = frame* list about tail                             numbers little-endian
//! list = the chunks of one layer (`chunk`), whose only pack is this file
//! about = JSON: what the layer is, and what the base was
//! tail = list:u64 about:u64 digest:[u8; 32] version:u32 "SKIFFENV"       two lengths; BLAKE3 of `about`
//! ```
//!
//! The layer holds all of the upper, as a full snapshot does.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::base::BaseRoot;
use crate::chunk::{ChunkList, ChunkReader, ChunkWriter, ListReadFault, MAX_LIST, PackSource};
use crate::digest::{LayerId, PackId};
use crate::error::{Error, Result};
use crate::layer::{LayerReader, LayerWriter, expect, pack, unpack_at_most};
use crate::plan::{full, take_out_unshippable};
use crate::room::{DiskRoom, free_bytes};
use crate::snapshot::TRIES;
use crate::walk::walk;
use skiff_sys::error::show;
use skiff_sys::positional::write_all_at;
use skiff_sys::{SystemContext, SystemError};

const MAGIC: &[u8; 8] = b"SKIFFENV";
const VERSION: u32 = 1;
const TAIL: usize = 8 + 8 + 32 + 4 + 8;
/// The longest `about` that is read: it may hold lists of packages.
const MAX_ABOUT: u64 = 256 << 20;
/// So many names a map in it has at most: no version has written more than five.
const MAX_NAMES: usize = 64;
/// Files that are so many times as long as the exported one get only this part of the free room: the same chunk comes again and again, as in a disk
/// image of zeros, or in what a stranger has made to fill disks.
const LARGE_GROWTH: u64 = 1000;
const PART_OF_ROOM: u64 = 8;
/// A file that has fewer bytes for each of the files in it gets only that part of the free inodes: empty files of the same names, again and again,
/// have about one.
const FEW_BYTES: u64 = 16;
/// A file is its only pack itself.
const ONLY_PACK: u32 = 1;

/// What is exported, beside the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleInfo {
    /// The environment's name.
    pub environment: String,
    /// What the base was, as the caller describes it.
    #[serde(deserialize_with = "few_names")]
    pub base: BTreeMap<String, String>,
    /// When it was exported, in seconds since 1970.
    pub created: u64,
    /// What else the caller keeps, by names of its own.
    #[serde(deserialize_with = "few_names")]
    pub texts: BTreeMap<String, String>,
}

/// Reads a map of a stranger's. What the names of a map take beside their texts would otherwise be many times as long as the file.
fn few_names<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<BTreeMap<String, String>, D::Error> {
    struct FewNames;
    impl<'de> Visitor<'de> for FewNames {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a map of at most {MAX_NAMES} names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
            let mut read = BTreeMap::new();
            while let Some((name, text)) = map.next_entry()? {
                if read.len() == MAX_NAMES || read.insert(name, text).is_some() {
                    return Err(A::Error::custom("it names too much, or something twice"));
                }
            }
            Ok(read)
        }
    }
    from.deserialize_map(FewNames)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    layer: LayerId,
    info: BundleInfo,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundled {
    /// Files, directories and what else has a name.
    pub entries: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Paths that it does not hold: sockets and devices.
    pub skipped: Vec<Vec<u8>>,
}

/// Whether a file ends as an exported environment does.
#[must_use]
pub fn is_bundle(file: &File) -> bool {
    let mut end = [0; MAGIC.len()];
    let at = file.metadata().ok().and_then(|about| about.len().checked_sub(MAGIC.len() as u64));
    at.is_some_and(|at| file.read_exact_at(&mut end, at).is_ok() && &end == MAGIC)
}

/// Writes all of an upper, over this base, to `file`, which is empty and called `name` in errors. It may be in use, as for a snapshot. Runs
/// inside the environment's user namespace.
pub fn bundle(
    upper: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
    (file, name): (BorrowedFd<'_>, &str),
    info: &BundleInfo,
) -> Result<Bundled> {
    for _ in 0..TRIES {
        match attempt(upper, base, (file, name), info) {
            Err(Error::Moved { .. }) => {
                rustix::fs::ftruncate(file, 0).on("truncate", name)?;
            }
            other => return other,
        }
    }
    Err(Error::Busy { object: info.environment.clone(), tries: TRIES })
}

fn attempt(
    upper: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
    (file, name): (BorrowedFd<'_>, &str),
    info: &BundleInfo,
) -> Result<Bundled> {
    let mut nodes = walk(upper)?;
    let skipped = take_out_unshippable(&mut nodes, BaseRoot(base))?;
    let own = file.try_clone_to_owned().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE));
    let chunks = ChunkWriter::new(own.on("open again", name)?, name.as_bytes().to_vec(), vec![])?;
    let mut writer = LayerWriter::new(chunks)?;
    pack(upper, &full(&nodes), &mut nodes, &mut writer)?;
    let finished = writer.finish()?;
    let written = finished.sink.finish()?;
    let length = written.pack.map_or(0, |(_, _, length)| length);
    let list = written.list.bytes();
    let about = About { layer: finished.id, info: info.clone() };
    let about = serde_json::to_vec(&about).map_err(|_| Errno::INVAL).on("write to", name)?;
    let digest = blake3::hash(&about);
    let tail = [
        &(list.len() as u64).to_le_bytes()[..],
        &(about.len() as u64).to_le_bytes(),
        digest.as_bytes(),
        &VERSION.to_le_bytes(),
        MAGIC,
    ];
    let end = [&list[..], &about, &tail.concat()].concat();
    write_all_at(file, &end, length).on("write to", name)?;
    Ok(Bundled { entries: finished.entries, bytes: length + end.len() as u64, skipped })
}

/// An exported environment.
#[derive(Debug)]
pub struct Bundle {
    file: File,
    name: String,
    list: ChunkList,
    about: About,
}

impl fmt::Debug for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

impl Bundle {
    /// Opens one; `name` is for messages.
    pub fn open(file: OwnedFd, name: &str) -> Result<Bundle> {
        let file = File::from(file);
        let bad = |why: &str| Error::BadLayer { layer: name.into(), why: why.into() };
        let io =
            |e: std::io::Error| SystemError::new("read", name, Errno::from_io_error(&e).unwrap_or(Errno::IO));
        let length = rustix::fs::fstat(&file).on("look at", name)?.st_size.cast_unsigned();
        let tail_at =
            length.checked_sub(TAIL as u64).ok_or_else(|| bad("it is not an exported environment"))?;
        let mut tail = [0; TAIL];
        file.read_exact_at(&mut tail, tail_at).map_err(io)?;
        let mut rest = &tail[..];
        let [list, about] = [long(&mut rest), long(&mut rest)];
        let (digest, rest) = rest.split_at(32);
        if rest.get(4..) != Some(MAGIC) {
            return Err(bad("it is not an exported environment"));
        }
        let version = u32::from_le_bytes(rest.first_chunk().copied().unwrap_or_default());
        if version != VERSION {
            return Err(Error::OtherVersion { layer: name.into(), version });
        }
        let begin = about.checked_add(list).and_then(|both| tail_at.checked_sub(both));
        let begin =
            begin.filter(|_| list <= MAX_LIST && about <= MAX_ABOUT).ok_or_else(|| bad("it is cut off"))?;
        // Both lengths are the file's word, and it may have holes: nothing is kept that has not been looked at.
        let about = || PartOfFile { file: &file, at: begin + list }.take(about);
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(about()).map_err(io)?;
        if hasher.finalize().as_bytes() != digest {
            return Err(bad("what it says of itself has another digest"));
        }
        let about = serde_json::from_reader(BufReader::new(about())).map_err(|e| bad(&e.to_string()))?;
        let list = ChunkList::read(PartOfFile { file: &file, at: begin }, list, ONLY_PACK);
        let list = list.map_err(|fault| match fault {
            ListReadFault::Io(e) => io(e).into(),
            ListReadFault::List(fault) => fault.of(name.into()),
        })?;
        Ok(Bundle { file, name: name.into(), list, about })
    }

    /// What it says of itself.
    pub fn info(&self) -> &BundleInfo {
        &self.about.info
    }

    /// Unpacks it into `target`, an empty directory of the caller's, if there is room. What is there after an error is not to be used. Runs
    /// inside the environment's user namespace.
    pub fn unpack(&self, target: BorrowedFd<'_>) -> Result<()> {
        let size = rustix::fs::fstat(&self.file).on("look at", &*self.name)?.st_size.cast_unsigned();
        let free = free_bytes(target).on("look at the room for", &*self.name)?;
        check_length(&self.name, self.list.length(), (size, free))?;
        let source = ChunkReader::new(self, None, self.about.layer, self.list.clone())?;
        let before = DiskRoom::of(target);
        let disk = rustix::fs::fstatvfs(target).on("look at the room for", &*self.name)?;
        let free_inodes = (disk.f_files > 0).then_some(disk.f_favail);
        let most = most_entries(size, free_inodes);
        let done = unpack_at_most(LayerReader::new(source, self.name.clone())?, target, most)
            .map_err(|e| before.explain(e, self.list.length()))?;
        let done = done.ok_or_else(|| Error::BadLayer {
            layer: self.name.clone(),
            why: format!(
                "it has less than {FEW_BYTES} bytes for each of its files, and more than {most} files, which is 1/{PART_OF_ROOM} of those that the disk has room for"
            ),
        })?;
        expect(&done, &self.about.layer)
    }
}

/// Refuses an environment whose files are longer than the free room, or than a part of it if they are far longer than the exported file. All that is
/// known before the first byte is written.
fn check_length(name: &str, length: u64, (size, free): (u64, Option<u64>)) -> Result<()> {
    // A disk that does not know how large it is has room.
    let Some(free) = free else { return Ok(()) };
    if length > free {
        return Err(Error::NoRoomFor { object: name.into(), needed: length, free });
    }
    if length > size.saturating_mul(LARGE_GROWTH) && length > free / PART_OF_ROOM {
        let why = format!(
            "its files are more than {LARGE_GROWTH} times as long as it is, and need more than 1/{PART_OF_ROOM} of the free room"
        );
        return Err(Error::BadLayer { layer: name.into(), why });
    }
    Ok(())
}

/// How many files there may be in an exported file of `size` bytes. How many there are shows as they come. A file system that does not say how many
/// more it can have has room.
fn most_entries(size: u64, free_inodes: Option<u64>) -> u64 {
    free_inodes.map_or(u64::MAX, |free| (free / PART_OF_ROOM).max(size / FEW_BYTES))
}

/// A file's bytes from somewhere on.
struct PartOfFile<'a> {
    file: &'a File,
    at: u64,
}

impl Read for PartOfFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl PackSource for Bundle {
    fn open_pack(&self, _pack: &PackId) -> Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.file.as_fd(), 0)
            .on("open again", show(self.name.as_bytes()))?)
    }
}

fn long(rest: &mut &[u8]) -> u64 {
    let (head, tail) = rest.split_first_chunk().map_or(([0; 8], &[][..]), |(head, tail)| (*head, tail));
    *rest = tail;
    u64::from_le_bytes(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_the_room_is_not_unpacked() {
        const GIB: u64 = 1 << 30;
        let told = |length, size, free| check_length("file", length, (size, free)).map_err(|e| e.to_string());
        for (length, size, free) in [
            (0, 0, Some(0)),
            (2 * GIB, 1_000_000, Some(16 * GIB)),
            (999 * GIB, GIB, Some(999 * GIB)),
            (GIB, 9, None),
        ] {
            assert_eq!(told(length, size, free), Ok(()), "{length}");
        }
        let growth = told(3 * GIB, 1_260_000, Some(16 * GIB)).expect_err("too long");
        assert!(growth.contains("more than 1000 times as long"), "{growth}");
        let room = told(3 * GIB, GIB, Some(2 * GIB)).expect_err("no room");
        assert_eq!(room, "file: its files take 3.0 GiB, and the disk for them has 2.0 GiB free");
    }

    #[test]
    fn a_small_file_of_very_many_files_gets_a_part_of_the_inodes() {
        for (size, free, most) in [
            (120_000, Some(15_000_000), 1_875_000),
            (19_000_000, Some(15_000_000), 1_875_000),
            (1 << 30, Some(15_000_000), 1 << 26),
            (1600, Some(0), 100),
            (120_000, None, u64::MAX),
        ] {
            assert_eq!(most_entries(size, free), most, "{size} {free:?}");
        }
    }
}
