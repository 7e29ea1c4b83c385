//! Mapping ids without the helper: through the system's newuidmap and newgidmap, or just oneself.

use std::process::{Command, Stdio};

use rustix::process::{Pid, getgid, getuid};
use skiff_spec::fault::{Context, Result};
use skiff_spec::ids::{IdMap, subordinate};
use skiff_sys::IgnoreError;

/// Maps the ids of the user namespace that process `pid` is in; gives how many ids there are inside.
pub fn write(pid: Pid) -> Result<u32> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let read = |path: &str| {
        std::fs::read_to_string(path).default_on_error("without the file, as with an empty one, nobody has further ids; how many there are is the answer")
    };
    let name = skiff_site::account::user(uid).map(|user| user.name);
    let uids = subordinate(&read("/etc/subuid"), name.as_deref(), uid);
    let gids = subordinate(&read("/etc/subgid"), name.as_deref(), uid);
    if uids.is_some() && gids.is_some() {
        let done = by_program("newuidmap", pid, &IdMap::new(uid, uids, &[]))
            && by_program("newgidmap", pid, &IdMap::new(gid, gids, &[]));
        if done {
            return Ok(1 + uids.map_or(0, |r| r.count).min(gids.map_or(0, |r| r.count)));
        }
    }
    let pid = pid.as_raw_nonzero();
    let one = |file: &str, text: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::write(&path, text).context(|| format!("id map {path}"))
    };
    one("uid_map", &IdMap::new(uid, None, &[]).to_proc())?;
    one("setgroups", "deny")?;
    one("gid_map", &IdMap::new(gid, None, &[]).to_proc())?;
    Ok(1)
}

fn by_program(program: &str, pid: Pid, map: &IdMap) -> bool {
    let numbers = map.lines().iter().flat_map(|l| [l.inside, l.outside, l.count]).map(|n| n.to_string());
    Command::new(program)
        .arg(pid.as_raw_nonzero().to_string())
        .args(numbers)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}
