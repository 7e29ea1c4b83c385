//! `skiff run`: an environment for one command.

mod plan_file;

use std::path::Path;

use skiff_sandbox::command::Command;
use skiff_sandbox::first::First;
use skiff_sandbox::helper::Helper;
use skiff_sandbox::join::{self, Failed, NetSpace};
use skiff_sandbox::order::Order;
use skiff_sandbox::session::{Ended, Session};
use skiff_sandbox::start::{Options, start_for, start_for_me};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::{Base, Identity, Plan, Upper};

use crate::cli::{DryRun, Run, Shell};
use crate::context::{Context, is_inside};
use crate::images::index::Entry;
use crate::planner::replay::RUN;
use crate::planner::{self, Facts, PlanOptions, RootOptions, RootSource};
use crate::{images, instance, network, output, scratch};
use plan_file::PlanFile;

/// Runs the command; its exit code.
pub fn run(run: &Run) -> Result<i32> {
    match (&run.checkpoint, &run.plan) {
        (Some(name), _) => instance::foreground::run(run, name),
        (None, Some(file)) => replay(file, &run.show),
        (None, None) => start(RootOptions::of_run(run)?, &run.show),
    }
}

/// Runs a shell in an image; its exit code.
pub fn shell(shell: &Shell) -> Result<i32> {
    start(RootOptions::of_shell(shell), &shell.show)
}

fn start(asked: RootOptions, show: &DryRun) -> Result<i32> {
    let context = Context::load()?;
    let started = helper_ahead(&asked, show.dry_run, &context)?;
    let found = resolve(&asked, &context, show.dry_run)?;
    carry_out(&context, started, (asked, found), show)
}

/// Carries out what `skiff run --dry-run --json` has printed to a file; the exit code.
fn replay(file: &Path, show: &DryRun) -> Result<i32> {
    let context = Context::load()?;
    let text = PlanFile::read(file)?;
    let (asked, found) = PlanFile::parse(&text)?.check(&context)?;
    if let (Some(entry), false) = (&found.entry, show.dry_run) {
        images::get::again(&context, entry.clone())?;
    }
    if network::is_to_be_joined(&asked.net()) && file == Path::new(plan_file::STDIN) {
        // Who begins again there reads it again.
        plan_file::be_stdin(&text)?;
    }
    carry_out(&context, None, (asked, found), show)
}

fn carry_out(
    context: &Context,
    started: Option<Helper>,
    (asked, found): (RootOptions, RunFacts<'_>),
    show: &DryRun,
) -> Result<i32> {
    // Who is not on the network yet begins again there.
    let is_for_show = show.dry_run || network::is_to_be_joined(&asked.net());
    let (upper, _scratch) = scratch::of_a_command(context, is_for_show)?;
    let RunFacts { facts, process, .. } = found;
    let plan = planner::build(PlanOptions::new(RUN, upper, asked), facts)?;
    match (show.dry_run, show.json) {
        (true, true) => return output::json(&PlanFile::new(context, plan, process)).map(|()| 0),
        (true, false) => {
            self::show(&plan, false)?;
            return show_process(&process).map(|()| 0);
        }
        (false, _) => {}
    }
    network::join(context, &plan.net)?;
    images::plan::make_ready(context, &plan)?;
    match in_new(context, started, &process, &plan) {
        Ok(ended) => Ok(output::exit_as(ended)),
        Err(why) => Ok(output::failed(why)),
    }
}

/// Prints what is run. Words and variables are quoted, since those of a printed plan may be anybody's.
fn show_process(process: &MainProcess) -> Result<()> {
    let MainProcess { command, identity, .. } = process;
    let who = match (identity, &command.user) {
        (Identity::Me, _) => "you",
        (Identity::Root, None) => "root inside",
        (Identity::Root, Some(user)) => &format!("{user:?} inside"),
    };
    output::line(&format!("runs as      {who}"))?;
    output::line(&format!("directory    {:?}", command.cwd))?;
    for (name, value) in &command.env {
        // What is passed on may be a secret, and is known.
        if std::env::var_os(name).as_ref() != Some(value) {
            output::line(&format!("variable     {name:?}={value:?}"))?;
        }
    }
    let words: Vec<String> = command.argv.iter().map(|word| format!("{word:?}")).collect();
    output::line(&format!("command      {}", words.join(" ")))
}

/// Every start needs the helper: it loads while we plan. Over the host's root it makes ready, too; which image it is to be is not known yet.
fn helper_ahead(asked: &RootOptions, dry_run: bool, context: &Context) -> Result<Option<Helper>> {
    let sure = asked.net() == Net::Host && !dry_run && !is_inside();
    match &context.helper {
        Some(helper) if sure && asked.source == RootSource::Host => {
            Helper::spawn_for(helper, Base::Host).map(Some)
        }
        Some(helper) if sure => Helper::spawn(helper).map(Some),
        _ => Ok(None),
    }
}

/// What is to be run, in what, as whom: all that a plan and its command are made of.
pub struct RunFacts<'a> {
    /// What was found.
    pub facts: Facts<'a>,
    /// The process.
    pub process: MainProcess,
    /// The image that it is to be run in.
    pub entry: Option<Entry>,
}

