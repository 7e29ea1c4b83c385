//! The words of `skiff checkpoint`.

use clap::{Args, Subcommand};
use skiff_spec::name::EnvName;

use super::Output;
use crate::checkpoint::keep::Keep;
use crate::checkpoint::place::Slot;

#[derive(Subcommand)]
pub enum Checkpoint {
    /// Make an empty one, for an instance to be saved into (`save` makes one by itself)
    Create {
        /// Have it in the memory of this machine, and no longer than that runs
        #[arg(long)]
        mem_dir: bool,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Its name
        checkpoint: EnvName,
    },
    /// Save a running instance: its processes, its files, what it has in memory
    Save(Save),
    /// As Apptainer has it: save an instance, which goes on
    #[command(hide = true)]
    Instance(Save),
    /// Make an instance again as it was saved, here or on another machine
    Restore(Restore),
    /// List your checkpoints
    #[command(visible_alias = "ls")]
    List(Output),
    /// Show what is in one
    Show {
        /// Its name
        checkpoint: Slot,
        #[command(flatten)]
        output: Output,
    },
    /// Remove some
    #[command(visible_aliases = ["rm", "remove"])]
    Delete {
        /// Their names
        #[arg(required = true, value_name = "CHECKPOINT")]
        checkpoints: Vec<Slot>,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
pub struct Save {
    /// The checkpoint [default: the one it was started with, else of the instance's name]
    #[arg(long)]
    pub name: Option<EnvName>,
    /// Let the instance go on; without it, it ends once all is saved
    #[arg(long)]
    pub leave_running: bool,
    /// Keep so many of this name, those not older than 7d (30m, 12h, 2w), or both: 5,7d; older ones are NAME@1, NAME@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1")]
    pub keep: Keep,
    /// Print what would be saved and what is in the way, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    /// The instance, which was started with --checkpoint
    pub instance: EnvName,
}

#[derive(Args)]
pub struct Restore {
    /// Check all of it and print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    /// The checkpoint
    pub checkpoint: Slot,
    /// What the instance is to be called [default: as it was]
    pub instance: Option<EnvName>,
}
