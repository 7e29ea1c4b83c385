//! The files of an upper directory over the host's root, put together by the rules of overlays and read from both directories themselves: for whoever
//! has no overlay that tells them right. (fuse-overlayfs 1.10 lists some names twice and others not at all, and finds by their names files that a
//! new directory hides.)
//!
//! Of the host there is only what others may read, whoever reads it: modes decide, not what this process may do.

use std::cell::Cell;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, openat2, statat, statx,
};
use rustix::io::Errno;
use skiff_erofs::tree::{Attributes, XattrsId};

use super::changes::UpperMarks;
use super::root::{LeaveOut, Path, ReadRoot, RootFilter, RootSize, is_for_others, job};
use crate::changes::WHITEOUT;
use crate::convert::{Children, FilePiece, Foreign, ForeignFile, ForeignFileType, convert};
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// Who owns what belongs to nobody of a user namespace (user_namespaces(7)).
const NOBODY: u32 = 65534;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

/// Numbers of places of mounts begin here: no file that is numbered in turn has so great a one.
const PLACES: u64 = 1 << 62;

/// What is put together.
pub struct MergedRoot<'a> {
    /// The upper.
    pub upper: BorrowedFd<'a>,
    /// The host's root.
    pub host: BorrowedFd<'a>,
    /// Name of the environment, for messages.
    pub name: &'a str,
    /// What the upper's overlay knows.
    pub marks: UpperMarks<'a>,
    /// What of the two is otherwise in the image.
    pub filter: RootFilter<'a>,
    /// Whether a file of the host's that is not a directory is left out, beside those that the filter leaves out.
    pub leave_out_of_host: LeaveOut<'a>,
}

/// Writes an image of it into `image`, an empty file. `watch` is told of each piece how many bytes have been read, and gives whether to go on. To be
/// run where the upper's files have the owners that they have inside. What belongs to nobody there belongs to root in the image, without
/// setuid and setgid bits.
///
/// # Errors
/// Something cannot be read, or the image not be written.
pub fn of_merged_root(
    root: &MergedRoot<'_>,
    image: BorrowedFd<'_>,
    (room, room_name): (BorrowedFd<'_>, &str),
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    convert(&Merged::new(root), job(root.name, image, (room, room_name), watch)).map(drop)
}

/// How much such an image would hold.
///
/// # Errors
/// Something cannot be looked at.
pub fn survey(root: &MergedRoot<'_>) -> Result<RootSize> {
    let merged = Merged::new(root);
    let mut ahead = vec![merged.root()?.file];
    while let Some(directory) = ahead.pop() {
        let children = merged.children(&directory)?.into_iter().map(|(_, child)| child);
        ahead.extend(
            children.filter(|child| matches!(child.kind, ForeignFileType::Directory)).map(|child| child.file),
        );
    }
    let bytes = merged.upper.seen().bytes + merged.host_bytes.get();
    Ok(RootSize { files: merged.files.get(), bytes })
}

struct Merged<'a> {
    input: &'a MergedRoot<'a>,
    upper: ReadRoot<'a>,
    host: ReadRoot<'a>,
    files: Cell<u64>,
    host_bytes: Cell<u64>,
    places: Cell<u64>,
}

/// A file and where it lies; a directory may lie in both.
struct MergedFile {
    path: Path,
    in_upper: bool,
    in_host: bool,
}

type Found = ForeignFile<MergedFile>;

impl<'a> Merged<'a> {
    fn new(input: &'a MergedRoot<'a>) -> Self {
        let host_filter = RootFilter { unreadable: Some(&|_| {}), ..input.filter };
        Merged {
            input,
            upper: ReadRoot::new((input.upper, input.name), input.filter),
            host: ReadRoot::of_host((input.host, "the host"), host_filter),
            files: Cell::new(1),
            host_bytes: Cell::default(),
            places: Cell::new(PLACES),
        }
    }

