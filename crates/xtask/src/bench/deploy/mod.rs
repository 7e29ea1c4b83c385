//! From a submission to the command that runs on all nodes, with something new in the environment, against the ways to copy the same files
//! there. All copies begin at files in the page cache and end on the nodes' disks, which are those of one machine.
//!
//! The depot lies on a file system that all nodes share, and in the test bed that is a directory of the same machine: what reads it does not go
//! over the nodes' network devices. What they pass on to each other does, and `--link` limits that.

mod nodes;
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
use nodes::Nodes;
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
    /// How snapshots get to many nodes
    #[arg(long, default_value = "auto", value_parser = ["auto", "depot", "relay"])]
    fan_out: String,
    /// What nodes make of them
    #[arg(long, default_value = "mounted", value_parser = ["mounted", "unpacked"])]
    layers: String,
    /// Limits each node's link to so many megabits a second; only Skiff and srun alone are measured then
    #[arg(long)]
    link: Option<u32>,
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
    /// Bytes of the depot that all nodes together have read.
    read: Vec<f64>,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["srun", "salloc", "sbcast", "rsync", "tar", "ssh", "python3"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-deploy")?;
    let live = RunningEnvironment::start(setting, "bench-deploy")?;
    let peers = Peers::prepare(setting, args.most(), &home.path)?;
    let _nodes = Nodes::prepare(args.most(), &args.fan_out, &args.layers, args.link)?;
    let place = Workplace { live: &live, home: &home, small_files: args.small_files, tree_mb: args.tree_mb };
    let chosen = if args.scenarios.is_empty() { Scenario::ALL.to_vec() } else { args.scenarios.clone() };
    let (mut series, mut claims, mut bars) = (vec![], vec![], vec![]);
    for scenario in chosen {
        place.begin(scenario)?;
        for nodes in &args.nodes {
            let measured = rounds(setting, (&place, &peers), (scenario, *nodes), args.link.is_some())?;
            claims.extend(limits(scenario, *nodes, &measured));
            let is_large = matches!(scenario, Scenario::Small | Scenario::Tree);
            let link = args.link.filter(|_| is_large);
            claims.extend(link.map(|link| of_one_link(&place, scenario, *nodes, (&measured, link))));
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
            series.push(Series::new(format!("{prefix}: read of the depot"), "kB", measured.read));
        }
        place.end(scenario)?;
    }
    let title = "From a submission to the command on all nodes, s".into();
    Ok((BenchResult { name: "deploy", title, machine, lines: OVER_ALL, series, claims }, bars))
}

fn rounds(
    setting: &Setting,
    (place, peers): (&Workplace<'_>, &Peers),
    (scenario, nodes): (Scenario, usize),
    is_limited: bool,
) -> anyhow::Result<Measured> {
    let user = RunAs::User(&setting.user);
    let submit = |environment: &str| {
        format!(
            "srun --environment={environment} {} --ntasks-per-node=1 printenv SLURM_JOB_ID",
            ways::option(nodes)
        )
    };
    let mut measured = Measured::default();
    let ways: Vec<&'static str> = [SKIFF, BARE]
        .into_iter()
        .chain(PEERS.into_iter().filter(|way| !is_limited && scenario.has(way)))
        .collect();
    // So that all nodes have what was there before.
    user.bash(&submit(place.live.name))?;
    for round in 0..setting.rounds {
        eprintln!("{}: {nodes} nodes, round {} of {}", scenario.title(), round + 1, setting.rounds);
        begin_round(place, peers, scenario, nodes, round)?;
        for turn in 0..ways.len() {
            let way = ways[(round + turn) % ways.len()];
            let before = if way == SKIFF { place.depot_bytes()? } else { 0 };
            let began = Instant::now();
            let mut job = String::new();
            match way {
                SKIFF => job = user.bash(&submit(place.live.name))?,
                BARE => drop(user.bash(&submit("none"))?),
                peer => peers.bring(peer, nodes, &place.source(scenario))?,
            }
            measured.seconds.entry(way).or_insert_with(Vec::new).push(began.elapsed().as_secs_f64());
            if way == SKIFF {
                let sent = place.depot_bytes()?.saturating_sub(before);
                measured.sent.push(sent as f64 / 1e3);
                let job = job.lines().next().unwrap_or_default();
                measured.read.push(bytes_read(setting, job, nodes)? as f64 / 1e3);
            }
        }
    }
    peers.clear(nodes).context("removing the copies")?;
    // For whoever ends it before all is measured.
    let medians = measured.seconds.iter().map(|(way, all)| format!("{way} {:.2} s", Spread::of(all).median));
    eprintln!("{}: {nodes} nodes: {}", scenario.title(), medians.collect::<Vec<_>>().join(", "));
    Ok(measured)
}

/// How many bytes all nodes of a job together have read of the depot: of its files where it was read for all, else of what is in them.
fn bytes_read(setting: &Setting, job: &str, nodes: usize) -> anyhow::Result<u64> {
    let noted = "import json, subprocess, sys, time\nfor _ in range(100):\n    \
        run = subprocess.run([sys.argv[1], 'env', 'status', '--json', '--job', sys.argv[2]], capture_output=True)\n    \
        roots = json.loads(run.stdout or '{}').get('roots', [])\n    \
        if len(roots) == int(sys.argv[3]): break\n    \
        time.sleep(0.1)\n\
        parts = [part for root in roots for part in root['parts']]\n\
        of = lambda part: part['bytes'] - part.get('reused', 0)\n\
        print(sum(part.get('read', 0) + (of(part) if part['from'] == 'depot' else 0) for part in parts))";
    let mut python = setting.user.command("python3");
    python.args(["-c", noted, &setting.skiff, job, &nodes.to_string()]);
    people::output(&mut python, "skiff env status")?.trim().parse().context("what env status says")
}

/// By how much it takes longer than the bytes by one link.
fn of_one_link(
    place: &Workplace<'_>,
    scenario: Scenario,
    nodes: usize,
    (measured, megabits): (&Measured, u32),
) -> LimitCheck {
    let once = place.new_bytes(scenario) as f64 * 8.0 / (f64::from(megabits) * 1e6);
    let skiff = measured.seconds.get(SKIFF).map_or(&[][..], Vec::as_slice);
    let ratios: Vec<f64> = skiff.iter().map(|seconds| seconds / once).collect();
    LimitCheck::new(format!("{nodes} nodes, {}: of one link's time", scenario.title()), "x", &ratios, 1.25)
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
