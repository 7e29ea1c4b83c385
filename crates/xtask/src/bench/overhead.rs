//! What an environment costs a program that runs in it: the same program outside and inside in turn, in pairs.
//!
//! Files have a third place: a plain overlay that root mounts beside it. An environment's files are on an overlay because
//! that is what copy on write is; this tells what of the cost is the kernel's overlay and what is Skiff's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::Setting;
use super::live::RunningEnvironment;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_MEDIAN, Series};
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

/// Where a workload runs.
enum Place<'a> {
    /// On the host, in this directory.
    Host {
        user: RunAs<'a>,
        directory: PathBuf,
    },
    Inside(&'a RunningEnvironment),
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["sysbench", "hpcc", "mpirun", "fio"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-overhead")?;
    let live = RunningEnvironment::start(setting, "bench-overhead")?;
    live.bash(&workload::preparation(Path::new(INSIDE)))?;
    // The very same file, not one like it: where on the disk a file lies makes more difference than the limit allows.
    let upper = setting.user.home.join(".local/share/skiff/env").join(live.name).join("upper");
    let outside = upper.join(INSIDE.trim_start_matches('/'));
    ensure!(outside.join("file").exists(), "{}: the environment's upper is elsewhere", outside.display());
    let user = RunAs::User(&setting.user);
    let overlay = PlainOverlay::mount(&home, &outside)?;
    let places = [
        Place::Host { user, directory: outside },
        Place::Inside(&live),
        Place::Host { user, directory: overlay.root.clone() },
    ];

    let (mut series, mut claims) = (vec![], vec![]);
    for workload in workload::all(&home, args.seconds, args.hpl_size)? {
        if workload.name.contains(&args.only) {
            eprintln!("{}: {} rounds", workload.name, setting.rounds);
            measure(setting.rounds, &workload, &places, &mut series, &mut claims)?;
        }
    }
    ensure!(!claims.is_empty(), "--only {}: no such workload", args.only);
    let bars = claims.iter().map(|c| Bar::over_median(&c.name, "%", c.spread, c.limit)).collect();
    let title = "Lost inside an environment against the bare host, %".into();
    Ok((BenchResult { name: "overhead", title, machine, lines: OVER_MEDIAN, series, claims }, bars))
}

fn measure(
    rounds: usize,
    workload: &Workload,
    places: &[Place<'_>],
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    let places = if workload.on_files { places } else { &places[..2] };
    let mut samples = vec![vec![]; places.len()];
    for round in 0..rounds {
        // Another one begins each round, so that none always follows the same neighbour.
        for index in 0..places.len() {
            let index = (round + index) % places.len();
            let printed = places[index].run(workload)?;
            samples[index].push((workload.read)(&printed).with_context(|| workload.name.clone())?);
        }
    }
    let lost = |to: &[f64]| -> Vec<f64> {
        to.iter().zip(&samples[1]).map(|(to, i)| (to / i - 1.0) * 100.0).collect()
    };
    claims.push(LimitCheck::new(workload.name.as_str(), "%", &lost(&samples[0]), workload.limit));
    if let Some(overlay) = samples.get(2) {
        claims.push(LimitCheck::new(
            format!("{}, to an overlay", workload.name),
            "%",
            &lost(overlay),
            workload.limit,
        ));
    }
    for (place, samples) in ["host", "inside", "plain overlay"].into_iter().zip(samples) {
        series.push(Series::new(format!("{}, {place}", workload.name), workload.unit, samples));
    }
    Ok(())
}

impl Place<'_> {
    fn run(&self, workload: &Workload) -> anyhow::Result<String> {
        let script = |directory: &Path| {
            format!("export LC_ALL=C DIRECTORY={}; {}", directory.display(), workload.script)
        };
        match self {
            Place::Host { user, directory } => user.bash(&script(directory)),
            Place::Inside(live) => live.bash(&script(Path::new(INSIDE))),
        }
    }
}

/// An overlay as root may mount it anywhere, with the same files in its upper.
struct PlainOverlay {
    root: PathBuf,
}

impl PlainOverlay {
    fn mount(home: &UserDir, upper: &Path) -> anyhow::Result<Self> {
        let [lower, work, root] = ["lower", "work", "root"].map(|name| home.path.join(name));
        for directory in [&lower, &work, &root] {
            home.make(directory)?;
        }
        // Without an index the kernel allows an upper that is another overlay's too, which is sound here: no file is
        // made or removed while both are mounted.
        let options = format!(
            "index=off,lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        people::output(
            Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay"]).arg(&root),
            "mount",
        )?;
        Ok(Self { root })
    }
}

impl Drop for PlainOverlay {
    fn drop(&mut self) {
        if let Err(e) = people::output(Command::new("umount").arg(&self.root), "umount") {
            eprintln!("bench: {e:#}");
        }
    }
}
