//! An image as a registry takes it: layers, packed, each in a file until it is sent; a configuration and a manifest that name them.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use serde_json::Value;
use skiff_oci::digest::Digest;
use skiff_oci::hash::{Hasher, sha256};
use skiff_oci::manifest::Compression;
use skiff_sys::SystemContext;
use zstd::stream::write::Encoder as ZstdEncoder;

use super::difference::difference;
use super::layers::{ImageLayerSource, PackedLayer};
use super::{OpenImage, config, layer};
use crate::error::Result;
use crate::transport::{MANIFEST_TYPE, OciDescriptor, OciManifest};
use crate::unpack::LeftOut;

/// What the programs take that most people have: `gzip -6` and `zstd -3`.
const GZIP_LEVEL: flate2::Compression = flate2::Compression::new(6);
const ZSTD_LEVEL: i32 = 3;

/// A layer that was made, in a file without a name.
pub struct PackedLayerFile {
    /// The layer.
    pub layer: PackedLayer,
    /// The layer's bytes.
    pub file: File,
    /// What was left out.
    pub left_out: LeftOut,
}

impl OpenImage {
    /// Makes a layer of the files that `below` has not, or has otherwise; without it, of all files. Nothing if both have the same.
    ///
    /// The layer is written into an empty file, whose name is for messages.
    ///
    /// # Errors
    /// The image holds what layers cannot, one of the two cannot be read, or the file cannot be written to.
    pub fn make_layer(
        &self,
        below: Option<&OpenImage>,
        compression: Compression,
        (file, name): (File, &str),
    ) -> Result<Option<PackedLayerFile>> {
        let reader = self.reader()?;
        let changes = below.map(|below| difference(&below.reader()?, &reader)).transpose()?;
        if changes.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let counted = Counted { file, hasher: Hasher::like(&Digest::Sha256([0; 32])), size: 0 };
        let mut packer = LayerPacker::new(counted, compression).on("write to", name)?;
        let path = Path::new(name);
        let written = match changes {
            None => layer::write(&reader, &mut packer, path, self.is_of_changes())?,
            Some(changes) => {
                layer::write_changes(&reader, changes.into_iter().map(Ok), (&mut packer, path), false)?
            }
        };
        let Counted { file, hasher, size } = packer.finish().on("write to", name)?;
        let media_type = compression.layer_type().into();
        let layer = PackedLayer { media_type, digest: hasher.finish(), size, diff_id: written.digest };
        Ok(Some(PackedLayerFile { layer, file, left_out: written.left_out() }))
    }

    /// How many steps the image's history has.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.config.get("history").and_then(Value::as_array).map_or(0, Vec::len)
    }
}

impl PackedLayerFile {
    /// The layer's bytes from `begin` on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_from(&self, begin: u64) -> std::io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(begin))?;
        Ok(file)
    }
}

/// What says how layers are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageDocuments {
    /// The configuration.
    pub config: Vec<u8>,
    /// Digest of the configuration.
    pub config_digest: Digest,
    /// The manifest.
    pub manifest: Vec<u8>,
    /// Digest of the manifest, which is the image's.
    pub digest: Digest,
}

impl ImageDocuments {
    /// Media type of the manifest.
    pub const MEDIA_TYPE: &str = MANIFEST_TYPE;

    /// Of an image whose configuration is `config` and that has these layers, the lowest first. `below` is the configuration of the image that the lower
    /// ones come from.
    #[must_use]
    pub fn new(config: &Value, below: Option<&Value>, layers: &[ImageLayerSource]) -> ImageDocuments {
        let config = config::with_layers(config, below, layers);
        let descriptor = |source: &ImageLayerSource| {
            let PackedLayer { media_type, digest, size, .. } = source.layer().clone();
            (media_type, digest, size)
        };
        let named: Vec<(String, Digest, u64)> = layers.iter().map(descriptor).collect();
        let descriptors = named.iter().map(|(media_type, digest, size)| OciDescriptor {
            media_type,
            digest: *digest,
            size: *size,
        });
        let manifest = OciManifest::new(&config, descriptors.collect()).to_bytes();
        let (digest, config_digest) = (sha256(&manifest), sha256(&config));
        ImageDocuments { config, config_digest, manifest, digest }
    }
}

/// Counts and hashes what goes to a file.
struct Counted {
    file: File,
    hasher: Hasher,
    size: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Packs what is written.
enum LayerPacker {
    Plain(std::io::BufWriter<Counted>),
    Gzip(std::io::BufWriter<GzEncoder<Counted>>),
    Zstd(ZstdEncoder<'static, Counted>),
}

impl LayerPacker {
    fn new(out: Counted, compression: Compression) -> std::io::Result<LayerPacker> {
        let buffer = super::BUFFER;
        Ok(match compression {
            Compression::Plain => LayerPacker::Plain(std::io::BufWriter::with_capacity(buffer, out)),
            Compression::Gzip => {
                // The header has no time and no name: the same files give the same bytes.
                LayerPacker::Gzip(std::io::BufWriter::with_capacity(buffer, GzEncoder::new(out, GZIP_LEVEL)))
            }
            Compression::Zstd => LayerPacker::Zstd(ZstdEncoder::new(out, ZSTD_LEVEL)?),
        })
    }

    fn finish(self) -> std::io::Result<Counted> {
        match self {
            LayerPacker::Plain(out) => out.into_inner().map_err(std::io::IntoInnerError::into_error),
            LayerPacker::Gzip(out) => out.into_inner().map_err(std::io::IntoInnerError::into_error)?.finish(),
            LayerPacker::Zstd(out) => out.finish(),
        }
    }
}

impl Write for LayerPacker {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            LayerPacker::Plain(out) => out.write(bytes),
            LayerPacker::Gzip(out) => out.write(bytes),
            LayerPacker::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            LayerPacker::Plain(out) => out.flush(),
            LayerPacker::Gzip(out) => out.flush(),
            LayerPacker::Zstd(out) => out.flush(),
        }
    }
}
