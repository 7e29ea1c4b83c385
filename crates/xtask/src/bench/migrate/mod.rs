//! Moving an instance from one node to another: from memory to memory, by files in the home, and as CRIU's own page server does it; in
//! all, and how long the processes stand still. Beside it what nobody can beat: the slowest of reading so much memory, of sending it, and of
//! finding and filling it anew; and the same move by a slow link, of memory that can be packed, too. Last, HPL while it runs.

mod hpl;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::Setting;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats;

/// Of the time that files take.
const LIMIT: f64 = 0.45;
/// Of that, for how long the processes may stand still where memory goes before they are stopped.
const STILL_LIMIT: f64 = 0.1;
/// Of the time that a slow link takes for the bytes alone.
const LINK_LIMIT: f64 = 1.15;
/// Bits a second of that.
const LINK: f64 = 1e9;
/// In MiB: below, what is the same for every size counts most.
const LARGE: u64 = 512;

/// Holds memory of a kind, and says when it does.
pub const HOLD: &str = include_str!("hold.py");

#[derive(clap::Args)]
pub struct Args {
    /// How much memory, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256, 1024, 2048])]
    sizes: Vec<u64>,
    /// Which ways
    #[arg(long, value_delimiter = ',', value_parser = WAYS.map(|way| way.key), default_values_t = WAYS.map(|way| way.key.to_owned()))]
    ways: Vec<String>,
    /// HPL with so many unknowns, each of which needs 8 bytes for each; without a number, no HPL
    #[arg(long, value_name = "UNKNOWNS", num_args = 0.., value_delimiter = ',', default_values_t = [4096, 8192])]
    hpl: Vec<u64>,
}

/// What a move says of itself.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Moved {
    total_ms: f64,
    frozen_ms: f64,
    memory_bytes: f64,
    /// As which so many went through the connection.
    sent_bytes: f64,
    /// Where nothing is moved: how long the same bytes take to be read, and to be filled into new memory.
    read_ms: f64,
    fill_ms: f64,
}

/// A way for memory to get there.
struct Way {
    key: &'static str,
    name: &'static str,
    by: By,
    /// What the memory holds.
    kind: &'static str,
    /// Whether the link is slow.
    slow: bool,
}

