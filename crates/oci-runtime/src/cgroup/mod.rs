//! The control group of a container (cgroup v2), where the user has been given one to make groups in; else the container stays in that of whoever
//! created it.

mod above;
mod end;
mod freeze;
mod limits;
mod open_group;

use std::path::{Path, PathBuf};

use rustix::process::Pid;
use skiff_spec::fault::{Context as _, Fault, Result};

pub use end::{DYING, end};
pub use freeze::{freeze, is_freezing, is_frozen};
pub use limits::update;

use above::{make_all, remove_above, remove_empty};
use limits::limits;
use open_group::{OpenGroup, ROOT};

use crate::config::BundleConfig;
use crate::log::Log;
use crate::process_info::InitProcess;

/// Makes the group that a configuration asks for, with its limits, and puts the process into it. All groups that were made for it, its own last;
/// none where that is not possible, which the log says.
pub fn enter(config: &BundleConfig, id: &str, pid: Pid, log: &Log) -> Vec<PathBuf> {
    let limits = config.linux.resources.as_ref().map_or_else(Vec::new, |resources| limits(resources, log));
    let wanted = config.linux.cgroups_path.as_deref().unwrap_or("");
    if wanted.is_empty() && limits.is_empty() {
        return vec![];
    }
    match place(wanted, id).and_then(|path| Ok((make(&path, pid)?, path))) {
        Ok((made, path)) => {
            for (file, value) in limits {
                if let Err(e) = std::fs::write(path.join(&file), &value) {
                    log.warn(&format!("linux.resources: {file} {value}: {e}"));
                }
            }
            made
        }
        Err(e) => {
            log.warn(&format!("linux.cgroupsPath: {e}: the container stays in the caller's control group"));
            for (file, _) in limits {
                log.warn(&format!("linux.resources: {file} is not set: no control group of its own"));
            }
            vec![]
        }
    }
}

/// Where it is: as runc has it, `/PATH` from the top, `PATH` below the caller's, `SLICE:PREFIX:NAME` for systemd, of which nobody is asked here.
fn place(wanted: &str, id: &str) -> Result<PathBuf> {
    let (from_top, below) = match wanted.split(':').collect::<Vec<_>>()[..] {
        [""] => (false, format!("skiff-oci-{id}")),
        [path] => match path.strip_prefix('/') {
            Some(below) => (true, below.to_owned()),
            None => (false, path.to_owned()),
        },
        [_, prefix, name] => (false, format!("{prefix}-{name}.scope")),
        _ => return Err(Fault::new(format!("{wanted}: neither a path nor SLICE:PREFIX:NAME"))),
    };
    // Those would name a group that is there, with others in it.
    if below.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(Fault::new(format!("{wanted}: a part of it is empty, `.` or `..`")));
    }
    if from_top {
        return Ok(Path::new(ROOT).join(below));
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").context(|| "/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.ok_or_else(|| Fault::new("the caller has no control group of version 2"))?;
    Ok(Path::new(ROOT).join(own.trim_start_matches('/')).join(below))
}

/// Makes the group and those above it that are missing, and puts the process into it; all that were made, its own last. A group that is there
/// is somebody else's: what is in it would end with the container.
fn make(path: &Path, pid: Pid) -> Result<Vec<PathBuf>> {
    let mut made = vec![];
    let entered = make_all(path, &mut made).and_then(|()| add(path, pid));
    entered.inspect_err(|_| {
        remove_empty(&made);
        remove_above(path, &[]);
    })?;
    Ok(made)
}

/// Whether that is a group.
pub fn is_there(path: &Path) -> bool {
    OpenGroup::open(path).is_ok()
}

/// The processes of a group and those below it; none of what is no group.
pub fn processes(path: &Path) -> Vec<InitProcess> {
    OpenGroup::open(path).map_or_else(|_| vec![], |group| group.processes())
}

/// Puts a further process into it.
///
/// # Errors
/// The kernel's.
pub fn add(path: &Path, pid: Pid) -> Result<()> {
    let number = pid.as_raw_nonzero().to_string();
    let name = || format!("control group {}", path.display());
    OpenGroup::open(path).context(name)?.write("cgroup.procs", &number).context(name)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode};

    use super::open_group::LONGEST;
    use super::*;

    #[test]
    fn a_group_is_never_one_that_is_there() {
        for wanted in [".", "/", "a/../b", "..", "a/", "a//b", "./a", "/a/.", "a:b", "a:..:/../b"] {
            assert!(place(wanted, "x").is_err(), "{wanted}");
        }
        assert_eq!(place("/a/b", "x"), Ok(Path::new(ROOT).join("a/b")));
        let dir = tempfile::tempdir().expect("a directory");
        let there = dir.path().join("there");
        std::fs::create_dir(&there).expect("made");
        let e = make(&there, rustix::process::getpid()).expect_err("it is there");
        assert!(e.to_string().contains("there already"), "{e}");
        assert!(there.exists());
        // No control groups: no process can be put into one, and those that were made go again.
        make(&there.join("a/b/c"), rustix::process::getpid()).expect_err("no control group");
        assert_eq!(std::fs::read_dir(&there).expect("read").count(), 0);
    }

    #[test]
    fn nothing_but_a_group_is_read_or_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = dir.path().join("group");
        std::fs::create_dir(&group).expect("made");
        std::os::unix::fs::symlink(&group, dir.path().join("link")).expect("a link");
        for path in [Path::new("/"), Path::new("group"), &dir.path().join("link"), &group.join("../group")] {
            assert!(OpenGroup::open(path).is_err(), "{}", path.display());
        }
        for file in ["cgroup.events", "cgroup.freeze", "cgroup.kill", "cgroup.procs"] {
            rustix::fs::mkfifoat(CWD, group.join(file), Mode::RWXU).expect("a pipe");
        }
        assert!(!is_frozen(&group) && !is_freezing(&group) && processes(&group).is_empty());
        freeze(Some(&group), true).expect_err("a pipe");
        add(&group, rustix::process::getpid()).expect_err("a pipe");
        let begun = std::time::Instant::now();
        end(&group, &[]).expect("an error is for processes that do not end");
        assert!(begun.elapsed() < 2 * DYING);
        let long = std::fs::File::create(group.join("long")).expect("made");
        long.set_len(LONGEST + 1).expect("sparse");
        OpenGroup::open(&group).expect("opened").read("long").expect_err("too long");
    }
}
