//! The image that a job's root is over, as the job's nodes pass it on: by a registry's mirror, or as one file.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::fs::fstatvfs;
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_plan::get::ImageOrigin;
use skiff_plan::image_peers::ImagePeers;
use skiff_registry::ImageParts;
use skiff_relay::{ImageOpener, ImagePieceReader, MirrorAddress};
use skiff_snapshot::{Depot, PieceCounts, PieceReader};
use skiff_spec::image::ImageId;
use skiff_store::client::{self, PullMirror};
use skiff_store::copies;
use skiff_store::file::ImageFile;
use skiff_user::context::UserContext;

use super::{JobRelay, open_unnamed_file};
use crate::base_fingerprint;

/// One part of so many of a disk stays free for what an image's file is fetched for.
const ROOM: u64 = 10;

/// After a registry could not be asked: until that is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// The same at most, after many failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What says which image a job's root is over.
#[derive(Clone)]
pub enum RelayImage {
    /// The job itself, by a name.
    Named(String),
    /// The manifest of a snapshot, if it is over one.
    OfSnapshot(String),
}

/// An image, and where it is to be had.
pub(super) struct RelayedImage {
    context: UserContext,
    depot: PathBuf,
    image: RelayImage,
    /// Once somebody has wanted something.
    parts: Retried<ImageParts>,
}

impl RelayedImage {
    pub(super) fn new(context: &UserContext, depot: &Path, image: &RelayImage) -> Self {
        let (context, depot, image) = (context.clone(), depot.to_owned(), image.clone());
        Self { context, depot, image, parts: Retried::default() }
    }

    /// What it is made of in its registry; nothing while no registry can be asked.
    pub(super) fn parts(&self) -> Option<&ImageParts> {
        self.parts.get(PAUSE, || client::parts(&self.context, &self.name()?).ok())
    }

    fn name(&self) -> Option<String> {
        match &self.image {
            RelayImage::Named(name) => Some(name.clone()),
            RelayImage::OfSnapshot(snapshot) => {
                let manifest = Depot::open_existing(&self.depot).ok()?.manifest(&snapshot.parse().ok()?);
                let manifest = manifest.ok()?;
                let (_, name) = base_fingerprint::image_of(&manifest.base).ok()??;
                Some(name.to_owned())
            }
        }
    }

    /// Opens its copy in the depot, or the file that it is named by.
    fn open_file(&self, digest: ImageId) -> Option<File> {
        let copy = copies::open(&self.depot, digest).ok().flatten();
        copy.or_else(|| ImageFile::of(&self.name()?)?.open_regular().ok()?)
    }
}

/// What is looked up until it is found, and then known.
struct Retried<T> {
    found: OnceLock<T>,
    has_failed: AtomicBool,
    /// When it was not found last, and how often it was not.
    failed: Mutex<Option<(Instant, u32)>>,
}

impl<T> Default for Retried<T> {
    fn default() -> Self {
        Self { found: OnceLock::new(), has_failed: AtomicBool::new(false), failed: Mutex::default() }
    }
}

impl<T> Retried<T> {
    /// Looks it up, one caller at a time, but not again within `pause` of a failure, and within twice as long of each that follows: a manifest may not
    /// be seen yet, or a file be exchanged, and a registry in trouble is asked by all nodes. Others wait for the first answer only.
    fn get(&self, pause: Duration, look_up: impl FnOnce() -> Option<T>) -> Option<&T> {
        if let Some(found) = self.found.get() {
            return Some(found);
        }
        let mut failed = match self.has_failed.load(Ordering::Relaxed) {
            true => match self.failed.try_lock() {
                Err(TryLockError::WouldBlock) => return None,
                Err(TryLockError::Poisoned(locked)) => locked.into_inner(),
                Ok(locked) => locked,
            },
            false => self.failed.lock().unwrap_or_else(PoisonError::into_inner),
        };
        if self.found.get().is_none()
            && failed.is_none_or(|(at, times)| at.elapsed() >= pause_after(times, pause))
        {
            match look_up() {
                Some(found) => return Some(self.found.get_or_init(|| found)),
                None => {
                    let times = failed.map_or(1, |(_, times)| times.saturating_add(1));
                    *failed = Some((Instant::now(), times));
                    self.has_failed.store(true, Ordering::Relaxed);
                }
            }
        }
        self.found.get()
    }
}

