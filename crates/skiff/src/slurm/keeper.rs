//! The root of a job on a node, and who keeps it: a supervisor as of any environment, but one that stays until it is told to go.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use skiff_env::{Cache, Depot, LayerDir, SnapshotId};
use skiff_sandbox::visit::as_root_of_ids;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::config::Mismatch;
use skiff_spec::plan::Upper;

use super::job::{self, Job};
use crate::base_identity;
use crate::context::Context;
use crate::control::Live;
use crate::env::ours;
use crate::planner::{self, Wishes};
use crate::supervisor::{self, Keep, Place};

/// In the keeper's directory: in what this node's base differs from the one the environment was built on.
pub const DIFFERENCE: &str = "base-difference";

/// The job's running root; made if this is the first who needs it.
pub fn running(context: &Context, job: &Job) -> Result<Live> {
    let dir = job.keeper_dir();
    private_dir(&dir)?;
    check_base(context, job, &dir)?;
    let place = Place { dir, name: job.descriptor.environment.to_string() };
    supervisor::session_at(context, &place, Keep::UntilStopped, || {
        let found = layers(context, job)?;
        let (paths, leases): (Vec<_>, _) = found.into_iter().rev().map(|l| (l.path, l.lease)).unzip();
        let wishes = Wishes { layers: paths, services: vec![spool(context)], ..Wishes::default() };
        let upper = Upper::Memory { size: context.config.run.memory.clone() };
        Ok((planner::host(context, &place.name, upper, wishes)?, leases))
    })
}

/// Ends all steps of a job that still run, and all its roots (there may be several, for steps with an environment of their own).
pub fn stop_job() -> Result<()> {
    let dir = job::dir(job::number("SLURM_JOB_ID")?).join(job::USER);
    let mut roots = vec![];
    for entry in fs::read_dir(&dir).context(|| dir.display().to_string())? {
        let path = entry.context(|| dir.display().to_string())?.path();
        // Its watcher may be removing it at this moment; so there is no lock to take.
        if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"step.")) {
            supervisor::end_at(&path)?;
        } else if path.is_dir() {
            roots.push(path);
        }
    }
    roots.iter().try_for_each(|path| supervisor::stop_at(path).map(drop))
}

/// The snapshot's layers in the user's cache, bottom first, fetched if they are not there; held so that no eviction takes them.
fn layers(context: &Context, job: &Job) -> Result<Vec<LayerDir>> {
    let (depot, id) = depot(job)?;
    let dir = Path::new(&context.config.slurm.cache).join(context.uid.to_string());
    let of_cache = |e| in_cache(e, &dir);
    let open = || Cache::open(&dir, context.config.slurm.cache_bytes).map_err(of_cache);
    let manifest = depot.manifest(&id).map_err(ours)?;
    for _ in 0..3 {
        if let Some(found) = open()?.all_there(&manifest).map_err(of_cache)? {
            return Ok(found);
        }
        as_root_of_ids(context.helper.as_deref(), |_| {
            let cache = open()?;
            // Held until the eviction is over.
            let _held = skiff_env::fetch(&depot, &id, &cache).map_err(of_cache)?;
            // Too many bytes is a matter for the next time.
            cache.evict().map(drop).unwrap_or_default();
            Ok(vec![])
        })?;
    }
    Err(Error::new("the snapshot's layers vanish from the cache as soon as they are there")
        .hint("slurm.cache_bytes in the configuration is too small for this environment"))
}

/// An error while a layer came from the depot into this node's cache; if it says no more, the cache is what to look at.
fn in_cache(e: skiff_env::Error, cache: &Path) -> Error {
    let e = ours(e).about(&format!("node {}, {}", node_name(), cache.display()));
    if !e.hint.is_empty() {
        return e;
    }
    e.hint("snapshots are unpacked there (`slurm.cache` in the configuration): it must be local, writable and have room")
}

fn depot(job: &Job) -> Result<(Depot, SnapshotId)> {
    let id = job.descriptor.snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    let depot = Depot::open_existing(Path::new(&job.descriptor.depot)).map_err(ours).map_err(|e| {
        e.hint("the depot must be on a file system that all nodes share: `depot` in the configuration, or SKIFF_DEPOT")
    })?;
    Ok((depot, id))
}

/// Compares this node's base with the one the environment was built on, once for each root.
fn check_base(context: &Context, job: &Job, dir: &Path) -> Result<()> {
    let record = dir.join(DIFFERENCE);
    let difference = match fs::read_to_string(&record) {
        _ if context.config.base.mismatch == Mismatch::Ignore => return Ok(()),
        Ok(text) => text,
        Err(_) => {
            let (depot, id) = depot(job)?;
            let manifest = depot.manifest(&id).map_err(ours)?;
            let here = base_identity::here(context)?;
            let found = here.difference(&manifest.base, Path::new(&job.descriptor.depot)).unwrap_or_default();
            // Another step may look at this moment: it must not find it half written.
            let new = dir.join(format!("{DIFFERENCE}.{}", std::process::id()));
            fs::write(&new, &found)
                .and_then(|()| fs::rename(&new, &record))
                .context(|| record.display().to_string())?;
            found
        }
    };
    if difference.is_empty() || context.config.base.mismatch == Mismatch::Warn {
        return Ok(());
    }
    let name = &job.descriptor.environment;
    Err(Error::new(format!(
        "environment {name}: the base of node {} is another one: {difference}",
        node_name()
    ))
    .hint("base.mismatch = \"warn\" in the site's configuration lets such jobs run"))
}

/// What this node is called.
pub fn node_name() -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| host())
}

/// Where slurmd puts batch scripts.
pub fn spool(context: &Context) -> PathBuf {
    if !context.config.slurm.spool.is_empty() {
        return PathBuf::from(&context.config.slurm.spool);
    }
    let setting = super::setting("SlurmdSpoolDir");
    let host = node_name();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    PathBuf::from(
        setting.unwrap_or_else(|| "/var/spool/slurmd".into()).replace("%h", &short).replace("%n", &host),
    )
}

fn private_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .context(|| dir.display().to_string())
        .map_err(|e| {
            e.hint("the prolog makes the job's directory: is the plug-in in this node's plugstack.conf?")
        })
}
