//! `skiff cluster run`: from the user's words to what the hosts are to do, and back to an exit code.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use skiff_cluster::fleet::Limits;
use skiff_cluster::greeting::Call;
use skiff_cluster::head::{self, Task};
use skiff_cluster::hosts::Host;
use skiff_cluster::launch::Door;
use skiff_cluster::manager::{self, Launch, Manager, Surroundings, Way};
use skiff_cluster::wire::{End, Program, Root, VERSION, Wanted};
use skiff_cluster::{address, files};
use skiff_sandbox::command::Command;
use skiff_sandbox::join::Failed;
use skiff_sandbox::session::Ended;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::Identity;
use skiff_sys::signal::Signals;

use super::container;
use crate::cli::{ClusterRun, Inside, PullWhen};
use crate::context::Context;
use crate::{images, output, planner};

/// What is to be done, before any of it is.
#[derive(Serialize)]
struct Plan {
    manager: Manager,
    hosts: Vec<Host>,
    launches: Vec<Launch>,
    wanted: Wanted,
    program: Program,
    network: String,
}

/// Runs the script; the exit code.
pub fn run(run: &ClusterRun) -> Result<i32> {
    let context = Context::load()?;
    planner::refuse_inside(&context)?;
    container::needs_helper(&context)?;
    let plan = plan(run, &context)?;
    if run.dry_run {
        return show(&plan, run.json).map(|()| 0);
    }
    // Whatever the hosts would all say, once and at once.
    container::plan(&context, &plan.wanted, &[])?;
    let signals = Signals::block(&[]).context(|| "signals")?;
    let end = carry_out(run, &context, &plan, &signals)?;
    Ok(match end {
        End::Code(code) => code,
        End::Signal(number) => output::exit_as(Ended::Signal(number)),
        End::NotExecuted(errno) => output::failed(Failed::Command(plan.program.argv[0].clone(), errno)),
    })
}

fn plan(run: &ClusterRun, context: &Context) -> Result<Plan> {
    if matches!(run.net, Net::None | Net::Private) {
        return Err(Error::new(format!("--net {}: the hosts of a cluster must reach each other", run.net))
            .hint("--net takes host, or one of the site's networks: `skiff net list`"));
    }
    let here = head::own_name().context(|| "name of this host")?;
    let around = Surroundings {
        var: &|name| std::env::var(name).ok(),
        read: &|path| fs::read_to_string(path),
        here: here.clone(),
    };
    let (manager, mut hosts) = manager::find(&around, run.hostfile.as_deref())?;
    if let Some(nodes) = run.nodes {
        let there = hosts.len();
        hosts.truncate(nodes as usize);
        if hosts.len() < nodes as usize {
            return Err(Error::new(format!("--nodes {nodes}: there are only {there} ({})", manager.name())));
        }
    }
    let name = format!("cluster-{}", std::process::id());
    let (root, command) = root(run, context)?;
    let program = program(run, &name, command);
    let wanted = Wanted {
        version: VERSION.into(),
        name: name.clone(),
        hosts: hosts.iter().map(|host| host.name.clone()).collect(),
        index: 0,
        root,
        identity: Identity::Me,
        mounts: run.mounts.clone(),
        variables: program.env.iter().filter(|(name, _)| !files::is_a_sessions_own(name)).cloned().collect(),
    };
    let words = agent_words(run, context, manager, &here)?;
    let launches = manager.launches(&around, &hosts, &words);
    Ok(Plan { manager, hosts, launches, wanted, program, network: run.net.to_string() })
}

/// What lies below, and the command as the user wrote it, with the variables that belong to it there.
fn root(run: &ClusterRun, context: &Context) -> Result<(Root, Command)> {
    let inside = Inside { root: false, me: true, env: run.env.clone(), workdir: run.workdir.clone() };
    if let Some(path) = run.base.strip_prefix("dir:") {
        let path = fs::canonicalize(path).context(|| format!("base dir:{path}"))?;
        if !path.is_dir() {
            return Err(Error::new(format!("base dir:{}: no directory", path.display())));
        }
        return Ok((Root::Directory(path), inside.command(context, &run.command)));
    }
    let image = match run.base.strip_prefix(images::PREFIX) {
        Some(image) => image,
        None if run.base == HOST => return Ok((Root::Host, inside.command(context, &run.command))),
        None => {
            return Err(Error::new(format!("base {:?}: not known", run.base))
                .hint("a base is `host`, `image:IMAGE` or `dir:PATH`"));
        }
    };
    let entry = match run.dry_run {
        true => images::find(context, image)?,
        false => images::get::to_run(context, image, PullWhen::Missing)?,
    };
    let exec = entry.config()?.exec;
    let command = images::command::in_environment(context, (entry.id, &exec), &inside, &run.command)?;
    Ok((Root::Image { id: entry.id, reference: entry.reference }, command))
}

const HOST: &str = "host";

