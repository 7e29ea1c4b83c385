//! Clusters that stay, on this host or on several hosts: `skiff cluster up`, `add`, `remove`, `status`, `enter`, `exec`, `down`.
//!
//! A supervisor outside (`supervisor`) holds the group of nodes, whose process 1 (`crate::hub`) makes them; workers on other
//! hosts are made by the agents there (`hosts`). The commands
//! do the rest: they ask it for nodes, and tell the cluster's Slurm about them.

mod daemon;
mod errand;
mod hosts;
mod inside;
mod known;
mod nodes;
pub mod record;
mod supervisor;
pub mod up;
pub mod wire;

use skiff_cli::NodesCommand;
use skiff_spec::fault::Result;
use skiff_user::context::UserContext;

pub use nodes::{ListedCluster, listed, running};
pub use record::{delete_leftovers, leftovers};

/// Carries a command out; the exit code.
pub fn run(command: &NodesCommand) -> Result<i32> {
    if let NodesCommand::Daemon(what) = command {
        return daemon::run(what);
    }
    let context = UserContext::load()?;
    match command {
        NodesCommand::Daemon(_) => {}
        NodesCommand::Up(wanted) => up::up(&context, wanted)?,
        NodesCommand::Add { name, nodes, dry_run } => nodes::add(&context, name, *nodes, *dry_run)?,
        NodesCommand::Remove { name, nodes, node, dry_run } => {
            nodes::remove(&context, name, *nodes, node, *dry_run)?;
        }
        NodesCommand::Status { name: Some(name), output } => nodes::status(&context, name, output.json)?,
        NodesCommand::Status { name: None, output } => nodes::list(&context, output.json)?,
        NodesCommand::Enter { inside, node, name } => return inside::run(&context, name, *node, inside, &[]),
        NodesCommand::Exec { inside, node, name, command } => {
            return inside::run(&context, name, *node, inside, command);
        }
        NodesCommand::Tell { name, command } => return inside::tell(&context, name, command),
        NodesCommand::Down { name, dry_run } => up::down(&context, name, *dry_run)?,
    }
    Ok(0)
}
