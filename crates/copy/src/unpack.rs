//! The side that writes: a tar stream as files below a directory.
//!
//! Whatever the stream names, each file is made in a directory that was opened below the destination without following a link, under a name of
//! its own, and then put in its place: so what was there before is replaced and never written through.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps, fchmod, ftruncate, futimens, linkat,
    mkdirat, openat, openat2, renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use skiff_spec::fault::Fault;
use skiff_sys::error::show;
use skiff_sys::positional::write_all_at;
use skiff_sys::{IgnoreError, SystemContext, SystemError};
use skiff_tar::{EntryKind, Error, Segment, TarEntry, TarReader};

use crate::stream::FileStream;
use crate::{CopyError, DIRECTORY_MODE, NotCopied, Result, file_mode};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How many names are tried for a file that is being written.
const NAMES: u32 = 1000;

/// Where to.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// As the user names it.
    pub path: &'a Path,
    /// What it is called in a directory that exists already; nothing if its contents are to go there.
    pub base: Option<&'a OsStr>,
    /// In front of paths in messages: whose they are.
    pub of: &'a str,
    /// Permission bits that nothing gets: who copies may be guarding against others on the host, and modes are what somebody inside has set.
    pub umask: u16,
}

/// Unpacks a file, link or tree that [`pack`](crate::pack()) has named `.`.
///
/// # Errors
/// Something cannot be written, or the stream names what is not below `.`.
pub fn unpack(to: Destination<'_>, stream: File) -> Result<NotCopied> {
    let mut reader = TarReader::new(FileStream::new(stream));
    let first = reader.next_entry().map_err(stream_broken)?.ok_or_else(|| nothing("no files have come"))?;
    if !components(&first.path)?.is_empty() {
        return Err(nothing("it begins with another file than the one to be copied"));
    }
    let is_directory = first.kind == EntryKind::Directory;
    let place = Place::of(to, is_directory)?;
    let mut unpacker = match place {
        Place::In { parent, name, shown } => {
            let mut unpacker = Unpacker::new(reader, parent, shown, to.umask);
            if !is_directory {
                unpacker.place(&first, &[&name])?;
                if unpacker.reader.next_entry().map_err(stream_broken)?.is_some() {
                    return Err(nothing("more than one file has come"));
                }
                return unpacker.end();
            }
            let (top, is_new) = unpacker.directory(&[&name])?;
            unpacker.shown.extend([&b"/"[..], &name].concat());
            unpacker.top = top;
            if is_new {
                unpacker.seals.push(Seal::of(&first, vec![]));
            }
            unpacker
        }
        Place::Contents { directory, shown } => Unpacker::new(reader, directory, shown, to.umask),
    };
    while let Some(entry) = unpacker.reader.next_entry().map_err(stream_broken)? {
        unpacker.entry(&entry)?;
    }
    unpacker.end()
}

/// Unpacks any archive into a directory that exists.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_archive(to: Destination<'_>, stream: File) -> Result<NotCopied> {
    let shown = shown(to.of, to.path);
    let directory = open_directory(to.path, &shown)?;
    let mut unpacker = Unpacker::new(TarReader::new(FileStream::new(stream)), directory, shown, to.umask);
    while let Some(entry) = unpacker.reader.next_entry().map_err(stream_broken)? {
        unpacker.entry(&entry)?;
    }
    unpacker.end()
}

/// What a destination comes to.
enum Place {
    /// A new name in a directory, or one that is replaced.
    In { parent: OwnedFd, name: Vec<u8>, shown: Vec<u8> },
    /// The contents of a directory.
    Contents { directory: OwnedFd, shown: Vec<u8> },
}

