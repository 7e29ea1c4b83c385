//! The words of `skiff job`.

use clap::{Args, Subcommand};

use skiff_spec::checkpoint::{CheckpointInterval, CheckpointName};
use skiff_spec::name::EnvName;

use crate::checkpoint::GrownFiles;
use crate::{OutputArgs, Retention, StartArgs};

#[derive(Subcommand)]
pub enum JobCommand {
    /// Run an instance; before the job's time limit, save it and requeue the job
    #[command(after_help = BATCH)]
    CheckpointOnSignal(Box<OnSignalArgs>),
    /// Save instances of several nodes together, as one checkpoint
    #[command(after_help = SAVE)]
    Save(JobSaveArgs),
    /// Restore all instances of a whole job's checkpoint, on these nodes or others
    #[command(after_help = RESTORE)]
    Restore(JobRestoreArgs),
    /// Save instances of several nodes together, and restore them on other nodes
    #[command(after_help = MOVE)]
    Move(JobMoveArgs),
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

const SAVE: &str = "\
The instances' networks are shut, then all are stopped, then all are saved, each
on its node. Either all are saved, or all go on as if nothing had been.
With --every, --on-signal or --drain-on-signal the command stays until all have
ended, and its exit code is the largest of theirs. The last lines of a batch script with
`#SBATCH --requeue --signal=B:USR1@120`, where ./start starts the instances:
  if skiff checkpoint show ring >/dev/null 2>&1
  then skiff job restore ring; else ./start; fi
  exec skiff job save --on-signal --every auto ring rank";

#[derive(Args)]
pub struct JobSaveArgs {
    /// Nodes to look for the instances on [default: those of the current job]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Let the instances run on [default: they stop once all are saved]
    #[arg(long)]
    pub leave_running: bool,
    /// Save the instances repeatedly until all have ended: the time between two checkpoints (30s, 10m, 2h, 1d), or auto
    #[arg(long, value_name = "TIME|auto", conflicts_with_all = ["leave_running", "dry_run"])]
    pub every: Option<CheckpointInterval>,
    /// Wait for this signal, then save and stop the instances, and requeue the job [default: USR1]. If all end before, remove the checkpoint
    #[arg(long, value_name = "SIGNAL", num_args = 0..=1, require_equals = true, default_missing_value = "USR1", conflicts_with_all = ["leave_running", "dry_run"])]
    pub on_signal: Option<String>,
    /// Do not requeue the job
    #[arg(long, requires = "on_signal")]
    pub no_requeue: bool,
    /// At this signal, move the instances of nodes that Slurm drains to nodes of the job that have none [default: USR2]
    #[arg(long, value_name = "SIGNAL", num_args = 0..=1, require_equals = true, default_missing_value = "USR2", conflicts_with_all = ["leave_running", "dry_run"])]
    pub drain_on_signal: Option<String>,
    /// How many checkpoints of this name to keep, or how old ones (30m, 12h, 7d, 2w), or both: 5,7d. Older ones are NAME@1, NAME@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1")]
    pub keep: Retention,
    /// Print what would be saved and what prevents it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Checkpoint name
    pub checkpoint: EnvName,
    /// Instances, started with --checkpoint; several nodes may have one of the same name
    #[arg(required = true, value_name = "INSTANCE")]
    pub instances: Vec<EnvName>,
}

const RESTORE: &str = "\
The instances of one node come to one node again, in the order of the nodes. All
begin to run when the last of them is there; if one cannot be restored, none is.";

#[derive(Args)]
pub struct JobRestoreArgs {
    /// Nodes to restore the instances on [default: those of the current job]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub on: Vec<String>,
    /// What to do with files elsewhere that have changed since: restore, truncate, keep or refuse [default: the configuration's
    /// checkpoint.files, else restore]
    #[arg(long, value_name = "WAY", hide_possible_values = true)]
    pub files: Option<GrownFiles>,
    /// Wait until all instances have ended; the exit code is the largest of theirs
    #[arg(long)]
    pub wait: bool,
    /// Print what would be restored where, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Checkpoint name
    pub checkpoint: CheckpointName,
}

const MOVE: &str = "\
As `skiff job save`, then `skiff job restore`. If they cannot be restored there,
they are restored where they were. The checkpoint stays.";

#[derive(Args)]
pub struct JobMoveArgs {
    /// Nodes to look for the instances on [default: those of the current job]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Destination nodes
    #[arg(long, value_name = "NODE", value_delimiter = ',', required = true)]
    pub to: Vec<String>,
    /// Wait until all instances have ended; the exit code is the largest of theirs
    #[arg(long)]
    pub wait: bool,
    /// Print what would be moved and what prevents it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Checkpoint name
    pub checkpoint: EnvName,
    /// Instances, started with --checkpoint; several nodes may have one of the same name
    #[arg(required = true, value_name = "INSTANCE")]
    pub instances: Vec<EnvName>,
}
