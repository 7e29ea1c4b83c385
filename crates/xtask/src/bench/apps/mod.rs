//! What a move costs an application, and what it does to its result: the same run in an instance undisturbed, and moved to another node in
//! its middle, in turn. Each must come to the same result to the last bit; it may take longer by the time that it stands still.

use std::fmt::Write as _;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::Setting;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_MEDIAN, Series};
use super::workload;
use crate::testbed;

/// Percent that the time it runs may differ by.
const LIMIT: f64 = 2.0;

/// Of Debian; too large for `make deps`.
const PACKAGES: [&str; 3] = ["gromacs", "lammps", "autodock-vina"];

/// As `run.sh` knows them.
const APPLICATIONS: [&str; 4] = ["HPL", "GROMACS", "LAMMPS", "Vina"];

#[derive(clap::Args)]
pub struct Args {
    /// Which applications
    #[arg(long, value_name = "APPLICATION", value_delimiter = ',', value_parser = APPLICATIONS, default_values_t = APPLICATIONS.map(String::from))]
    only: Vec<String>,
    /// Install them first: Debian's gromacs, lammps and autodock-vina, 90 MB
    #[arg(long)]
    install: bool,
    /// Unknowns of HPL
    #[arg(long, default_value_t = 2000)]
    hpl_size: u32,
}

/// Installs what is missing, if that is wanted. Outside of the test bed, which has no network.
pub fn prepare(args: &Args) -> anyhow::Result<()> {
    if args.install { testbed::install_packages(&PACKAGES) } else { Ok(()) }
}

/// One run, in seconds.
struct Sample {
    took: f64,
    /// For how long of that it stood still.
    frozen: f64,
    result: String,
}

/// What a move says of itself.
#[derive(Deserialize)]
struct Moved {
    frozen_ms: f64,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["sbatch", "hpcc", "mpirun", "python3"])?;
    people::require(&["gmx", "lmp", "vina"]).context("hint: --install")?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-apps")?;
    home.write("hpccinf.txt", &workload::hpl_input(1, args.hpl_size, 1))?;
    home.write("inputs.sh", include_str!("inputs.sh"))?;
    home.write("run.sh", include_str!("run.sh"))?;
    home.write("job", include_str!("job.sh"))?;
    RunAs::User(&setting.user).bash(&format!("cd {} && bash inputs.sh", home.path.display()))?;
    let (mut series, mut claims) = (vec![], vec![]);
    for application in &args.only {
        measure(setting, &home, application, &mut series, &mut claims)?;
    }
    let bars = claims.iter().map(|c| Bar::over_median(&c.name, "%", c.spread, c.limit)).collect();
    let title = "Longer because of a move, without the time that it stood still, %".into();
    Ok((BenchResult { name: "apps", title, machine, lines: OVER_MEDIAN, series, claims }, bars))
}

fn measure(
    setting: &Setting,
    home: &UserDir,
    application: &str,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    // The right result, and when its middle is.
    let first = sample(setting, home, application, None)?;
    let mut samples: [Vec<Sample>; 2] = Default::default();
    for round in 0..setting.rounds {
        eprintln!("{application}, round {} of {}", round + 1, setting.rounds);
        for index in [round % 2, (round + 1) % 2] {
            let after = (index == 1).then_some(first.took / 2.0);
            let sample = sample(setting, home, application, after)?;
            ensure!(
                sample.result == first.result,
                "{application}: the result is {}, of an undisturbed run {}",
                sample.result,
                first.result
            );
            samples[index].push(sample);
        }
    }
    let [still, moved] = &samples;
    let longer: Vec<f64> =
        moved.iter().zip(still).map(|(m, s)| ((m.took - m.frozen) / s.took - 1.0) * 100.0).collect();
    claims.push(LimitCheck::new(application, "%", &longer, LIMIT));
    let seconds = |samples: &[Sample], of: fn(&Sample) -> f64| samples.iter().map(of).collect();
    for (what, values) in [
        ("undisturbed", seconds(still, |sample| sample.took)),
        ("moved", seconds(moved, |sample| sample.took)),
        ("standing still", seconds(moved, |sample| sample.frozen)),
    ] {
        series.push(Series::new(format!("{application}, {what}"), "s", values));
    }
    Ok(())
}

/// Runs it once, and moves it after so many seconds.
fn sample(
    setting: &Setting,
    home: &UserDir,
    application: &str,
    after: Option<f64>,
) -> anyhow::Result<Sample> {
    let (mut variables, dir) = (String::new(), home.path.display().to_string());
    let moves = after.map_or_else(String::new, |seconds| seconds.to_string());
    for (name, value) in
        [("SKIFF", setting.skiff.as_str()), ("DIR", &dir), ("APPLICATION", application), ("AFTER", &moves)]
    {
        write!(variables, "export {name}='{value}'; ")?;
    }
    RunAs::User(&setting.user).bash(&format!(
        "cd {dir}; {variables}(echo '#!/bin/bash'; cat job) >job.sh; \
         LC_ALL=C sbatch -Q --wait -N2 -o out job.sh || {{ cat out said >&2; exit 1; }}"
    ))?;
    let read = |name: &str| {
        let path = home.path.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let said = read("said")?;
    let (_, result) = said.split_once("result ").with_context(|| format!("{application}: {said}"))?;
    let frozen = match after {
        Some(_) => {
            serde_json::from_str::<Moved>(&read("moved")?).context("what skiff migrate prints")?.frozen_ms
        }
        None => 0.0,
    };
    Ok(Sample {
        took: workload::number_after(&said, "took ")? / 1e6,
        frozen: frozen / 1000.0,
        result: result.trim().into(),
    })
}
