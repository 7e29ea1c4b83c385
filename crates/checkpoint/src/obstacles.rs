//! Looking at processes before they are dumped: which there are, and what of theirs cannot be saved. CRIU would find that, too, but after
//! it has stopped them, one at a time, and in words for its own authors.

mod descriptors;
mod keys;
mod memory;
mod policies;
mod process;
mod space;
mod state;
mod terminals;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::Pid;
use serde::Serialize;
use skiff_criu::core_image::death_signal;
use skiff_output as output;
use skiff_sandbox::SERVER_NUMBER;
use skiff_sandbox::enter::EnterTarget;
use skiff_sandbox::reaper::is_reaper;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::{Plan, Source};
use skiff_sys::{IgnoreError, ns};

use crate::attributes::{self, ThreadAttributes};
use crate::mappings::Placeholders;
use crate::socket_options::NewSockets;
use crate::tries::CheckpointAction;
use crate::{image_edits, locks};

pub use policies::look_for_policies;
pub use process::{SavedProcess, description_locks, expired_timers, lost_processor_time, socket_options};
use process::{changed_options, held_locks, number, read, unread_timers};
pub(crate) use space::{WaitingLook, begin_look};

/// Exit code of `--dry-run` where something is in the way.
pub const IN_THE_WAY: i32 = 1;

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

/// How the text of an obstacle ends that is gone once the program has read or sent something.
pub(crate) const ONCE_IT_HAS: &str = "; try again once it has";
/// How it ends if it is gone once something has been accepted.
pub(crate) const ONCE_IT_HAS_BEEN: &str = "; try again once it has been";

impl Obstacle {
    /// Whether it is gone once the program has gone on for a moment. A lease or a lock may be held for long.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.why.ends_with(ONCE_IT_HAS) || self.why.ends_with(ONCE_IT_HAS_BEEN)
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct PreflightReport {
    /// The processes of the environment's command: its reaper first, or in one that an older Skiff has started the command itself.
    pub processes: Vec<SavedProcess>,
    /// What cannot be saved.
    pub obstacles: Vec<Obstacle>,
    /// What the user is to hear, and is not in the way.
    pub notes: Vec<String>,
    /// Locks that only their process can give up, with where the file's file system is mounted.
    pub(crate) bound_locks: Vec<(Obstacle, Option<PathBuf>)>,
}

impl PreflightReport {
    /// With what is in the way of a move only: locks on files that both hosts may see, which cannot be handed over. Until they are given up here
    /// nobody there can have them.
    #[must_use]
    pub fn with_bound_locks(mut self, plan: &Plan) -> Self {
        let own = |source: &Source| matches!(source, Source::Own(_) | Source::Memory { .. });
        let own = plan.mounts.iter().filter(|mount| own(&mount.source)).map(|mount| mount.target.as_path());
        let places: Vec<&Path> = own.collect();
        for (obstacle, place) in &self.bound_locks {
            // Each descriptor of the file shows the lock.
            let is_known = self.obstacles.contains(obstacle);
            if !is_known && !locks::is_own(place.as_deref(), &places) {
                self.obstacles.push(obstacle.clone());
            }
        }
        self
    }

    /// The numbers of the processes inside.
    #[must_use]
    pub fn numbers(&self) -> Vec<i32> {
        self.processes.iter().map(|process| process.pid).collect()
    }

    /// Tells what is not in the way.
    pub fn tell(&self) {
        self.notes.iter().for_each(|note| output::note(note));
    }

    /// Tells that processor time is not kept: last, as it matters least of what a command says.
    pub fn tell_lost_time(&self) {
        lost_processor_time(&self.processes).iter().for_each(|note| output::note(note));
    }

    /// Says all that is in the way, if anything is. The caller names the instance.
    ///
    /// # Errors
    /// Something is.
    pub fn refuse(&self, action: CheckpointAction) -> Result<()> {
        if self.obstacles.is_empty() {
            return Ok(());
        }
        let all = self.obstacles.iter().map(|o| format!("process {} ({}): {}", o.pid, o.name, o.why));
        let (done, command) = action.words();
        let refused = Fault::new(format!("it cannot be {done}: {}", all.collect::<Vec<_>>().join("; ")));
        Err(match self.obstacles.iter().all(Obstacle::passes) {
            true => {
                refused.passing().hint("it goes on as it was; what is in the way passes by itself: try again")
            }
            false => refused.hint(format!("it goes on as it was; `{command}` shows what is in the way")),
        })
    }

