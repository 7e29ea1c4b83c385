//! What of a process itself cannot be saved: filters, tracers, namespaces.

use std::cmp::Ordering;
use std::fs;

use rustix::process::Pid;
use skiff_sys::IgnoreError;
use skiff_sys::process::{Shared, compare_shared, positive_pid};

use super::{Moment, PreflightContext, descriptors, fd_info, links, memory, number, tasks, text};

/// What is in the way of what a process is.
pub(super) fn states(outer: i32, context: &PreflightContext) -> Vec<String> {
    let mut found = vec![];
    for task in tasks(outer) {
        let status = text(format!("/proc/{outer}/task/{task}/status"))
            .default_on_error("of a thread that has ended since there is nothing to save");
        if number(&status, "Seccomp:") != 0 {
            found.push(
                "a system call filter (seccomp), which the kernel shows to nobody but the host's root".into(),
            );
        }
        if context.moment == Moment::Running && number(&status, "TracerPid:") != 0 {
            found.push("another process traces it (ptrace), as a debugger does".into());
        }
    }
    found.extend(threads_apart(outer));
    let space = |pid: i32, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    let kinds = ["user", "mnt", "pid_for_children", "net", "ipc", "uts", "cgroup", "time_for_children"];
    // A PID namespace shows only once somebody is in it.
    let apart: Vec<&str> =
        kinds.into_iter().filter(|kind| space(outer, kind) != space(context.init, kind)).collect();
    // One that has ended, if only meanwhile, has none.
    if space(outer, "mnt").is_some() {
        found.extend(apart.into_iter().map(|kind| {
            let kind = kind.trim_end_matches("_for_children");
            format!("a namespace of its own ({kind}), as a sandbox within the instance has it")
        }));
    }
    found.dedup();
    found
}

/// What is in the way of threads that do not have what all of a process have in common, or whose first has ended.
fn threads_apart(outer: i32) -> Option<String> {
    let all = tasks(outer);
    let others: Vec<Pid> =
        all.iter().filter(|task| **task != outer).filter_map(|task| positive_pid(*task)).collect();
    let status = text(format!("/proc/{outer}/status"))
        .default_on_error("of one that has ended since there is nothing to save");
    if !others.is_empty() && status.lines().any(|line| line.starts_with("State:") && line.contains('Z')) {
        return Some("its first thread has ended, and others go on".into());
    }
    let first = positive_pid(outer)?;
    let differs = |what| {
        // One that has just ended has nothing.
        others
            .iter()
            .any(|other| compare_shared(first, *other, what).is_ok_and(|order| order != Ordering::Equal))
    };
    if differs(Shared::Descriptors) {
        return Some("a thread with descriptors of its own (unshare of CLONE_FILES)".into());
    }
    differs(Shared::Directories)
        .then(|| "a thread with a current directory of its own (unshare of CLONE_FS)".into())
}

/// What is in the way of processes that have in common what CRIU knows only threads to have.
pub(super) fn in_common(processes: &[i32]) -> Vec<(i32, String)> {
    let mut found = vec![];
    for (what, words) in [
        (Shared::Memory, "all memory in common with another process (CLONE_VM), as between vfork and exec"),
        (Shared::Directories, "the current directory in common with another process (CLONE_FS)"),
    ] {
        // In the kernel's order. What has just ended comes anywhere.
        let mut known: Vec<Pid> = vec![];
        for process in processes.iter().filter_map(|process| positive_pid(*process)) {
            let order = |other: &Pid| compare_shared(*other, process, what).unwrap_or(Ordering::Less);
            match known.binary_search_by(order) {
                // Two that have ended and have not been waited for have the same nothing.
                Ok(at) if [known[at], process].iter().all(|one| has_memory(*one)) => {
                    found.push((process.as_raw_nonzero().get(), words.into()));
                }
                Ok(_) => {}
                Err(at) => known.insert(at, process),
            }
        }
    }
    found
}

fn has_memory(process: Pid) -> bool {
    let pages = text(format!("/proc/{}/statm", process.as_raw_nonzero()))
        .default_on_error("one that has ended has none");
    !matches!(pages.split(' ').next(), None | Some("" | "0"))
}

/// Whether the position of a directory, by its `fdinfo`, is neither the beginning nor what most file systems have for the end.
fn is_half_listed(info: &str) -> bool {
    let position = info.lines().find_map(|line| line.strip_prefix("pos:")?.trim().parse::<i64>().ok());
    position.is_some_and(|position| position != 0 && position != i64::MAX)
}

/// What is lost of a process, of whose mappings `/proc/PID/smaps` says this, and is not in the way.
pub(super) fn notes(outer: i32, smaps: &str) -> Vec<String> {
    let mut found = vec![];
    let at = |name: &str| {
        text(format!("/proc/{outer}/{name}")).default_on_error("a kernel without has nothing of it")
    };
    if at("autogroup").split_whitespace().last().is_some_and(|nice| nice != "0") {
        found.push("the nice value of its session (autogroup) is not kept".into());
    }
    if at("ksm_stat").lines().any(|line| line.starts_with("ksm_merge_any:") && line.ends_with("yes")) {
        found.push("that all of its memory may be merged (PR_SET_MEMORY_MERGE) is not kept".into());
    }
    if memory::is_locked_in_part(smaps) {
        found.push(
            "its locked memory is locked whole when it comes back, not as it is touched (MLOCK_ONFAULT)"
                .into(),
        );
    }
    for (path, link) in links(outer).into_iter().filter(|(_, link)| link.starts_with('/')) {
        if is_half_listed(&fd_info(outer, &path)) && fs::metadata(&path).is_ok_and(|of| of.is_dir()) {
            found.push(format!("it has listed directory {link} in part: where that is copied, names may be missed or come twice"));
        }
    }
    let sockets = links(outer).into_iter().filter(|(_, link)| link.starts_with("socket:"));
    if sockets.into_iter().any(|(path, _)| descriptors::has_other_peer(&path)) {
        found.push("which user is at the other end of its Unix connections (SO_PEERCRED) is not kept: it is root from then on".into());
    }
    found
}
