//! Memory of an instance that the kernel watches from one save to the next: so that the next one reads only what was written to since.
//!
//! What was watched is of use only with the checkpoint that was made as the watch began. So both are kept together, by the instance's supervisor.
//! Whoever saves takes them from there, and gives them back with the next checkpoint once that has its name. If the save fails after a new watch began,
//! nobody has them, the kernel ends the watch, and the next save reads all.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use skiff_output as output;
use skiff_runtime::control;
use skiff_snapshot::ChunkStore;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass::{self, MOST_FDS};
use skiff_sys::memory::page_size;
use skiff_sys::process::positive_pid;
use skiff_sys::small_file;
use skiff_sys::traced::{Traced, TracedThrough};
use skiff_sys::written::{self, PageSpan, WatchedMemory};

use crate::mappings;
use crate::obstacles::SavedProcess;
use crate::previous_pages::PreviousPages;
use crate::record::{self, Checkpoint};
use crate::saved_pages;

/// Processes with less memory, in bytes, are read each time.
const LEAST: u64 = 4 << 20;
/// Of more processes those are watched that have most memory.
const MOST: usize = MOST_FDS - 1;
/// The longest that is kept with the descriptors, in bytes.
const LONGEST: u64 = 16 << 10;
/// How the line begins in `/proc/PID/status` that says how many system call filters a process has.
const FILTERS: &str = "Seccomp_filters:";
/// The mapping of requests to the kernel that it fulfils later, by writing to memory that need not be mapped so.
const LATER: &str = "/[aio]";

/// The checkpoint with which the watch began, and what is watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastSave {
    /// Directory of the checkpoint.
    dir: PathBuf,
    /// Digest of its record, which has those of its files.
    record: String,
    /// The processes, as numbered inside; the memory of each is watched by a descriptor.
    processes: Vec<i32>,
}

/// What is watched of an instance.
#[derive(Default)]
pub(crate) struct Watch {
    last: Option<LastSave>,
    processes: Vec<(i32, WatchedMemory)>,
}

/// What has begun to be watched inside.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct BegunWatch {
    /// By the order of the descriptors.
    processes: Vec<i32>,
    /// Why nothing is watched.
    unsent: Option<String>,
}

impl Watch {
    /// Takes what is watched of the instance in `dir`, if anything is.
    ///
    /// # Errors
    /// Its supervisor does not answer, or what it has kept is strange: nothing is known then.
    pub fn take(dir: &Path) -> Result<Self> {
        let mut fds = control::take_held(dir)?;
        let Some(text) = fds.pop() else { return Ok(Self::default()) };
        let mut bytes = vec![];
        File::from(text).take(LONGEST).read_to_end(&mut bytes).context(about)?;
        let last: LastSave =
            serde_json::from_slice(&bytes).map_err(|e| Fault::new(format!("{}: {e}", about())))?;
        if last.processes.len() != fds.len() {
            return Err(Fault::new(format!("{}: descriptors are missing", about())));
        }
        let processes =
            last.processes.iter().copied().zip(fds.into_iter().map(WatchedMemory::from)).collect();
        Ok(Self { last: Some(last), processes })
    }

    /// The pages of the checkpoint with which the watch began, if it is there as it was, in `home`.
    pub fn previous(&self, home: &Path, store: &ChunkStore) -> Option<PreviousPages> {
        let LastSave { dir, record, .. } =
            self.last.as_ref().filter(|last| last.dir.parent() == Some(home))?;
        let bytes = small_file::read_below(CWD, &*dir.join(record::FILE), record::LONGEST).ok()?;
        if record::digest(&bytes) != *record {
            return None;
        }
        let checkpoint = Checkpoint::parse(&bytes).ok()?;
        // One that is damaged is of no use; then all is read.
        saved_pages::pages_of(dir, &checkpoint, store).ok()
    }

    /// Descriptors of what is watched.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes.iter().map(|(_, watched)| watched.as_fd())
    }

    /// Inside: begins to watch the memory of these processes, which CRIU, who is `tracer`, has stopped and read, and sends the descriptors. What the
    /// checkpoint before has is of no use from then on.
    pub fn begin(&self, processes: &[SavedProcess], tracer: Option<i32>, to: BorrowedFd<'_>) -> BegunWatch {
        let begun = watch(processes, tracer, &self.processes).and_then(|watched| {
            let fds: Vec<BorrowedFd<'_>> = watched.iter().map(|(_, watched)| watched.as_fd()).collect();
            fdpass::send(to, b"w", &fds).context(|| "descriptors")?;
            Ok(watched.iter().map(|(pid, _)| *pid).collect())
        });
        match begun {
            Ok(processes) => BegunWatch { processes, unsent: None },
            // It only saves time: the save goes on without it.
            Err(why) => BegunWatch { processes: vec![], unsent: Some(why.to_string()) },
        }
    }

    /// What is watched is of no use any more.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes what has begun from the other end of the connection. Descriptors may be used up, also by others of the user's that are under way: then
    /// nothing is watched.
    pub fn take_begun(&mut self, begun: BegunWatch, from: BorrowedFd<'_>) {
        let BegunWatch { processes, unsent } = begun;
        match fdpass::receive(from, 1) {
            Ok((_, fds)) if fds.len() == processes.len() && unsent.is_none() => {
                self.processes =
                    processes.into_iter().zip(fds.into_iter().map(WatchedMemory::from)).collect();
            }
            received => {
                let why = unsent.or_else(|| received.err().map(|why| why.to_string())).unwrap_or_default();
                output::note(&format!("{} is read whole by the next save, too: {why}", about()));
            }
        }
    }

    /// Has the supervisor of the instance in `instance` keep it, with the checkpoint in `dir` whose record has this digest.
    ///
    /// # Errors
    /// It does not answer.
    pub fn keep(self, instance: &Path, dir: &Path, record: String) -> Result<()> {
        let processes = self.processes.iter().map(|(pid, _)| *pid).collect();
        let last = LastSave { dir: dir.into(), record, processes };
        if last.processes.is_empty() {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&last).map_err(|e| Fault::new(e.to_string()))?;
        let mut text = File::from(memfd_create("skiff-last-save", MemfdFlags::CLOEXEC).context(about)?);
        text.write_all(&bytes).and_then(|()| text.rewind()).context(about)?;
        let watched = self.processes.iter().map(|(_, watched)| watched.as_fd());
        // A supervisor of an older Skiff keeps the last one only; then the next save misses the others, and reads all.
        let fds: Vec<BorrowedFd<'_>> = watched.chain([text.as_fd()]).collect();
        control::hold(instance, &fds)
    }
}

