//! The control group of a container (cgroup v2), where the user has been given one to make groups in; else the container stays in that of whoever
//! created it.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fgetxattr, fstatfs, lsetxattr,
    openat, openat2, unlinkat,
};
use rustix::io::Errno;
use rustix::process::Pid;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::{IgnoreError, small_file};

use crate::config::{BundleConfig, Cpu, Resources};
use crate::log::Log;
use crate::process_info::{InitProcess, send};
use crate::state_dir::open_dir;

const ROOT: &str = "/sys/fs/cgroup";
/// Below it are all groups. Unit tests take plain directories for groups.
const TOP: &str = if cfg!(test) { "/" } else { ROOT };
/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;
/// No more is read of a group's file, in bytes.
const LONGEST: u64 = 1 << 20;
/// No more groups below a container's are looked at.
const MOST_GROUPS: usize = 10_000;
/// Nor more of those above it that were made for it.
const MOST_ABOVE: usize = 64;
/// On a group that was made for what is below it. Of several containers there, the last one removes it, whoever has made it.
const MADE: &str = "user.skiff.made";
/// How often groups above are made anew that the last container there removes meanwhile.
const TRIES: usize = 10;
/// How long processes that have been killed may take to be gone.
pub const DYING: Duration = Duration::from_secs(10);

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

fn make_all(path: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    let name = || path.display().to_string();
    let is_there = |e: &std::io::Error| e.kind() == std::io::ErrorKind::AlreadyExists;
    let mut tries = 0..TRIES;
    let created = loop {
        path.parent().map_or(Ok(()), |parent| make_above(parent, made))?;
        match std::fs::create_dir(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && tries.next().is_some() => {}
            created => break created,
        }
    };
    if created.as_ref().is_err_and(is_there) {
        return Err(Fault::new(format!("{}: it is there already, so it is not the container's", name())));
    }
    created.context(name)?;
    made.push(path.to_owned());
    Ok(())
}

/// Makes the groups that are missing on the way to one, and that one.
fn make_above(path: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    use std::io::ErrorKind::{AlreadyExists, NotFound};
    let missing: Vec<&Path> = path.ancestors().take_while(|group| !group.exists()).collect();
    for group in missing.into_iter().rev() {
        match std::fs::create_dir(group) {
            // Another call has made it meanwhile, or removed the one above: what is below cannot be made then, and all is tried again.
            Err(e) if matches!(e.kind(), AlreadyExists | NotFound) => continue,
            created => created.context(|| group.display().to_string())?,
        }
        lsetxattr(group, MADE, &[], XattrFlags::empty()).ignore_error(
            "kernels before 5.7 have no such marks; who has made the group has it in the record",
        );
        if !made.iter().any(|known| known == group) {
            made.push(group.to_owned());
        }
    }
    for controller in ["cpu", "cpuset", "io", "memory", "pids"] {
        write(&path.join("cgroup.subtree_control"), &format!("+{controller}"))
            .ignore_error("a limit that cannot be set is told when it is");
    }
    Ok(())
}

/// Removes groups, from the last to the first, as far as nobody is in them.
fn remove_empty(groups: &[PathBuf]) {
    for group in groups.iter().rev() {
        std::fs::remove_dir(group).ignore_error("others may have come into it");
    }
}

/// Removes the groups above one, the nearest first, as far as nobody is in them, and as they were made for this container or another one.
fn remove_above(path: &Path, made: &[PathBuf]) {
    for group in path.ancestors().skip(1).take(MOST_ABOVE) {
        let is_ours = match OpenGroup::open(group) {
            Err(Errno::NOENT) => continue,
            open => open.is_ok_and(|open| open.is_marked() || made.iter().any(|known| known == group)),
        };
        if !is_ours || std::fs::remove_dir(group).is_err() {
            return;
        }
    }
}

/// Writes to a file that the kernel has made.
fn write(file: &Path, value: &str) -> std::io::Result<()> {
    std::io::Write::write_all(&mut std::fs::File::options().write(true).open(file)?, value.as_bytes())
}

