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

use clap::Subcommand;

/// The command line of `cargo xtask testbed`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Bring a bed up, run a command on its login node, take everything down again
    Up(args::Up),
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

/// Carries out one `testbed` action; leaves the process with the command's own exit status where there is one.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Up(args) => std::process::exit(up::run(args)?),
        Action::Clean => janitor::clean_stale(),
        Action::Janitor { bed } => janitor::run(&bed),
        Action::Login { bed } => std::process::exit(login::run(&bed)?),
        Action::BootNode { bed, node } => node::boot(&bed::Bed::load(&bed)?, &node),
        Action::Node { bed, node } => node::run(&bed::Bed::load(&bed)?, &node),
    }
}
