//! What is imported: a file or directory of someone's, open. Who opens it need not be who imports it: the writer of the trusted
//! store has no rights over users' files, so they open theirs and hand them over.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, fstatvfs, open, statat};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skiff_erofs::Reader;
use skiff_oci::platform::Platform;
use skiff_oci::reference::ImageReference;

use crate::assemble::WrittenImage;
use crate::convert::{ConversionJob, convert, erofs};
use crate::error::{Error, Result};
use crate::export::root::of_directory;
use crate::inflate::HEAD;
use crate::sif;
use crate::spill::nameless;
use crate::squashfs::Squashfs;
use crate::trailer;
use crate::transport::{
    self, Archive, Directory, FilePart, GivenFiles, ImageFiles, ImageLayout, Noting, inflated_head,
    inflated_within,
};
use skiff_sys::SystemContext;
use skiff_sys::size::size;

/// In which form an image lies in a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A directory in OCI's layout.
    Oci,
    /// A tar file of it.
    OciArchive,
    /// What `docker save` writes.
    DockerArchive,
    /// One of these two, or the files of a root: what is in it decides.
    Archive,
    /// A tar file of a root's files.
    RootTar,
    /// What skopeo's `dir:` writes.
    Dir,
    /// A squashfs file.
    Squashfs,
    /// A squashfs in Apptainer's format.
    Sif,
    /// An EROFS file.
    Erofs,
}

impl Form {
    /// What it is called in policies.
    #[must_use]
    pub fn transport(self) -> &'static str {
        match self {
            Form::Oci => "oci",
            Form::OciArchive => "oci-archive",
            Form::DockerArchive | Form::Archive | Form::RootTar => "docker-archive",
            Form::Dir => "dir",
            Form::Squashfs => "squashfs",
            Form::Sif => "sif",
            Form::Erofs => "erofs",
        }
    }

    /// Whether it is a file system that lies in a file.
    #[must_use]
    pub fn is_file_system(self) -> bool {
        matches!(self, Form::Squashfs | Form::Sif | Form::Erofs)
    }

    /// The form of a file system, by what stands in its first bytes. A file that is several at once is the first of them to
    /// everybody.
    #[must_use]
    pub fn of_file_system(part: &FilePart) -> Option<Form> {
        let forms = [
            (Form::Squashfs, Squashfs::is_one as fn(&FilePart) -> bool),
            (Form::Sif, sif::is_one),
            (Form::Erofs, erofs::is_one),
        ];
        forms.into_iter().find(|(_, is_one)| is_one(part)).map(|(form, _)| form)
    }

    /// Which machine the file system in this file says that it is for, if it does.
    ///
    /// # Errors
    /// It is damaged.
    pub fn platform(self, file: &FilePart) -> Result<Option<Platform>> {
        if self == Form::Sif { Ok(sif::open(file)?.platform) } else { Ok(None) }
    }

    /// Makes an image of the file system in this file. Nothing is synced.
    ///
    /// # Errors
    /// It cannot be read, holds what an image cannot, or too much. The image's file is of no use then.
    pub fn convert(self, file: &FilePart, job: ConversionJob<'_>) -> Result<WrittenImage> {
        match self {
            Form::Sif => convert(&Squashfs::open(sif::open(file)?.squashfs)?, job),
            Form::Erofs => {
                let not_understood = |error| erofs::not_understood(&file.name, error);
                let reader =
                    Reader::open(file.clone(), file.name.clone()).map_err(|e| not_understood(e.into()))?;
                convert(&reader, job).map_err(not_understood)
            }
            _ => convert(&Squashfs::open(file.clone())?, job),
        }
    }
}

/// A file or directory that is open, and how an image lies in it.
pub struct ImageSource {
    form: Form,
    /// As it was written, for messages.
    path: PathBuf,
    tag: Option<String>,
    held: Held,
    /// Where another process says it lies that sees the host's files.
    lies: Option<Option<PathBuf>>,
}

enum Held {
    /// The file or directory itself.
    Open(File),
    /// A directory, and those of its files that are needed.
    Files(OwnedFd, GivenFiles),
}

/// What a source is, for another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// In which form the image lies in it.
    pub form: Form,
    /// Where it lies, for messages.
    pub path: String,
    /// Which of its images.
    pub tag: Option<String>,
    /// The paths of a directory's files that come along, behind the directory.
    pub files: Vec<String>,
}

impl ImageSource {
    /// Opens what a reference names.
    ///
    /// # Errors
    /// It cannot be opened, or names an image in a registry.
    pub fn open(reference: &ImageReference) -> Result<ImageSource> {
        let path = place(reference)?.1;
        Self::of_reference(reference, open_file(path)?)
    }

