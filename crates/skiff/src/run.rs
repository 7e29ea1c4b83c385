//! `skiff run`: an environment for one command.

use std::ffi::OsString;

use skiff_sandbox::command::Command;
use skiff_sandbox::first::First;
use skiff_sandbox::join::{self, Failed};
use skiff_sandbox::session::{Ended, Session};
use skiff_sandbox::start::{Options, start, start_for};
use skiff_sandbox::{Error, Result};
use skiff_spec::plan::{Base, Identity, Plan, Upper};

use crate::cli::{Run, Shell};
use crate::context::Context;
use crate::planner::{self, Wishes};
use crate::{images, output};

/// Runs the command; its exit code.
pub fn run(run: &Run) -> Result<i32> {
    let context = Context::load()?;
    let upper = Upper::Memory { size: context.config.run.memory.clone() };
    let wishes = Wishes { mounts: run.mounts.clone(), ..Wishes::default() };
    let (mut plan, command, identity) = match image(run)? {
        None => {
            let plan = planner::host(&context, "run", upper, wishes)?;
            (plan, run.inside.command(&context, &run.command), run.inside.identity())
        }
        Some((image, words)) => {
            let entry = match run.dry_run {
                true => images::find(&context, image)?,
                false => images::get::to_run(&context, image, run.pull)?,
            };
            let exec = entry.config()?.exec;
            let plan = images::plan::image(&context, "run", (entry.id, &exec), upper, run.writable, wishes)?;
            let entrypoint = run.entrypoint.as_deref();
            let identity = run.inside.identity_in_image(context.route());
            (
                plan,
                images::command::command(&context, (entry.id, &exec), &run.inside, entrypoint, words)?,
                identity,
            )
        }
    };
    if run.dry_run {
        return show(&plan, run.json).map(|()| 0);
    }
    images::plan::make_ready(&context, &mut plan)?;
    match in_new(&context, &command, identity, &plan) {
        Ok(ended) => Ok(output::exit_as(ended)),
        Err(why) => Ok(output::failed(why)),
    }
}

/// A shell in an image: its best one.
pub fn shell(shell: Shell) -> Result<i32> {
    let Shell { inside, writable, mounts, image } = shell;
    let words = [image.as_str(), "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh"];
    run(&Run {
        inside,
        writable,
        mounts,
        entrypoint: Some("/bin/sh".into()),
        command: words.map(OsString::from).into(),
        ..Run::default()
    })
}

/// The image to run, and the words for it; nothing if the base is the host.
fn image(run: &Run) -> Result<Option<(&str, &[OsString])>> {
    match (run.base.as_deref(), &run.command[..]) {
        (Some(base), words) => Ok(image_of(base)?.map(|image| (image, words))),
        (None, [image, words @ ..]) if !run.over_host => match image.to_str() {
            Some(image) => Ok(Some((image, words))),
            None => Err(Error::new(format!("image {image:?}: not a name"))),
        },
        _ => Ok(None),
    }
}

fn in_new(
    context: &Context,
    command: &Command,
    identity: Identity,
    plan: &Plan,
) -> std::result::Result<Ended, Failed> {
    let session = Session::begin()?;
    let options = Options { helper: context.helper.as_deref(), socket: None };
    if identity == Identity::Root {
        let place = session.place(rustix::process::Signal::KILL.as_raw());
        let (instance, process) = start_for(plan, options, &First { command, place, mask: session.mask() })?;
        instance.notes.iter().for_each(|note| output::note(note));
        return Ok(session.wait_first(instance, process)?);
    }
    let instance = start(plan, options)?;
    instance.notes.iter().for_each(|note| output::note(note));
    let child = spawn(context, &instance.init.pidfd, instance.init.pid, identity, command, &session)?;
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

/// The image that a base names; nothing for the host.
pub fn image_of(base: &str) -> Result<Option<&str>> {
    match base.strip_prefix(images::PREFIX) {
        Some(image) => Ok(Some(image)),
        None if base == "host" => Ok(None),
        None => {
            Err(Error::new(format!("base {base:?}: not known")).hint("a base is `host` or `image:IMAGE`"))
        }
    }
}

/// Prints a plan.
pub fn show(plan: &Plan, json: bool) -> Result<()> {
    if json {
        return output::json(plan);
    }
    use skiff_spec::plan::Source;
    output::line(&format!("environment  {}", plan.name))?;
    output::line(&format!("route        {}", format!("{:?}", plan.route).to_lowercase()))?;
    match plan.base {
        Base::Host => output::line("base         the host's root, as far as others may read it")?,
        Base::Image(id) => output::line(&format!("base         image {id}"))?,
    }
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
