//! Checkpoints of a process with so much memory: how fast they are saved and restored, against a plain write and read of as many bytes of the same
//! kind in the same file system, and how long the process stands still when it goes on and little has changed. What is read lies on the disk alone.

use std::path::Path;

use serde::Deserialize;

use super::Setting;
use super::migrate::HOLD;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::{stats, workload};

/// Holds memory, and changes 1 % of it whenever it is told to.
const CHANGE: &str = include_str!("change.py");
/// What it can be told, and what that is.
const CHANGES: [(&str, &str); 2] = [("spread", "each page by itself"), ("piece", "in one piece")];
/// Rounds where nobody has said how many: so that all takes a few minutes.
const ROUNDS: usize = 5;
/// The most that a save and a restore may take, as multiples of the plain write and read.
const MOST_SAVED: f64 = 1.3;
const MOST_RESTORED: f64 = 1.2;
/// How long processes may stand still, in milliseconds: in any case, and for each GiB that has changed.
const FROZEN: f64 = 150.0;
const FROZEN_PER_GIB: f64 = 50.0;
/// Part of the memory that changes.
const CHANGED: f64 = 0.01;

#[derive(clap::Args)]
pub struct Args {
    /// How much memory, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [512, 2048])]
    sizes: Vec<u64>,
}

/// What saving or restoring says of itself.
#[derive(Deserialize)]
struct Said {
    bytes: f64,
    total_ms: f64,
    #[serde(default)]
    frozen_ms: f64,
}

/// One round, in seconds.
struct Sample {
    bytes: f64,
    saved: f64,
    written: f64,
    restored: f64,
    read: f64,
}

/// What runs, and where.
struct Bench<'a> {
    setting: &'a Setting,
    dir: &'a Path,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["python3", "dd"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-checkpoint")?;
    home.write("hold.py", HOLD)?;
    home.write("change.py", CHANGE)?;
    let bench = Bench { setting, dir: &home.path };
    let rounds = setting.asked_rounds.unwrap_or(ROUNDS);
    let (mut series, mut claims) = (vec![], vec![]);
    for size in &args.sizes {
        let mut samples = vec![];
        for round in 0..rounds {
            eprintln!("{size} MiB, round {} of {rounds}", round + 1);
            samples.push(bench.sample(*size, round % 2 == 0)?);
        }
        evaluate(*size, &samples, (&mut series, &mut claims));
        eprintln!("{size} MiB, saved as it goes on");
        for ((_, what), frozen) in CHANGES.iter().zip(bench.frozen(*size, rounds)?) {
            let name = format!("{size} MiB, stands still, 1 % {what}");
            let most = FROZEN + FROZEN_PER_GIB * CHANGED * (*size as f64 / 1024.0);
            claims.push(LimitCheck::new(&*name, "ms", &frozen, most));
            series.push(Series::new(name, "ms", frozen));
        }
    }
    let is_time = |s: &&Series| s.unit == "s";
    let bars = series
        .iter()
        .filter(is_time)
        .map(|s| Bar::over_all(&s.name, "s", s.spread, s.name.contains("checkpoint")))
        .collect();
    let title = "A process with so much memory is saved and restored, s".into();
    Ok((BenchResult { name: "checkpoint", title, machine, lines: OVER_ALL, series, claims }, bars))
}

fn evaluate(size: u64, samples: &[Sample], (series, claims): (&mut Vec<Series>, &mut Vec<LimitCheck>)) {
    let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
    let (saved, written) = (all(|s| s.saved), all(|s| s.written));
    let (restored, read) = (all(|s| s.restored), all(|s| s.read));
    for (name, ratio, most) in [
        ("saved / written", stats::ratios(&saved, &written), MOST_SAVED),
        ("restored / read", stats::ratios(&restored, &read), MOST_RESTORED),
    ] {
        claims.push(LimitCheck::new(format!("{size} MiB, {name}"), "", &ratio, most));
    }
    for (name, times) in [
        ("checkpoint save", saved),
        ("as many bytes written", written),
        ("checkpoint restore", restored),
        ("as many bytes read", read),
    ] {
        series.push(Series::new(format!("{size} MiB, {name}"), "s", times));
    }
    let part = all(|s| s.bytes).iter().map(|bytes| bytes / (size << 20) as f64).collect();
    series.push(Series::new(format!("{size} MiB, size / memory"), "", part));
}

