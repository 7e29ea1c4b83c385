//! `skiff cluster`: the head that the user starts, and the agent that it has started on each host; clusters on this machine (`local`).

mod agent;
mod apart;
pub mod container;
pub mod launching;
pub mod local;
mod machine;
pub mod node;
mod root;
mod run;
mod script;
mod visit;

use skiff_spec::fault::Result;

use skiff_app as app;
use skiff_cli::Cluster;

pub use local::{Listed, delete_leftovers, leftovers, running};

/// Carries a command out; the exit code.
pub fn run(command: &Cluster) -> Result<i32> {
    match command {
        Cluster::Run(wanted) => run::run(wanted),
        Cluster::Machines(command) => local::run(command),
        Cluster::Notebook(wanted) => app::in_allocation(app::Kind::Notebook, wanted),
        Cluster::Desktop(wanted) => app::in_allocation(app::Kind::Desktop, wanted),
        Cluster::Agent(words) => agent::run(words),
    }
}
