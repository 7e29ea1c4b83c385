//! What a store notes of an image.

use std::path::Path;

use serde::{Deserialize, Serialize};
use skiff_image::Error::BadImage;
use skiff_registry::Origin;
use skiff_sys::IgnoreError;
use skiff_sys::SystemError;

use crate::error::Result;

/// The content of `images/ID.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageMetadata {
    /// Length of the image's file in bytes, holes included.
    pub size: u64,
    /// The sum of its files' data, see `sum.rs`; without it only the metadata can be verified. (Older records have `sum`, which lacks the
    /// chunks of files with holes that were put together anew. By that, sound images looked damaged.)
    pub data_sum: Option<u64>,
    /// Layers of the image, the lowest first.
    pub layers: Vec<ImageLayer>,
    /// Who may say that another user can have it: see `pull/access_proof.rs`. Told to no user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<Origin>,
    /// Whether it is a layer of an environment, which may have whiteouts, and not an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layer: bool,
    /// How many files it holds.
    pub files: u64,
    /// The image's configuration as it came: JSON of the OCI image specification.
    pub config: serde_json::Value,
}

/// A layer as it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageLayer {
    /// Digest of the layer, as in the manifest.
    pub digest: String,
    /// Length in bytes.
    pub size: u64,
    /// Media type by the OCI image specification; of a layer that may be pushed to other registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}

impl ImageMetadata {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).default_on_error("strings, numbers and JSON: nothing that could fail")
    }

    /// Reads one; nothing if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<ImageMetadata>> {
        let shown = || path.display().to_string();
        match std::fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(SystemError::new("read", shown(), e).into()),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| BadImage { file: shown(), why: format!("its record: {e}") }.into()),
        }
    }
}
