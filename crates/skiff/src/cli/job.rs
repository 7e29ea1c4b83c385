//! The words of `skiff job`.

use clap::{Args, Subcommand};

use super::Start;
use crate::checkpoint::keep::Keep;

#[derive(Subcommand)]
pub enum Job {
    /// Run an instance; when the job is about to end, save it and have the job start again
    #[command(after_help = BATCH)]
    CheckpointOnSignal(OnSignal),
}

const BATCH: &str = "\
In a batch script, as its last line (OF, INSTANCE and COMMAND as for `skiff
instance start`); Slurm sends the signal 120 seconds before the time is over:
  #SBATCH --time=1:00:00 --requeue --signal=B:USR1@120
  exec skiff job checkpoint-on-signal OF INSTANCE COMMAND...
The first time it is started, from then on it goes on from the checkpoint of its
name. The exit code is the command's.";

#[derive(Args)]
pub struct OnSignal {
    /// The signal at which it is saved
    #[arg(long, default_value = "USR1")]
    pub signal: String,
    /// Keep so many checkpoints of it, those not older than 7d (30m, 12h, 2w), or both; older ones are INSTANCE@1, INSTANCE@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1")]
    pub keep: Keep,
    /// Do not have the job start again once it is saved
    #[arg(long)]
    pub no_requeue: bool,
    #[command(flatten)]
    pub start: Start,
}
