//! How long a start takes: 100 in a row in a shell loop, as the authors of self-deployed environments counted it, each
//! beside the floor (`floor.c`) and what users would take instead.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;

use super::Setting;
use super::live::RunningEnvironment;
use super::people::{self, RunAs};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats;

const FLOOR_SOURCE: &str = include_str!("floor.c");

/// The floor took 1.1 ms where the limits were set; they move with the floor to other machines.
const FLOOR_MS: f64 = 1.1;
const RUN_MS: f64 = 2.5;
const ENTER_MS: f64 = 1.5;

/// What it may cost that Skiff is called inside, where the environment's supervisor runs it outside.
const INSIDE_MS: f64 = 5.0;
const LIST: &str = "skiff env list";
const LIST_INSIDE: &str = "skiff env list, called inside";

/// How many at once, and how often, in one measurement.
const AT_ONCE: usize = 8;
const BATCHES: usize = 5;

#[derive(clap::Args)]
pub struct Args {
    /// How many starts in one measurement
    #[arg(long, default_value_t = 100)]
    starts: usize,
    /// Only what Skiff is compared with
    #[arg(long)]
    peers_only: bool,
}

/// Something whose starts are counted.
struct Candidate<'a> {
    name: &'static str,
    who: RunAs<'a>,
    script: String,
    /// Starts that the script makes.
    count: usize,
    ours: bool,
    samples: Vec<f64>,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["bwrap", "unshare"])?;
    let machine = HostInfo::here()?;
    let floor = Floor::build()?;
    let live = if args.peers_only { None } else { Some(RunningEnvironment::start(setting, "bench-start")?) };
    let mut candidates = peers(setting, args.starts, &floor);
    if let Some(live) = &live {
        candidates.extend(ours(setting, args.starts, live));
    }
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        // Another one begins each round, so that none always follows the same neighbour.
        let count = candidates.len();
        for index in 0..count {
            candidates[(round + index) % count].measure()?;
        }
    }
    Ok(evaluate(machine, args, &candidates))
}

impl Candidate<'_> {
    fn measure(&mut self) -> anyhow::Result<()> {
        // The shell's own start does not count, its forks do.
        let script = format!(
            "LC_ALL=C; s=$EPOCHREALTIME; {}; e=$EPOCHREALTIME; echo $((${{e/./}} - ${{s/./}}))",
            self.script
        );
        let printed = self.who.bash(&script)?;
        let microseconds: f64 =
            printed.trim().parse().with_context(|| format!("{}: printed {printed:?}", self.name))?;
        self.samples.push(microseconds / 1e3 / self.count as f64);
        Ok(())
    }
}

fn in_a_row(count: usize, command: &str) -> String {
    format!("for i in $(seq {count}); do {command} || exit 1; done")
}

/// `wait` for each, as `wait` for all does not say how they ended.
fn at_once(command: &str) -> String {
    format!(
        "for b in $(seq {BATCHES}); do pids=; for i in $(seq {AT_ONCE}); do {command} & pids+=\" $!\"; done; \
         for p in $pids; do wait $p || exit 1; done; done"
    )
}

fn peers<'a>(setting: &'a Setting, count: usize, floor: &Floor) -> Vec<Candidate<'a>> {
    let user = RunAs::User(&setting.user);
    let plain = floor.words("");
    let with_user = floor.words("-u");
    let bwrap = "bwrap --unshare-all --share-net --dev-bind / / --proc /proc /bin/true".to_string();
    let unshare = "unshare -mpfiu --mount-proc /bin/true".to_string();
    [
        ("the loop itself: /bin/true", user, "/bin/true".to_string()),
        ("floor: namespaces, overlay, pivot in C", RunAs::Root, plain),
        ("floor, with a user namespace", RunAs::Root, with_user),
        ("unshare -mpfiu --mount-proc", RunAs::Root, unshare),
        ("bubblewrap", user, bwrap),
    ]
    .into_iter()
    .map(|(name, who, command)| Candidate {
        name,
        who,
        script: in_a_row(count, &command),
        count,
        ours: false,
        samples: vec![],
    })
    .collect()
}

