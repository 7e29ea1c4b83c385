//! The words of `skiff migrate`.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use skiff_spec::name::EnvName;

use crate::OutputArgs;

pub const HELP: &str = "\
The instance must have been started with --checkpoint. NODE is a node of the
current job, or a host that ssh reaches without a prompt. Skiff and CRIU must be
installed there.";

#[derive(Args)]
pub struct MigrateArgs {
    /// How memory is transferred
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// When to compress memory
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub compress: Compress,
    /// Print what would be moved, how, and what prevents it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Instance name
    pub instance: EnvName,
    /// Destination host
    pub node: String,
}

#[derive(Args)]
pub struct DrainArgs {
    /// Destination hosts, used in turn [default: the other nodes of the current job]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub to: Vec<String>,
    /// How memory is transferred
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Print what would be moved where, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Host to empty: this one, or one as for `skiff migrate`
    pub node: String,
}

/// When memory is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// If the link is slower than compression
    #[default]
    Auto,
    /// Never
    Off,
}

/// How the memory of processes is transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Directly from memory to memory, while the processes are stopped
    #[default]
    Diskless,
    /// Directly, most of it before the processes stop: short downtime
    Precopy,
    /// By files in your home, which both hosts must see
    Disk,
}

impl Mode {
    /// Whether memory goes over the network.
    pub fn is_diskless(self) -> bool {
        matches!(self, Self::Diskless | Self::Precopy)
    }
}
