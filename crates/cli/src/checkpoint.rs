//! The words of `skiff checkpoint`.

use clap::{Args, Subcommand};
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::name::EnvName;

use crate::{Keep, Output};

#[derive(Subcommand)]
pub enum Checkpoint {
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
    Save(Save),
    /// Save an instance and let it run on, as Apptainer's command of this name
    #[command(hide = true)]
    Instance(Save),
    /// Restore a saved instance, on this host or another
    Restore(Restore),
    /// List your checkpoints
    #[command(visible_alias = "ls")]
    List(Output),
    /// Show the contents of a checkpoint
    Show {
        /// Checkpoint name
        checkpoint: CheckpointName,
        #[command(flatten)]
        output: Output,
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
pub struct Save {
    /// Checkpoint name [default: the one given at the start, else the instance's name]
    #[arg(long)]
    pub name: Option<EnvName>,
    /// Let the instance run on [default: it stops once it is saved]
    #[arg(long)]
    pub leave_running: bool,
    /// How many checkpoints of this name to keep, or how old ones (30m, 12h, 7d, 2w), or both: 5,7d. Older ones are NAME@1, NAME@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1")]
    pub keep: Keep,
    /// Print what would be saved and what prevents it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    /// Instance, started with --checkpoint
    pub instance: EnvName,
}

#[derive(Args)]
pub struct Restore {
    /// Check the checkpoint, print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    /// Checkpoint name
    pub checkpoint: CheckpointName,
    /// Name of the restored instance [default: its former name]
    pub instance: Option<EnvName>,
}
