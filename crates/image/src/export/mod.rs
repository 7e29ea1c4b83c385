//! From an image in a store, or a root, to a file or directory that others read: one layer with all its files.
//!
//! What is written is either whole under its name or absent.

mod archive;
pub mod changes;
mod config;
mod difference;
mod directory;
mod layer;
mod layers;
pub mod merged;
mod pushed;
mod replace;
pub mod root;
mod xattrs;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::Value;
use skiff_erofs::Reader;
use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256;
use skiff_oci::reference::{ImageReference, Named};
use skiff_sys::{IgnoreError, SystemContext, SystemError};

use crate::changes::is_of_changes;
use crate::error::{Error, Result};
use crate::squashfs;
use crate::trailer;
use crate::transport::{OciDescriptor, OciManifest, PLAIN_LAYER_TYPE};
use crate::unpack::{LeftOut, change_texts, unpack, unpack_changes};
pub use layers::{ImageLayerSource, PackedLayer};
pub use pushed::{ImageDocuments, PackedLayerFile};
use replace::Replacement;

const BUFFER: usize = 1 << 20;

/// Where an image goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `docker-archive:FILE[:REF]`, for `docker load`.
    DockerArchive {
        /// The file.
        file: PathBuf,
        /// What the image is called in it.
        name: Option<Named>,
    },
    /// `oci-archive:FILE[:TAG]`.
    OciArchive {
        /// The file.
        file: PathBuf,
        /// What the image is called in it.
        tag: Option<String>,
    },
    /// `oci:DIR[:TAG]`: beside the images that are there.
    Oci {
        /// The directory.
        dir: PathBuf,
        /// What the image is called in it.
        tag: Option<String>,
    },
    /// `*.erofs`: the image's file itself.
    Erofs(PathBuf),
    /// `*.sqsh`, `*.squashfs`: the same, which is a squashfs then, too.
    Squashfs(PathBuf),
    /// `*.tar`: its files, without a configuration.
    Tar(PathBuf),
    /// `DIR/`: the same, in a new or empty directory.
    Directory(PathBuf),
}

impl std::str::FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Target> {
        let no_target = |why: &str| Error::Foreign {
            object: text.into(),
            why: why.into(),
            hint: Some(
                "export to docker-archive:FILE[:REF], oci-archive:FILE[:TAG], oci:DIR[:TAG], *.erofs, *.sqsh, *.tar or DIRECTORY/",
            ),
        };
        // A path that ends so is no name of an image in a registry: those have been asked for by `import`.
        if text.ends_with(".tar")
            && !["docker-archive:", "oci-archive:", "oci:"].iter().any(|t| text.starts_with(t))
        {
            return Ok(Target::Tar(text.into()));
        }
        if text.ends_with('/') && !["dir:", "oci:"].iter().any(|t| text.starts_with(t)) {
            return Ok(Target::Directory(text.into()));
        }
        match text.parse()? {
            ImageReference::DockerArchive { file, tag } => {
                let name = tag.map(|tag| tag.parse().map(Named::with_default_tag)).transpose()?;
                Ok(Target::DockerArchive { file, name })
            }
            ImageReference::OciArchive { file, tag } => Ok(Target::OciArchive { file, tag }),
            ImageReference::Oci { dir, tag } => Ok(Target::Oci { dir, tag }),
            ImageReference::Erofs(file) => Ok(Target::Erofs(file)),
            ImageReference::Squashfs(file) => Ok(Target::Squashfs(file)),
            _ => Err(no_target("images are not written in that form")),
        }
    }
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exported {
    /// The digest of the manifest, where there is one.
    pub digest: Option<Digest>,
    /// What was left out: of an archive sockets, which it cannot hold; of a directory also what its user cannot make.
    pub left_out: LeftOut,
}

/// An image whose file is open.
pub struct OpenImage {
    /// Name of the image, for messages.
    pub name: String,
    /// The image's configuration as it came: JSON of the OCI image specification.
    pub config: Value,
    /// The image's file.
    pub file: File,
}

