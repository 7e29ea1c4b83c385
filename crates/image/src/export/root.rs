//! The files of a running container as an image, for whoever wants to keep them as they are at this moment.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, fstat, major, minor, openat2,
    readlinkat, seek, statat,
};
use rustix::io::Errno;
use rustix::process::{getgid, getuid};
use skiff_erofs::tree::{Attributes, Xattrs, XattrsId};
use skiff_sys::positional::read_at;

use super::xattrs::xattrs;
use crate::assemble::ImageLimits;
use crate::convert::{Children, ConversionJob, FilePiece, Foreign, ForeignFile, ForeignFileType, convert};
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

const PIECE: usize = 1 << 20;

/// Whether a file is to be left out, by its path (with a slash before each name) and, of a link, where it leads. An error ends it all.
pub type LeaveOut<'a> = &'a dyn Fn(&[u8], Option<&[u8]>) -> rustix::io::Result<bool>;

/// Who is told of a file, by its path.
pub type UnreadableNotice<'a> = &'a dyn Fn(&[u8]);

/// What a file has in the image in the place of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherContent {
    /// The content.
    pub content: Vec<u8>,
    /// Time of the last change, in seconds and nanoseconds; the file's own if there is none.
    pub mtime: Option<(i64, u32)>,
}

/// What the image has otherwise than the root.
#[derive(Clone, Copy)]
pub struct RootFilter<'a> {
    /// Files that it does not have.
    pub leave_out: LeaveOut<'a>,
    /// Files that have another content, by their paths.
    pub replaced: &'a BTreeMap<Vec<u8>, OtherContent>,
    /// Is told of each file and directory that this process may not read: the one is left out, the other empty. Without it that is an error.
    pub unreadable: Option<UnreadableNotice<'a>>,
    /// Modes that directories have in the image, by their paths.
    pub modes: &'a [(&'a str, u16)],
}

impl<'a> RootFilter<'a> {
    /// Files have their own content, and must be readable.
    pub fn plain(leave_out: LeaveOut<'a>, replaced: &'a BTreeMap<Vec<u8>, OtherContent>) -> Self {
        RootFilter { leave_out, replaced, unreadable: None, modes: &[] }
    }
}

/// How much of a root there is, as far as it has been looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RootSize {
    /// Files, directories and what else has a name.
    pub files: u64,
    /// Bytes of files without their holes, roughly; of a file with several names once.
    pub bytes: u64,
}

