//! The side that reads: a file or a tree as a tar stream.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat, openat2,
    readlinkat, statat,
};
use rustix::io::Errno;
use skiff_spec::fault::Fault;
use skiff_sys::SystemContext;
use skiff_sys::error::show;
use skiff_sys::positional::read_at;
use skiff_tar::{EntryKind, Segment, TarEntry, Writer};

use crate::{CopyError, DIRECTORY_MODE, NotCopied, Result, Rights, file_mode, holes};

const PIECE: usize = 256 << 10;

/// How what is opened is read: nothing waits for whoever would write to a pipe, and no link is followed.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// File systems in which the kernel shows its state: cgroup, cgroup2, debugfs, devpts, proc, securityfs, selinuxfs, sysfs and tracefs.
const OF_KERNEL: [u32; 9] = [
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x0000_1cd1,
    0x0000_9fa0,
    0x7363_6673,
    0xf97c_ff8c,
    0x6265_6572,
    0x7472_6163,
];

/// What is to be packed.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// Whether a symbolic link in its place is followed.
    pub follow: bool,
    /// What it is called in the stream; what is below it comes behind that.
    pub name: &'a [u8],
    /// In front of paths in messages: whose they are.
    pub of: &'a str,
    /// Whether holes are left out of the stream, as GNU tar's form 1.0 of sparse files has it: not every program reads that.
    pub holes: bool,
}

/// Writes a file, link or tree to `out` as a tar stream.
///
/// # Errors
/// Something cannot be read, or the stream not be written.
pub fn pack(packed: Packed<'_>, out: File) -> Result<NotCopied> {
    let writer = Writer::new(BufWriter::with_capacity(PIECE, out));
    let mut packer = Packer { packed, writer, links: HashMap::new(), left_out: NotCopied::default() };
    packer.top()?;
    packer.writer.end().map_err(broken_off)?;
    packer.writer.into_inner().flush().map_err(broken_off)?;
    Ok(packer.left_out)
}

struct Packer<'a> {
    packed: Packed<'a>,
    writer: Writer<BufWriter<File>>,
    /// Files with several names: the first one.
    links: HashMap<(u64, u64), Vec<u8>>,
    left_out: NotCopied,
}

