//! A snapshot's way to this node: from the depot, whose file system may be slow or hang, into the user's cache.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use skiff_plan::get;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Cache, Depot, LayerDir, LayerLease, PieceCounts, SnapshotId, SnapshotManifest};
use skiff_spec::config::{Mismatch, NodeLayers};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::job::Snapshot;
use skiff_spec::plan::Base;
use skiff_store::index::ImageName;
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_user::context::UserContext;

use crate::base_fingerprint;
use crate::depot;
use crate::fan_out::JobRelay;
use crate::job_records::{StartOrigin, StartPart};
use crate::layer_store::{self, StoredLayers};
use crate::near_images::ImageSources;
use crate::snapshot_fault::ours;
use crate::time_limit::until_with;

/// The plug-in gives a step no more than ten minutes, because srun waits no longer; what we say must come before.
const LONGEST: u64 = 570;

/// A snapshot on this node.
pub struct Deployed {
    /// In what this node's base differs from the one the environment was built on; empty if in nothing.
    pub difference: String,
    /// The layers' directories, bottom first, held so that no eviction takes them; none where they are in the store.
    pub layers: Vec<(PathBuf, LayerLease)>,
    /// The layers in the trusted store, bottom first, where that has them.
    pub stored_layers: Vec<ImageId>,
    /// Why the layers had to be unpacked, where somebody can mend that; else empty.
    pub not_mounted: String,
    /// The image below them; nothing if that is the host's root.
    pub image: Option<ImageName>,
    /// What that took.
    pub parts: Vec<StartPart>,
}

/// What the process that fetches says.
#[derive(Serialize, Deserialize)]
struct Fetched {
    difference: String,
    layers: FetchedLayers,
    image: Option<ImageName>,
    parts: Vec<StartPart>,
}

/// Where a snapshot's layers are, bottom first.
#[derive(Serialize, Deserialize)]
enum FetchedLayers {
    /// Files of the trusted store, which are mounted.
    Stored(Vec<ImageId>),
    /// Directories of the user's cache; and why they could not be mounted, where somebody can mend that.
    Unpacked(Vec<PathBuf>, String),
}

/// Brings the snapshot of the job of this number to this node, unless its base is another one and such jobs are refused; within the time that the
/// configuration gives. With [`NodeLayers::Mounted`] its layers are in the image store, where that can be. With a relay the depot is read by that,
/// if so much is missing that it is worth it.
pub fn deploy(
    context: &UserContext,
    (job, number): (&Snapshot, u32),
    form: NodeLayers,
    relay: Option<&JobRelay>,
) -> Result<Deployed> {
    let (end, _) = time_limit(context);
    for _ in 0..3 {
        let Fetched { difference, layers, image, parts } =
            fetch_until(context, (job, number), (form, relay), end)?;
        let (unpacked, stored_layers, not_mounted) = match layers {
            // What another job's fetch takes away now the helper misses. Then they are asked for once more, unpacked.
            FetchedLayers::Stored(stored) => (vec![], stored, String::new()),
            FetchedLayers::Unpacked(unpacked, why) => (unpacked, vec![], why),
        };
        // Another job's fetch may have evicted one this very moment.
        if let Some(layers) = hold(context, &cache_dir(context), unpacked)? {
            return Ok(Deployed { difference, layers, stored_layers, not_mounted, image, parts });
        }
    }
    Err(Error::new("the snapshot's layers vanish from the cache as soon as they are there")
        .hint("slurm.cache_bytes in the configuration is too small for this environment"))
}

fn fetch_until(
    context: &UserContext,
    (job, number): (&Snapshot, u32),
    (form, relay): (NodeLayers, Option<&JobRelay>),
    end: Instant,
) -> Result<Fetched> {
    let kept: Vec<BorrowedFd<'_>> = relay.iter().map(|relay| relay.descriptor()).collect();
    let fetched = until_with("fetcher", end, &kept, || fetch(context, (job, number), form, relay))?;
    let Some(fetched) = fetched else {
        let (name, depot, node) = (&job.environment, &job.depot, node_name());
        let (_, limit) = time_limit(context);
        return Err(Error::new(format!("environment {name}: not fetched from {depot} to node {node} within {limit} s"))
            .hint("check that this file system answers there; `slurm.fetch_seconds` in the configuration allows more time, up to 570"));
    };
    Ok(fetched)
}