impl Place {
    fn of(to: Destination<'_>, is_directory: bool) -> Result<Self> {
        let Destination { path, base, of, .. } = to;
        let whole = shown(of, path);
        let text = show(&whole);
        // A link to a directory is followed, as the user has typed it. One to a file is replaced: it may have been put there.
        match std::fs::metadata(path)
            .and_then(|there| if there.is_dir() { Ok(there) } else { path.symlink_metadata() })
        {
            Ok(there) if there.is_dir() => {
                let directory = open_directory(path, &whole)?;
                match base {
                    Some(base) => {
                        Ok(Self::In { parent: directory, name: base.as_bytes().into(), shown: whole })
                    }
                    None if is_directory => Ok(Self::Contents { directory, shown: whole }),
                    None => Err(nothing("the contents of a directory are no file")),
                }
            }
            Ok(_) if is_directory => {
                Err(Fault::new(format!("{text}: it is a file, and a directory cannot be copied onto it"))
                    .hint("name a directory, or a name that does not exist yet")
                    .into())
            }
            Ok(there) if !there.is_file() && !there.is_symlink() => Err(Fault::new(format!(
                "{text}: it is a device, pipe or socket, which a copy does not replace"
            ))
            .hint("name a file or a directory; `-` is standard output, as a tar stream")
            .into()),
            Ok(_) => Self::named(path, of),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if path.as_os_str().as_bytes().ends_with(b"/") && !is_directory {
                    return Err(Fault::new(format!("{text}: there is no such directory"))
                        .hint("make it first, or leave the slash at its end away")
                        .into());
                }
                Self::named(path, of)
            }
            Err(e) => Err(SystemError::new("look at", &whole, e).into()),
        }
    }

    fn named(path: &Path, of: &str) -> Result<Self> {
        let Some(name) = path.file_name() else {
            let text = path.display();
            return Err(Fault::new(format!("{of}{text}: it does not end with a name")).into());
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let shown = shown(of, &parent);
        Ok(Self::In { parent: open_directory(&parent, &shown)?, name: name.as_bytes().into(), shown })
    }
}

/// Opens a directory by the path that the user has given.
fn open_directory(path: &Path, shown: &[u8]) -> Result<OwnedFd> {
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    match openat(CWD, path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let shown = show(shown);
            Err(Fault::new(format!("{shown}: there is no such directory"))
                .hint("make it first: mkdir -p")
                .into())
        }
        opened => Ok(opened.on("open", shown)?),
    }
}

/// The mode and time of a directory, which are set when nothing more is made in it.
struct Seal {
    path: Vec<u8>,
    mode: u16,
    times: Timestamps,
}

impl Seal {
    fn of(entry: &TarEntry, path: Vec<u8>) -> Self {
        Self { path, mode: entry.mode & DIRECTORY_MODE, times: times(entry) }
    }
}

struct Unpacker {
    reader: TarReader<FileStream>,
    /// Nothing is written but below it.
    top: OwnedFd,
    /// The path of `top`, for messages.
    shown: Vec<u8>,
    umask: u16,
    /// The directory in which the last file was made: many come in a row.
    last: Option<(Vec<u8>, OwnedFd)>,
    seals: Vec<Seal>,
    left_out: NotCopied,
}

impl Unpacker {
    fn new(reader: TarReader<FileStream>, top: OwnedFd, shown: Vec<u8>, umask: u16) -> Self {
        Self { reader, top, shown, umask, last: None, seals: vec![], left_out: NotCopied::default() }
    }

    fn entry(&mut self, entry: &TarEntry) -> Result<()> {
        let path = components(&entry.path)?;
        match (&entry.kind, &path[..]) {
            (EntryKind::Directory, []) => Ok(()),
            (_, []) => Err(nothing("a file has come in the place of the directory")),
            (EntryKind::Directory, path) => {
                if let (_, true) = self.directory(path)? {
                    self.seals.push(Seal::of(entry, path.join(&b'/')));
                }
                Ok(())
            }
            (_, path) => self.place(entry, path),
        }
    }

    /// A directory that is there or is made; whether it was made.
    fn directory(&mut self, path: &[&[u8]]) -> Result<(OwnedFd, bool)> {
        let Some((name, parent)) = path.split_last() else { return Err(nothing("a directory has no name")) };
        let about = self.shown(path);
        self.within(parent)?;
        let dir = self.last_or_top();
        let is_new = match mkdirat(dir, *name, Mode::RWXU) {
            Err(Errno::EXIST) => false,
            made => made.map(|()| true).on("make the directory", &about)?,
        };
        match openat(dir, *name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => Err(in_the_way(&about)),
            opened => Ok((opened.on("open", &about)?, is_new)),
        }
    }

