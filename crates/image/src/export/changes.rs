//! What an environment has changed as an image of changes ([`crate::changes`]): the files of its upper, and whiteouts for what is removed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;
use skiff_erofs::tree::{Attributes, XattrsId};

use super::root::{Path, ReadRoot, RootFilter, job};
use crate::changes::{OPAQUE, TEXTS, WHITEOUT, is_mark};
use crate::convert::{Children, FilePiece, Foreign, ForeignFile, ForeignFileType, convert};
use crate::error::{Error, Result};
use skiff_sys::SystemContext;

/// Who owns what belongs to nobody of a user namespace (user_namespaces(7)).
const NOBODY: u32 = 65534;

/// What is in an upper that only its overlay knows.
pub struct UpperMarks<'a> {
    /// Whether an open directory hides the base's directory of its name.
    pub is_opaque: &'a dyn Fn(BorrowedFd<'_>) -> rustix::io::Result<bool>,
    /// Names of files that are such marks, too, and nothing else.
    pub names: &'a [&'a [u8]],
}

/// What of an environment becomes an image.
pub struct CommittedUpper<'a> {
    /// The upper.
    pub upper: BorrowedFd<'a>,
    /// Name of the environment, for messages.
    pub name: &'a str,
    /// The base, as far as the user sees it.
    pub base: BorrowedFd<'a>,
    /// What its overlay knows.
    pub marks: UpperMarks<'a>,
    /// Whether files of the base's that were copied up have got nobody as their owner (fuse-overlayfs), in place of root.
    pub is_nobody_root: bool,
    /// Whether something else is mounted at a path, or below it, which begins with a slash. What is there only for that is not in the image.
    pub is_mount_point: &'a dyn Fn(&[u8]) -> bool,
    /// Texts about the base, by names of the caller's.
    pub texts: &'a BTreeMap<String, String>,
}

/// What was written, or would be.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct WrittenChanges {
    /// Files, directories and whiteouts.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Paths that the image does not have: sockets and devices.
    pub skipped: Vec<Vec<u8>>,
}

