//! Times a snapshot of a directory on its way to a cache: `measure DIR WORK`, where WORK is an empty directory for the depot, the
//! cache and the index. Prints one line of JSON per step, with the most memory until its end. `measure DIR WORK push` ends after the submissions: the first, and then 20 of what
//! has not changed. `measure DIR WORK change` ends after the first one and one of a new file, of which it leaves none.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use skiff_snapshot::{Cache, Depot, DiffOptions, MergePolicy, SnapshotInput, diff, fetch, push};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(dir), Some(work)) = (args.next(), args.next()) else {
        return Err("measure DIR WORK [push]".into());
    };
    let (dir, last) = (&dir, args.next());
    let (only_push, only_change) = (last.is_some(), last.is_some_and(|word| word.as_os_str() == "change"));
    for part in ["base", "state"] {
        std::fs::create_dir_all(work.join(part))?;
    }
    let depot = Depot::open(&work.join("depot"))?;
    let cache = Cache::open(&work.join("cache"), u64::MAX)?;
    let open = |part: &str| std::fs::File::open(work.join(part));
    let (upper, base, state) = (std::fs::File::open(dir)?, open("base")?, open("state")?);
    let none = BTreeMap::new();
    let input = SnapshotInput {
        environment: "measure",
        upper: upper.as_fd(),
        base: base.as_fd(),
        state: state.as_fd(),
        base_fingerprint: &none,
        merge: MergePolicy::default(),
    };
    for step in std::iter::once("push").chain([AGAIN; 20].into_iter().take(if only_change {
        0
    } else if only_push {
        20
    } else {
        2
    })) {
        let begin = Instant::now();
        let pushed = push(&depot, &input)?;
        tell(step, begin, &format!("{:?} entries={}", pushed.how, pushed.entries), pushed.bytes);
    }
    if only_change {
        let new = dir.join("new-by-measure");
        std::fs::write(&new, "")?;
        let begin = Instant::now();
        let pushed = push(&depot, &input)?;
        std::fs::remove_file(new)?;
        tell(
            "push of a change",
            begin,
            &format!("{:?} entries={}", pushed.how, pushed.entries),
            pushed.bytes,
        );
    }
    if only_push {
        return Ok(());
    }
    let id = push(&depot, &input)?.id;
    for step in ["fetch", "fetch again"] {
        let begin = Instant::now();
        let layers = fetch(&depot, &id, &cache)?;
        let bytes = depot.manifest(&id)?.layers.iter().map(|layer| layer.size).sum();
        tell(step, begin, &format!("layers={}", layers.len()), bytes);
    }
    let begin = Instant::now();
    let changes = diff(upper.as_fd(), base.as_fd(), &DiffOptions::default())?;
    tell("diff", begin, &format!("changes={}", changes.len()), 0);
    Ok(())
}

const AGAIN: &str = "push again";

fn tell(step: &str, begin: Instant, what: &str, bytes: u64) {
    let seconds = begin.elapsed().as_secs_f64();
    let rate = bytes as f64 / 1e6 / seconds;
    println!(
        r#"{{"step":"{step}","ms":{:.2},"bytes":{bytes},"mb_per_s":{rate:.0},"peak_mb":{:.0},"what":"{what}"}}"#,
        seconds * 1e3,
        peak()
    );
}

/// The most memory that this process has had so far, in megabytes.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_else(|_| String::new());
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kibibytes.map_or(f64::NAN, |kibibytes| kibibytes * 1024.0 / 1e6)
}