impl Packer<'_> {
    fn top(&mut self) -> Result<()> {
        let Packed { path, follow, .. } = self.packed;
        let shown = self.shown(b"");
        let unfollowed = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::PATH | OFlags::CLOEXEC | unfollowed;
        let found = openat(CWD, path, flags, Mode::empty()).on("open", &shown)?;
        let stat = fstat(&found).on("look at", &shown)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let top = openat(&found, ".", READ | OFlags::DIRECTORY, Mode::empty()).on("open", &shown)?;
                if is_of_kernel(&top) {
                    return Err(of_kernel(&shown).into());
                }
                self.tree(&top)
            }
            FileType::RegularFile => {
                let flags = if follow { READ.difference(OFlags::NOFOLLOW) } else { READ };
                let file = openat(CWD, path, flags, Mode::empty()).on("open", &shown)?;
                if is_of_kernel(&file) {
                    return Err(of_kernel(&shown).into());
                }
                self.file(&file, b"")
            }
            FileType::Symlink => {
                let target = readlinkat(&found, "", vec![]).on("read", &shown)?;
                self.entry(b"", &stat, EntryKind::Symlink(target.into_bytes()))
            }
            _ => Err(Fault::new(format!("{shown}: a device, pipe or socket cannot be copied"))
                .hint("only files, directories and symbolic links can")
                .into()),
        }
    }

    /// A directory and all below it. Of its directories one at a time is open.
    fn tree(&mut self, top: &OwnedFd) -> Result<()> {
        let mut pending = vec![vec![]];
        while let Some(path) = pending.pop() {
            let dir = match open_below(top.as_fd(), &path) {
                // It was removed or replaced after it was found.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !path.is_empty() => continue,
                dir => dir.on("open", self.shown(&path)),
            };
            let Some(dir) = self.left_out.unless_unread(dir) else { continue };
            if is_of_kernel(&dir) {
                self.left_out.kernel += 1;
                continue;
            }
            let stat = fstat(&dir).on("look at", self.shown(&path))?;
            self.entry(&path, &stat, EntryKind::Directory)?;
            let names = names(&dir).on("read", self.shown(&path));
            for name in self.left_out.unless_unread(names).into_iter().flatten() {
                let child = if path.is_empty() { name.clone() } else { [&path, &b"/"[..], &name].concat() };
                match self.child(&dir, &name, &child)? {
                    FileType::Directory => pending.push(child),
                    FileType::RegularFile | FileType::Symlink => {}
                    _ => self.left_out.special += 1,
                }
            }
        }
        Ok(())
    }

    /// What a directory has under this name, unless that is a directory itself. What cannot be opened is noted.
    fn child(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8]) -> Result<FileType> {
        let gone = Ok(FileType::RegularFile);
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return gone,
            stat => stat.on("look at", self.shown(path)),
        };
        let Some(stat) = self.left_out.unless_unread(stat) else { return gone };
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::RegularFile => match openat(dir, name, READ, Mode::empty()) {
                Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return gone,
                file => {
                    let file = file.on("open", self.shown(path));
                    if let Some(file) = self.left_out.unless_unread(file) {
                        self.file(&file, path)?;
                    }
                }
            },
            FileType::Symlink => match readlinkat(dir, name, vec![]) {
                Err(Errno::NOENT | Errno::INVAL) => return gone,
                target => {
                    let target = target.on("read", self.shown(path));
                    if let Some(target) = self.left_out.unless_unread(target) {
                        self.entry(path, &stat, EntryKind::Symlink(target.into_bytes()))?;
                    }
                }
            },
            _ => {}
        }
        Ok(kind)
    }

    fn file(&mut self, file: &OwnedFd, path: &[u8]) -> Result<()> {
        let shown = self.shown(path);
        let stat = fstat(file).on("look at", &shown)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            self.left_out.special += 1;
            return Ok(());
        }
        if stat.st_nlink > 1 {
            let id = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&id).cloned() {
                return self.entry(path, &stat, EntryKind::HardLink(first));
            }
            self.links.insert(id, self.name(path));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let (kind, parts) = match self.packed.holes.then(|| holes::parts(file.as_fd(), &stat)).flatten() {
            Some(map) => (EntryKind::Sparse { size, map: map.clone() }, map),
            None => (EntryKind::File(size), vec![Segment { offset: 0, len: size }]),
        };
        self.entry(path, &stat, kind)?;
        let mut buffer = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
        parts.iter().try_for_each(|part| self.part(file, part, &mut buffer, &shown))
    }

    /// The bytes of a file's part.
    fn part(&mut self, file: &OwnedFd, part: &Segment, buffer: &mut [u8], shown: &str) -> Result<()> {
        let (mut at, end) = (part.offset, part.offset + part.len);
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let count = read_at(file.as_fd(), &mut buffer[..wanted], at).on("read", shown)?;
            if count == 0 {
                return Err(Fault::new(format!("{shown} was truncated while it was copied"))
                    .hint("copy it again when nobody writes to it")
                    .into());
            }
            self.writer.data(&buffer[..count]).map_err(broken_off)?;
            at += count as u64;
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], stat: &Stat, kind: EntryKind) -> Result<()> {
        let bits = (stat.st_mode & 0o7777) as u16;
        let mode = match kind {
            EntryKind::Directory => bits & DIRECTORY_MODE,
            EntryKind::File(_) | EntryKind::Sparse { .. } => {
                file_mode(bits, Rights::Plain, &mut self.left_out)
            }
            _ => bits & 0o777,
        };
        // As other programs write a directory's name.
        let slash: &[u8] = if kind == EntryKind::Directory { b"/" } else { b"" };
        let entry = TarEntry {
            path: [&self.name(path)[..], slash].concat(),
            kind,
            mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            mtime_nsec: stat.st_mtime_nsec as u32,
            xattrs: vec![],
        };
        self.writer.entry(&entry).map_err(broken_off)
    }

    /// What a file is called in the stream.
    fn name(&self, path: &[u8]) -> Vec<u8> {
        match path {
            [] => self.packed.name.to_vec(),
            path => [self.packed.name, b"/", path].concat(),
        }
    }

    fn shown(&self, path: &[u8]) -> String {
        let Packed { path: top, of, .. } = self.packed;
        let top = top.as_os_str().as_bytes();
        let slash: &[u8] = if path.is_empty() || top.ends_with(b"/") { b"" } else { b"/" };
        show(&[of.as_bytes(), top, slash, path].concat())
    }
}

fn open_below(top: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(top, path, READ | OFlags::DIRECTORY, Mode::empty(), how)
}

/// The names in a directory, in order.
fn names(dir: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = vec![];
    for entry in Dir::read_from(dir)? {
        let name = match entry {
            // It was removed after it was opened.
            Err(Errno::NOENT) => break,
            entry => entry?.file_name().to_bytes().to_vec(),
        };
        if !matches!(&name[..], b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn is_of_kernel(file: &OwnedFd) -> bool {
    // The types are numbers of 32 bits.
    fstatfs(file).is_ok_and(|status| OF_KERNEL.contains(&(status.f_type as u32)))
}

fn of_kernel(shown: &str) -> Fault {
    Fault::new(format!("{shown}: the kernel shows its state there, which has no size until it is read"))
        .hint("`skiff exec NAME cat PATH` prints such a file")
}

fn broken_off(e: std::io::Error) -> CopyError {
    let fault = Fault::new(format!("stream of files: {e}"));
    match e.kind() {
        std::io::ErrorKind::BrokenPipe => CopyError::Stream(fault),
        _ => CopyError::Here(fault),
    }
}