/// Writes an image to a file or directory.
///
/// # Errors
/// It holds what archives cannot, or the target cannot be written to: then that is as it was, but for blobs that no index names.
pub fn export(image: &OpenImage, target: &Target) -> Result<Exported> {
    match target {
        Target::DockerArchive { file, name } => archive::docker(image, file, name.as_ref()),
        Target::OciArchive { file, tag } => archive::oci(image, file, tag.as_deref()),
        Target::Oci { dir, tag } => directory::oci(image, dir, tag.as_deref()),
        Target::Erofs(file) => image.copy(file, |_, _| Ok(())),
        Target::Squashfs(file) => {
            image.copy(file, |copy, name| squashfs::hybrid::add(&image.reader()?, copy.as_fd(), name))
        }
        Target::Tar(file) => image.tar(file),
        Target::Directory(dir) => image.unpack(dir),
    }
}

impl OpenImage {
    fn is_of_changes(&self) -> bool {
        is_of_changes(&self.config)
    }

    fn reader(&self) -> Result<Reader<File>> {
        let name = format!("image {}", self.name);
        let file = self.file.try_clone().on("open", &name)?;
        Ok(Reader::open(file, name)?)
    }

    /// Copies the image's file, with what is `added` to it, and the configuration.
    fn copy(&self, path: &Path, added: impl FnOnce(&File, &str) -> Result<()>) -> Result<Exported> {
        let mut new = Replacement::new(path)?;
        let name = path.display().to_string();
        // From its start, wherever others have read it from.
        (&self.file).rewind().on("read", format!("image {}", self.name))?;
        let copied = std::io::copy(&mut &self.file, &mut new.file);
        copied.on("write to", &name)?;
        added(&new.file, &name)?;
        trailer::append(&new.file, &name, &self.config)?;
        new.publish()?;
        Ok(Exported::default())
    }

    fn tar(&self, path: &Path) -> Result<Exported> {
        let mut new = Replacement::new(path)?;
        let mut out = BufWriter::with_capacity(BUFFER, &mut new.file);
        let written = layer::write(&self.reader()?, &mut out, path, self.is_of_changes())?;
        out.flush().on("write to", path.display().to_string())?;
        drop(out);
        new.publish()?;
        Ok(Exported { digest: None, left_out: written.left_out() })
    }

    /// Into a directory beside it, which then takes its place.
    fn unpack(&self, path: &Path) -> Result<Exported> {
        let shown = path.display().to_string();
        let name = path.file_name().ok_or_else(|| SystemError::new("write", &*shown, Errno::ISDIR))?;
        let mut aside = OsString::from(".");
        aside.push(name);
        aside.push(format!(".{}", std::process::id()));
        let aside = path.with_file_name(aside);
        std::fs::create_dir(&aside).on("make", aside.display().to_string())?;
        let unpacked = File::open(&aside).on("open", &shown).map_err(Error::from).and_then(|dir| {
            let left_out = unpack(&self.reader()?, dir.as_fd())?;
            std::fs::rename(&aside, path).on("write", &shown)?;
            Ok(left_out)
        });
        match unpacked {
            Ok(left_out) => Ok(Exported { digest: None, left_out }),
            Err(error) => {
                std::fs::remove_dir_all(&aside).ignore_error("the error that led here is the one to be told");
                Err(error)
            }
        }
    }

    /// Unpacks an image of changes into the empty upper of an environment. To be run as root of the ids that it is to have.
    ///
    /// # Errors
    /// The image is damaged, or the system refuses what it should not.
    pub fn unpack_changes(&self, upper: BorrowedFd<'_>) -> Result<LeftOut> {
        unpack_changes(&self.reader()?, upper)
    }

    /// The texts about the base that an image of changes has, by their names.
    ///
    /// # Errors
    /// The image is damaged, or a text is none.
    pub fn change_texts(&self) -> Result<BTreeMap<String, String>> {
        change_texts(&self.reader()?)
    }

    /// The configuration and the manifest of an image with this layer only.
    fn documents(&self, layer: &layer::WrittenLayer) -> Documents {
        let config = config::with_one_layer(&self.config, &layer.digest);
        let media_type = PLAIN_LAYER_TYPE;
        let layers = vec![OciDescriptor { media_type, digest: layer.digest, size: layer.size }];
        let manifest = OciManifest::new(&config, layers).to_bytes();
        Documents { digest: sha256(&manifest), config, manifest }
    }
}

/// What says how a layer is used.
struct Documents {
    config: Vec<u8>,
    manifest: Vec<u8>,
    /// The manifest's digest.
    digest: Digest,
}
