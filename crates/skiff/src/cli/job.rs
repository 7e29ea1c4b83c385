//! The words of `skiff job`.

use clap::{Args, Subcommand};

use super::Start;

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
    /// Keep so many checkpoints of it, older ones as INSTANCE@1, INSTANCE@2 ...
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub keep: u32,
    /// Do not have the job start again once it is saved
    #[arg(long)]
    pub no_requeue: bool,
    #[command(flatten)]
    pub start: Start,
}
