//! Whether who knows what an image is called can have it.
//!
//! A store that users share has an image once. Whoever names it second need not fetch it again, but must show that he could: a registry of
//! his own answers whatever he likes, and digests are no secrets. So either an *origin* of the image gives it to him: a registry that all of
//! its layers once came from, proven by a certificate that the site believes. That is asked, with his credentials, for the manifest and
//! for each layer. Or he fetches all layers whole, from wherever he likes, and their digests are the proof. Who fails too often waits.

use std::time::Duration;

use skiff_spec::digest::Digest;
use skiff_spec::image::ImageId;

use crate::error::{Error, Result};
use crate::hash::sha256;
use crate::manifest::Descriptor;
use crate::pull::{LayerProgress, Pull, TICK, Watch};
use crate::registry::{BlobDir, Failure, Origin, Resolved, Status};
use crate::store::Record;

/// How often is looked how far layers are that are only a proof.
const LOOK: Duration = Duration::from_millis(10);

/// The origin of an image whose layers have just been fetched, or had been before; none, if one of them came from elsewhere.
pub(crate) fn origin_of(pull: &Pull<'_>, found: &Resolved, blobs: &BlobDir) -> Option<Origin> {
    let origin = pull.client.origin(&found.source)?;
    let mut kept = vec![];
    for Descriptor { digest, .. } in found.manifest.layers.iter().map(|layer| &layer.blob) {
        let from = blobs.origin(digest)?;
        if from.server != origin.server {
            return None;
        }
        kept.extend((from != origin).then_some(digest));
    }
    // One that another image of the same server's has brought: that this repository has it, too, is for that server to say.
    let kept = layers(found).into_iter().filter(|layer| kept.contains(&&layer.digest)).collect::<Vec<_>>();
    let is_there = kept.is_empty() || pull.client.ask_origin(&origin, &manifest_of(found), &kept).is_ok();
    is_there.then_some(origin)
}

/// Shows that the user can have an image that is there, or fails.
///
/// # Errors
/// The registry denies access to the image, or the user has failed to prove access too often lately.
pub(crate) fn prove(pull: &Pull<'_>, found: &Resolved, record: &Record, watch: &mut dyn Watch) -> Result<()> {
    pull.store.check_refusals(pull.uid)?;
    let claimed = pull.client.claimed_origins(&found.source);
    let asks = |origin: &&Origin| pull.client.ask_origin(origin, &manifest_of(found), &layers(found)).is_ok();
    if record.origins.iter().filter(|origin| claimed.contains(origin)).find(asks).is_some() {
        return Ok(());
    }
    match fetch_all(pull, found, watch) {
        Ok(Some(origin)) => match manifest_of(found) {
            Digest::Sha256(id) => pull.store.add_origin(ImageId(id), origin),
            _ => Ok(()),
        },
        Ok(None) => Ok(()),
        Err(e) => {
            if is_refusal(&e) {
                pull.store.note_refusal(pull.uid)?;
            }
            Err(e)
        }
    }
}

/// Fetches all layers, only to see that they can be had. Gives their origin, if they have one.
fn fetch_all(pull: &Pull<'_>, found: &Resolved, watch: &mut dyn Watch) -> Result<Option<Origin>> {
    let sizes = layers(found).iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    pull.store.check_room(pull.uid, sizes)?;
    let blobs = BlobDir::open(&pull.store.blobs(pull.uid)?)?;
    let fetch = pull.client.fetch(&found.source, blobs.clone())?;
    let growing: Vec<_> = layers(found).into_iter().map(|layer| fetch.blob(layer)).collect();
    let digests: Vec<Digest> = growing.iter().map(|layer| *layer.digest()).collect();
    for tick in 0u64.. {
        let is_over = |(_, status): (u64, Status)| matches!(status, Status::Verified | Status::Failed);
        if growing.iter().all(|layer| is_over(layer.progress())) {
            break;
        }
        if u128::from(tick) % (TICK.as_millis() / LOOK.as_millis()) == 0 {
            let how_far = growing.iter().map(|layer| LayerProgress {
                size: layer.size(),
                fetched: layer.progress().0,
                unpacked: 0,
            });
            if !watch.layers(&digests, &how_far.collect::<Vec<_>>()) {
                return Err(Error::Cancelled);
            }
        }
        std::thread::sleep(LOOK);
    }
    growing.iter().try_for_each(|layer| layer.wait())?;
    let origin = origin_of(pull, found, &blobs);
    digests.iter().try_for_each(|digest| blobs.remove(digest).map(drop))?;
    Ok(origin)
}

/// Whether it says that the layers are not to be had. That a network fails says nothing of that.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Shared(error) => is_refusal(error),
        Error::WrongDigest { .. } => true,
        Error::Registry(e) => !matches!(
            e.failure,
            Failure::Connection(_) | Failure::Cancelled | Failure::Status { status: 429 | 500.., .. }
        ),
        _ => false,
    }
}

fn layers(found: &Resolved) -> Vec<&Descriptor> {
    found.manifest.layers.iter().map(|layer| &layer.blob).collect()
}

fn manifest_of(found: &Resolved) -> Digest {
    sha256(&found.manifest_bytes)
}
