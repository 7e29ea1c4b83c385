//! What a node has of a new layer in others: after a copy, a change to a large file, or when layers were merged, nearly all of it.
//!
//! Only layers are looked into that are in the node's store for this very user, and only by the file that the store's writer gives to whoever may
//! use it: what other users have nobody learns by it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use skiff_snapshot::{Cache, LayerId, LayerRef, LayerStream, NearLayer, OpenLayer, SharedChunks};
use skiff_spec::image::ImageId;
use skiff_store::{ImageMetadata, StoredLayer, client};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

/// A layer with many small files is walked through only if so many bytes are shared for each of them: a file takes about as long as 1 to 2 KiB by a
/// link of 1 Gbit/s.
const SHARED_PER_FILE: u64 = 1 << 10;

/// How long all questions for a commit's layers may take.
const PATIENCE: Duration = Duration::from_secs(2);

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

/// The user's layers here, of these: their files are opened while the helper can be asked. The depot has all of them: so the store is not waited
/// for, which may be at work for the user's other jobs.
pub fn files(context: &UserContext, layers: &[LayerRef]) -> HashMap<LayerId, File> {
    let open = |id, left| client::open_file_within(left, context, id, &id.to_string());
    let is_here = |id: &ImageId| client::has(context, *id);
    open_all(layers.iter().map(|layer| ImageId(layer.digest.0)).filter(is_here), PATIENCE, open)
}

fn open_all(
    ids: impl Iterator<Item = ImageId>,
    patience: Duration,
    open: impl Fn(ImageId, Duration) -> skiff_store::Result<(ImageMetadata, File)>,
) -> HashMap<LayerId, File> {
    let by = Instant::now() + patience;
    let mut files = HashMap::new();
    for id in ids {
        let left = by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match open(id, left) {
            Ok((record, file)) if record.layer => {
                files.insert(LayerId(id.0), file);
            }
            Err(skiff_store::Error::Busy) => break,
            Ok(_) | Err(_) => {}
        }
    }
    files
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_store_that_is_at_work_is_not_waited_for() {
        let ids = || (0..60).map(|number| ImageId([number; 32]));
        let asked = Cell::new(0);
        let busy = |_, _| {
            asked.set(asked.get() + 1);
            Err(skiff_store::Error::Busy)
        };
        assert!(open_all(ids(), PATIENCE, busy).is_empty());
        assert_eq!(asked.get(), 1, "the next one would be waited for as long");
        // Each is answered in the end.
        let slow = |_, left: Duration| {
            asked.set(asked.get() + 1);
            assert!(left <= Duration::from_millis(300));
            std::thread::sleep(left.min(Duration::from_millis(100)));
            Err(skiff_store::Error::NoAnswer)
        };
        open_all(ids(), Duration::from_millis(300), slow);
        assert!((2..=4).contains(&asked.get()), "{}", asked.get());
    }
}
