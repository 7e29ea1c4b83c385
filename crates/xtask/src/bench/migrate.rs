//! Moving an instance from one node to another: from memory to memory, by files in the home, and as CRIU's own page server does it; in
//! all, and how long the processes stand still. What is in memory cannot be compressed.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::Setting;
use super::people::{self, Scratch, Who};
use super::picture::Bar;
use super::record::{Claim, Machine, OVER_ALL, Record, Series};
use super::stats;

/// Of the time that files take.
const LIMIT: f64 = 0.45;
/// In MiB: below, what is the same for every size counts most.
const LARGE: u64 = 512;

/// Holds so many MiB, and says when it does.
const PROGRAM: &str = "import os, sys, time
os.closerange(3, 256)  # whatever a shell has left open leads out of its node
size = int(sys.argv[1]) << 20
block = os.urandom(min(size, 64 << 20))
memory = bytearray(size)
for at in range(0, size, len(block)):
    memory[at:at + len(block)] = block[:min(len(block), size - at)]
    memory[at:at + 8] = os.urandom(8)
print('ready', flush=True)
while True:
    time.sleep(0.1)
";

/// In a job, on its first node: starts one, moves it, ends it.
const JOB: &str = "set -eu
export SKIFF_STATE=/tmp/bench-migrate
$SKIFF instance start --checkpoint host held python3 $DIR/hold.py $SIZE
until $SKIFF instance logs held | grep -q ready; do sleep 0.05; done
$SKIFF migrate --json --mode $MODE held n2 >$DIR/moved
srun -Q --overlap -N1 -n1 -w n2 $SKIFF instance rm --force held
$SKIFF instance rm held
";

/// As root and without a container, which costs it nothing that ours has to do: CRIU as its manual has it, with the images in memory.
const CRIU: &str = "set -eu
criu=\"$FOLDER/ld.so --library-path $FOLDER/lib $FOLDER/criu --no-default-config\"
images=/dev/shm/bench-migrate
now() { e=$EPOCHREALTIME; echo ${e/./}; }
export criu images
on n1 bash -c 'rm -rf $images; mkdir $images; echo 20000 >/proc/sys/kernel/ns_last_pid; setsid python3 $DIR/hold.py $SIZE </dev/null >$DIR/said 2>&1 & echo $! >$DIR/pid'
until grep -q ready $DIR/said; do sleep 0.05; done
on n2 bash -c 'rm -rf $images; mkdir $images'
begin=$(now)
on n2 bash -c '$criu page-server --images-dir $images --address 0.0.0.0 --port 7788 --daemon --pidfile $images/pid'
stop=$(now)
on n1 bash -c '$criu dump --tree $(cat $DIR/pid) --images-dir $images --page-server --address n2 --port 7788'
on n1 tar -C $images -cf - . | on n2 tar -C $images -xf -
on n2 bash -c '$criu restore --images-dir $images --restore-detached --pidfile $images/main'
end=$(now)
on n2 bash -c 'kill -9 $(cat $images/main); rm -rf $images'
on n1 rm -rf /dev/shm/bench-migrate
echo \"{\\\"total_ms\\\": $(((end - begin) / 1000)), \\\"frozen_ms\\\": $(((end - stop) / 1000))}\"
";

#[derive(clap::Args)]
pub struct Args {
    /// How much memory, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256, 1024, 2048])]
    sizes: Vec<u64>,
}

/// What a move says of itself.
#[derive(Clone, Copy, Deserialize)]
struct Moved {
    total_ms: f64,
    frozen_ms: f64,
}

/// By which way.
const WAYS: [&str; 3] = ["diskless", "disk", "CRIU page server"];

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(Record, Vec<Bar>)> {
    people::require(&["sbatch", "python3", "on", "tar"])?;
    let machine = Machine::here()?;
    let home = Scratch::new(&setting.user, "bench-migrate")?;
    home.write("hold.py", PROGRAM)?;
    home.write("job", JOB)?;
    home.write("said", "")?;
    let (mut series, mut claims) = (vec![], vec![]);
    for size in &args.sizes {
        let mut samples: [Vec<Moved>; 3] = Default::default();
        for round in 0..setting.rounds {
            eprintln!("{size} MiB, round {} of {}", round + 1, setting.rounds);
            for index in 0..WAYS.len() {
                let index = (round + index) % WAYS.len();
                samples[index].push(sample(setting, &home.path, WAYS[index], *size)?);
            }
        }
        let of =
            |way: usize, what: fn(&Moved) -> f64| -> Vec<f64> { samples[way].iter().map(what).collect() };
        let total = |way| of(way, |moved| moved.total_ms / 1000.0);
        let frozen = |way| of(way, |moved| moved.frozen_ms / 1000.0);
        let limit = if *size >= LARGE { LIMIT } else { f64::INFINITY };
        let ratio = stats::ratios(&total(0), &total(1));
        claims.push(Claim::new(format!("{size} MiB, diskless / disk"), "", &ratio, limit));
        let ratio = stats::ratios(&frozen(0), &frozen(2));
        claims.push(Claim::new(
            format!("{size} MiB, standing still, diskless / CRIU page server"),
            "",
            &ratio,
            1.0,
        ));
        for (at, way) in WAYS.iter().enumerate() {
            series.push(Series::new(format!("{size} MiB, {way}"), "s", total(at)));
            series.push(Series::new(format!("{size} MiB, {way}, standing still"), "s", frozen(at)));
        }
    }
    let bars =
        series.iter().map(|s| Bar::over_all(&s.name, "s", s.spread, s.name.contains("diskless"))).collect();
    let title = "A process with so much memory goes to another node, s".into();
    Ok((Record { name: "migrate", title, machine, lines: OVER_ALL, series, claims }, bars))
}

/// One move.
fn sample(setting: &Setting, dir: &Path, way: &str, size: u64) -> anyhow::Result<Moved> {
    let mut variables = String::new();
    let folder = Path::new(&setting.skiff)
        .parent()
        .and_then(Path::parent)
        .map(|prefix| prefix.join("libexec/skiff/criu"));
    let folder =
        folder.filter(|folder| folder.join("criu").exists()).context("CRIU is not installed with skiff")?;
    for (name, value) in [
        ("SKIFF", setting.skiff.as_str()),
        ("DIR", &dir.display().to_string()),
        ("SIZE", &size.to_string()),
        ("MODE", way),
        ("FOLDER", &folder.display().to_string()),
    ] {
        write!(variables, "export {name}='{value}'; ")?;
    }
    let said = if way == WAYS[2] {
        let said = Who::Root.bash(&format!("{variables}{CRIU}"))?;
        said.lines().last().unwrap_or_default().to_owned()
    } else {
        let job = format!(
            "{variables}LC_ALL=C sbatch -Q --wait -N2 -o {0}/out {0}/job.sh || {{ cat {0}/out >&2; exit 1; }}",
            dir.display()
        );
        Who::User(&setting.user)
            .bash(&format!("(echo '#!/bin/bash'; cat {0}/job) >{0}/job.sh; {job}", dir.display()))?;
        std::fs::read_to_string(dir.join("moved")).context("what has been moved")?
    };
    ensure!(!said.is_empty(), "{way}: it says nothing of how long it took");
    serde_json::from_str(&said).with_context(|| format!("{way}: {said}"))
}
