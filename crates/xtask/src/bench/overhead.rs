//! What an environment costs a program that runs in it: the same program outside and inside in turn, in pairs.

use std::path::Path;

use anyhow::{Context, ensure};

use super::Setting;
use super::live::Live;
use super::people::{self, Scratch, Who};
use super::picture::Bar;
use super::record::{Claim, Machine, OVER_MEDIAN, Record, Series};
use super::workload::{self, Workload};

#[derive(clap::Args)]
pub struct Args {
    /// Seconds of one measurement
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Unknowns of HPL
    #[arg(long, default_value_t = 1500)]
    hpl_size: u32,
    /// Only what has this in its name
    #[arg(long, default_value = "")]
    only: String,
}

/// In the upper: a directory of the base that nothing is mounted on.
const INSIDE: &str = "/opt/bench-overhead";

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(Record, Vec<Bar>)> {
    people::require(&["sysbench", "hpcc", "mpirun", "fio"])?;
    let machine = Machine::here()?;
    let home = Scratch::new(&setting.user, "bench-overhead")?;
    let live = Live::start(setting, "bench-overhead")?;
    let user = Who::User(&setting.user);
    live.bash(&workload::preparation(Path::new(INSIDE)))?;
    // The very same file, not one like it: where on the disk a file lies makes more difference than the limit allows.
    let upper = setting.user.home.join(".local/share/skiff/env").join(live.name).join("upper");
    let outside = upper.join(INSIDE.trim_start_matches('/'));
    ensure!(outside.join("file").exists(), "{}: the environment's upper is elsewhere", outside.display());

    let mut series = vec![];
    let mut claims = vec![];
    for workload in workload::all(&home, args.seconds, args.hpl_size)? {
        if !workload.name.contains(&args.only) {
            continue;
        }
        eprintln!("{}: {} pairs", workload.name, setting.rounds);
        let [host, inside] = pairs(setting.rounds, &workload, user, &outside, &live)?;
        let lost: Vec<_> = host.iter().zip(&inside).map(|(h, i)| (h / i - 1.0) * 100.0).collect();
        claims.push(Claim::new(format!("{}, lost inside", workload.name), "%", &lost, workload.limit));
        series.push(Series::new(format!("{}, host", workload.name), workload.unit, host));
        series.push(Series::new(format!("{}, inside", workload.name), workload.unit, inside));
    }
    ensure!(!claims.is_empty(), "--only {}: no such workload", args.only);
    let bars = claims
        .iter()
        .map(|c| Bar::over_median(c.name.trim_end_matches(", lost inside"), "%", c.spread, c.limit))
        .collect();
    let title = "Lost inside an environment against the bare host, %".into();
    Ok((Record { name: "overhead", title, machine, lines: OVER_MEDIAN, series, claims }, bars))
}

/// `[host, inside]`; who goes first changes with each pair.
fn pairs(
    rounds: usize,
    workload: &Workload,
    user: Who<'_>,
    outside: &Path,
    live: &Live,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let scripts = [outside.display().to_string(), INSIDE.into()]
        .map(|directory| format!("export LC_ALL=C DIRECTORY={directory}; {}", workload.script));
    let mut samples = [vec![], vec![]];
    for round in 0..rounds {
        for index in [round % 2, (round + 1) % 2] {
            let printed = if index == 0 { user.bash(&scripts[0])? } else { live.bash(&scripts[1])? };
            samples[index].push((workload.read)(&printed).with_context(|| workload.name.clone())?);
        }
    }
    Ok(samples)
}
