//! An image of changes as the upper of an environment: where a layer has a whiteout, an overlay has one of its own kind.
//!
//! Whoever made the image chose its names. A whiteout is made last, so that a file of the same name counts for more, whatever the layer's order was.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags, fsetxattr, mknodat, openat, statat};
use rustix::io::Errno;
use skiff_erofs::{FileEntry, InodeKind, ReadAt, Reader, StoredInode};

use super::{LeftOut, TreeUnpacker, shown};
use crate::changes::{OPAQUE, TEXTS, WHITEOUT, is_mark};
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// What an overlay mounted with `userxattr` takes for a directory that hides the base's.
const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";
/// All texts together are no longer, in bytes: a list of packages, and what the base's package database said of each.
const LONGEST_TEXTS: u64 = 128 << 20;
/// What a text is counted for beside its length: an image of many empty ones would take memory, too.
const EACH_TEXT: u64 = 4096;

/// Unpacks an image of changes into `target`, the empty upper of an environment. Texts about the base are not part of it.
///
/// # Errors
/// As [`super::unpack`].
pub fn unpack_changes<S: ReadAt>(reader: &Reader<S>, target: BorrowedFd<'_>) -> Result<LeftOut> {
    let mut unpacker = TreeUnpacker::new(reader, target);
    let mut marks = vec![];
    for file in reader.files() {
        let FileEntry { path, inode } = file?;
        match kind_of(&path) {
            ChangeFile::Plain => unpacker.file(&FileEntry { path, inode })?,
            ChangeFile::Mark => marks.push(path),
            ChangeFile::Text(_) | ChangeFile::Ignored => {}
        }
    }
    for path in &marks {
        unpacker.mark(path)?;
    }
    unpacker.finish()
}

/// The texts about the base that an image of changes has, by their names.
///
/// # Errors
/// The image is damaged, or a text is none.
pub fn change_texts<S: ReadAt>(reader: &Reader<S>) -> Result<BTreeMap<String, String>> {
    let (mut texts, mut left) = (BTreeMap::new(), LONGEST_TEXTS);
    for file in reader.files() {
        let FileEntry { path, inode } = file?;
        if let ChangeFile::Text(name) = kind_of(&path) {
            texts.extend(text(reader, name, &inode, &mut left)?);
        }
    }
    Ok(texts)
}

/// What a path in an image of changes is.
#[derive(Debug, PartialEq, Eq)]
enum ChangeFile<'a> {
    /// A file of the environment's.
    Plain,
    /// A whiteout, or the mark of a directory that hides the base's.
    Mark,
    /// A text about the base, by its name.
    Text(&'a [u8]),
    /// Nothing that is unpacked.
    Ignored,
}

fn kind_of(path: &[u8]) -> ChangeFile<'_> {
    let (parent, name) = split(path);
    if parent.split(|byte| *byte == b'/').any(is_mark) {
        return ChangeFile::Ignored;
    }
    // Whatever lies beside the texts is not the environment's.
    if parent.split(|byte| *byte == b'/').next() == Some(split(TEXTS.as_bytes()).0) && is_mark(name) {
        return ChangeFile::Ignored;
    }
    // Another name that begins so is AUFS's own.
    let aufs = [WHITEOUT, WHITEOUT].concat();
    if is_mark(name) {
        let is_known = name == OPAQUE || !name.starts_with(&aufs);
        return if is_known { ChangeFile::Mark } else { ChangeFile::Ignored };
    }
    let (texts, above) = (TEXTS.as_bytes(), split(TEXTS.as_bytes()).0);
    match path.strip_prefix(above) {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {}
        _ => return ChangeFile::Plain,
    }
    if parent == texts { ChangeFile::Text(name) } else { ChangeFile::Ignored }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn text<S: ReadAt>(
    reader: &Reader<S>,
    name: &[u8],
    inode: &StoredInode,
    left: &mut u64,
) -> Result<Option<(String, String)>> {
    if inode.kind != InodeKind::File {
        return Ok(None);
    }
    let bad =
        |why: &str| Error::BadImage { file: format!("/{TEXTS}/{}", name.escape_ascii()), why: why.into() };
    let name = std::str::from_utf8(name).map_err(|_| bad("its name is not UTF-8"))?;
    let counted = inode.size.saturating_add(EACH_TEXT);
    *left = left.checked_sub(counted).ok_or_else(|| bad("such texts are not so long, or so many"))?;
    let mut bytes = vec![0; inode.size as usize];
    let read = reader.read_at(inode, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some((name.into(), String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8"))?)))
}

impl<S: ReadAt> TreeUnpacker<'_, S> {
    /// Hides what the base has: of one name, or of a whole directory.
    fn mark(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = split(path);
        if name == OPAQUE {
            return self.make_opaque(parent);
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Error::BadImage { file: shown(path), why: "a whiteout without a name".into() });
        }
        let dir = self.parent(path)?.0;
        match mknodat(&dir, hidden, FileType::CharacterDevice, Mode::empty(), 0) {
            // A file hides the base's anyway, and a directory must have all that it shows.
            Err(Errno::EXIST) => {
                let there = statat(&dir, hidden, AtFlags::SYMLINK_NOFOLLOW).on("look at", shown(path))?;
                if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
                    let beside = [parent, &b"/"[..], hidden].concat();
                    return self.make_opaque(beside.strip_prefix(b"/").unwrap_or(&beside));
                }
                Ok(())
            }
            made => Ok(made.on("make the whiteout", shown(path))?),
        }
    }

    fn make_opaque(&self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            // The root of an upper is always one with the base's.
            return Ok(());
        }
        let (dir, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&dir, name, flags, Mode::empty()).on("open", shown(path))?;
        let set = fsetxattr(&dir, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty());
        set.map_err(|e| SystemError::new("set an extended attribute of", shown(path), e).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_what_a_layer_means_by_it() {
        for (path, kind) in [
            ("", ChangeFile::Plain),
            ("etc/passwd", ChangeFile::Plain),
            ("usr/bin/.wh.tac", ChangeFile::Mark),
            (".wh.srv", ChangeFile::Mark),
            ("opt/.wh..wh..opq", ChangeFile::Mark),
            ("opt/.wh..wh.aufs", ChangeFile::Ignored),
            (".wh..wh.plnk/1.2", ChangeFile::Ignored),
            ("opt/.wh.gone/file", ChangeFile::Ignored),
            (".skiff", ChangeFile::Ignored),
            (".skiff/base", ChangeFile::Ignored),
            (".skiff/base/packages", ChangeFile::Text(b"packages")),
            (".skiff/base/deep/er", ChangeFile::Ignored),
            (".skiff/other", ChangeFile::Ignored),
            (".skiff/.wh.x", ChangeFile::Ignored),
            (".skiff/base/.wh..wh..opq", ChangeFile::Ignored),
            (".wh..skiff", ChangeFile::Mark),
            (".skiffer/base/x", ChangeFile::Plain),
            ("opt/.skiff/base/x", ChangeFile::Plain),
        ] {
            assert_eq!(kind_of(path.as_bytes()), kind, "{path}");
        }
    }
}
