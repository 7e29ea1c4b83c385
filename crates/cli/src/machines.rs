//! The words of `skiff cluster` for clusters that stay.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use skiff_plan::inside::ProcessArgs;
use skiff_spec::members::Member;
use skiff_spec::name::EnvName;
use skiff_spec::scratch::ScratchPlace;

use crate::root::BASE;
use crate::{HostArgs, OutputArgs};

#[derive(Subcommand)]
pub enum NodesCommand {
    /// Create a cluster of containers, on this host or the hosts of an allocation, ready for srun
    Up(UpArgs),
    /// Add nodes
    Add {
        /// Cluster name
        name: EnvName,
        /// How many nodes to add
        #[arg(short = 'N', long, value_name = "N", value_parser = nodes())]
        nodes: u16,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove nodes and end their work
    Remove {
        /// Cluster name
        name: EnvName,
        /// How many nodes to remove, the last ones first
        #[arg(short = 'N', long, value_name = "N", value_parser = nodes(), required_unless_present = "node")]
        nodes: Option<u16>,
        /// Node to remove
        #[arg(long, value_name = "NODE", conflicts_with = "nodes")]
        node: Vec<Member>,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the nodes of a cluster; without NAME, list clusters
    Status {
        /// Cluster name
        name: Option<EnvName>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Start your shell on a node
    Enter {
        #[command(flatten)]
        inside: ProcessArgs,
        /// Node name
        #[arg(long, value_name = "NODE", default_value_t = Member::Controller)]
        node: Member,
        /// Cluster name
        name: EnvName,
    },
    /// Run a command on a node
    Exec {
        #[command(flatten)]
        inside: ProcessArgs,
        /// Node name
        #[arg(long, value_name = "NODE", default_value_t = Member::Controller)]
        node: Member,
        /// Cluster name
        name: EnvName,
        /// Command and its arguments
        #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Stop and remove a cluster
    Down {
        /// Cluster name
        name: EnvName,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// On a node: start its Slurm daemons
    #[command(subcommand, hide = true)]
    Daemon(DaemonCommand),
    /// Run a Skiff command on the controller
    #[command(hide = true)]
    Tell {
        /// Cluster name
        name: EnvName,
        /// Command and its arguments
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<OsString>,
    },
}

fn nodes() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(skiff_spec::members::MOST))
}

const UP: &str = "\
The controller is called ctl, the nodes n1, n2 ... You are root inside, and yourself outside; so are your jobs. Changes on a
node are discarded with it. Your home and the site's mounts are there.";

#[derive(Args)]
#[command(after_help = UP)]
#[command(mut_arg("net", |net| net.help(
    "Network: host, or a site network [default: host; on one host, a private one]"
)))]
#[command(mut_arg("mounts", |mounts| mounts.help(
    "Mount a host directory or file on each node: SOURCE[:TARGET[:ro]]"
)))]
pub struct UpArgs {
    /// Cluster name
    pub name: EnvName,
    /// Run a Slurm in it: the base's slurmctld, slurmd and munged
    #[arg(long, required = true)]
    pub slurm: bool,
    /// Number of nodes besides the controller [default: one on each host]
    #[arg(short = 'N', long, value_name = "N", value_parser = nodes())]
    pub nodes: Option<u16>,
    /// File of hosts, one per line, reached by ssh [default: the hosts of the current allocation]
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Use this host only, also within an allocation
    #[arg(long, conflicts_with = "hostfile")]
    pub here: bool,
    #[command(flatten)]
    pub host: HostArgs,
    /// How long to wait for the hosts
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// Base of each node: host, image:IMAGE, or dir:PATH
    #[arg(long, value_name = "BASE", default_value = BASE)]
    pub base: String,
    /// Processors that each node reports to Slurm [default: its host's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub cpus: Option<u16>,
    /// Where changes are written: a directory on each host, or memory [default: $TMPDIR or /tmp there]
    #[arg(long, value_name = "DIR|memory")]
    pub scratch: Option<ScratchPlace>,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum DaemonCommand {
    /// Start munged and slurmctld
    Controller {
        /// Expect the workers on other hosts
        #[arg(long)]
        alone: bool,
    },
    /// Start a worker
    Worker {
        /// Worker name
        name: Member,
        /// Start its own munged
        #[arg(long)]
        alone: bool,
    },
    /// On the controller: wait until workers accept jobs
    Ready {
        /// Worker names
        workers: Vec<Member>,
    },
}
