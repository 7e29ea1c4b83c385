//! `skiff run`: an environment for one command.

mod plan_file;

use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::process::getgid;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::isatty;
use serde::{Deserialize, Serialize};
use skiff_cli::{DryRunArgs, RunArgs, ShellArgs};
use skiff_output as output;
use skiff_plan::described::DescribedProcess;
use skiff_plan::replay::RUN;
use skiff_plan::resolve::{MainProcess, RunFacts, resolve};
use skiff_plan::{self as plan, PlanOptions, RootOptions, RootSource, base, get, own_network, show, stop};
use skiff_runtime::{enter, network};
use skiff_sandbox::command::{CommandSpec, own_variable};
use skiff_sandbox::exec_request::ExecRequest;
use skiff_sandbox::first::{First, Stdio};
use skiff_sandbox::helper::Helper;
use skiff_sandbox::join::Failed;
use skiff_sandbox::own_terminal;
use skiff_sandbox::session::{CommandExit, Session};
use skiff_sandbox::start::{StartOptions, start as start_container, start_for, start_for_me};
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Base, Identity, Plan};
use skiff_user::context::{UserContext, is_inside};
use skiff_user::scratch;

use crate::ranks;
use plan_file::PlanFile;

/// A plan and its process, on their way to where the plan's network is.
#[derive(Serialize, Deserialize)]
struct Resolved {
    plan: Plan,
    process: DescribedProcess,
}

/// Runs the command; its exit code. `taken` has the names that one in the background must not get.
pub fn run(run: &RunArgs, taken: fn(&UserContext) -> Result<Vec<EnvName>>) -> Result<i32> {
    if let (Some(name), false) = (&run.name, run.detach) {
        output::note(&format!(
            "--name {name}: only what runs in the background has a name; -d lets it run there"
        ));
    }
    match (&run.checkpoint, &run.plan) {
        _ if run.detach => crate::foreground::detach(run, taken),
        (Some(name), _) => crate::foreground::run(run, name),
        (None, Some(file)) => unless_attached(|context| replay(context, file, &run.show)),
        (None, None) => start(run.options()?, &run.show),
    }
}

/// Runs a shell in an image; its exit code.
pub fn shell(shell: &ShellArgs) -> Result<i32> {
    start(shell.options(), &shell.show)
}

fn start(asked: RootOptions, show: &DryRunArgs) -> Result<i32> {
    unless_attached(|context| {
        let asked = asked.with_bind_variable().with_definition(context)?;
        if let (RootSource::Image(image), false) = (&asked.source, show.dry_run) {
            match asked.net().is_host() {
                true => ranks::tell_of_own_containers(image),
                false => own_network::tell_mpi(
                    &format!("image {image}"),
                    "--net host: MPI needs the host's network",
                ),
            }
        }
        let started = helper_ahead(&asked, show.dry_run, context)?;
        let found = resolve(&asked, context, show.dry_run)?;
        carry_out(context, started, (asked, found), show)
    })
}

/// What was planned before the plan's network was joined is carried out as it is; else `plan` begins.
fn unless_attached(plan: impl FnOnce(&UserContext) -> Result<i32>) -> Result<i32> {
    let context = UserContext::load()?.for_a_throw_away();
    match network::attached()? {
        Some(resolved) => go_on(&context, resolved),
        None => plan(&context),
    }
}

/// Carries out what `skiff run --dry-run --json` has printed to a file; the exit code.
fn replay(context: &UserContext, file: &Path, show: &DryRunArgs) -> Result<i32> {
    let (asked, found) = PlanFile::parse(&PlanFile::read(file)?)?.check(context)?;
    if let (Some(entry), false) = (&found.entry, show.dry_run) {
        get::again(context, entry.clone())?;
    }
    carry_out(context, None, (asked, found), show)
}