/// What is run, and as whom.
pub struct MainProcess {
    /// The command.
    pub command: Command,
    /// Who it is inside.
    pub identity: Identity,
    /// The signal that the command is to get in place of SIGTERM.
    pub stop: Option<String>,
}

/// Looks up what is asked for; the image is here then, but for a dry run.
pub fn resolve<'a>(asked: &RootOptions, context: &'a Context, dry_run: bool) -> Result<RunFacts<'a>> {
    let inside = &asked.inside;
    let RootSource::Image(image) = &asked.source else {
        if asked.untrusted {
            return Err(Error::new(
                "--untrusted: the host's root shows more than a program needs that nobody trusts",
            )
            .hint("skiff run --untrusted IMAGE COMMAND; -v DIR:DIR:ro shows it a directory"));
        }
        let facts = Facts::of_host(context)?;
        let mut command = inside.command(context, &asked.argv);
        let identity = become_user(asked, None, inside.identity(), &mut command);
        let process = MainProcess { command, identity, stop: None };
        return Ok(RunFacts { facts, process, entry: None });
    };
    let entry = match dry_run {
        true => images::find(context, image)?,
        false => images::get::to_run(context, image, asked.pull)?,
    };
    let mut exec = entry.exec()?;
    let facts = images::plan::facts(context, entry.id, std::mem::take(&mut exec.volumes))?;
    let entrypoint = asked.entrypoint.as_deref();
    let mut command = images::command::command(context, (entry.id, &exec), inside, entrypoint, &asked.argv)?;
    // Whom the image's maker meant counts for one who wants ids as its maker has them; for themselves it is who runs it.
    let makers = Some(&*exec.user).filter(|user| inside.root && !user.is_empty());
    let identity = inside.identity_in_image(context.route());
    let identity = match become_user(asked, makers, identity, &mut command) {
        Identity::Me if asked.untrusted => {
            command.seen_as = Some([context.uid, rustix::process::getgid().as_raw()]);
            Identity::Root
        }
        identity => identity,
    };
    let stop = exec.stop_signal.filter(|signal| !signal.is_empty());
    let process = MainProcess { command, identity, stop };
    Ok(RunFacts { facts, process, entry: Some(entry) })
}

/// Has root inside become another user there, if one is wanted.
fn become_user(
    asked: &RootOptions,
    makers: Option<&str>,
    identity: Identity,
    command: &mut Command,
) -> Identity {
    let Some(user) = asked.user.as_deref().or(makers) else { return identity };
    if !["root", "0", "root:root", "0:0", "root:0", "0:root"].contains(&user) {
        images::command::run_as(command, user, &asked.inside);
    }
    Identity::Root
}

fn in_new(
    context: &Context,
    started: Option<Helper>,
    process: &MainProcess,
    plan: &Plan,
) -> std::result::Result<Ended, Failed> {
    let MainProcess { command, identity, stop } = process;
    let mut session = Session::begin()?;
    match stop.as_deref().map(|signal| (signal, images::stop::number(signal))) {
        None => {}
        Some((_, Some(number))) => session = session.stopped_by(number),
        Some((signal, None)) => {
            output::note(&format!("the image's stop signal {signal:?} is not known: SIGTERM it is"));
        }
    }
    if *identity == Identity::Me {
        return as_me_in_new(context, started, command, plan, session);
    }
    let hosts = network::hosts(plan)?;
    let options =
        Options { helper: context.helper.as_deref(), started, hosts: hosts.as_deref(), ..Options::default() };
    let place = session.place(rustix::process::Signal::KILL.as_raw());
    let (instance, process) =
        start_for(plan, options, &First { command, place, mask: session.mask(), apart: None })?;
    instance.notes.iter().for_each(|note| output::note(note));
    Ok(session.wait_first(instance, process)?)
}

