//! The benchmarks behind the promises about speed. Everything is measured in pairs: what it is compared with runs in the
//! same rounds, alternating, because absolute figures move with the machine and the hour.
//!
//! They run on the login node of a test bed, where an installed Skiff, ordinary users and Slurm are; outside of one,
//! this brings one up around itself.

mod apps;
mod checkpoint;
mod cluster;
mod deploy;
mod gluster;
mod jobs;
pub(crate) mod live;
mod migrate;
mod net;
mod overhead;
pub mod people;
mod picture;
mod pull;
mod read;
mod result;
mod slurm_up;
mod srun;
mod start;
mod stats;
mod workload;
mod write;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Subcommand;

use crate::testbed;

/// Rounds where nobody has said how many.
const ROUNDS: usize = 11;

/// The command line of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
    /// How many alternating rounds [default: 11; 15 of `jobs --calls`, 41 of `jobs --devices`]
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// The ordinary user who starts everything
    #[arg(long, global = true, default_value = "alice")]
    user: String,
    /// The program measured
    #[arg(long, global = true, default_value = "/usr/bin/skiff")]
    skiff: PathBuf,
    /// Where NAME.json and NAME.svg go
    #[arg(long, global = true, default_value = "target/bench")]
    out: PathBuf,
    /// Fail when a limit is exceeded, instead of only saying so
    #[arg(long, global = true)]
    strict: bool,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Starting 100 environments in a row, entering a live one, starting 8 at once
    Start(start::Args),
    /// Processor, memory, HPL and files, inside against the bare host
    Overhead(overhead::Args),
    /// From a registry to something that runs, and the first run of it
    Pull(pull::Args),
    /// A large import and many small files from a mounted image, against ext4 and squashfs
    Read(read::Args),
    /// `srun -N2 hostname` in an environment against the same without
    Srun(srun::Args),
    /// System calls of a job's tasks in an environment and a container, and the start of tasks in them, against the bare host
    Jobs(jobs::Args),
    /// From a submission to the command on all nodes, against rsync, tar over ssh, sbcast and cp
    Deploy(deploy::Args),
    /// An empty MPI program in a cluster of containers against the bare hosts
    Cluster(cluster::Args),
    /// The same with its root file system and home on GlusterFS, warm and cold
    Gluster(gluster::Args),
    /// An instance that goes to another node: over the network, by files, by CRIU's own page server
    Migrate(migrate::Args),
    /// A checkpoint's size, and how fast it is saved and restored, against a plain write and read of the same bytes
    Checkpoint(checkpoint::Args),
    /// HPL, GROMACS, LAMMPS and AutoDock Vina that go to another node in their middle, against the same undisturbed
    Apps(apps::Args),
    /// Messages, HPL and a flow of water between two containers, on each kind of network, against the bare hosts
    Net(net::Args),
    /// The ways to write much data to the disk, against each other
    Write(write::Args),
    /// A Slurm of one's own: until the first job on 2 and 16 nodes, and until one more node
    SlurmUp(slurm_up::Args),
}

/// What every benchmark needs to know.
pub(crate) struct Setting {
    pub rounds: usize,
    /// If somebody has said how many.
    pub asked_rounds: Option<usize>,
    pub user: people::TestUser,
    pub skiff: String,
}

/// Runs one benchmark, in a test bed made for it unless this is one.
pub fn run(args: Args) -> anyhow::Result<()> {
    ensure!(
        rustix::process::getuid().is_root(),
        "benchmarks need root, for the test bed and to become {}",
        args.user
    );
    ensure!(args.rounds != Some(0), "--rounds must not be 0");
    if !testbed::is_inside() {
        match &args.benchmark {
            Benchmark::Pull(args) => pull::prepare(args)?,
            Benchmark::Read(args) => read::prepare(args)?,
            Benchmark::Net(args) => net::prepare(args)?,
            Benchmark::Apps(args) => apps::prepare(args)?,
            Benchmark::Gluster(args) => gluster::prepare(args)?,
            _ => {}
        }
        let nodes = match &args.benchmark {
            Benchmark::Cluster(args) => args.most(),
            Benchmark::Deploy(args) => args.most(),
            _ => 2,
        };
        return testbed::run_again_inside(&["--nodes", &nodes.to_string()], &[]);
    }
    let setting = Setting {
        rounds: args.rounds.unwrap_or(ROUNDS),
        asked_rounds: args.rounds,
        user: people::TestUser::find(&args.user)?,
        skiff: args.skiff.to_str().context("--skiff is not UTF-8")?.into(),
    };
    let (record, bars) = match &args.benchmark {
        Benchmark::Start(args) => start::run(&setting, args)?,
        Benchmark::Overhead(args) => overhead::run(&setting, args)?,
        Benchmark::Pull(args) => pull::run(&setting, args)?,
        Benchmark::Read(args) => read::run(&setting, args)?,
        Benchmark::Srun(args) => srun::run(&setting, args)?,
        Benchmark::Jobs(args) => jobs::run(&setting, args)?,
        Benchmark::Cluster(args) => cluster::run(&setting, args)?,
        Benchmark::Deploy(args) => deploy::run(&setting, args)?,
        Benchmark::Migrate(args) => migrate::run(&setting, args)?,
        Benchmark::Checkpoint(args) => checkpoint::run(&setting, args)?,
        Benchmark::Gluster(_) => gluster::run(&setting)?,
        Benchmark::Net(args) => net::run(&setting, args)?,
        Benchmark::Apps(args) => apps::run(&setting, args)?,
        Benchmark::SlurmUp(args) => slurm_up::run(&setting, args)?,
        Benchmark::Write(args) => write::run(&setting, args)?,
    };
    record.publish(&args.out, &bars)?;
    let over: Vec<_> = record
        .claims
        .iter()
        .filter(|c| c.verdict == result::Verdict::Over)
        .map(|c| c.name.as_str())
        .collect();
    ensure!(over.is_empty() || !args.strict, "over the limit: {}", over.join(", "));
    Ok(())
}
