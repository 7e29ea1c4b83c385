//! Containers as the OCI's runtime specification has them, without privilege: what Slurm (`oci.conf`), Podman and other engines call to have a
//! bundle carried out. The user is an ordinary one, whose containers get a user namespace; or root of a user namespace that an engine has
//! made.
//!
//! A call makes the container's process with its namespaces (`create`), which mounts its root, waits on a socket for its start, and
//! becomes its program (`init`). Everything else finds it by the record in the user's directory of containers (`state`).

#![expect(
    missing_docs,
    reason = "a comment on an argument is what its help says; fields are the specification's"
)]
#![allow(rustdoc::broken_intra_doc_links)]

mod capabilities;
mod cgroup;
mod check;
mod config;
mod copy_up;
mod create;
mod devices;
mod exec;
mod foreground;
mod hooks;
mod id_map;
mod init;
mod known_keys;
mod lifecycle;
mod log;
mod mount_options;
mod mounts;
mod namespaces;
mod process;
mod process_info;
mod root_call;
mod rootfs;
mod seccomp;
mod spec;
mod state;
mod state_dir;
mod sync;
mod terminal;
mod words;

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skiff_output as output;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::signal::{SignalMask, Signals};
use skiff_sys::small_file;

use config::{Capabilities, Cpu, MemoryLimits, Pids, ProcessConfig, ProcessUser, Resources};
use create::{Console, Creation};
use exec::Execution;
use log::Log;
use state::{ContainerId, States};
pub use words::{CreateArgs, OciArgs, OciCommand, OciExecArgs, OciRunArgs, SharedArgs, UpdateArgs};

/// Does what is asked; the exit code.
///
/// # Errors
/// Why it fails; the log has it, too.
pub fn run(args: &OciArgs) -> Result<i32> {
    let shared = &args.shared;
    let (file, is_json) = (shared.log.as_deref(), shared.log_format == "json");
    let is_on_container = !matches!(
        args.command,
        OciCommand::Create(_) | OciCommand::Run(_) | OciCommand::Spec { .. } | OciCommand::Features
    );
    if let (true, Some(root)) = (is_on_container && state_dir::is_host_root()?, shared.root.as_deref()) {
        let call = || {
            // The path of the log may be one that the user can change: it is opened when root has become the user.
            let Some(states) = States::find(Some(root))? else { return without_containers(args) };
            let log = Log::open_for_owner(file, is_json, shared.debug);
            run_on_container(args, &states, &log).inspect_err(|fault| log.error(fault))
        };
        return match args.command {
            // It takes as long as the program.
            OciCommand::Exec(_) => call(),
            _ => root_call::within_limit(call),
        };
    }
    let log = Log::open(file, is_json, shared.debug)?;
    run_logged(args, &log).inspect_err(|fault| log.error(fault))
}

fn run_logged(args: &OciArgs, log: &Log) -> Result<i32> {
    match &args.command {
        OciCommand::Spec { bundle } => return spec::write(bundle).map(|()| 0),
        OciCommand::Features => return output::json(&spec::features()).map(|()| 0),
        _ => {}
    }
    let root = args.shared.root.as_deref();
    if matches!(args.command, OciCommand::Create(_) | OciCommand::Run(_)) {
        // Before a directory is made.
        create::refuse_host_root()?;
    }
    match &args.command {
        OciCommand::Create(create) => {
            return create::create(&States::make(root)?, creation(create, None, false), log).map(|_| 0);
        }
        OciCommand::Run(run) => return run_whole(&States::make(root)?, run, log),
        _ => {}
    }
    match States::find(root)? {
        Some(states) => run_on_container(args, &states, log),
        None => without_containers(args),
    }
}

/// The directory of containers is missing: there are none. It is not made, least of all by root.
fn without_containers(args: &OciArgs) -> Result<i32> {
    match &args.command {
        OciCommand::List { .. }
        | OciCommand::Delete { force: true, .. }
        | OciCommand::Delete { orphaned: true, .. } => Ok(0),
        _ => Err(Fault::new("container does not exist: there is no directory of containers")
            .hint("--root names it")),
    }
}

