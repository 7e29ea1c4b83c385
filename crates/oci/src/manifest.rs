//! What an image is made of, as registries and archives tell: manifests, indexes of them, and configurations.
//!
//! Docker's schema 2 and OCI's, which differ in media types only. Parsers here are pure, bounded, ignore what they do not
//! know, and refuse what could be read in two ways (CVE-2021-41190).
//! Specifications: <https://github.com/opencontainers/image-spec>, <https://distribution.github.io/distribution/spec/manifest-v2-2/>.

mod config;
mod instruction;
mod media;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::platform::Platform;

pub use config::{ExecConfig, History, ImageConfig};
pub use instruction::{InstructionError, Instructions};
pub use media::{ACCEPTED, Compression};
use media::{DocumentType, document_type, layer_kind};

/// No manifest, index or configuration is longer, in bytes: registries refuse longer ones too.
pub const MAX_DOCUMENT: u64 = 4 << 20;
/// No image has more layers. Docker stops at 127.
pub const MAX_LAYERS: usize = 1024;

/// Something in a registry, named by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Descriptor {
    /// What it is.
    #[serde(rename = "mediaType", default)]
    pub media_type: String,
    /// The digest of its bytes.
    pub digest: Digest,
    /// How many bytes it has.
    pub size: u64,
    /// Where else it may be fetched: layers that registries may not distribute are only there.
    #[serde(default, deserialize_with = "or_default")]
    pub urls: Vec<String>,
    /// Remarks of whoever made it, of which signatures are one.
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

impl Descriptor {
    /// Whether these are the bytes it names.
    ///
    /// # Errors
    /// Says what they were instead; `object` names them.
    pub fn check(&self, object: &str, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 != self.size {
            let why = format!("it has {} bytes where its descriptor says {}", bytes.len(), self.size);
            return Err(Error::BadManifest { object: object.into(), why });
        }
        check_digest(object, &self.digest, bytes)
    }
}

/// Whether these are the bytes that `digest` names.
///
/// # Errors
/// Says what their digest is instead.
pub fn check_digest(object: &str, digest: &Digest, bytes: &[u8]) -> Result<()> {
    let got = crate::hash::digest_like(digest, bytes);
    if got == *digest {
        return Ok(());
    }
    Err(Error::BadManifest { object: object.into(), why: format!("its digest is {got} instead of {digest}") })
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Blob of the layer.
    pub blob: Descriptor,
    /// What its tar stream is packed with.
    pub compression: Compression,
}

impl Layer {
    /// Whether it may be pushed to other registries.
    #[must_use]
    pub fn is_distributable(&self) -> bool {
        let media_type = &self.blob.media_type;
        !media_type.contains("nondistributable") && !media_type.contains("foreign")
    }
}

/// One image: its configuration and its layers, the lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The configuration's blob.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
}

/// One image of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// Manifest of the image.
    pub manifest: Descriptor,
    /// What it runs on, if the index says so.
    pub platform: Option<Platform>,
}

/// Images for several platforms, or several images of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// In the order of preference.
    pub entries: Vec<IndexEntry>,
}

/// What a reference leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// An image.
    Manifest(Manifest),
    /// A choice of images.
    Index(Index),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "schemaVersion")]
    schema: Option<u64>,
    #[serde(rename = "mediaType", default, deserialize_with = "or_default")]
    media_type: String,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<RawEntry>>,
    #[serde(rename = "fsLayers")]
    schema1_layers: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct RawEntry {
    #[serde(flatten)]
    manifest: Descriptor,
    platform: Option<RawPlatform>,
}

#[derive(Deserialize)]
struct RawPlatform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    variant: Option<String>,
}

