//! The words of `skiff migrate`.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use skiff_spec::name::EnvName;

use super::Output;

pub const HELP: &str = "\
The instance was started with --checkpoint. NODE is a node of the job that this
is in, or a machine that you log in to by ssh without a question; Skiff and CRIU
are installed there.";

#[derive(Args)]
pub struct Migrate {
    /// By which way its memory goes
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Whether its memory is packed on the way where the link is slow, which is found out
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub compress: Compress,
    /// Print what would be moved, how, and what is in the way, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    /// The instance
    pub instance: EnvName,
    /// The other machine
    pub node: String,
}

#[derive(Args)]
pub struct Drain {
    /// Where they go, in turn [default: the other nodes of this job]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub to: Vec<String>,
    /// By which way their memory goes
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Print what would be moved where, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    /// The machine: this one, or one as for `skiff migrate`
    pub node: String,
}

/// Whether memory is packed on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// Where the link is slower than packing
    #[default]
    Auto,
    /// Never
    Off,
}

/// By which way the memory of processes goes to another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Over the network, from memory to memory
    #[default]
    Diskless,
    /// The same, most of it while they still run: they stand still for a moment only
    Precopy,
    /// By files in your home, which both machines must see
    Disk,
    /// Behind the processes, when they need it: refused, the kernel lets no ordinary user do that
    Lazy,
}

impl Mode {
    /// Whether memory goes over the network.
    pub fn is_diskless(self) -> bool {
        matches!(self, Self::Diskless | Self::Precopy)
    }
}
