//! HPL that is moved while it runs: real memory, of which each page differs, and which is written all the time.

use anyhow::{Context, ensure};

use super::super::Setting;
use super::super::people::{self, UserDir};
use super::super::result::{LimitCheck, Series};
use super::super::{stats, workload};
use super::{FROZEN, LARGE, LIMIT, Moved, STILL_LIMIT, TOTAL, in_job, seconds, variables};

/// The ways that are compared, the last being what the others are compared with.
const MODES: [&str; 3] = ["diskless", "precopy", "disk"];

/// One run, in which it goes to and fro as often as there are rounds.
pub fn measure(
    setting: &Setting,
    home: &UserDir,
    unknowns: u64,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    people::require(&["hpcc"])?;
    let name = format!("HPL of {unknowns}");
    eprintln!("{name}: {} rounds", setting.rounds);
    home.write("hpccinf.txt", &workload::hpl_input(1, u32::try_from(unknowns)?, 1))?;
    home.write("hpcc.sh", include_str!("hpcc.sh"))?;
    home.write("hpl", include_str!("hpl.sh"))?;
    // In turn, and each from either node.
    let order = |round: usize| (0..MODES.len()).map(move |index| MODES[(round + index) % MODES.len()]);
    let order: Vec<&str> = (0..setting.rounds).flat_map(order).collect();
    let variables =
        variables(setting, &home.path, &[("SIZE", &unknowns.to_string()), ("ORDER", &order.join(" "))])?;
    in_job(setting, &home.path, &variables, "hpl")?;
    let moves = std::fs::read_to_string(home.path.join("moves")).context("what has been moved")?;
    let of = |mode: &str| -> anyhow::Result<Vec<Moved>> {
        let said = moves.lines().filter_map(|line| line.split_once(' ')).filter(|(by, _)| *by == mode);
        said.map(|(_, said)| serde_json::from_str(said).with_context(|| format!("{mode}: {said}"))).collect()
    };
    let mut times: Vec<[Vec<f64>; 2]> = vec![];
    let mut bytes = 0.0_f64;
    for mode in MODES {
        let samples = of(mode)?;
        ensure!(samples.len() == setting.rounds, "{name}: moved {} times by {mode}", samples.len());
        bytes = samples.iter().map(|moved| moved.memory_bytes).fold(bytes, f64::max);
        let [total, still] = [TOTAL, FROZEN].map(|time| seconds(&samples, time));
        series.push(Series::new(format!("{name}, {mode}"), "s", total.clone()));
        series.push(Series::new(format!("{name}, {mode}, standing still"), "s", still.clone()));
        times.push([total, still]);
    }
    let mib = bytes / f64::from(1 << 20);
    series.push(Series::new(format!("{name}, memory"), "MiB", vec![mib]));
    let [[diskless, _], [_, precopy], [disk, _]] = &times[..] else { return Ok(()) };
    for (what, times, limit) in
        [("diskless", diskless, LIMIT), ("precopy, standing still", precopy, STILL_LIMIT)]
    {
        let limit = if mib >= LARGE as f64 { limit } else { f64::INFINITY };
        claims.push(LimitCheck::new(
            format!("{name}, {what} / disk"),
            "",
            &stats::ratios(times, disk),
            limit,
        ));
    }
    Ok(())
}
