//! A file without a name that holds the ends of a layer's files until the image's metadata, beside which they go, is written.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use skiff_sys::positional::{read_exact_at, write_all_at};

use crate::Result;
use skiff_sys::SystemContext;

const GATHER: usize = 256 << 10;

/// Bytes appended, to be read later from anywhere.
pub struct Spill {
    file: OwnedFd,
    name: String,
    /// Not written yet.
    gathered: Vec<u8>,
    written: u64,
}

impl Spill {
    /// A new one on the file system of this directory, whose name is for messages.
    ///
    /// # Errors
    /// It cannot be made there.
    pub fn new(directory: BorrowedFd<'_>, name: &str) -> Result<Spill> {
        let file = nameless(directory).on("make a temporary file in", name)?;
        Ok(Spill { file, name: format!("a temporary file in {name}"), gathered: vec![], written: 0 })
    }

    /// Where the next byte will lie.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.written + self.gathered.len() as u64
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= GATHER { self.write() } else { Ok(()) }
    }

    /// Writes what is gathered. Reads need it, and the memory is free again.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.write()?;
        self.gathered = Vec::new();
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        write_all_at(self.file.as_fd(), &self.gathered, self.written).on("write to", &self.name)?;
        self.written += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Forgets all of it.
    pub(crate) fn reset(&mut self) {
        self.gathered.clear();
        self.written = 0;
    }

    /// Reads exactly these bytes.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        Ok(read_exact_at(self.file.as_fd(), buffer, offset).on("read", &self.name)?)
    }
}

/// A file without a name, on the file system of a directory, whose name is for messages.
///
/// # Errors
/// It cannot be made there.
pub fn new_file(directory: BorrowedFd<'_>, name: &str) -> Result<File> {
    Ok(nameless(directory).map(File::from).on("make a temporary file in", name)?)
}

/// A new file without a name in a directory.
pub(crate) fn nameless(directory: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match openat(directory, ".", flags | OFlags::TMPFILE, mode) {
        // NFS and others cannot: some say so, older ones take the flag for O_DIRECTORY.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
        result => return result,
    }
    let mut tries = 0;
    loop {
        let name = format!(".spill.{}.{tries}", std::process::id());
        match openat(directory, &name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) => tries += 1,
            Err(error) => return Err(error),
            Ok(file) => return unlinkat(directory, &name, AtFlags::empty()).map(|()| file),
        }
    }
}