    /// Exit code of a command that was only to say whether it can be saved.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        if self.obstacles.is_empty() { 0 } else { IN_THE_WAY }
    }

    /// With what only CRIU sees, and has written into its images in `dir`: of the first process, a signal at its parent's end. That parent is
    /// CRIU when it is restored, which ends; those of others are restored with them. (The first process is the command only in an instance that
    /// an older Skiff has started.) The images are changed where they are not to be restored as CRIU has written them.
    ///
    /// # Errors
    /// When there is no image.
    pub fn with_images(mut self, dir: &Path) -> Result<Self> {
        image_edits::apply(dir)?;
        let Some(main) = self.processes.first() else { return Ok(self) };
        let path = dir.join(format!("core-{}.img", main.pid));
        let image = fs::read(&path).context(|| path.display().to_string())?;
        let signal = death_signal(&image)
            .ok_or_else(|| Fault::new(format!("{}: it does not say what the process is", path.display())))?;
        if signal != 0 {
            let why =
                "a signal at its parent's end (PR_SET_PDEATHSIG), which would reach it when it is restored";
            self.obstacles.push(Obstacle { pid: main.pid, name: main.name.clone(), why: why.into() });
        }
        Ok(self)
    }
}

/// When it is looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the processes are stopped.
    Running,
    /// While CRIU, which traces them, has stopped them.
    Frozen,
}

/// Looks at all processes of the environment whose process 1 is `init`, which was started with this plan.
///
/// # Errors
/// When `/proc` does not show them.
pub fn look(init: Pid, (inside, plan): (EnterTarget<'_>, &Plan), moment: Moment) -> Result<PreflightReport> {
    look_by(init, (inside, plan), moment, space::begin_look(inside)?)
}

/// The same, with a process inside that has been waiting for it.
///
/// # Errors
/// The same.
pub(crate) fn look_by(
    init: Pid,
    (inside, plan): (EnterTarget<'_>, &Plan),
    moment: Moment,
    space: WaitingLook,
) -> Result<PreflightReport> {
    let mut found = PreflightReport::default();
    let mut tops: Vec<(i32, i32)> = vec![];
    for outer in children(init.as_raw_nonzero().get())? {
        // What has ended meanwhile is none of ours.
        if let Some(inside) = number_inside(outer).filter(|pid| *pid != SERVER_NUMBER) {
            tops.push((inside, outer));
        }
    }
    // An instance of an older Skiff has no reaper.
    tops.sort_unstable_by_key(|(inside, outer)| (!is_reaper(*outer), *inside));
    let Some((first, main)) = tops.first().copied() else {
        return Err(Fault::new("no process of its own is left in it"));
    };
    let (mut open, mut seen) = (vec![main], vec![]);
    while let Some(outer) = open.pop() {
        open.extend(children(outer)?);
        seen.extend(read(outer).map(|process| (outer, process)));
    }
    // A reaper has a higher number than its command.
    let command = seen.iter().min_by_key(|(_, process)| process.pid).map(|(outer, _)| *outer);
    let spaces = space.ask(&seen.iter().map(|(_, process)| process.pid).collect())?;
    let openable = memory::Openable::with(spaces.named_files, Placeholders::of(plan))?;
    let context = PreflightContext::of((init, inside), moment, &seen, openable)?;
    found.notes = spaces.notes;
    let mut new_sockets = NewSockets::of(inside);
    let outer_numbers: Vec<i32> = seen.iter().map(|(outer, _)| *outer).collect();
    let mut of_all = state::in_common(&outer_numbers);
    if moment == Moment::Frozen {
        of_all.extend(terminals::without_foreground(&outer_numbers));
    }
    for (outer, why) in of_all {
        let of = seen.iter().find(|(one, _)| *one == outer).map(|(_, process)| process);
        found.obstacles.extend(of.map(|of| Obstacle {
            pid: of.pid,
            name: of.name.clone(),
            why: why.clone(),
        }));
    }
    for (outer, mut process) in seen {
        look_at(outer, &process, &context, &mut found);
        process.locks = held_locks(outer, &process, &mut found.bound_locks);
        if moment == Moment::Frozen {
            process.timers = unread_timers(outer);
            process.socket_options = changed_options(outer, &mut new_sockets)?;
        }
        if Some(outer) == command {
            let of_command = |why| Obstacle { pid: process.pid, name: process.name.clone(), why };
            found.obstacles.extend(spaces.obstacles.iter().cloned().map(of_command));
        }
        found.processes.push(SavedProcess { attributes: context.attributes(outer, &process)?, ..process });
    }
    for (_, outer) in &tops[1..] {
        let Some(SavedProcess { pid, name, .. }) = read(*outer) else { continue };
        let why = "its parent has ended, and it does not descend from the instance's command: only what does can be saved".into();
        found.obstacles.push(Obstacle { pid, name, why });
    }
    found.processes.sort_by_key(|process| (process.pid != first, process.pid));
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
    ns::number_inside(&text(format!("/proc/{outer}/status")).ok()?)
}

/// What the kernel says in a file. The names of programs and files in it may be of any bytes.
fn text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a process had ended when this happened.
fn has_ended(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::SRCH))
}

