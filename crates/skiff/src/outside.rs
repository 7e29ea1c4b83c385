//! Decides which commands run outside when they are called inside an environment, and which of them need its terminal.

use skiff_cli::{
    AppCommand, CliCommand, ClusterCommand, EnvCommand, EnvSubcommand, InstanceCommand, NodesCommand,
};
use skiff_runtime::proxy;
use skiff_spec::caller::CALLED_INSIDE;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::context::is_inside;

/// What a user asks for means the same inside an environment as outside: there it is done, if there is a supervisor to ask.
pub fn call(command: &CliCommand) -> Result<Option<i32>> {
    match is_for_outside(command) && is_inside() {
        true => proxy::call_outside(works_at_terminal(command)),
        false => Ok(None),
    }
}

/// A supervisor runs for its environment what a user may call. Only by the words as they are understood can it be told from what Skiff itself
/// starts, inside or on another host.
pub fn refuse_what_no_user_calls(command: &CliCommand) -> Result<()> {
    let is_called_inside = std::env::args_os().next().is_some_and(|name| name == CALLED_INSIDE);
    match is_called_inside && !is_for_outside(command) {
        true => Err(Error::new("request from inside: not a command that runs outside")),
        false => Ok(()),
    }
}

/// Whether a command starts programs that a user may work with at the terminal.
fn works_at_terminal(command: &CliCommand) -> bool {
    match command {
        CliCommand::Run(_) | CliCommand::Shell(_) | CliCommand::Cluster(_) | CliCommand::Exec(_) => true,
        // It asks for a password.
        CliCommand::Login(_) => true,
        CliCommand::Env(EnvSubcommand::Environment(command)) => {
            matches!(command, EnvCommand::Enter { .. } | EnvCommand::Exec(_))
        }
        CliCommand::Instance(command) => matches!(command, InstanceCommand::Exec { .. }),
        _ => false,
    }
}

/// Whether a command is the user's: not what Skiff starts inside by itself, and what is about no environment.
fn is_for_outside(command: &CliCommand) -> bool {
    match command {
        CliCommand::Run(_)
        | CliCommand::Shell(_)
        | CliCommand::Env(_)
        | CliCommand::Instance(_)
        | CliCommand::Checkpoint(_)
        | CliCommand::Migrate(_)
        | CliCommand::Drain(_)
        | CliCommand::Ps { .. }
        | CliCommand::Exec(_)
        | CliCommand::Cp(_)
        | CliCommand::Commit(_)
        | CliCommand::Build(_)
        | CliCommand::Logs { .. }
        | CliCommand::Stop(_)
        | CliCommand::Kill(_)
        | CliCommand::Rm(_)
        | CliCommand::Tag { .. }
        | CliCommand::History { .. }
        | CliCommand::Complete { .. }
        | CliCommand::Cdi(_)
        | CliCommand::Module(_)
        | CliCommand::Net(_)
        | CliCommand::Pull(_)
        | CliCommand::Import(_)
        | CliCommand::Export(_)
        | CliCommand::Push(_)
        | CliCommand::Images(_)
        | CliCommand::Rmi { .. }
        | CliCommand::Inspect { .. }
        | CliCommand::Logout { .. }
        | CliCommand::Store(_)
        | CliCommand::Depot(_)
        | CliCommand::Edf(_)
        | CliCommand::Doctor(_)
        | CliCommand::Sweep(_)
        | CliCommand::Config(_) => true,
        CliCommand::App(AppCommand::List(_)) => true,
        // It serves where it is called. What it starts in another environment goes there by itself.
        CliCommand::App(_) => false,
        CliCommand::Cluster(
            ClusterCommand::Agent(_)
            | ClusterCommand::Notebook(_)
            | ClusterCommand::Desktop(_)
            | ClusterCommand::Machines(NodesCommand::Daemon(_)),
        ) => false,
        CliCommand::Cluster(_) => true,
        CliCommand::Login(login) => login.server.is_some(),
        // A bundle is a directory where the call is made.
        CliCommand::Oci(_)
        | CliCommand::Job(_)
        | CliCommand::MigrateReceive
        | CliCommand::Agent
        | CliCommand::AgentCall { .. }
        | CliCommand::Version
        | CliCommand::Help { .. }
        | CliCommand::Completion { .. }
        | CliCommand::Man { .. }
        | CliCommand::Slurm(_) => false,
    }
}
