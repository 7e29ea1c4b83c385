//! The side that writes: a tar stream as files below a directory.
//!
//! Whatever the stream names, each file is made in a directory that was opened below the destination without following a link, under a name of
//! its own, and then put in its place: so what was there before is replaced and never written through.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown, ftruncate,
    futimens, linkat, mkdirat, openat, openat2, renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use skiff_spec::fault::Fault;
use skiff_sys::error::show;
use skiff_sys::positional::write_all_at;
use skiff_sys::{IgnoreError, SystemContext};
use skiff_tar::{EntryKind, Error, Segment, TarEntry, TarReader};

use crate::destination::{DIRECTORY, Destination, ResolvedDestination, Rights, open_directory, shown};
use crate::stream::{FileStream, bad_stream};
use crate::{CopyError, DIRECTORY_MODE, NotCopied, Result, file_mode};

/// How many names are tried for a file that is being written.
const NAMES: u32 = 1000;

/// Unpacks a file, link or tree that [`pack`](crate::pack()) has named `.`.
///
/// # Errors
/// Something cannot be written, or the stream names what is not below `.`.
pub fn unpack(to: Destination<'_>, stream: File) -> Result<NotCopied> {
    let mut reader = TarReader::new(FileStream::new(stream));
    let first =
        reader.next_entry().map_err(stream_broken)?.ok_or_else(|| bad_stream("no files have come"))?;
    if !components(&first.path)?.is_empty() {
        return Err(bad_stream("it begins with another file than the one to be copied"));
    }
    let is_directory = first.kind == EntryKind::Directory;
    let place = ResolvedDestination::of(to, is_directory)?;
    let mut unpacker = match place {
        ResolvedDestination::In { parent, name, shown } => {
            let mut unpacker = Unpacker::new(reader, parent, shown, (to.umask, to.rights));
            if !is_directory {
                unpacker.place(&first, &[&name])?;
                if unpacker.reader.next_entry().map_err(stream_broken)?.is_some() {
                    return Err(bad_stream("more than one file has come"));
                }
                return unpacker.end();
            }
            let (top, is_new) = unpacker.directory(&[&name])?;
            unpacker.shown.extend([&b"/"[..], &name].concat());
            unpacker.top = top;
            if is_new {
                unpacker.seals.push(Seal::of(&first, vec![], to.rights));
            }
            unpacker
        }
        ResolvedDestination::Contents { directory, shown } => {
            Unpacker::new(reader, directory, shown, (to.umask, to.rights))
        }
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
    let reader = TarReader::new(FileStream::new(stream));
    let mut unpacker = Unpacker::new(reader, directory, shown, (to.umask, to.rights));
    while let Some(entry) = unpacker.reader.next_entry().map_err(stream_broken)? {
        unpacker.entry(&entry)?;
    }
    unpacker.end()
}

/// The mode and time of a directory, which are set when nothing more is made in it.
struct Seal {
    path: Vec<u8>,
    mode: u16,
    owner: Option<(u32, u32)>,
    times: Timestamps,
}

impl Seal {
    fn of(entry: &TarEntry, path: Vec<u8>, rights: Rights) -> Self {
        let mode = if rights == Rights::Plain { DIRECTORY_MODE } else { 0o7777 };
        let owner = rights.owner((entry.uid, entry.gid));
        Self { path, mode: entry.mode & mode, owner, times: times(entry) }
    }
}

struct Unpacker {
    reader: TarReader<FileStream>,
    /// Nothing is written but below it.
    top: OwnedFd,
    /// The path of `top`, for messages.
    shown: Vec<u8>,
    umask: u16,
    rights: Rights,
    /// The directory in which the last file was made: many come in a row.
    last: Option<(Vec<u8>, OwnedFd)>,
    seals: Vec<Seal>,
    left_out: NotCopied,
}

impl Unpacker {
    fn new(
        reader: TarReader<FileStream>,
        top: OwnedFd,
        shown: Vec<u8>,
        (umask, rights): (u16, Rights),
    ) -> Self {
        Self { reader, top, shown, umask, rights, last: None, seals: vec![], left_out: NotCopied::default() }
    }

    fn entry(&mut self, entry: &TarEntry) -> Result<()> {
        let path = components(&entry.path)?;
        match (&entry.kind, &path[..]) {
            (EntryKind::Directory, []) => Ok(()),
            (_, []) => Err(bad_stream("a file has come in the place of the directory")),
            (EntryKind::Directory, path) => {
                if let (_, true) = self.directory(path)? {
                    self.seals.push(Seal::of(entry, path.join(&b'/'), self.rights));
                }
                Ok(())
            }
            (_, path) => self.place(entry, path),
        }
    }

    /// A directory that is there or is made; whether it was made.
    fn directory(&mut self, path: &[&[u8]]) -> Result<(OwnedFd, bool)> {
        let Some((name, parent)) = path.split_last() else {
            return Err(bad_stream("a directory has no name"));
        };
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
        let Some((name, parent)) = path.split_last() else { return Err(bad_stream("a file has no name")) };
        let about = self.shown(path);
        // Opened before the directory is: opening it may change which one was the last.
        let linked = match &entry.kind {
            EntryKind::HardLink(target) => {
                let target = components(target)?;
                let Some((name, parent)) = target.split_last() else {
                    return Err(bad_stream("a hard link leads to the directory itself"));
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
                let made = temporary(|name| symlinkat(&target[..], &dir, name));
                let (made, ()) = made.on("make the link", &about)?;
                if let Some((user, group)) = self.owner(entry) {
                    chownat(&dir, &made, user, group, AtFlags::SYMLINK_NOFOLLOW)
                        .on("set the owner of", &about)?;
                }
                utimensat(&dir, &made, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
                    .ignore_error("a link is no worse for its time");
                made
            }
            EntryKind::HardLink(_) => {
                let Some((from, old)) = linked else { return Ok(()) };
                let made = temporary(|name| linkat(&from, &old[..], &dir, name, AtFlags::empty()));
                made.on("make the link", &about)?.0
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
                Err(Fault::new(format!("{about} is a directory; a file cannot replace it"))
                    .hint("remove it first, or copy to another name")
                    .into())
            }
            placed => Ok(placed.on("replace", &about)?),
        }
    }

    /// A file under another name, with its bytes, mode and time.
    fn file(&mut self, entry: &TarEntry, dir: &OwnedFd, about: &[u8]) -> Result<String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = temporary(|name| openat(dir, name, flags, Mode::RUSR | Mode::WUSR));
        let (name, file) = made.on("make", about)?;
        let mode = file_mode(entry.mode, self.rights, &mut self.left_out) & !self.umask;
        let owner = self.owner(entry);
        let done = self.bytes(entry, &file, about).and_then(|()| {
            // Before the mode, of which a new owner takes bits away.
            if let Some((user, group)) = owner {
                fchown(&file, user, group).on("set the owner of", about)?;
            }
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

    /// Whom an entry's file belongs to, if not to whoever unpacks it.
    fn owner(&self, entry: &TarEntry) -> Option<(Option<Uid>, Option<Gid>)> {
        self.rights.owner((entry.uid, entry.gid)).map(as_ids)
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
                    return Err(bad_stream("a file ends too early"));
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
        for Seal { path, mode, owner, times } in self.seals.into_iter().rev() {
            let about = [&self.shown, &b"/"[..], &path].concat();
            let place = if path.is_empty() { &b"."[..] } else { &path };
            let dir = openat2(&self.top, place, DIRECTORY, Mode::empty(), how).on("open", &about)?;
            if let Some((user, group)) = owner.map(as_ids) {
                fchown(&dir, user, group).on("set the owner of", &about)?;
            }
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
fn temporary<T>(make: impl Fn(&str) -> rustix::io::Result<T>) -> rustix::io::Result<(String, T)> {
    let pid = std::process::id();
    for number in 0..NAMES {
        let name = format!(".skiff-cp-{pid}-{number}");
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (name, made)),
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

fn as_ids((user, group): (u32, u32)) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
}

fn in_the_way(about: &[u8]) -> CopyError {
    let about = show(about);
    Fault::new(format!("{about} is a link or a file, not a directory"))
        .hint("remove it first, or copy to another name; links below the destination are not followed")
        .into()
}

fn stream_broken(e: Error<std::io::Error>) -> CopyError {
    CopyError::Stream(Fault::new(match e {
        Error::Bad(why) => format!("stream of files: {why}"),
        Error::Stream(e) => format!("stream of files: {e}"),
    }))
}
