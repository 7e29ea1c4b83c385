//! What a node has of a new layer in others: after a copy, a change to a large file, or when layers were merged, nearly all of it.
//!
//! Only layers are looked into that are in the node's store for this very user, and only by the file that the store's writer gives to whoever may
//! use it: what other users have nobody learns by it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use skiff_snapshot::{Cache, LayerId, LayerRef, LayerStream, NearLayer, OpenLayer, SharedChunks};
use skiff_spec::image::ImageId;
use skiff_store::{StoredLayer, client};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

/// A layer with many small files is walked through only if so many bytes are shared for each of them: a file takes about as long as 1 to 2 KiB by a
/// link of 1 Gbit/s.
const SHARED_PER_FILE: u64 = 1 << 10;

/// The user's layers here that have chunks of this one. `taken` gets how many bytes are taken of them.
pub fn find(
    context: &UserContext,
    cache: &Cache,
    layer: &OpenLayer<'_>,
    taken: &Arc<AtomicU64>,
) -> Vec<NearLayer> {
    let is_here = |id: &LayerId| client::has(context, ImageId(id.0));
    let found = cache.layers_like(layer, is_here).default_on_error("the depot has all of it");
    found.into_iter().filter_map(|shared| open(context, shared, taken)).collect()
}

/// The user's layers here, of these: their files are opened while the helper can be asked.
pub fn files(context: &UserContext, layers: &[LayerRef]) -> HashMap<LayerId, File> {
    let file = |layer: &LayerRef| {
        let id = ImageId(layer.digest.0);
        let is_here = client::has(context, id);
        let (record, file) =
            is_here.then(|| client::open_file(context, id, &id.to_string()).ok()).flatten()?;
        record.layer.then_some((layer.digest, file))
    };
    layers.iter().filter_map(file).collect()
}

/// The stream of such a layer.
pub fn stream(files: &HashMap<LayerId, File>, id: &LayerId) -> Option<Box<dyn LayerStream>> {
    let file = files.get(id)?.try_clone().ok()?;
    Some(Box::new(StoredLayer::open(file, id.to_string()).ok()?))
}

fn open(context: &UserContext, shared: SharedChunks, taken: &Arc<AtomicU64>) -> Option<NearLayer> {
    let id = ImageId(shared.layer().0);
    let (record, file) = client::open_file(context, id, &id.to_string()).ok()?;
    if !record.layer || shared.bytes() < record.files.saturating_mul(SHARED_PER_FILE) {
        return None;
    }
    let stored = StoredLayer::open(file, id.to_string()).ok()?;
    // If the stream came out longer or shorter than the list says, its chunks would be looked for in wrong places.
    let is_same = stored.length() == shared.length();
    is_same.then(|| shared.read_by(Box::new(stored), Arc::clone(taken)))
}