fn fetch(
    context: &UserContext,
    (job, number): (&Snapshot, u32),
    form: NodeLayers,
    relay: Option<&JobRelay>,
) -> Result<Fetched> {
    let id = job.snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    depot::note_use(Path::new(&job.depot), number, &id)
        .ignore_error("only a job that is requeued later needs it, and the depot may be read-only here");
    let depot = Depot::open_existing(Path::new(&job.depot)).map_err(ours).map_err(|e| {
        e.hint("the depot must be on a file system that all nodes share: `depot` in the configuration, or SKIFF_DEPOT")
    })?;
    let manifest = depot.manifest(&id).map_err(ours)?;
    let about_node = |e: Error| e.about(&format!("node {}", node_name()));
    let image = base_fingerprint::image_of(&manifest.base)?
        .map(|(id, name)| get_image(context, Path::new(&job.depot), (id, name), relay).map_err(about_node))
        .transpose()?;
    let (image, part) = image.unzip();
    let mut parts: Vec<StartPart> = part.into_iter().collect();
    // An image is the same everywhere.
    let difference = if image.is_some() { String::new() } else { difference(context, job, &manifest)? };
    let begun = Instant::now();
    let mut origins = LayerOrigins::default();
    let layers = layers_here(context, (form, relay), depot, (&id, &manifest), &mut origins)?;
    parts.push(origins.to_part(begun));
    Ok(Fetched { difference, layers, image, parts })
}

/// An image, from where it is, or by the job's relays; and what that took.
pub fn get_image(
    context: &UserContext,
    depot: &Path,
    (id, reference): (ImageId, &str),
    relay: Option<&JobRelay>,
) -> Result<(ImageName, StartPart)> {
    let begun = Instant::now();
    let sources = ImageSources::new(depot, cache_dir(context), relay);
    let (entry, origin) = get::on_node_from(context, depot, (id, reference), Some(&sources))?;
    sources.keep_list(context, entry.id);
    let part = StartPart::image(&entry, sources.origin(origin), begun);
    let came = relay.map(|relay| relay.image_counts(origin)).unwrap_or_default();
    Ok((entry, StartPart { reused: sources.reused(), ..part.by_relay(came) }))
}

/// The layers in the form that this node can have them in.
fn layers_here(
    context: &UserContext,
    (form, relay): (NodeLayers, Option<&JobRelay>),
    depot: Depot,
    (id, manifest): (&SnapshotId, &SnapshotManifest),
    origins: &mut LayerOrigins,
) -> Result<FetchedLayers> {
    let dir = cache_dir(context);
    let is_mounted = form == NodeLayers::Mounted && layer_store::is_wanted(context, manifest);
    if is_mounted && let Some(StoredLayers { ids, .. }) = layer_store::find(context, manifest) {
        origins.here = StartOrigin::Store;
        return Ok(FetchedLayers::Stored(ids));
    }
    let cache = open_cache(context, &dir)?;
    origins.missing = cache.missing(manifest).map_err(ours)?;
    let is_mounted = is_mounted && origins.missing.is_some();
    let (Some(relay), Some(not_unpacked)) = (relay, origins.missing) else {
        return bring(context, (is_mounted, &cache), &depot, (id, manifest), origins);
    };
    let missing = if is_mounted { layer_store::missing(context, manifest) } else { not_unpacked };
    let depot = relay.read_for(depot, missing);
    bring(context, (is_mounted, &cache), &depot, (id, manifest), origins).or_else(|e| {
        // Another node may have read what is damaged, and the depot not be.
        if depot.has_reader() {
            bring(context, (is_mounted, &cache), &depot.read_directly(), (id, manifest), origins)
        } else {
            Err(e)
        }
    })
}

/// Brings the layers that are not here.
fn bring(
    context: &UserContext,
    (is_mounted, cache): (bool, &Cache),
    depot: &Depot,
    (id, manifest): (&SnapshotId, &SnapshotManifest),
    origins: &mut LayerOrigins,
) -> Result<FetchedLayers> {
    let mut not_mounted = String::new();
    if is_mounted {
        match layer_store::add(context, cache, depot, manifest) {
            Ok(StoredLayers { ids, missing, reused }) => {
                (origins.here, origins.missing) = (StartOrigin::Store, missing);
                origins.reused = reused;
                origins.came = depot.piece_counts();
                return Ok(FetchedLayers::Stored(ids));
            }
            Err(why) => not_mounted = why.message,
        }
    }
    origins.here = StartOrigin::Cache;
    let (unpacked, came) = layers(context, &cache_dir(context), depot, (id, manifest))?;
    origins.came = came;
    Ok(FetchedLayers::Unpacked(unpacked, not_mounted))
}

/// Where a snapshot's layers are now, and where they came from.
struct LayerOrigins {
    here: StartOrigin,
    /// Bytes of those that were not here.
    missing: Option<u64>,
    came: PieceCounts,
    /// Bytes that were in other layers here.
    reused: u64,
}

impl Default for LayerOrigins {
    fn default() -> Self {
        Self { here: StartOrigin::Cache, missing: None, came: PieceCounts::default(), reused: 0 }
    }
}

impl LayerOrigins {
    fn to_part(&self, begun: Instant) -> StartPart {
        StartPart { reused: self.reused, ..StartPart::snapshot(self.here, self.missing, self.came, begun) }
    }
}

