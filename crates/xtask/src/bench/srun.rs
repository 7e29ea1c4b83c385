//! What an environment adds to the smallest job: `srun -N2 hostname`, its snapshot already on the nodes.

use std::time::Instant;

use super::Setting;
use super::live::RunningEnvironment;
use super::people::{self, RunAs};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats;

/// Milliseconds.
const LIMIT: f64 = 60.0;

#[derive(clap::Args)]
pub struct Args {
    /// How many nodes
    #[arg(long, default_value_t = 2)]
    nodes: usize,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["srun"])?;
    let machine = HostInfo::here()?;
    let live = RunningEnvironment::start(setting, "bench-srun")?;
    // Something to deploy; then once, so that the nodes have it.
    live.bash("mkdir -p /opt/bench && seq 100000 >/opt/bench/data")?;
    let srun = |environment: &str| format!("srun --environment={environment} -N{} hostname", args.nodes);
    let (without, with) = (srun("none"), srun(live.name));
    let user = RunAs::User(&setting.user);
    user.bash(&with)?;

    let mut samples = [vec![], vec![]];
    for round in 0..setting.rounds {
        for index in [round % 2, (round + 1) % 2] {
            let began = Instant::now();
            user.bash([&without, &with][index])?;
            samples[index].push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let added = stats::differences(&samples[1], &samples[0]);
    let [without, with] = samples;
    let series = vec![
        Series::new("without environment", "ms", without),
        Series::new("in an environment, cached", "ms", with),
    ];
    let bars =
        series.iter().enumerate().map(|(i, s)| Bar::over_all(&s.name, "ms", s.spread, i == 1)).collect();
    let title = format!("srun -N{} hostname, ms", args.nodes);
    let claims = vec![LimitCheck::new("added by the environment", "ms", &added, LIMIT)];
    Ok((BenchResult { name: "srun", title, machine, lines: OVER_ALL, series, claims }, bars))
}
