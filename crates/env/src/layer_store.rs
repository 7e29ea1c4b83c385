//! A snapshot's layers in this node's trusted store, from where the helper mounts them: nothing is unpacked.

use skiff_snapshot::{Depot, LayerRef, SnapshotManifest};
use skiff_spec::config::NodeLayers;
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_spec::wire::MOST_LAYERS;
use skiff_store::{client, ours};
use skiff_user::context::UserContext;

use crate::snapshot_fault;

/// What is there now.
pub struct StoredLayers {
    /// The layers, bottom first.
    pub ids: Vec<ImageId>,
    /// How many bytes had to be brought there; nothing if none had to.
    pub missing: Option<u64>,
}

/// Brings the layers there that are not there yet. Nothing where they have to be unpacked, as there is no helper, no
/// store, no EROFS in the kernel or no room. If the layers themselves are at fault, whoever unpacks them says so.
pub fn add(context: &UserContext, depot: &Depot, manifest: &SnapshotManifest) -> Option<StoredLayers> {
    let layers = &manifest.layers;
    let fits = (1..=MOST_LAYERS).contains(&layers.len());
    if !fits || context.helper.is_none() || context.config.slurm.layers == NodeLayers::Unpacked {
        return None;
    }
    let mut stored = StoredLayers { ids: vec![], missing: None };
    for layer in layers {
        let id = ImageId(layer.digest.0);
        if !client::has(context, id) {
            add_one(context, depot, layer, id).ok()?;
            stored.missing = Some(stored.missing.unwrap_or(0) + layer.size);
        }
        stored.ids.push(id);
    }
    Some(stored)
}

fn add_one(context: &UserContext, depot: &Depot, layer: &LayerRef, id: ImageId) -> Result<()> {
    let Some(helper) = &context.helper else { return Ok(()) };
    let budget = context.config.slurm.cache_bytes;
    let send = |mut to| depot.send_layer(layer, &mut to).map_err(snapshot_fault::ours);
    client::add_layer(helper, (id, layer.size, budget), send).map(drop).map_err(ours)
}