fn ours<'a>(setting: &'a Setting, count: usize, live: &RunningEnvironment) -> Vec<Candidate<'a>> {
    let run = format!("{} run -- /bin/true", setting.skiff);
    let enter = format!("{} /bin/true", live.exec_words());
    let list = in_a_row(count, &format!("{} env list >/dev/null", setting.skiff));
    let list_inside = format!("{} bash -c '{list}'", live.exec_words());
    let eight = BATCHES * AT_ONCE;
    [
        ("skiff run", in_a_row(count, &run), count),
        ("skiff env exec, into a live one", in_a_row(count, &enter), count),
        (LIST, list, count),
        (LIST_INSIDE, list_inside, count),
        ("skiff run, 8 in a row", in_a_row(eight, &run), eight),
        ("skiff run, 8 at once", at_once(&run), eight),
    ]
    .into_iter()
    .map(|(name, script, count)| Candidate {
        name,
        who: RunAs::User(&setting.user),
        script,
        count,
        ours: true,
        samples: vec![],
    })
    .collect()
}

fn evaluate(machine: HostInfo, args: &Args, candidates: &[Candidate<'_>]) -> (BenchResult, Vec<Bar>) {
    let series: Vec<_> =
        candidates.iter().map(|c| Series::new(c.name, "ms each", c.samples.clone())).collect();
    let bars =
        candidates.iter().zip(&series).map(|(c, s)| Bar::over_all(c.name, "ms", s.spread, c.ours)).collect();
    let ratio = |name: &str, of: &str, to: &str, limit: f64| {
        let samples = |of: &str| candidates.iter().find(|c| c.name.starts_with(of)).map(|c| &c.samples);
        let values = stats::ratios(samples(of)?, samples(to)?);
        Some(LimitCheck::new(name, "x", &values, limit))
    };
    let absolute = |name: &str, of: &str, limit: f64| {
        let candidate = candidates.iter().find(|c| c.name == of)?;
        Some(LimitCheck::new(name, "ms", &candidate.samples, limit))
    };
    let samples = |name: &str| candidates.iter().find(|c| c.name == name).map(|c| &c.samples);
    let through_socket = || {
        let pairs = samples(LIST_INSIDE)?.iter().zip(samples(LIST)?);
        let more: Vec<f64> = pairs.map(|(inside, outside)| inside - outside).collect();
        Some(LimitCheck::new("called inside - called outside", "ms", &more, INSIDE_MS))
    };
    let claims = [
        through_socket(),
        absolute("skiff run", "skiff run", RUN_MS),
        absolute("entering", "skiff env exec, into a live one", ENTER_MS),
        ratio("skiff run / floor", "skiff run", "floor:", RUN_MS / FLOOR_MS),
        ratio("skiff run / bubblewrap", "skiff run", "bubblewrap", 1.0),
        ratio("entering / floor", "skiff env exec", "floor:", ENTER_MS / FLOOR_MS),
        ratio("8 at once / 8 in a row", "skiff run, 8 at once", "skiff run, 8 in a row", 1.0),
    ];
    let title = format!("Starting {} in a row, ms each", args.starts);
    let claims = claims.into_iter().flatten().collect();
    (BenchResult { name: "start", title, machine, lines: OVER_ALL, series, claims }, bars)
}

/// The floor program, and the directories it works in.
struct Floor {
    program: PathBuf,
    /// On tmpfs, like the upper of a throw-away environment.
    directory: TempDir,
}

impl Floor {
    fn build() -> anyhow::Result<Self> {
        let directory =
            TempDir::with_prefix_in("skiff-floor.", "/dev/shm").context("making a directory in /dev/shm")?;
        for name in ["u", "w", "m"] {
            std::fs::create_dir(directory.path().join(name)).context("making a directory in /dev/shm")?;
        }
        let source = directory.path().join("floor.c");
        std::fs::write(&source, FLOOR_SOURCE).context("writing floor.c")?;
        let program = directory.path().join("floor");
        // With musl, whose start is the shorter one: a floor must not be higher than need be. Its own headers lack the
        // kernel's.
        let mut compiler = Command::new("musl-gcc");
        compiler.args(["-O2", "-static", "-idirafter", "/usr/include", "-idirafter"]);
        compiler
            .arg(format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH))
            .arg("-o")
            .args([&program, &source]);
        people::output(&mut compiler, "musl-gcc (hint: make deps)")?;
        Ok(Self { program, directory })
    }

    fn words(&self, option: &str) -> String {
        format!("{} {option} {} /bin/true", self.program.display(), self.directory.path().display())
    }
}