/// Writes an image of changes into `image`, an empty file. `watch` is told of each piece how many bytes have been read, and gives whether to go
/// on. To be run where the upper's files have the owners that they have inside.
///
/// # Errors
/// The upper has a name that in a layer means something else, it cannot be read, or the image not be written.
pub fn of_changes(
    input: &CommittedUpper<'_>,
    image: BorrowedFd<'_>,
    (room, room_name): (BorrowedFd<'_>, &str),
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<WrittenChanges> {
    let replaced = BTreeMap::new();
    let changes = Changes::new(input, &replaced);
    convert(&changes, job(input.name, image, (room, room_name), watch))?;
    Ok(changes.written())
}

/// What such an image would hold.
///
/// # Errors
/// As [`of_changes`].
pub fn survey(input: &CommittedUpper<'_>) -> Result<WrittenChanges> {
    let replaced = BTreeMap::new();
    let changes = Changes::new(input, &replaced);
    let mut ahead = vec![changes.root()?.file];
    while let Some(directory) = ahead.pop() {
        for (_, child) in changes.children(&directory)? {
            if matches!(child.kind, ForeignFileType::Directory) {
                ahead.push(child.file);
            }
        }
    }
    Ok(changes.written())
}

struct Changes<'a> {
    input: &'a CommittedUpper<'a>,
    upper: ReadRoot<'a>,
    files: Cell<u64>,
    skipped: RefCell<Vec<Vec<u8>>>,
}

/// A file of the image.
enum ChangedFile<'a> {
    /// One of the upper's.
    Stored(Path),
    /// One whose name says all.
    Mark,
    /// A directory above the texts, by how many names lead to it.
    Above(usize),
    /// One of the texts.
    Text(&'a str),
}

type Found<'a> = ForeignFile<ChangedFile<'a>>;

impl<'a> Changes<'a> {
    fn new(
        input: &'a CommittedUpper<'a>,
        replaced: &'a BTreeMap<Vec<u8>, super::root::OtherContent>,
    ) -> Self {
        let filter = RootFilter::plain(&|_, _| Ok(false), replaced);
        let upper = ReadRoot::new((input.upper, input.name), filter);
        Changes { input, upper, files: Cell::default(), skipped: RefCell::default() }
    }

    fn written(&self) -> WrittenChanges {
        let skipped = self.skipped.borrow().clone();
        WrittenChanges { files: self.files.get(), bytes: self.upper.seen().bytes, skipped }
    }

    /// Whether the base has something at a path. What cannot be looked at may be there.
    fn base_has(&self, path: &[u8]) -> bool {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        !matches!(
            openat2(self.input.base, path, flags, Mode::empty(), how),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
        )
    }

    /// What an entry of the upper becomes, and its name; nothing if it is not in the image.
    fn shipped(&self, name: Box<[u8]>, found: ForeignFile<Path>) -> Result<Option<(Box<[u8]>, Found<'a>)>> {
        let ForeignFile { file, number, links, attributes, xattrs, kind } = found;
        if is_mark(&name) {
            if self.input.marks.names.contains(&&*name) {
                return Ok(None);
            }
            let file = file.escape_ascii().to_string();
            let why = "in a layer a name that begins with .wh. stands for a removed file".into();
            return Err(Error::Unstorable { file, why });
        }
        match kind {
            ForeignFileType::CharDevice(0, 0) => Ok(Some((whiteout(&name), mark()))),
            ForeignFileType::CharDevice(..) | ForeignFileType::BlockDevice(..) | ForeignFileType::Socket => {
                let hides = self.base_has(&file);
                self.skipped.borrow_mut().push(file.strip_prefix(b"/").unwrap_or(&file).to_vec());
                Ok(hides.then(|| (whiteout(&name), mark())))
            }
            kind => {
                let file = ChangedFile::Stored(file);
                let attributes = self.owned(attributes);
                Ok(Some((name, ForeignFile { file, number, links, attributes, xattrs, kind })))
            }
        }
    }

    fn owned(&self, attributes: Attributes) -> Attributes {
        let owner = |id| if self.input.is_nobody_root && id == NOBODY { 0 } else { id };
        Attributes { uid: owner(attributes.uid), gid: owner(attributes.gid), ..attributes }
    }

    /// Whether a directory of the upper hides the base's.
    fn is_opaque(&self, directory: &Path) -> Result<bool> {
        if directory.is_empty() {
            return Ok(false);
        }
        match self.upper.open(directory, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => Ok(false),
            opened => {
                let opened = opened.on("open", self.upper.shown(directory))?;
                let is_opaque = (self.input.marks.is_opaque)(opened.as_fd());
                Ok(is_opaque.on("read the attributes of", self.upper.shown(directory))?)
            }
        }
    }

    /// Whether a file was made only for something to be mounted there, or below it: nobody has seen it.
    fn is_only_mount_point(&self, found: &ForeignFile<Path>) -> Result<bool> {
        let path = &found.file;
        if !(self.input.is_mount_point)(path) || self.base_has(path) {
            return Ok(false);
        }
        match found.kind {
            ForeignFileType::Directory => self.has_mount_points_alone(path),
            ForeignFileType::File => {
                let stat = self.upper.open(path, OFlags::PATH).and_then(rustix::fs::fstat);
                Ok(stat.is_ok_and(|stat| stat.st_size == 0))
            }
            _ => Ok(false),
        }
    }

    /// Whether there is nothing else in a directory of the upper.
    fn has_mount_points_alone(&self, directory: &Path) -> Result<bool> {
        let about = || self.upper.shown(directory);
        let dir = match self.upper.open(directory, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(true),
            dir => dir.on("open", about())?,
        };
        for entry in Dir::read_from(&dir).on("read", about())? {
            let entry = entry.on("read", about())?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || self.input.marks.names.contains(&name.to_bytes()) {
                continue;
            }
            let path = [directory, &b"/"[..], name.to_bytes()].concat();
            let stat =
                statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).on("look at", self.upper.shown(&path))?;
            let is_empty = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.has_mount_points_alone(&path)?,
                FileType::RegularFile => stat.st_size == 0,
                _ => false,
            };
            if !is_empty || !(self.input.is_mount_point)(&path) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn of_upper(&self, directory: &Path) -> Result<Children<ChangedFile<'a>>> {
        let mut children = vec![];
        for (name, found) in self.upper.children(directory)? {
            if !self.is_only_mount_point(&found)? {
                children.extend(self.shipped(name, found)?);
            }
        }
        if self.is_opaque(directory)? {
            children.push((OPAQUE.into(), mark()));
        }
        if directory.is_empty() && !self.input.texts.is_empty() {
            let (name, above) = self.above(0);
            if children.iter().any(|(other, _)| *other == name) {
                let file = format!("/{}", name.escape_ascii());
                let why = "the image has texts about the base under this name".into();
                return Err(Error::Unstorable { file, why });
            }
            children.push((name, above));
        }
        Ok(children)
    }

    /// A directory above the texts: the one of so many that lead there.
    fn above(&self, depth: usize) -> (Box<[u8]>, Found<'a>) {
        let name = TEXTS.split('/').nth(depth).unwrap_or_default();
        // No file of the upper has so great a number.
        let number = u64::MAX - depth as u64;
        let file = ChangedFile::Above(depth + 1);
        (name.as_bytes().into(), ForeignFile { number, ..plain(file, ForeignFileType::Directory, 0o755) })
    }
}

