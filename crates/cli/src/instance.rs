//! The words of `skiff instance`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use skiff_plan::inside::ProcessArgs;
use skiff_spec::checkpoint::CheckpointInterval;
use skiff_spec::name::EnvName;

use crate::{DryRunArgs, ListArgs, LogsArgs, RootArgs};

#[derive(Subcommand)]
pub enum InstanceCommand {
    /// Start a container in the background
    Start(Box<StartArgs>),
    /// List instances, running and ended
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Run a command in an instance
    Exec {
        #[command(flatten)]
        inside: ProcessArgs,
        /// Instance name
        instance: EnvName,
        /// Command and its arguments
        #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Print the output of an instance's command
    Logs(LogsArgs),
    /// Stop an instance: ask its command to end, then kill what is left
    Stop {
        /// How long to wait before killing
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
        time: u64,
        /// Instance name
        instance: EnvName,
    },
    /// Remove ended instances
    #[command(visible_alias = "remove")]
    Rm {
        /// Instance names
        #[arg(required = true, value_name = "INSTANCE")]
        instances: Vec<EnvName>,
        /// Stop them first if they are running
        #[arg(short, long)]
        force: bool,
    },
}

pub const WORDS: &str = "\
OF is the first of these that matches:
  host            the host's root
  env:NAME        an environment as it is now; the instance's changes stay in the instance
  image:IMAGE     an image, as for `skiff run`
  NAME            an environment of that name
  IMAGE           an image
Without COMMAND an image runs its own command; any other instance waits to be entered.";

#[derive(Args)]
#[command(after_help = WORDS)]
#[command(mut_arg("net", |net| net.help(
    "Network: host, none, private, or a site network [default: the environment's, or host]"
)))]
#[command(mut_arg("writable", |writable| writable.help("Make the image writable; changes are discarded with the instance")))]
pub struct StartArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Make it checkpointable: root inside, changes on disk, no system call filter. =NAME is the checkpoint that it is
    /// saved to
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, conflicts_with = "me")]
    pub checkpoint: Option<Option<EnvName>>,
    /// Make it checkpointable, and save it every so often while it runs: 30s, 10m, 2h, 1d, or auto
    #[arg(long, value_name = "TIME|auto", conflicts_with = "me")]
    pub checkpoint_every: Option<CheckpointInterval>,
    /// Run this program instead of the image's entry point
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<OsString>,
    #[command(flatten)]
    pub show: DryRunArgs,
    /// Image or environment to run, or host
    pub of: String,
    /// Instance name
    pub instance: EnvName,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

impl StartArgs {
    /// Whether it is to be made so that it can be saved.
    pub fn checkpointable(&self) -> bool {
        self.checkpoint.is_some() || self.checkpoint_every.is_some()
    }
}
