//! A snapshot's layers in this node's trusted store, from where the helper mounts them: nothing is unpacked.

use skiff_snapshot::{Depot, LayerRef, SnapshotManifest};
use skiff_spec::config::NodeLayers;
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_spec::wire::MOST_LAYERS;
use skiff_store::{client, ours};
use skiff_user::context::UserContext;

use crate::snapshot_fault;

/// Brings the layers there that are not there yet. Gives them, bottom first; nothing where they have to be unpacked, as there is no helper, no
/// store, no EROFS in the kernel or no room. If the layers themselves are at fault, whoever unpacks them says so.
pub fn add(context: &UserContext, depot: &Depot, manifest: &SnapshotManifest) -> Option<Vec<ImageId>> {
    let layers = &manifest.layers;
    let fits = (1..=MOST_LAYERS).contains(&layers.len());
    if !fits || context.helper.is_none() || context.config.slurm.layers == NodeLayers::Unpacked {
        return None;
    }
    layers.iter().map(|layer| add_one(context, depot, layer)).collect::<Result<_>>().ok()
}

fn add_one(context: &UserContext, depot: &Depot, layer: &LayerRef) -> Result<ImageId> {
    let id = ImageId(layer.digest.0);
    if let Some(helper) = &context.helper
        && !client::has(context, id)
    {
        let budget = context.config.slurm.cache_bytes;
        client::add_layer(helper, (id, layer.size, budget), |mut to| {
            depot.send_layer(layer, &mut to).map_err(snapshot_fault::ours)
        })
        .map_err(ours)?;
    }
    Ok(id)
}
