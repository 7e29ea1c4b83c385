//! The image `files.img`, which says what open files were; for programs that look at files before they rely on a restore.

use std::collections::HashSet;

use prost::Message;
use rustix::fs::FileType;

use crate::image_format::{self, entries};
use crate::message_fields::{append, content, fields};

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

/// The field of `file_entry` that is a Unix socket, a `unix_sk_entry`.
const SOCKET: u32 = 16;
/// Of that, owner and mode of the file that has its name.
const RIGHTS: u32 = 13;

/// The part of `unix_sk_entry` that is wanted here.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct UnixSocket {
    #[prost(bool, optional, tag = "15")]
    deleted: Option<bool>,
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
    /// Type and permissions, as of `stat(2)`: a restore compares them.
    pub mode: u32,
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

/// The same image without owner and mode of Unix sockets whose names were deleted. Where CRIU cannot ask the kernel for the file (`SIOCUNIXFILE`), it
/// writes what happens to be in its memory (`unix_resolve_name_old`), and a restore fails if that is not a user. Nothing if `image` is not such an image.
#[must_use]
pub fn without_rights_of_deleted_sockets(image: &[u8]) -> Option<Vec<u8>> {
    let mut edited = image_format::empty(FILES);
    for entry in image_format::entry_bytes(FILES, image)? {
        let mut body = vec![];
        for (number, field) in fields(entry)? {
            match number {
                SOCKET => append(&mut body, SOCKET, &without_rights_if_deleted(content(field)?)?),
                _ => body.extend(field),
            }
        }
        image_format::append(&mut edited, &body);
    }
    Some(edited)
}

fn without_rights_if_deleted(socket: &[u8]) -> Option<Vec<u8>> {
    if UnixSocket::decode(socket).ok()?.deleted != Some(true) {
        return Some(socket.to_vec());
    }
    let kept = fields(socket)?.into_iter().filter(|(number, _)| *number != RIGHTS);
    Some(kept.flat_map(|(_, field)| field).copied().collect())
}

impl Regular {
    fn opened(self) -> Option<OpenFile> {
        let Self { id: _, flags, position, name, size, mode } = self;
        let mode = mode?;
        let kind = FileType::from_raw_mode(mode);
        let is_directory = kind == FileType::Directory;
        let size = size.filter(|_| !is_directory);
        let file = OpenFile { path: name, flags, position, size, is_directory, mode };
        (is_directory || kind == FileType::RegularFile).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_format::image;

    /// A `file_entry` that is a socket.
    #[derive(Clone, PartialEq, Eq, Message)]
    struct SocketFile {
        #[prost(uint32, required, tag = "2")]
        id: u32,
        #[prost(message, optional, tag = "16")]
        socket: Option<WholeSocket>,
        #[prost(fixed32, optional, tag = "17")]
        more: Option<u32>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    struct WholeSocket {
        #[prost(uint32, required, tag = "1")]
        id: u32,
        #[prost(bytes = "vec", required, tag = "11")]
        name: Vec<u8>,
        #[prost(bytes = "vec", optional, tag = "13")]
        rights: Option<Vec<u8>>,
        #[prost(bool, optional, tag = "15")]
        deleted: Option<bool>,
        #[prost(sint32, optional, tag = "17")]
        mount: Option<i32>,
    }

    #[test]
    fn a_socket_whose_name_is_deleted_has_no_rights() {
        let file = |id, deleted, rights: Option<&[u8]>| SocketFile {
            id,
            socket: Some(WholeSocket {
                id,
                name: b"/tmp/one".to_vec(),
                rights: rights.map(<[u8]>::to_vec),
                deleted,
                mount: Some(-1),
            }),
            more: Some(7),
        };
        let none = SocketFile { id: 4, socket: None, more: Some(9) };
        let rights = Some(&b"an owner"[..]);
        let before =
            [file(1, None, rights), none.clone(), file(2, Some(true), rights), file(3, Some(false), rights)];
        let after = [file(1, None, rights), none, file(2, Some(true), None), file(3, Some(false), rights)];
        assert_eq!(without_rights_of_deleted_sockets(&image(FILES, &before)), Some(image(FILES, &after)));
        assert_eq!(without_rights_of_deleted_sockets(&image(FILES, &after)), Some(image(FILES, &after)));
        let whole = image(FILES, &before);
        assert_eq!(without_rights_of_deleted_sockets(&whole[..whole.len() - 1]), None);
        assert_eq!(without_rights_of_deleted_sockets(&image(REMAPPED, &before)), None);
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
            mode: if size.is_none() { 0o40_755 } else { 0o100_644 },
        };
        let wanted = vec![open("/home/alice/log", Some(7)), open("/home/alice", None)];
        assert_eq!(open_files(&files, Some(&gone)), Some(wanted));
        assert_eq!(open_files(&files, None).map(|found| found.len()), Some(3));
        assert_eq!(open_files(&files[..files.len() - 1], None), None);
        assert_eq!(open_files(&gone, None), None);
        assert_eq!(open_files(&files, Some(b"something else")), None);
    }
}
