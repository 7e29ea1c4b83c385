//! `skiff cluster`: the head that the user starts, and the agent that it has started on each host.

mod agent;
mod caller;
mod container;
mod run;
mod script;

use skiff_sandbox::Result;

use crate::cli::Cluster;

/// Carries a command out; the exit code.
pub fn run(command: &Cluster) -> Result<i32> {
    match command {
        Cluster::Run(wanted) => run::run(wanted),
        Cluster::Agent(words) => agent::run(words),
    }
}
