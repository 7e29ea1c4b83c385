//! Whose turn it is: which thread does what next. Pure but for the clock, which is given.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::manifest::Descriptor;
use crate::registry::growing::Growing;
use crate::registry::transfer::Transfer;

/// Everything that is wanted.
#[derive(Default)]
pub(super) struct Queue {
    /// In the order in which it was asked for.
    pub jobs: Vec<Job>,
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
    /// How long was last waited for another process that has it.
    pub pause: Duration,
    /// It is left alone until then.
    pub not_before: Option<Instant>,
}

/// How far a blob has come.
pub(super) enum Phase {
    /// Its file is not open, or another process has it.
    Closed,
    /// A thread opens its file.
    Opening,
    /// Ranges of it are fetched.
    Open(Open),
    /// It is here, or has failed.
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
    Transfer { job: usize, transfer: Arc<Transfer>, chunk: Option<usize>, origin: usize },
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
            pause: Duration::ZERO,
            not_before: None,
        }
    }

    /// Whether an answer has come to the first request, which is for its end.
    fn is_begun(&self) -> bool {
        !matches!(
            self.phase,
            Phase::Closed | Phase::Opening | Phase::Open(Open { ranges: Ranges::Unknown, .. })
        )
    }

    /// Something of it to do, which is then taken.
    fn task(&mut self, index: usize) -> Option<Task> {
        match &mut self.phase {
            Phase::Closed => {
                self.phase = Phase::Opening;
                Some(Task::Open { job: index })
            }
            Phase::Open(open) => {
                let chunk = match open.ranges {
                    Ranges::Yes => Some(open.todo.pop_front()?),
                    Ranges::Unknown if open.busy == 0 => Some(open.todo.pop_front()?),
                    Ranges::No if open.busy == 0 && !open.todo.is_empty() => None,
                    Ranges::Unknown | Ranges::No => return None,
                };
                open.busy += 1;
                let transfer = Arc::clone(&open.transfer);
                Some(Task::Transfer { job: index, transfer, chunk, origin: self.origin })
            }
            Phase::Opening | Phase::Over => None,
        }
    }
}

impl Queue {
    /// What to do now: of the blob that was asked for first, if there is something. But the end of each comes before the rest
    /// of any: it says how much room the blob needs, and none is unpacked before all have said so.
    pub(super) fn turn(&mut self, now: Instant) -> Turn {
        if let Some(then) = self.not_before.filter(|then| *then > now) {
            return Turn::At(then);
        }
        let mut earliest: Option<Instant> = None;
        for begun in [false, true] {
            let jobs = self.jobs.iter_mut().enumerate();
            for (index, job) in jobs.filter(|(_, job)| job.is_begun() == begun) {
                if matches!(job.phase, Phase::Over) {
                    continue;
                }
                if let Some(then) = job.not_before.filter(|then| *then > now) {
                    earliest = Some(earliest.map_or(then, |e| e.min(then)));
                } else if let Some(task) = job.task(index) {
                    return Turn::Now(task);
                }
            }
        }
        earliest.map_or(Turn::Idle, Turn::At)
    }
}
