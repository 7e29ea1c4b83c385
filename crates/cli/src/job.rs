//! The words of `skiff job`.

use clap::{Args, Subcommand};

use crate::checkpoint::GrownFiles;
use crate::{Retention, StartArgs};

#[derive(Subcommand)]
pub enum JobCommand {
    /// Run an instance; before the job's time limit, save it and requeue the job
    #[command(after_help = BATCH)]
    CheckpointOnSignal(OnSignalArgs),
}

const BATCH: &str = "\
In a batch script, as its last line (OF, INSTANCE and COMMAND as for `skiff
instance start`). Slurm sends the signal 120 seconds before the time limit:
  #SBATCH --time=1:00:00 --requeue --signal=B:USR1@120
  exec skiff job checkpoint-on-signal OF INSTANCE COMMAND...
The first run starts the instance; later ones resume it from its checkpoint.
The exit code is the command's.";

#[derive(Args)]
pub struct OnSignalArgs {
    /// Signal at which to save the instance
    #[arg(long, default_value = "USR1")]
    pub signal: String,
    /// How many checkpoints to keep, or how old ones (30m, 12h, 7d, 2w), or both: 5,7d. Older ones are INSTANCE@1, INSTANCE@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1", conflicts_with = "checkpoint_every")]
    pub keep: Retention,
    /// Do not requeue the job
    #[arg(long)]
    pub no_requeue: bool,
    /// What to do with files elsewhere that have changed since the checkpoint: restore, truncate, keep or refuse [default: the
    /// configuration's checkpoint.files, else restore]
    #[arg(long, value_name = "WAY", hide_possible_values = true)]
    pub files: Option<GrownFiles>,
    #[command(flatten)]
    pub start: StartArgs,
}
