//! A task of a step: Slurm has started us in the place of the user's program; we put that into the step, wait, and end as it ends.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use skiff_env::deploy::node_name;
use skiff_output as output;
use skiff_plan::in_image;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::proxy::LATER;
use skiff_sandbox::command::{CommandSpec, own_args, own_env};
use skiff_sandbox::join::{Failed, as_me, as_root};
use skiff_sandbox::session::CommandExit;
use skiff_spec::config::Mismatch;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{self, REFUGE};
use skiff_spec::job::{JobContainer, JobSpec};
use skiff_spec::named_option::name_options_of_slurm;
use skiff_user::context::{UserContext, is_inside};

use crate::job::SlurmJob;
use crate::job_supervisor::{self, DIFFERENCE, NOT_MOUNTED};
use crate::save::Saver;
use crate::signals::TaskSignals;
use crate::step::step_dir;
use crate::told::tell_once;
use crate::{attach, broadcast, commit, container, filter, requeue};

/// Whether we are called in the place of a task.
pub fn is_task() -> bool {
    std::env::var_os(names::ARGV0).is_some() || std::env::var_os(names::ARGV0_CARRIER).is_some()
}

/// Runs the task; the exit code.
pub fn run_task() -> i32 {
    name_options_of_slurm();
    match in_step() {
        Ok(ended) => output::exit_as(ended),
        Err(why) => output::failed(why),
    }
}

fn in_step() -> std::result::Result<CommandExit, Failed> {
    if std::env::var_os(names::ARGV0_CARRIER).is_some() {
        return Err(Error::new(
            "this node's Slurm has not loaded Skiff's plug-in, so the job's environment was not made",
        )
        .hint("administrator: plugstack.conf of this node must name skiff_spank.so")
        .into());
    }
    let context = UserContext::load_silently()?.for_a_throw_away();
    let job = SlurmJob::from_variables()?.ok_or_else(|| Error::new("this task's job has no environment"))?;
    let dir = step_dir(&job)?;
    let step = Live::connect(&dir, ControlRequest::Session)?;
    let step = step.ok_or_else(|| requeue::after(&context, why_not(&dir)))?;
    tell_of_node(&context, &job);
    commit::begin(&job)?;
    // Made first: as root of a container we could not go in once more.
    let saver = match &job.spec {
        JobSpec::Container(container) => Saver::of(&job, container, &step)?,
        JobSpec::Snapshot(_) => None,
    };
    let signals = TaskSignals::take()?;
    let (mut command, attr, mask) = (command(&context, &job)?, signals.spawn_attr(), signals.mask());
    command.unfiltered = !filter::is_needed(context.config.slurm.filter, &job.spec, &context.home);
    let net = attach::net_space(&job)?;
    let child = match &job.spec {
        JobSpec::Container(JobContainer { root: true, .. }) => {
            as_root(step.init.as_fd(), net, &command, attr, mask)?
        }
        // In a Slurm of the user's own, where they are root already.
        JobSpec::Container(_) if context.helper.is_none() && context.uid == 0 && is_inside() => {
            as_root(step.init.as_fd(), net, &command, attr, mask)?
        }
        _ => as_me(helper(&context)?, (step.pid, net.has_own_name()), &command, attr, mask)?,
    };
    let ended = signals.wait(&child)?;
    // If it has failed, others may wait for it for ever, and Slurm ends them only when it hears of that.
    let others = ended == CommandExit::Code(0);
    let kept = match saver {
        Some(saver) => save(saver, &job, &step, others),
        None => commit::at_end_of_step(&context, &job, &step, ended),
    };
    match kept {
        Err(e) if others => Err(e.into()),
        Err(e) => {
            output::failed(e.into());
            Ok(ended)
        }
        Ok(()) => Ok(ended),
    }
}

fn helper(context: &UserContext) -> Result<&Path> {
    context.helper.as_deref().ok_or_else(|| {
        Error::new("a job's environment needs the helper")
            .hint("administrator: install Skiff's helper on this node")
    })
}

fn save(saver: Saver, job: &SlurmJob, step: &Live, after_others: bool) -> Result<()> {
    let below =
        job_supervisor::image(job)?.ok_or_else(|| Error::new("the container's image is not known"))?;
    if after_others {
        step.wait_for_others()?;
    }
    saver.save(&below)
}