    /// What is open already, of which a reference says the form. Its path is for messages.
    ///
    /// # Errors
    /// As of [`ImageSource::open`].
    pub fn of_reference(reference: &ImageReference, file: File) -> Result<ImageSource> {
        let (form, path, tag) = place(reference)?;
        let form = match form.is_file_system() {
            true => FilePart::whole(copy_of(&file, path)?, shown(path))
                .map(|part| Form::of_file_system(&part).unwrap_or(form))?,
            false => form,
        };
        Ok(ImageSource {
            form,
            path: path.into(),
            tag: tag.map(String::from),
            held: Held::Open(file),
            lies: None,
        })
    }

    /// Opens what lies at a path, whatever form it has.
    ///
    /// # Errors
    /// It cannot be opened, or there is no image in it.
    pub fn open_path(path: &Path) -> Result<ImageSource> {
        Self::of_path(path, open_file(path)?)
    }

    /// What is open already, whatever form it has. The path is for messages.
    ///
    /// # Errors
    /// As of [`ImageSource::open_path`].
    pub fn of_path(path: &Path, file: File) -> Result<ImageSource> {
        let form = if is_directory(&file, path)? {
            match form_of_directory(&Directory::new(copy_of(&file, path)?.into(), shown(path))) {
                Err(_) if is_root(&file) => return packed(&file, path),
                form => form?,
            }
        } else {
            let part = FilePart::whole(copy_of(&file, path)?, shown(path))?;
            Form::of_file_system(&part).unwrap_or(Form::Archive)
        };
        Ok(ImageSource { form, path: path.into(), tag: None, held: Held::Open(file), lies: None })
    }