    /// Has `last` be the directory of this path; directories that an archive does not name are made.
    fn within(&mut self, path: &[&[u8]]) -> Result<()> {
        let whole = path.join(&b'/');
        if path.is_empty() || self.last.as_ref().is_some_and(|(last, _)| *last == whole) {
            if path.is_empty() {
                self.last = None;
            }
            return Ok(());
        }
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = match openat2(&self.top, &whole[..], DIRECTORY, Mode::empty(), how) {
            Err(Errno::NOENT) => {
                let (made, is_new) = self.directory(path)?;
                if is_new {
                    fchmod(&made, Mode::from_raw_mode((0o777 & !self.umask).into()))
                        .on("set the mode of", self.shown(path))?;
                }
                made
            }
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(in_the_way(&self.shown(path))),
            opened => opened.on("open", self.shown(path))?,
        };
        self.last = Some((whole, opened));
        Ok(())
    }

    fn last_or_top(&self) -> &OwnedFd {
        self.last.as_ref().map_or(&self.top, |(_, dir)| dir)
    }

    /// Anything but a directory: it is made under another name, and put in its place when it is whole.
    fn place(&mut self, entry: &TarEntry, path: &[&[u8]]) -> Result<()> {
        let Some((name, parent)) = path.split_last() else { return Err(nothing("a file has no name")) };
        let about = self.shown(path);
        // Opened before the directory is: opening it may change which one was the last.
        let linked = match &entry.kind {
            EntryKind::HardLink(target) => {
                let target = components(target)?;
                let Some((name, parent)) = target.split_last() else {
                    return Err(nothing("a hard link leads to the directory itself"));
                };
                self.within(parent)?;
                let dir = self.last_or_top().try_clone().on("open", &about)?;
                Some((dir, name.to_vec()))
            }
            _ => None,
        };
        self.within(parent)?;
        let dir = self.last_or_top().try_clone().on("open", &about)?;
        let made = match &entry.kind {
            EntryKind::File(_) | EntryKind::Sparse { .. } => self.file(entry, &dir, &about)?,
            EntryKind::Symlink(target) => {
                let made =
                    temporary(|name| symlinkat(&target[..], &dir, name)).on("make the link", &about)?;
                utimensat(&dir, &made, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
                    .ignore_error("a link is no worse for its time");
                made
            }
            EntryKind::HardLink(_) => {
                let Some((from, old)) = linked else { return Ok(()) };
                temporary(|name| linkat(&from, &old[..], &dir, name, AtFlags::empty()))
                    .on("make the link", &about)?
            }
            _ => {
                self.left_out.special += 1;
                return Ok(());
            }
        };
        let placed = renameat(&dir, &made, &dir, *name);
        if placed.is_err() || matches!(entry.kind, EntryKind::HardLink(_)) {
            // Of two names of one file the kernel renames neither.
            unlinkat(&dir, &made, AtFlags::empty()).ignore_error("it is there only if it was not renamed");
        }
        match placed {
            Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {
                let about = show(&about);
                Err(Fault::new(format!("{about}: it is a directory, and a file cannot be copied onto it"))
                    .hint("remove it first, or copy to another name")
                    .into())
            }
            placed => Ok(placed.on("replace", &about)?),
        }
    }

    /// A file under another name, with its bytes, mode and time.
    fn file(&mut self, entry: &TarEntry, dir: &OwnedFd, about: &[u8]) -> Result<String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut opened = None;
        let name = temporary(|name| {
            opened = Some(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
            Ok(())
        })
        .on("make", about)?;
        let Some(file) = opened else { return Err(nothing("a file was not opened")) };
        let mode = file_mode(entry.mode, &mut self.left_out) & !self.umask;
        let done = self.bytes(entry, &file, about).and_then(|()| {
            fchmod(&file, Mode::from_raw_mode(mode.into())).on("set the mode of", about)?;
            Ok(futimens(&file, &times(entry)).on("set the time of", about)?)
        });
        match done {
            Ok(()) => Ok(name),
            Err(e) => {
                unlinkat(dir, &name, AtFlags::empty())
                    .ignore_error("what it was made for has failed already");
                Err(e)
            }
        }
    }

    /// The bytes of the current entry. Zeros become holes: a file that takes no room where it comes from takes none here.
    fn bytes(&mut self, entry: &TarEntry, file: &OwnedFd, about: &[u8]) -> Result<()> {
        let (size, map) = match &entry.kind {
            EntryKind::Sparse { size, map } => (*size, map.clone()),
            EntryKind::File(size) => (*size, vec![Segment { offset: 0, len: *size }]),
            _ => return Ok(()),
        };
        for segment in map {
            let (mut at, mut left) = (segment.offset, segment.len);
            while left > 0 {
                let data = self.reader.data().map_err(stream_broken)?;
                let len = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if len == 0 {
                    return Err(nothing("a file ends too early"));
                }
                if data[..len].iter().any(|byte| *byte != 0) {
                    write_all_at(file.as_fd(), &data[..len], at).on("write to", about)?;
                }
                self.reader.consume(len);
                at += len as u64;
                left -= len as u64;
            }
        }
        Ok(ftruncate(file, size).on("write to", about)?)
    }

    /// Sets what making files in them would have changed of directories; and takes the rest of the stream.
    fn end(self) -> Result<NotCopied> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        for Seal { path, mode, times } in self.seals.into_iter().rev() {
            let about = [&self.shown, &b"/"[..], &path].concat();
            let place = if path.is_empty() { &b"."[..] } else { &path };
            let dir = openat2(&self.top, place, DIRECTORY, Mode::empty(), how).on("open", &about)?;
            futimens(&dir, &times).on("set the time of", &about)?;
            fchmod(&dir, Mode::from_raw_mode((mode & !self.umask).into())).on("set the mode of", &about)?;
        }
        let mut stream = self.reader.into_stream();
        stream.drain().map_err(|e| CopyError::Stream(Fault::new(format!("stream of files: {e}"))))?;
        Ok(self.left_out)
    }

