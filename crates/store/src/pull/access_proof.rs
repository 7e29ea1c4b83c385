//! Whether who knows what an image is called can have it.
//!
//! A store that users share has an image once. Whoever names it second need not fetch it again, but must show that they could: a registry of
//! their own answers whatever they like, and digests are no secrets. So either an *origin* of the image gives it to them: a registry that all of
//! its layers once came from, proven by a certificate that the site believes. That is asked, with their credentials, for the manifest and
//! for each layer. Or they fetch all layers whole, from wherever they like, and their digests are the proof. Who fails too often waits.

use skiff_image::assemble::AssemblyProgress;
use skiff_image::blob::Blob;
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_oci::manifest::Descriptor;
use skiff_registry::{BlobDir, Origin, Resolved};

use crate::error::Result;
use crate::fetcher::image_id;
use crate::pull::{PullJob, PullWatch, WatchedLayers, watched};
use crate::store::ImageMetadata;

/// How many bytes are read at once.
const PIECE: usize = 256 << 10;

/// The origin of an image whose layers have just been fetched, or had been before; none, if one of them came from elsewhere.
pub(crate) fn origin_of(pull: &PullJob<'_>, found: &Resolved, blobs: &BlobDir) -> Option<Origin> {
    let origin = pull.fetcher.origin(found)?;
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
    let is_there = kept.is_empty() || pull.fetcher.ask_origin(found, &origin, &kept).is_ok();
    is_there.then_some(origin)
}

/// Shows that the user can have an image that is there, or fails.
///
/// # Errors
/// The registry denies access to the image, or the user has failed to prove access too often lately.
pub(crate) fn prove(
    pull: &PullJob<'_>,
    found: &Resolved,
    record: &ImageMetadata,
    watch: &mut dyn PullWatch,
) -> Result<()> {
    pull.store.check_refusals(pull.uid)?;
    let claimed = pull.fetcher.claimed_origins(found);
    let asks = |origin: &&Origin| pull.fetcher.ask_origin(found, origin, &layers(found)).is_ok();
    if record.origins.iter().filter(|origin| claimed.contains(origin)).find(asks).is_some() {
        return Ok(());
    }
    match fetch_all(pull, found, watch) {
        Ok(Some(origin)) => pull.store.add_origin(image_id(found), origin),
        Ok(None) => Ok(()),
        Err(e) => {
            if e.is_refusal() {
                pull.store.note_refusal(pull.uid)?;
            }
            Err(e)
        }
    }
}

/// Fetches all layers, only to see that they can be had. Gives their origin, if they have one.
fn fetch_all(pull: &PullJob<'_>, found: &Resolved, watch: &mut dyn PullWatch) -> Result<Option<Origin>> {
    let sizes = layers(found).iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    pull.store.check_room(pull.uid, sizes)?;
    let dir = BlobDir::open(&pull.store.blobs(pull.uid)?)?;
    let fetching = pull.fetcher.fetch(found, dir.clone())?;
    let blobs = fetching.blobs();
    let digests: Vec<Digest> = layers(found).iter().map(|layer| layer.digest).collect();
    let arrived = |layer: usize| fetching.arrived(layer);
    let progress = AssemblyProgress::new(blobs.len());
    let watched_layers = WatchedLayers { digests: &digests, blobs: &blobs, arrived: &arrived };
    // By whoever has brought them, or by us: one after the other, as they come.
    watched(watch, &watched_layers, &progress, || {
        blobs.iter().zip(&digests).try_for_each(|(blob, digest)| read_whole(*blob, digest, &progress))
    })?;
    let origin = origin_of(pull, found, &dir);
    digests.iter().try_for_each(|digest| dir.remove(digest).map(drop))?;
    Ok(origin)
}

/// Reads all of a blob, which shows that it is the right one.
fn read_whole(blob: &dyn Blob, digest: &Digest, progress: &AssemblyProgress) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let mut hasher = blob.digest().map(|digest| Hasher::like(&digest));
        let mut read = || -> skiff_image::Result<()> {
            let mut at = 0;
            while at < blob.size() {
                progress.check()?;
                let piece = &mut buffer[..PIECE.min(usize::try_from(blob.size() - at).unwrap_or(PIECE))];
                blob.read_at(piece, at)?;
                hasher.iter_mut().for_each(|hasher| hasher.update(piece));
                at += piece.len() as u64;
            }
            blob.settle(hasher.take().map(Hasher::finish).filter(|got| got != digest))
        };
        match read() {
            Err(error) if error.is_restart() => blob.restart(),
            result => return Ok(result?),
        }
    }
}

fn layers(found: &Resolved) -> Vec<&Descriptor> {
    found.manifest.layers.iter().map(|layer| &layer.blob).collect()
}
