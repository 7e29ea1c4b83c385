//! From a name in a registry to an image in a store.

mod access_proof;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fsync, open};
use serde_json::Value;
use skiff_erofs as erofs;
use skiff_image::assemble::{
    AssemblyJob, AssemblyProgress, ImageLimits, WrittenImage, assemble, default_threads,
};
use skiff_image::blob::Blob;
use skiff_image::changes::is_of_changes;
use skiff_image::first_run;
use skiff_oci::digest::Digest;
use skiff_oci::manifest::{Descriptor, Layer};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_registry::policy::Policies;
use skiff_registry::{BlobDir, Resolved};
use skiff_spec::image::ImageId;
use skiff_sys::IgnoreError;

use crate::error::{Error, Result};
use crate::fetcher::{Fetcher, image_id};
use crate::store::{self, Begun, ImageMetadata, Patience, Store, TemporaryFiles, UnfinishedImage};
use crate::threads;
use access_proof::{origin_of, prove};
use skiff_sys::SystemContext;

/// How often is told how far it has come.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// How often is looked whether what grows is too much for its user.
const LOOK_AT_QUOTA: Duration = Duration::from_secs(1);

/// What is to be pulled, and for whom.
pub struct PullJob<'a> {
    /// Where to.
    pub store: &'a Store,
    /// Who asks where it is from.
    pub fetcher: &'a dyn Fetcher,
    /// What must be true of it.
    pub policies: &'a Policies,
    /// Name of the image.
    pub image: &'a Named,
    /// The machine it is for.
    pub platform: &'a Platform,
    /// Who may use it then.
    pub uid: u32,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The image.
    pub id: ImageId,
    /// What its name means in the registry.
    pub digest: Digest,
    /// What the store knows of it.
    pub record: ImageMetadata,
    /// Whether it was there already.
    pub there: bool,
}

/// How far one layer has come, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerProgress {
    /// Size of the image as it is sent.
    pub size: u64,
    /// How many are here.
    pub fetched: u64,
    /// How many of them are unpacked.
    pub unpacked: u64,
}

/// Who watches a pull.
pub trait PullWatch: Send {
    /// Somebody else makes the same image; they are waited for.
    fn waiting(&mut self);
    /// How far the layers are, the lowest first. Gives whether to go on.
    fn layers(&mut self, digests: &[Digest], progress: &[LayerProgress]) -> bool;
}

/// Pulls an image, unless it is there.
///
/// # Errors
/// It cannot be had, is not sound, must not be used, or the store cannot hold it. Then the store is as it was, but for layers that the
/// next pull need not fetch again.
pub fn pull(pull: &PullJob<'_>, watch: &mut dyn PullWatch) -> Result<Pulled> {
    unless_there(pull, watch).inspect_err(|_| {
        // Layers are kept for the next pull as far as there is room. While they were fetched, nobody could remove them for that.
        pull.store
            .check_quota(pull.uid)
            .ignore_error("what comes of it is no news to who is told of the failure");
    })
}

fn unless_there(pull: &PullJob<'_>, watch: &mut dyn PullWatch) -> Result<Pulled> {
    let PullJob { store, fetcher, policies, image, platform, uid } = *pull;
    // One question may do: what a name means. But whether it is signed is not known by that, nor whether who says so has the image.
    if policies.accepts_any(image) {
        let digest = fetcher.digest(image)?;
        if let Some(id) = store.known(uid, &digest, platform)
            && let Some(record) = store.find(id)?
        {
            store.permit(uid, id)?;
            return Ok(Pulled { id, digest, record, there: true });
        }
    }
    let found = fetcher.resolve(image, platform)?;
    policies.admit(&found, || fetcher.signatures(&found))?;
    let (id, digest) = (image_id(&found), found.digest);
    let (record, there) = loop {
        let had = match store.begin((id, uid), Patience::default(), &mut || watch.waiting())? {
            Begun::There(record) => {
                if !store.permitted(uid, id) {
                    // Before what proves it takes room, too.
                    store.check_room(uid, 0)?;
                    prove(pull, &found, &record, watch)?;
                }
                (record, true)
            }
            Begun::New(making) => match make(pull, &found, making, watch) {
                // What was fetched is there still, if it is needed for a proof.
                Err(Error::Overtaken(_)) => continue,
                made => (made?, false),
            },
        };
        store.permit_more(uid, id)?;
        // While access was proven, whoever else had the image may have removed it. By the permit it stays from now on.
        if store.find(id)?.is_some() {
            break had;
        }
    };
    store.remember(uid, &digest, platform, id)?;
    Ok(Pulled { id, digest, record, there })
}

