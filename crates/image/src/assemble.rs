//! An image file from the layers of an image: all at once, each as its bytes come.
//!
//! Each layer has a thread, of which one more run than there are processors; one that waits for bytes lets another run. The file is
//! the same, byte for byte, whoever was faster.

use std::cell::Cell;
use std::cmp::Reverse;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use skiff_erofs::Summary;
use skiff_erofs::tree::Tree;
use skiff_sys::uncached::Uncached;

use crate::blob::Blob;
use crate::inflate::{InflateWatch, Inflater, promised_size};
use crate::layer::{LayerTarget, LayerUnpacker, Others, UnpackedLayer};
use crate::layer_entries::LayerEntries;
use crate::merge::Merger;
use crate::panics::caught;
use crate::punch::{clear, unused};
use crate::space::{BlockRange, BlockSpace};
use crate::spill::Spill;
use crate::sum::{of_blocks, of_copies};
use crate::work_slots::{WorkSlot, WorkSlots};
use crate::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

pub use crate::work_slots::default_threads;

/// A thread's stack: nothing here recurses, and no buffer lies on it.
const STACK: usize = 256 << 10;

/// What is to be put together, and where.
pub struct AssemblyJob<'a> {
    /// The layers, the lowest first.
    pub blobs: &'a [&'a dyn Blob],
    /// An empty file, open for reading and writing. Whoever gave it makes it visible.
    pub image: BorrowedFd<'a>,
    /// Name of the image, for messages.
    pub name: &'a str,
    /// A directory for temporary files, which have no names there. A seventh of the image's size at most will be needed as a rule.
    pub scratch: BorrowedFd<'a>,
    /// Name of that directory, for messages.
    pub scratch_name: &'a str,
    /// What is too much.
    pub limits: ImageLimits,
    /// How many layers are unpacked at the same time.
    pub threads: usize,
    /// Asked before the metadata is written, which takes so many bytes more: gives whether to go on.
    pub room: &'a (dyn Fn(u64) -> bool + Sync),
    /// Whether whiteouts stay as files of their names: in an image of changes ([`crate::changes`]), which has one layer.
    pub keeps_whiteouts: bool,
}

/// What no image may exceed, however small its layers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of all layers together, inflated.
    pub bytes: u64,
    /// Entries of all layers together; also the files of the image, with the directories that no entry mentions.
    pub entries: u64,
    /// Bytes of paths, links' targets and extended attributes of all entries together: they are in memory until the image is there.
    pub texts: u64,
}

impl Default for ImageLimits {
    /// 1 TiB, and 8 million entries with 1 GiB of texts, which take 3 GB of memory: ten times of what has been seen.
    fn default() -> ImageLimits {
        ImageLimits { bytes: 1 << 40, entries: 8_000_000, texts: 1 << 30 }
    }
}

impl ImageLimits {
    /// For so many bytes as they are in the registry or in a file. Software inflates to ten times that, text to some more; what becomes
    /// a thousand times as much was made to fill the disk. What is small on any disk may be mostly zeros.
    #[must_use]
    pub fn of(compressed: u64) -> ImageLimits {
        const ALWAYS: u64 = 16 << 30;
        const TIMES: u64 = 200;
        let limits = ImageLimits::default();
        ImageLimits { bytes: compressed.saturating_mul(TIMES).max(ALWAYS).min(limits.bytes), ..limits }
    }
}

/// How far it has come, for whoever shows it; and a way to end it.
#[derive(Debug)]
pub struct AssemblyProgress {
    layers: Vec<(AtomicU64, AtomicU64)>,
    cancelled: AtomicBool,
}

impl AssemblyProgress {
    /// For so many layers.
    pub fn new(layers: usize) -> AssemblyProgress {
        let layers = (0..layers).map(|_| Default::default()).collect();
        AssemblyProgress { layers, cancelled: AtomicBool::new(false) }
    }

    /// How many bytes of each layer have been read, and to how many they were inflated.
    pub fn layers(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.layers
            .iter()
            .map(|(read, inflated)| (read.load(Ordering::Relaxed), inflated.load(Ordering::Relaxed)))
    }