/// Files of the group with their contents.
fn limits(resources: &Resources, log: &Log) -> Vec<(String, String)> {
    let mut all: Vec<(&str, String)> = vec![];
    let bound = |limit: i64| if limit < 0 { "max".to_owned() } else { limit.to_string() };
    if let Some(memory) = &resources.memory {
        all.extend(memory.limit.filter(|limit| *limit != 0).map(|limit| ("memory.max", bound(limit))));
        all.extend(memory.reservation.filter(|limit| *limit != 0).map(|limit| ("memory.low", bound(limit))));
        // The older kind of groups counted memory and swap together.
        let swap = |swap: i64| if swap < 0 { swap } else { (swap - memory.limit.unwrap_or(0)).max(0) };
        all.extend(
            memory.swap.filter(|limit| *limit != 0).map(|limit| ("memory.swap.max", bound(swap(limit)))),
        );
        let others = [memory.kernel.is_some(), memory.kernel_tcp.is_some(), memory.swappiness.is_some()];
        if others.contains(&true) || memory.disable_oom_killer == Some(true) {
            log.warn(
                "linux.resources.memory: kernel, kernelTCP, swappiness and disableOOMKiller have no effect",
            );
        }
    }
    if let Some(cpu) = &resources.cpu {
        let weight = |shares: u64| 1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
        all.extend(
            cpu.shares.filter(|shares| *shares != 0).map(|shares| ("cpu.weight", weight(shares).to_string())),
        );
        if cpu.quota.is_some() || cpu.period.is_some() {
            let quota =
                cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
            all.push((
                "cpu.max",
                format!("{quota} {}", cpu.period.filter(|period| *period != 0).unwrap_or(100_000)),
            ));
        }
        all.extend(cpu.burst.map(|burst| ("cpu.max.burst", burst.to_string())));
        all.extend(cpu.idle.map(|idle| ("cpu.idle", idle.to_string())));
        let list = |list: &Option<String>| list.clone().filter(|list| !list.is_empty());
        all.extend(list(&cpu.cpus).map(|cpus| ("cpuset.cpus", cpus)));
        all.extend(list(&cpu.mems).map(|mems| ("cpuset.mems", mems)));
        if cpu.realtime_runtime.is_some() || cpu.realtime_period.is_some() {
            log.warn("linux.resources.cpu: realtimeRuntime and realtimePeriod have no effect");
        }
    }
    all.extend(
        resources.pids.as_ref().filter(|pids| pids.limit != 0).map(|pids| ("pids.max", bound(pids.limit))),
    );
    for (name, is_there) in [
        ("blockIO", resources.block_io.is_some()),
        ("hugepageLimits", !resources.hugepage_limits.is_empty()),
        ("network", resources.network.is_some()),
        ("rdma", resources.rdma.is_some()),
    ] {
        if is_there {
            log.warn(&format!("linux.resources.{name}: has no effect"));
        }
    }
    let mut all: Vec<(String, String)> =
        all.into_iter().map(|(file, value)| (file.to_owned(), value)).collect();
    for (file, value) in &resources.unified {
        match file.contains('/') || file.starts_with("cgroup.") {
            true => log
                .warn(&format!("linux.resources.unified: {file}: not a controller's file; it has no effect")),
            false => all.push((file.clone(), value.clone())),
        }
    }
    all
}

/// A control group that is open. Its path is from the container's record, which its user can write: whatever else is there, a named pipe or a file
/// system that never answers, is no group, so that nothing is waited for.
struct OpenGroup(OwnedFd);

impl OpenGroup {
    /// # Errors
    /// When there is none, or the path leads to something else.
    fn open(path: &Path) -> rustix::io::Result<Self> {
        let below = path.strip_prefix(TOP).map_err(|_| Errno::INVAL)?;
        // The topmost has everybody's processes.
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        if below.as_os_str().is_empty() || !is_plain {
            return Err(Errno::INVAL);
        }
        let group = Self(open_dir(CWD, Path::new(TOP))?).below(below)?;
        match cfg!(test) || fstatfs(&group.0)?.f_type == CGROUP2 {
            true => Ok(group),
            false => Err(Errno::INVAL),
        }
    }

