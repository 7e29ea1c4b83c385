//! `skiff run`: an environment for one command.

use skiff_sandbox::first::First;
use skiff_sandbox::join::{self, Failed};
use skiff_sandbox::session::{Ended, Session};
use skiff_sandbox::start::{Options, start, start_for};
use skiff_sandbox::{Error, Result};
use skiff_spec::plan::{Identity, Plan, Upper};

use crate::cli::Run;
use crate::context::Context;
use crate::output;
use crate::planner::{self, Wishes};

/// Runs the command; its exit code.
pub fn run(run: &Run) -> Result<i32> {
    let context = Context::load()?;
    check_base(&run.base)?;
    let upper = Upper::Memory { size: context.config.run.memory.clone() };
    let wishes = Wishes { mounts: run.mounts.clone(), ..Wishes::default() };
    let plan = planner::host(&context, "run", upper, wishes)?;
    if run.dry_run {
        return show(&plan, run.json).map(|()| 0);
    }
    match in_new(&context, run, &plan) {
        Ok(ended) => Ok(output::exit_as(ended)),
        Err(why) => Ok(output::failed(why)),
    }
}

fn in_new(context: &Context, run: &Run, plan: &Plan) -> std::result::Result<Ended, Failed> {
    let command = run.inside.command(context, &run.command);
    let session = Session::begin()?;
    let options = Options { helper: context.helper.as_deref(), socket: None };
    let identity = run.inside.identity();
    if identity == Identity::Root {
        let place = session.place(rustix::process::Signal::KILL.as_raw());
        let (instance, process) =
            start_for(plan, options, &First { command: &command, place, mask: session.mask() })?;
        instance.notes.iter().for_each(|note| output::note(note));
        return Ok(session.wait_first(instance, process)?);
    }
    let instance = start(plan, options)?;
    instance.notes.iter().for_each(|note| output::note(note));
    let child = spawn(context, &instance.init.pidfd, instance.init.pid, identity, &command, &session)?;
    let ended = session.wait(&child)?;
    instance.end();
    Ok(ended)
}

/// Starts a command in a running environment.
pub fn spawn(
    context: &Context,
    init: &std::os::fd::OwnedFd,
    pid: rustix::process::Pid,
    identity: Identity,
    command: &skiff_sandbox::command::Command,
    session: &Session,
) -> std::result::Result<skiff_sys::process::Child, Failed> {
    use std::os::fd::AsFd;
    let place = session.place(rustix::process::Signal::KILL.as_raw());
    match (identity, &context.helper) {
        (Identity::Root, _) => join::as_root(init.as_fd(), command, place, session.mask()),
        (Identity::Me, Some(helper)) => join::as_me(helper, pid, command, place, session.mask()),
        (Identity::Me, None) => Err(Error::new("--me: without the helper you can only be root inside")
            .hint("have the helper installed, or leave --me away")
            .into()),
    }
}

/// Only what there is.
pub fn check_base(base: &str) -> Result<()> {
    if base == "host" {
        return Ok(());
    }
    Err(Error::new(format!("base {base:?}: not known")).hint("this version knows `host`"))
}

/// Prints a plan.
pub fn show(plan: &Plan, json: bool) -> Result<()> {
    if json {
        return output::json(plan);
    }
    use skiff_spec::plan::Source;
    output::line(&format!("environment  {}", plan.name))?;
    output::line(&format!("route        {}", format!("{:?}", plan.route).to_lowercase()))?;
    output::line("base         the host's root, as far as others may read it")?;
    for layer in &plan.layers {
        output::line(&format!("layer        {}", layer.display()))?;
    }
    let upper = match &plan.upper {
        Upper::Directory(dir) => dir.join("upper").display().to_string(),
        Upper::Memory { size } => format!("in memory, at most {size}"),
    };
    output::line(&format!("changes go   {upper}"))?;
    for mount in &plan.mounts {
        let source = match &mount.source {
            Source::Bind(path) => path.display().to_string(),
            Source::Own(name) => format!("the environment's own {name}"),
            Source::Memory { .. } => "memory".into(),
            Source::Proc => "its processes".into(),
            Source::Mqueue => "its message queues".into(),
        };
        let mode = if mount.read_only { " (read-only)" } else { "" };
        let maybe = if mount.optional { " (if there)" } else { "" };
        output::line(&format!("mount        {} <- {source}{mode}{maybe}", mount.target.display()))?;
    }
    Ok(())
}
