//! What of a process itself cannot be saved: filters, tracers, namespaces.

use std::fs;

use skiff_sys::IgnoreError;

use super::{Moment, PreflightContext, number, tasks, text};

/// What is in the way of what a process is.
pub(super) fn states(outer: i32, context: &PreflightContext) -> Vec<String> {
    let mut found = vec![];
    for task in tasks(outer) {
        let status = text(format!("/proc/{outer}/task/{task}/status"))
            .default_on_error("of a thread that has ended since there is nothing to save");
        if number(&status, "Seccomp:") == 2 {
            found.push(
                "a system call filter (seccomp), which the kernel shows to nobody but the host's root".into(),
            );
        }
        if context.moment == Moment::Running && number(&status, "TracerPid:") != 0 {
            found.push("another process traces it (ptrace), as a debugger does".into());
        }
    }
    let space = |pid: i32, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    // One that has ended has none, and a PID namespace shows only once somebody is in it.
    let is_there = space(outer, "mnt").is_some();
    let kinds = ["user", "mnt", "pid_for_children", "net", "ipc", "uts", "cgroup", "time_for_children"];
    for kind in kinds {
        let (theirs, its) = (space(outer, kind), space(context.init, kind));
        if is_there && theirs != its {
            let kind = kind.trim_end_matches("_for_children");
            found.push(format!("a namespace of its own ({kind}), as a sandbox within the instance has it"));
        }
    }
    found.dedup();
    found
}
