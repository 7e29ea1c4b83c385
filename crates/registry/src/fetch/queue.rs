//! Whose turn it is: which thread does what next. Pure but for the clock, which is given.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skiff_oci::digest::Digest;
use skiff_oci::manifest::Descriptor;

use crate::error::Error;
use crate::growing::Growing;
use crate::memory::{Memory, Reserved};
use crate::transfer::Transfer;

/// How soon to look again for room in memory, which the unpacking of a range's bytes takes ten times as long to make.
const FULL: Duration = Duration::from_millis(10);

/// Everything that is wanted.
#[derive(Default)]
pub(super) struct Queue {
    /// In the order in which it was asked for.
    pub jobs: Vec<Job>,
    /// How many blobs are unpacked at the same time.
    pub side_by_side: usize,
    /// Nothing more is to be begun.
    pub closed: bool,
    /// Why nothing will come any more: a thread has panicked.
    pub failure: Option<Arc<Error>>,
    /// The server wants to be left alone until then.
    pub not_before: Option<Instant>,
}

/// One blob.
pub(super) struct Job {
    pub blob: Descriptor,
    pub growing: Arc<Growing>,
    pub phase: Phase,
    /// The how manieth of the places that may have it is asked.
    pub origin: usize,
    /// Failures in a row.
    pub failures: u32,
    /// How often the digest was wrong.
    pub restarts: u32,
    /// What another process says that has read all of it in a round: its digest, if it is not the right one.
    pub settled: Option<(u32, Option<Digest>)>,
    /// How long was last waited for another process that has it.
    pub pause: Duration,
    /// When the blob may be tried again.
    pub not_before: Option<Instant>,
}

/// How far a blob has come.
pub(super) enum Phase {
    /// The blob's file is not open, or another process has it.
    Closed,
    /// A thread opens its file.
    Opening,
    /// Ranges of it are fetched.
    Open(Open),
    /// The blob is here, or has failed.
    Over,
}

/// A blob that is being fetched.
pub(super) struct Open {
    pub transfer: Arc<Transfer>,
    /// Chunks that nobody fetches.
    pub todo: VecDeque<usize>,
    /// How many threads fetch some.
    pub busy: usize,
    pub ranges: Ranges,
}

/// Whether the server gives out ranges.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranges {
    /// The first answer will tell; until then there is one request only.
    Unknown,
    Yes,
    No,
}

/// What a thread is to do.
pub(super) enum Task {
    /// Open a blob's file.
    Open { job: usize },
    /// Fetch a chunk, or all that is missing in one go.
    Transfer {
        job: usize,
        transfer: Arc<Transfer>,
        chunk: Option<usize>,
        room: Option<Reserved>,
        origin: usize,
    },
}

/// Whether there is something to do.
pub(super) enum Turn {
    Now(Task),
    /// Not before then, unless something changes.
    At(Instant),
    /// Not unless something changes.
    Idle,
}

impl Job {
    pub(super) fn new(blob: Descriptor, growing: Arc<Growing>) -> Job {
        let phase = Phase::Closed;
        Job {
            blob,
            growing,
            phase,
            origin: 0,
            failures: 0,
            restarts: 0,
            settled: None,
            pause: Duration::ZERO,
            not_before: None,
        }
    }

    /// Whether an answer has come to the first request, and all has been asked for that says how much room it needs.
    fn is_begun(&self) -> bool {
        match &self.phase {
            Phase::Closed | Phase::Opening | Phase::Open(Open { ranges: Ranges::Unknown, .. }) => false,
            Phase::Open(Open { ranges: Ranges::Yes, transfer, todo, .. }) => {
                !todo.front().is_some_and(|chunk| transfer.is_edge(*chunk))
            }
            Phase::Open(_) | Phase::Over => true,
        }
    }

