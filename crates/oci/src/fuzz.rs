//! The parsers of what users and registries say, for fuzzing: each takes any bytes, tells whether they were taken, and panics where what
//! must hold of what was taken does not.

use crate::manifest::{self, Document, ImageConfig, MAX_LAYERS};
use crate::platform::Platform;
use crate::reference::{ImageReference, Named};

/// What a user may write for an image.
pub fn reference(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(named) = text.parse::<Named>() {
        assert_eq!(named.to_string().parse(), Ok(named), "shown, it means something else");
    }
    let Ok(reference) = text.parse::<ImageReference>() else {
        return false;
    };
    assert_eq!(reference.to_string().parse(), Ok(reference), "shown, it means something else");
    true
}

/// A manifest, an index or a configuration.
pub fn document(bytes: &[u8]) -> bool {
    let platform = Platform::linux("amd64", None);
    match manifest::parse("fuzzed", bytes, None) {
        Ok(Document::Manifest(manifest)) => {
            assert!(manifest.layers.len() <= MAX_LAYERS);
            manifest.bytes();
            true
        }
        Ok(Document::Index(index)) => {
            if let Ok(chosen) = index.choose("fuzzed", &platform) {
                assert!(index.entries.iter().any(|entry| entry.manifest == *chosen));
            }
            true
        }
        Err(_) => ImageConfig::parse("fuzzed", bytes).is_ok(),
    }
}