/// What is the same for all processes that are looked at.
struct PreflightContext {
    init: i32,
    own_network: bool,
    moment: Moment,
    /// What of all that they have mapped can be opened.
    openable: memory::Openable,
    /// What they would have if none of them had changed it.
    defaults: attributes::Defaults,
    terminals: terminals::Masters,
}

impl PreflightContext {
    fn of(
        (init, inside): (Pid, EnterTarget<'_>),
        moment: Moment,
        seen: &[(i32, SavedProcess)],
        mut openable: memory::Openable,
    ) -> Result<Self> {
        let init_number = init.as_raw_nonzero().get();
        for (outer, _) in seen {
            for (path, link) in links(*outer) {
                openable.add(&path, &link, &fd_info(*outer, &path));
            }
            let mapped = text(format!("/proc/{outer}/maps"));
            openable.add_mapped(&mapped.default_on_error("it has ended, or this is said later"));
        }
        let (own_network, defaults) = (inside.net.is_its(), attributes::Defaults::of(init)?);
        let terminals = terminals::Masters::of(seen.iter().map(|(outer, _)| *outer).collect(), moment);
        Ok(Self { init: init_number, own_network, moment, openable, defaults, terminals })
    }

    fn attributes(&self, outer: i32, process: &SavedProcess) -> Result<Vec<ThreadAttributes>> {
        let mut all = vec![];
        for task in tasks(outer) {
            let Some(thread) = text(format!("/proc/{outer}/task/{task}/status"))
                .ok()
                .and_then(|status| ns::number_inside(&status))
            else {
                continue;
            };
            all.extend(self.defaults.differ(task, thread, thread == process.pid)?);
        }
        Ok(all)
    }
}

/// The threads of a process, by their numbers out here.
fn tasks(outer: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{outer}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The descriptors of a process: where each is, and what its link says.
fn links(outer: i32) -> Vec<(std::path::PathBuf, String)> {
    let all = fs::read_dir(format!("/proc/{outer}/fd")).into_iter().flatten().flatten();
    all.filter_map(|fd| {
        let link = fs::read_link(fd.path()).ok()?;
        Some((fd.path(), link.to_string_lossy().into_owned()))
    })
    .collect()
}

/// What the kernel says of a descriptor, which `path` leads to.
fn fd_info(outer: i32, path: &Path) -> String {
    let number = path.file_name().unwrap_or_default().to_string_lossy();
    text(format!("/proc/{outer}/fdinfo/{number}")).default_on_error("it has just been closed")
}

/// What is in the way of a process, and what of it is not kept.
fn look_at(outer: i32, process: &SavedProcess, context: &PreflightContext, found: &mut PreflightReport) {
    let mut say = |why: String| {
        found.obstacles.push(Obstacle { pid: process.pid, name: process.name.clone(), why });
    };
    let at = |name: &str| format!("/proc/{outer}/{name}");
    state::states(outer, context).into_iter().for_each(&mut say);
    match text(at("maps")) {
        Ok(mapped) => {
            mapped.lines().filter_map(|line| memory::mapping(line, &context.openable)).for_each(&mut say);
        }
        Err(e) if has_ended(&e) => return,
        Err(e) => say(format!("its memory map cannot be read: {e}")),
    }
    // Also of one that stands still: keys and seals may be newer than the first look. The kernel goes through all of its memory, at 7 ms for each GiB
    // (of pages of 4 KiB up to 46 ms, at load 17).
    let smaps = text(at("smaps")).default_on_error("one that has ended has no memory");
    memory::marked(&smaps).into_iter().for_each(&mut say);
    // Of those that stand still `look_for_policies` tells, where there is time.
    if context.moment == Moment::Running {
        policies::of_process(outer).into_iter().for_each(&mut say);
    }
    let mut sockets = BTreeSet::new();
    for (path, target) in links(outer) {
        descriptors::descriptor(&target).into_iter().for_each(&mut say);
        let info = fd_info(outer, &path);
        descriptors::kind(&target, &path, &info).into_iter().for_each(&mut say);
        context.terminals.lacking(&target).into_iter().for_each(&mut say);
        descriptors::watch(outer, &target, &path).into_iter().for_each(&mut say);
        descriptors::socket(&target, &path).into_iter().for_each(&mut say);
        memory::nameless_file(&target, &path).into_iter().for_each(&mut say);
        sockets
            .extend(target.strip_prefix("socket:[").and_then(|n| n.strip_suffix(']')?.parse::<u64>().ok()));
    }
    let table = |name: &str| {
        text(at(&format!("net/{name}"))).default_on_error("a kernel without IPv6 has half of the tables")
    };
    descriptors::sockets(&sockets, context.own_network, table).into_iter().for_each(say);
    if context.moment == Moment::Running {
        let note = |note| format!("process {} ({}): {note}", process.pid, process.name);
        found.notes.extend(state::notes(outer, &smaps).into_iter().map(note));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    /// As of processes in an environment whose process 1 is this one.
    fn context() -> PreflightContext {
        let own = rustix::process::getpid();
        let defaults = attributes::Defaults::of(own).expect("our own");
        let init = own.as_raw_nonzero().get();
        PreflightContext {
            init,
            own_network: false,
            moment: Moment::Running,
            openable: memory::Openable::default(),
            defaults,
            terminals: terminals::Masters::of(vec![], Moment::Running),
        }
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
        let mut found = PreflightReport::default();
        look_at(pid, &process, &context(), &mut found);
        assert_eq!(found.obstacles, []);
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    /// Memory that was sealed since the first look came back without its seal.
    #[test]
    fn a_process_that_stands_still_is_asked_for_seals_again() {
        let program = "import ctypes, mmap, sys, time\n\
            libc = ctypes.CDLL(None, use_errno=True); libc.mmap.restype = ctypes.c_void_p\n\
            at = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_long(0))\n\
            sealed = libc.syscall(462, ctypes.c_void_p(at), ctypes.c_size_t(4096), ctypes.c_ulong(0))\n\
            print(ctypes.get_errno() if sealed else 0, flush=True); time.sleep(60)";
        let mut python = Command::new("python3");
        let mut child = python.args(["-c", program]).stdout(Stdio::piped()).spawn().expect("started");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("read");
        let pid = i32::try_from(child.id()).expect("a number");
        let mut found = PreflightReport::default();
        let still = PreflightContext { moment: Moment::Frozen, ..context() };
        look_at(pid, &read(pid).expect("there"), &still, &mut found);
        child.kill().and_then(|()| child.wait()).expect("ended");
        let is_old = said.trim() == rustix::io::Errno::NOSYS.raw_os_error().to_string();
        assert!(is_old || said.trim() == "0", "{said}");
        if is_old {
            eprintln!("not tested: this kernel has no mseal");
        }
        assert_eq!(found.obstacles.iter().any(|one| one.why.contains("mseal")), !is_old, "{found:?}");
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
        let (found, mut told) = (read(pid), PreflightReport::default());
        let maps = text(format!("/proc/{pid}/maps"));
        found.iter().for_each(|process| look_at(pid, process, &context(), &mut told));
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(found.expect("seen").name, "sl\u{fffd}\u{fffd}p");
        assert!(maps.expect("its memory").contains("[stack]"));
        assert!(told.obstacles.iter().all(|obstacle| !obstacle.why.contains("cannot be read")), "{told:?}");
        let ended = text(format!("/proc/{pid}/maps")).expect_err("it has ended");
        assert!(has_ended(&ended), "{ended}");
    }
}