fn about() -> &'static str {
    "memory of the processes"
}

/// A process and its private memory.
struct Candidate {
    pid: i32,
    ranges: Vec<PageSpan>,
    bytes: u64,
}

/// Watches those that have most memory, inside; by whom each is watched.
fn watch(
    processes: &[SavedProcess],
    tracer: Option<i32>,
    known: &[(i32, WatchedMemory)],
) -> Result<Vec<(i32, WatchedMemory)>> {
    // The first is ours, and has filters of ours alone: they refuse what is asked here, or let it be done. One of the process's own might end it.
    let usual = processes.first().and_then(|first| filters(first.pid));
    let mut all: Vec<Candidate> = processes
        .iter()
        .filter(|process| filters(process.pid) == usual)
        .filter_map(|process| Candidate::of(process.pid))
        .collect();
    all.sort_by_key(|candidate| std::cmp::Reverse(candidate.bytes));
    all.truncate(MOST);
    let (mut watched, mut left) = (vec![], vec![]);
    for candidate in all {
        let known = known.iter().find(|(pid, _)| *pid == candidate.pid);
        let again = known.and_then(|(_, known)| known.as_fd().try_clone_to_owned().ok());
        match again.map(WatchedMemory::from).filter(|known| candidate.protect(known)) {
            Some(known) => watched.push((candidate.pid, known)),
            None => left.push(candidate),
        }
    }
    let Some(tracer) = tracer.and_then(positive_pid).filter(|_| !left.is_empty() && written::is_available())
    else {
        return Ok(watched);
    };
    let traced = Traced::stop(tracer).context(|| "CRIU")?;
    for candidate in left {
        let Some(process) = positive_pid(candidate.pid) else { continue };
        let through = TracedThrough::new(&traced, process);
        match WatchedMemory::of(process, |number, words| through.call(number, words)) {
            Ok(begun) if candidate.protect(&begun) => watched.push((candidate.pid, begun)),
            // It is read each time.
            Ok(_) => {}
            // Our own filter refuses it: also to all others.
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => break,
            Err(_) => {}
        }
    }
    traced.release().context(|| "CRIU")?;
    Ok(watched)
}

impl Candidate {
    fn of(pid: i32) -> Option<Self> {
        let said = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let mut numbers = said.split_whitespace().skip(1).map(|number| number.parse::<u64>().unwrap_or(0));
        let (resident, shared) = (numbers.next()?, numbers.next()?);
        let bytes = resident.saturating_sub(shared).saturating_mul(page_size() as u64);
        if bytes < LEAST {
            return None;
        }
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok()?;
        let mut ranges: Vec<PageSpan> = vec![];
        for mapping in mappings::of_process(pid).ok()? {
            if mapping.path == LATER {
                return None;
            }
            let is_of_it =
                mapping.path.is_empty() || mapping.path == "[heap]" || mapping.path.starts_with("[anon:");
            let range = (mapping.start, mapping.end);
            if mapping.is_shared() || mapping.object.2 != 0 || !is_of_it {
                continue;
            }
            // A program that has huge pages would be slower without them all the time, not only at its first writes. The kernel makes few where memory is
            // watched already, and these are left alone.
            let is_watched = matches!(written::is_watched(pagemap.as_fd(), range.0), Ok(true));
            if is_watched || matches!(written::has_huge_pages(pagemap.as_fd(), range), Ok(false)) {
                ranges.push(range);
            }
        }
        (!ranges.is_empty()).then_some(Self { pid, ranges, bytes })
    }

    /// Whether any of its memory is watched by this from now on. What is not counts as written.
    fn protect(&self, by: &WatchedMemory) -> bool {
        let Ok(pagemap) = File::open(format!("/proc/{}/pagemap", self.pid)) else { return false };
        let watched = self.ranges.iter().filter(|range| {
            by.add(**range).and_then(|()| written::protect(pagemap.as_fd(), **range)).is_ok()
        });
        watched.count() > 0
    }
}

/// How many filters of system calls a process has; nothing if the kernel does not say.
fn filters(pid: i32) -> Option<u64> {
    let said = fs::read_to_string(format!("/proc/{pid}/status"))
        .default_on_error("a process that has ended has none");
    said.lines().find_map(|line| line.strip_prefix(FILTERS)?.trim().parse().ok())
}
