//! The command line: parses, plans, has it done, prints, exits.

mod doctor;
#[cfg(test)]
mod every_flag;
#[cfg(test)]
mod golden;
mod images;
mod login;
mod net;
#[cfg(test)]
mod protocols;
mod ps;
mod sweep;

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;
use skiff_app as app;
use skiff_checkpoint as checkpoint;
use skiff_cli::{self as cli, Cli, Command};
use skiff_cluster as cluster;
use skiff_env as env;
use skiff_instance as instance;
use skiff_migrate as migrate;
use skiff_output as output;
use skiff_runtime::{network, proxy};
use skiff_slurm as slurm;
use skiff_spec::config;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::wire::{STORE_FETCHER, STORE_WRITER};
use skiff_user::context::UserContext;

#[global_allocator]
static MEMORY: skiff_sys::alloc::Arena = skiff_sys::alloc::Arena::new(64 << 10);

fn main() {
    std::process::exit(match other_name() {
        // A host's command typed inside an environment is a link to us.
        Some(name) => finish(proxy::run_as(&name)),
        None if slurm::is_task() => slurm::run_task(),
        None if is_started_as(STORE_WRITER) => {
            finish(skiff_store::writer::run(&words()).map(|()| 0).map_err(skiff_store::ours))
        }
        None if is_started_as(STORE_FETCHER) => {
            finish(skiff_store::fetcher::process::run(&words()).map(|()| 0).map_err(skiff_store::ours))
        }
        None => finish(network::words().and_then(|words| run(Cli::read(words)))),
    })
}

fn finish(code: Result<i32>) -> i32 {
    code.unwrap_or_else(|e| {
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

/// The name we are called by, if it is not our own.
fn other_name() -> Option<OsString> {
    let name = std::env::args_os().next()?;
    let name = Path::new(&name).file_name()?.to_owned();
    (!name.to_string_lossy().starts_with("skiff")
        && std::path::Path::new(skiff_spec::plan::inside::PROGRAM).exists())
    .then_some(name)
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
    match cli.command {
        Command::Run(run) => return instance::run::run(&run),
        Command::Env(command) => return env::run(&command),
        Command::App(command) => return app::run(&command),
        Command::Instance(command) => return instance::run(&command),
        Command::Checkpoint(command) => checkpoint::run(command)?,
        Command::Job(command) => return checkpoint::job::run(command),
        Command::Migrate(migrate) => migrate::run(&migrate)?,
        Command::Drain(drain) => return migrate::drain(&drain),
        Command::MigrateReceive => return migrate::receive(),
        Command::Agent => return migrate::agent(),
        Command::AgentCall { ref node, port } => return migrate::call_agent(node, port),
        Command::Cluster(command) => return cluster::run(&command),
        Command::Net(command) => return net::run(&command),
        Command::Pull(pull) => images::commands::pull(&pull)?,
        Command::Shell(shell) => return instance::run::shell(&shell),
        Command::Import(import) => images::commands::import(&import)?,
        Command::Export(export) => images::commands::export(&export)?,
        Command::Images(output) => images::commands::list(output.json)?,
        Command::Rmi { images, output } => images::commands::remove(&images, output.json)?,
        Command::Inspect { image, files, .. } => images::commands::inspect(&image, files)?,
        Command::Login(ref login) => match &login.server {
            Some(server) => images::login::login(server, login)?,
            None => return login::login(login),
        },
        Command::Logout { server, output } => images::login::logout(&server, output.json)?,
        Command::Store(command) => return images::commands::store(&command),
        Command::Slurm(command) => return slurm::run(&command),
        Command::Ps(output) => ps::show(&UserContext::load()?, output.json)?,
        Command::Stop { name } => env::stop(&UserContext::load()?, &name)?,
        Command::Doctor(output) => return doctor::doctor(output.json),
        Command::Sweep(sweep) => sweep::sweep(&sweep)?,
        Command::Config(output) => show_config(output.json)?,
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "skiff", &mut std::io::stdout());
        }
        Command::Man { dir } => {
            cli::manual::write(Cli::command(), &dir).context(|| dir.display().to_string())?;
        }
    }
    Ok(0)
}
