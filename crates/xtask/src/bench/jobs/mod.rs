//! What a job's steps lose in an environment and in a container: each system call, the start of all tasks, messages between them, and kernels of NPB.

mod devices;
mod messages;
mod npb;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;

use super::Setting;
use super::live::RunningEnvironment;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_MEDIAN, Series};
use super::stats;

const CALLS: &str = include_str!("calls.c");
const EMPTY: &str =
    "#include <mpi.h>\nint main(int n, char **words) { MPI_Init(&n, &words); return MPI_Finalize(); }\n";

/// Rounds of the calls where nobody has said how many.
const CALL_ROUNDS: usize = 15;
/// Rounds of a container with a device: what it adds is little against how far starts differ.
const DEVICE_ROUNDS: usize = 41;
/// Percent that may be lost of any call.
const CALLS_LIMIT: f64 = 1.0;
/// Milliseconds that a container may add to a start.
const START_LIMIT: f64 = 60.0;
/// Milliseconds for as many tasks as a large node has.
const MANY_LIMIT: f64 = 400.0;
/// How many those are.
const MANY: usize = 64;

#[derive(clap::Args)]
pub struct Args {
    /// Milliseconds for each of the calls
    #[arg(long, default_value_t = 400)]
    milliseconds: u32,
    /// Measure system calls as UnixBench does, and only what such options name
    #[arg(long)]
    calls: bool,
    /// Measure messages between ranks
    #[arg(long)]
    messages: bool,
    /// Measure the starts of tasks
    #[arg(long)]
    starts: bool,
    /// Measure what a described device adds to a container's start
    #[arg(long)]
    devices: bool,
    /// Measure kernels of NPB, whose sources are in DIR (docs/benchmarks.md says from where)
    #[arg(long, value_name = "DIR")]
    npb: Option<PathBuf>,
}

/// What is run in the same rounds, and compared with the first of them.
struct Compared {
    name: &'static str,
    command: String,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["srun", "musl-gcc", "mpicc"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-jobs")?;
    let live = RunningEnvironment::start(setting, "bench-jobs")?;
    let job = Job { user: RunAs::User(&setting.user), home: &home, environment: live.name };
    job.prepare(&setting.skiff)?;
    let (mut series, mut claims) = (vec![], vec![]);
    let all = !(args.calls || args.messages || args.starts || args.devices || args.npb.is_some());
    if let Some(sources) = &args.npb {
        npb::build(&job, sources)?;
    }
    if all || args.messages || args.starts || args.npb.is_some() {
        messages::prepare(&job, &setting.skiff)?;
    }
    if args.npb.is_some() {
        npb::measure(setting.rounds, &job, &mut series, &mut claims)?;
    }
    if all || args.messages {
        messages::measure(setting.rounds, &job, &mut series, &mut claims)?;
    }
    if all || args.calls {
        let rounds = setting.asked_rounds.unwrap_or(CALL_ROUNDS);
        calls(rounds, &job, args.milliseconds, &mut series, &mut claims)?;
    }
    if all || args.starts {
        sandboxes(&job, &mut claims)?;
        starts(setting.rounds, &job, &mut series, &mut claims)?;
    }
    if all || args.devices {
        let rounds = setting.asked_rounds.unwrap_or(DEVICE_ROUNDS);
        devices::measure(rounds, &job, &mut series, &mut claims)?;
    }
    let bars = claims.iter().map(|c| Bar::over_median(&c.name, c.unit, c.spread, c.limit)).collect();
    let title = "Lost in a job's environment or container against the bare host".into();
    Ok((BenchResult { name: "jobs", title, machine, lines: OVER_MEDIAN, series, claims }, bars))
}

/// Where the steps run.
struct Job<'a> {
    user: RunAs<'a>,
    home: &'a UserDir,
    environment: &'static str,
}

impl Job<'_> {
    /// The programs; an image of them; a configuration by which every task is filtered.
    fn prepare(&self, skiff: &str) -> anyhow::Result<()> {
        let store =
            "install -d -m 755 /var/lib/skiff && install -d -m 755 -o daemon -g daemon /var/lib/skiff/store";
        RunAs::Root.bash(&format!("{store}; for node in n1 n2; do on $node sh -c '{store}'; done"))?;
        self.home.write("calls.c", CALLS)?;
        self.home.write("empty.c", EMPTY)?;
        let home = self.home.path.display();
        self.user.bash(&format!(
            "set -e; cd {home}; mkdir -p root/bin root/tmp tmp filtered/skiff; \
             musl-gcc -O2 -static -o calls calls.c; mpicc -o empty empty.c; cp calls root/bin/calls; \
             printf '[slurm]\\nfilter = \"always\"\\n' >filtered/skiff/config.toml; \
             tar -cf root.tar -C root .; {skiff} import root.tar bench-jobs"
        ))?;
        // The nodes have both then.
        self.user.bash(&format!("srun --environment={} -N2 true", self.environment))?;
        self.user.bash("srun -N2 --container-image=bench-jobs /bin/calls").map(drop)
    }

    fn in_environment(&self, step: &str) -> String {
        format!("srun --environment={} {step}", self.environment)
    }
}