    fn shown(&self, path: &[&[u8]]) -> Vec<u8> {
        let slash: &[u8] = if self.shown.ends_with(b"/") { b"" } else { b"/" };
        [&self.shown, slash, &path.join(&b'/')].concat()
    }
}

/// Makes something under a name that nothing has.
fn temporary(mut make: impl FnMut(&str) -> rustix::io::Result<()>) -> rustix::io::Result<String> {
    let pid = std::process::id();
    for number in 0..NAMES {
        let name = format!(".skiff-cp-{pid}-{number}");
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return made.map(|()| name),
        }
    }
    Err(Errno::EXIST)
}

/// The names in a path, which may not lead upwards. What is absolute counts from the destination.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    match names.iter().any(|name| *name == b".." || name.contains(&0)) {
        true => {
            let path = show(path);
            Err(Fault::new(format!("{path}: a name in the stream of files leads out of the destination"))
                .hint("nothing is written outside of the destination: have the archive made without `..`")
                .into())
        }
        false => Ok(names),
    }
}

fn times(entry: &TarEntry) -> Timestamps {
    let time = Timespec { tv_sec: entry.mtime, tv_nsec: entry.mtime_nsec.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn shown(of: &str, path: &Path) -> Vec<u8> {
    [of.as_bytes(), path.as_os_str().as_bytes()].concat()
}

fn in_the_way(about: &[u8]) -> CopyError {
    let about = show(about);
    Fault::new(format!("{about}: it is a link or a file, and a directory is to be there"))
        .hint("remove it first, or copy to another name; links below the destination are not followed")
        .into()
}

fn nothing(why: &str) -> CopyError {
    CopyError::Stream(Fault::new(format!("stream of files: {why}")))
}

fn stream_broken(e: Error<std::io::Error>) -> CopyError {
    CopyError::Stream(Fault::new(match e {
        Error::Bad(why) => format!("stream of files: {why}"),
        Error::Stream(e) => format!("stream of files: {e}"),
    }))
}
