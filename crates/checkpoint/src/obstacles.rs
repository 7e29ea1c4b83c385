//! Looking at processes before they are dumped: which there are, and what of theirs cannot be saved. CRIU would find that, too, but after
//! it has stopped them, one at a time, and in words for its own authors.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use skiff_sandbox::SERVER_NUMBER;
use skiff_spec::fault::{Fault, Result};
use skiff_sys::IgnoreError;

/// One process of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedProcess {
    /// PID inside.
    pub pid: i32,
    /// PID of the parent.
    pub parent: i32,
    /// Short name of the process (`comm`).
    pub name: String,
    /// The numbers of its threads, its own first.
    pub threads: Vec<i32>,
    /// Memory of its own, in bytes.
    pub memory: u64,
    /// How many files and devices it has open.
    #[serde(default)]
    pub files: usize,
    /// How many sockets.
    #[serde(default)]
    pub sockets: usize,
}

/// Something that cannot be saved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Obstacle {
    /// The process's number inside.
    pub pid: i32,
    /// Short name of the process (`comm`).
    pub name: String,
    /// What it has, and why that is in the way.
    pub why: String,
}

/// What was found.
#[derive(Debug, Default)]
pub struct PreflightReport {
    /// The processes of the environment's command, that one first.
    pub processes: Vec<SavedProcess>,
    /// What cannot be saved.
    pub obstacles: Vec<Obstacle>,
}

/// Looks at all processes of the environment whose process 1 is `init`. `own_network`: its network namespace is its own.
///
/// # Errors
/// When `/proc` does not show them.
pub fn look(init: Pid, own_network: bool) -> Result<PreflightReport> {
    let mut found = PreflightReport::default();
    let mut tops: Vec<(i32, i32)> = vec![];
    for outer in children(init.as_raw_nonzero().get())? {
        // What has ended meanwhile is none of ours.
        if let Some(inside) = number_inside(outer).filter(|pid| *pid != SERVER_NUMBER) {
            tops.push((inside, outer));
        }
    }
    tops.sort_unstable();
    let Some((_, main)) = tops.first().copied() else {
        return Err(Fault::new("no process of its own is left in it"));
    };
    let mut open = vec![main];
    while let Some(outer) = open.pop() {
        open.extend(children(outer)?);
        let Some(process) = read(outer) else { continue };
        obstacles(outer, &process, own_network, &mut found.obstacles);
        found.processes.push(process);
    }
    for (_, outer) in &tops[1..] {
        let Some(SavedProcess { pid, name, .. }) = read(*outer) else { continue };
        let why = "its parent has ended; only what descends from the instance's command can be saved".into();
        found.obstacles.push(Obstacle { pid, name, why });
    }
    found.processes.sort_by_key(|process| process.pid);
    found.obstacles.sort();
    found.obstacles.dedup();
    Ok(found)
}

/// The processes that this one has started, by their numbers out here.
pub fn children(outer: i32) -> Result<Vec<i32>> {
    let tasks = format!("/proc/{outer}/task");
    let mut all = vec![];
    for task in fs::read_dir(&tasks).into_iter().flatten().flatten() {
        let path = task.path().join("children");
        match fs::read_to_string(&path) {
            Ok(list) => all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && task.path().exists() => {
                return Err(Fault::new(format!("{}: the kernel does not show it", path.display()))
                    .hint("it needs CONFIG_PROC_CHILDREN"));
            }
            // It has ended.
            Err(_) => {}
        }
    }
    Ok(all)
}

/// The number that a process has in the innermost of its PID namespaces.
pub fn number_inside(outer: i32) -> Option<i32> {
    last_number(&text(format!("/proc/{outer}/status")).ok()?, "NSpid:")
}

/// What the kernel says in a file. The names of programs and files in it may be of any bytes.
fn text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a process had ended when this happened.
fn has_ended(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::SRCH))
}

