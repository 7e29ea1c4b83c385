//! The words of `skiff instance`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use skiff_spec::name::EnvName;
use skiff_spec::network;

use super::{Contain, Inside, Output, PullWhen};

#[derive(Subcommand)]
pub enum Instance {
    /// Start a container in the background
    Start(Start),
    /// List them, those that have ended too
    #[command(visible_alias = "ls")]
    List(Output),
    /// Run a command in one
    Exec {
        #[command(flatten)]
        inside: Inside,
        /// Its name
        instance: EnvName,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Print what the command of one has written
    Logs {
        /// Go on until it ends
        #[arg(short, long)]
        follow: bool,
        /// Its name
        instance: EnvName,
    },
    /// End one: its command is asked to, and if it does not, all in it is killed
    Stop {
        /// How long to wait for its command
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
        time: u64,
        /// Its name
        instance: EnvName,
    },
    /// Remove what is kept of some that have ended
    #[command(visible_alias = "remove")]
    Rm {
        /// Their names
        #[arg(required = true, value_name = "INSTANCE")]
        instances: Vec<EnvName>,
        /// End them first if they run
        #[arg(short, long)]
        force: bool,
    },
}

pub const WORDS: &str = "\
OF is the first of these that fits:
  host            the host's root
  env:NAME        an environment, as it is now; what the instance changes stays in the instance
  image:IMAGE     an image, as `skiff run` takes it
  NAME            likewise an environment, if there is one of that name
  IMAGE           else an image
Without COMMAND an image runs what it is made for; of anything else, the instance is there to be entered.";

#[derive(Args)]
#[command(after_help = WORDS)]
pub struct Start {
    #[command(flatten)]
    pub inside: Inside,
    /// Let it be dumped by its user: root inside, its changes on the disk, no system call filter; =NAME is the checkpoint that it is
    /// saved into
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, conflicts_with = "me")]
    pub checkpoint: Option<Option<EnvName>>,
    /// Let an image's root take changes, which go with the instance
    #[arg(long)]
    pub writable: bool,
    /// Be this user inside, as in `skiff run`
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with = "me")]
    pub user: Option<String>,
    /// Run this in place of the image's entry point
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<OsString>,
    /// Pull the image before it is run
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub pull: PullWhen,
    /// Mount a directory or file of the host: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Its network: host, none, private, or one of the site's [default: the environment's, or host]
    #[arg(long, visible_alias = "network", value_name = "NET")]
    pub net: Option<network::Net>,
    #[command(flatten)]
    pub contain: Contain,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print it as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// What it is of: an image, an environment, or the host
    pub of: String,
    /// What it is to be called
    pub instance: EnvName,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}
