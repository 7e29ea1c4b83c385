//! What `/proc` says of processes.

use rustix::process::Pid;

/// The fields of a process behind its name; from its state on.
fn fields(pid: Pid) -> Option<Vec<String>> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything, parentheses too.
    let stat = String::from_utf8_lossy(&stat).into_owned();
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(String::from).collect())
}

/// When it was started, in clock ticks after the kernel.
pub fn start_time(pid: Pid) -> Option<u64> {
    fields(pid)?.get(19)?.parse().ok()
}

/// Whether it has ended, and perhaps waits for its parent to take note.
pub fn is_gone(pid: Pid) -> bool {
    fields(pid).is_none_or(|fields| matches!(fields.first().map(String::as_str), Some("Z" | "X") | None))
}

/// A process and its parent.
fn all() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|number: i32| {
            let parent = fields(skiff_sys::process::positive_pid(number)?)?.get(1)?.parse().ok()?;
            Some((number, parent))
        })
        .collect()
}

/// The processes that share its PID namespace, if that is not our own; else itself and those that it and its children have started.
pub fn family(init: Pid) -> Vec<Pid> {
    let space = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let number = init.as_raw_nonzero().get();
    let (own, its) = (space(rustix::process::getpid().as_raw_nonzero().get()), space(number));
    let all = all();
    let mut found = match its.is_some() && its != own {
        true => all.iter().map(|(pid, _)| *pid).filter(|pid| space(*pid) == its).collect(),
        false => vec![number],
    };
    if its == own {
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(all.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
            at += 1;
        }
    }
    found.into_iter().filter_map(skiff_sys::process::positive_pid).collect()
}