impl Bench<'_> {
    fn user(&self, script: &str) -> anyhow::Result<String> {
        let dir = self.dir.display();
        RunAs::User(&self.setting.user).bash(&format!("set -eu; cd {dir}; {script}"))
    }

    fn skiff(&self) -> String {
        let dir = self.dir.display();
        format!("export SKIFF_STATE={dir}/state XDG_DATA_HOME={dir}/data; {}", self.setting.skiff)
    }

    /// What a command of Skiff's says.
    fn ours(&self, words: &str) -> anyhow::Result<Said> {
        Ok(serde_json::from_str(&self.user(&format!("{} {words}", self.skiff()))?)?)
    }

    /// Of dd's last line the seconds.
    fn plain(&self, words: &str) -> anyhow::Result<f64> {
        let script = format!("LC_ALL=C dd bs=1M {words} 2>&1 | tail -n 1");
        workload::number_after(&self.user(&script)?, "copied, ")
    }

    /// Starts an instance of this program, and waits until it has its memory.
    fn start(&self, command: &str) -> anyhow::Result<()> {
        let (skiff, dir) = (self.skiff(), self.dir.display());
        let words = format!("instance start --checkpoint host held python3 {dir}/{command}");
        self.user(&format!("{skiff} {words}")).map(drop)?;
        self.wait_for("ready")
    }

    /// Waits until the program has said this.
    fn wait_for(&self, line: &str) -> anyhow::Result<()> {
        let skiff = self.skiff();
        let script = format!(
            "for try in $(seq 1200); do if {skiff} instance logs held | grep -qx '{line}'; then exit; fi; sleep 0.1; done; exit 1"
        );
        self.user(&script).map(drop)
    }

    fn remove(&self) -> anyhow::Result<()> {
        let skiff = self.skiff();
        self.user(&format!("rm -f turn.*; {skiff} instance rm --force held; {skiff} checkpoint delete held"))
            .map(drop)
    }

    /// `ours_first`: whether the plain write and read come after the checkpoint's.
    fn sample(&self, size: u64, ours_first: bool) -> anyhow::Result<Sample> {
        let cold = || RunAs::Root.bash("sync; echo 3 >/proc/sys/vm/drop_caches");
        self.start(&format!("hold.py {size} random"))?;
        // From memory, as a checkpoint's bytes come.
        let source = format!("/dev/shm/bench-checkpoint.{}", std::process::id());
        self.user(&format!("head -c {size}M /dev/urandom >{source}"))?;
        let write = || cold().and_then(|_| self.plain(&format!("if={source} of=plain conv=fsync")));
        let read = || cold().and_then(|_| self.plain("if=plain of=/dev/null"));
        let save = || cold().and_then(|_| self.ours("checkpoint save --json held"));
        let restore = || cold().and_then(|_| self.ours("checkpoint restore --json held"));
        let measured = (|| {
            let (saved, written) = if ours_first { (save()?, write()?) } else { swap(write()?, save()?) };
            self.user(&format!("rm {source}"))?;
            let (restored, read) = if ours_first { (restore()?, read()?) } else { swap(read()?, restore()?) };
            let seconds = |said: &Said| said.total_ms / 1000.0;
            let (bytes, saved, restored) = (saved.bytes, seconds(&saved), seconds(&restored));
            anyhow::Ok(Sample { bytes, saved, written, restored, read })
        })();
        self.user(&format!("rm -f {source} plain"))?;
        self.remove()?;
        measured
    }

    /// How long a process stands still that goes on and has changed 1 % since its last save, in milliseconds: for each way to change it.
    fn frozen(&self, size: u64, rounds: usize) -> anyhow::Result<[Vec<f64>; CHANGES.len()]> {
        self.start(&format!("change.py {size}"))?;
        let measured = self.saved_again_and_again(rounds);
        self.remove()?;
        measured
    }

    fn saved_again_and_again(&self, rounds: usize) -> anyhow::Result<[Vec<f64>; CHANGES.len()]> {
        let save = || self.ours("checkpoint save --leave-running --json held");
        // The first one reads all.
        save()?;
        let (mut frozen, mut turn) = (CHANGES.map(|_| vec![]), 0);
        for _ in 0..rounds {
            for ((word, _), times) in CHANGES.iter().zip(&mut frozen) {
                turn += 1;
                self.user(&format!("echo {word} >turn; mv turn turn.{turn}"))?;
                self.wait_for(&format!("changed {turn}"))?;
                times.push(save()?.frozen_ms);
            }
        }
        Ok(frozen)
    }
}

fn swap<A, B>(one: A, other: B) -> (B, A) {
    (other, one)
}
