//! Limits of a namespace for System V objects.

use std::fs;

use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

/// The kernel's limits of a namespace, below `/proc/sys`.
pub(super) const LIMITS: [&str; 9] = [
    "kernel/sem",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/shmmax",
    "kernel/shmall",
    "kernel/shmmni",
    FORCED,
    "kernel/auto_msgmni",
];
/// The most that limits of the namespace may be: an `int`, a number of objects, and what `shmmax` and `shmall` say at first. Source:
/// `ipc/ipc_sysctl.c`, `linux/shm.h`. (More objects there may be only where the kernel was started so.)
const MOST: u64 = 0x7fff_ffff;
const MOST_OBJECTS: u64 = 1 << 15;
const MOST_MEMORY: u64 = u64::MAX - (1 << 24);
/// Setting by which the kernel removes segments that no process has attached.
pub(super) const FORCED: &str = "kernel/shm_rmid_forced";

/// Sets a limit as it was.
pub(super) fn set_limit(name: &str, text: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    let is_known = LIMITS.contains(&name);
    let unknown = || Fault::new(format!("{name:?}: not a limit of System V objects"));
    is_known.then_some(()).ok_or_else(unknown)?;
    match fs::read_to_string(&path) {
        Ok(has) if has.trim() == text => Ok(()),
        _ => fs::write(&path, text).context(|| path),
    }
}

/// Sets a limit so that it is in nobody's way, if the kernel lets us. (If not, it is as it was by itself, and what was there fits.)
pub(super) fn widen_limit(name: &str, saved: &str) {
    let path = format!("/proc/sys/{name}");
    let widest: &[u64] = match name {
        "kernel/sem" => &[MOST, MOST, 0, MOST_OBJECTS],
        "kernel/msgmax" | "kernel/msgmnb" => &[MOST],
        "kernel/msgmni" | "kernel/shmmni" => &[MOST_OBJECTS],
        "kernel/shmmax" | "kernel/shmall" => &[MOST_MEMORY],
        FORCED => {
            fs::write(&path, "0").ignore_error("then what is made is missed at once");
            return;
        }
        _ => return,
    };
    let has = fs::read_to_string(&path).default_on_error("a kernel without this limit");
    let number = |text: &str, place: usize| text.split_whitespace().nth(place)?.parse::<u64>().ok();
    let numbers = widest.iter().enumerate().map(|(place, most)| {
        let others = [number(&has, place), number(saved, place)];
        others.into_iter().flatten().fold(*most, u64::max).to_string()
    });
    let text = numbers.collect::<Vec<_>>().join(" ");
    fs::write(&path, text).ignore_error("it is as wide as the kernel lets us have it");
}