    fn below(&self, path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.0, path, flags, Mode::empty(), how).map(Self)
    }

    fn read(&self, file: &str) -> std::io::Result<String> {
        let bytes = small_file::read_below(&self.0, file, LONGEST)?;
        String::from_utf8(bytes).map_err(|_| std::io::ErrorKind::InvalidData.into())
    }

    fn write(&self, file: &str, value: &str) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.0, file, flags, Mode::empty())?;
        std::io::Write::write_all(&mut std::fs::File::from(file), value.as_bytes())
    }

    /// Whether a file says of the group what the line does.
    fn says(&self, file: &str, line: &str) -> bool {
        self.read(file).is_ok_and(|text| text.lines().any(|said| said == line))
    }

    /// Whether it was made for what is below it.
    fn is_marked(&self) -> bool {
        fgetxattr(&self.0, MADE, &mut [0; 0][..]).is_ok()
    }

    /// The groups below it, which the container may have made, by their paths; each before its own. No more than [`MOST_GROUPS`].
    fn tree(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = vec![];
        self.add_below(Path::new("."), &mut found);
        let mut at = 0;
        while let Some(path) = found.get(at).cloned() {
            at += 1;
            self.add_below(&path, &mut found);
        }
        found
    }

    fn add_below(&self, path: &Path, found: &mut Vec<PathBuf>) {
        // One that is gone has none.
        let Ok(entries) = self.below(path).and_then(|group| Dir::new(group.0)) else { return };
        let is_below = |name: &&CStr| !matches!(name.to_bytes(), b"." | b"..");
        for entry in entries.flatten().filter(|entry| entry.file_type() == FileType::Directory) {
            let name = Some(entry.file_name()).filter(is_below).and_then(|name| name.to_str().ok());
            if found.len() < MOST_GROUPS {
                found.extend(name.map(|name| path.join(name)));
            }
        }
    }

    /// The processes of this group alone.
    fn own_processes(&self) -> Vec<InitProcess> {
        let text = self.read("cgroup.procs").default_on_error("a group that is gone has none");
        let pids = text.lines().filter_map(|line| skiff_sys::process::positive_pid(line.parse().ok()?));
        pids.filter_map(|pid| InitProcess::of(pid).ok()).collect()
    }

    fn processes(&self) -> Vec<InitProcess> {
        let below = self.tree().into_iter().filter_map(|path| self.below(&path).ok());
        let below: Vec<_> = below.flat_map(|group| group.own_processes()).collect();
        self.own_processes().into_iter().chain(below).collect()
    }

    /// Whether there are processes in it, or below it.
    fn is_populated(&self) -> bool {
        self.says("cgroup.events", "populated 1")
    }

    fn is_frozen(&self) -> bool {
        self.says("cgroup.events", "frozen 1")
    }

    /// Removes those below it, as far as nobody is in them.
    fn remove_below(&self) {
        for path in self.tree().iter().rev() {
            unlinkat(&self.0, path, AtFlags::REMOVEDIR).ignore_error("others may have come into it");
        }
    }
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

/// Whether all of its processes are frozen.
pub fn is_frozen(path: &Path) -> bool {
    OpenGroup::open(path).is_ok_and(|group| group.is_frozen())
}

/// Whether the group's processes are to be frozen, be they so already or not.
pub fn is_freezing(path: &Path) -> bool {
    OpenGroup::open(path).is_ok_and(|group| group.says("cgroup.freeze", "1"))
}

/// Freezes the group's processes, or lets them go on, and waits until that is so. Where not all can be frozen in time, all go on.
///
/// # Errors
/// When the container has no group, the kernel's, or processes wait in the kernel for too long.
pub fn freeze(path: Option<&Path>, frozen: bool) -> Result<()> {
    freeze_within(DYING, path, frozen)
}

fn freeze_within(limit: Duration, path: Option<&Path>, frozen: bool) -> Result<()> {
    let path = path.ok_or_else(|| {
        Fault::new("it has no control group of its own: its processes cannot be frozen")
            .hint("set linux.cgroupsPath, in a session that systemd has delegated a control group to")
    })?;
    let name = || format!("control group {}", path.display());
    let group = OpenGroup::open(path).context(name)?;
    let write = |value: &str| group.write("cgroup.freeze", value).context(name);
    write(if frozen { "1" } else { "0" })?;
    let done =
        skiff_sys::lock::within(limit, || Ok::<_, Fault>((group.is_frozen() == frozen).then_some(())))?;
    match (done, frozen) {
        (Some(()), _) => Ok(()),
        (None, false) => Err(Fault::new(format!("{}: its processes are still frozen", name()))
            .hint("a group above it may be frozen")),
        (None, true) => {
            // Those that could be frozen must not stay so: the container counts as running.
            write("0")?;
            Err(Fault::new(format!("{}: not all processes could be frozen in time; all go on", name()))
                .hint("they wait in the kernel, perhaps for a file server: try again later"))
        }
    }
}