    /// A file that was written just now, whatever form of image it has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(file: File, name: &str) -> Result<ImageSource> {
        let path = PathBuf::from(name);
        let part = FilePart::whole(copy_of(&file, &path)?, name.into())?;
        let form = Form::of_file_system(&part).unwrap_or(Form::Archive);
        Ok(ImageSource { form, path, tag: None, held: Held::Open(file), lies: None })
    }

    /// A file system in a file that was fetched, and is called so.
    ///
    /// # Errors
    /// There is no image in it.
    pub fn fetched(file: File, name: &str) -> Result<ImageSource> {
        let path = PathBuf::from(name);
        let part = FilePart::whole(copy_of(&file, &path)?, name.into())?;
        let form = Form::of_file_system(&part).ok_or_else(|| Error::Foreign {
            object: name.into(),
            why: "it is neither SIF nor squashfs nor EROFS".into(),
            hint: None,
        })?;
        Ok(ImageSource { form, path, tag: None, held: Held::Open(file), lies: None })
    }

    /// An image file just written, which gets a configuration behind it.
    ///
    /// # Errors
    /// It cannot be written to, or there is no image in it.
    pub fn written(image: File, name: &str, config: &Value) -> Result<ImageSource> {
        trailer::append(&image, name, config)?;
        Self::fetched(image, name)
    }

    /// What another process opened, who says that it is this.
    ///
    /// # Errors
    /// There are not as many files as it says.
    pub fn given(description: Description, files: Vec<OwnedFd>) -> Result<ImageSource> {
        let Description { form, path, tag, files: names } = description;
        let mut files = files.into_iter();
        let (Some(first), true) = (files.next(), files.len() == names.len()) else {
            let why = "not all of its files have come along".into();
            return Err(Error::Foreign { object: path, why, hint: None });
        };
        let held = match form {
            Form::Oci | Form::Dir => {
                let files = names.into_iter().zip(files.map(File::from));
                Held::Files(first, GivenFiles::new(format!("{}:{path}", form.transport()), files))
            }
            // In a directory we would look with our own rights, which are more than those of whoever gave it: they can have mounted there what is
            // ours alone.
            _ => {
                let file = File::from(first);
                FilePart::whole(copy_of(&file, Path::new(&path))?, path.clone())?;
                Held::Open(file)
            }
        };
        Ok(ImageSource { form, path: path.into(), tag, held, lies: None })
    }

    /// For another process: what it is, and all that has to be open for the image to be read.
    ///
    /// # Errors
    /// There is no image for the platform in it.
    pub fn hand_over(self, platform: &Platform) -> Result<(Description, Vec<OwnedFd>)> {
        let path = shown(&self.path);
        let mut files = vec![];
        let mut open = vec![];
        if let Held::Open(file) = &self.held
            && is_directory(file, &self.path)?
        {
            let directory = Directory::new(copy_of(file, &self.path)?.into(), self.name());
            let noting = Noting::new(&directory);
            transport::open(&noting, &self.layout(&noting)?.1, platform)?;
            for (path, part) in noting.into_found() {
                files.push(path);
                // Of hundreds of layers, two descriptors each would be more than a process may have.
                open.push(match Arc::try_unwrap(part.file) {
                    Ok(file) => file.into(),
                    Err(shared) => shared.try_clone().on("open", part.name)?.into(),
                });
            }
        }
        let first = match self.held {
            Held::Open(file) => file.into(),
            Held::Files(dir, _) => dir,
        };
        let description = Description { form: self.form, path, tag: self.tag, files };
        Ok((description, std::iter::once(first).chain(open).collect()))
    }

    /// In which form the image lies in it.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// For messages: the transport and the path, as they were written.
    #[must_use]
    pub fn name(&self) -> String {
        match self.form {
            Form::Archive | Form::Squashfs | Form::Sif | Form::Erofs => shown(&self.path),
            form => format!("{}:{}", form.transport(), self.path.display()),
        }
    }

    /// How an image lies in these files of it, and in which form that is.
    ///
    /// # Errors
    /// They cannot be read, or there is no image in them.
    pub fn layout(&self, files: &dyn ImageFiles) -> Result<(Form, ImageLayout<'_>)> {
        let tag = self.tag.as_deref();
        let form = match self.form {
            Form::Archive => form_of_archive(files)?,
            form => form,
        };
        Ok((
            form,
            match form {
                Form::Oci | Form::OciArchive => ImageLayout::Oci(tag),
                Form::Dir => ImageLayout::Dir,
                Form::RootTar => ImageLayout::RootTar,
                _ => ImageLayout::Docker(tag),
            },
        ))
    }

    /// Where it really lies, by which policies judge; nothing if that name leads to another one, or cannot be followed: who
    /// opened it may see other directories under the names of ours.
    #[must_use]
    pub fn real_path(&self) -> Option<PathBuf> {
        self.lies.clone().unwrap_or_else(|| path_of(self.opened()))
    }

    /// The file or directory itself.
    pub fn opened(&self) -> BorrowedFd<'_> {
        match &self.held {
            Held::Open(file) => file.as_fd(),
            Held::Files(dir, _) => dir.as_fd(),
        }
    }

    /// The same, where another process has found where it lies, as this one does not see the host's files.
    #[must_use]
    pub fn lies_at(self, path: Option<PathBuf>) -> ImageSource {
        ImageSource { lies: Some(path), ..self }
    }

    /// The whole file.
    ///
    /// # Errors
    /// It is a directory, or no regular file.
    pub fn part(&self) -> Result<FilePart> {
        match &self.held {
            Held::Open(file) => FilePart::whole(copy_of(file, &self.path)?, self.name()),
            Held::Files(..) => Err(self.no_file()),
        }
    }

    fn no_file(&self) -> Error {
        Error::Foreign { object: self.name(), why: "it is a directory".into(), hint: None }
    }

    /// The files in it. What must be unpacked for that goes to `room`, as long as `goes_on` says so.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn files(
        &self,
        (room, room_name): (BorrowedFd<'_>, &str),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Box<dyn ImageFiles + '_>> {
        match &self.held {
            Held::Files(_, given) => Ok(Box::new(given)),
            Held::Open(file) if is_directory(file, &self.path)? => {
                Ok(Box::new(Directory::new(copy_of(file, &self.path)?.into(), self.name())))
            }
            Held::Open(_) => Ok(Box::new(Archive::open_while(self.part()?, (room, room_name), goes_on)?)),
        }
    }
}

/// The path of an open file, if it still leads there.
#[must_use]
pub fn path_of(file: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let (open, named) = (fstat(file).ok()?, std::fs::metadata(&path).ok()?);
    ((named.dev(), named.ino()) == (open.st_dev, open.st_ino)).then_some(path)
}