    fn forget(&self, layer: usize) {
        let (read, inflated) = &self.layers[layer];
        read.store(0, Ordering::Relaxed);
        inflated.store(0, Ordering::Relaxed);
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`Error::Cancelled`]: not.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Ends it soon, with [`Error::Cancelled`]. A layer that waits for its bytes ends when its blob lets it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// An image file that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenImage {
    /// Files and blocks that were written.
    pub summary: Summary,
    /// The sum of all blocks before the metadata, for the store's record.
    pub data_sum: u64,
}

/// Makes the image. Nothing is synced.
///
/// # Errors
/// The first of any layer. The file is of no use then.
pub fn assemble(job: &AssemblyJob<'_>, progress: &AssemblyProgress) -> Result<WrittenImage> {
    loop {
        if let Some(image) = try_assemble(job, progress).map_err(|error| say_how_much(job, error))? {
            return Ok(image);
        }
        rustix::fs::ftruncate(job.image, 0).on("empty", job.name)?;
        (0..job.blobs.len()).for_each(|layer| progress.forget(layer));
    }
}

/// `None`: bytes that were later found to be wrong had a say in where the layers went. Now the right ones are there.
fn try_assemble(job: &AssemblyJob<'_>, progress: &AssemblyProgress) -> Result<Option<WrittenImage>> {
    let promises = job.blobs.iter().map(|blob| promise(*blob)).collect::<Result<Vec<u64>>>()?;
    let space = BlockSpace::new(&promises).map_err(|_| too_large(job))?;
    let waiting = job.blobs.iter().map(|_| None).collect();
    let all = All {
        job,
        progress,
        promises,
        space,
        data: Uncached::default(),
        slots: WorkSlots::new(job.threads.max(1)),
        inflated: AtomicU64::new(0),
        placed: AtomicU64::new(0),
        entries: AtomicU64::new(0),
        texts: AtomicU64::new(0),
        misled: AtomicBool::new(false),
        failure: Mutex::new(None),
        merge: Mutex::new(Merge {
            merger: Merger::new(job.keeps_whiteouts, job.limits.entries),
            next: 0,
            waiting,
        }),
    };
    let outcomes = all.unpack();
    if let Some(error) = locked(&all.failure).take() {
        return Err(error);
    }
    if all.misled.into_inner() {
        return Ok(None);
    }
    let mut tree = all.merge.into_inner().unwrap_or_else(PoisonError::into_inner).merger.finish();
    tree.remove_devices();
    let mut data = Data::default();
    for UnpackedLayer { spill, used, sum, .. } in outcomes.into_iter().flatten() {
        data.spills.push(spill);
        data.used.extend(used);
        data.sum = data.sum.wrapping_add(sum);
    }
    finish(job, &tree, &data).map(Some)
}

/// A full disk is one that lacks what the layers promise, if they promise more than there is: the user knows then how much to free.
fn say_how_much(job: &AssemblyJob<'_>, error: Error) -> Error {
    if !matches!(error, Error::Io(SystemError { source: Errno::NOSPC | Errno::DQUOT, .. })) {
        return error;
    }
    // One that is to be fetched again promises nothing.
    let needed = job.blobs.iter().map(|blob| promised_size(*blob).unwrap_or(0)).fold(0, u64::saturating_add);
    let free = rustix::fs::fstatvfs(job.image).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let there = rustix::fs::fstat(job.image).map_or(0, |stat| (stat.st_blocks as u64).saturating_mul(512));
    let free = free.saturating_add(there);
    if needed > free { Error::NoSpace { object: job.name.into(), needed, free } } else { error }
}

/// How long the blob's region must be.
fn promise(blob: &dyn Blob) -> Result<u64> {
    loop {
        match promised_size(blob) {
            Err(error) if error.is_restart() => blob.restart(),
            result => return result,
        }
    }
}

fn too_large(job: &AssemblyJob<'_>) -> Error {
    Error::TooLarge {
        image: job.name.into(),
        why: "would be larger than 16 TiB, which its format does not allow".into(),
    }
}

/// What the layers have left beside their records.
#[derive(Default)]
struct Data {
    spills: Vec<Spill>,
    /// Where their data lies in the image file, and its sum.
    used: Vec<BlockRange>,
    sum: u64,
}

