//! Checkpoints of a process with so much memory: how large they are, and how fast they are saved and restored, against a plain write and
//! read of as many bytes of the same kind in the same file system. What is read lies on the disk alone.

use std::path::Path;

use serde::Deserialize;

use super::Setting;
use super::migrate::HOLD;
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::{stats, workload};

#[derive(clap::Args)]
pub struct Args {
    /// How much memory, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512, 2048])]
    sizes: Vec<u64>,
}

/// What saving or restoring says of itself.
#[derive(Deserialize)]
struct Said {
    bytes: f64,
    total_ms: f64,
}

/// One round, in seconds.
struct Sample {
    bytes: f64,
    saved: f64,
    written: f64,
    restored: f64,
    read: f64,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["python3", "dd"])?;
    let machine = HostInfo::here()?;
    let home = UserDir::new(&setting.user, "bench-checkpoint")?;
    home.write("hold.py", HOLD)?;
    let (mut series, mut claims) = (vec![], vec![]);
    for size in &args.sizes {
        let mut samples = vec![];
        for round in 0..setting.rounds {
            eprintln!("{size} MiB, round {} of {}", round + 1, setting.rounds);
            samples.push(sample(setting, &home.path, *size, round % 2 == 0)?);
        }
        let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
        let (saved, written) = (all(|s| s.saved), all(|s| s.written));
        let (restored, read) = (all(|s| s.restored), all(|s| s.read));
        for (name, ratio) in [
            ("saved / written", stats::ratios(&saved, &written)),
            ("restored / read", stats::ratios(&restored, &read)),
            ("size / memory", all(|s| s.bytes).iter().map(|bytes| bytes / (size << 20) as f64).collect()),
        ] {
            claims.push(LimitCheck::new(format!("{size} MiB, {name}"), "", &ratio, f64::INFINITY));
        }
        for (name, times) in [
            ("checkpoint save", saved),
            ("as many bytes written", written),
            ("checkpoint restore", restored),
            ("as many bytes read", read),
        ] {
            series.push(Series::new(format!("{size} MiB, {name}"), "s", times));
        }
    }
    let bars =
        series.iter().map(|s| Bar::over_all(&s.name, "s", s.spread, s.name.contains("checkpoint"))).collect();
    let title = "A process with so much memory is saved and restored, s".into();
    Ok((BenchResult { name: "checkpoint", title, machine, lines: OVER_ALL, series, claims }, bars))
}

/// `ours_first`: whether the plain write and read come after the checkpoint's.
fn sample(setting: &Setting, dir: &Path, size: u64, ours_first: bool) -> anyhow::Result<Sample> {
    let dir = dir.display();
    let skiff = format!("export SKIFF_STATE={dir}/state XDG_DATA_HOME={dir}/data; {}", setting.skiff);
    let user = |script: &str| RunAs::User(&setting.user).bash(&format!("set -eu; cd {dir}; {script}"));
    let ours = |words: &str| -> anyhow::Result<Said> {
        Ok(serde_json::from_str(&user(&format!("{skiff} {words}"))?)?)
    };
    // Of dd's last line the seconds.
    let plain = |words: &str| -> anyhow::Result<f64> {
        workload::number_after(&user(&format!("LC_ALL=C dd bs=1M {words} 2>&1 | tail -n 1"))?, "copied, ")
    };
    let cold = || RunAs::Root.bash("sync; echo 3 >/proc/sys/vm/drop_caches");
    user(&format!(
        "{skiff} instance start --checkpoint host held python3 {dir}/hold.py {size} random; \
         until {skiff} instance logs held | grep -q ready; do sleep 0.05; done"
    ))?;
    // From memory, as a checkpoint's bytes come.
    let source = format!("/dev/shm/bench-checkpoint.{}", std::process::id());
    user(&format!("head -c {size}M /dev/urandom >{source}"))?;
    let write = || {
        cold()?;
        plain(&format!("if={source} of=plain conv=fsync"))
    };
    let read = || {
        cold()?;
        plain("if=plain of=/dev/null")
    };
    let save = || {
        cold()?;
        ours("checkpoint save --json held")
    };
    let restore = || {
        cold()?;
        ours("checkpoint restore --json held")
    };
    let measured = (|| {
        let (saved, written) = if ours_first { (save()?, write()?) } else { swap(write()?, save()?) };
        user(&format!("rm {source}"))?;
        let (restored, read) = if ours_first { (restore()?, read()?) } else { swap(read()?, restore()?) };
        let seconds = |said: &Said| said.total_ms / 1000.0;
        let (bytes, saved, restored) = (saved.bytes, seconds(&saved), seconds(&restored));
        anyhow::Ok(Sample { bytes, saved, written, restored, read })
    })();
    user(&format!("rm -f {source} plain; {skiff} instance rm --force held; {skiff} checkpoint delete held"))?;
    measured
}

fn swap<A, B>(one: A, other: B) -> (B, A) {
    (other, one)
}
