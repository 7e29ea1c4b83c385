//! Where the parts of an image lie: side by side in a directory, or one behind the other in an archive.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use skiff_erofs::ReadAt;
use skiff_oci::digest::Digest;
use skiff_oci::manifest::MAX_DOCUMENT;
use skiff_sys::positional::read_exact_at;

use crate::blob::FileBlob;
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// A file, or a part of one.
#[derive(Debug, Clone)]
pub struct FilePart {
    /// The file that holds it.
    pub file: Arc<File>,
    /// Name of the file, for messages.
    pub name: String,
    /// Where it begins in the file.
    pub offset: u64,
    /// How many bytes it has.
    pub size: u64,
}

impl ReadAt for FilePart {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.size)
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> std::io::Result<()> {
        let end = at.checked_add(buffer.len() as u64).filter(|end| *end <= self.size);
        end.ok_or(Errno::NODATA)?;
        Ok(read_exact_at(self.file.as_fd(), buffer, self.offset + at)?)
    }
}

/// Files by their paths, which are relative and have slashes between names.
pub trait ImageFiles {
    /// What holds them, for messages.
    fn name(&self) -> &str;

    /// One of them; `None` if there is none.
    ///
    /// # Errors
    /// It is no regular file, or cannot be opened.
    fn find(&self, path: &str) -> Result<Option<FilePart>>;

    /// All of them as one tar stream, if that is what they are and it holds the files of a root.
    fn root(&self) -> Option<FilePart> {
        None
    }
}

impl FilePart {
    /// All of a file, which must be a regular one.
    ///
    /// # Errors
    /// It is none.
    pub fn whole(file: File, name: String) -> Result<FilePart> {
        FilePart::of(Arc::new(file), name)
    }

    fn of(file: Arc<File>, name: String) -> Result<FilePart> {
        let stat = fstat(&*file).on("look at", &name)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::Foreign { object: name, why: "it is not a regular file".into(), hint: None });
        }
        Ok(FilePart { file, name, offset: 0, size: stat.st_size as u64 })
    }

    /// Fills the buffer from a place in it.
    ///
    /// # Errors
    /// It is shorter, or cannot be read.
    pub fn read(&self, buffer: &mut [u8], at: u64) -> Result<()> {
        let end = at.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(SystemError::new("read", &self.name, Errno::NODATA).into());
        }
        Ok(read_exact_at(self.file.as_fd(), buffer, self.offset + at).on("read", &self.name)?)
    }

    /// Reads the file, if it is no longer than manifests may be.
    ///
    /// # Errors
    /// It is longer, or cannot be read.
    pub fn document(&self) -> Result<Vec<u8>> {
        if self.size > MAX_DOCUMENT {
            let why = format!("it has {} bytes; {MAX_DOCUMENT} are the limit", self.size);
            return Err(Error::unsound(self.name.clone(), why));
        }
        let mut bytes = vec![0; self.size as usize];
        self.read(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// As a layer, which must have the digest.
    #[must_use]
    pub fn blob(&self, digest: Digest) -> FileBlob {
        let file = Arc::clone(&self.file);
        FileBlob::part(file, self.name.clone(), self.offset, self.size, Some(digest))
    }
}

/// The files below a directory. Links lead nowhere else: whoever opens them may see more than the one who gave the directory.
pub struct Directory {
    dir: OwnedFd,
    name: String,
}

impl Directory {
    /// An open directory.
    pub fn new(dir: OwnedFd, name: String) -> Directory {
        Directory { dir, name }
    }
}

impl ImageFiles for Directory {
    fn name(&self) -> &str {
        &self.name
    }

    fn find(&self, path: &str) -> Result<Option<FilePart>> {
        let name = format!("{}/{path}", self.name);
        // A pipe in its place must not make us wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let open = || openat2(&self.dir, path, flags, Mode::empty(), resolve);
        // `EAGAIN`: a link leads past `..` while somebody renames something, anywhere on the host (openat2(2)).
        let opened = (1..1000).map(|_| open()).find(|opened| !matches!(opened, Err(Errno::AGAIN)));
        match opened.unwrap_or_else(open) {
            Ok(file) => FilePart::whole(file.into(), name).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => Err(Error::Foreign {
                object: name,
                why: "it is a link that leads out of the directory".into(),
                hint: Some("copy the files it leads to: cp -rL DIR COPY"),
            }),
            Err(e) => Err(SystemError::new("open", name, e).into()),
        }
    }
}

/// Files that somebody else found in a directory and opened, with rights that we may not have.
pub struct GivenFiles {
    name: String,
    files: BTreeMap<String, Arc<File>>,
}

impl GivenFiles {
    /// `name` is the directory's, for messages.
    pub fn new(name: String, files: impl IntoIterator<Item = (String, File)>) -> GivenFiles {
        let files = files.into_iter().map(|(path, file)| (path, Arc::new(file))).collect();
        GivenFiles { name, files }
    }
}

impl ImageFiles for &GivenFiles {
    fn name(&self) -> &str {
        &self.name
    }

    fn find(&self, path: &str) -> Result<Option<FilePart>> {
        let part = |file: &Arc<File>| FilePart::of(Arc::clone(file), format!("{}/{path}", self.name));
        self.files.get(path).map(part).transpose()
    }
}

/// Remembers which files were found.
pub struct Noting<'a> {
    files: &'a dyn ImageFiles,
    found: RefCell<BTreeMap<String, FilePart>>,
}

impl<'a> Noting<'a> {
    /// Nothing yet.
    pub fn new(files: &'a dyn ImageFiles) -> Noting<'a> {
        Noting { files, found: RefCell::default() }
    }

    /// Files that were found, by their paths.
    pub fn into_found(self) -> BTreeMap<String, FilePart> {
        self.found.into_inner()
    }
}

impl ImageFiles for Noting<'_> {
    fn name(&self) -> &str {
        self.files.name()
    }

    fn find(&self, path: &str) -> Result<Option<FilePart>> {
        let part = self.files.find(path)?;
        if let Some(part) = &part {
            self.found.borrow_mut().insert(path.into(), part.clone());
        }
        Ok(part)
    }
}