fn finish(job: &AssemblyJob<'_>, tree: &Tree, Data { spills, used, sum }: &Data) -> Result<WrittenImage> {
    let unused = unused(tree, used);
    let sum = sum.wrapping_sub(of_blocks(job.image, job.name, &unused)?);
    clear(job.image, job.name, &unused)?;
    let end = used.iter().filter(|used| !used.is_empty()).map(|used| used.end).max().unwrap_or(1);
    let mut tails =
        |layer: u32, offset: u64, buffer: &mut [u8]| spills[layer as usize].read_at(buffer, offset);
    let mut room = |bytes| if (job.room)(bytes) { Ok(()) } else { Err(Error::Cancelled) };
    let summary = skiff_erofs::finish(tree, &mut tails, &mut room, job.image, job.name, end)?;
    let sum = sum.wrapping_add(of_copies(job.image, job.name, end, &summary)?);
    Ok(WrittenImage { summary, data_sum: sum })
}

/// What the threads share.
struct All<'a> {
    job: &'a AssemblyJob<'a>,
    progress: &'a AssemblyProgress,
    promises: Vec<u64>,
    space: BlockSpace,
    data: Uncached,
    slots: WorkSlots,
    inflated: AtomicU64,
    placed: AtomicU64,
    entries: AtomicU64,
    texts: AtomicU64,
    misled: AtomicBool,
    failure: Mutex<Option<Error>>,
    merge: Mutex<Merge>,
}

/// Layers are merged in order, each as soon as those below it have been.
struct Merge {
    merger: Merger,
    next: usize,
    waiting: Vec<Option<LayerEntries>>,
}

type LayerOutcome = Option<UnpackedLayer>;

impl All<'_> {
    /// Unpacks all layers; of those that failed, or were given up, nothing is left.
    fn unpack(&self) -> Vec<LayerOutcome> {
        std::thread::scope(|scope| {
            let start = |layer| {
                let thread = std::thread::Builder::new().name(format!("layer {layer}")).stack_size(STACK);
                thread.spawn_scoped(scope, move || self.layer(layer)).map_err(|error| {
                    self.fail(SystemError::new("start a thread for", self.job.name, error).into());
                })
            };
            // Whoever comes while a place is free has it: so the longest first.
            let mut threads: Vec<_> =
                self.longest_first().into_iter().map(|layer| (layer, start(layer))).collect();
            threads.sort_unstable_by_key(|(layer, _)| *layer);
            let join = |thread: std::thread::ScopedJoinHandle<'_, LayerOutcome>| match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(|(_, thread)| thread.ok().and_then(join)).collect()
        })
    }

    fn longest_first(&self) -> Vec<usize> {
        let mut layers: Vec<usize> = (0..self.job.blobs.len()).collect();
        layers.sort_by_key(|layer| Reverse(self.job.blobs[*layer].size()));
        layers
    }

    fn layer(&self, layer: usize) -> LayerOutcome {
        let blob = self.job.blobs[layer];
        let slot = Cell::new(Some(self.slots.acquire(blob.size(), layer)));
        let place = LayerSlot { all: self, layer, read: AtomicU64::new(0), slot };
        let unpack = || {
            let mut unpacked = place.unpack()?;
            self.merge(layer, std::mem::take(&mut unpacked.records))?;
            Ok(unpacked)
        };
        let outcome = caught(|| format!("unpack layer {}", blob.name()), unpack);
        outcome.map_err(|error| self.fail(error)).ok()
    }

    /// Keeps the first error, and stops everybody else.
    fn fail(&self, error: Error) {
        locked(&self.failure).get_or_insert(error);
        self.space.give_up();
        self.job.blobs.iter().for_each(|blob| blob.abandon());
    }

    fn merge(&self, layer: usize, records: LayerEntries) -> Result<()> {
        let mut merge = locked(&self.merge);
        merge.waiting[layer] = Some(records);
        loop {
            let next = merge.next;
            let Some(records) = merge.waiting.get_mut(next).and_then(Option::take) else { return Ok(()) };
            let bad = |why| Error::BadLayer { layer: self.job.blobs[next].name().into(), why };
            merge.merger.apply(records).map_err(bad)?;
            merge.next += 1;
        }
    }

    /// Counts, and refuses what is too much.
    fn count(&self, counter: &AtomicU64, more: u64, limit: u64, what: &str) -> Result<()> {
        if counter.fetch_add(more, Ordering::Relaxed).saturating_add(more) > limit {
            let why = format!("has more than {limit} {what}, the limit");
            return Err(Error::TooLarge { image: self.job.name.into(), why });
        }
        Ok(())
    }
}

