//! Images in files and directories, as `docker save`, `skopeo copy` and others write them: found, checked, and given as
//! layers to be put together like those of a registry.
//!
//! Whoever imports may be another user than the one whose file it is, so everything here works on what is open already.
//! Names of transports: containers-transports(5).

mod archive;
mod compressed;
mod dir;
mod docker;
mod files;
mod oci;
mod root_tar;

use serde::Serialize;
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;

pub use archive::Archive;
pub(crate) use compressed::{inflated_head, inflated_within};
pub use files::{Directory, FilePart, GivenFiles, ImageFiles, Noting};
use skiff_oci::hash::sha256;
use skiff_oci::manifest::{self, Descriptor, Document, ImageConfig, Index, Manifest};
use skiff_sys::IgnoreError;

use crate::blob::FileBlob;
use crate::error::{Error, Result};

/// An index may lead to an index, but not for long.
const MAX_INDEXES: usize = 3;

/// How the files that hold an image are arranged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageLayout<'a> {
    /// OCI's: `index.json` and `blobs/`; which of its images.
    Oci(Option<&'a str>),
    /// Layout of `docker save`: `manifest.json`, and files that it names; which of its images.
    Docker(Option<&'a str>),
    /// No layout: a tar file of a root's files, which is the only layer.
    RootTar,
    /// Layout of skopeo's `dir:`: a manifest and blobs side by side.
    Dir,
}

/// An image that was found, with all of it there.
pub struct OpenedImage {
    /// Manifest of the image, as it came or in OCI's form, in which alone the digest of an image of `docker save` is defined.
    pub manifest_bytes: Vec<u8>,
    /// That one's digest.
    pub digest: Digest,
    /// Configuration of the image, as it came.
    pub config_bytes: Vec<u8>,
    /// Layers of the image, the lowest first. Their digests are checked when they are read.
    pub layers: Vec<FileBlob>,
}

/// Finds an image for a platform.
///
/// # Errors
/// It is not there, or not wholly; it is not for the platform; its parts contradict each other.
pub fn open(files: &dyn ImageFiles, layout: &ImageLayout<'_>, platform: &Platform) -> Result<OpenedImage> {
    match layout {
        ImageLayout::Oci(tag) => oci::open(files, *tag, platform),
        ImageLayout::Docker(tag) => docker::open(files, *tag, platform),
        ImageLayout::Dir => dir::open(files, platform),
        ImageLayout::RootTar => root_tar::open(files, platform),
    }
}

/// What holds the image is not arranged as it should be.
fn not_sound(files: &dyn ImageFiles, why: impl Into<String>) -> Error {
    Error::unsound(files.name(), why)
}

fn need(files: &dyn ImageFiles, path: &str) -> Result<FilePart> {
    files.find(path)?.ok_or_else(|| not_sound(files, format!("there is no {path} in it")))
}

/// From a manifest or an index to the image for the platform. `path` says where a manifest of an index lies, `blob` where
/// everything else does.
fn resolve(
    files: &dyn ImageFiles,
    mut bytes: Vec<u8>,
    mut media_type: String,
    platform: &Platform,
    path: &dyn Fn(&Digest) -> String,
    blob: &dyn Fn(&Digest) -> String,
) -> Result<OpenedImage> {
    for _ in 0..=MAX_INDEXES {
        let told = (!media_type.is_empty()).then_some(&*media_type);
        let index: Index = match manifest::parse(files.name(), &bytes, told)? {
            Document::Manifest(manifest) => return image(files, bytes, &manifest, platform, blob),
            Document::Index(index) => index,
        };
        let chosen = index.choose(files.name(), platform)?;
        bytes = document(files, &path(&chosen.digest), chosen)?;
        media_type.clone_from(&chosen.media_type);
    }
    Err(not_sound(files, format!("more than {MAX_INDEXES} indexes lead from one to the next")))
}

/// The bytes that a descriptor names.
fn document(files: &dyn ImageFiles, path: &str, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let part = need(files, path)?;
    let bytes = part.document()?;
    descriptor.check(&part.name, &bytes)?;
    Ok(bytes)
}

fn image(
    files: &dyn ImageFiles,
    manifest_bytes: Vec<u8>,
    manifest: &Manifest,
    platform: &Platform,
    blob: &dyn Fn(&Digest) -> String,
) -> Result<OpenedImage> {
    let config_bytes = document(files, &blob(&manifest.config.digest), &manifest.config)?;
    let config = ImageConfig::parse(files.name(), &config_bytes)?;
    manifest.check_config(files.name(), &config, platform)?;
    let layer = |layer: &manifest::Layer| {
        let Descriptor { digest, size, .. } = &layer.blob;
        let part = need(files, &blob(digest))?;
        if part.size != *size {
            let why = format!("it has {} bytes where the manifest says {size}", part.size);
            return Err(Error::unsound(part.name, why));
        }
        Ok(part.blob(*digest))
    };
    let layers = manifest.layers.iter().map(layer).collect::<Result<_>>()?;
    Ok(OpenedImage { digest: sha256(&manifest_bytes), manifest_bytes, config_bytes, layers })
}

/// A manifest in OCI's form: the same bytes for the same configuration and layers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OciManifest<'a> {
    schema_version: u32,
    media_type: &'a str,
    config: OciDescriptor<'a>,
    layers: Vec<OciDescriptor<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OciDescriptor<'a> {
    pub media_type: &'a str,
    pub digest: Digest,
    pub size: u64,
}

pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const PLAIN_LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

impl<'a> OciManifest<'a> {
    /// Of a configuration and the layers above each other.
    pub(crate) fn new(config_bytes: &[u8], layers: Vec<OciDescriptor<'a>>) -> OciManifest<'a> {
        let media_type = "application/vnd.oci.image.config.v1+json";
        let config =
            OciDescriptor { media_type, digest: sha256(config_bytes), size: config_bytes.len() as u64 };
        OciManifest { schema_version: 2, media_type: MANIFEST_TYPE, config, layers }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).default_on_error("strings and numbers: nothing that could fail")
    }
}