fn read(outer: i32) -> Option<SavedProcess> {
    let status = text(format!("/proc/{outer}/status")).ok()?;
    let parent = last_number(&status, "PPid:").and_then(number_inside).unwrap_or(0);
    let mut threads: Vec<i32> = fs::read_dir(format!("/proc/{outer}/task"))
        .ok()?
        .flatten()
        .filter_map(|task| last_number(&text(task.path().join("status")).ok()?, "NSpid:"))
        .collect();
    threads.sort_unstable();
    let (mut files, mut sockets) = (0, 0);
    for fd in fs::read_dir(format!("/proc/{outer}/fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(fd.path()).default_on_error("one that is just being closed is none");
        files += usize::from(target.is_absolute());
        sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
    }
    Some(SavedProcess {
        files,
        sockets,
        pid: last_number(&status, "NSpid:")?,
        parent,
        name: field(&status, "Name:")?.to_owned(),
        threads,
        memory: (number(&status, "RssAnon:") + number(&status, "RssShmem:") + number(&status, "VmSwap:"))
            << 10,
    })
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn last_number(status: &str, name: &str) -> Option<i32> {
    field(status, name)?.split_whitespace().last()?.parse().ok()
}

fn number(status: &str, name: &str) -> u64 {
    field(status, name).and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn obstacles(outer: i32, process: &SavedProcess, own_network: bool, found: &mut Vec<Obstacle>) {
    let mut say = |why: String| {
        found.push(Obstacle { pid: process.pid, name: process.name.clone(), why });
    };
    let at = |name: &str| format!("/proc/{outer}/{name}");
    let status =
        text(at("status")).default_on_error("of a process that has ended since there is nothing to save");
    if number(&status, "Seccomp:") == 2 {
        say("a system call filter (seccomp), which the kernel shows to nobody but the host's root".into());
    }
    match text(at("maps")) {
        Ok(mapped) => mapped.lines().filter_map(mapping).for_each(&mut say),
        Err(e) if has_ended(&e) => return,
        Err(e) => say(format!("its memory map cannot be read: {e}")),
    }
    let mut sockets = BTreeSet::new();
    for fd in fs::read_dir(at("fd")).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(fd.path()) else { continue };
        let target = target.to_string_lossy();
        descriptor(&target).into_iter().for_each(&mut say);
        sockets
            .extend(target.strip_prefix("socket:[").and_then(|n| n.strip_suffix(']')?.parse::<u64>().ok()));
    }
    if own_network || sockets.is_empty() {
        return;
    }
    for table in ["net/tcp", "net/tcp6"] {
        let text = text(at(table)).default_on_error("a kernel without IPv6 has one of the two");
        if text.lines().filter_map(connection).any(|inode| sockets.contains(&inode)) {
            say("an open TCP connection on a network of the host's; only those on a network of the instance's own can be saved".into());
            return;
        }
    }
}

/// What is in the way of a line of `/proc/PID/maps`.
fn mapping(line: &str) -> Option<String> {
    let path = line.splitn(6, ' ').nth(5)?.trim_start();
    let harmless = ["/dev/zero", "/dev/shm/", "/memfd:"].iter().any(|start| path.starts_with(start));
    if path.starts_with("/SYSV") {
        Some("System V shared memory; POSIX shared memory and mmap can be saved".into())
    } else if path.starts_with("/secretmem") {
        Some("secret memory (memfd_secret)".into())
    } else if path.starts_with("anon_inode:[io_uring]") {
        Some(IO_URING.into())
    } else if let Some(device) = path.strip_prefix("/dev/").filter(|_| !harmless) {
        Some(device_in_the_way(&format!("/dev/{device}"), "memory of the device"))
    } else if path.starts_with('/') && path.ends_with(" (deleted)") && !harmless {
        Some(format!("mapped file {path}: it has no name any more"))
    } else {
        None
    }
}

const IO_URING: &str = "io_uring; many programs have a setting that does without";

/// What is in the way of a descriptor, by what its link says.
fn descriptor(target: &str) -> Option<String> {
    let plain =
        ["null", "zero", "full", "random", "urandom", "tty", "ptmx"].map(|name| format!("/dev/{name}"));
    if plain.iter().any(|name| name == target)
        || ["/dev/shm/", "/dev/pts/", "/dev/mqueue/"].iter().any(|d| target.starts_with(d))
    {
        return None;
    }
    if target.starts_with("/dev/") && Path::new(target) != Path::new("/dev/") {
        return Some(device_in_the_way(target, "open"));
    }
    match target.strip_prefix("anon_inode:")?.trim_matches(['[', ']']) {
        "io_uring" => Some(IO_URING.into()),
        "inotify" => {
            Some("inotify: a watch on files, which cannot be put back without the host's rights".into())
        }
        "fanotify" => {
            Some("fanotify: a watch on files, which cannot be put back without the host's rights".into())
        }
        kind if kind.starts_with("bpf")
            || kind.starts_with("kvm")
            || kind == "perf_event"
            || kind == "userfaultfd" =>
        {
            Some(format!("a descriptor of kind {kind}"))
        }
        _ => None,
    }
}

fn device_in_the_way(device: &str, how: &str) -> String {
    let what = match device {
        d if d.starts_with("/dev/nvidia") || d.starts_with("/dev/kfd") || d.starts_with("/dev/dri") => {
            "the state of a GPU cannot be saved"
        }
        d if d.starts_with("/dev/infiniband") => "what an InfiniBand adapter knows of it cannot be saved",
        _ => "what the device knows of it cannot be saved",
    };
    format!("device {device} ({how}): {what}")
}

/// The socket's number of a line of `/proc/PID/net/tcp` that is a connection, not one that only listens or is over.
fn connection(line: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (state, inode) = (words.get(3)?, words.get(9)?);
    // TCP_CLOSE and TCP_LISTEN.
    (!["07", "0A", "st"].contains(state)).then(|| inode.parse().ok())?.filter(|inode| *inode != 0)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_in_the_way_is_named_and_nothing_else() {
        for (path, word) in [
            ("/SYSV00000000 (deleted)", Some("System V")),
            ("/dev/zero (deleted)", None),
            ("/memfd:x (deleted)", None),
            ("/dev/shm/sem.x", None),
            ("/dev/nvidia0", Some("GPU")),
            ("/usr/lib/libc.so.6", None),
            ("/tmp/gone.so (deleted)", Some("/tmp/gone.so")),
            ("anon_inode:[io_uring]", Some("io_uring")),
            ("[heap]", None),
            ("", None),
        ] {
            let line = format!("7f00-7f01 rw-p 00000000 00:01 5 {path}");
            let why = mapping(&line);
            assert_eq!(why.is_some(), word.is_some(), "{path}: {why:?}");
            assert!(why.unwrap_or_default().contains(word.unwrap_or_default()), "{path}");
        }
        for (target, word) in [
            ("/dev/null", None),
            ("/dev/pts/3", None),
            ("/dev/infiniband/uverbs0", Some("InfiniBand")),
            ("/home/a", None),
            ("pipe:[5]", None),
            ("anon_inode:[eventpoll]", None),
            ("anon_inode:inotify", Some("inotify")),
            ("anon_inode:[io_uring]", Some("io_uring")),
            ("anon_inode:bpf-prog", Some("bpf")),
        ] {
            let why = descriptor(target);
            assert_eq!(why.is_some(), word.is_some(), "{target}: {why:?}");
            assert!(why.unwrap_or_default().contains(word.unwrap_or_default()), "{target}");
        }
    }

    #[test]
    fn connections_are_told_from_listeners() {
        let line = |state: &str, inode: u64| {
            format!(
                "   0: 0100007F:1F90 0100007F:9C40 {state} 00000000:00000000 00:00000000 00000000  1001        0 {inode} 1 0"
            )
        };
        assert_eq!(connection(&line("01", 55)), Some(55));
        assert_eq!(connection(&line("0A", 55)), None);
        assert_eq!(connection(&line("06", 0)), None);
        assert_eq!(connection("  sl  local_address rem_address   st tx_queue"), None);
    }

    /// A process of a program that is to sleep, once it does. The kernel lets its parent go on a moment before the process is that program and
    /// has closed what it was not to have; then its loader opens libraries.
    fn asleep(program: impl AsRef<OsStr>, input: Stdio) -> (Child, i32) {
        let child = Command::new(program).arg("60").stdin(input).spawn().expect("started");
        let pid = i32::try_from(child.id()).expect("a number");
        let has = |file: &str, part: &str| {
            text(format!("/proc/{pid}/{file}")).is_ok_and(|said| said.contains(part))
        };
        let slept = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            has("cmdline", "\x0060\0") && has("status", "State:\tS")
        });
        assert!(slept);
        (child, pid)
    }

    #[test]
    fn our_own_children_are_found() {
        let (mut child, pid) = asleep("sleep", Stdio::null());
        assert!(children(std::process::id().cast_signed()).expect("listed").contains(&pid));
        let process = read(pid).expect("there");
        assert_eq!((process.pid, process.threads.len()), (pid, 1));
        let mut found = vec![];
        obstacles(pid, &process, false, &mut found);
        assert_eq!(found, []);
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    #[test]
    fn what_a_process_has_open_is_counted() {
        let count = |input: Stdio| {
            let (mut child, pid) = asleep("sleep", input);
            let process = read(pid).expect("there");
            child.kill().and_then(|()| child.wait()).expect("gone");
            (process.files, process.sockets)
        };
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        // Whatever else it has is ours.
        let (files, sockets) = count(Stdio::piped());
        assert_eq!(count(Stdio::null()), (files + 1, sockets));
        assert_eq!(count(std::os::fd::OwnedFd::from(socket).into()), (files, sockets + 1));
    }

    /// Names are of any bytes: a process whose name is not text was left out, and so was whatever stood in its way.
    #[test]
    fn a_process_of_any_name_is_looked_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join(OsStr::from_bytes(b"sl\xff\xfep"));
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
        let (mut child, pid) = asleep(&program, Stdio::null());
        let (found, mut told) = (read(pid), vec![]);
        let maps = text(format!("/proc/{pid}/maps"));
        found.iter().for_each(|process| obstacles(pid, process, true, &mut told));
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(found.expect("seen").name, "sl\u{fffd}\u{fffd}p");
        assert!(maps.expect("its memory").contains("[stack]"));
        assert!(told.iter().all(|obstacle| !obstacle.why.contains("cannot be read")), "{told:?}");
        let ended = text(format!("/proc/{pid}/maps")).expect_err("it has ended");
        assert!(has_ended(&ended), "{ended}");
    }
}
