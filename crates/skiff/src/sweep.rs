//! `skiff sweep`: what crashes have left on this host, and its removal.

use std::path::PathBuf;

use serde::Serialize;
use skiff_cli::SweepArgs;
use skiff_env as env;
use skiff_net::Left;
use skiff_output as output;
use skiff_runtime::{environments, instances};
use skiff_slurm as slurm;
use skiff_spec::fault::Result;
use skiff_store::{client, copies};
use skiff_user::context::UserContext;
use skiff_user::{dirs, scratch};

use crate::net::user_name;
use crate::{checkpoint, cluster};

#[derive(Serialize)]
struct Found {
    what: &'static str,
    path: String,
    removed: bool,
    /// For whom it is kept, and so stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_for: Option<String>,
}

/// Shows and removes what is left: root's job directories, networks and what is half made in the image store, the user's own half-made or half-removed environments,
/// checkpoints and copies of images, snapshots that nothing needs, and instances that were killed.
pub fn sweep(sweep: &SweepArgs) -> Result<()> {
    let context = UserContext::load()?;
    let own = match sweep.dry_run {
        true => dirs::leftovers(&environments::home(&context)?),
        false => env::delete_leftovers(&context)?,
    };
    let instances = match sweep.dry_run {
        true => instances::leftovers(&context)?,
        false => instances::delete_leftovers(&context)?,
    };
    let checkpoints = match sweep.dry_run {
        true => checkpoint::leftovers(&context)?,
        false => checkpoint::delete_leftovers(&context)?,
    };
    let jobs = if context.uid == 0 { slurm::sweep_jobs(&context, sweep.dry_run)? } else { vec![] };
    let clusters = match sweep.dry_run {
        true => cluster::leftovers(&context)?,
        false => cluster::delete_leftovers(&context)?,
    };
    let scratch = match sweep.dry_run {
        true => scratch::leftovers(&context)?,
        false => scratch::delete_leftovers(&context)?,
    };
    let depot = context.depot()?;
    let copies = match sweep.dry_run {
        true => copies::leftovers(&depot),
        false => copies::delete_leftovers(&depot)?,
    };
    let snapshots = match sweep.dry_run {
        true => env::depot::leftovers(&context)?,
        false => env::depot::delete_leftovers(&context)?,
    };
    let images = match context.uid {
        0 => client::sweep_trusted(&context, sweep.dry_run).map_err(skiff_store::ours)?,
        _ => vec![],
    };
    let found = |what: &'static str, paths: Vec<PathBuf>| {
        let found = move |p: PathBuf| Found {
            what,
            path: p.display().to_string(),
            removed: !sweep.dry_run,
            kept_for: None,
        };
        paths.into_iter().map(found)
    };
    let networks = if context.uid == 0 { skiff_net::sweep(!sweep.dry_run)? } else { vec![] };
    let networks = networks.into_iter().map(|left| of_network(left, !sweep.dry_run));
    let all: Vec<Found> = found("environment", own)
        .chain(found("instance", instances))
        .chain(found("cluster", clusters))
        .chain(found("scratch directory", scratch))
        .chain(found("checkpoint", checkpoints))
        .chain(found("copy of an image", copies))
        .chain(found("snapshot", snapshots))
        .chain(found("image", images))
        .chain(found("job", jobs))
        .chain(networks)
        .collect();
    if sweep.output.json {
        return output::json(&all);
    }
    for f in &all {
        let line = match (&f.kept_for, f.removed) {
            (Some(user), _) => format!("kept {} {} for {user}", f.what, f.path),
            (None, true) => format!("removed {} {}", f.what, f.path),
            (None, false) => format!("left over {} {}", f.what, f.path),
        };
        output::line(&line)?;
    }
    Ok(())
}

fn of_network(left: Left, removed: bool) -> Found {
    match left {
        Left::Lease(path) => Found { what: "lease", path, removed, kept_for: None },
        Left::Device(path) => Found { what: "device", path, removed, kept_for: None },
        Left::Kept(address, lease) => Found {
            what: "lease",
            path: format!("{}/{address}", lease.network),
            removed: false,
            kept_for: Some(user_name(lease.uid)),
        },
    }
}
