//! Threads that bring blobs: in the order in which they were asked for, each in parallel ranges, all within one limit of
//! requests. What fails is tried again after a pause, in which others get their turn.

mod queue;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skiff_oci::digest::Digest;
use skiff_oci::manifest::Descriptor;
use skiff_sys::{IgnoreError, SystemContext};

use super::chunks::Chunks;
use super::failure::{Failure, RegistryError};
use super::growing::{Growing, Tell};
use super::http::Http;
use super::ingest::{BlobDir, IngestLock};
use super::location::BlobLocation;
use super::memory::PIECE;
use super::memory::{Memory, Reserved};
use super::retry;
use super::transfer::{Transfer, Trouble};
use super::{ClientSettings, MIRROR_TRIES, Repositories};
use crate::error::{Error, Result};
use queue::{Job, Open, Phase, Queue, Ranges, Task, Turn};

/// How soon to look whether another process is ready with a blob; each further time a half later than the last.
const FOLLOW: Duration = Duration::from_millis(100);
/// But no later than this. Many nodes may wait for one, and each look is a request to the file server.
const FOLLOW_LONGEST: Duration = Duration::from_secs(1);
/// How often a blob with the wrong digest is fetched again.
const RESTARTS: u32 = 2;
/// An attempt that brought so many bytes does not count as a failure in a row.
const PROGRESS: u64 = 256 << 10;

/// Blobs under way. Dropped, it gives up what is not here yet; that is kept on disk.
pub struct Fetch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    http: Http,
    source: Repositories,
    dir: BlobDir,
    memory: Arc<Memory>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Where another process reads and hashes what comes.
    tell: Option<Tell>,
}

