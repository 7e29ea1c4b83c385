//! The layers of an image that is pushed, as its documents name them.

use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;

/// What a manifest and a configuration say of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedLayer {
    /// Media type by the OCI image specification.
    pub media_type: String,
    /// Digest of the layer as it is sent.
    pub digest: Digest,
    /// Bytes of the layer as it is sent.
    pub size: u64,
    /// Digest of its tar stream.
    pub diff_id: Digest,
}

/// Where a layer of an image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageLayerSource {
    /// The layer of an image below, as that one's configuration has it.
    Below(PackedLayer),
    /// The layer that holds the files of the first steps of the history, or of those behind the last layer.
    Made {
        /// The layer.
        layer: PackedLayer,
        /// How many steps of the history there are up to it.
        steps: usize,
    },
}

impl ImageLayerSource {
    /// What a manifest says of it.
    #[must_use]
    pub fn layer(&self) -> &PackedLayer {
        match self {
            ImageLayerSource::Below(layer) | ImageLayerSource::Made { layer, .. } => layer,
        }
    }
}
