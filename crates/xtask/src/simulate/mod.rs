//! How long a snapshot takes to get to very many nodes, by each way: a model, since no test bed has so many.

mod engine;
mod model;
mod picture;
mod ways;

use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use model::Model;

/// The command line of `cargo xtask simulate`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    simulation: Simulation,
}

#[derive(Subcommand)]
enum Simulation {
    /// A snapshot on its way to all nodes of a job (docs/scale.md)
    Deploy(DeployArgs),
}

#[derive(clap::Args)]
struct DeployArgs {
    #[command(flatten)]
    model: Model,
    /// Numbers of nodes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000, 100_000])]
    nodes: Vec<usize>,
    /// What decides which nodes are slow, and which fail
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the picture goes
    #[arg(long, default_value = "target/bench/scale.svg")]
    out: PathBuf,
}

/// Runs a simulation and prints what comes out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Simulation::Deploy(args) = &args.simulation;
    println!(
        "{:26} {:>8} {:>10} {:>10} {:>10} {:>12}",
        "seconds until nodes are ready", "nodes", "half", "99 %", "all", "depot read"
    );
    let mut lines = vec![];
    for way in &ways::ALL {
        let mut points = vec![];
        for nodes in args.nodes.iter().filter(|nodes| **nodes > 0) {
            let mut times = (way.run)(&args.model, *nodes, args.seed);
            times.sort_by(f64::total_cmp);
            let at = |share: f64| {
                times.get(((times.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied()
            };
            let [half, most, all] = [0.5, 0.99, 1.0].map(|share| at(share).unwrap_or(f64::NAN));
            let reads = (way.reads)(&args.model, *nodes);
            println!("{:29} {nodes:8} {half:10.2} {most:10.2} {all:10.2} {reads:10.0} x", way.name);
            points.push((*nodes as f64, most));
        }
        lines.push((way.name, points));
    }
    if let Some(directory) = args.out.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let title =
        format!("{:.1} GB to all nodes: seconds until 99 % of them are ready", args.model.bytes / 1e9);
    std::fs::write(&args.out, picture::draw(&title, &lines))
        .with_context(|| format!("writing {}", args.out.display()))?;
    println!("\n{} written", args.out.display());
    Ok(())
}