fn run_on_container(args: &OciArgs, states: &States, log: &Log) -> Result<i32> {
    match &args.command {
        OciCommand::Start { id } => lifecycle::start(states, id, log)?,
        OciCommand::State { id } => output::line(&lifecycle::state(states, id)?)?,
        OciCommand::Kill { all, id, signal } => {
            // By 0 an engine asks whether it runs.
            let number = match &**signal {
                "0" => 0,
                name => skiff_plan::stop::number(name)
                    .ok_or_else(|| Fault::new(format!("{name}: no such signal")))?,
            };
            lifecycle::kill(states, id, number, *all)?;
        }
        OciCommand::Delete { id: Some(id), force, .. } => lifecycle::delete(states, id, *force, log)?,
        OciCommand::Delete { id: None, .. } => lifecycle::delete_orphaned(states, log)?,
        OciCommand::Exec(exec) => return execute(states, exec, log),
        OciCommand::List { quiet, format } => list(states, *quiet, format)?,
        OciCommand::Ps { id, format } => list_processes(&lifecycle::pids(states, id)?, format)?,
        OciCommand::Pause { id } => lifecycle::freeze(states, id, true)?,
        OciCommand::Resume { id } => lifecycle::freeze(states, id, false)?,
        OciCommand::Update(update) => lifecycle::update(states, &update.id, &resources(update)?, log)?,
        OciCommand::Create(_) | OciCommand::Run(_) | OciCommand::Spec { .. } | OciCommand::Features => {}
    }
    Ok(0)
}

fn creation(args: &CreateArgs, end: Option<OwnedFd>, is_awaited: bool) -> Creation<'_> {
    Creation {
        id: &args.id,
        bundle: &args.bundle,
        pid_file: args.pid_file.as_deref(),
        console: console(args.console_socket.as_deref(), end),
        kept: args.preserve_fds,
        is_awaited,
    }
}

fn console(socket: Option<&Path>, end: Option<OwnedFd>) -> Console<'_> {
    match (socket, end) {
        (Some(path), _) => Console::Socket(path),
        (None, Some(end)) => Console::End(end),
        (None, None) => Console::Nobody,
    }
}

/// Two connected sockets: the process sends the master of its terminal by one, and this call receives it by the other.
fn console_pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).context(|| "console")
}

/// Receives the master of a terminal from the other socket of [`console_pair`], if the process has a terminal.
fn master(own: OwnedFd) -> Result<Option<OwnedFd>> {
    let (_, fds) = skiff_sys::fdpass::receive(std::os::fd::AsFd::as_fd(&own), 64).context(|| "console")?;
    Ok(fds.into_iter().next())
}

fn run_whole(states: &States, args: &OciRunArgs, log: &Log) -> Result<i32> {
    // Whoever waits operates the terminal, if there is nobody else for it.
    let pair = (!args.detach && args.create.console_socket.is_none()).then(console_pair).transpose()?;
    let (own, end) = pair.unzip();
    let id = &args.create.id;
    let created = create::create(states, creation(&args.create, end, !args.detach && !args.keep), log)?;
    let has_terminal = created.config.process.as_ref().is_some_and(|process| process.terminal);
    // From here on the container does not end with this call: a signal that comes while it is started is for it.
    let started = holding_signals(args.detach, |_| lifecycle::start_locked(states, &created.container, log));
    let pid = created.pid;
    drop(created);
    let ((), signals) = started.inspect_err(|_| {
        lifecycle::delete(states, id, true, log).ignore_error("that it could not be started says more");
    })?;
    let Some(signals) = signals else { return Ok(0) };
    let master = own.filter(|_| has_terminal).map(master).transpose()?.flatten();
    let code = foreground::wait(pid, master, signals)?;
    if !args.keep
        && let Err(fault) = lifecycle::delete(states, id, true, log)
    {
        // The program's exit code is what the caller waits for.
        log.error(&fault);
        output::complain(&fault);
    }
    Ok(code)
}

/// Acts while signals wait for [`foreground::wait`], which hands them on, unless nobody is to wait. Where it fails, they do what they did
/// before. `act` gets what was blocked before.
fn holding_signals<T>(
    is_detached: bool,
    act: impl FnOnce(Option<SignalMask>) -> Result<T>,
) -> Result<(T, Option<Signals>)> {
    let signals = (!is_detached).then(foreground::signals).transpose()?;
    match act(signals.as_ref().map(Signals::before)) {
        Ok(done) => Ok((done, signals)),
        Err(fault) => {
            signals.into_iter().for_each(Signals::end);
            Err(fault)
        }
    }
}

fn execute(states: &States, args: &OciExecArgs, log: &Log) -> Result<i32> {
    let process = match &args.process {
        Some(path) => process_of(path)?,
        None => process_like(states, args)?,
    };
    let has_terminal = process.terminal;
    let pair =
        (has_terminal && !args.detach && args.console_socket.is_none()).then(console_pair).transpose()?;
    let (own, end) = pair.unzip();
    let execution = |mask| Execution {
        id: &args.id,
        process,
        pid_file: args.pid_file.as_deref(),
        console: console(args.console_socket.as_deref(), end),
        kept: args.preserve_fds,
        mask,
    };
    // A signal that comes once there is a process is for that one.
    let (pid, signals) = holding_signals(args.detach, |mask| exec::exec(states, execution(mask), log))?;
    let Some(signals) = signals else { return Ok(0) };
    let master = own.map(master).transpose()?.flatten();
    foreground::wait(pid, master, signals)
}