/// How many blobs are read side by side: one more than there are processors, since who writes waits for the disk now and then.
fn readers() -> usize {
    1 + std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

impl Fetch {
    pub(super) fn start(
        settings: ClientSettings,
        source: Repositories,
        dir: BlobDir,
        tell: Option<Tell>,
    ) -> Result<Fetch> {
        let parallel = settings.parallel.max(1);
        let memory = Memory::new(settings.memory);
        let http = Http::new(settings);
        let side_by_side = readers();
        let queue = Mutex::new(Queue { side_by_side, ..Queue::default() });
        let shared = Shared { http, source, dir, memory, queue, changed: Condvar::new(), tell };
        let mut fetch = Fetch { shared: Arc::new(shared), threads: vec![] };
        for _ in 0..parallel {
            let shared = Arc::clone(&fetch.shared);
            let thread = std::thread::Builder::new().name("skiff-fetch".into());
            let thread = thread.spawn(move || shared.work_or_fail()).on("start", "a thread to fetch with")?;
            fetch.threads.push(thread);
        }
        Ok(fetch)
    }

    /// Asks for a blob, after those asked for before. The same blob twice is fetched once.
    pub fn blob(&self, blob: &Descriptor) -> Arc<Growing> {
        let mut queue = self.shared.queue();
        let known =
            queue.jobs.iter().find(|job| job.blob.digest == blob.digest && job.blob.size == blob.size);
        if let Some(job) = known {
            return Arc::clone(&job.growing);
        }
        let growing = Arc::new(match &self.shared.tell {
            Some(tell) => Growing::served(blob, Arc::clone(tell)),
            None => Growing::new(blob),
        });
        if let Some(failure) = &queue.failure {
            growing.fail(Error::Shared(Arc::clone(failure)));
        }
        queue.jobs.push(Job::new(blob.clone(), Arc::clone(&growing)));
        drop(queue);
        self.shared.changed.notify_all();
        growing
    }

    /// Another process waits for these bytes of a blob.
    pub fn wanted(&self, digest: &Digest, begin: u64, end: u64) {
        self.with(digest, |growing| growing.wanted(begin, end));
    }

    /// Another process has read all before `end`.
    pub fn read_before(&self, digest: &Digest, end: u64) {
        self.with(digest, |growing| growing.read_before(end));
    }

    fn with(&self, digest: &Digest, work: impl Fn(&Growing)) {
        let queue = self.shared.queue();
        queue.jobs.iter().filter(|job| job.blob.digest == *digest).for_each(|job| work(&job.growing));
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// Another process has read all of a blob in this round, and says what digest it has, if it is not the right one.
    pub fn settle(&self, digest: &Digest, round: u32, got: Option<Digest>) {
        let mut queue = self.shared.queue();
        let whole = queue.jobs.iter_mut().enumerate().find_map(|(index, job)| match &job.phase {
            Phase::Open(open) if job.blob.digest == *digest => {
                job.settled = Some((round, got));
                let is_whole = open.todo.is_empty() && open.busy == 0;
                is_whole.then(|| (index, Arc::clone(&open.transfer)))
            }
            _ => None,
        });
        drop(queue);
        if let Some((index, transfer)) = whole {
            self.shared.finish(index, &transfer);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_all();
        self.shared.http.shutdown();
        for thread in self.threads.drain(..) {
            thread.join().ignore_error("a thread that panicked has said so");
        }
        for job in &self.shared.queue().jobs {
            job.growing.fail(Error::Abandoned { blob: job.blob.digest.to_string() });
        }
    }
}

impl Shared {
    /// What a thread does that panics will never be finished: all that is not here has failed then.
    fn work_or_fail(&self) {
        // Whatever the work has shared with others is given up after a panic: it may be half done.
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work())) else { return };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let why = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        let error = Arc::new(Error::Panicked { what: "fetch blobs".into(), why: why.into() });
        let mut queue = self.queue();
        queue.closed = true;
        queue.jobs.iter().for_each(|job| job.growing.fail(Error::Shared(Arc::clone(&error))));
        queue.failure = Some(error);
        drop(queue);
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut buffer = vec![0; PIECE];
        while let Some(task) = self.next_task() {
            match task {
                Task::Open { job } => self.open(job),
                Task::Transfer { job, transfer, chunk, room, origin } => {
                    let before = transfer.received(chunk);
                    let outcome = self.transfer(job, (&transfer, chunk), origin, room, &mut buffer);
                    let gained = transfer.received(chunk).saturating_sub(before);
                    self.settle(job, &transfer, chunk, gained, outcome);
                }
            }
            self.changed.notify_all();
        }
    }

    fn next_task(&self) -> Option<Task> {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return None;
            }
            let now = Instant::now();
            queue = match queue.turn(now, &self.memory) {
                Turn::Now(task) => return Some(task),
                Turn::At(then) => {
                    let waited = self.changed.wait_timeout(queue, then - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Turn::Idle => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Opens a blob's file, unless another process fetches it: then that is asked again soon.
    fn open(&self, index: usize) {
        let (blob, growing) = {
            let queue = self.queue();
            let job = &queue.jobs[index];
            (job.blob.clone(), Arc::clone(&job.growing))
        };
        let chunks = Chunks::new(blob.size, self.http.settings().chunk);
        let opened = match self.dir.take(&blob.digest, chunks) {
            Ok(IngestLock::ByAnother(bytes)) => {
                growing.followed(bytes);
                let mut queue = self.queue();
                let job = &mut queue.jobs[index];
                job.phase = Phase::Closed;
                job.pause = (job.pause.mul_f64(1.5)).clamp(FOLLOW, FOLLOW_LONGEST);
                job.not_before = Some(Instant::now() + job.pause);
                return;
            }
            Ok(IngestLock::Ours(ingest)) => Transfer::new(blob.digest, ingest, growing),
            Err(e) => return self.give_up(index, e),
        };
        let transfer = Arc::new(opened);
        let todo = transfer.missing();
        let is_here = todo.is_empty();
        self.queue().jobs[index].phase = Phase::Open(Open {
            transfer: Arc::clone(&transfer),
            todo: todo.into(),
            busy: 0,
            ranges: Ranges::Unknown,
        });
        if is_here {
            self.finish(index, &transfer);
        }
    }

    fn transfer(
        &self,
        index: usize,
        (transfer, chunk): (&Transfer, Option<usize>),
        origin: usize,
        room: Option<Reserved>,
        buffer: &mut [u8],
    ) -> Result<(), Trouble> {
        let origin = self.origin(index, origin)?;
        transfer.comes_from(origin.noted(self.http.settings()));
        match chunk {
            Some(chunk) => transfer.chunk(&self.http, &origin, chunk, room, buffer),
            None => transfer.whole(&self.http, &origin, buffer),
        }
    }

    /// The registry's repositories first, then those that the manifest names.
    fn origin(&self, index: usize, origin: usize) -> Result<BlobLocation, Failure> {
        if let Some(repository) = self.source.repositories.get(origin) {
            return Ok(BlobLocation::Repository(Arc::clone(repository)));
        }
        let queue = self.queue();
        let url = &queue.jobs[index].blob.urls[origin - self.source.repositories.len()];
        let bad = || Failure::Nonsense(format!("the manifest names {url:?} for it, which is no URL"));
        let uri: ureq::http::Uri = url.parse().map_err(|_| bad())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if is_web { Ok(BlobLocation::Url(uri)) } else { Err(bad()) }
    }

    /// Notes how a transfer ended.
    fn settle(
        &self,
        index: usize,
        transfer: &Transfer,
        chunk: Option<usize>,
        gained: u64,
        outcome: Result<(), Trouble>,
    ) {
        let mut queue = self.queue();
        let job = &mut queue.jobs[index];
        let Phase::Open(open) = &mut job.phase else {
            // Another thread has given it up meanwhile.
            return;
        };
        open.busy -= 1;
        match outcome {
            Ok(()) => {
                job.failures = 0;
                match chunk {
                    Some(_) => open.ranges = Ranges::Yes,
                    None => open.todo.clear(),
                }
                if open.todo.is_empty() && open.busy == 0 {
                    drop(queue);
                    self.finish(index, transfer);
                }
            }
            Err(Trouble::NoRanges) => {
                open.ranges = Ranges::No;
                open.todo.extend(chunk);
            }
            Err(Trouble::Fatal(error)) => {
                drop(queue);
                self.give_up(index, error);
            }
            Err(Trouble::Failure(failure)) => {
                if let Some(chunk) = chunk {
                    open.todo.push_front(chunk);
                }
                if gained >= PROGRESS {
                    job.failures = 0;
                }
                self.after_failure(queue, index, failure);
            }
        }
    }

    /// Tries again after a pause, or at the next repository, or gives up.
    fn after_failure(&self, mut queue: MutexGuard<'_, Queue>, index: usize, failure: Failure) {
        let job = &mut queue.jobs[index];
        job.failures += 1;
        let now = Instant::now();
        let is_mirror =
            self.source.repositories.get(job.origin).is_some_and(|repository| repository.is_mirror);
        let tries = self.http.settings().tries;
        let tries = if is_mirror { tries.min(MIRROR_TRIES) } else { tries };
        if let Some(pause) = retry::pause(&failure, job.failures, tries) {
            job.growing.retrying(failure.to_string());
            job.not_before = Some(now + pause);
            if matches!(failure, Failure::Status { status: 429 | 503, retry_after: Some(_), .. }) {
                queue.not_before = Some(now + pause);
            }
            return;
        }
        let (failures, origin) = (job.failures, job.origin);
        if self.next_origin(job) {
            return;
        }
        drop(queue);
        let server = self.origin(index, origin).map_or_else(|_| String::new(), |o| o.server().to_owned());
        let object = format!("the blob {}", self.queue().jobs[index].blob.digest);
        self.give_up(index, RegistryError::new(&server, object, failures, failure).into());
    }

    /// Whether there is a further repository to ask.
    fn next_origin(&self, job: &mut Job) -> bool {
        let origins = self.source.repositories.len() + job.blob.urls.len();
        let Phase::Open(open) = &mut job.phase else {
            return false;
        };
        if job.origin + 1 >= origins {
            return false;
        }
        open.transfer.forget_location();
        open.ranges = Ranges::Unknown;
        (job.origin, job.failures) = (job.origin + 1, 0);
        true
    }

    /// All is here: is it what was asked for?
    fn finish(&self, index: usize, transfer: &Transfer) {
        // Who reads it says so; or has said so, as the last bytes are told of before their request ends.
        if self.tell.is_some() {
            let settled = self.queue().jobs[index].settled.take();
            if let Some((_, got)) = settled.filter(|(round, _)| *round == transfer.round()) {
                self.conclude(index, transfer, got);
            }
            return;
        }
        match transfer.wrong_digest() {
            Err(e) => self.give_up(index, e),
            Ok(got) => self.conclude(index, transfer, got),
        }
    }

    /// `got` is its digest, if it is not the right one.
    fn conclude(&self, index: usize, transfer: &Transfer, got: Option<Digest>) {
        let got = match got {
            None => {
                // First of all: who learns that it is whole may want to remove it.
                if let Err(e) = transfer.release() {
                    return self.give_up(index, e);
                }
                let mut queue = self.queue();
                queue.jobs[index].phase = Phase::Over;
                return queue.jobs[index].growing.verified();
            }
            Some(got) => got,
        };
        if let Err(e) = transfer.restart() {
            return self.give_up(index, e);
        }
        let mut queue = self.queue();
        let job = &mut queue.jobs[index];
        job.restarts += 1;
        let failure = Failure::WrongDigest { got: got.to_string() };
        if job.restarts > RESTARTS {
            let restarts = job.restarts;
            drop(queue);
            let repositories = &self.source.repositories;
            let itself =
                repositories.iter().find(|repository| !repository.is_mirror).or(repositories.first());
            let server = itself.map_or("", |repository| &repository.server);
            let object = format!("the blob {}", transfer.digest());
            return self.give_up(index, RegistryError::new(server, object, restarts, failure).into());
        }
        job.growing.retrying(failure.to_string());
        self.next_origin(job);
        if let Phase::Open(open) = &mut job.phase {
            open.todo = transfer.missing().into();
        }
    }

    fn give_up(&self, index: usize, error: Error) {
        let mut queue = self.queue();
        queue.jobs[index].phase = Phase::Over;
        queue.jobs[index].growing.fail(error);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skiff_oci::hash::sha256;

    #[test]
    fn a_panic_ends_all_who_wait() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = BlobDir::open(dir.path()).unwrap();
        // Nobody to ask: no thread would do its work if this were.
        let nowhere = Repositories { repositories: Arc::new([]) };
        let settings = ClientSettings { parallel: 2, ..ClientSettings::default() };
        let fetch = Fetch::start(settings, nowhere, blobs, None).unwrap();
        let (ended, has_ended) = std::sync::mpsc::channel();
        for number in 0..3u8 {
            let growing = fetch.blob(&Descriptor {
                media_type: String::new(),
                digest: sha256(&[number]),
                size: 1,
                urls: vec![],
                annotations: Default::default(),
            });
            let ended = ended.clone();
            std::thread::spawn(move || ended.send(growing.wait()));
        }
        for _ in 0..3 {
            let outcome = has_ended.recv_timeout(Duration::from_secs(20)).expect("waits for ever");
            let error = outcome.unwrap_err().to_string();
            assert!(error.starts_with("cannot fetch blobs: the program failed: "), "{error}");
        }
    }
}
