//! The command line: parses, plans, has it done, prints, exits.

mod cdi;
mod checked_files;
mod commit;
mod complete;
mod copy;
mod doctor;
mod edf;
#[cfg(test)]
mod every_flag;
#[cfg(test)]
mod golden;
mod images;
mod login;
mod module;
mod named;
mod net;
mod outside;
#[cfg(test)]
mod protocols;
mod ps;
mod sweep;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory;
use skiff_app as app;
use skiff_checkpoint as checkpoint;
use skiff_cli::{self as cli, Cli, CliCommand, EnvSubcommand, JobCommand};
use skiff_cluster as cluster;
use skiff_env as env;
use skiff_instance as instance;
use skiff_migrate as migrate;
use skiff_output as output;
use skiff_plan::BIND;
use skiff_runtime::{network, proxy};
use skiff_slurm as slurm;
use skiff_spec::caller::FOR_CALLER;
use skiff_spec::config;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::wire::{STORE_FETCHER, STORE_WRITER};
use skiff_user::context::{UserContext, is_inside};
use skiff_user::own_place;

#[global_allocator]
static MEMORY: skiff_sys::alloc::Arena = skiff_sys::alloc::Arena::new(64 << 10);

/// The name of that link.
const OCI_RUNTIME: &str = "skiff-oci";

fn main() {
    std::process::exit(match other_name() {
        Some(name) => match cli::called_as::translate(&name, &all_words()) {
            Some(translated) => finish(translated.and_then(|commands| become_ourselves(&name, commands))),
            // A host's command typed inside an environment is a link to us.
            None if is_inside() => finish(proxy::run_as(&name)),
            None => finish(ourselves()),
        },
        None if is_runtime() => finish(run(Cli::read(&runtime_words()))),
        None if slurm::is_task() => slurm::run_task(),
        None if is_started_as(STORE_WRITER) => {
            finish(skiff_store::writer::run(&words()).map(|()| 0).map_err(skiff_store::ours))
        }
        None if is_started_as(STORE_FETCHER) => {
            finish(skiff_store::fetcher::process::run(&words()).map(|()| 0).map_err(skiff_store::ours))
        }
        None => finish(ourselves()),
    })
}

fn finish(code: Result<i32>) -> i32 {
    code.unwrap_or_else(|mut e| {
        // Whoever is inside looks for it there.
        let is_missing = e.message.contains("No such file") && e.hint.is_empty();
        if is_missing && std::env::var_os(FOR_CALLER).is_some() {
            e.hint = "skiff runs outside, also when it is called inside: files that only the environment has are not there".into();
        }
        output::complain(&e);
        output::FAILURE
    })
}

/// Whether the helper has started us for the trusted store.
fn is_started_as(what: &str) -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == what)
}

fn words() -> Vec<String> {
    std::env::args_os().skip(2).map(|w| w.to_string_lossy().into_owned()).collect()
}

fn all_words() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

fn ourselves() -> Result<i32> {
    let words = network::words()?;
    let cli = Cli::read(words);
    if own_place::is_caller_inside() {
        let config = UserContext::load_silently()?.config;
        if cli::may_name(words, |path| own_place::of(&config, path).is_some()) {
            cli::named_files(words).iter().try_for_each(|path| own_place::refuse(&config, path))?;
        }
    }
    run(cli)
}

/// Whether we are called by the link that container engines take for an OCI runtime: they call programs, not commands of programs.
fn is_runtime() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(OCI_RUNTIME)))
}

fn runtime_words() -> Vec<OsString> {
    ["skiff", "oci"].into_iter().map(OsString::from).chain(all_words()).collect()
}

/// The name we are called by, if it is not our own.
fn other_name() -> Option<OsString> {
    let name = std::env::args_os().next()?;
    let name = Path::new(&name).file_name()?.to_owned();
    (!name.to_string_lossy().starts_with("skiff")).then_some(name)
}

/// Runs commands of our own, as which another program's call has been understood: the last one in this process's place, since a program that
/// is started again by the helper reads its words anew.
fn become_ourselves(name: &OsStr, commands: cli::called_as::Commands) -> Result<i32> {
    let about = || "starting Skiff by its own name";
    let program = std::env::current_exe().context(about)?;
    let mut commands = commands.into_iter().peekable();
    while let Some(words) = commands.next() {
        let mut command = Command::new(&program);
        command.arg0("skiff").args(words);
        let bound = cli::called_as::bind_variables(name).iter().find_map(std::env::var_os);
        command.envs(bound.map(|mounts| (BIND, mounts)));
        if commands.peek().is_none() {
            return Err(command.exec()).context(about);
        }
        let status = command.status().context(about)?;
        if !status.success() {
            return Ok(status.code().unwrap_or(output::FAILURE));
        }
    }
    Ok(0)
}

/// As `--help` behind the command prints it, or says that there is no such command.
fn show_help(command: &[String]) -> i32 {
    let words = ["skiff".into()].into_iter().chain(command.iter().cloned()).chain(["--help".into()]);
    Cli::read(&words.map(OsString::from).collect::<Vec<_>>());
    0
}