    /// Whether it is to be tried again, but later.
    fn is_left_alone(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|then| then > now)
    }

    /// Whether some of it is to be asked for, now or soon.
    fn has_more(&self) -> bool {
        match &self.phase {
            Phase::Closed | Phase::Opening => true,
            Phase::Open(open) => !open.todo.is_empty() && (open.ranges != Ranges::No || open.busy == 0),
            Phase::Over => false,
        }
    }

    /// Whether there is something of it to do.
    fn is_ready(&self) -> bool {
        match &self.phase {
            Phase::Closed => true,
            Phase::Open(open) => !open.todo.is_empty() && (open.ranges == Ranges::Yes || open.busy == 0),
            Phase::Opening | Phase::Over => false,
        }
    }

    /// How many bytes of it are here, or on their way, before anybody wants them.
    fn ahead(&self) -> u64 {
        match &self.phase {
            Phase::Open(open) => open.transfer.ahead(open.busy),
            Phase::Closed | Phase::Opening | Phase::Over => 0,
        }
    }

    /// Room in memory for what is next of it.
    fn room(&self, memory: &Arc<Memory>) -> Option<Reserved> {
        match &self.phase {
            Phase::Open(open) if open.ranges != Ranges::No => open.transfer.room(*open.todo.front()?, memory),
            _ => None,
        }
    }

    /// Whether somebody waits for what is next of it.
    fn is_urgent(&self) -> bool {
        match &self.phase {
            // All of it goes by the disk.
            Phase::Open(open) if open.ranges == Ranges::No => true,
            Phase::Open(open) => open.todo.front().is_some_and(|chunk| open.transfer.is_urgent(*chunk)),
            Phase::Closed | Phase::Opening | Phase::Over => false,
        }
    }

    /// How many requests for it are under way.
    fn busy(&self) -> usize {
        match &self.phase {
            Phase::Open(open) => open.busy,
            Phase::Closed | Phase::Opening | Phase::Over => 0,
        }
    }

    /// What is to be done next of it, which is then taken.
    fn task(&mut self, index: usize, room: Option<Reserved>) -> Option<Task> {
        match &mut self.phase {
            Phase::Closed => {
                self.phase = Phase::Opening;
                Some(Task::Open { job: index })
            }
            Phase::Open(open) => {
                let chunk = match open.ranges {
                    Ranges::Yes | Ranges::Unknown => Some(open.todo.pop_front()?),
                    Ranges::No => None,
                };
                open.busy += 1;
                let transfer = Arc::clone(&open.transfer);
                Some(Task::Transfer { job: index, transfer, chunk, room, origin: self.origin })
            }
            Phase::Opening | Phase::Over => None,
        }
    }
}

/// Whose turn it is.
enum Next {
    /// The one of this number, with room in memory, or by way of the disk.
    Job(usize, Option<Reserved>),
    /// There is no room in memory, and no hurry.
    Full,
    /// There is nothing to do.
    Nothing,
}

impl Queue {
    /// What to do now.
    pub(super) fn turn(&mut self, now: Instant, memory: &Arc<Memory>) -> Turn {
        if let Some(then) = self.not_before.filter(|then| *then > now) {
            return Turn::At(then);
        }
        let is_full = match self.next(now, memory) {
            Next::Job(index, room) => match self.jobs[index].task(index, room) {
                Some(task) => return Turn::Now(task),
                None => unreachable!("what is ready has something to do"),
            },
            Next::Full => true,
            Next::Nothing => false,
        };
        let later =
            self.jobs.iter().filter(|job| !matches!(job.phase, Phase::Over) && job.is_left_alone(now));
        let later = later.filter_map(|job| job.not_before);
        later.chain(is_full.then_some(now + FULL)).min().map_or(Turn::Idle, Turn::At)
    }

    /// Whose turn it is. The edges of each blob come before the rest of any: they say how much room the blob needs, and none is
    /// unpacked before all have said so. Then those asked for first, as many side by side as are unpacked at the same time: of these the
    /// one whose reader will first have nothing left.
    fn next(&self, now: Instant, memory: &Arc<Memory>) -> Next {
        let open: Vec<(usize, &Job)> = self
            .jobs
            .iter()
            .enumerate()
            .filter(|(_, job)| job.has_more() && !job.is_left_alone(now))
            .collect();
        if let Some((index, job)) = open.iter().find(|(_, job)| job.is_ready() && !job.is_begun()) {
            return Next::Job(*index, job.room(memory));
        }
        let (first, others) = open.split_at(self.side_by_side.max(1).min(open.len()));
        let mut first: Vec<_> = first.iter().filter(|(_, job)| job.is_ready()).collect();
        first.sort_by_key(|(_, job)| job.ahead());
        for (index, job) in &first {
            match job.room(memory) {
                None if !job.is_urgent() => {}
                room => return Next::Job(*index, room),
            }
        }
        // Those unpacked now may wait for others to be done: these must then come.
        if self.jobs.iter().all(|job| job.busy() == 0)
            && let Some((index, job)) = others.iter().find(|(_, job)| job.is_ready() && job.is_urgent())
        {
            return Next::Job(*index, job.room(memory));
        }
        if first.is_empty() { Next::Nothing } else { Next::Full }
    }
}