fn as_me_in_new(
    context: &Context,
    started: Option<Helper>,
    command: &Command,
    plan: &Plan,
    session: Session,
) -> std::result::Result<Ended, Failed> {
    let (helper, hosts) = (Some(helper_for_me(context)?), network::hosts(plan)?);
    let options = Options { helper, started, hosts: hosts.as_deref(), ..Options::default() };
    let place = session.place(rustix::process::Signal::KILL.as_raw());
    let order = Order::new(command, place, session.mask());
    let (instance, child, mut helper) = start_for_me(plan, options, &order)?;
    instance.notes.iter().for_each(|note| output::note(note));
    let ended = session.wait(&child)?;
    instance.end_inside();
    helper.bury();
    Ok(ended)
}

/// The helper, without which nobody inside is themselves.
fn helper_for_me(context: &Context) -> Result<&Path> {
    context.helper.as_deref().ok_or_else(|| {
        Error::new("--me: without the helper you can only be root inside")
            .hint("have the helper installed, or leave --me away")
    })
}

/// Starts a command in a running environment.
pub fn spawn(
    context: &Context,
    (init, pid, net): (&std::os::fd::OwnedFd, rustix::process::Pid, NetSpace),
    identity: Identity,
    command: &skiff_sandbox::command::Command,
    session: &Session,
) -> std::result::Result<skiff_sys::process::Child, Failed> {
    use std::os::fd::AsFd;
    let place = session.place(rustix::process::Signal::KILL.as_raw());
    match identity {
        Identity::Root => join::as_root(init.as_fd(), net, command, place, session.mask()),
        Identity::Me => join::as_me(helper_for_me(context)?, pid, command, place, session.mask()),
    }
}

/// Where an environment on this network is: one of the site's we have joined by ourselves, unless it has power over it.
pub fn net_space(net: &Net, dumpable: bool) -> NetSpace {
    if net.is_own(dumpable) { NetSpace::Its } else { NetSpace::Ours }
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
        Base::Directory => {
            let tree = plan.unpacked.as_ref().map(|tree| tree.display().to_string());
            output::line(&format!("base         directory {}", tree.unwrap_or_default()))?;
        }
    }
    output::line(&format!("network      {}", plan.net))?;
    match (plan.untrusted, plan.contain) {
        (true, _) => output::line(
            "untrusted    no capabilities, fewer system calls, nothing of the host but the mounts below",
        )?,
        (false, true) => output::line("contained    nothing of the host but the mounts below")?,
        (false, false) => {}
    }
    for layer in &plan.layers {
        output::line(&format!("layer        {}", layer.display()))?;
    }
    let upper = match &plan.upper {
        Upper::Directory(dir) => dir.join("upper").display().to_string(),
        Upper::Scratch(dir) => format!("{}, for as long as it runs", dir.display()),
        Upper::Memory { size } => format!("in memory, at most {size}"),
    };
    output::line(&format!("changes go   {upper}"))?;
    for mount in &plan.mounts {
        let source = match &mount.source {
            Source::Bind(path) => path.display().to_string(),
            Source::Own(name) => format!("the environment's own {name}"),
            Source::Memory { .. } => "memory".into(),
            Source::Volume => "the image's own files, to be changed".into(),
            Source::Text(_) => "a file of the environment's own".into(),
            Source::Hosts(_) => "the host's, with the environment's address".into(),
            Source::Files(_) => "files of the environment's own".into(),
            Source::Proc => "its processes".into(),
            Source::Mqueue => "its message queues".into(),
            Source::Devices => "links, and the devices below".into(),
            Source::Sys => "devices of its network".into(),
            Source::Terminals => "its pseudo terminals".into(),
        };
        let mode = if mount.read_only { " (read-only)" } else { "" };
        let maybe = if mount.optional { " (if there)" } else { "" };
        output::line(&format!("mount        {} <- {source}{mode}{maybe}", mount.target.display()))?;
    }
    Ok(())
}
