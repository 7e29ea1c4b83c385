//! The manifest: which layers make up a snapshot. Small JSON, named by the digest of its bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::{LayerId, SnapshotId};
use crate::error::{Error, Result};

/// The version of the format written here, the only one read.
const FORMAT: u32 = 1;
/// Largest manifest that is read.
pub(crate) const MAX_SIZE: u64 = 1 << 20;
/// The longest chain of layers that is read. Snapshots of environments have far fewer (`chain`), and each of a job's changes has one more than the
/// snapshot that the job ran in (`changes`).
pub(crate) const MAX_LAYERS: usize = 64;

/// A snapshot of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    /// Version of this format.
    pub format: u32,
    /// The environment's name.
    pub environment: String,
    /// What the base was, as the caller describes it.
    pub base: BTreeMap<String, String>,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
    /// The layers, bottom first.
    pub layers: Vec<LayerRef>,
}

/// A layer of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRef {
    /// Name of the layer in the depot.
    pub digest: LayerId,
    /// Length of the layer's stream in bytes: of its records and data, not compressed.
    pub size: u64,
}

impl SnapshotManifest {
    pub(crate) fn new(
        environment: &str,
        base: &BTreeMap<String, String>,
        created: u64,
        layers: Vec<LayerRef>,
    ) -> SnapshotManifest {
        SnapshotManifest {
            format: FORMAT,
            environment: environment.into(),
            base: base.clone(),
            created,
            layers,
        }
    }

    /// Encodes the manifest: the same bytes for equal manifests, and their digest.
    pub(crate) fn bytes(&self) -> Result<(SnapshotId, Vec<u8>)> {
        let bytes = serde_json::to_vec(self).map_err(|error| Error::BadManifest {
            snapshot: self.environment.clone(),
            why: error.to_string(),
        })?;
        Ok((SnapshotId(*blake3::hash(&bytes).as_bytes()), bytes))
    }

    /// Parses the manifest of `id`.
    pub fn parse(id: &SnapshotId, bytes: &[u8]) -> Result<SnapshotManifest> {
        let bad = |why: String| Error::BadManifest { snapshot: id.to_string(), why };
        if blake3::hash(bytes).as_bytes() != &id.0 {
            return Err(bad("its content has another digest".into()));
        }
        SnapshotManifest::parse_unnamed(bytes).map_err(bad)
    }

    /// Parses a manifest of unknown digest. Apart, so that fuzzing gets past the digest.
    #[doc(hidden)]
    pub fn parse_unnamed(bytes: &[u8]) -> std::result::Result<SnapshotManifest, String> {
        let manifest: SnapshotManifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!(
                "format {} is unknown here; install the same Skiff everywhere",
                manifest.format
            ));
        }
        if manifest.layers.is_empty() || manifest.layers.len() > MAX_LAYERS {
            return Err(format!("{} layers, not 1 to {MAX_LAYERS}", manifest.layers.len()));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SnapshotManifest {
        let base = BTreeMap::from([("release".into(), "12".into()), ("arch".into(), "x86_64".into())]);
        SnapshotManifest::new(
            "work",
            &base,
            1_700_000_000,
            vec![LayerRef { digest: LayerId([1; 32]), size: 5 }],
        )
    }

    #[test]
    fn a_manifest_is_named_by_its_bytes() {
        let (id, bytes) = sample().bytes().unwrap();
        assert_eq!(SnapshotManifest::parse(&id, &bytes).unwrap(), sample());
        let other = SnapshotId([0; 32]);
        assert!(SnapshotManifest::parse(&other, &bytes).unwrap_err().to_string().contains("digest"));
    }

    #[test]
    fn what_is_not_a_manifest_is_refused() {
        let text = String::from_utf8(sample().bytes().unwrap().1).unwrap();
        for (from, to, why) in [
            ("\"format\":1", "\"format\":2", "format 2"),
            ("\"created\"", "\"creatde\"", "unknown field"),
            ("0101", "../1", "not a digest"),
            ("\"size\":5", "\"size\":-5", "invalid value"),
            ("{\"digest\"", "[{\"digest\"", "invalid"),
        ] {
            let error = SnapshotManifest::parse_unnamed(text.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let empty = SnapshotManifest { layers: Vec::new(), ..sample() };
        assert!(SnapshotManifest::parse_unnamed(&empty.bytes().unwrap().1).unwrap_err().contains("0 layers"));
    }
}