/// The name of what stands for a removed file.
fn whiteout(name: &[u8]) -> Box<[u8]> {
    [WHITEOUT, name].concat().into()
}

fn mark<'a>() -> Found<'a> {
    plain(ChangedFile::Mark, ForeignFileType::File, 0o644)
}

/// A file of root's that is not in the upper.
fn plain(file: ChangedFile<'_>, kind: ForeignFileType, mode: u16) -> Found<'_> {
    let attributes = Attributes { mode, uid: 0, gid: 0, mtime: 0, mtime_nsec: 0, xattrs: XattrsId(0) };
    ForeignFile { file, number: 0, links: 1, attributes, xattrs: vec![], kind }
}

impl<'a> Foreign for Changes<'a> {
    type File = ChangedFile<'a>;

    fn may_change(&self) -> bool {
        true
    }

    fn root(&self) -> Result<Found<'a>> {
        let ForeignFile { file, number, links, attributes, xattrs, kind } = self.upper.root()?;
        self.files.set(1);
        Ok(ForeignFile { file: ChangedFile::Stored(file), number, links, attributes, xattrs, kind })
    }

    fn children(&self, directory: &ChangedFile<'a>) -> Result<Children<ChangedFile<'a>>> {
        let children = match directory {
            ChangedFile::Stored(path) => {
                let children = self.of_upper(path)?;
                let own = children.iter().filter(|(_, child)| !matches!(child.file, ChangedFile::Above(_)));
                self.files.set(self.files.get() + own.count() as u64);
                children
            }
            ChangedFile::Above(depth) if *depth < TEXTS.split('/').count() => vec![self.above(*depth)],
            ChangedFile::Above(_) => {
                let text = |name: &'a String| {
                    (name.as_bytes().into(), plain(ChangedFile::Text(name), ForeignFileType::File, 0o644))
                };
                self.input.texts.keys().map(text).collect()
            }
            ChangedFile::Mark | ChangedFile::Text(_) => vec![],
        };
        Ok(children)
    }

    fn pieces(
        &self,
        file: &ChangedFile<'a>,
        each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>,
    ) -> Result<()> {
        match file {
            ChangedFile::Stored(path) => self.upper.pieces(path, each),
            ChangedFile::Text(name) => match self.input.texts.get(*name) {
                Some(text) if !text.is_empty() => each(FilePiece::Data(text.as_bytes())),
                _ => Ok(()),
            },
            ChangedFile::Mark | ChangedFile::Above(_) => Ok(()),
        }
    }
}