fn make(
    pull: &PullJob<'_>,
    found: &Resolved,
    mut making: UnfinishedImage<'_>,
    watch: &mut dyn PullWatch,
) -> Result<ImageMetadata> {
    let sizes = found.manifest.layers.iter().map(|layer| layer.blob.size);
    pull.store.check_room(pull.uid, sizes.fold(0, u64::saturating_add))?;
    making.count_for(pull.uid, 0)?;
    let overtaken = || making.is_overtaken().then(|| Error::Overtaken(making.id()));
    let temporary = pull.store.temporary_files(pull.uid)?;
    let within = WithinQuota::new((pull.store, &temporary), pull.uid, watch);
    let watch = &mut WithinQuota { overtaken: &overtaken, ..within };
    let blobs = pull.store.blobs(pull.uid)?;
    let fetching = pull.fetcher.fetch(found, BlobDir::open(&blobs)?)?;
    let layers = fetching.blobs();
    let progress = AssemblyProgress::new(layers.len());
    let digests: Vec<Digest> = found.manifest.layers.iter().map(|layer| layer.blob.digest).collect();
    let arrived = |layer: usize| fetching.arrived(layer);
    let watched_layers = WatchedLayers { digests: &digests, blobs: &layers, arrived: &arrived };
    let config: Value = serde_json::from_slice(&found.config_bytes)
        .map_err(|e| Error::unsound(pull.image.to_string(), e.to_string()))?;
    let keeps_whiteouts = keeps_whiteouts(pull.image, &config, layers.len())?;
    let image = watched(watch, &watched_layers, &progress, || {
        assemble_into((&making, pull.uid), &layers, keeps_whiteouts, &progress)
    });
    let WrittenImage { summary, data_sum } = watch.verdict(image)?;
    let bytes = u64::from(summary.blocks) * skiff_erofs::tree::BLOCK;
    check_and_sync(&making, pull.image)?;
    let record = ImageMetadata {
        size: bytes,
        data_sum: Some(data_sum),
        layers: found.manifest.layers.iter().map(as_noted).collect(),
        origins: origin_of(pull, found, &BlobDir::open(&blobs)?).into_iter().collect(),
        layer: false,
        files: summary.inodes,
        config,
    };
    // Before it is there: what nobody may use, anybody may have collected.
    pull.store.permit(pull.uid, making.id())?;
    making.publish(&record)?;
    Ok(record)
}

/// What the record of an image has of a layer.
fn as_noted(layer: &Layer) -> store::ImageLayer {
    let Descriptor { digest, size, .. } = &layer.blob;
    let media_type = layer.is_distributable().then(|| layer.compression.layer_type().into());
    store::ImageLayer { digest: digest.to_string(), size: *size, media_type }
}

/// Who watches, and sees to it that the user's quota is kept.
pub(crate) struct WithinQuota<'a> {
    store: &'a Store,
    temporary: &'a TemporaryFiles<'a>,
    uid: u32,
    watch: &'a mut dyn PullWatch,
    looked: Option<Instant>,
    /// Why the work is not needed any more, if so.
    pub(crate) overtaken: &'a (dyn Fn() -> Option<Error> + Sync),
    why_ended: Option<Error>,
}

impl<'a> WithinQuota<'a> {
    pub(crate) fn new(
        (store, temporary): (&'a Store, &'a TemporaryFiles<'a>),
        uid: u32,
        watch: &'a mut dyn PullWatch,
    ) -> WithinQuota<'a> {
        WithinQuota { store, temporary, uid, watch, looked: None, overtaken: &|| None, why_ended: None }
    }

    /// What came of it; if it was ended from here, why.
    pub(crate) fn verdict<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Some(error) = self.why_ended.take() {
            return Err(error);
        }
        let done = result?;
        self.store.check_quota(self.uid)?;
        Ok(done)
    }
}

impl PullWatch for WithinQuota<'_> {
    fn waiting(&mut self) {
        self.watch.waiting();
    }

    fn layers(&mut self, digests: &[Digest], progress: &[LayerProgress]) -> bool {
        if self.looked.is_none_or(|looked| looked.elapsed() > LOOK_AT_QUOTA) {
            self.looked = Some(Instant::now());
            let checked = self.store.check_quota(self.uid).and_then(|()| self.temporary.check());
            self.why_ended = self.why_ended.take().or_else(|| checked.err());
        }
        if self.why_ended.is_none() {
            self.why_ended = (self.overtaken)();
        }
        self.watch.layers(digests, progress) && self.why_ended.is_none()
    }
}

/// Whether an image of this configuration has its whiteouts as files: one of changes, which has one layer.
pub(crate) fn keeps_whiteouts(image: &dyn std::fmt::Display, config: &Value, layers: usize) -> Result<bool> {
    let is_of_changes = is_of_changes(config);
    if is_of_changes && layers != 1 {
        let why = format!("it has {layers} layers, and an image of a host's changes has one");
        return Err(Error::unsound(image.to_string(), why));
    }
    Ok(is_of_changes)
}