fn carry_out(
    context: &UserContext,
    started: Option<Helper>,
    (asked, found): (RootOptions, RunFacts<'_>),
    show: &DryRunArgs,
) -> Result<i32> {
    // Where changes go on a disk, a directory is made there by whoever starts it.
    let is_for_show = show.dry_run || asked.net().of_site().is_some_and(|name| !network::is_on(name));
    let (upper, _scratch) = scratch::of_a_command(context, is_for_show)?;
    let RunFacts { facts, process, .. } = found;
    let plan = plan::build(PlanOptions::new(RUN, upper, asked), facts)?;
    match (show.dry_run, show.json) {
        (true, true) => return output::json(&PlanFile::new(context, plan, process)).map(|()| 0),
        (true, false) => {
            show::show(&plan, false)?;
            return show_process(&process).map(|()| 0);
        }
        (false, _) => {}
    }
    network::attach(context, plan.network_to_join(), || Resolved {
        plan: plan.clone(),
        process: DescribedProcess::of(process.clone()),
    })?;
    begin(context, started, &process, &plan)
}

/// Carries out, on the plan's network, what was planned before that was joined.
fn go_on(context: &UserContext, resolved: Resolved) -> Result<i32> {
    let Resolved { plan, process } = resolved;
    let process = process.check(&plan, [context.uid, getgid().as_raw()])?;
    let (upper, _scratch) = scratch::of_a_command(context, false)?;
    begin(context, None, &process, &plan::with_changes_in(plan, upper))
}

fn begin(context: &UserContext, started: Option<Helper>, process: &MainProcess, plan: &Plan) -> Result<i32> {
    base::make_ready(context, plan)?;
    match in_new(context, started, process, plan) {
        Ok(ended) => Ok(output::exit_as(ended)),
        Err(why) => Ok(output::failed(why)),
    }
}

/// Prints what is run. Words and variables are quoted, since those of a printed plan may be anybody's.
fn show_process(process: &MainProcess) -> Result<()> {
    let MainProcess { command, identity, .. } = process;
    let who = match (identity, &command.user) {
        (Identity::Me, _) => "you",
        (Identity::Root, None) if command.seen_as.is_some() => "you, without any capability",
        (Identity::Root, None) => "root inside",
        (Identity::Root, Some(user)) => &format!("{user:?} inside"),
    };
    output::line(&format!("runs as      {who}"))?;
    output::line(&format!("directory    {:?}", command.cwd))?;
    for (name, value) in &command.env {
        // What is passed on may be a secret, and is known.
        if own_variable(name).as_ref() != Some(value) {
            output::line(&format!("variable     {name:?}={value:?}"))?;
        }
    }
    let words: Vec<String> = command.argv.iter().map(|word| format!("{word:?}")).collect();
    output::line(&format!("command      {}", words.join(" ")))
}

/// Every start needs the helper: it loads while we plan. Over the host's root it makes ready, too; which image it is to be is not known yet.
fn helper_ahead(asked: &RootOptions, dry_run: bool, context: &UserContext) -> Result<Option<Helper>> {
    let sure = asked.net() == Net::Host && !dry_run && !is_inside();
    match &context.helper {
        Some(helper) if sure && asked.source == RootSource::Host => {
            Helper::spawn_for(helper, Base::Host).map(Some)
        }
        Some(helper) if sure => Helper::spawn(helper).map(Some),
        _ => Ok(None),
    }
}

fn in_new(
    context: &UserContext,
    started: Option<Helper>,
    process: &MainProcess,
    plan: &Plan,
) -> std::result::Result<CommandExit, Failed> {
    let MainProcess { command, identity, stop } = process;
    let is_at_terminal = [stdin(), stdout(), stderr()].into_iter().any(isatty);
    // Nobody enters one whose programs are not trusted.
    if is_at_terminal && own_terminal::is_needed(plan) && !plan.untrusted {
        return at_own_terminal(context, started, process, plan);
    }
    let session = Session::begin()?.stopped_by(stop::stop_signal(stop.as_deref()));
    if *identity == Identity::Me {
        return as_me_in_new(context, started, command, plan, session);
    }
    let hosts = network::hosts(plan)?;
    let options = start_options(context.helper.as_deref(), started, hosts.as_deref());
    let attr = session.spawn_attr(rustix::process::Signal::KILL.as_raw());
    let (instance, process) =
        start_for(plan, options, &First { command, attr, mask: session.mask(), stdio: Stdio::Inherited })?;
    instance.notes.iter().for_each(|note| output::note(note));
    Ok(session.wait_first(instance, process)?)
}

/// A start by this helper, if there is one, of a container that sees these names of hosts.
fn start_options<'a>(
    helper: Option<&'a Path>,
    started: Option<Helper>,
    hosts: Option<&'a str>,
) -> StartOptions<'a> {
    StartOptions { helper, started, hosts, ..StartOptions::default() }
}

/// The same where the user's terminal has no name inside: only when the container is there it has a terminal for the command.
fn at_own_terminal(
    context: &UserContext,
    started: Option<Helper>,
    process: &MainProcess,
    plan: &Plan,
) -> std::result::Result<CommandExit, Failed> {
    let MainProcess { command, identity, stop } = process;
    let hosts = network::hosts(plan)?;
    let options = start_options(context.helper.as_deref(), started, hosts.as_deref());
    let instance = start_container(plan, options)?;
    instance.notes.iter().for_each(|note| output::note(note));
    let init = &instance.init;
    let net = enter::net_space(&plan.net, plan.dumpable).named(plan.hostname.is_some());
    let ended = own_terminal::run(Some(init.pidfd.as_fd()), command, |session| {
        let session = session.stopped_by(stop::stop_signal(stop.as_deref()));
        let child = enter::spawn(context, (&init.pidfd, init.pid, net), *identity, command, &session)?;
        Ok(session.wait(&child)?)
    });
    instance.end_inside();
    ended
}

fn as_me_in_new(
    context: &UserContext,
    started: Option<Helper>,
    command: &CommandSpec,
    plan: &Plan,
    session: Session,
) -> std::result::Result<CommandExit, Failed> {
    let (helper, hosts) = (enter::helper_for_me(context)?, network::hosts(plan)?);
    let options = start_options(Some(helper), started, hosts.as_deref());
    let attr = session.spawn_attr(rustix::process::Signal::KILL.as_raw());
    let request = ExecRequest::new(command, attr, session.mask(), plan.hostname.is_some());
    let (instance, child, mut helper) = start_for_me(plan, options, &request)?;
    instance.notes.iter().for_each(|note| output::note(note));
    let ended = session.wait(&child)?;
    instance.end_inside();
    helper.bury();
    Ok(ended)
}