enum By {
    /// `skiff migrate` with these options.
    Skiff(&'static str),
    Criu,
    Copy,
}

const fn way(key: &'static str, name: &'static str, by: By) -> Way {
    Way { key, name, by, kind: "random", slow: false }
}

const fn slow(key: &'static str, name: &'static str, kind: &'static str, options: &'static str) -> Way {
    Way { key, name, by: By::Skiff(options), kind, slow: true }
}

const WAYS: [Way; 9] = [
    way("diskless", "diskless", By::Skiff("--mode diskless")),
    way("precopy", "precopy", By::Skiff("--mode precopy")),
    way("disk", "disk", By::Skiff("--mode disk")),
    way("criu", "CRIU page server", By::Criu),
    way("bytes", "bytes alone", By::Copy),
    slow("slow", "diskless, 1 Gbit/s", "random", "--compress off"),
    slow("slow-precopy", "precopy, 1 Gbit/s", "random", "--mode precopy --compress off"),
    slow("packed", "text, 1 Gbit/s, --compress auto", "text", "--compress auto"),
    slow("unpacked", "text, 1 Gbit/s, --compress off", "text", "--compress off"),
];

/// Something of a sample, in milliseconds.
type Time = fn(&Moved) -> f64;

const TOTAL: Time = |moved| moved.total_ms;
const FROZEN: Time = |moved| moved.frozen_ms;
/// The bytes over the slowest of what has to be done with each.
const FLOOR: Time = |moved| moved.total_ms.max(moved.read_ms).max(moved.fill_ms);
const BY_LINK: Time = |moved| moved.memory_bytes * 8.0 / LINK * 1000.0;

/// What is compared: a name, two ways and what of them, the limit, and whether that is for large ones only.
struct Compared {
    name: &'static str,
    of: [(&'static str, Time); 2],
    limit: f64,
    large: bool,
}

const fn compared(name: &'static str, one: (&'static str, Time), other: (&'static str, Time)) -> Compared {
    Compared { name, of: [one, other], limit: f64::INFINITY, large: false }
}

const COMPARED: [Compared; 10] = [
    Compared {
        limit: LIMIT,
        large: true,
        ..compared("diskless / disk", ("diskless", TOTAL), ("disk", TOTAL))
    },
    Compared { limit: 1.0, ..compared("diskless / CRIU page server", ("diskless", TOTAL), ("criu", TOTAL)) },
    Compared {
        limit: 1.0,
        ..compared("standing still, diskless / CRIU page server", ("diskless", FROZEN), ("criu", FROZEN))
    },
    Compared {
        limit: STILL_LIMIT,
        large: true,
        ..compared("precopy, standing still / disk", ("precopy", FROZEN), ("disk", TOTAL))
    },
    compared("precopy / diskless", ("precopy", TOTAL), ("diskless", TOTAL)),
    compared("diskless / slowest of read, link, fill", ("diskless", TOTAL), ("bytes", FLOOR)),
    compared("disk / slowest of read, link, fill", ("disk", TOTAL), ("bytes", FLOOR)),
    Compared {
        limit: LINK_LIMIT,
        large: true,
        ..compared("1 Gbit/s / bytes over link", ("slow", TOTAL), ("slow", BY_LINK))
    },
    Compared {
        limit: LINK_LIMIT,
        large: true,
        ..compared("precopy, 1 Gbit/s / bytes over link", ("slow-precopy", TOTAL), ("slow-precopy", BY_LINK))
    },
    Compared {
        limit: 1.0,
        ..compared("text, 1 Gbit/s, --compress auto / off", ("packed", TOTAL), ("unpacked", TOTAL))
    },
];

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["sbatch", "python3", "on", "tar", "tc"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-migrate")?;
    for (name, text) in [
        ("hold.py", HOLD),
        ("job", include_str!("job.sh")),
        ("source.py", include_str!("source.py")),
        ("sink.py", include_str!("sink.py")),
        ("said", ""),
    ] {
        home.write(name, text)?;
    }
    let ways: Vec<&Way> = WAYS.iter().filter(|way| args.ways.iter().any(|key| key == way.key)).collect();
    let (mut series, mut claims) = (vec![], vec![]);
    for size in &args.sizes {
        let mut samples: Vec<Vec<Moved>> = ways.iter().map(|_| vec![]).collect();
        for round in 0..setting.rounds {
            for index in (0..ways.len()).map(|index| (round + index) % ways.len()) {
                eprintln!("{size} MiB, round {} of {}: {}", round + 1, setting.rounds, ways[index].name);
                samples[index].push(sample(setting, &home.path, ways[index], *size)?);
            }
        }
        let samples: Vec<(&Way, Vec<Moved>)> = ways.iter().copied().zip(samples).collect();
        claims.extend(promised(*size, &samples));
        samples.iter().for_each(|(way, samples)| series.extend(measured(*size, way, samples)));
    }
    for unknowns in &args.hpl {
        hpl::measure(setting, &home, *unknowns, &mut series, &mut claims)?;
    }
    let times = series.iter().filter(|s| s.unit == "s");
    let bars = times.map(|s| Bar::over_all(&s.name, "s", s.spread, ours(&s.name))).collect();
    let title = "A process with so much memory goes to another node, s".into();
    Ok((BenchResult { name: "migrate", title, machine, lines: OVER_ALL, series, claims }, bars))
}

fn ours(name: &str) -> bool {
    ["diskless", "precopy", "compress"].iter().any(|word| name.contains(word))
}

fn seconds(samples: &[Moved], what: Time) -> Vec<f64> {
    samples.iter().map(|moved| what(moved) / 1000.0).collect()
}

/// What is shown of one size and way.
fn measured(size: u64, way: &Way, samples: &[Moved]) -> Vec<Series> {
    let all: &[(&str, Time)] = match way.by {
        By::Copy => &[(", by the link", TOTAL), (", read", |m| m.read_ms), (", filled", |m| m.fill_ms)],
        _ => &[("", TOTAL), (", standing still", FROZEN)],
    };
    let name = way.name;
    let series = |(what, time): &(&str, Time)| {
        Series::new(format!("{size} MiB, {name}{what}"), "s", seconds(samples, *time))
    };
    all.iter().map(series).collect()
}

/// What is said of one size.
fn promised(size: u64, samples: &[(&Way, Vec<Moved>)]) -> Vec<LimitCheck> {
    let of = |(key, time): &(&str, Time)| {
        samples.iter().find(|(way, _)| way.key == *key).map(|(_, samples)| seconds(samples, *time))
    };
    let claim = |Compared { name, of: [one, other], limit, large }: &Compared| {
        let limit = if *large && size < LARGE { f64::INFINITY } else { *limit };
        Some(LimitCheck::new(
            format!("{size} MiB, {name}"),
            "",
            &stats::ratios(&of(one)?, &of(other)?),
            limit,
        ))
    };
    COMPARED.iter().filter_map(claim).collect()
}

/// While it is there, what the first node sends goes through a slow link.
struct SlowLink;

impl SlowLink {
    fn begin() -> anyhow::Result<Self> {
        RunAs::Root.bash("on n1 tc qdisc add dev e-n1 root tbf rate 1gbit burst 256k latency 50ms")?;
        Ok(Self)
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        if let Err(e) = RunAs::Root.bash("on n1 tc qdisc del dev e-n1 root") {
            eprintln!("bench: the link stays slow: {e}");
        }
    }
}

/// One move.
fn sample(setting: &Setting, dir: &Path, way: &Way, size: u64) -> anyhow::Result<Moved> {
    let _slow = way.slow.then(SlowLink::begin).transpose()?;
    let options = if let By::Skiff(options) = way.by { options } else { "" };
    let variables =
        variables(setting, dir, &[("SIZE", &size.to_string()), ("KIND", way.kind), ("OPTIONS", options)])?;
    let as_root = |script| {
        let said = RunAs::Root.bash(&format!("{variables}{script}"))?;
        anyhow::Ok(said.lines().last().unwrap_or_default().to_owned())
    };
    let said = match way.by {
        By::Criu => as_root(include_str!("criu.sh"))?,
        By::Copy => as_root(include_str!("copy.sh"))?,
        By::Skiff(_) => {
            in_job(setting, dir, &variables, "job")?;
            std::fs::read_to_string(dir.join("moved")).context("what has been moved")?
        }
    };
    ensure!(!said.is_empty(), "{}: it says nothing of how long it took", way.name);
    serde_json::from_str(&said).with_context(|| format!("{}: {said}", way.name))
}

/// For a shell: what all scripts know, and these.
fn variables(setting: &Setting, dir: &Path, others: &[(&str, &str)]) -> anyhow::Result<String> {
    let (dir, folder) = (dir.display().to_string(), criu(setting)?.display().to_string());
    let mut text = String::new();
    let usual = [("SKIFF", setting.skiff.as_str()), ("DIR", &dir), ("FOLDER", &folder)];
    for (name, value) in usual.iter().chain(others) {
        write!(text, "export {name}='{value}'; ")?;
    }
    Ok(text)
}

/// Runs a script of the directory in a job on both nodes, and waits for its end.
fn in_job(setting: &Setting, dir: &Path, variables: &str, script: &str) -> anyhow::Result<()> {
    let dir = dir.display();
    RunAs::User(&setting.user)
        .bash(&format!(
            "cd {dir}; {variables}(echo '#!/bin/bash'; cat {script}) >job.sh; \
             LC_ALL=C sbatch -Q --wait -N2 -o out job.sh || {{ cat out >&2; exit 1; }}"
        ))
        .map(drop)
}

/// Where the CRIU is that Skiff is installed with.
fn criu(setting: &Setting) -> anyhow::Result<PathBuf> {
    let prefix = Path::new(&setting.skiff).parent().and_then(Path::parent);
    let folder = prefix.map(|prefix| prefix.join("libexec/skiff/criu"));
    folder.filter(|folder| folder.join("criu").exists()).context("CRIU is not installed with skiff")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_measured() {
        let known = |key: &str| WAYS.iter().any(|way| way.key == key);
        assert!(COMPARED.iter().flat_map(|compared| compared.of).all(|(key, _)| known(key)));
        let moved = |total_ms| Moved { total_ms, fill_ms: 2000.0, ..Moved::default() };
        let samples = [(&WAYS[0], vec![moved(5000.0)]), (&WAYS[4], vec![moved(1000.0)])];
        let claims = promised(1024, &samples);
        assert_eq!(claims.iter().map(|claim| claim.spread.median).collect::<Vec<_>>(), [2.5]);
    }
}
