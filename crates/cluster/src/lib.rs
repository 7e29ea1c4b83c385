//! Virtual clusters: one container on each of several hosts, for as long as one script runs; and several on one host (in [`local`]).
//!
//! The *head*, which the user has started, finds the hosts, and has an *agent* started on each by the means of whoever manages
//! them. Between the head and every agent is one [`channel`](skiff_launch::channel): the end of either ends the other, and with it all that was made.
//! Private keys never travel: each agent makes its own, and says the public halves.

mod agent;
mod apart;
pub mod container;
pub mod files;
pub mod fleet;
pub mod head;
pub mod hub;
pub mod key;
mod launching;
pub mod local;
pub mod node;
mod root;
mod run;
mod script;
pub mod slurm;
mod slurm_node;
mod visit;
pub mod wire;

use skiff_app as app;
use skiff_cli::ClusterCommand;
use skiff_spec::fault::Result;

pub use local::{ListedCluster, delete_leftovers, leftovers, listed, running};

/// Carries a command out; the exit code.
pub fn run(command: &ClusterCommand) -> Result<i32> {
    match command {
        ClusterCommand::Run(wanted) => run::run(wanted),
        ClusterCommand::Machines(command) => local::run(command),
        ClusterCommand::Notebook(wanted) => app::in_allocation(app::AppType::Notebook, wanted),
        ClusterCommand::Desktop(wanted) => app::in_allocation(app::AppType::Desktop, wanted),
        ClusterCommand::Agent(words) => agent::run(words),
    }
}
