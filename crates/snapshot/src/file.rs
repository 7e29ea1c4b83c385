//! Small whole files: read with a bound, written so that no reader ever sees half of one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::Result;
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
    let mut filled = 0;
    while filled < length {
        let from = at.checked_add(filled as u64).ok_or(Errno::INVAL)?;
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes[filled..], from))? {
            0 => break,
            got => filled += got,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// A file under a temporary name. Dropped before [`Temp::publish`], it is removed.
pub(crate) struct Temp<'a> {
    dir: BorrowedFd<'a>,
    name: String,
    kept: bool,
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
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok((Temp { dir, name, kept: false }, file)),
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
        match rustix::fs::renameat(self.dir, &self.name, self.dir, name) {
            Ok(()) => {}
            // NFS: the server did it, its answer was lost, and the repeated request found nothing.
            Err(Errno::NOENT) => {
                rustix::fs::statat(self.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Err(errno) => return Err(errno),
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: the error that brought us here is the one to tell; old ones are pruned.
            let (Ok(()) | Err(_)) = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
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
    write_all(file.as_fd(), bytes).on("write to", temp.name())?;
    Ok(temp.publish(name).on("rename into place", name)?)
}

/// Replaces the file `name` so that it also survives a crash of the machine.
pub(crate) fn write_durably(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<()> {
    let (temp, file) = Temp::create(dir)?;
    write_all(file.as_fd(), bytes).on("write to", temp.name())?;
    rustix::fs::fsync(&file).on("sync", temp.name())?;
    temp.publish(name).on("rename into place", name)?;
    Ok(rustix::fs::fsync(dir).on("sync", name)?)
}
