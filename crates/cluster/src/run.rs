//! `skiff cluster run`: from the user's words to what the hosts are to do, and back to an exit code.

use std::ffi::OsString;
use std::time::Duration;

use serde::Serialize;
use skiff_cli::ClusterRunArgs;
use skiff_launch::launching::{CallbackSetup, Launching};
use skiff_launch::manager::Launch;
use skiff_output as output;
use skiff_plan::inside::ProcessArgs;
use skiff_plan::{self as plan, device_words, in_image};
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::Failed;
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::Identity;
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;

use crate::container;
use crate::files;
use crate::fleet::Limits;
use crate::head::{self, ProgramRun};
use crate::launching;
use crate::root::ResolvedBase;
use crate::wire::{ContainerSpec, Program, ProgramEnd, Role, Root, VERSION};

/// What is to be done, before any of it is.
#[derive(Serialize)]
struct Plan {
    #[serde(flatten)]
    launching: Launching,
    launches: Vec<Launch>,
    wanted: ContainerSpec,
    program: Program,
    network: String,
}

/// Runs the script; the exit code.
pub fn run(run: &ClusterRunArgs) -> Result<i32> {
    let context = UserContext::load()?;
    plan::refuse_inside(&context)?;
    container::needs_helper(&context)?;
    let net = run.host.net.clone().unwrap_or_default();
    let plan = plan(run, &net, &context)?;
    if run.dry_run {
        return show(&plan, run.json).map(|()| 0);
    }
    // Whatever the hosts would all say, once and at once.
    let mut options = container::options(&plan.wanted, container::memory(&context), &net, vec![], (&[], ""));
    // This host may have no devices.
    options.asked.mounts = device_words::without(&options.asked.mounts)?;
    plan::build(options, ResolvedBase::on_node(&context, &plan.wanted.root)?.facts(&context)?)?;
    let signals = Signals::block(&[]).context(|| "signals")?;
    let end = carry_out(run, &context, &plan, &signals)?;
    Ok(match end {
        ProgramEnd::Code(code) => code,
        ProgramEnd::Signal(number) => output::exit_as(CommandExit::Signal(number)),
        ProgramEnd::NotExecuted(errno) => {
            output::failed(Failed::Command(plan.program.argv[0].clone(), errno))
        }
    })
}

fn plan(run: &ClusterRunArgs, net: &Net, context: &UserContext) -> Result<Plan> {
    let launching = launching::find(context, run.hostfile.as_deref(), run.nodes, net)?;
    let name = format!("cluster-{}", std::process::id());
    let (root, command) = root(run, context)?;
    let program = program(run, &name, command);
    let wanted = ContainerSpec {
        version: VERSION.into(),
        name: name.clone(),
        hosts: launching.hosts.iter().map(|host| host.name.clone()).collect(),
        index: 0,
        duty: Role::Script,
        root,
        identity: if run.inside.root { Identity::Root } else { Identity::Me },
        scratch: run.scratch.clone().unwrap_or_default(),
        mounts: run.host.words(),
        silence: context.config.cluster.silence_seconds,
        variables: program.env.iter().filter(|(name, _)| !files::is_a_sessions_own(name)).cloned().collect(),
    };
    let launches = launching.launches();
    Ok(Plan { launching, launches, wanted, program, network: net.to_string() })
}

/// What lies below, and the command as the user wrote it, with the variables that belong to it there.
fn root(run: &ClusterRunArgs, context: &UserContext) -> Result<(Root, CommandSpec)> {
    let inside = ProcessArgs { me: !run.inside.root, ..run.inside.clone() };
    let found = ResolvedBase::named(context, &run.base, run.dry_run)?;
    let command = match found.image() {
        Some(entry) => {
            let exec = entry.config()?.exec;
            in_image::in_environment(context, (entry.id, &exec), &inside, &run.command)?
        }
        None => inside.command(context, &run.command),
    };
    Ok((found.root(), command))
}

/// With what leads programs to the cluster's hosts; what the user has asked for stands.
fn program(run: &ClusterRunArgs, name: &str, mut command: CommandSpec) -> Program {
    let asked = |name: &str| {
        run.inside.env.iter().any(|setting| setting.to_string_lossy().split('=').next() == Some(name))
    };
    // A job's own directory for such files is not inside.
    for variable in ["TMPDIR", "TMP", "TEMP"] {
        if !asked(variable) {
            command.env.retain(|(known, _)| known != variable);
        }
    }
    for (variable, value) in files::variables(name, run.inside.root) {
        if !asked(variable) {
            command.set(variable, value);
        }
    }
    let path = command.var("PATH").unwrap_or(skiff_sandbox::command::DEFAULT_PATH.as_ref());
    let mut first = OsString::from(format!("{}/bin:", files::DIR));
    first.push(path);
    command.set("PATH", first);
    let CommandSpec { argv, env, cwd, only_there, .. } = command;
    Program { argv, env, cwd, only_there, terminal: None }
}

fn carry_out(
    run: &ClusterRunArgs,
    context: &UserContext,
    plan: &Plan,
    signals: &Signals,
) -> Result<ProgramEnd> {
    let CallbackSetup { listener, call, .. } = &mut launching::open(&plan.launching, &plan.launches)?;
    let task = ProgramRun {
        hosts: &plan.launching.hosts,
        launches: &plan.launches,
        wanted: &plan.wanted,
        program: plan.program.clone(),
        limits: Limits {
            answer: Duration::from_secs(run.timeout),
            start: Duration::from_secs(context.config.slurm.fetch_seconds.max(run.timeout)),
        },
        note: &output::note,
    };
    head::run(&task, listener.take(), call, signals)
}

fn show(plan: &Plan, json: bool) -> Result<()> {
    if json {
        return output::json(plan);
    }
    launching::show_hosts(&plan.launching)?;
    let base = match &plan.wanted.root {
        Root::Host => "each host's root, as far as others may read it".into(),
        Root::Image { id, reference } => format!("image {reference} (sha256:{id})"),
        Root::Directory(path) => format!("directory {}", path.display()),
    };
    output::line(&format!("base         {base}"))?;
    output::line(&format!("network      {}", plan.network))?;
    for mount in &plan.wanted.mounts {
        output::line(&format!("mount        {mount}"))?;
    }
    launching::show_launches(&plan.launching)?;
    let words: Vec<_> = plan.program.argv.iter().map(|word| word.to_string_lossy()).collect();
    output::line(&format!("script       {}", words.join(" ")))
}
