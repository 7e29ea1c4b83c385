//! What threads have of the scheduler's and the kernel's that CRIU does not save: read when an instance is saved, and set again before its
//! processes go on.

use std::path::PathBuf;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::io_priority;
use skiff_sys::process::positive_pid;
use skiff_sys::time_slice;
use skiff_sys::traced::Traced;

use crate::notes::RestoreNotes;

/// What a thread has that is not the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadAttributes {
    /// Number of the thread inside.
    pub thread: i32,
    /// The processors that it may run on, if not all that the instance may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<Vec<u32>>,
    /// Priority of input and output (`ioprio_set(2)`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<i32>,
    /// Nanoseconds that it may run before another one has its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<u64>,
    /// Nanoseconds by which a timer may be late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer_slack: Option<u64>,
    /// The filter of what memory a core has, of a process (`core(5)`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_filter: Option<u32>,
    /// How the kernel is to behave towards it (`personality(2)`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub personality: Option<u32>,
    /// Ways of speculation that are switched off, each with its number and what it is set to (`PR_SET_SPECULATION_CTRL`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Vec<(u32, u32)>>,
}

/// What process 1 has: nothing inside has changed that.
pub struct Defaults(ThreadAttributes);

impl Defaults {
    /// Of an instance with this process 1.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(init: Pid) -> Result<Self> {
        let number = init.as_raw_nonzero().get();
        read(number, true)
            .context(|| format!("process {number}"))?
            .map(Self)
            .ok_or_else(|| Fault::new("the instance has ended"))
    }

    /// What differs in a thread, whose number is `outer` here and `thread` inside. `is_process`: it is the first of its process.
    ///
    /// # Errors
    /// When the kernel does not show it.
    pub fn differ(&self, outer: i32, thread: i32, is_process: bool) -> Result<Option<ThreadAttributes>> {
        let Some(has) = read(outer, is_process).context(|| format!("thread {thread}"))? else {
            return Ok(None);
        };
        let Self(default) = self;
        let changed = ThreadAttributes {
            thread,
            processors: has.processors.filter(|has| Some(has) != default.processors.as_ref()),
            io_priority: has.io_priority.filter(|has| Some(*has) != default.io_priority),
            time_slice: has.time_slice.filter(|has| Some(*has) != default.time_slice),
            timer_slack: has.timer_slack.filter(|has| Some(*has) != default.timer_slack),
            core_filter: has.core_filter.filter(|has| Some(*has) != default.core_filter),
            personality: has.personality.filter(|has| Some(*has) != default.personality),
            speculation: has.speculation.filter(|has| Some(has) != default.speculation.as_ref()),
        };
        let nothing = ThreadAttributes { thread, ..ThreadAttributes::default() };
        Ok(Some(changed).filter(|changed| *changed != nothing))
    }
}

/// Sets them again, of processes that are there and stand still. What differs is noted.
///
/// # Errors
/// Which could not be set.
pub fn set_again(inside: EnterTarget<'_>, all: &[&ThreadAttributes], notes: &RestoreNotes) -> Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let free = enter::run(EnterTarget { number: None, ..inside }, &[], || {
        let mut free = vec![];
        for one in all {
            free.extend(one.set()?.then_some(one.thread));
        }
        Ok(free)
    })?;
    if !free.is_empty() {
        let free: Vec<String> = free.iter().map(ToString::to_string).collect();
        notes.add(&format!(
            "threads {}: the processors that they were bound to are not to be had here; they run on all",
            free.join(", ")
        ));
    }
    Ok(())
}

impl ThreadAttributes {
    /// Gives them to the thread of that number here. Whether its processors are missing here.
    fn set(&self) -> Result<bool> {
        let about = |what: &str| format!("thread {}: {what}", self.thread);
        let thread = positive_pid(self.thread).ok_or_else(|| Fault::new(about("not a number")))?;
        if let Some(priority) = self.io_priority {
            io_priority::set(thread, priority).context(|| about("priority of input and output"))?;
        }
        if let Some(slice) = self.time_slice {
            time_slice::set(thread, slice).context(|| about("time slice"))?;
        }
        if let Some(slack) = self.timer_slack {
            fs::write(file(self.thread, "timerslack_ns"), slack.to_string())
                .context(|| about("timer slack"))?;
        }
        if let Some(filter) = self.core_filter {
            let path = file(self.thread, "coredump_filter");
            fs::write(path, format!("{filter:#x}")).context(|| about("filter of cores"))?;
        }
        self.set_by_itself(thread)?;
        let Some(processors) = &self.processors else { return Ok(false) };
        let mut set = CpuSet::new();
        let known = |number: &u32| usize::try_from(*number).ok().filter(|number| *number < CpuSet::MAX_CPU);
        processors.iter().filter_map(known).for_each(|number| set.set(number));
        match sched_setaffinity(Some(thread), &set) {
            Ok(()) => Ok(false),
            Err(Errno::INVAL) => Ok(true),
            Err(e) => Err(e).context(|| about("processors")),
        }
    }
}