/// Changes limits of a container's group.
///
/// # Errors
/// When the container has no group, nothing that can be changed is asked for, or the kernel's: then what came before in the order of these files is
/// changed.
pub fn update(path: Option<&Path>, resources: &Resources, log: &Log) -> Result<()> {
    let path = path.ok_or_else(|| {
        Fault::new("it has no control group of its own: its limits are those of whoever created it")
            .hint("set linux.cgroupsPath, in a session that systemd has delegated a control group to; of a job Slurm sets limits: srun --mem=4G --cpus-per-task=2")
    })?;
    let limits = limits(resources, log);
    if limits.is_empty() {
        return Err(Fault::new("no limit that can be changed is named").hint("skiff oci update --help"));
    }
    let name = || format!("control group {}", path.display());
    let group = OpenGroup::open(path).context(name)?;
    limits.iter().try_for_each(|(file, value)| {
        let value = &match &**file {
            "cpu.max" => changed_cpu(&group, value, resources.cpu.as_ref()),
            _ => value.clone(),
        };
        let written = group.write(file, value);
        let is_missing = written.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let hint = if is_missing {
            "the groups above it do not pass on this controller: cgroup.subtree_control"
        } else {
            ""
        };
        written.context(|| format!("{}: {file} {value}", name())).map_err(|e| e.hint(hint))
    })
}

/// The processor time of a group, of which what is not named stays.
fn changed_cpu(group: &OpenGroup, value: &str, asked: Option<&Cpu>) -> String {
    let now = group.read("cpu.max").default_on_error("the kernel says of the change what is wrong");
    let (now, value) =
        (now.split_once(' ').unwrap_or(("max", "100000")), value.split_once(' ').unwrap_or((value, "")));
    let quota = asked.and_then(|cpu| cpu.quota).map_or(now.0, |_| value.0);
    let period = asked.and_then(|cpu| cpu.period).map_or(now.1, |_| value.1);
    format!("{quota} {}", period.trim())
}

/// Ends all processes of a group that this runtime has made, and removes it with those below; and those above it that were made for it (by the
/// container's record) or for other containers, as far as nobody is in them.
///
/// # Errors
/// When processes do not end: then it stays.
pub fn end(path: &Path, above: &[PathBuf]) -> Result<()> {
    if let Ok(group) = OpenGroup::open(path) {
        end_open(&group, path)?;
    }
    remove_above(path, above);
    Ok(())
}

fn end_open(group: &OpenGroup, path: &Path) -> Result<()> {
    if group.write("cgroup.kill", "1").is_err() {
        // Kernels before 5.14 have no such file.
        group.processes().into_iter().try_for_each(kill)?;
    }
    let removed = skiff_sys::lock::within(DYING, || {
        if group.is_populated() {
            group.processes().into_iter().try_for_each(kill)?;
            return Ok(None);
        }
        group.remove_below();
        std::fs::remove_dir(path).ignore_error("whether it is there is asked next");
        Ok::<_, Fault>((!path.exists()).then_some(()))
    })?;
    match removed {
        None if group.is_populated() => {
            Err(Fault::new(format!("control group {}: its processes do not end", path.display()))
                .hint("they wait in the kernel, perhaps for a file server; delete the container again later"))
        }
        // What is empty, and cannot be removed, does no harm.
        _ => Ok(()),
    }
}