/// The process that a file describes.
fn process_of(path: &Path) -> Result<ProcessConfig> {
    let about = || format!("process {}", path.display());
    parsed(std::fs::File::open(path).context(about)?, about)
}

/// What an engine's own file says, which may be a link or a pipe.
fn parsed<T: DeserializeOwned>(file: std::fs::File, about: impl Fn() -> String) -> Result<T> {
    let mut bytes = vec![];
    std::io::Read::read_to_end(&mut std::io::Read::take(file, small_file::LONGEST), &mut bytes)
        .context(&about)?;
    let wrong = |e: serde_json::Error| Fault::new(format!("{}: {e}", about()));
    let value = config::without_nulls(serde_json::from_slice(&bytes).map_err(wrong)?);
    serde_json::from_value(value).map_err(wrong)
}

/// The limits that an update asks for: of a file, or by options.
fn resources(update: &UpdateArgs) -> Result<Resources> {
    let UpdateArgs {
        resources,
        memory,
        memory_reservation,
        memory_swap,
        cpu_quota,
        cpu_period,
        cpu_share,
        cpuset_cpus,
        cpuset_mems,
        pids_limit,
        id: _,
    } = update;
    if let Some(path) = resources {
        let about = || format!("resources {}", path.display());
        let file = match path.as_os_str() == "-" {
            true => rustix::stdio::stdin().try_clone_to_owned().map(std::fs::File::from),
            false => std::fs::File::open(path),
        };
        return parsed(file.context(about)?, about);
    }
    Ok(Resources {
        memory: Some(MemoryLimits {
            limit: *memory,
            reservation: *memory_reservation,
            swap: *memory_swap,
            ..MemoryLimits::default()
        }),
        cpu: Some(Cpu {
            shares: *cpu_share,
            quota: *cpu_quota,
            period: *cpu_period,
            cpus: cpuset_cpus.clone(),
            mems: cpuset_mems.clone(),
            ..Cpu::default()
        }),
        pids: pids_limit.map(|limit| Pids { limit }),
        ..Resources::default()
    })
}

/// The container's own process with another program, and what the words change.
fn process_like(states: &States, args: &OciExecArgs) -> Result<ProcessConfig> {
    let mut process = states.container(&args.id)?.config()?.process.unwrap_or_default();
    process.args.clone_from(&args.command);
    process.terminal = args.tty;
    process.env.extend(args.env.iter().cloned());
    process.no_new_privileges |= args.no_new_privs;
    if let Some(cwd) = &args.cwd {
        process.cwd.clone_from(cwd);
    }
    if let Some(user) = &args.user {
        process.user = user_of(user)?;
    }
    process.user.additional_gids.extend(&args.additional_gids);
    if !args.cap.is_empty() {
        let Capabilities { bounding, effective, inheritable, permitted, ambient } =
            process.capabilities.get_or_insert_default();
        [bounding, effective, permitted].into_iter().for_each(|set| set.extend(args.cap.iter().cloned()));
        // As runc has it: what can be inherited gets to programs that the first one executes, too.
        ambient.extend(args.cap.iter().filter(|name| inheritable.contains(name)).cloned());
    }
    Ok(process)
}

fn user_of(text: &str) -> Result<ProcessUser> {
    let number = |text: &str| text.parse().map_err(|_| Fault::new(format!("--user {text}: not a number")));
    let (uid, gid) = text.split_once(':').unwrap_or((text, "0"));
    Ok(ProcessUser { uid: number(uid)?, gid: number(gid)?, ..ProcessUser::default() })
}

fn list(states: &States, quiet: bool, format: &str) -> Result<()> {
    let names = states.names()?;
    if quiet {
        return names.iter().try_for_each(|name| output::line(&name.to_string()));
    }
    // One that is deleted meanwhile, or has no state yet, is left out.
    let state = |id: &ContainerId| -> Option<Value> {
        serde_json::from_str(&lifecycle::state(states, id).ok()?).ok()
    };
    let found: Vec<Value> = names.iter().filter_map(state).collect();
    if format == "json" {
        return output::json(&found);
    }
    let word = |state: &Value, key: &str| match state.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "0".into(),
    };
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|state| ["id", "pid", "status", "bundle", "created"].map(|key| word(state, key)).to_vec())
        .collect();
    output::table(&["ID", "PID", "STATUS", "BUNDLE", "CREATED"], &rows)
}

fn list_processes(pids: &[i32], format: &str) -> Result<()> {
    if format == "json" {
        return output::json(&json!(pids));
    }
    let name = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).default_on_error("it has ended meanwhile")
    };
    let rows: Vec<Vec<String>> =
        pids.iter().map(|pid| vec![pid.to_string(), name(*pid).trim().to_owned()]).collect();
    output::table(&["PID", "CMD"], &rows)
}
