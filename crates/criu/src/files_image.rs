//! The image `files.img`, which says what open files were; for programs that look at files before they rely on a restore.

use std::collections::HashSet;

use prost::Message;
use rustix::fs::FileType;

/// What each image begins with.
const COMMON: u32 = 0x5456_4319;
/// The type of `files.img`. Source: `criu/include/magic.h`.
const FILES: u32 = 0x5630_3138;
/// The type of `remap-fpath.img`, in the same place.
const REMAPPED: u32 = 0x5913_3954;

/// The part of `file_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Entry {
    #[prost(message, optional, tag = "3")]
    regular: Option<Regular>,
}

/// The part of `reg_file_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Regular {
    #[prost(uint32, required, tag = "1")]
    id: u32,
    #[prost(uint32, required, tag = "2")]
    flags: u32,
    #[prost(uint64, required, tag = "3")]
    position: u64,
    #[prost(string, required, tag = "6")]
    name: String,
    #[prost(uint64, optional, tag = "8")]
    size: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    mode: Option<u32>,
}

/// The part of `remap_file_path_entry` that is wanted here.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Remapped {
    #[prost(uint32, required, tag = "1")]
    id: u32,
}

/// A regular file or directory that processes had open, mapped or as their current directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Path in the root of the processes.
    pub path: String,
    /// Flags that it was opened with, as of `open(2)`.
    pub flags: u32,
    /// Where it is read or written next, in bytes from its beginning.
    pub position: u64,
    /// Length in bytes. Nothing of one that is only appended to: a restore does not compare that.
    pub size: Option<u64>,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// All regular files and directories in `files`, the bytes of a `files.img`. Those that had lost their names, as the
/// bytes of `remap-fpath.img` say if there is one, come back in another way. Nothing if these are no such images.
#[must_use]
pub fn open_files(files: &[u8], remapped: Option<&[u8]>) -> Option<Vec<OpenFile>> {
    let remapped: Vec<Remapped> = remapped.map_or(Some(vec![]), |image| entries(REMAPPED, image))?;
    let nameless: HashSet<u32> = remapped.iter().map(|entry| entry.id).collect();
    let regular = entries::<Entry>(FILES, files)?.into_iter().filter_map(|entry| entry.regular);
    Some(regular.filter(|file| !nameless.contains(&file.id)).filter_map(Regular::opened).collect())
}

/// The entries of an image of this type, each with its length before it.
fn entries<T: Message + Default>(kind: u32, image: &[u8]) -> Option<Vec<T>> {
    let head: Vec<u8> = [COMMON, kind].iter().flat_map(|number| number.to_ne_bytes()).collect();
    let mut rest = image.strip_prefix(&head[..])?;
    let mut found = vec![];
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (body, behind) = behind.split_at_checked(usize::try_from(u32::from_ne_bytes(*length)).ok()?)?;
        found.push(T::decode(body).ok()?);
        rest = behind;
    }
    Some(found)
}

impl Regular {
    fn opened(self) -> Option<OpenFile> {
        let Self { id: _, flags, position, name, size, mode } = self;
        let kind = FileType::from_raw_mode(mode?);
        let is_directory = kind == FileType::Directory;
        let size = size.filter(|_| !is_directory);
        let file = OpenFile { path: name, flags, position, size, is_directory };
        (is_directory || kind == FileType::RegularFile).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image<T: Message>(kind: u32, entries: &[T]) -> Vec<u8> {
        let mut image: Vec<u8> = [COMMON, kind].iter().flat_map(|number| number.to_ne_bytes()).collect();
        for entry in entries {
            image.extend(u32::try_from(entry.encoded_len()).expect("short").to_ne_bytes());
            image.extend(entry.encode_to_vec());
        }
        image
    }

    #[test]
    fn files_with_names_are_found_and_nothing_in_what_is_no_image() {
        let file = |id, name: &str, size, mode| Entry {
            regular: Some(Regular { id, flags: 2, position: 5, name: name.into(), size, mode: Some(mode) }),
        };
        let all = [
            file(1, "/home/alice/log", Some(7), 0o100_644),
            Entry { regular: None },
            file(2, "/tmp/gone", Some(1), 0o100_600),
            file(3, "/dev/null", None, 0o20_666),
            file(4, "/home/alice", Some(4096), 0o40_755),
        ];
        let (files, gone) = (image(FILES, &all), image(REMAPPED, &[Remapped { id: 2 }]));
        let open = |path: &str, size: Option<u64>| OpenFile {
            path: path.into(),
            flags: 2,
            position: 5,
            size,
            is_directory: size.is_none(),
        };
        let wanted = vec![open("/home/alice/log", Some(7)), open("/home/alice", None)];
        assert_eq!(open_files(&files, Some(&gone)), Some(wanted));
        assert_eq!(open_files(&files, None).map(|found| found.len()), Some(3));
        assert_eq!(open_files(&files[..files.len() - 1], None), None);
        assert_eq!(open_files(&gone, None), None);
        assert_eq!(open_files(&files, Some(b"something else")), None);
    }
}