/// Compares this node's base with the one the environment was built on.
fn difference(context: &UserContext, job: &Snapshot, manifest: &SnapshotManifest) -> Result<String> {
    if context.config.base.mismatch == Mismatch::Ignore {
        return Ok(String::new());
    }
    let here = base_fingerprint::here(&cache_dir(context).join("packages"))?;
    let found = here.difference(&manifest.base, Path::new(&job.depot)).unwrap_or_default();
    let Some(hint) = here.refusal(&manifest.base, &found, context.config.base.mismatch) else {
        return Ok(found);
    };
    let (name, node) = (&job.environment, node_name());
    Err(Error::new(format!("environment {name}: the base of node {node} is another one: {found}")).hint(hint))
}

/// Holds layers of a cache; nothing if one of them has been evicted.
pub fn hold(
    context: &UserContext,
    dir: &Path,
    layers: Vec<PathBuf>,
) -> Result<Option<Vec<(PathBuf, LayerLease)>>> {
    let cache = open_cache(context, dir)?;
    let hold = |path: PathBuf| Ok(cache.lease(&path)?.map(|lease| (path, lease)));
    let held: skiff_snapshot::Result<Option<_>> = layers.into_iter().map(hold).collect();
    held.map_err(|e| in_cache(e, dir))
}

/// The snapshot's layers in a cache of the user's, bottom first, unpacked unless they are there already; and what had to come for it by who
/// reads the depot for this process.
fn layers(
    context: &UserContext,
    dir: &Path,
    depot: &Depot,
    (id, manifest): (&SnapshotId, &SnapshotManifest),
) -> Result<(Vec<PathBuf>, PieceCounts)> {
    let cache = open_cache(context, dir)?;
    let paths = |layers: Vec<LayerDir>| layers.into_iter().map(|layer| layer.path).collect::<Vec<_>>();
    if let Some(found) = cache.all_there(manifest).map_err(|e| in_cache(e, dir))? {
        return Ok((paths(found), PieceCounts::default()));
    }
    as_root_of_ids(context.helper.as_deref(), Base::Host, |_| {
        let layers = skiff_snapshot::fetch(depot, id, &cache).map_err(|e| in_cache(e, dir))?;
        cache.evict().ignore_error("they are held meanwhile; too many bytes is a matter for the next time");
        Ok((paths(layers), depot.piece_counts()))
    })
}

fn cache_dir(context: &UserContext) -> PathBuf {
    Path::new(&context.config.slurm.cache).join(context.uid.to_string())
}

fn open_cache(context: &UserContext, dir: &Path) -> Result<Cache> {
    Cache::open(dir, context.config.slurm.cache_bytes).map_err(|e| in_cache(e, dir))
}

/// An error while a layer came from the depot into this node's cache; if it says no more, the cache is what to look at.
fn in_cache(e: skiff_snapshot::Error, dir: &Path) -> Error {
    let e = ours(e).about(&format!("node {}, {}", node_name(), dir.display()));
    if !e.hint.is_empty() {
        return e;
    }
    e.hint("snapshots are unpacked there (`slurm.cache` in the configuration): it must be local, writable and have room")
}

/// When whatever a step needs from elsewhere must be here.
pub fn time_limit(context: &UserContext) -> (Instant, u64) {
    let seconds = context.config.slurm.fetch_seconds.min(LONGEST);
    (Instant::now() + Duration::from_secs(seconds), seconds)
}

/// Unpacks a snapshot; bottom first.
pub fn unpack(context: &UserContext, depot: &Depot, snapshot: &str) -> Result<Vec<(PathBuf, LayerLease)>> {
    let id = snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    let manifest = depot.manifest(&id).map_err(ours)?;
    let cache = context.state()?.join("layers");
    for _ in 0..3 {
        let (layers, _) = layers(context, &cache, depot, (&id, &manifest))?;
        // Another start may have evicted one this very moment.
        if let Some(held) = hold(context, &cache, layers)? {
            return Ok(held);
        }
    }
    Err(Error::new(format!("{}: the snapshot's layers vanish as soon as they are there", cache.display()))
        .hint("slurm.cache_bytes in the configuration is too small for this environment"))
}

/// What this node is called.
pub fn node_name() -> String {
    // As slurmd itself calls a node by default: its host's name up to the first dot.
    let host = || host_name().split('.').next().map(str::to_owned);
    std::env::var("SLURMD_NODENAME").ok().or_else(host).unwrap_or_default()
}

/// The layers of an environment's snapshot on this machine, bottom first.
pub fn own_layers(context: &UserContext, snapshot: &str) -> Result<Vec<(PathBuf, LayerLease)>> {
    let depot = Depot::open_existing(&context.depot()?).map_err(ours)?;
    unpack(context, &depot, snapshot)
}

/// Refuses a snapshot that [`own_layers`] would not find whole, and unpacks nothing.
pub fn refuse_missing_layers(context: &UserContext, snapshot: &str) -> Result<()> {
    let depot = Depot::open_existing(&context.depot()?).map_err(ours)?;
    let id = snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    let manifest = depot.manifest(&id).map_err(ours)?;
    let dir = context.state()?.join("layers");
    if dir.exists() && open_cache(context, &dir)?.missing(&manifest).map_err(ours)?.is_none() {
        return Ok(());
    }
    depot.rely_on(&id).map_err(ours)
}
