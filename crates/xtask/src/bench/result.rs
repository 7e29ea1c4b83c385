//! What a benchmark leaves behind: a table on the terminal, `NAME.json` with every sample, `NAME.svg`.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::picture::{self, Bar};
use super::stats::Spread;

/// One run of one benchmark.
#[derive(Serialize)]
pub struct BenchResult {
    pub name: &'static str,
    pub title: String,
    pub machine: HostInfo,
    /// What the lines in the picture span.
    #[serde(skip)]
    pub lines: &'static str,
    pub series: Vec<Series>,
    pub claims: Vec<LimitCheck>,
}

/// Measurements of one thing, in the order they were taken.
#[derive(Clone, Serialize)]
pub struct Series {
    pub name: String,
    pub unit: &'static str,
    pub samples: Vec<f64>,
    pub spread: Spread,
}

impl Series {
    pub fn new(name: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { name: name.into(), unit, spread: Spread::of(&samples), samples }
    }
}

/// A figure with its limit.
#[derive(Serialize)]
pub struct LimitCheck {
    pub name: String,
    pub unit: &'static str,
    pub spread: Spread,
    pub limit: f64,
    pub verdict: Verdict,
}

/// What the measurement says about the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Pass,
    /// The median is over, but so little that this run cannot tell.
    Unclear,
    Over,
}

impl LimitCheck {
    pub fn new(name: impl Into<String>, unit: &'static str, values: &[f64], limit: f64) -> Self {
        let spread = Spread::of(values);
        let verdict = match spread {
            s if s.median <= limit => Verdict::Pass,
            s if s.from <= limit => Verdict::Unclear,
            _ => Verdict::Over,
        };
        Self { name: name.into(), unit, spread, limit, verdict }
    }
}

/// Where it was measured: figures from elsewhere do not compare.
#[derive(Serialize)]
pub struct HostInfo {
    kernel: String,
    processor: String,
    cores: usize,
    load_before: String,
    taken_at_unix: u64,
}

impl HostInfo {
    pub fn here() -> anyhow::Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("reading {path}"));
        let information = read("/proc/cpuinfo")?;
        let model = information.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease")?.trim().into(),
            processor: model.unwrap_or("unknown").into(),
            cores: std::thread::available_parallelism()?.get(),
            load_before: read("/proc/loadavg")?.trim().into(),
            taken_at_unix: std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs(),
        })
    }
}

/// For [`BenchResult::lines`].
pub const OVER_ALL: &str = "minimum to maximum";
pub const OVER_MEDIAN: &str = "where the median lies with 95 % confidence";

impl BenchResult {
    /// Prints the table and writes both files into `directory`.
    pub fn publish(&self, directory: &Path, bars: &[Bar]) -> anyhow::Result<()> {
        self.print();
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        let json = directory.join(format!("{}.json", self.name));
        let svg = directory.join(format!("{}.svg", self.name));
        std::fs::write(&json, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("writing {}", json.display()))?;
        let footer = format!(
            "{}, {} cores, Linux {}; bar: median, line: {}",
            self.machine.processor, self.machine.cores, self.machine.kernel, self.lines
        );
        std::fs::write(&svg, picture::draw(&self.title, &footer, bars))
            .with_context(|| format!("writing {}", svg.display()))?;
        println!("\n{} and {} written", json.display(), svg.display());
        Ok(())
    }

    fn print(&self) {
        println!("{} (load before: {})\n", self.title, self.machine.load_before);
        println!("{:44} {:>10} {:>10} {:>10}", "measured", "min", "median", "max");
        for Series { name, unit, spread, .. } in &self.series {
            println!("{name:44} {:10.3} {:10.3} {:10.3} {unit}", spread.min, spread.median, spread.max);
        }
        if !self.claims.is_empty() {
            println!("\n{:44} {:>10} {:>10} {:>10}", "promised", "min", "median", "max");
        }
        for LimitCheck { name, unit, spread, limit, verdict } in &self.claims {
            let verdict = format!("{verdict:?}").to_lowercase();
            let Spread { min, median, max, from, to } = spread;
            println!(
                "{name:44} {min:10.3} {median:10.3} {max:10.3} {unit:2} limit {limit:.3}: {verdict} \
                 (median 95 %: {from:.3} to {to:.3})"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        for (limit, verdict) in
            [(4.5, Verdict::Pass), (4.4, Verdict::Unclear), (1.0, Verdict::Unclear), (0.9, Verdict::Over)]
        {
            assert_eq!(LimitCheck::new("x", "", &values, limit).verdict, verdict, "{limit}");
        }
    }
}
