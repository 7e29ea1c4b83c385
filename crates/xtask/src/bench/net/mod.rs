//! What a network costs: the same two MPI ranks on two bare hosts, and in clusters of containers on each kind of network between them.

mod programs;
mod site;

use super::Setting;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_MEDIAN, Series};
use programs::BenchProgram;

/// Percent that may be lost on networks that are the host's own device, or as good as.
const LIMIT: f64 = 2.0;

/// Where it runs without a container, which all else is compared with.
const BARE: &str = "bare";

/// The networks, as words for `--net`.
const NETS: [&str; 1 + site::NETWORKS.len()] = {
    let [macvlan, bridge, routed, vxlan] = site::NETWORKS;
    ["host", macvlan, bridge, routed, vxlan]
};

/// Which of them must be within the limit.
const NATIVE: [&str; 2] = ["host", "macvlan"];

#[derive(clap::Args)]
pub struct Args {
    /// What runs on them
    #[arg(long, value_enum, default_value_t = Which::Messages)]
    run: Which,
    /// Only on these networks, against the bare hosts
    #[arg(long, value_name = "NET", value_delimiter = ',', value_parser = NETS, default_values_t = NETS.map(String::from))]
    on: Vec<String>,
    /// Install what it needs beyond `make deps`: for the dam break Debian's OpenFOAM, 0.5 GB
    #[arg(long)]
    install: bool,
    /// Unknowns of HPL
    #[arg(long, default_value_t = 1500)]
    hpl_size: u32,
    /// Until when the dam breaks, in its own seconds; the tutorial's is 1
    #[arg(long, default_value_t = 0.2)]
    dam_break_end: f64,
}

/// See `programs.rs`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// Messages of our own, to and fro and exchanged, 0 B to 4 MiB
    Messages,
    /// HPL of Debian's hpcc
    Hpl,
    /// OpenFOAM's tutorial of a breaking dam
    DamBreak,
}

impl Which {
    /// The name of its record.
    fn record(self) -> &'static str {
        match self {
            Self::Messages => "net",
            Self::Hpl => "net-hpl",
            Self::DamBreak => "net-dam-break",
        }
    }
}

/// Installs what is missing, if that is wanted. Outside of the test bed.
pub fn prepare(args: &Args) -> anyhow::Result<()> {
    if args.install { programs::install(args.run) } else { Ok(()) }
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["salloc", "on", "ip", "taskset"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-net")?;
    let user = RunAs::User(&setting.user);
    let program = programs::prepare(args.run, &home, user, args)?;
    home.write("job", &program.script)?;
    site::set_up()?;
    let places: Vec<&str> = std::iter::once(BARE).chain(args.on.iter().map(String::as_str)).collect();
    let mut samples = vec![vec![vec![]; program.figures.len()]; places.len()];
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        for index in 0..places.len() {
            let index = (round + index) % places.len();
            let job = format!("bash {}/job", home.path.display());
            let printed = user.bash(&in_place(setting, places[index], &job))?;
            for (of, figure) in samples[index].iter_mut().zip((program.read)(&printed)?) {
                of.push(figure);
            }
        }
    }
    Ok(report(args.run, machine, &program, &places, &samples))
}

/// The same job there: a job of the manager's on two hosts, and a cluster in it if it is not for the bare ones.
fn in_place(setting: &Setting, place: &str, job: &str) -> String {
    let cluster = format!("{} cluster run --net {place} --", setting.skiff);
    let cluster = if place == BARE { "" } else { &cluster };
    format!("LC_ALL=C salloc -Q -N2 --ntasks-per-node=1 {cluster} {job}")
}

fn report(
    which: Which,
    machine: HostInfo,
    program: &BenchProgram,
    places: &[&str],
    samples: &[Vec<Vec<f64>>],
) -> (BenchResult, Vec<Bar>) {
    let mut series = vec![];
    for (at, (figure, unit)) in program.figures.iter().enumerate() {
        for (place, of) in places.iter().zip(samples) {
            series.push(Series::new(format!("{figure}, {place}"), unit, of[at].clone()));
        }
    }
    let (mut claims, mut bars) = (vec![], vec![]);
    for (place, of) in places.iter().zip(samples).skip(1) {
        for (what, unit, figures) in groups(program) {
            let lost = lost(&of[figures.clone()], &samples[0][figures], unit);
            let name = format!("{what}, {place}");
            let claim = LimitCheck::new(&name, "%", &lost, LIMIT);
            let bar = Bar::over_median(&name, "%", claim.spread, LIMIT);
            match NATIVE.contains(place) {
                true => {
                    bars.push(bar);
                    claims.push(claim);
                }
                false => {
                    bars.push(Bar { limit: None, ..bar });
                    series.push(Series::new(format!("{name}, lost"), "%", lost));
                }
            }
        }
    }
    let title = "Lost against two bare hosts, by the network between containers, %".into();
    (BenchResult { name: which.record(), title, machine, lines: OVER_MEDIAN, series, claims }, bars)
}

/// Figures of the same kind, of which one word says enough: their names but for the size, their unit, and which they are.
fn groups(program: &BenchProgram) -> Vec<(&str, &'static str, std::ops::Range<usize>)> {
    let count = program.figures.len();
    let kind = |at: usize| {
        let (name, unit) = &program.figures[at];
        (name.split(|c: char| c.is_ascii_digit()).next().unwrap_or(name).trim(), *unit)
    };
    let starts = (0..count).filter(|at| *at == 0 || kind(*at) != kind(*at - 1));
    starts
        .map(|from| {
            let (name, unit) = kind(from);
            let to = (from..count).find(|at| kind(*at) != (name, unit)).unwrap_or(count);
            (name, unit, from..to)
        })
        .collect()
}

/// Percent lost in each round: over several figures, as their geometric mean, in which each size counts the same.
fn lost(ours: &[Vec<f64>], bare: &[Vec<f64>], unit: &str) -> Vec<f64> {
    let rounds = ours.first().map_or(0, Vec::len);
    let round = |round: usize| {
        let logs = ours.iter().zip(bare).map(|(ours, bare)| (ours[round] / bare[round]).ln());
        let mean = logs.sum::<f64>() / ours.len() as f64;
        let slower = if unit == "GFLOPS" { (-mean).exp() } else { mean.exp() };
        (slower - 1.0) * 100.0
    };
    (0..rounds).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost() {
        let close = |got: Vec<f64>, want: &[f64]| {
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} {want:?}");
        };
        close(lost(&[vec![2.2, 1.0]], &[vec![2.0, 1.0]], "us"), &[10.0, 0.0]);
        close(lost(&[vec![2.0]], &[vec![4.0]], "GFLOPS"), &[100.0]);
        // Twice as much of the one and half of the other.
        close(lost(&[vec![2.0], vec![1.0]], &[vec![1.0], vec![2.0]], "us"), &[0.0]);
    }

    #[test]
    fn figures_of_one_kind_are_together() {
        let names = ["to and fro 0 B", "to and fro 4 MiB", "exchange 0 B"];
        let figures = names.map(|name| (name.to_owned(), "us")).to_vec();
        let program = BenchProgram { script: String::new(), figures, read: |_| Ok(vec![]) };
        assert_eq!(groups(&program), [("to and fro", "us", 0..2), ("exchange", "us", 2..3)]);
    }
}
