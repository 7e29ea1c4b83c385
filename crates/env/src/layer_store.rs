//! A snapshot's layers in this node's trusted store, from where the helper mounts them: nothing is unpacked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use skiff_snapshot::{Cache, Depot, LEAST_SHARED, LayerRef, SnapshotManifest};
use skiff_spec::config::NodeLayers;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::wire::MOST_LAYERS;
use skiff_store::protocol::LayerRequest;
use skiff_store::{Error as StoreError, client, ours};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::near_layers;

/// How long a start waits in all for other users who make the same layers: they may send nothing.
const PATIENCE: Duration = Duration::from_millis(700);

/// What is there now.
pub struct StoredLayers {
    /// The layers, bottom first.
    pub ids: Vec<ImageId>,
    /// How many bytes had to be brought there; nothing if none had to.
    pub missing: Option<u64>,
    /// How many of these were in other layers there.
    pub reused: u64,
}

/// Whether layers may be mounted here, if nothing comes in the way: the site wants it, and there is a store for it.
pub fn is_wanted(context: &UserContext, manifest: &SnapshotManifest) -> bool {
    let fits = (1..=MOST_LAYERS).contains(&manifest.layers.len());
    fits && context.config.slurm.layers == NodeLayers::Mounted && client::takes_layers(context)
}

/// The layers, if all are there.
pub fn find(context: &UserContext, manifest: &SnapshotManifest) -> Option<StoredLayers> {
    let ids = ids(manifest);
    ids.iter().all(|id| client::has(context, *id)).then_some(StoredLayers { ids, missing: None, reused: 0 })
}

/// How many bytes are not there.
pub fn missing(context: &UserContext, manifest: &SnapshotManifest) -> u64 {
    let layers = manifest.layers.iter().zip(ids(manifest));
    layers.filter(|(_, id)| !client::has(context, *id)).map(|(layer, _)| layer.size).sum()
}

/// Brings the layers there that are not there yet. The cache notes of what they consist.
///
/// # Errors
/// Why that is not possible, as there is no room or no EROFS in the kernel: they have to be unpacked.
pub fn add(
    context: &UserContext,
    cache: &Cache,
    depot: &Depot,
    manifest: &SnapshotManifest,
) -> Result<StoredLayers> {
    let ids = ids(manifest);
    let reused = Arc::new(AtomicU64::new(0));
    let (mut missing, mut patience) = (None, PATIENCE);
    for (layer, id) in manifest.layers.iter().zip(&ids) {
        if !client::has(context, *id) {
            let waited = add_one(context, (cache, &reused), depot, (layer, patience), &ids)?;
            patience = patience.saturating_sub(waited);
            missing = Some(missing.unwrap_or(0) + layer.size);
        }
    }
    match find(context, manifest) {
        Some(there) => Ok(StoredLayers { missing, reused: reused.load(Ordering::Relaxed), ..there }),
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
    (cache, reused): (&Cache, &Arc<AtomicU64>),
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
    let mut opened = depot.open_layer(layer).map_err(|e| ours(StoreError::Layer(e)))?;
    opened.take_from(near_layers::find(context, cache, &opened, reused));
    // Small ones are not worth being looked into later.
    let list = if layer.size < LEAST_SHARED { None } else { opened.list() };
    let waited = client::add_layer(helper, request, |mut to| opened.send(&mut to)).map_err(ours)?;
    if let Some(list) = list {
        cache
            .keep_list(&layer.digest, &list)
            .ignore_error("what a later layer shares with this one is read of the depot then");
    }
    Ok(waited)
}
