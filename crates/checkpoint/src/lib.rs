//! `skiff checkpoint` and `skiff job`: instances saved and made again.
//!
//! Processes that outlive their node: CRIU, run as the user inside the user's own namespaces, dumps an instance's processes and
//! makes them again, here or elsewhere.
//!
//! Nothing in here has privilege on the host. What CRIU may do to processes it may do because the instance's user namespace is the
//! user's; and a forged image can do no more in there than the user could by themselves.

#[cfg(test)]
#[path = "../../sys/src/apart.rs"]
mod apart;
mod attach;
pub mod attributes;
pub mod criu;
pub mod daemons;
pub mod dump;
pub mod every;
mod expected_pages;
pub mod files;
mod hidden;
mod image_edits;
pub mod inside_reader;
pub mod job;
pub mod joint;
pub mod locks;
pub mod look;
mod mappings;
pub mod member;
pub mod memory;
mod names_lock;
pub mod notes;
pub mod obstacles;
mod other_hosts;
mod page_intake;
mod page_queue;
mod page_scan;
mod parts;
pub mod place;
pub mod portable;
pub mod posix_queues;
mod previous_pages;
pub mod probe;
pub mod read_files;
pub mod record;
pub mod restore;
pub mod running;
pub mod save;
mod saved_pages;
pub mod set;
mod socket_options;
mod stored;
pub mod sysv;
mod sysv_tables;
pub mod target;
pub mod timers;
mod transport_sockets;
pub mod trees;
pub mod tries;
mod undo;
pub mod versions;
mod waiting;
mod watch;
mod whole_images;

use skiff_cli::{CheckpointCommand, SaveArgs};
use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;

use crate::criu::Installation;

pub use look::snapshots;
pub use place::{delete_leftovers, leftovers};

/// Does what was asked; the exit code.
pub fn run(command: CheckpointCommand) -> Result<i32> {
    let context = UserContext::load()?;
    match command {
        CheckpointCommand::Create { mem_dir, dry_run, checkpoint } => {
            create(&context, &checkpoint, mem_dir, dry_run)
        }
        CheckpointCommand::Save(save) => return save::save(&context, &save),
        CheckpointCommand::Instance(save) => {
            return save::save(&context, &SaveArgs { leave_running: true, ..save });
        }
        CheckpointCommand::Every(words) => return every::every(&context, &words),
        CheckpointCommand::Restore(restore) => restore::restore(&context, &restore),
        CheckpointCommand::List(output) => look::list(&context, output.json),
        CheckpointCommand::Show { checkpoint, output } => look::show(&context, &checkpoint, output.json),
        CheckpointCommand::Export { checkpoint, file } => portable::export(&context, &checkpoint, &file),
        CheckpointCommand::Import { file, name } => {
            let name = portable::import(&context, &file, name.as_ref())?;
            output::line(name.as_str())
        }
        CheckpointCommand::Delete { checkpoints, dry_run } => {
            checkpoints.iter().try_for_each(|slot| look::delete(&context, slot, dry_run))
        }
    }
    .map(|()| 0)
}

fn create(context: &UserContext, name: &EnvName, memory: bool, dry_run: bool) -> Result<()> {
    let dir = place::create(context, name, memory, dry_run)?;
    match dry_run {
        true => output::line(&format!("make {}", dir.display())),
        false => output::line(name.as_str()),
    }
}

/// CRIU, if it is installed with Skiff.
pub fn installed_criu() -> Option<Installation> {
    crate::criu::beside(&std::env::current_exe().ok()?)
}

/// CRIU as it is installed here.
pub fn required_criu() -> Result<Installation> {
    installed_criu().ok_or_else(|| {
        Error::new("CRIU is not installed with Skiff: nothing can be saved or restored")
            .hint("administrator: packaging/get-criu makes the folder PREFIX/libexec/skiff/criu")
    })
}
