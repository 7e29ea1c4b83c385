//! What a cluster of containers adds to an MPI program that does nothing: `mpirun` in one, against `mpirun` on the bare hosts of the
//! same job, and whether that grows with the number of hosts.

use super::Setting;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats;

/// Seconds.
const LIMIT: f64 = 0.25;

/// A command that does nothing.
pub const EMPTY: &str =
    "#include <mpi.h>\nint main(int n, char **a) { MPI_Init(&n, &a); MPI_Finalize(); return 0; }\n";

#[derive(clap::Args)]
pub struct Args {
    /// On how many hosts
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8])]
    nodes: Vec<usize>,
}

impl Args {
    /// How many the test bed must have.
    pub fn most(&self) -> usize {
        self.nodes.iter().copied().max().unwrap_or(1)
    }
}

/// Which of the ways is a cluster and nothing else.
const ALONE: usize = 2;

/// What is run on the hosts.
struct Way {
    name: &'static str,
    command: String,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["salloc", "mpicc", "mpirun"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-cluster")?;
    home.write("empty.c", EMPTY)?;
    let program = home.path.join("empty");
    let program = program.display();
    let user = RunAs::User(&setting.user);
    user.bash(&format!("mpicc -o {program} {program}.c"))?;
    let skiff = &setting.skiff;
    let ways = [
        Way { name: "mpirun on the bare hosts", command: format!("mpirun {program}") },
        Way { name: "in a cluster", command: format!("{skiff} cluster run -- mpirun {program}") },
        Way { name: "the cluster alone", command: format!("{skiff} cluster run -- true") },
    ];
    let (mut series, mut claims, mut costs) = (vec![], vec![], vec![]);
    for nodes in &args.nodes {
        let (mut samples, mut each) = ([vec![], vec![], vec![]], vec![]);
        for round in 0..setting.rounds {
            eprintln!("{nodes} hosts, round {} of {}", round + 1, setting.rounds);
            for index in 0..ways.len() {
                let index = (round + index) % ways.len();
                let taken = measured(user, *nodes, &ways[index].command)?;
                samples[index].push(taken.seconds);
                if index == ALONE {
                    each.push(taken.processors / *nodes as f64);
                }
            }
        }
        let added = stats::differences(&samples[1], &samples[0]);
        claims.push(LimitCheck::new(format!("added on {nodes} hosts"), "s", &added, LIMIT));
        for (way, samples) in ways.iter().zip(samples) {
            series.push(Series::new(format!("{nodes} hosts, {}", way.name), "s", samples));
        }
        costs.push(Series::new(
            format!("{nodes} hosts, each one's share of the processors' time"),
            "s",
            each,
        ));
    }
    let bars = series.iter().enumerate();
    let bars = bars.map(|(at, s)| Bar::over_all(&s.name, "s", s.spread, at % ways.len() != 0)).collect();
    // All hosts of a test bed have the same processors: if it is this that does not grow, then on hosts of their own nothing does.
    series.extend(costs);
    let title = "An empty MPI program, s".into();
    Ok((BenchResult { name: "cluster", title, machine, lines: OVER_ALL, series, claims }, bars))
}

/// How long a command takes in a job on so many hosts, which is there already.
pub fn seconds(user: RunAs<'_>, nodes: usize, command: &str) -> anyhow::Result<f64> {
    Ok(measured(user, nodes, command)?.seconds)
}

/// What a command takes.
struct Taken {
    seconds: f64,
    /// What all processors of the machine have done meanwhile.
    processors: f64,
}

fn measured(user: RunAs<'_>, nodes: usize, command: &str) -> anyhow::Result<Taken> {
    let timed = format!(
        "busy() {{ read -r _ user nice system _ </proc/stat; b=$((user + nice + system)); }}; \
         busy; c=$b; s=$EPOCHREALTIME; {command} || exit 1; e=$EPOCHREALTIME; busy; \
         echo $((${{e/./}} - ${{s/./}})) $((b - c))"
    );
    let script = format!("LC_ALL=C salloc -Q -N{nodes} --ntasks-per-node=1 bash -c '{timed}'");
    let printed = user.bash(&script)?;
    let figures: Option<Vec<f64>> = printed.split_whitespace().map(|word| word.parse().ok()).collect();
    match figures.as_deref() {
        // The kernel counts hundredths.
        Some([microseconds, ticks]) => Ok(Taken { seconds: microseconds / 1e6, processors: ticks / 100.0 }),
        _ => anyhow::bail!("{command}: printed {printed:?}"),
    }
}