    /// What is in a directory of the upper; the names that hide the host's are added to `hidden`.
    fn of_upper(
        &self,
        (directory, shows_host): (&Path, bool),
        hidden: &mut HashSet<Vec<u8>>,
    ) -> Result<Children<MergedFile>> {
        // Those that are left out hide the host's as well.
        let names = self.upper.list(directory)?.map_or_else(Vec::new, |(_, names)| names);
        hidden.extend(names.into_iter().map(|name| match name.strip_prefix(WHITEOUT) {
            Some(removed) => removed.into(),
            None => name,
        }));
        let mut children = vec![];
        for (name, found) in self.upper.children(directory)? {
            if name.starts_with(WHITEOUT) {
                continue;
            }
            hidden.insert(name.to_vec());
            let in_host = match found.kind {
                ForeignFileType::CharDevice(0, 0) | ForeignFileType::Socket => continue,
                ForeignFileType::Directory => shows_host && self.is_for_others_on_host(&found.file)?,
                _ => false,
            };
            children.push((name, self.taken(found, true, in_host)));
        }
        Ok(children)
    }

    /// Whether the upper's directory hides the host's. One that is gone by now has hidden what was there, too.
    fn hides_host(&self, directory: &Path) -> Result<bool> {
        let about = || self.upper.shown(directory);
        let dir = match self.upper.open(directory, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(true),
            opened => opened.on("open", about())?,
        };
        let has_mark = |name: &[u8]| match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => found.map(|_| true),
        };
        for name in self.input.marks.names {
            if has_mark(name).on("look at", about())? {
                return Ok(true);
            }
        }
        Ok((self.input.marks.is_opaque)(dir.as_fd()).on("read the attributes of", about())?)
    }

    /// Whether the host has a directory at a path, on its own file system, that others may list.
    fn is_for_others_on_host(&self, path: &Path) -> Result<bool> {
        match self.host.open(path, OFlags::PATH).and_then(fstat) {
            Err(Errno::NOENT | Errno::ACCESS) => Ok(false),
            found => {
                let found = found.on("look at", self.host.shown(path))?;
                let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
                Ok(is_directory && is_for_others(&found))
            }
        }
    }

    /// What is in a directory of the host's, but for hidden names.
    fn of_host(&self, directory: &Path, hidden: &HashSet<Vec<u8>>) -> Result<Children<MergedFile>> {
        let Some((dir, names)) = self.host.list(directory)? else { return Ok(vec![]) };
        let mut children = vec![];
        for name in names.into_iter().filter(|name| !hidden.contains(name)) {
            let path = [directory, &b"/"[..], &name].concat();
            let child = match look(&dir, &name) {
                Ok(stat) => self.host_child((&dir, &name), path, &stat),
                Err(Errno::XDEV) => Ok(is_directory(&dir, &name).then(|| self.place(path))),
                Err(why) => Err(SystemError::new("look at", self.host.shown(&path), why).into()),
            };
            match child {
                // What goes meanwhile is not there, and what cannot be looked at is none of what others may read.
                Err(Error::Io(SystemError { source: Errno::NOENT | Errno::ACCESS, .. })) => {}
                child => children.extend(child?.map(|child| (name.into_boxed_slice(), child))),
            }
        }
        Ok(children)
    }

    /// A file of the host's; nothing if it is left out.
    fn host_child(&self, (dir, name): (&OwnedFd, &[u8]), path: Path, stat: &Stat) -> Result<Option<Found>> {
        let filter = &self.input.filter;
        let (mut found, bytes) = self.host.child(dir, name, path)?;
        let target = match &found.kind {
            ForeignFileType::Symlink(target) => Some(&target[..]),
            _ => None,
        };
        let for_others = is_for_others(stat);
        let is_left_out = match found.kind {
            ForeignFileType::Directory => false,
            ForeignFileType::Socket => true,
            ForeignFileType::File
                if !for_others && stat.st_size > 0 && !filter.replaced.contains_key(&found.file) =>
            {
                true
            }
            _ => (self.input.leave_out_of_host)(&found.file, target)
                .on("look at", self.host.shown(&found.file))?,
        };
        if is_left_out
            || (filter.leave_out)(&found.file, target).on("look at", self.host.shown(&found.file))?
        {
            return Ok(None);
        }
        if !for_others && target.is_none() {
            found.xattrs.clear();
        }
        self.host_bytes.set(self.host_bytes.get() + if for_others { bytes } else { 0 });
        Ok(Some(self.taken(found, false, true)))
    }

    /// The place of another file system: an empty directory.
    fn place(&self, path: Path) -> Found {
        let of_filter = self.input.filter.modes.iter().find(|(dir, _)| dir.as_bytes() == path);
        let mode = of_filter.map_or(0o755, |(_, mode)| *mode);
        let attributes = Attributes { mode, uid: 0, gid: 0, mtime: 0, mtime_nsec: 0, xattrs: XattrsId(0) };
        let number = self.places.get();
        self.places.set(number + 1);
        let file = MergedFile { path, in_upper: false, in_host: false };
        ForeignFile { file, number, links: 1, attributes, xattrs: vec![], kind: ForeignFileType::Directory }
    }

    fn taken(&self, found: ForeignFile<Path>, in_upper: bool, in_host: bool) -> Found {
        let ForeignFile { file, number, links, attributes, xattrs, kind } = found;
        let attributes = with_known_owner(attributes);
        // Numbers of the two are not those of one file system.
        let number = 2 * number + u64::from(!in_upper);
        ForeignFile {
            file: MergedFile { path: file, in_upper, in_host },
            number,
            links,
            attributes,
            xattrs,
            kind,
        }
    }
}

