//! `skiff checkpoint`: instances saved and made again.

pub mod look;
pub mod member;
pub mod place;
pub mod restore;
pub mod save;
pub mod trees;

use skiff_migrate::criu::Folder;
use skiff_sandbox::{Error, Result};

use crate::cli::Checkpoint;
use crate::context::Context;

pub use place::{delete_leftovers, leftovers};
pub use restore::Revived;

/// Does what was asked.
pub fn run(command: &Checkpoint) -> Result<()> {
    let context = Context::load()?;
    match command {
        Checkpoint::Save(save) => save::save(&context, save),
        Checkpoint::Restore(restore) => restore::restore(&context, restore),
        Checkpoint::List(output) => look::list(&context, output.json),
        Checkpoint::Show { checkpoint, output } => look::show(&context, checkpoint, output.json),
        Checkpoint::Delete { checkpoints, dry_run } => {
            checkpoints.iter().try_for_each(|slot| look::delete(&context, slot, *dry_run))
        }
    }
}

/// CRIU as it is installed here.
pub fn criu(context: &Context) -> Result<Folder> {
    context.criu().ok_or_else(|| {
        Error::new("CRIU is not installed with Skiff: nothing can be saved or restored")
            .hint("administrator: packaging/get-criu makes the folder PREFIX/libexec/skiff/criu")
    })
}