/// The calls, in steps of one task.
fn calls(
    rounds: usize,
    job: &Job<'_>,
    milliseconds: u32,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    let home = job.home.path.display();
    let step = format!("-N1 -n1 {home}/calls {milliseconds} {home} /tmp");
    let places = [
        Compared { name: "host", command: format!("srun --environment=none {step}") },
        Compared { name: "environment", command: job.in_environment(&step) },
        Compared {
            name: "environment, filter always",
            command: format!("XDG_CONFIG_HOME={home}/filtered {}", job.in_environment(&step)),
        },
        Compared {
            name: "container",
            command: format!(
                "srun -N1 -n1 --container-image=bench-jobs --container-mount-home /bin/calls {milliseconds} {home} /tmp"
            ),
        },
    ];
    let mut names: Vec<String> = vec![];
    let mut rates = vec![vec![]; places.len()];
    for round in 0..rounds {
        eprintln!("system calls, round {} of {rounds}", round + 1);
        for index in 0..places.len() {
            let index = (round + index) % places.len();
            let printed = job.user.bash(&places[index].command)?;
            let measured: Vec<(&str, f64)> = printed
                .lines()
                .map(|line| {
                    let (name, figure) = line.split_once(' ').context("no figure")?;
                    Ok((name, figure.parse()?))
                })
                .collect::<anyhow::Result<_>>()
                .with_context(|| printed.clone())?;
            names = measured.iter().map(|(name, _)| call_name(name)).collect();
            rates[index].push(measured.iter().map(|(_, rate)| *rate).collect::<Vec<f64>>());
        }
    }
    for (at, name) in names.iter().enumerate() {
        let of = |place: usize| -> Vec<f64> { rates[place].iter().map(|round| round[at]).collect() };
        for (index, place) in places.iter().enumerate() {
            if index > 0 {
                let lost: Vec<f64> =
                    of(0).iter().zip(of(index)).map(|(host, here)| (host / here - 1.0) * 100.0).collect();
                claims.push(LimitCheck::new(format!("{name}, {}", place.name), "%", &lost, CALLS_LIMIT));
            }
            series.push(Series::new(format!("{name}, {}", place.name), "1/s", of(index)));
        }
    }
    Ok(())
}

/// What a row is called: of a copy only whether it is in the home.
fn call_name(printed: &str) -> String {
    match printed.strip_prefix("copy:") {
        Some("/tmp") => "copy in /tmp".into(),
        Some(_) => "copy in the home".into(),
        None => printed.into(),
    }
}

/// In how many user and mount namespaces the tasks of a node are that share a container.
fn sandboxes(job: &Job<'_>, claims: &mut Vec<LimitCheck>) -> anyhow::Result<()> {
    let printed = job.user.bash(&format!(
        "srun -N1 -n{MANY} --overcommit --container-image=bench-jobs /bin/calls namespaces"
    ))?;
    let (tasks, different) = count_lines(&printed);
    anyhow::ensure!(tasks == MANY, "{tasks} of {MANY} tasks have told their namespaces: {printed}");
    let name = format!("{MANY} tasks on a node in a container: sandboxes");
    claims.push(LimitCheck::new(name, "", &[different as f64], 1.0));
    Ok(())
}

/// How many lines, and how many different ones.
fn count_lines(printed: &str) -> (usize, usize) {
    let different: BTreeSet<&str> = printed.lines().collect();
    (printed.lines().count(), different.len())
}

/// From `srun` to its end.
fn starts(
    rounds: usize,
    job: &Job<'_>,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    let empty = job.home.path.join("empty");
    let empty = format!("--mpi=pmix -N2 -n4 {}", empty.display());
    let image = "--container-image=bench-jobs /bin/calls";
    let many = format!("-N1 -n{MANY} --overcommit");
    let calls = job.home.path.join("calls");
    let calls = calls.display();
    let pairs = [
        (
            "4 tasks on 2 nodes in a container",
            format!("-N2 -n4 {calls}"),
            format!("srun -N2 -n4 {image}"),
            START_LIMIT,
        ),
        ("an empty MPI program in an environment", empty.clone(), job.in_environment(&empty), START_LIMIT),
        (
            "an empty MPI program in a container",
            empty,
            "srun --mpi=pmix -N2 -n4 --container-image=bench-mpi /bin/empty".into(),
            START_LIMIT,
        ),
        (
            "64 tasks on a node in a container",
            format!("{many} {calls}"),
            format!("srun {many} {image}"),
            MANY_LIMIT,
        ),
    ];
    for (name, without, with, limit) in pairs {
        let commands = [format!("srun --environment=none {without}"), with];
        StartPair { name, against: "bare", commands, limit }.measure(rounds, job, series, claims)?;
    }
    Ok(())
}

/// Two commands whose times are compared.
struct StartPair<'a> {
    /// What the second has beyond the first.
    name: &'a str,
    /// What the first is called.
    against: &'a str,
    commands: [String; 2],
    /// Milliseconds that the second may take longer.
    limit: f64,
}

impl StartPair<'_> {
    fn measure(
        self,
        rounds: usize,
        job: &Job<'_>,
        series: &mut Vec<Series>,
        claims: &mut Vec<LimitCheck>,
    ) -> anyhow::Result<()> {
        let Self { name, against, commands, limit } = self;
        let mut samples = [vec![], vec![]];
        for round in 0..rounds {
            eprintln!("{name}, round {} of {rounds}", round + 1);
            for index in [round % 2, (round + 1) % 2] {
                let begun = Instant::now();
                job.user.bash(&commands[index])?;
                samples[index].push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        let added = stats::differences(&samples[1], &samples[0]);
        claims.push(LimitCheck::new(format!("{name}: added"), "ms", &added, limit));
        let [without, with] = samples;
        series.push(Series::new(format!("{name}: {against}"), "ms", without));
        series.push(Series::new(name.to_owned(), "ms", with));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::count_lines;

    #[test]
    fn sandboxes_are_counted_once() {
        assert_eq!(count_lines("user:[1] mnt:[2]\nuser:[1] mnt:[2]\n"), (2, 1));
        assert_eq!(count_lines("user:[1] mnt:[2]\nuser:[1] mnt:[3]\n"), (2, 2));
        assert_eq!(count_lines(""), (0, 0));
    }
}