fn show_config(json: bool) -> Result<()> {
    let config = UserContext::load()?.config;
    if json {
        return output::json(&config);
    }
    let text = config.to_toml().map_err(|e| Error::new(format!("configuration: {e}")))?;
    let site_only = config::SITE_ONLY.map(|(key, _)| key).join(", ");
    output::line(&format!(
        "# Only the site's files can set: {site_only} (but users may say helper = \"{}\"), and what `lock` names.",
        config::NO_HELPER
    ))?;
    output::line(text.trim_end())
}

fn run(cli: Cli) -> Result<i32> {
    outside::refuse_what_no_user_calls(&cli.command)?;
    if let Some(code) = outside::call(&cli.command)? {
        return Ok(code);
    }
    env::depot::ask_by(env::depot::SnapshotUsers {
        jobs: slurm::live_jobs,
        checkpoints: checkpoint::snapshots,
    });
    match cli.command {
        CliCommand::Run(run) => return instance::run::run(&run, named::names),
        CliCommand::Env(EnvSubcommand::Environment(command)) => return env::run(&command),
        CliCommand::App(command) => return app::run(&command),
        CliCommand::Instance(command) => return instance::run(&command),
        CliCommand::Checkpoint(command) => return checkpoint::run(command),
        CliCommand::Job(JobCommand::CheckpointOnSignal(words)) => return checkpoint::job::run(*words),
        CliCommand::Job(JobCommand::Save(words)) => return migrate::job::save(&words),
        CliCommand::Job(JobCommand::Move(words)) => return migrate::job::move_to(&words),
        CliCommand::Job(JobCommand::Restore(words)) => return migrate::job::restore(&words),
        CliCommand::Migrate(migrate) => return migrate::run(&migrate),
        CliCommand::Drain(drain) => return migrate::drain(&drain),
        CliCommand::MigrateReceive => return migrate::receive(),
        CliCommand::Agent => return migrate::agent(),
        CliCommand::AgentCall { ref node, port } => return migrate::call_agent(node, port),
        CliCommand::Cluster(command) => return cluster::run(&command),
        CliCommand::Cdi(command) => return cdi::run(&command),
        CliCommand::Module(command) => return module::run(&command),
        CliCommand::Net(command) => return net::run(&command),
        CliCommand::Pull(pull) => images::commands::pull(&pull)?,
        CliCommand::Push(push) => images::push::push(&push)?,
        CliCommand::Shell(shell) => return instance::run::shell(&shell),
        CliCommand::Import(import) => images::commands::import(&import)?,
        CliCommand::Export(export) => images::commands::export(&export)?,
        CliCommand::Images(list) => images::commands::list(&list.format())?,
        CliCommand::Tag { image, name } => images::names::tag(&image, &name)?,
        CliCommand::History { image, no_trunc, list } => {
            images::names::history(&image, &list.format(), no_trunc)?;
        }
        CliCommand::Rmi { images, output } => images::commands::remove(&images, output.json)?,
        CliCommand::Inspect { image, files, format, .. } => {
            images::commands::inspect(&image, files, format.as_deref())?
        }
        CliCommand::Login(ref login) => match &login.server {
            Some(server) => images::login::login(server, login)?,
            None => return login::login(login),
        },
        CliCommand::Logout { server, output } => images::login::logout(&server, output.json)?,
        CliCommand::Store(command) => return images::commands::store(&command),
        CliCommand::Depot(command) => return env::depot::run(&command),
        CliCommand::Edf(command) => return edf::run(&command),
        CliCommand::Oci(command) => return skiff_oci_runtime::run(&command),
        CliCommand::Slurm(command) => return slurm::run(&command),
        CliCommand::Ps { all, list } => ps::show(&UserContext::load()?, all, &list.format())?,
        CliCommand::Exec(exec) => return named::exec(exec),
        CliCommand::Cp(args) => copy::copy(&args)?,
        CliCommand::Env(EnvSubcommand::Commit(args)) | CliCommand::Commit(args) => commit::commit(&args)?,
        CliCommand::Build(args) => return images::build::build(&args),
        CliCommand::Logs(logs) => named::logs(&logs)?,
        CliCommand::Stop(stop) => named::stop(&stop)?,
        CliCommand::Kill(kill) => named::kill(&kill)?,
        CliCommand::Rm(rm) => named::remove(&rm)?,
        CliCommand::Version => output::line(concat!("skiff ", env!("CARGO_PKG_VERSION")))?,
        CliCommand::Help { command } => return Ok(show_help(&command)),
        CliCommand::Doctor(output) => return doctor::doctor(output.json),
        CliCommand::Sweep(sweep) => sweep::sweep(&sweep)?,
        CliCommand::Config(output) => show_config(output.json)?,
        CliCommand::Completion { shell } => output::bytes(cli::complete::script(shell).as_bytes())?,
        CliCommand::Complete { words } => complete::complete(&words)?,
        CliCommand::Man { dir } => {
            cli::manual::write(Cli::command(), &dir).context(|| dir.display().to_string())?;
        }
    }
    Ok(0)
}
