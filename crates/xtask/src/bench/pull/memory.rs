//! How much memory a process took that others started, and that ends before anyone could ask it.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::bench::people;

/// How often is looked, which takes a millisecond. What a process had at most the kernel knows; only its last moments can be missed.
const TICK: Duration = Duration::from_millis(50);

/// Does `work`, and gives with its result the most bytes that any process of `user` had in memory at once.
pub fn peak_of<T>(user: &str, work: impl FnOnce() -> T) -> (T, anyhow::Result<u64>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let uid = people::output(Command::new("id").args(["-u", user]), "id")?;
            let mut peak = 0;
            while !over.load(Ordering::Acquire) {
                peak = peak.max(highest(uid.trim())?);
                std::thread::sleep(TICK);
            }
            Ok(peak)
        });
        let result = work();
        over.store(true, Ordering::Release);
        let peak = watcher.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the watcher of memory panicked")));
        (result, peak)
    })
}

/// The highest peak of all processes that the uid has now.
fn highest(uid: &str) -> anyhow::Result<u64> {
    let mut highest = 0;
    for entry in fs::read_dir("/proc").context("reading /proc")? {
        let entry = entry.context("reading /proc")?;
        if !entry.file_name().as_encoded_bytes()[0].is_ascii_digit() {
            continue;
        }
        // It may have ended meanwhile.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next());
        if field("Uid:") == Some(uid)
            && let Some(kib) = field("VmHWM:").and_then(|kib| kib.parse::<u64>().ok())
        {
            highest = highest.max(kib << 10);
        }
    }
    Ok(highest)
}