/// Writes all that is on the mount `root` into `image`, an empty file: an EROFS image. What is mounted in it is not part of it; nor are
/// devices. Owners are those that this process sees. What is needed only meanwhile goes to `room`.
///
/// # Errors
/// Something cannot be read, or the image not be written.
pub fn of_root(
    (root, name): (BorrowedFd<'_>, &str),
    leave_out: LeaveOut<'_>,
    image: BorrowedFd<'_>,
    (room, room_name): (BorrowedFd<'_>, &str),
) -> Result<()> {
    let replaced = BTreeMap::new();
    let filter = RootFilter::plain(leave_out, &replaced);
    of_filtered_root((root, name), filter, image, (room, room_name), &mut |_| true)
}

/// The same but for what the filter says. `watch` is told of each piece how many bytes have been read, and gives whether to go on.
///
/// # Errors
/// As [`of_root`].
pub fn of_filtered_root(
    (root, name): (BorrowedFd<'_>, &str),
    filter: RootFilter<'_>,
    image: BorrowedFd<'_>,
    (room, room_name): (BorrowedFd<'_>, &str),
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    let root = ReadRoot::new((root, name), filter);
    convert(&root, job(name, image, (room, room_name), watch)).map(drop)
}

/// How much such an image would hold.
///
/// # Errors
/// Something cannot be looked at.
pub fn survey((root, name): (BorrowedFd<'_>, &str), filter: RootFilter<'_>) -> Result<RootSize> {
    let root = ReadRoot::new((root, name), filter);
    let mut known = HashSet::new();
    let mut ahead = vec![root.root()?.file];
    while let Some(directory) = ahead.pop() {
        let children = root.children(&directory)?.into_iter().map(|(_, child)| child);
        let below = children.filter(|child| matches!(child.kind, ForeignFileType::Directory));
        // One that was moved meanwhile has been met where it was.
        ahead.extend(below.filter(|child| known.insert(child.number)).map(|child| child.file));
    }
    Ok(root.seen())
}

/// The same for a user's own directory with the files of a root. What belongs to the user there belongs to root in the image, as whoever unpacked
/// it could make nobody else its owner.
///
/// # Errors
/// As [`of_root`].
pub fn of_directory(
    (root, name): (BorrowedFd<'_>, &str),
    image: BorrowedFd<'_>,
    (room, room_name): (BorrowedFd<'_>, &str),
) -> Result<()> {
    let own = Some((getuid().as_raw(), getgid().as_raw()));
    let replaced = BTreeMap::new();
    let filter = RootFilter::plain(&|_, _| Ok(false), &replaced);
    let root = ReadRoot { own, ..ReadRoot::new((root, name), filter) };
    convert(&root, job(name, image, (room, room_name), &mut |_| true)).map(drop)
}

pub(super) fn job<'a>(
    source: &'a str,
    image: BorrowedFd<'a>,
    (scratch, scratch_name): (BorrowedFd<'a>, &'a str),
    watch: &'a mut dyn FnMut(u64) -> bool,
) -> ConversionJob<'a> {
    let limits = ImageLimits::default();
    // It is the caller's own file: no quota holds but the file system's.
    let room = &|_| true;
    ConversionJob { image, name: scratch_name, source, scratch, scratch_name, limits, watch, room }
}

pub(super) struct ReadRoot<'a> {
    root: BorrowedFd<'a>,
    name: &'a str,
    filter: RootFilter<'a>,
    /// Files by device and number there, and file system: an overlay's lie on several.
    numbers: RefCell<HashMap<FileKey, u64>>,
    /// The user and group who are root in the image.
    own: Option<(u32, u32)>,
    /// Whether it is the host's own: no other file system is entered, and of files that others may not read nothing is read.
    is_host: bool,
    seen: Cell<RootSize>,
}

/// Device and number there; and of a file what else names of one file have in common, as an overlay may give one number to files of several file
/// systems.
type FileKey = (u64, u64, Option<(i64, i64, u64, u32)>);

/// A file's path from the root, with a slash before each name: of a tree's many directories no more than one is open.
pub(super) type Path = Vec<u8>;

impl<'a> ReadRoot<'a> {
    pub(super) fn new((root, name): (BorrowedFd<'a>, &'a str), filter: RootFilter<'a>) -> Self {
        let (numbers, seen) = (RefCell::default(), Cell::default());
        ReadRoot { root, name, filter, numbers, own: None, is_host: false, seen }
    }

    /// The same for the host's own root.
    pub(super) fn of_host((root, name): (BorrowedFd<'a>, &'a str), filter: RootFilter<'a>) -> Self {
        ReadRoot { is_host: true, ..ReadRoot::new((root, name), filter) }
    }

    /// What has been found so far.
    pub(super) fn seen(&self) -> RootSize {
        self.seen.get()
    }
}

impl ReadRoot<'_> {
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = match path.strip_prefix(b"/") {
            Some(path) => OsStr::from_bytes(path),
            None => OsStr::new("."),
        };
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        how.set(ResolveFlags::NO_XDEV, self.is_host);
        match openat2(self.root, path, flags, Mode::empty(), how) {
            // What was found under this name is not there any more: now it, or a directory above it, is something else.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::XDEV) => Err(Errno::NOENT),
            opened => opened,
        }
    }

    /// Whether what this process may not read is left out.
    fn skips(&self, path: &[u8], why: Errno) -> bool {
        let tell = self.filter.unreadable.filter(|_| matches!(why, Errno::ACCESS | Errno::PERM));
        tell.map(|tell| tell(path)).is_some()
    }

    /// Whether a file is one that is left out for that. What others may read is only found out when it is read.
    fn is_unreadable(&self, file: &ForeignFile<Path>) -> bool {
        let may_be = matches!(file.kind, ForeignFileType::File)
            && !may_be_read(file.attributes.mode.into())
            && self.filter.unreadable.is_some()
            && !self.filter.replaced.contains_key(&file.file);
        may_be && self.open(&file.file, OFlags::NONBLOCK).is_err_and(|why| self.skips(&file.file, why))
    }

    pub(super) fn shown(&self, path: &[u8]) -> String {
        format!("{}:{}", self.name, path.escape_ascii())
    }

    fn key(stat: &Stat) -> FileKey {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let more = (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_mode);
        (stat.st_dev, stat.st_ino, (!is_directory).then_some(more))
    }

    fn found(&self, path: Path, stat: &Stat, xattrs: Xattrs, kind: ForeignFileType) -> ForeignFile<Path> {
        let is_directory = matches!(kind, ForeignFileType::Directory);
        let of_filter = self.filter.modes.iter().find(|(dir, _)| is_directory && dir.as_bytes() == path);
        let attributes = Attributes {
            mode: of_filter.map_or((stat.st_mode & 0o7777) as u16, |(_, mode)| *mode),
            uid: if self.own.is_some_and(|(uid, _)| uid == stat.st_uid) { 0 } else { stat.st_uid },
            gid: if self.own.is_some_and(|(_, gid)| gid == stat.st_gid) { 0 } else { stat.st_gid },
            mtime: stat.st_mtime,
            mtime_nsec: stat.st_mtime_nsec as u32,
            xattrs: XattrsId(0),
        };
        let number = if is_directory || stat.st_nlink > 1 {
            let mut numbers = self.numbers.borrow_mut();
            let next = numbers.len() as u64 + 1;
            *numbers.entry(Self::key(stat)).or_insert(next)
        } else {
            // Nobody asks for it again.
            0
        };
        ForeignFile { file: path, number, links: stat.st_nlink as u32, attributes, xattrs, kind }
    }
}

impl Foreign for ReadRoot<'_> {
    type File = Path;

    /// Some process may be left in the container.
    fn may_change(&self) -> bool {
        true
    }

    fn root(&self) -> Result<ForeignFile<Path>> {
        let root = self.open(b"", OFlags::DIRECTORY).on("open", self.shown(b"/"))?;
        let stat = fstat(&root).on("look at", self.shown(b"/"))?;
        let xattrs = xattrs(&root, b".").on("read the attributes of", self.shown(b"/"))?;
        Ok(self.found(vec![], &stat, xattrs, ForeignFileType::Directory))
    }

    fn children(&self, directory: &Path) -> Result<Children<Path>> {
        let Some((dir, names)) = self.list(directory)? else { return Ok(vec![]) };
        let mut children = vec![];
        for name in names {
            let path = [directory, &b"/"[..], &name].concat();
            match self.child(&dir, &name, path.clone()) {
                // Another process has removed it since.
                Err(Error::Io(SystemError { source: Errno::NOENT, .. })) => {}
                // A directory that lets its names be read, and nothing else.
                Err(Error::Io(SystemError { source, .. })) if self.skips(&path, source) => {}
                child => {
                    let (child, bytes) = child?;
                    let target = if let ForeignFileType::Symlink(target) = &child.kind {
                        Some(&target[..])
                    } else {
                        None
                    };
                    let is_left_out = (self.filter.leave_out)(&child.file, target);
                    let is_left_out = is_left_out.on("look at", self.shown(&child.file))?;
                    if !is_left_out && !self.is_unreadable(&child) {
                        let RootSize { files, bytes: before } = self.seen.get();
                        self.seen.set(RootSize { files: files + 1, bytes: before + bytes });
                        children.push((name.into_boxed_slice(), child));
                    }
                }
            }
        }
        Ok(children)
    }

    fn pieces(&self, file: &Path, each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()> {
        let about = || self.shown(file);
        if let Some(OtherContent { content, .. }) = self.filter.replaced.get(file) {
            return if content.is_empty() { Ok(()) } else { each(FilePiece::Data(content)) };
        }
        let opened = match self.open(file, OFlags::NONBLOCK) {
            // For whoever reads a root that may change it is gone.
            Err(why) if self.skips(file, why) => Err(Errno::NOENT),
            opened => opened,
        };
        let opened = opened.on("open", about())?;
        let stat = fstat(&opened).on("look at", about())?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(SystemError::new("open", about(), Errno::NOENT).into());
        }
        if self.is_host && !is_for_others(&stat) {
            return Ok(());
        }
        let size = stat.st_size as u64;
        let mut buffer = vec![0; PIECE.min(size as usize)];
        let mut at = 0;
        while at < size {
            let data = match seek(&opened, SeekFrom::Data(at)) {
                Ok(data) => data.min(size),
                Err(Errno::NXIO) => size,
                // A file system that knows no holes.
                Err(_) => at,
            };
            if data > at {
                each(FilePiece::Hole(data - at))?;
            }
            at = data;
            let end = seek(&opened, SeekFrom::Hole(at)).map_or(size, |hole| hole.min(size));
            while at < end {
                let piece = &mut buffer[..(end - at).min(PIECE as u64) as usize];
                let count = read_at(opened.as_fd(), piece, at).on("read", about())?;
                each(FilePiece::Data(&piece[..count]))?;
                at += count as u64;
                if count < piece.len() {
                    // It became shorter meanwhile.
                    return each(FilePiece::Hole(size - at));
                }
            }
        }
        Ok(())
    }
}

/// Whether others may read a file's content, or list a directory and look into it.
#[must_use]
pub fn is_for_others(stat: &Stat) -> bool {
    may_be_read(stat.st_mode)
}

/// The same by a mode. One without a type is a file's.
fn may_be_read(mode: u32) -> bool {
    let wanted = if FileType::from_raw_mode(mode) == FileType::Directory { 0o005 } else { 0o004 };
    mode & wanted == wanted
}

impl ReadRoot<'_> {
    /// A directory and the names in it, sorted, so that the same files give the same image; nothing if it is gone or left out.
    pub(super) fn list(&self, directory: &Path) -> Result<Option<(OwnedFd, Vec<Vec<u8>>)>> {
        let about = || self.shown(directory);
        let dir = match self.open(directory, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(None),
            Err(why) if self.skips(directory, why) => return Ok(None),
            dir => dir.on("open", about())?,
        };
        let mut names = vec![];
        for entry in Dir::read_from(&dir).on("read", about())? {
            let name = match entry {
                // It was removed after it was opened.
                Err(Errno::NOENT) => break,
                entry => entry.on("read", about())?.file_name().to_bytes().to_vec(),
            };
            if !matches!(&name[..], b"." | b"..") {
                names.push(name);
            }
        }
        names.sort();
        Ok(Some((dir, names)))
    }

    /// A file of a directory, and how many bytes it adds to those that are known.
    pub(super) fn child(&self, dir: &OwnedFd, name: &[u8], path: Path) -> Result<(ForeignFile<Path>, u64)> {
        let about = || self.shown(&path);
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).on("look at", about())?;
        let xattrs = xattrs(dir, name).on("read the attributes of", about())?;
        let device = stat.st_rdev;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => ForeignFileType::Directory,
            FileType::RegularFile => ForeignFileType::File,
            FileType::Symlink => {
                let target = readlinkat(dir, name, vec![]).on("read", about())?;
                ForeignFileType::Symlink(target.into_bytes().into())
            }
            FileType::CharacterDevice => ForeignFileType::CharDevice(major(device), minor(device)),
            FileType::BlockDevice => ForeignFileType::BlockDevice(major(device), minor(device)),
            FileType::Fifo => ForeignFileType::Fifo,
            FileType::Socket => ForeignFileType::Socket,
            FileType::Unknown => {
                let why = "it is of no kind that is known".into();
                return Err(Error::Foreign { object: about(), why, hint: None });
            }
        };
        let is_known = || self.numbers.borrow().contains_key(&Self::key(&stat));
        let is_again = stat.st_nlink > 1 && is_known();
        let bytes = match kind {
            ForeignFileType::File if !is_again => (stat.st_size as u64).min(stat.st_blocks as u64 * 512),
            _ => 0,
        };
        let replaced = self.filter.replaced.get(&path).and_then(|replacement| replacement.mtime);
        let mut found = self.found(path, &stat, xattrs, kind);
        if let (Some((seconds, nanoseconds)), ForeignFileType::File) = (replaced, &found.kind) {
            (found.attributes.mtime, found.attributes.mtime_nsec) = (seconds, nanoseconds);
        }
        Ok((found, bytes))
    }
}
