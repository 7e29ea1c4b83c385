//! `skiff run`, `skiff shell` and `skiff instance`: environments for one command, in the foreground or in the background.
//!
//! An instance is an environment with a name of its own, whose changes go with it, and a command that it is there for; a supervisor as of
//! any environment holds it, keeps the command's output and notes its end.

pub mod foreground;
mod logs;
pub mod look;
mod ranks;
pub mod run;
pub mod saves;
pub mod start;

use skiff_cli::InstanceCommand;
use skiff_output as output;
use skiff_spec::fault::Result;
use skiff_user::context::UserContext;

pub use logs::show as show_logs;
pub use look::{ListedInstance, listed, running};

/// Does what was asked; the exit code.
pub fn run(command: &InstanceCommand) -> Result<i32> {
    if let InstanceCommand::Start(start) = command {
        return start::start(start);
    }
    let context = UserContext::load()?;
    match command {
        InstanceCommand::Start(_) => {}
        InstanceCommand::List(list) => look::list(&context, &list.format())?,
        InstanceCommand::Exec { inside, instance, command } => {
            return look::exec(&context, instance, inside, command);
        }
        InstanceCommand::Logs(asked) => logs::show(&context, asked)?,
        InstanceCommand::Stop { time, instance } => look::stop(&context, instance, *time)?,
        InstanceCommand::Rm { instances, force } => {
            output::each(instances, |name| look::remove(&context, name, *force))?;
        }
    }
    Ok(0)
}
