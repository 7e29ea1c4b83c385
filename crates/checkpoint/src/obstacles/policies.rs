//! NUMA memory policies, which could not be set again. To tell them the kernel goes through all memory of a process, at 50 ms for each GiB.

use std::fs;

use rustix::process::Pid;
use skiff_spec::fault::Result;
use skiff_sys::IgnoreError;

use super::process::{SavedProcess, read};
use super::{Obstacle, PreflightReport, children};

/// Looks for them at all processes of the environment whose process 1 is `init`: one may have been set since all were looked at.
///
/// # Errors
/// When `/proc` does not show the processes.
pub fn look_for_policies(init: Pid) -> Result<PreflightReport> {
    let (mut open, mut found) = (children(init.as_raw_nonzero().get())?, PreflightReport::default());
    while let Some(outer) = open.pop() {
        open.extend(children(outer)?);
        if let (Some(why), Some(SavedProcess { pid, name, .. })) = (of_process(outer), read(outer)) {
            found.obstacles.push(Obstacle { pid, name, why });
        }
    }
    Ok(found)
}

/// What is in the way of a process.
pub(super) fn of_process(outer: i32) -> Option<String> {
    let said = fs::read(format!("/proc/{outer}/numa_maps"))
        .default_on_error("a kernel without NUMA has no policies, nor has a process that has ended");
    String::from_utf8_lossy(&said).lines().find_map(policy)
}

/// What is in the way of a line of `/proc/PID/numa_maps`.
fn policy(line: &str) -> Option<String> {
    // As `set_mempolicy` and `mbind` name them. (`prefer` may be the kernel's own for one node.)
    let named = line.split(' ').nth(1)?;
    let is_set =
        ["bind", "interleave", "prefer", "local", "weighted"].iter().any(|kind| named.starts_with(kind));
    is_set.then(|| "a NUMA memory policy, which could not be set again".into())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn memory_policies_are_named() {
        assert_eq!(policy("7f00 default file=/lib/libc.so mapped=3 N0=3"), None);
        assert_eq!(policy("7f00"), None);
        for kind in ["bind:0", "bind=static:0", "interleave:0-1", "prefer:1", "local"] {
            assert!(policy(&format!("7f00 {kind} anon=1")).is_some(), "{kind}");
        }
    }

    /// One that was set between the look and the stop was lost.
    #[test]
    fn a_policy_that_is_set_later_is_found() {
        let program = "import ctypes, time\n\
            libc = ctypes.CDLL(None, use_errno=True)\n\
            failed = libc.syscall(238, 2, ctypes.byref(ctypes.c_ulong(1)), ctypes.c_ulong(64))\n\
            print(ctypes.get_errno() if failed else 0, flush=True); time.sleep(60)";
        let mut python = Command::new("python3");
        let mut child = python.args(["-c", program]).stdout(Stdio::piped()).spawn().expect("started");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("read");
        let pid = i32::try_from(child.id()).expect("a number");
        let found = look_for_policies(rustix::process::getpid());
        child.kill().and_then(|()| child.wait()).expect("ended");
        let is_without = said.trim() == rustix::io::Errno::NOSYS.raw_os_error().to_string();
        assert!(is_without || said.trim() == "0", "{said}");
        let found = found.expect("looked").obstacles;
        assert_eq!(
            found.iter().any(|one| one.pid == pid && one.why.contains("NUMA")),
            !is_without,
            "{found:?}"
        );
    }
}