/// The user's own program with what Slurm gave it; our own variables stay behind.
fn command(context: &UserContext, job: &SlurmJob) -> Result<CommandSpec> {
    let program = std::env::var_os(names::ARGV0).unwrap_or_default();
    let argv: Vec<OsString> = if program.is_empty() {
        // `skiff slurm task -- PROGRAM ...`
        let mut words = own_args(1).into_iter().skip_while(|word| word != "--").skip(1);
        let program = words.next().map(|program| broadcast::program(job.id, program));
        program.into_iter().chain(words).collect()
    } else {
        std::iter::once(broadcast::program(job.id, program)).chain(own_args(1)).collect()
    };
    if argv.is_empty() {
        return Err(Error::new("a task without a program"));
    }
    let ours = [names::ARGV0, names::STEP_ENVIRONMENT, names::STEP, names::INNER_DIR];
    let env = own_env().into_iter().filter(|(name, _)| !ours.iter().any(|o| name == o)).collect();
    let cwd = std::env::current_dir().unwrap_or_else(|_| context.home.clone());
    let mut command = CommandSpec { argv, env, cwd, ..CommandSpec::default() };
    if let Some(directory) = only_inside(&command) {
        command.cwd = directory;
        // The plug-in's word to srun; a step that the task starts begins where that is started.
        command.env.retain(|(name, _)| name != names::WORKING_DIR);
    }
    // What Slurm has set on this node counts more: where its configuration is, say.
    let here = std::mem::take(&mut command.env);
    let is_here = |later: &[u8]| here.iter().any(|(name, _)| name.as_bytes() == later);
    let is_second = |name: &OsStr| name.as_bytes().strip_prefix(LATER.as_bytes()).is_some_and(is_here);
    command.env = here.iter().filter(|(name, _)| !is_second(name)).cloned().collect();
    for (name, _) in &mut command.env {
        if let Some(later) = name.as_bytes().strip_prefix(LATER.as_bytes()) {
            *name = OsStr::from_bytes(later).to_owned();
        }
    }
    let entry = job_supervisor::image(job)?;
    if let (JobSpec::Snapshot(snapshot), true) = (&job.spec, entry.is_none()) {
        container::set_variables(&mut command, job, &snapshot.devices)?;
    }
    if let Some(entry) = entry {
        match &job.spec {
            JobSpec::Snapshot(snapshot) => {
                in_image::enter(&mut command, entry.id, &entry.exec()?);
                container::set_variables(&mut command, job, &snapshot.devices)?;
            }
            JobSpec::Container(container) => {
                container::enter(&mut command, job, container, &entry)?;
                if is_first() {
                    container::tell_image(container, &entry);
                    attach::tell_ignored(job, container)?;
                    attach::tell_own_network(job)?;
                }
            }
        }
    }
    if is_first() {
        container::tell_unused(context, &mut command, job);
    }
    Ok(command)
}

/// The directory that the job was submitted from, if this node does not have it and Slurm therefore went to its refuge.
fn only_inside(command: &CommandSpec) -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(names::INNER_DIR).map(PathBuf::from) {
        return directory.is_absolute().then_some(directory);
    }
    if command.cwd != Path::new(REFUGE) {
        return None;
    }
    let named = ["PWD", names::SUBMIT_DIR].into_iter().find_map(|name| command.var(name))?;
    let named = PathBuf::from(named);
    (named.is_absolute() && !named.exists()).then_some(named)
}

fn why_not(dir: &Path) -> Error {
    let said = std::env::var_os(names::STEP_FAILURE).unwrap_or_default().to_string_lossy().into_owned();
    if said.is_empty() {
        return Error::new(format!("the step's environment was not made on this node ({})", dir.display()))
            .hint(
                "check that this node's plugstack.conf names the plug-in. Its messages are in slurmd's log",
            );
    }
    let (message, hint) = said.trim_end().split_once("\nhint: ").unwrap_or((said.trim_end(), ""));
    Error::new(message.strip_prefix("skiff: ").unwrap_or(message)).hint(hint)
}

/// Whether this is the task of its step and node that speaks for all.
fn is_first() -> bool {
    std::env::var("SLURM_LOCALID").is_ok_and(|id| id == "0")
}

/// Says once per job and node if the base is another one, and if the snapshot's layers could not be mounted.
fn tell_of_node(context: &UserContext, job: &SlurmJob) {
    if !is_first() {
        return;
    }
    let (dir, node) = (job.supervisor_dir(), node_name());
    if context.config.base.mismatch == Mismatch::Warn {
        tell_once(&dir, DIFFERENCE, &|text| {
            format!("the base of node {node} is not the one the environment was built on: {text}")
        });
    }
    tell_once(&dir, NOT_MOUNTED, &|text| {
        format!("node {node}: the snapshot is unpacked, as its layers cannot be mounted: {text}")
    });
}