/// Whether a directory holds the files of a root.
fn is_root(dir: &File) -> bool {
    ["bin", "usr"].iter().any(|name| statat(dir, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

/// A new file without a name, the directory that it lies in, and that one's name: where big temporary files go, as Podman's.
///
/// # Errors
/// The directory cannot be opened, or the file cannot be made.
pub fn temporary() -> Result<(File, OwnedFd, String)> {
    let path = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    temporary_in(&path)
}

/// A new file without a name in this directory.
///
/// # Errors
/// As [`temporary`].
pub fn temporary_in(path: &Path) -> Result<(File, OwnedFd, String)> {
    let name = shown(path);
    let room = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let room = room.on("open", &*name)?;
    let file = nameless(room.as_fd()).on("make a temporary file in", &*name)?;
    Ok((file.into(), room, name))
}

/// The first `most` bytes of a file without its compression, or all of them, if there are fewer.
///
/// # Errors
/// It is damaged.
pub fn plain_head(part: &FilePart, most: usize) -> Result<Vec<u8>> {
    inflated_head(&packed_head(part)?, part, most)
}

/// A whole file without its compression: itself, or a file without a name in the directory `room`. That takes no more than half of what is free there: who
/// unpacks it needs as much once more. Of what is free, `kept` bytes are for others.
///
/// # Errors
/// It is damaged, or there is no room.
pub fn plain_archive(part: FilePart, room: &Path, kept: u64) -> Result<File> {
    let head = packed_head(&part)?;
    let (_, room, room_name) = temporary_in(room)?;
    let free = free_bytes(&room).on("look at the file system of", &*room_name)?;
    let plain = inflated_within(&head, part, (room.as_fd(), &room_name), Some(free.saturating_sub(kept)));
    let plain = plain.map_err(|error| match error {
        Error::NoSpace { object, needed, .. } if kept > 0 => Error::NoSpace {
            object: format!("{object}, and for what becomes of {} fetched or inflated before", size(kept)),
            needed: needed.saturating_add(kept),
            free,
        },
        error => error,
    })?;
    Ok(plain.file.try_clone().on("open", &plain.name)?)
}

fn packed_head(part: &FilePart) -> Result<Vec<u8>> {
    let mut head = vec![0; HEAD.min(usize::try_from(part.size).unwrap_or(HEAD))];
    part.read(&mut head, 0)?;
    Ok(head)
}

/// How many bytes a user may still write on a directory's file system.
///
/// # Errors
/// It cannot be asked.
pub fn free_bytes(directory: impl AsFd) -> rustix::io::Result<u64> {
    fstatvfs(directory).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}

/// The files of a root below a directory, as an image file that has no name.
fn packed(dir: &File, path: &Path) -> Result<ImageSource> {
    let (image, room, room_name) = temporary()?;
    of_directory((dir.as_fd(), &shown(path)), image.as_fd(), (room.as_fd(), &room_name))?;
    let lies = Some(path_of(dir.as_fd()));
    Ok(ImageSource { form: Form::Erofs, path: path.into(), tag: None, held: Held::Open(image), lies })
}

fn place(reference: &ImageReference) -> Result<(Form, &Path, Option<&str>)> {
    Ok(match reference {
        ImageReference::Oci { dir, tag } => (Form::Oci, dir, tag.as_deref()),
        ImageReference::OciArchive { file, tag } => (Form::OciArchive, file, tag.as_deref()),
        ImageReference::DockerArchive { file, tag } => (Form::DockerArchive, file, tag.as_deref()),
        ImageReference::Dir(path) => (Form::Dir, path, None),
        ImageReference::Squashfs(path) => (Form::Squashfs, path, None),
        ImageReference::Sif(path) => (Form::Sif, path, None),
        ImageReference::Erofs(path) => (Form::Erofs, path, None),
        ImageReference::Registry(_) | ImageReference::Short(_) | ImageReference::Artifact(_) => {
            return Err(Error::Foreign {
                object: reference.to_string(),
                why: "it is an image in a registry".into(),
                hint: Some("skiff pull fetches it"),
            });
        }
    })
}

fn open_file(path: &Path) -> Result<File> {
    // A pipe in its place must not make us wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(open(path, flags, Mode::empty()).map(File::from).on("import", shown(path))?)
}

fn copy_of(file: &File, path: &Path) -> Result<File> {
    Ok(file.try_clone().on("open", shown(path))?)
}

fn is_directory(file: &File, path: &Path) -> Result<bool> {
    let stat = fstat(file).on("look at", shown(path))?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn form_of_directory(files: &dyn ImageFiles) -> Result<Form> {
    match (files.find("index.json")?, files.find("manifest.json")?) {
        (Some(_), _) => Ok(Form::Oci),
        (None, Some(_)) => Ok(Form::Dir),
        (None, None) => Err(Error::Foreign {
            object: files.name().into(),
            why: "there is no image in this directory: neither index.json nor manifest.json, nor programs in bin or usr".into(),
            hint: Some("`umoci`, `skopeo copy` and `buildah` make images of directories"),
        }),
    }
}

/// What Docker saves has been an OCI layout too since 25, with names of images that only the other list has in full.
fn form_of_archive(files: &dyn ImageFiles) -> Result<Form> {
    match (files.find("manifest.json")?, files.find("index.json")?) {
        (Some(_), _) => Ok(Form::DockerArchive),
        (None, Some(_)) => Ok(Form::OciArchive),
        (None, None) if files.root().is_some() => Ok(Form::RootTar),
        (None, None) => Err(Error::Foreign {
            object: files.name().into(),
            why: "it is a tar file without an image in it: neither manifest.json nor index.json, nor programs in bin or usr".into(),
            hint: Some(
                "what `docker save`, `docker export`, `podman save` and `skopeo copy` write is taken, and tar files of a root's files",
            ),
        }),
    }
}