fn kill(process: InitProcess) -> Result<()> {
    send(process, rustix::process::Signal::KILL.as_raw())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

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
    fn groups_above_go_as_far_as_nobody_is_in_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = |name: &str| dir.path().join(name);
        let mut made = vec![];
        make_all(&group("a/b/c"), &mut made).expect("made");
        assert_eq!(made, [group("a"), group("a/b"), group("a/b/c")]);
        std::fs::create_dir(group("a/other")).expect("made");
        let (own, above) = made.split_last().expect("some");
        assert_eq!(end(own, above), Ok(()));
        assert!(!group("a/b").exists() && group("a").exists());
    }

    #[test]
    fn the_last_container_in_a_group_removes_it_whoever_has_made_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = |name: &str| dir.path().join(name);
        let made = |name: &str| {
            let mut made = vec![];
            make_all(&group(name), &mut made).expect("made");
            made.pop();
            made
        };
        std::fs::create_dir(group("of-others")).expect("made");
        let first = made("of-others/a/b/first");
        let second = made("of-others/a/second");
        assert_eq!((first.len(), second.len()), (2, 0));
        assert_eq!(end(&group("of-others/a/b/first"), &first), Ok(()));
        assert!(!group("of-others/a/b").exists() && group("of-others/a/second").exists());
        assert_eq!(end(&group("of-others/a/second"), &second), Ok(()));
        assert!(!group("of-others/a").exists() && group("of-others").exists());
    }

    #[test]
    fn groups_that_are_removed_while_one_is_made_below_are_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let above = dir.path().join("above");
        let done = AtomicBool::new(false);
        // Once less than is tried, so that it cannot be too often.
        let remove = || {
            let mut left = TRIES - 1;
            for _ in 0..1_000_000 {
                if left == 0 || done.load(Ordering::Relaxed) {
                    return;
                }
                left -= usize::from(std::fs::remove_dir(&above).is_ok());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(remove);
            for number in 0..200 {
                let (own, mut made) = (above.join(number.to_string()), vec![]);
                make_all(&own, &mut made).expect("made");
                made.pop();
                assert_eq!(end(&own, &made), Ok(()));
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn what_cannot_be_frozen_in_time_goes_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name);
        std::fs::write(file("cgroup.freeze"), "0").expect("written");
        std::fs::write(file("cgroup.events"), "populated 1\nfrozen 0\n").expect("written");
        let e = freeze_within(Duration::ZERO, Some(dir.path()), true).expect_err("not frozen");
        assert!(e.to_string().contains("not all processes could be frozen"), "{e}");
        assert!(!is_freezing(dir.path()));
        std::fs::write(file("cgroup.events"), "populated 1\nfrozen 1\n").expect("written");
        assert_eq!(freeze(Some(dir.path()), true), Ok(()));
        assert!(is_freezing(dir.path()));
    }

    #[test]
    fn limits_of_a_running_container_are_changed() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::open(None, false, false).expect("no log");
        let change = |text: &str| {
            let resources: Resources = serde_json::from_str(text).expect(text);
            update(Some(dir.path()), &resources, &log)
        };
        for file in ["memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"] {
            std::fs::write(dir.path().join(file), "").expect("written");
        }
        let all = r#"{"memory": {"limit": 1048576, "swap": 3145728}, "pids": {"limit": -1}, "cpu": {"quota": 50000, "shares": 2}, "devices": [{}]}"#;
        assert_eq!(change(all), Ok(()));
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).expect(file);
        let files = ["memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"].map(read);
        assert_eq!(files, ["1048576", "2097152", "max", "50000 100000", "1"]);
        // Nobody truncates a plain file: each is written at the length that it will have.
        for (now, text, want) in [
            ("50000 10000", r#"{"cpu": {"period": 20000}}"#, "50000 20000"),
            ("50000 20000", r#"{"cpu": {"quota": 10000}}"#, "10000 20000"),
            ("100 20000", r#"{"cpu": {"quota": -1}}"#, "max 20000"),
        ] {
            std::fs::write(dir.path().join("cpu.max"), now).expect("written");
            assert_eq!(change(text), Ok(()));
            assert_eq!(read("cpu.max"), want, "{text}");
        }
        let e = change(r#"{"cpu": {"cpus": "0-1"}}"#).expect_err("the controller is missing");
        assert!(
            e.to_string().contains("cpuset.cpus 0-1: ") && e.hint.contains("cgroup.subtree_control"),
            "{e}"
        );
        // Not a controller's, and nothing that has an effect.
        for text in [
            "{}",
            r#"{"unified": {"cgroup.kill": "1"}}"#,
            r#"{"unified": {"../x": "1"}}"#,
            r#"{"blockIO": {}}"#,
        ] {
            let e = change(text).expect_err(text);
            assert!(e.to_string().contains("no limit that can be changed"), "{e}");
        }
        let e = update(None, &Resources::default(), &log).expect_err("no group");
        assert!(e.to_string().contains("no control group of its own") && !e.hint.is_empty(), "{e}");
    }

    #[test]
    fn groups_below_are_removed_before_their_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().join("top");
        std::fs::create_dir_all(top.join("a/b/c")).expect("made");
        std::fs::create_dir(top.join("d")).expect("made");
        let group = OpenGroup::open(&top).expect("opened");
        assert_eq!(group.tree().len(), 4);
        group.remove_below();
        assert_eq!(std::fs::read_dir(&top).expect("read").count(), 0);
        assert_eq!(end(&top, &[]), Ok(()));
        assert!(!top.exists());
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
