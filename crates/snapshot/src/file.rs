//! Small whole files: read with a bound, written so that no reader ever sees half of one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::error::Result;
use skiff_sys::positional::read_at;
use skiff_sys::{SystemContext, SystemError};

/// How the names of files that are not finished begin.
pub(crate) const TEMP_PREFIX: &str = ".new-";

/// All of a file; nothing if it is longer than `limit` bytes.
pub(crate) fn read_to_end(file: BorrowedFd<'_>, limit: u64) -> rustix::io::Result<Option<Vec<u8>>> {
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    if size > limit {
        return Ok(None);
    }
    let mut bytes = vec![0; size as usize + 1];
    let mut filled = 0;
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut bytes[filled..]))? {
            0 => break,
            got => filled += got,
        }
        if filled as u64 > limit {
            return Ok(None);
        }
        if filled == bytes.len() {
            bytes.resize(filled * 2, 0);
        }
    }
    bytes.truncate(filled);
    Ok(Some(bytes))
}

/// So many bytes of a file from there on; fewer if it ends before.
pub fn read_at_most(file: BorrowedFd<'_>, length: usize, at: u64) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let filled = read_at(file, &mut bytes, at)?;
    bytes.truncate(filled);
    Ok(bytes)
}

/// A file that is not finished: without a name, where that can be, so that one whose writer is killed goes at once; else (on NFS) under a
/// temporary name. Dropped before [`Temp::publish`], it is removed.
pub(crate) struct Temp<'a> {
    dir: BorrowedFd<'a>,
    name: String,
    /// The file, as long as it has no name.
    nameless: Option<OwnedFd>,
    has_name: bool,
}

impl<'a> Temp<'a> {
    /// Makes one in `dir`, writable for its owner only. Its name differs from that of any other process on any node.
    pub(crate) fn create(dir: BorrowedFd<'a>) -> Result<(Temp<'a>, OwnedFd)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let host = rustix::system::uname().nodename().to_string_lossy().replace(['/', '\0'], "_");
            let pid = rustix::process::getpid().as_raw_nonzero();
            let clock = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{TEMP_PREFIX}{host}-{pid}-{count}-{:x}{:08x}", clock.tv_sec, clock.tv_nsec);
            if let Some((file, nameless)) = create_nameless(dir) {
                return Ok((Temp { dir, name, nameless: Some(nameless), has_name: false }, file));
            }
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok((Temp { dir, name, nameless: None, has_name: true }, file)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(SystemError::new("create", name, errno).into()),
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Gives the file its final name, in place of what had it.
    pub(crate) fn publish(mut self, name: &str) -> rustix::io::Result<()> {
        if let Some(file) = self.nameless.take() {
            // No link replaces a file: a rename does.
            rustix::fs::linkat(self.dir, proc_path(&file), self.dir, &self.name, AtFlags::SYMLINK_FOLLOW)?;
            self.has_name = true;
        }
        match rustix::fs::renameat(self.dir, &self.name, self.dir, name) {
            Ok(()) => {}
            // NFS: the server did it, its answer was lost, and the repeated request found nothing.
            Err(Errno::NOENT) => {
                rustix::fs::statat(self.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Err(errno) => return Err(errno),
        }
        self.has_name = false;
        Ok(())
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if self.has_name {
            // Best effort: the error that brought us here is the one to tell; a collection removes old ones.
            let (Ok(()) | Err(_)) = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// A file without a name in a directory, twice open; nothing where its file system has none, or where none could be given a name later.
fn create_nameless(dir: BorrowedFd<'_>) -> Option<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    let other = fcntl_dupfd_cloexec(&file, 0).ok()?;
    rustix::fs::statat(dir, proc_path(&other), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((file, other))
}

/// An absolute path that leads to the descriptor, whatever directory it counts from.
fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

pub(crate) fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))? {
            0 => return Err(Errno::IO),
            now => bytes = &bytes[now..],
        }
    }
    Ok(())
}

/// Replaces the file `name`. Not synced: for what may be lost with the machine.
pub(crate) fn write_atomically(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<()> {
    let (temp, file) = Temp::create(dir)?;
    write_all(file.as_fd(), bytes).on("write to", path_of(dir, name))?;
    Ok(temp.publish(name).on("rename into place", path_of(dir, name))?)
}

/// Replaces the file `name` so that it also survives a crash of the machine.
pub(crate) fn write_durably(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<()> {
    let (temp, file) = Temp::create(dir)?;
    let path = || path_of(dir, name);
    write_all(file.as_fd(), bytes).on("write to", path())?;
    rustix::fs::fsync(&file).on("sync", path())?;
    temp.publish(name).on("rename into place", path())?;
    Ok(rustix::fs::fsync(dir).on("sync", path())?)
}

/// The path of a file in a directory, for messages: a name alone says nothing of whose disk is full.
fn path_of(dir: BorrowedFd<'_>, name: &str) -> Vec<u8> {
    let known = rustix::fs::readlink(format!("/proc/self/fd/{}", dir.as_raw_fd()), vec![]);
    let dir = known.map_or_else(|_| vec![], |dir| [dir.as_bytes(), b"/"].concat());
    [&dir[..], name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_file_could_not_be_written_is_said() {
        let place = std::env::temp_dir().canonicalize().expect("a directory");
        let dir = std::fs::File::open(&place).expect("the directory");
        assert_eq!(path_of(dir.as_fd(), "x"), place.join("x").into_os_string().into_encoded_bytes());
    }

    #[test]
    fn what_is_not_finished_has_no_name_and_replaces_what_has_one() {
        let place = std::env::temp_dir().join(format!("skiff-temp.{}", std::process::id()));
        std::fs::create_dir(&place).expect("a directory");
        let dir = std::fs::File::open(&place).expect("the directory");
        let names = || std::fs::read_dir(&place).expect("the directory").count();
        for text in ["one", "two"] {
            let before = names();
            let (temp, file) = Temp::create(dir.as_fd()).expect("a file");
            write_all(file.as_fd(), text.as_bytes()).expect("written");
            assert_eq!(names(), before, "one whose writer is killed would leave a file");
            drop(file);
            temp.publish("file").expect("a name");
            assert_eq!(std::fs::read_to_string(place.join("file")).expect("the file"), text);
        }
        drop(Temp::create(dir.as_fd()).expect("a file"));
        assert_eq!(names(), 1);
        std::fs::remove_dir_all(&place).expect("removed");
    }
}
