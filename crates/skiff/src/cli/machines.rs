//! The words of `skiff cluster` for clusters that stay.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use skiff_cluster::local::members::Member;
use skiff_cluster::wire::Scratch;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;

use super::{BASE, Inside, Output};

#[derive(Subcommand)]
pub enum Machines {
    /// Make a cluster of containers, on this machine or the hosts of an allocation, ready for srun
    Up(Up),
    /// Give it more nodes
    Add {
        /// Its name
        name: EnvName,
        /// How many
        #[arg(short = 'N', long, value_name = "N", value_parser = nodes())]
        nodes: u16,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Take nodes away, with what runs on them
    Remove {
        /// Its name
        name: EnvName,
        /// How many: those that came last
        #[arg(short = 'N', long, value_name = "N", value_parser = nodes(), required_unless_present = "node")]
        nodes: Option<u16>,
        /// This one
        #[arg(long, value_name = "NODE", conflicts_with = "nodes")]
        node: Vec<Member>,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show its nodes; without NAME, the clusters there are
    Status {
        /// Its name
        name: Option<EnvName>,
        #[command(flatten)]
        output: Output,
    },
    /// Start your shell on one of its nodes
    Enter {
        #[command(flatten)]
        inside: Inside,
        /// The node
        #[arg(long, value_name = "NODE", default_value_t = Member::Controller)]
        node: Member,
        /// Its name
        name: EnvName,
    },
    /// Run a command on one of its nodes
    Exec {
        #[command(flatten)]
        inside: Inside,
        /// The node
        #[arg(long, value_name = "NODE", default_value_t = Member::Controller)]
        node: Member,
        /// Its name
        name: EnvName,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// End it, with everything in it
    Down {
        /// Its name
        name: EnvName,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// On a node: start what it is there for
    #[command(subcommand, hide = true)]
    Daemon(Daemon),
    /// Run a command of ours on the controller
    #[command(hide = true)]
    Tell {
        /// The cluster's name
        name: EnvName,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<OsString>,
    },
}

fn nodes() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(skiff_cluster::local::members::MOST))
}

const UP: &str = "\
The controller is called ctl, the nodes n1, n2 ... Whoever enters is root inside and himself outside, and so are his jobs. What is changed on a
node goes with it; your home and what the site mounts are there.

  skiff cluster up lab --slurm --nodes 4
  skiff cluster exec lab -- srun -N4 hostname
  skiff cluster down lab";

#[derive(Args)]
#[command(after_help = UP)]
pub struct Up {
    /// Its name
    pub name: EnvName,
    /// With a Slurm of its own: the base's slurmctld, slurmd and munged
    #[arg(long, required = true)]
    pub slurm: bool,
    /// How many nodes besides the controller [default: one on each host]
    #[arg(short = 'N', long, value_name = "N", value_parser = nodes())]
    pub nodes: Option<u16>,
    /// On these hosts, one a line, reached by ssh [default: those of the allocation that this is]
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// On this machine, though this is an allocation
    #[arg(long, conflicts_with = "hostfile")]
    pub here: bool,
    /// Their network: host, or one of the site's [default: host; on one machine, one of its own]
    #[arg(long, visible_alias = "network", value_name = "NET")]
    pub net: Option<Net>,
    /// How long the hosts may take to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// What lies below each: host, image:IMAGE, or dir:PATH
    #[arg(long, value_name = "BASE", default_value = BASE)]
    pub base: String,
    /// How many processors each node says it has [default: its machine's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub cpus: Option<u16>,
    /// Mount a directory or file of the host on each: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Where changes go: a directory on each machine, or memory [default: its $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR|memory")]
    pub scratch: Option<Scratch>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print it as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Daemon {
    /// Authentication and the controller
    Controller {
        /// With workers that are elsewhere
        #[arg(long)]
        alone: bool,
    },
    /// A worker of this name
    Worker {
        /// The name
        name: Member,
        /// With nobody to authenticate it but itself
        #[arg(long)]
        alone: bool,
    },
    /// On the controller: wait until these workers take jobs
    Ready {
        /// Their names
        workers: Vec<Member>,
    },
}
