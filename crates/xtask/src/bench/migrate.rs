//! Moving an instance from one node to another: from memory to memory, by files in the home, and as CRIU's own page server does it; in
//! all, and how long the processes stand still. What is in memory cannot be compressed. Beside it what nobody can beat: a program that
//! sends so many bytes out of its memory into that of one on the other node, which has it all ready; and the same move by a slow link.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::Setting;
use super::people::{self, Scratch, Who};
use super::picture::Bar;
use super::record::{Claim, Machine, OVER_ALL, Record, Series};
use super::stats;

/// Of the time that files take.
const LIMIT: f64 = 0.45;
/// Of the time that a slow link takes for the bytes alone.
const LINK_LIMIT: f64 = 1.15;
/// Bits a second of that.
const LINK: f64 = 1e9;
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

/// Sends so many MiB, and says how long that took until they were there.
const SOURCE: &str = "import os, socket, sys, time
size = int(sys.argv[1]) << 20
block = os.urandom(min(size, 64 << 20))
memory = bytearray(block * (size // len(block)))
while True:
    try:
        peer = socket.create_connection(('n2', 7789))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
begin = time.monotonic()
peer.sendall(memory)
peer.recv(1)
ms = (time.monotonic() - begin) * 1000
print('{\"total_ms\": %f, \"frozen_ms\": %f}' % (ms, ms))
";

/// Takes them.
const SINK: &str = "import socket, sys
size = int(sys.argv[1]) << 20
memory = bytearray(size)
for at in range(0, size, 4096):
    memory[at] = 1
peer, view, at = socket.create_server(('', 7789)).accept()[0], memoryview(memory), 0
while at < size:
    at += peer.recv_into(view[at:at + (1 << 20)])
peer.sendall(b'+')
";

/// Nothing but the bytes.
const COPY: &str = "on n2 python3 $DIR/sink.py $SIZE & on n1 python3 $DIR/source.py $SIZE; wait";

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
    /// Through the connection.
    #[serde(default)]
    memory_bytes: f64,
}

/// By which way.
const WAYS: [&str; 5] = ["diskless", "disk", "CRIU page server", "bytes alone", "diskless, 1 Gbit/s"];

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(Record, Vec<Bar>)> {
    people::require(&["sbatch", "python3", "on", "tar", "tc"])?;
    let machine = Machine::here()?;
    let home = Scratch::new(&setting.user, "bench-migrate")?;
    for (name, text) in
        [("hold.py", PROGRAM), ("job", JOB), ("source.py", SOURCE), ("sink.py", SINK), ("said", "")]
    {
        home.write(name, text)?;
    }
    let (mut series, mut claims) = (vec![], vec![]);
    for size in &args.sizes {
        let mut samples: [Vec<Moved>; WAYS.len()] = Default::default();
        for round in 0..setting.rounds {
            eprintln!("{size} MiB, round {} of {}", round + 1, setting.rounds);
            for index in 0..WAYS.len() {
                let index = (round + index) % WAYS.len();
                samples[index].push(sample(setting, &home.path, WAYS[index], *size)?);
            }
        }
        claims.extend(promised(*size, &samples));
        for (way, samples) in WAYS.iter().zip(&samples) {
            series.push(Series::new(
                format!("{size} MiB, {way}"),
                "s",
                seconds(samples, |moved| moved.total_ms),
            ));
            let frozen = seconds(samples, |moved| moved.frozen_ms);
            series.push(Series::new(format!("{size} MiB, {way}, standing still"), "s", frozen));
        }
    }
    let bars =
        series.iter().map(|s| Bar::over_all(&s.name, "s", s.spread, s.name.contains("diskless"))).collect();
    let title = "A process with so much memory goes to another node, s".into();
    Ok((Record { name: "migrate", title, machine, lines: OVER_ALL, series, claims }, bars))
}

fn seconds(samples: &[Moved], what: fn(&Moved) -> f64) -> Vec<f64> {
    samples.iter().map(|moved| what(moved) / 1000.0).collect()
}

/// What is said of one size.
fn promised(size: u64, samples: &[Vec<Moved>; WAYS.len()]) -> Vec<Claim> {
    let [ours, disk, criu, copy, slow] = samples;
    let total = |samples| seconds(samples, |moved| moved.total_ms);
    let frozen = |samples| seconds(samples, |moved| moved.frozen_ms);
    let link: Vec<f64> = slow.iter().map(|moved| moved.memory_bytes * 8.0 / LINK).collect();
    let large = |limit| if size >= LARGE { limit } else { f64::INFINITY };
    [
        ("diskless / disk", stats::ratios(&total(ours), &total(disk)), large(LIMIT)),
        ("diskless / CRIU page server", stats::ratios(&total(ours), &total(criu)), 1.0),
        ("standing still, diskless / CRIU page server", stats::ratios(&frozen(ours), &frozen(criu)), 1.0),
        ("diskless / bytes alone", stats::ratios(&total(ours), &total(copy)), f64::INFINITY),
        ("diskless, 1 Gbit/s / bytes over link", stats::ratios(&total(slow), &link), large(LINK_LIMIT)),
    ]
    .map(|(name, ratio, limit)| Claim::new(format!("{size} MiB, {name}"), "", &ratio, limit))
    .into()
}

/// While it is there, what the first node sends goes through a slow link.
struct SlowLink;

impl SlowLink {
    fn begin() -> anyhow::Result<Self> {
        Who::Root.bash("on n1 tc qdisc add dev e-n1 root tbf rate 1gbit burst 256k latency 50ms")?;
        Ok(Self)
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        if let Err(e) = Who::Root.bash("on n1 tc qdisc del dev e-n1 root") {
            eprintln!("bench: the link stays slow: {e}");
        }
    }
}

/// One move.
fn sample(setting: &Setting, dir: &Path, way: &str, size: u64) -> anyhow::Result<Moved> {
    let mode = way.split(',').next().unwrap_or(way);
    let _slow = (mode != way).then(SlowLink::begin).transpose()?;
    let mut variables = String::new();
    let folder = criu(setting)?;
    for (name, value) in [
        ("SKIFF", setting.skiff.as_str()),
        ("DIR", &dir.display().to_string()),
        ("SIZE", &size.to_string()),
        ("MODE", mode),
        ("FOLDER", &folder.display().to_string()),
    ] {
        write!(variables, "export {name}='{value}'; ")?;
    }
    let as_root = |script| {
        let said = Who::Root.bash(&format!("{variables}{script}"))?;
        anyhow::Ok(said.lines().last().unwrap_or_default().to_owned())
    };
    let said = match way {
        way if way == WAYS[2] => as_root(CRIU)?,
        way if way == WAYS[3] => as_root(COPY)?,
        _ => {
            let job = format!(
                "{variables}LC_ALL=C sbatch -Q --wait -N2 -o {0}/out {0}/job.sh || {{ cat {0}/out >&2; exit 1; }}",
                dir.display()
            );
            Who::User(&setting.user)
                .bash(&format!("(echo '#!/bin/bash'; cat {0}/job) >{0}/job.sh; {job}", dir.display()))?;
            std::fs::read_to_string(dir.join("moved")).context("what has been moved")?
        }
    };
    ensure!(!said.is_empty(), "{way}: it says nothing of how long it took");
    serde_json::from_str(&said).with_context(|| format!("{way}: {said}"))
}

/// Where the CRIU is that Skiff is installed with.
fn criu(setting: &Setting) -> anyhow::Result<PathBuf> {
    let prefix = Path::new(&setting.skiff).parent().and_then(Path::parent);
    let folder = prefix.map(|prefix| prefix.join("libexec/skiff/criu"));
    folder.filter(|folder| folder.join("criu").exists()).context("CRIU is not installed with skiff")
}
