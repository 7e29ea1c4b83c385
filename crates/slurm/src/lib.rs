//! The job manager's side: what the plug-in calls, on the submitting host and on the nodes.
//!
//! A job carries one line (its *spec*) that names a snapshot or an image. On a node the snapshot is fetched into the user's cache
//! and becomes the lower layers of one root per job (an image that of one per job, or per step that asks for it), which a *supervisor* (the
//! supervisor of an environment without a name) holds; every step has process 1 of its own over that root, which dies with its slurmstepd; every task is a wrapper that
//! puts the real program into the step as the user.

mod attach;
mod broadcast;
mod commit;
pub mod container;
pub mod container_options;
mod definition;
mod filter;
mod here;
mod job;
mod job_dirs;
mod job_end;
mod job_locks;
mod job_processes;
pub mod job_supervisor;
mod leftovers;
mod metrics;
mod node;
mod queue;
mod requeue;
mod save;
mod signals;
mod start_record;
mod step;
mod stepd;
mod stop;
mod submit;
mod task;
mod tmp_quota;
mod told;
mod trash;

use std::path::PathBuf;

use skiff_cli::SlurmCommand;
use skiff_spec::fault::Result;
use skiff_spec::named_option::name_options_of_slurm;

pub use here::spool;
pub use leftovers::sweep_jobs;
pub use queue::live_jobs;
pub use task::{is_task, run_task};

/// Does what the plug-in asks; the exit code.
pub fn run(command: &SlurmCommand) -> Result<i32> {
    name_options_of_slurm();
    match command {
        SlurmCommand::Submit(wanted) => return submit::submit(wanted),
        SlurmCommand::Prolog => node::prolog()?,
        SlurmCommand::Epilog => node::epilog()?,
        SlurmCommand::StepBegin => step::begin()?,
        SlurmCommand::Task { .. } => return Ok(run_task()),
    }
    Ok(0)
}

/// A setting of Slurm's own configuration, from wherever this node has it.
pub fn setting(key: &str) -> Option<String> {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from).into_iter();
    let usual = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf"]
        .map(PathBuf::from);
    named.chain(usual).filter_map(|file| std::fs::read_to_string(file).ok()).find_map(|text| {
        text.lines().find_map(|line| {
            let (name, value) = line.split('#').next()?.split_once('=')?;
            name.trim().eq_ignore_ascii_case(key).then(|| value.trim().to_owned())
        })
    })
}
