//! What is remembered of pushes: which layer came of two images, so that it need not be made to be named; and which repositories have a layer, so that
//! others of the same registry get it from there.
//!
//! All of it follows from images and registries: what is lost costs time, and what is wrong is found by digests.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use skiff_image::export::{PackedLayer, PackedLayerFile};
use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256_hex;
use skiff_oci::manifest::Compression;
use skiff_oci::reference::Named;
use skiff_site::TrustedDir;
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_sys::clock::now;
use skiff_sys::{IgnoreError, small_file};
use skiff_user::context::UserContext;
use skiff_user::dirs::make_private;

/// What was not noted again for so long is removed.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// Names the layer between two images.
pub struct LayerKey(String);

impl LayerKey {
    pub fn new(above: ImageId, below: Option<ImageId>, compression: Compression) -> Self {
        let below = below.map(|id| id.to_string()).unwrap_or_default();
        // Another version may pack otherwise.
        let text = format!("{above} {below} {compression:?} {}", env!("CARGO_PKG_VERSION"));
        Self(format!("layer-{}.json", sha256_hex(text.as_bytes())))
    }
}

/// What came of making a layer.
#[derive(Serialize, Deserialize)]
pub struct MadeLayer {
    /// Nothing if the images have the same files.
    pub layer: Option<PackedLayer>,
    /// How many sockets were left out.
    pub sockets: u64,
}

impl MadeLayer {
    pub fn of(made: Option<&PackedLayerFile>) -> Self {
        Self {
            layer: made.map(|made| made.layer.clone()),
            sockets: made.map_or(0, |made| made.left_out.sockets),
        }
    }
}

/// A directory of such notes.
pub struct PushMemory {
    dir: TrustedDir,
}

impl PushMemory {
    pub fn open(context: &UserContext) -> Result<Self> {
        let memory = Self { dir: make_private(&context.data().join("pushed"))? };
        memory.prune().ignore_error("what stays is found the next time");
        Ok(memory)
    }

    /// The layer of this key, if it was made before.
    pub fn made(&self, key: &LayerKey) -> Option<MadeLayer> {
        self.read(&key.0)
    }

    pub fn remember(&self, key: &LayerKey, layer: &MadeLayer) {
        self.write(&key.0, layer);
    }

    pub fn forget(&self, key: &LayerKey) -> Result<()> {
        Ok(self.dir.remove_file(&key.0)?)
    }

    /// A repository of the same registry that has got a layer.
    pub fn place(&self, layer: &Digest, to: &Named) -> Option<Named> {
        let place: String = self.read(&place_name(layer, to))?;
        place.parse().ok().filter(|place: &Named| place.server() == to.server())
    }

    pub fn note_place(&self, layer: &Digest, to: &Named) {
        self.write(&place_name(layer, to), &to.name());
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&small_file::read(&self.dir.path_of(name)).ok()?).ok()
    }

    fn write(&self, name: &str, value: &impl Serialize) {
        if let Ok(text) = serde_json::to_vec(value) {
            self.dir.write(name, &text, 0o600).ignore_error("the next push takes longer");
        }
    }

    fn prune(&self) -> Result<()> {
        let now = now();
        for name in self.dir.names()? {
            let written = self.dir.stat(&name)?.map_or(0, |stat| stat.st_mtime);
            if u64::try_from(written).is_ok_and(|written| written + KEPT.as_secs() < now) {
                self.dir.remove_file(&name)?;
            }
        }
        Ok(())
    }
}

fn place_name(layer: &Digest, to: &Named) -> String {
    format!("place-{}.json", sha256_hex(format!("{layer} {}", to.server()).as_bytes()))
}
