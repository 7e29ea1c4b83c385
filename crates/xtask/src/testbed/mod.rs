//! A real Slurm of several nodes on one machine, for the tests, the demo and the benchmarks.
//!
//! Nothing of Skiff's promises can be shown without a controller, several nodes and ordinary users, and a developer
//! has one machine. So the bed makes namespaces of its own (mount, network, host name, IPC, processes), starts
//! Debian's own munged, slurmctld, slurmd and sshd in them, runs one command on the "login node", and everything dies
//! with that command.
//!
//! Four kinds of process take part:
//! - [`up`] is what the developer started; it waits and hands on the exit status;
//! - [`janitor`] outlives it (also `kill -9`): it makes the few changes of the machine that cannot be made in a
//!   namespace, and undoes them;
//! - [`login`] is process 1 of the login node and runs the command;
//! - [`node`] is process 1 of each compute node.

mod args;
mod bed;
mod cgroup;
mod install;
mod janitor;
mod journal;
mod login;
mod machine;
mod mounts;
mod network;
mod node;
mod process;
mod slurm;
mod sshd;
mod tools;
mod up;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Subcommand;

pub use bed::USERS;
pub use mounts::tmpfs;

/// The command line of `cargo xtask testbed`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Bring a bed up, run a command on its login node, take everything down again
    Up(Box<args::BedOptions>),
    /// Remove what beds that were killed together with their janitor have left
    Clean,
    #[command(hide = true)]
    Janitor { bed: PathBuf },
    #[command(hide = true)]
    Login { bed: PathBuf },
    #[command(hide = true)]
    BootNode { bed: PathBuf, node: String },
    #[command(hide = true)]
    Node { bed: PathBuf, node: String },
}

/// Whether this process is on the login node of a bed.
pub fn is_inside() -> bool {
    std::env::var_os("SKIFF_TESTBED").is_some()
}

/// Inside a bed: the ends of its nodes' logs and of their slurmds'.
pub fn node_logs(nodes: usize) -> String {
    let logs = PathBuf::from(std::env::var_os("SKIFF_TESTBED_DIR").unwrap_or_default()).join("logs");
    (1..=nodes)
        .flat_map(|node| [format!("n{node}.log"), format!("slurmd.n{node}.log")])
        .map(|name| process::log_tail(&logs.join(name)) + "\n")
        .collect()
}

/// Installs what the working tree is, built with these variables, and runs the same command line again on the login node of a bed with
/// these options. Returns only if that fails.
pub fn run_again_inside(bed: &[&str], build: &[(&str, &str)]) -> anyhow::Result<()> {
    // Asked before, as what follows may put a new program in our place.
    let ourselves = std::env::current_exe().context("finding this program")?;
    let stage = stage(build)?;
    let status = Command::new(&ourselves)
        .args(["testbed", "up"])
        .args(bed)
        .arg("--install")
        .arg(stage)
        .arg("--")
        .arg(&ourselves)
        .args(std::env::args_os().skip(1))
        .status()
        .context("running the test bed")?;
    std::process::exit(status.code().unwrap_or(125));
}

/// What `make stage` makes of the working tree, built with these variables; or, as in tests/run, the stage that SKIFF_STAGE names.
fn stage(build: &[(&str, &str)]) -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("SKIFF_STAGE") {
        ensure!(build.is_empty(), "SKIFF_STAGE is set, and this needs a build of its own");
        return Ok(given.into());
    }
    let mut make = Command::new("make");
    let made =
        make.args(["--silent", "stage"]).envs(build.iter().copied()).status().context("running make")?;
    ensure!(made.success(), "make stage: {made}");
    let target = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    Ok(target.join("stage"))
}

/// Installs packages of Debian's that are too large for `make deps`. Outside of a bed, which has no network.
pub fn install_packages(packages: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("packaging/install-debian-packages").args(packages).status();
    let status = status.context("running packaging/install-debian-packages")?;
    ensure!(status.success(), "installing {}: {status}", packages.join(" "));
    Ok(())
}

/// Carries out one `testbed` action; leaves the process with the command's own exit status where there is one.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Up(args) => std::process::exit(up::run(*args)?),
        Action::Clean => janitor::clean_stale(),
        Action::Janitor { bed } => janitor::run(&bed),
        Action::Login { bed } => std::process::exit(login::run(&bed)?),
        Action::BootNode { bed, node } => node::boot(&bed::Bed::load(&bed)?, &node),
        Action::Node { bed, node } => node::run(&bed::Bed::load(&bed)?, &node),
    }
}