/// For how long an image is not looked up again after so many failures.
fn pause_after(times: u32, first: Duration) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(times.saturating_sub(1)));
    doubled.min(LONGEST_PAUSE.max(first))
}

/// Opens the image's file for a relay.
pub(super) fn opener(image: &Arc<RelayedImage>) -> Box<ImageOpener> {
    let image = Arc::clone(image);
    Box::new(move |digest| image.open_file(ImageId(*digest)))
}

impl ImagePeers for JobRelay {
    fn mirror(&self) -> Option<PullMirror> {
        let answering = self.mirror.as_ref().filter(|mirror| mirror.counts().is_some());
        let (server, repository) = answering?.location();
        Some(PullMirror { server, repository })
    }

    fn file(&self, context: &UserContext, digest: ImageId, length: u64) -> Option<File> {
        let reader = self.reader_for(length)?;
        let mut file = room_for(context, length)?;
        let expected = Digest::Sha256(digest.0);
        let mut hasher = Hasher::like(&expected);
        let is_whole = reader.read_image((digest.0, length), |bytes| {
            hasher.update(bytes);
            file.write_all(bytes)
        });
        // Whoever has sent other bytes: none of them gets into a store.
        if !is_whole.ok()? || hasher.finish() != expected {
            return None;
        }
        self.came_of_file.set(reader.counts());
        Some(file)
    }
}

impl JobRelay {
    /// Has pieces of an image's file read by the job's nodes, if so many bytes are missing here and that is better than that each node reads them.
    pub fn with_image_pieces<T>(&self, missing: u64, act: impl FnOnce(Option<&dyn PieceReader>) -> T) -> T {
        let Some(reader) = self.reader_for(missing) else { return act(None) };
        let done = act(Some(&ImagePieceReader(&reader)));
        self.came_of_file.set(reader.counts());
        done
    }
}

/// A new file for an image's bytes, if so many leave enough room for others.
pub fn room_for(context: &UserContext, length: u64) -> Option<File> {
    let file = File::from(open_unnamed_file(context)?);
    let disk = fstatvfs(&file).ok()?;
    let left = disk.f_bavail.saturating_mul(disk.f_frsize).checked_sub(length)?;
    (left >= disk.f_blocks.saturating_mul(disk.f_frsize) / ROOM).then_some(file)
}

impl JobRelay {
    /// What has come of an image by relays, if it came from there.
    pub fn image_counts(&self, origin: ImageOrigin) -> PieceCounts {
        match origin {
            ImageOrigin::Registry => self.mirror.as_ref().and_then(MirrorAddress::counts).unwrap_or_default(),
            ImageOrigin::Nodes => self.came_of_file.get(),
            ImageOrigin::Store | ImageOrigin::File | ImageOrigin::Depot => PieceCounts::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_looked_up_is_looked_up_again_but_not_at_once() {
        let hour = Duration::from_secs(3600);
        let retried = Retried::default();
        assert_eq!(retried.get(hour, || None), None);
        assert_eq!(retried.get(hour, || Some(1)), None, "too soon");
        assert_eq!(retried.get(Duration::ZERO, || Some(2)), Some(&2));
        assert_eq!(retried.get(Duration::ZERO, || Some(3)), Some(&2), "it is known");
    }

    #[test]
    fn a_registry_in_trouble_is_asked_ever_less_often_and_holds_nobody_up() {
        let pauses = [1, 2, 3, 7, u32::MAX].map(|times| pause_after(times, PAUSE).as_secs());
        assert_eq!(pauses, [5, 10, 20, 300, 300]);
        let retried = Retried::default();
        assert_eq!(retried.get(Duration::ZERO, || None), None);
        // While one asks again, another goes on without.
        let found = retried.get(Duration::ZERO, || {
            assert_eq!(retried.get(Duration::ZERO, || Some(1)), None);
            Some(2)
        });
        assert_eq!(found, Some(&2));
    }
}