/// What belongs to nobody here belongs to root there. Its setuid and setgid bits meant another user or group, which nobody knows here: with root's
/// in that place, a program that was to read one group's files would read all.
fn with_known_owner(attributes: Attributes) -> Attributes {
    let Attributes { mut uid, mut gid, mut mode, .. } = attributes;
    for (id, bit) in [(&mut uid, SETUID), (&mut gid, SETGID)] {
        if *id == NOBODY {
            *id = 0;
            mode &= !bit;
        }
    }
    Attributes { uid, gid, mode, ..attributes }
}

/// What is at a name; `XDEV` if another file system is mounted there, which is asked nothing: it may never answer.
fn look(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<Stat> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    fstat(openat2(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how)?)
}

/// Whether a directory is at a name where something is mounted, by what the directory above says: to open it would have an automounter mount what
/// belongs there, and wait for its server.
fn is_directory(dir: &OwnedFd, name: &[u8]) -> bool {
    let entries = Dir::read_from(dir).into_iter().flatten().filter_map(std::result::Result::ok);
    let kind =
        entries.into_iter().find(|entry| entry.file_name().to_bytes() == name).map(|entry| entry.file_type());
    match kind {
        // A file system that does not say it there. By this, nothing is mounted either, and no server asked.
        Some(FileType::Unknown) => {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
            let found = statx(dir, name, flags, StatxFlags::TYPE);
            found.is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory)
        }
        kind => kind == Some(FileType::Directory),
    }
}

impl Foreign for Merged<'_> {
    type File = MergedFile;

    fn may_change(&self) -> bool {
        true
    }

    fn root(&self) -> Result<Found> {
        Ok(self.taken(self.upper.root()?, true, true))
    }

    fn children(&self, directory: &MergedFile) -> Result<Children<MergedFile>> {
        let MergedFile { path, in_upper, in_host } = directory;
        let mut hidden = HashSet::new();
        // What is below a directory that others may not list is none of theirs, whatever its own mode.
        let shows_host =
            *in_host && self.is_for_others_on_host(path)? && !(*in_upper && self.hides_host(path)?);
        let mut children = if *in_upper { self.of_upper((path, shows_host), &mut hidden)? } else { vec![] };
        if shows_host {
            children.extend(self.of_host(path, &hidden)?);
        }
        // The same files give the same image.
        children.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.files.set(self.files.get() + children.len() as u64);
        Ok(children)
    }

    fn pieces(&self, file: &MergedFile, each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()> {
        if file.in_upper {
            return self.upper.pieces(&file.path, each);
        }
        let stat = self.host.open(&file.path, OFlags::PATH).and_then(fstat);
        let stat = stat.on("look at", self.host.shown(&file.path))?;
        // One that is empty, and in the image all the same, need not be one that may be opened.
        if is_for_others(&stat) || self.input.filter.replaced.contains_key(&file.path) {
            return self.host.pieces(&file.path, each);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
