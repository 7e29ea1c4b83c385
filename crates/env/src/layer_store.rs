//! A snapshot's layers in this node's trusted store, from where the helper mounts them: nothing is unpacked.

use std::time::Duration;

use skiff_snapshot::{Depot, LayerRef, SnapshotManifest};
use skiff_spec::config::NodeLayers;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::wire::MOST_LAYERS;
use skiff_store::protocol::LayerRequest;
use skiff_store::{client, ours};
use skiff_user::context::UserContext;

/// How long a start waits in all for other users who make the same layers: they may send nothing.
const PATIENCE: Duration = Duration::from_millis(700);

/// What is there now.
pub struct StoredLayers {
    /// The layers, bottom first.
    pub ids: Vec<ImageId>,
    /// How many bytes had to be brought there; nothing if none had to.
    pub missing: Option<u64>,
}

/// Whether layers may be mounted here, if nothing comes in the way: the site wants it, and there is a store for it.
pub fn is_wanted(context: &UserContext, manifest: &SnapshotManifest) -> bool {
    let fits = (1..=MOST_LAYERS).contains(&manifest.layers.len());
    fits && context.config.slurm.layers == NodeLayers::Mounted && client::takes_layers(context)
}

/// The layers, if all are there.
pub fn find(context: &UserContext, manifest: &SnapshotManifest) -> Option<StoredLayers> {
    let ids = ids(manifest);
    ids.iter().all(|id| client::has(context, *id)).then_some(StoredLayers { ids, missing: None })
}

/// How many bytes are not there.
pub fn missing(context: &UserContext, manifest: &SnapshotManifest) -> u64 {
    let layers = manifest.layers.iter().zip(ids(manifest));
    layers.filter(|(_, id)| !client::has(context, *id)).map(|(layer, _)| layer.size).sum()
}

/// Brings the layers there that are not there yet.
///
/// # Errors
/// Why that is not possible, as there is no room or no EROFS in the kernel: they have to be unpacked.
pub fn add(context: &UserContext, depot: &Depot, manifest: &SnapshotManifest) -> Result<StoredLayers> {
    let ids = ids(manifest);
    let (mut missing, mut patience) = (None, PATIENCE);
    for (layer, id) in manifest.layers.iter().zip(&ids) {
        if !client::has(context, *id) {
            let waited = add_one(context, depot, (layer, patience), &ids)?;
            patience = patience.saturating_sub(waited);
            missing = Some(missing.unwrap_or(0) + layer.size);
        }
    }
    match find(context, manifest) {
        Some(there) => Ok(StoredLayers { missing, ..there }),
        // Other jobs of this user have taken the room.
        None => Err(Error::new("layers vanish from the image store as soon as they are there")),
    }
}

fn ids(manifest: &SnapshotManifest) -> Vec<ImageId> {
    manifest.layers.iter().map(|layer| ImageId(layer.digest.0)).collect()
}

/// Brings one layer there; gives for how long others who make it were waited for.
fn add_one(
    context: &UserContext,
    depot: &Depot,
    (layer, patience): (&LayerRef, Duration),
    snapshot: &[ImageId],
) -> Result<Duration> {
    let Some(helper) = &context.helper else { return Ok(Duration::ZERO) };
    let request = LayerRequest {
        id: ImageId(layer.digest.0),
        size: layer.size,
        budget: context.config.slurm.cache_bytes,
        snapshot: snapshot.to_vec(),
        patience_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
    };
    client::add_layer(helper, request, |mut to| depot.send_layer(layer, &mut to)).map_err(ours)
}