/// Reads a manifest or an index. `content_type` is what the server called it; `object` names it in messages.
///
/// # Errors
/// It is none, it is of an older or unknown format, or its parts contradict each other.
pub fn parse(object: &str, bytes: &[u8], content_type: Option<&str>) -> Result<Document> {
    let bad = |why: String| Error::BadManifest { object: object.into(), why };
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(bad(format!("it is longer than {MAX_DOCUMENT} bytes")));
    }
    let raw: Raw = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    if raw.schema == Some(1) || raw.schema1_layers.is_some() {
        return Err(Error::OldSchema { object: object.into() });
    }
    if raw.schema != Some(2) {
        return Err(bad("its schemaVersion is not 2".into()));
    }
    let kind = document_type(&raw.media_type, content_type).map_err(bad)?;
    match (kind, raw.manifests, raw.config, raw.layers) {
        (_, Some(_), _, Some(_)) => Err(bad("it is both an image and an index".into())),
        (DocumentType::Manifest | DocumentType::Untold, None, Some(config), Some(layers)) => {
            manifest(config, layers).map(Document::Manifest).map_err(bad)
        }
        (DocumentType::Index | DocumentType::Untold, Some(entries), None, None) => {
            Ok(Document::Index(index(entries)))
        }
        (DocumentType::Manifest, ..) => Err(bad("it has no configuration or no layers".into())),
        (DocumentType::Index, ..) => Err(bad("it has no list of manifests".into())),
        (DocumentType::Untold, ..) => Err(bad("it is neither an image nor an index".into())),
    }
}

fn manifest(config: Descriptor, layers: Vec<Descriptor>) -> Result<Manifest, String> {
    if layers.len() > MAX_LAYERS {
        return Err(format!("it has {} layers; {MAX_LAYERS} are the limit", layers.len()));
    }
    if config.size > MAX_DOCUMENT {
        return Err(format!("its configuration has {} bytes; {MAX_DOCUMENT} are the limit", config.size));
    }
    let layer =
        |blob: Descriptor| layer_kind(&blob.media_type).map(|compression| Layer { blob, compression });
    Ok(Manifest { config, layers: layers.into_iter().map(layer).collect::<Result<_, _>>()? })
}

fn index(entries: Vec<RawEntry>) -> Index {
    let entry = |raw: RawEntry| {
        let platform = raw
            .platform
            .filter(|p| !p.architecture.is_empty())
            .map(|p| Platform::new(&p.os, &p.architecture, p.variant.as_deref()));
        IndexEntry { manifest: raw.manifest, platform }
    };
    Index { entries: entries.into_iter().map(entry).collect() }
}

impl Index {
    /// The image that suits `wanted` best; of equal ones the first. An only entry without a platform is taken as it is.
    ///
    /// # Errors
    /// Lists what there is instead.
    pub fn choose(&self, object: &str, wanted: &Platform) -> Result<&Descriptor> {
        let suits = |entry: &IndexEntry| entry.platform.as_ref().and_then(|offered| wanted.suits(offered));
        let best = self.entries.iter().filter_map(|entry| suits(entry).map(|distance| (distance, entry)));
        if let Some((_, entry)) = best.min_by_key(|(distance, _)| *distance) {
            return Ok(&entry.manifest);
        }
        if let [IndexEntry { manifest, platform: None }] = &self.entries[..] {
            return Ok(manifest);
        }
        let mut offered: Vec<_> = self.entries.iter().filter_map(|e| e.platform.as_ref()).collect();
        // Attestations of how an image was built are listed as images for no platform.
        offered.retain(|platform| platform.os != "unknown");
        let offered: Vec<_> = offered.iter().take(20).map(ToString::to_string).collect();
        Err(Error::NoPlatform {
            object: object.into(),
            wanted: wanted.to_string(),
            offered: offered.join(", "),
        })
    }
}

impl Manifest {
    /// How many bytes the layers have as they are transferred; a layer that comes twice counts once.
    pub fn bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        let first_time = self.layers.iter().filter(|layer| seen.insert(layer.blob.digest));
        first_time.fold(0, |sum, layer| sum.saturating_add(layer.blob.size))
    }

    /// Whether the configuration speaks of the same layers, for the platform wanted.
    ///
    /// # Errors
    /// Says where they differ.
    pub fn check_config(&self, object: &str, config: &ImageConfig, wanted: &Platform) -> Result<()> {
        let (layers, diff_ids) = (self.layers.len(), config.diff_ids.len());
        if layers != diff_ids {
            let why = format!("it has {layers} layers where its configuration has {diff_ids}");
            return Err(Error::BadManifest { object: object.into(), why });
        }
        wanted.check(object, config.platform.as_ref())
    }
}

/// Tools write `null` for what is empty.
fn or_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
