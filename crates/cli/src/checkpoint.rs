//! The words of `skiff checkpoint`.

use clap::{Args, Subcommand};
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::name::EnvName;

use crate::{OutputArgs, Retention};

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// Create an empty checkpoint (`save` creates one by itself)
    Create {
        /// Keep it in this host's memory, until the host restarts
        #[arg(long)]
        mem_dir: bool,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Checkpoint name
        checkpoint: EnvName,
    },
    /// Save a running instance: processes, memory, files
    Save(SaveArgs),
    /// Save an instance and let it run on, as Apptainer's command of this name
    #[command(hide = true)]
    Instance(SaveArgs),
    /// Restore a saved instance, on this host or another
    Restore(RestoreArgs),
    /// List your checkpoints
    #[command(visible_alias = "ls")]
    List(OutputArgs),
    /// Show the contents of a checkpoint
    Show {
        /// Checkpoint name
        checkpoint: CheckpointName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Delete checkpoints
    #[command(visible_aliases = ["rm", "remove"])]
    Delete {
        /// Checkpoint names
        #[arg(required = true, value_name = "CHECKPOINT")]
        checkpoints: Vec<CheckpointName>,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
pub struct SaveArgs {
    /// Checkpoint name [default: the one given at the start, else the instance's name]
    #[arg(long)]
    pub name: Option<EnvName>,
    /// Let the instance run on [default: it stops once it is saved]
    #[arg(long)]
    pub leave_running: bool,
    /// How many checkpoints of this name to keep, or how old ones (30m, 12h, 7d, 2w), or both: 5,7d. Older ones are NAME@1, NAME@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1")]
    pub keep: Retention,
    /// Print what would be saved and what prevents it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Instance, started with --checkpoint
    pub instance: EnvName,
}

#[derive(Args)]
pub struct RestoreArgs {
    /// Check the checkpoint, print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Checkpoint name
    pub checkpoint: CheckpointName,
    /// Name of the restored instance [default: its former name]
    pub instance: Option<EnvName>,
}
