//! The words of `skiff cluster`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use skiff_cluster::wire::Scratch;
use skiff_spec::network;

use super::{AppRun, Machines, setting};

#[derive(Subcommand)]
pub enum Cluster {
    /// Run a script in a cluster of containers, one on each host of a job or a list
    #[command(after_help = HELP)]
    Run(ClusterRun),
    #[command(flatten)]
    Machines(Machines),
    /// Jupyter for your browser, on the first node of the job that this is in
    #[command(after_help = super::app::HELP)]
    Notebook(AppRun),
    /// A desktop for your browser, likewise
    #[command(after_help = super::app::HELP)]
    Desktop(AppRun),
    /// On a host: make the container and look after it
    #[command(hide = true)]
    Agent(Agent),
}

const HELP: &str = "Hosts: those of the job of Slurm, PBS, LSF or Grid Engine that it runs in, or of --hostfile. The script \
runs in the first one's container; `ssh`, and mpirun of Open MPI and MPICH, reach the others without a flag. At its end all \
is removed, and its exit code is ours.\n\n\
Example: sbatch -N4 --wrap 'skiff cluster run --base image:my-mpi -- mpirun ./solver'";

#[derive(Args, Debug)]
pub struct ClusterRun {
    /// What lies below: host, image:IMAGE, or dir:PATH, a root that all hosts see
    #[arg(long, value_name = "BASE", default_value = super::BASE)]
    pub base: String,
    /// Take only the first N hosts
    #[arg(short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub nodes: Option<u32>,
    /// The hosts, one a line: HOST, `HOST slots=N` or HOST:N; reached by ssh
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Their network: host, or one of the site's (`skiff net list`)
    #[arg(long, visible_alias = "network", value_name = "NET", default_value_t)]
    pub net: network::Net,
    /// Mount a directory or file of each host: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Set a variable, or pass on one of yours: NAME[=VALUE]
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = setting())]
    pub env: Vec<OsString>,
    /// Start in this directory [default: where you are]
    #[arg(short = 'w', long = "workdir", visible_alias = "pwd", value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Be root inside, by ssh too; outside it is still you
    #[arg(long)]
    pub root: bool,
    /// Where changes go: a directory on each machine, or memory [default: its $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR|memory")]
    pub scratch: Option<Scratch>,
    /// How long the hosts may take to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print it as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// The script and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "SCRIPT")]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct Agent {
    /// The network of the container
    #[arg(long, default_value_t)]
    pub net: network::Net,
    /// Where it is said how to call back: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub call: Option<PathBuf>,
    /// The descriptor by which one who has called hands on what he and the head alone know
    #[arg(long, value_name = "FD")]
    pub secret: Option<i32>,
}
