//! A Slurm of one's own: how long until its nodes have done the first job, and until one more node has.

use std::time::Instant;

use super::Setting;
use super::people::{self, RunAs};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};

/// Seconds: two nodes, many, one more.
const LIMITS: [f64; 3] = [1.5, 5.0, 0.5];

#[derive(clap::Args)]
pub struct Args {
    /// How many are many
    #[arg(long, default_value_t = 16)]
    nodes: usize,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["slurmctld", "slurmd", "munged"])?;
    let machine = HostInfo::here()?;
    let user = RunAs::User(&setting.user);
    let skiff = &setting.skiff;
    let srun = |nodes: usize| format!("{skiff} cluster exec bench -- srun -N{nodes} hostname");
    let timed = |command: &str| -> anyhow::Result<f64> {
        let began = Instant::now();
        user.bash(command)?;
        Ok(began.elapsed().as_secs_f64())
    };
    let mut samples = [vec![], vec![], vec![]];
    for round in 0..setting.rounds {
        for index in [round % 2, (round + 1) % 2] {
            let nodes = [2, args.nodes][index];
            samples[index].push(timed(&format!(
                "{skiff} cluster up bench --slurm --nodes {nodes} && {}",
                srun(nodes)
            ))?);
            if index == 0 {
                samples[2].push(timed(&format!("{skiff} cluster add bench --nodes 1"))?);
            }
            user.bash(&format!("{skiff} cluster down bench"))?;
        }
    }
    let names = [
        "2 nodes to the end of the first srun".to_owned(),
        format!("{} nodes to the end of the first srun", args.nodes),
        "one more node takes jobs".to_owned(),
    ];
    let claims = names.iter().zip(&samples).zip(LIMITS);
    let claims = claims.map(|((name, samples), limit)| LimitCheck::new(name, "s", samples, limit)).collect();
    let series: Vec<Series> = names.iter().zip(samples).map(|(name, s)| Series::new(name, "s", s)).collect();
    let bars = series.iter().map(|s| Bar::over_all(&s.name, "s", s.spread, true)).collect();
    let title = "a Slurm of one's own, s".to_owned();
    Ok((BenchResult { name: "slurm-up", title, machine, lines: OVER_ALL, series, claims }, bars))
}