impl ThreadAttributes {
    /// What only a thread itself can set.
    fn set_by_itself(&self, thread: Pid) -> Result<()> {
        let about = || format!("thread {}: personality and speculation", self.thread);
        let speculation = self.speculation.as_deref().unwrap_or_default();
        if self.personality.is_none() && speculation.is_empty() {
            return Ok(());
        }
        let traced = Traced::stop(thread).context(about)?;
        let personality = self.personality.map_or(Ok(()), |personality| traced.set_personality(personality));
        let all = speculation.iter().map(|(which, to)| traced.set_speculation(*which, *to));
        let done = personality.and_then(|()| all.collect::<io::Result<()>>());
        traced.release().context(about)?;
        done.context(about)
    }
}

/// What `/proc/PID/status` says of ways of speculation that a thread has switched off: each with its number and what it is set to. Source:
/// `linux/prctl.h`, `fs/proc/array.c`.
fn speculation(status: &str) -> Vec<(u32, u32)> {
    let (disabled, forced) = (1 << 2, 1 << 3);
    let of = |line: &str| {
        let (name, state) = line.split_once(':')?;
        let to = match state.trim() {
            "thread mitigated" | "conditional disabled" => disabled,
            "thread force mitigated" | "conditional force disabled" => forced,
            _ => return None,
        };
        let which = ["Speculation_Store_Bypass", "SpeculationIndirectBranch"]
            .iter()
            .position(|known| *known == name)?;
        Some((u32::try_from(which).ok()?, to))
    };
    status.lines().filter_map(of).collect()
}

/// All that the thread has; nothing if it has ended.
fn read(outer: i32, is_process: bool) -> io::Result<Option<ThreadAttributes>> {
    let Some(pid) = positive_pid(outer) else { return Ok(None) };
    let read = || -> io::Result<ThreadAttributes> {
        let processors = match sched_getaffinity(Some(pid)) {
            Ok(set) => Some((0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect::<Vec<_>>()),
            // The host may have more processors than the set can hold.
            Err(Errno::INVAL) => None,
            Err(e) => return Err(e.into()),
        };
        let core_filter = if is_process { number(&file(outer, "coredump_filter"), 16)? } else { None };
        Ok(ThreadAttributes {
            thread: outer,
            processors: processors
                .map(|all| all.into_iter().filter_map(|number| u32::try_from(number).ok()).collect()),
            io_priority: Some(io_priority::get(pid)?),
            time_slice: time_slice::get(pid)?,
            timer_slack: number(&file(outer, "timerslack_ns"), 10)?,
            core_filter: core_filter.and_then(|filter| u32::try_from(filter).ok()),
            personality: personality(outer)?,
            speculation: Some(speculation(&String::from_utf8_lossy(&fs::read(file(outer, "status"))?))),
        })
    };
    match read() {
        Ok(read) => Ok(Some(read)),
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::SRCH | Errno::NOENT)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What `/proc/PID/personality` says; nothing of a process that has ended and not been waited for, which the kernel shows to nobody.
fn personality(outer: i32) -> io::Result<Option<u32>> {
    match number(&file(outer, "personality"), 16) {
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::ACCESS | Errno::PERM)) => Ok(None),
        read => Ok(read?.and_then(|of| u32::try_from(of).ok())),
    }
}

/// The number in a file; nothing where the kernel has no such file, or the process is one that has ended and not been waited for.
fn number(path: &PathBuf, base: u32) -> io::Result<Option<u64>> {
    let text = fs::read_to_string(path)?;
    Ok(u64::from_str_radix(text.trim(), base).ok())
}

fn file(thread: i32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{thread}/{name}"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn speculation_that_is_off_is_told() {
        let status = "Seccomp:\t0\nSpeculation_Store_Bypass:\tthread force mitigated\nSpeculationIndirectBranch:\tconditional disabled\n";
        assert_eq!(speculation(status), [(0, 8), (1, 4)]);
        assert_eq!(
            speculation(
                "Speculation_Store_Bypass:\tthread vulnerable\nSpeculationIndirectBranch:\talways enabled\n"
            ),
            []
        );
    }

    #[test]
    fn only_what_was_changed_is_kept_and_it_can_be_set_again() {
        let own = rustix::process::getpid();
        let defaults = Defaults::of(own).expect("our own");
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("started");
        let pid = i32::try_from(child.id()).expect("a number");
        assert_eq!(defaults.differ(pid, 7, true).expect("seen"), None);
        let wanted = ThreadAttributes {
            thread: pid,
            processors: None,
            io_priority: Some(2 << 13 | 6),
            time_slice: None,
            timer_slack: None,
            core_filter: Some(7),
            personality: Some(0x0040_0000),
            speculation: None,
        };
        assert!(!wanted.set().expect("set"));
        let seen = defaults.differ(pid, 7, true).expect("seen");
        assert_eq!(seen, Some(ThreadAttributes { thread: 7, ..wanted.clone() }));
        // Processors that are not there.
        let missing =
            ThreadAttributes { thread: pid, processors: Some(vec![1023]), ..ThreadAttributes::default() };
        assert!(missing.set().expect("asked"));
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(defaults.differ(pid, 7, true).expect("looked"), None);
    }
}