/// One layer's place among all.
struct LayerSlot<'a> {
    all: &'a All<'a>,
    layer: usize,
    /// How many compressed bytes have been read.
    read: AtomicU64,
    /// The thread's right to run, which is lent to others while the thread waits.
    slot: Cell<Option<WorkSlot<'a>>>,
}

impl LayerSlot<'_> {
    fn unpack(&self) -> Result<UnpackedLayer> {
        let All { job, space, data, .. } = self.all;
        let blob = job.blobs[self.layer];
        let target = LayerTarget {
            image: job.image,
            data,
            image_name: job.name,
            layer_name: blob.name(),
            space,
            layer: self.layer,
        };
        let spill = Spill::new(job.scratch, job.scratch_name)?;
        let mut unpacker = LayerUnpacker::new(target, self, spill, job.keeps_whiteouts);
        while !self.try_once(blob, &mut unpacker)? {
            clear(job.image, job.name, &unpacker.reset())?;
            self.all.progress.forget(self.layer);
            self.read.store(0, Ordering::Relaxed);
        }
        unpacker.finish()
    }

    /// `false`: the bytes were not the right ones, and are being fetched anew.
    fn try_once(&self, blob: &dyn Blob, unpacker: &mut LayerUnpacker<'_, Self>) -> Result<bool> {
        match self.unpack_and_verify(blob, unpacker) {
            Err(error) if error.is_restart() => {
                blob.restart();
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }

    fn unpack_and_verify(&self, blob: &dyn Blob, unpacker: &mut LayerUnpacker<'_, Self>) -> Result<()> {
        let mut inflater = Inflater::new(blob, self);
        // What follows the archive's end is of no use, but tells whether all came through.
        let outcome = unpacker.unpack(&mut inflater).and_then(|()| inflater.skip());
        if !matches!(outcome, Ok(()) | Err(Error::BadLayer { .. })) {
            return outcome;
        }
        // If the bytes are wrong, then that is the reason for whatever else is.
        let got = inflater.finish()?;
        // Before it is settled: whoever fetches it may then do to its file what he likes.
        if got.is_none() && promised_size(blob)? != self.all.promises[self.layer] {
            self.all.misled.store(true, Ordering::Relaxed);
        }
        // What is left is little, and others may wait for it.
        self.outside(|| blob.settle(got), u64::MAX)?;
        outcome
    }

    /// Lets someone else run while this waits, which is then as urgent as if it had so much work before it.
    fn outside<T>(&self, wait: impl FnOnce() -> T, work: u64) -> T {
        drop(self.slot.take());
        let result = wait();
        self.slot.set(Some(self.all.slots.acquire(work, self.layer)));
        result
    }

    /// How much of it has not been read.
    fn left(&self) -> u64 {
        self.all.job.blobs[self.layer].size().saturating_sub(self.read.load(Ordering::Relaxed))
    }
}

impl InflateWatch for LayerSlot<'_> {
    fn before_read(&self) -> Result<()> {
        let cancelled = self.all.progress.cancelled.load(Ordering::Relaxed);
        if cancelled || locked(&self.all.failure).is_some() { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn wait(&self, read: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.outside(read, self.left())
    }

    fn progress(&self, read: u64, inflated: u64) -> Result<()> {
        let (all_read, all_inflated) = &self.all.progress.layers[self.layer];
        all_read.fetch_add(read, Ordering::Relaxed);
        all_inflated.fetch_add(inflated, Ordering::Relaxed);
        self.read.fetch_add(read, Ordering::Relaxed);
        self.all.count(
            &self.all.inflated,
            inflated,
            self.all.job.limits.bytes,
            "bytes when its layers are inflated",
        )
    }
}

impl Others for LayerSlot<'_> {
    fn placing(&self, bytes: u64) -> Result<()> {
        self.all.count(&self.all.placed, bytes, self.all.job.limits.bytes, "bytes of files")
    }

    fn entry(&self, texts: u64) -> Result<()> {
        let limits = self.all.job.limits;
        self.all.count(&self.all.entries, 1, limits.entries, "entries in its layers")?;
        self.all.count(&self.all.texts, texts, limits.texts, "bytes of names, links and attributes")
    }

    fn wait(&self, wait: &mut dyn FnMut()) {
        self.outside(wait, self.left());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
