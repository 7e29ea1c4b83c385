//! The words of `skiff checkpoint`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use skiff_spec::checkpoint::{CheckpointInterval, CheckpointName};
use skiff_spec::name::{EnvName, NameError};

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
        #[arg(value_parser = new_name)]
        checkpoint: EnvName,
    },
    /// Save a running instance: processes, memory, files
    Save(SaveArgs),
    /// Save a running instance again and again, until it ends
    #[command(after_help = EVERY)]
    Every(EveryArgs),
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
    /// Write a checkpoint to one compressed file, for another site
    Export {
        /// Checkpoint name
        checkpoint: CheckpointName,
        /// File to write; it must not exist. `-` is standard output
        file: PathBuf,
    },
    /// Create a checkpoint from an exported file
    Import {
        /// File that `skiff checkpoint export` wrote; `-` is standard input
        file: PathBuf,
        /// Checkpoint name [default: the name it was exported by]
        #[arg(value_parser = new_name)]
        name: Option<EnvName>,
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

/// Reads the name of a checkpoint that is to be made.
fn new_name(name: &str) -> Result<EnvName, String> {
    if name.contains('@') {
        return Err("@NUMBER means an older checkpoint of a name, which only a newer one makes; give the name without it".into());
    }
    name.parse().map_err(|e: NameError| format!("checkpoint name {name:?} {}", e.reason))
}

#[derive(Args)]
pub struct SaveArgs {
    /// Checkpoint name [default: the one given at the start, else the instance's name]
    #[arg(long, value_parser = new_name)]
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

const EVERY: &str = "\
auto picks the interval that loses least computing time (Young, Daly), from how
long a save stops the processes and from checkpoint.mtbf_hours of the
configuration. It begins after a minute.
The command ends when the instance does. `--checkpoint-every` of `skiff run`,
`skiff instance start` and `skiff job checkpoint-on-signal` runs it in the
background, also after the instance is restored or migrated.";

#[derive(Args)]
pub struct EveryArgs {
    /// Time between two checkpoints (30s, 10m, 2h, 1d), or auto
    #[arg(value_name = "TIME|auto")]
    pub interval: CheckpointInterval,
    /// Checkpoint name [default: the one given at the start, else the instance's name]
    #[arg(long, value_parser = new_name)]
    pub name: Option<EnvName>,
    /// How many checkpoints of this name to keep, or how old ones (30m, 12h, 7d, 2w), or both: 5,7d. Older ones are NAME@1, NAME@2 ...
    #[arg(long, value_name = "N|AGE", default_value = "1")]
    pub keep: Retention,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Instance, started with --checkpoint
    pub instance: EnvName,
}

/// What becomes of files outside the instance that its processes had open to be written, and that have changed since the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GrownFiles {
    /// Put back those of which the checkpoint has a copy, and cut those that were written at their end; what is there now is kept beside them.
    /// One that is opened to be appended to goes on behind what was written since
    #[default]
    Restore,
    /// Cut all that were only written at their end to the length that they had, and drop what was written since
    Truncate,
    /// Change none: one that is opened to be appended to goes on behind what was written since, and with any other nothing is restored
    Keep,
    /// Restore nothing if any has changed
    Refuse,
}

impl GrownFiles {
    /// The way's word on the command line.
    #[must_use]
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |word| word.get_name().to_owned())
    }

    /// By its word on the command line.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::from_str(word, false).ok()
    }
}

#[derive(Args)]
pub struct RestoreArgs {
    /// What to do with files elsewhere that have changed since: restore, truncate, keep or refuse [default: the configuration's
    /// checkpoint.files, else restore]
    #[arg(long, value_name = "WAY", hide_possible_values = true)]
    pub files: Option<GrownFiles>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_new_name_is_said_of_a_checkpoint() {
        assert!(new_name("sim.1").is_ok());
        for (name, said) in [("a@1", "older checkpoint"), ("../x", "checkpoint name \"../x\" holds a slash")]
        {
            let why = new_name(name).expect_err("refused");
            assert!(why.contains(said) && !why.contains("environment"), "{why}");
        }
    }
}
