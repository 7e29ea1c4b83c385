//! The words of `skiff cluster`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use skiff_plan::inside::ProcessArgs;
use skiff_spec::network;
use skiff_spec::scratch::ScratchPlace;

use crate::root::BASE;
use crate::{AppRunArgs, HostArgs, NodesCommand};

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Run a script in a cluster of containers, one on each host of a job or a list
    #[command(after_help = HELP)]
    Run(ClusterRunArgs),
    #[command(flatten)]
    Machines(NodesCommand),
    /// Run Jupyter on the first node of the current job
    #[command(after_help = super::app::HELP)]
    Notebook(AppRunArgs),
    /// Run a desktop on the first node of the current job
    #[command(after_help = super::app::HELP)]
    Desktop(AppRunArgs),
    /// On a host: create the container and supervise it
    #[command(hide = true)]
    Agent(AgentArgs),
}

const HELP: &str = "The hosts are those of the surrounding job (Slurm, PBS, LSF, Grid Engine), or of --hostfile. The script runs in the first \
host's container; `ssh` and the mpirun of Open MPI and MPICH reach the others without options. When it ends, all containers \
are removed, and the script's exit code is returned.";

#[derive(Args, Debug)]
#[command(mut_arg("net", |net| net.help("Network: host, or a site network (`skiff net list`) [default: host]")))]
#[command(mut_arg("mounts", |mounts| mounts.help("Mount a directory or file of each host: SOURCE[:TARGET[:ro]]")))]
#[command(mut_arg("root", |root| root.help("Run as root inside, by ssh too")))]
#[command(mut_arg("me", |me| me.help("Run as yourself, unprivileged (the default)")))]
pub struct ClusterRunArgs {
    /// Base: host, image:IMAGE, or dir:PATH (a root that all hosts see)
    #[arg(long, value_name = "BASE", default_value = BASE)]
    pub base: String,
    /// Use only the first N hosts
    #[arg(short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub nodes: Option<u32>,
    /// File of hosts, one per line: HOST, `HOST slots=N` or HOST:N; reached by ssh
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub inside: ProcessArgs,
    /// Where changes are written: a directory on each host, or memory [default: $TMPDIR or /tmp there]
    #[arg(long, value_name = "DIR|memory")]
    pub scratch: Option<ScratchPlace>,
    /// How long to wait for the hosts
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Script and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "SCRIPT")]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct AgentArgs {
    /// Network of the container
    #[arg(long, default_value_t)]
    pub net: network::Net,
    /// File that says how to call back, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub call: Option<PathBuf>,
}