/// Puts layers together into the file of an image that is being made for this user.
pub(crate) fn assemble_into(
    (making, uid): (&UnfinishedImage<'_>, u32),
    layers: &[&dyn Blob],
    keeps_whiteouts: bool,
    progress: &AssemblyProgress,
) -> Result<WrittenImage> {
    let (room, name) = (making.room(), making.name());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let scratch: OwnedFd = open(&room, flags, Mode::empty()).on("open", room.display().to_string())?;
    let threads = default_threads();
    let refusal = Mutex::new(None);
    let job = AssemblyJob {
        blobs: layers,
        image: making.file(),
        name: &name,
        scratch: std::os::fd::AsFd::as_fd(&scratch),
        scratch_name: &room.display().to_string(),
        limits: ImageLimits::of(layers.iter().map(|layer| layer.size()).fold(0, u64::saturating_add)),
        threads,
        room: &|bytes| has_room((making, uid), bytes, &refusal),
        keeps_whiteouts,
    };
    let written = assemble(&job, progress);
    let refusal = refusal.into_inner().unwrap_or_else(PoisonError::into_inner);
    refusal.map_or_else(|| Ok(written?), Err)
}

/// Whether the user may have so many bytes more of an image than there are so far; otherwise says why not.
pub(crate) fn has_room(
    (making, uid): (&UnfinishedImage<'_>, u32),
    bytes: u64,
    refusal: &Mutex<Option<Error>>,
) -> bool {
    let error = making.announce(uid, bytes, &|| making.store().check_quota(uid)).err();
    let mut refusal = refusal.lock().unwrap_or_else(PoisonError::into_inner);
    *refusal = error;
    refusal.is_none()
}

/// Reads the finished file as whoever trusts the store will, while it goes to the disk: what our writer did wrong must not reach a kernel.
pub(crate) fn check_and_sync(making: &UnfinishedImage<'_>, image: &dyn std::fmt::Display) -> Result<()> {
    let image = image.to_string();
    let open = || -> Result<_> {
        let file = making.file().try_clone_to_owned().on("open", making.name())?;
        Ok(erofs::Reader::open(std::fs::File::from(file), image.as_str())?)
    };
    let sync = || Ok(fsync(making.file()).on("write to the disk", making.name())?);
    let check_seal = || Ok(erofs::check_seal(&open()?)?);
    std::thread::scope(|scope| {
        let syncing = threads::begin(scope, "sync", &sync);
        let sealing = threads::begin(scope, "seal", &check_seal);
        let reader = open()?;
        erofs::verify_stored_unsealed(&reader)?;
        sealing.done()?;
        syncing.done()?;
        Ok(first_run::prepare(&reader, making.file())?)
    })
}

/// Layers that are being unpacked.
pub(crate) struct WatchedLayers<'a> {
    pub digests: &'a [Digest],
    pub blobs: &'a [&'a dyn Blob],
    /// How many bytes of one of them are here.
    pub arrived: &'a (dyn Fn(usize) -> u64 + Sync),
}

/// Dropped, it ends the watcher.
struct WatcherEnd<'a> {
    over: &'a AtomicBool,
    watcher: std::thread::Thread,
}

impl Drop for WatcherEnd<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.watcher.unpark();
    }
}

/// Does `work`, and tells every while how far it is; ends it when nobody wants it any more.
pub(crate) fn watched<T>(
    watch: &mut dyn PullWatch,
    layers: &WatchedLayers<'_>,
    progress: &AssemblyProgress,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let over = AtomicBool::new(false);
    let watch = Mutex::new(watch);
    let tell = || {
        let now =
            layers.blobs.iter().zip(progress.layers()).enumerate().map(|(number, (blob, (unpacked, _)))| {
                LayerProgress { size: blob.size(), fetched: (layers.arrived)(number), unpacked }
            });
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        if !watch.layers(layers.digests, &now.collect::<Vec<_>>()) {
            progress.cancel();
            layers.blobs.iter().for_each(|blob| blob.abandon());
        }
    };
    let result = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                tell();
                std::thread::park_timeout(TICK);
            }
        });
        // By a panic too: the watcher would be waited for for ever.
        let _end = WatcherEnd { over: &over, watcher: watcher.thread().clone() };
        work()
    });
    if result.is_ok() {
        tell();
    }
    result
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    struct Nobody;

    impl PullWatch for Nobody {
        fn waiting(&mut self) {}
        fn layers(&mut self, _digests: &[Digest], _progress: &[LayerProgress]) -> bool {
            true
        }
    }

    #[test]
    fn the_watcher_ends_with_work_that_panics() {
        let (ended, has_ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let layers = WatchedLayers { digests: &[], blobs: &[], arrived: &|_| 0 };
            let work = || -> Result<()> { panic!("on purpose") };
            let watched = || watched(&mut Nobody, &layers, &AssemblyProgress::new(0), work);
            ended.send(catch_unwind(AssertUnwindSafe(watched)).is_err())
        });
        assert_eq!(has_ended.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}
