//! From a submission to the command that runs on all nodes, with something new in the environment, against the ways to copy the same files
//! there. All copies begin at files in the page cache and end on the nodes' disks, which are those of one machine.
//!
//! The depot lies on a file system that all nodes share, and in the test bed that is a directory of the same machine. So nothing of
//! Skiff's goes over the nodes' network devices, and a limit on these (`tc`) would hold up only what it is compared with: there is none.

mod scenario;
mod ways;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Setting;
use super::live::RunningEnvironment;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats::{self, Spread};
use scenario::{Scenario, Workplace};
use ways::{BARE, PEERS, Peers, SKIFF};

/// Longer than the clock of file times stands still: so that a change can be told by its time.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Args {
    /// On how many nodes
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8])]
    nodes: Vec<usize>,
    /// What is new; without, all
    #[arg(long, value_delimiter = ',', value_enum)]
    scenarios: Vec<Scenario>,
    /// How many small files, of 1,900 bytes
    #[arg(long, default_value_t = 55_000)]
    small_files: usize,
    /// Megabytes of the large tree, in files of one
    #[arg(long, default_value_t = 300)]
    tree_mb: usize,
}

impl Args {
    /// How many the test bed must have.
    pub fn most(&self) -> usize {
        self.nodes.iter().copied().max().unwrap_or(1)
    }
}

/// What is measured of one scenario on so many nodes: seconds by way, and bytes.
#[derive(Default)]
struct Measured {
    seconds: BTreeMap<&'static str, Vec<f64>>,
    sent: Vec<f64>,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["srun", "salloc", "sbcast", "rsync", "tar", "ssh", "python3"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-deploy")?;
    let live = RunningEnvironment::start(setting, "bench-deploy")?;
    let peers = Peers::prepare(setting, args.most(), &home.path)?;
    let place = Workplace { live: &live, home: &home, small_files: args.small_files, tree_mb: args.tree_mb };
    let chosen = if args.scenarios.is_empty() { Scenario::ALL.to_vec() } else { args.scenarios.clone() };
    let (mut series, mut claims, mut bars) = (vec![], vec![], vec![]);
    for scenario in chosen {
        place.begin(scenario)?;
        for nodes in &args.nodes {
            let measured = rounds(setting, &place, &peers, scenario, *nodes)?;
            claims.extend(limits(scenario, *nodes, &measured));
            let prefix = format!("{nodes} nodes, {}", scenario.title());
            for (way, samples) in measured.seconds {
                bars.push(Bar::over_all(
                    &format!("{prefix}: {way}"),
                    "s",
                    Spread::of(&samples),
                    way == SKIFF,
                ));
                series.push(Series::new(format!("{prefix}: {way}"), "s", samples));
            }
            series.push(Series::new(format!("{prefix}: sent"), "kB", measured.sent));
        }
        place.end(scenario)?;
    }
    let title = "From a submission to the command on all nodes, s".into();
    Ok((BenchResult { name: "deploy", title, machine, lines: OVER_ALL, series, claims }, bars))
}

fn rounds(
    setting: &Setting,
    place: &Workplace<'_>,
    peers: &Peers,
    scenario: Scenario,
    nodes: usize,
) -> anyhow::Result<Measured> {
    let user = RunAs::User(&setting.user);
    let submit = |environment: &str| {
        format!("srun --environment={environment} {} --ntasks-per-node=1 true", ways::option(nodes))
    };
    let mut measured = Measured::default();
    let ways: Vec<&'static str> =
        [SKIFF, BARE].into_iter().chain(PEERS.into_iter().filter(|way| scenario.has(way))).collect();
    // So that all nodes have what was there before.
    user.bash(&submit(place.live.name))?;
    for round in 0..setting.rounds {
        eprintln!("{}: {nodes} nodes, round {} of {}", scenario.title(), round + 1, setting.rounds);
        begin_round(place, peers, scenario, nodes, round)?;
        for turn in 0..ways.len() {
            let way = ways[(round + turn) % ways.len()];
            let before = if way == SKIFF { place.depot_bytes()? } else { 0 };
            let began = Instant::now();
            match way {
                SKIFF => drop(user.bash(&submit(place.live.name))?),
                BARE => drop(user.bash(&submit("none"))?),
                peer => peers.bring(peer, nodes, &place.source(scenario))?,
            }
            measured.seconds.entry(way).or_insert_with(Vec::new).push(began.elapsed().as_secs_f64());
            if way == SKIFF {
                let sent = place.depot_bytes()?.saturating_sub(before);
                measured.sent.push(sent as f64 / 1e3);
            }
        }
    }
    peers.clear(nodes).context("removing the copies")?;
    Ok(measured)
}

/// Gives the nodes the state before the change, and makes that.
fn begin_round(
    place: &Workplace<'_>,
    peers: &Peers,
    scenario: Scenario,
    nodes: usize,
    round: usize,
) -> anyhow::Result<()> {
    peers.clear(nodes)?;
    if scenario.knows_before() {
        peers.bring_before(nodes, &place.source(scenario))?;
    }
    place.change(scenario, round)?;
    std::thread::sleep(PAUSE);
    Ok(())
}

/// What is promised of a scenario.
fn limits(scenario: Scenario, nodes: usize, measured: &Measured) -> Vec<LimitCheck> {
    let of = |way: &str| measured.seconds.get(way).map_or(&[][..], Vec::as_slice);
    let (skiff, title) = (of(SKIFF), format!("{nodes} nodes, {}", scenario.title()));
    let added = stats::differences(skiff, of(BARE));
    let mut checks = match scenario {
        Scenario::Unchanged => vec![LimitCheck::new(format!("{title}: added to srun"), "s", &added, 0.16)],
        Scenario::OneByte => {
            vec![LimitCheck::new(format!("{title}: sent"), "kB", &measured.sent, 200.0)]
        }
        Scenario::New => vec![LimitCheck::new(format!("{title}: added to srun"), "s", &added, 0.15)],
        Scenario::Small => vec![LimitCheck::new(format!("{title}: added to srun"), "s", &added, 0.5)],
        Scenario::Tree => vec![],
    };
    let copy = of(ways::COPY);
    if !copy.is_empty() {
        let ratios = stats::ratios(skiff, copy);
        checks.push(LimitCheck::new(format!("{title}: of a plain copy"), "x", &ratios, 1.3));
    }
    let peers = measured.seconds.iter().filter(|(way, _)| PEERS.contains(way));
    let best = peers.min_by(|a, b| Spread::of(a.1).median.total_cmp(&Spread::of(b.1).median));
    if let Some((way, best)) = best {
        let name = format!("{title}: of the best peer, {way}");
        checks.push(LimitCheck::new(name, "x", &stats::ratios(skiff, best), 1.0));
    }
    checks
}