/// With what leads programs to the cluster's hosts; what the user has asked for stands.
fn program(run: &ClusterRun, name: &str, mut command: Command) -> Program {
    let asked =
        |name: &str| run.env.iter().any(|setting| setting.to_string_lossy().split('=').next() == Some(name));
    // A job's own directory for such files is not inside.
    for variable in ["TMPDIR", "TMP", "TEMP"] {
        if !asked(variable) {
            command.env.retain(|(known, _)| known != variable);
        }
    }
    for (variable, value) in files::variables(name) {
        if !asked(variable) {
            command.set(variable, value);
        }
    }
    let path = command.var("PATH").unwrap_or(skiff_sandbox::command::DEFAULT_PATH.as_ref());
    let mut first = OsString::from(format!("{}/bin:", files::DIR));
    first.push(path);
    command.set("PATH", first);
    let Command { argv, env, cwd, only_there, .. } = command;
    Program { argv, env, cwd, only_there }
}

fn agent_words(run: &ClusterRun, context: &Context, manager: Manager, here: &str) -> Result<Vec<OsString>> {
    let exe = std::env::current_exe().context(|| "own program")?;
    let mut words: Vec<OsString> = vec![exe.into(), "cluster".into(), "agent".into()];
    if let Net::Named(name) = &run.net {
        words.extend(["--net".into(), name.as_str().into()]);
    }
    match manager {
        Manager::Slurm => words.extend(["--call".into(), "-".into()]),
        Manager::Pbs => words.extend(["--call".into(), call_file(context, here).into()]),
        Manager::Lsf | Manager::GridEngine | Manager::Ssh => {}
    }
    Ok(words)
}

/// Where agents that get no input find how to call back: on a file system that all hosts share.
fn call_file(context: &Context, here: &str) -> PathBuf {
    context.data().join(format!("clusters/{here}.{}.call", std::process::id()))
}

fn carry_out(run: &ClusterRun, context: &Context, plan: &Plan, signals: &Signals) -> Result<End> {
    let calls = plan.launches.iter().any(|launch| launch.way != Way::Pipes);
    let door = if calls { Some(Door::open()?) } else { None };
    let call = match &door {
        Some(door) => door.call(own_addresses(&plan.hosts)?)?,
        None => Call { hosts: vec![], port: 0, secret: String::new() },
    };
    let by_file = plan.launches.iter().any(|launch| launch.way == Way::CallBackByFile);
    let _file = if by_file {
        let here = head::own_name().context(|| "name of this host")?;
        Some(CallFile::write(&call_file(context, &here), &call)?)
    } else {
        None
    };
    let task = Task {
        hosts: &plan.hosts,
        launches: &plan.launches,
        wanted: &plan.wanted,
        program: plan.program.clone(),
        limits: Limits {
            answer: Duration::from_secs(run.timeout),
            start: Duration::from_secs(context.config.slurm.fetch_seconds.max(run.timeout)),
        },
        note: &output::note,
    };
    head::run(&task, door, &call, signals)
}

/// By which this host may be reached from the others: the address it has towards the first that is known, and its name.
pub fn own_addresses(hosts: &[Host]) -> Result<Vec<String>> {
    let found = hosts.iter().filter_map(|host| address::towards(&host.name).ok());
    let mut all: Vec<String> = found.take(2).map(|address| address.to_string()).collect();
    all.push(head::own_name().context(|| "name of this host")?);
    all.dedup();
    Ok(all)
}

/// The file by which agents call back. What it says is worth nothing when all have called; then it goes.
struct CallFile(PathBuf);

impl CallFile {
    fn write(path: &Path, call: &Call) -> Result<Self> {
        use std::io::Write;
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        let about = || path.display().to_string();
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).context(about)?;
        // One of a process that was killed and had our number.
        fs::remove_file(path).unwrap_or_default();
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let guard = Self(path.into());
        let text = serde_json::to_string(call).map_err(|e| Error::new(format!("{}: {e}", about())))?;
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.context(about).map_err(|e| e.hint("your home must take a small file: is it full?"))?;
        Ok(guard)
    }
}

impl Drop for CallFile {
    fn drop(&mut self) {
        // If it is gone, so much the better.
        fs::remove_file(&self.0).unwrap_or_default();
    }
}

fn show(plan: &Plan, json: bool) -> Result<()> {
    if json {
        return output::json(plan);
    }
    let slots = |host: &Host| host.slots.map_or_else(|| "its processors".into(), |slots| slots.to_string());
    output::line(&format!("manager      {}", plan.manager.name()))?;
    for host in &plan.hosts {
        output::line(&format!("host         {} (slots: {})", host.name, slots(host)))?;
    }
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
    for launch in &plan.launches {
        let words: Vec<_> = launch.argv.iter().map(|word| word.to_string_lossy()).collect();
        output::line(&format!("start        {}", words.join(" ")))?;
    }
    let words: Vec<_> = plan.program.argv.iter().map(|word| word.to_string_lossy()).collect();
    output::line(&format!("script       {}", words.join(" ")))
}
