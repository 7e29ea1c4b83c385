//! Flags that ask something of an environment's root or of the command in it. Each is declared here once, and each command that takes it
//! has the group that it is in.

use clap::Args;
use skiff_plan::get::PullWhen;
use skiff_plan::inside::ProcessArgs;
use skiff_spec::network::Net;

/// What can be asked of every environment that is made for what runs in it.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct RootArgs {
    #[command(flatten)]
    pub inside: ProcessArgs,
    /// Make the image writable; changes are discarded
    #[arg(long)]
    pub writable: bool,
    /// Run as this user of the image, by name or number, mapped to your subordinate ids [default with --root: the image's user, or root]
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with = "me")]
    pub user: Option<String>,
    /// When to pull the image
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub pull: PullWhen,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub contain: ContainArgs,
}

/// What of the host an environment is connected to.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct HostArgs {
    /// Mount a host directory or file: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Network: host, none, private (outgoing connections only), or a site network (`skiff net list`) [default: host]
    #[arg(long, visible_alias = "network", value_name = "NET")]
    pub net: Option<Net>,
}

/// What of the host is left out; the words and their meaning are Apptainer's.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainArgs {
    /// Hide the host's files, devices and commands: empty home, minimal /dev, no mounts but your own
    #[arg(long)]
    pub contain: bool,
    /// Same as --contain --cleanenv
    #[arg(short = 'C', long)]
    pub containall: bool,
    /// Do not mount your home
    #[arg(long)]
    pub no_home: bool,
}

/// Whether something is only shown.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRunArgs {
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}
