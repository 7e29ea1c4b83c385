//! `skiff checkpoint save`.

use std::fs::File;
use std::mem::take;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::CWD;
use rustix::process::{Pid, Signal, pidfd_send_signal};
use serde::Serialize;
use skiff_cli::SaveArgs;
use skiff_criu::rpc::{Options, PageServer, RequestType};
use skiff_instance::look::not_running;
use skiff_output as output;
use skiff_runtime::control::{self, ControlRequest, Live};
use skiff_runtime::enter;
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::clocks::Clocks;
use skiff_sandbox::enter::EnterTarget;
use skiff_snapshot::ChunkStore;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::{End, Started};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_sys::signal::{HeldEnd, is_end_wanted};
use skiff_user::checkpoints::dir_of;
use skiff_user::checkpoints::home_of;
use skiff_user::context::UserContext;

use crate::criu::{self, CriuProcess};
use crate::files::{CopySettings, FileRules, OpenedFiles, WrittenFile};
use crate::inside_reader::InsideReader;
use crate::member::SavedInterface;
use crate::memory;
use crate::obstacles::{
    Moment, Obstacle, PreflightReport, SavedProcess, begin_look, look, look_by, lost_processor_time,
};
use crate::page_intake::{self, PageIntake};
use crate::page_queue::QueueSize;
use crate::page_scan::LeftOutPages;
use crate::place::NewCheckpoint;
use crate::posix_queues::PosixQueues;
use crate::previous_pages::PreviousPages;
use crate::probe;
use crate::record::{Checkpoint, IMAGES, SavedTree, sums, tidy};
use crate::stored;
use crate::sysv::SystemV;
use crate::target::SaveTarget;
use crate::versions::Versions;
use crate::watch::{self, Watch};

/// How long another save may take.
const LONGEST_SAVE: Duration = Duration::from_secs(3600);
/// How often a save or move is tried where something is in the way that passes by itself.
pub const TRIES: u32 = 10;
/// Pauses between tries grow up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(640);
/// The hint of a refusal by what passes by itself.
const PASSING: &str = "it goes on as it was; what is in the way passes by itself: try again";

/// What is said of one.
#[derive(Serialize)]
pub struct Saved {
    /// Name of the checkpoint.
    pub checkpoint: String,
    instance: String,
    processes: usize,
    /// Bytes of all that it holds.
    pub bytes: u64,
    /// Bytes that were written for it: less, where others have what it holds.
    pub written_bytes: u64,
    /// Bytes of memory that were read: less, where the kernel can tell what was written to since the last save. Only of memory that is in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<u64>,
    left_running: bool,
    /// How often it was tried: something was in the way that passes by itself.
    tries: u32,
    /// How long the processes stood still.
    pub frozen_ms: u128,
    /// How long it took in all.
    pub total_ms: u128,
    path: String,
    /// What is said of what is not in it.
    #[serde(skip)]
    pub lost: Option<String>,
}

/// Saves an instance, and says so; the exit code.
pub fn save(context: &UserContext, words: &SaveArgs) -> Result<i32> {
    let held = HeldEnd::begin();
    let done = carry_out(context, words).and_then(|outcome| match outcome {
        SaveOutcome::Saved(saved) => say(words, &saved).map(|()| 0),
        SaveOutcome::Shown(code) => Ok(code),
    });
    // The signal that is held back ends this process before the caller says why.
    if let (Err(why), Some(_)) = (&done, held.caught()) {
        output::complain(why);
    }
    done
}

/// What has come of it.
pub enum SaveOutcome {
    /// The instance has been saved.
    Saved(Box<Saved>),
    /// The instance was only looked at; the exit code says whether it can be saved.
    Shown(i32),
}

/// Saves an instance.
pub fn carry_out(context: &UserContext, save: &SaveArgs) -> Result<SaveOutcome> {
    let (record, started, live) = running(context, &save.instance)?;
    let net = enter::net_space(&started.net, started.plan.dumpable).named(started.plan.hostname.is_some());
    let about = |e: Error| e.about(&format!("instance {}", record.name));
    let inside = EnterTarget { init: live.init.as_fd(), net, number: None };
    // Before the look: what somebody else saves is traced.
    let _lock = if save.dry_run { None } else { Some(alone(&record)?) };
    let found = look(live.pid, inside, Moment::Running).map_err(about)?;
    found.tell();
    let name = save.name.as_ref().or(started.saved_as.as_ref()).unwrap_or(&record.name);
    let slot = CheckpointName::newest(name);
    if save.dry_run {
        found.tell_lost_time();
        return show(&slot, &found, save.output.json).map(|()| SaveOutcome::Shown(found.exit_code()));
    }
    if live.sessions > 0 {
        output::note("a session is open in it (`instance exec`): that is not saved");
    }
    let home = home_of(context, &slot)?;
    let (mut found, mut number) = (Some(found), 0);
    let saved = try_again((&record.name, StopPurpose::Save), || {
        number += 1;
        let found = found.take().map_or_else(|| look(live.pid, inside, Moment::Running), Ok)?;
        refuse(&found.obstacles, StopPurpose::Save)?;
        let new = NewCheckpoint::make(&home, &slot.name)?;
        new.check()?;
        let (record, started, found, init) = (&record, &started, &found, live.pid);
        let saving = Saving { context, record, started, init, inside, found, save };
        let saved = saving.carry_out(&SaveTarget::Own(&new), &slot)?;
        Ok((saved, lost_processor_time(&found.processes)))
    });
    // Together with this goes what it has replaced, and what others had to leave as long as it was being saved.
    stored::tell_uncollected(stored::collect(&home));
    let (saved, lost) = saved.map_err(about)?;
    Ok(SaveOutcome::Saved(Box::new(Saved { tries: number, lost, ..saved })))
}

/// Carries out a save or move, and does so again as long as something is in the way that passes by itself: the programs go on meanwhile.
pub fn try_again<T>(
    (name, purpose): (&EnvName, StopPurpose),
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut number = 1;
    loop {
        refuse_interrupted(purpose)?;
        match attempt() {
            Ok(done) if number > 1 => {
                output::note(&format!("instance {name}: {} at try {number}", purpose.words().0));
                return Ok(done);
            }
            Err(why) if why.hint == PASSING && number < TRIES => {
                std::thread::sleep(pause_after(number));
                number += 1;
            }
            Err(why) if why.hint == PASSING => {
                return Err(why.about(&format!("tried {TRIES} times")));
            }
            done => return done,
        }
    }
}

/// How long programs go on after the try of this number.
fn pause_after(number: u32) -> Duration {
    Duration::from_millis(5).saturating_mul(1 << number.min(16)).min(LONGEST_PAUSE)
}

/// Refuses to go on once this process is asked to end (Ctrl-C, SIGTERM). The caller names the instance.
pub fn refuse_interrupted(purpose: StopPurpose) -> Result<()> {
    match is_end_wanted() {
        false => Ok(()),
        true => {
            let done = purpose.words().0;
            Err(Error::new(format!("interrupted: nothing is {done}, and the instance goes on")))
        }
    }
}

/// The instance, which must run and be made to be saved.
pub fn running(context: &UserContext, instance: &EnvName) -> Result<(InstanceDir, Started, Live)> {
    let record = InstanceDir::existing(context, instance)?;
    let started = record.started()?;
    refuse_unprepared(&record.name, &started)?;
    let live = Live::connect(&record.dir, ControlRequest::Session)?.ok_or_else(|| not_running(&record))?;
    Ok((record, started, live))
}

/// Refuses one that was not made to be saved.
pub fn refuse_unprepared(name: &EnvName, started: &Started) -> Result<()> {
    match started.checkpoint {
        true => Ok(()),
        false => Err(Error::new(format!("instance {name}: it was not started so that it can be saved"))
            .hint("skiff instance start --checkpoint ...")),
    }
}

/// Keeps others from saving or moving it: only one can trace its processes. Nothing if somebody does.
pub fn try_alone(record: &InstanceDir) -> Result<Option<OwnedFd>> {
    let path = record.dir.join("saving");
    skiff_sys::lock::try_file(CWD, &*path).context(|| path.display().to_string())
}

/// The same, after waiting until nobody else does.
pub fn alone(record: &InstanceDir) -> Result<OwnedFd> {
    if let Some(lock) = try_alone(record)? {
        return Ok(lock);
    }
    output::note(&format!("instance {}: it is being saved; waiting for the end of that", record.name));
    let attempt = || {
        refuse_interrupted(StopPurpose::Save)?;
        try_alone(record)
    };
    skiff_sys::lock::within(LONGEST_SAVE, attempt)?.ok_or_else(|| {
        Error::new(format!("instance {}: somebody else has been saving it for an hour", record.name))
            .hint("`ps -u $USER` shows the other `skiff checkpoint`; end that")
    })
}

fn say(save: &SaveArgs, saved: &Saved) -> Result<()> {
    saved.lost.iter().for_each(|lost| output::note(lost));
    if save.output.json {
        return output::json(saved);
    }
    let Saved { processes, instance, total_ms, .. } = saved;
    let goes_on = if saved.left_running { ", and it goes on" } else { ", and it has ended" };
    let size = match saved.bytes == saved.written_bytes {
        true => output::size(saved.bytes),
        false => format!("{} ({} written)", output::size(saved.bytes), output::size(saved.written_bytes)),
    };
    output::note(&format!(
        "{processes} processes of instance {instance} saved, {size}{goes_on} ({total_ms} ms)"
    ));
    output::line(&saved.checkpoint)
}

/// What the processes are stopped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPurpose {
    /// They are saved.
    Save,
    /// They are moved to another host.
    Move,
}

impl StopPurpose {
    /// What is then said of the instance, and the command that shows what is in the way.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Save => ("saved", "skiff checkpoint save --dry-run"),
            Self::Move => ("moved", "skiff migrate --dry-run"),
        }
    }
}

/// Says all that is in the way, if anything is. The caller names the instance.
pub fn refuse(obstacles: &[Obstacle], purpose: StopPurpose) -> Result<()> {
    if obstacles.is_empty() {
        return Ok(());
    }
    let all: Vec<String> =
        obstacles.iter().map(|o| format!("process {} ({}): {}", o.pid, o.name, o.why)).collect();
    let (done, command) = purpose.words();
    let refused = Error::new(format!("it cannot be {done}: {}", all.join("; ")));
    Err(match obstacles.iter().all(Obstacle::passes) {
        true => refused.hint(PASSING),
        false => refused.hint(format!("it goes on as it was; `{command}` shows what is in the way")),
    })
}

fn show(slot: &CheckpointName, found: &PreflightReport, json: bool) -> Result<()> {
    #[derive(Serialize)]
    struct Shown<'a> {
        checkpoint: String,
        processes: &'a [SavedProcess],
        obstacles: &'a [Obstacle],
    }
    if json {
        let (processes, obstacles) = (&found.processes[..], &found.obstacles[..]);
        return output::json(&Shown { checkpoint: slot.to_string(), processes, obstacles });
    }
    output::line(&format!("checkpoint   {slot}"))?;
    for process in &found.processes {
        output::line(&super::look::process(process))?;
    }
    for obstacle in &found.obstacles {
        output::line(&super::look::obstacle(obstacle))?;
    }
    Ok(())
}

/// What was seen of it when its processes stood still.
#[derive(Default)]
struct Stood {
    processes: Vec<SavedProcess>,
    trees: Vec<SavedTree>,
    clocks: Option<Clocks>,
    written_files: Vec<WrittenFile>,
    sysv: Option<SystemV>,
    posix_queues: Option<PosixQueues>,
}

/// How large a checkpoint is, and what of it was written.
struct WrittenBytes {
    bytes: u64,
    new: u64,
    /// Bytes of memory that were read for it.
    read: Option<u64>,
    /// The digest of its record.
    record: String,
}

/// One that is being saved.
pub(crate) struct Saving<'a> {
    pub context: &'a UserContext,
    pub record: &'a InstanceDir,
    pub started: &'a Started,
    pub init: Pid,
    pub inside: EnterTarget<'a>,
    pub found: &'a PreflightReport,
    pub save: &'a SaveArgs,
}

impl Saving<'_> {
    /// Does it. If anything fails the processes go on, and nothing is left of it.
    pub fn carry_out(&self, target: &SaveTarget<'_>, slot: &CheckpointName) -> Result<Saved> {
        let mut watch = self.watch(target);
        let dir = self.record.dir.clone();
        let saved = self.dump(target, slot, &mut watch);
        match (&saved, self.save.leave_running) {
            (Ok((_, record)), true) => watch.keep(&dir, &dir_of(self.context, slot)?, record.clone()),
            // Whatever a save has failed over, the next one is not to fail over it again.
            (Ok(_), false) | (Err(_), _) => Ok(()),
        }
        .ignore_error("the next save reads all memory");
        saved.map(|(saved, _)| saved)
    }

    /// What is watched of it since its last save. Without that all memory is read.
    fn watch(&self, target: &SaveTarget<'_>) -> Watch {
        let wanted = self.context.config.checkpoint.track && !target.is_joint();
        let taken = if wanted { Watch::take(&self.record.dir) } else { Ok(Watch::default()) };
        taken.default_on_error("all memory is read")
    }

    /// Saves it; what has been saved, and the digest of its record.
    fn dump(
        &self,
        target: &SaveTarget<'_>,
        slot: &CheckpointName,
        watch: &mut Watch,
    ) -> Result<(Saved, String)> {
        let dir = target.dir();
        let begun = Instant::now();
        let (rules, largest) =
            (FileRules::of(self.context, None)?, self.context.config.checkpoint.copied_file_bytes);
        let copied = CopySettings { rules, largest };
        let member = SavedInterface::leaving(self.context, self.record, self.started)?;
        member.iter().try_for_each(|member| member.write(dir))?;
        let images = dir.join(IMAGES);
        let images = File::open(&images).context(|| images.display().to_string())?;
        let installed = super::required_criu()?;
        let new = target.own();
        // Before lists are read: what they name does not go as long as it is open.
        let store = new.map(|new| stored::open(new.home())).transpose()?;
        let left_out = LeftOutPages::new()?;
        let previous = new.zip(store.as_ref()).and_then(|(new, store)| watch.previous(new.home(), store));
        let previous = previous.as_ref().map(|previous| (previous, &left_out));
        let taken = new.zip(store).map(|(new, store)| self.take_pages(new, store, previous));
        let (mut pages, socket) = taken.transpose()?.unzip();
        let also: Vec<BorrowedFd<'_>> = socket.iter().map(OwnedFd::as_fd).collect();
        let images_fd = Some(images.as_fd());
        let start = |previous| {
            CriuProcess::start_to_dump_changes(&installed, self.inside, images_fd, &also, previous)
        };
        let mut criu = start(previous)?;
        if !probe::is_at_least(&criu, page_intake::OLDEST)? {
            pages = None;
            // It writes the pages itself: nobody would put in what it is not told of.
            if previous.is_some() {
                criu.end();
                criu = start(None)?;
            }
        }
        let version = probe::version(&criu)?;
        let page_server = socket
            .as_ref()
            .map(|socket| PageServer { fd: Some(socket.as_raw_fd()), ..PageServer::default() });
        // As long as it is open here, nobody hears that CRIU has ended.
        drop(socket);
        let main = self.found.processes.first().map(|process| process.pid);
        let leave_running = self.save.leave_running;
        // They are ended by us, if they are to end: if CRIU were to do that and it then comes to nothing, terminals would have lost what
        // waits in them, and reading them would no longer wait.
        let page_server = page_server.filter(|_| pages.is_some());
        let options =
            Options { pid: main, leave_running: Some(true), page_server, ..criu::options(self.inside.net) };
        let is_tracked = self.context.config.checkpoint.track && pages.is_some();
        let (mut stood, mut committed) = (Stood::default(), None);
        // What enters now need not do so while they stand still.
        let mut space = Some(begin_look(self.inside)?);
        let reader = InsideReader::begin_with(self.inside, (&self.started.plan, self.record, dir), watch)?;
        let mut reader = Some(reader);
        pages.as_mut().map_or(Ok(()), PageIntake::wait_until_ready)?;
        target.before_stop(member.as_ref(), self.inside)?;
        let mut noted = Ok(());
        let mut stopped = Instant::now();
        let dumped = criu.carry_out(RequestType::Dump, options, |stage| {
            if stage == "pre-dump" {
                // Up to here CRIU has prepared itself.
                stopped = Instant::now();
            }
            if stage != "post-dump" {
                return Ok(());
            }
            refuse_interrupted(StopPurpose::Save)?;
            // Now that they stand still.
            let (Some(space), Some(reader)) = (space.take(), reader.take()) else {
                return Err(Error::new("CRIU: it says twice that it has dumped all"));
            };
            let found = look_by(self.init, self.inside, Moment::Frozen, space)?;
            let found = found.with_images(&dir.join(IMAGES))?;
            refuse(&found.obstacles, StopPurpose::Save)?;
            // Not before: what is left of a timer is read after its process's memory, and no timer may end early.
            stood.clocks = Some(Clocks::of(self.init)?);
            let opened = OpenedFiles::of(images.as_fd())?;
            let watch = Some(&mut *watch).filter(|_| leave_running && is_tracked);
            let read = reader.read_with(&found.processes, &criu, &opened.paths, watch)?;
            stood.processes = found.processes;
            stood.written_files = opened.copy(self.inside, dir, &copied, read.files)?;
            (stood.sysv, stood.posix_queues, stood.trees) = (read.sysv, read.posix_queues, read.trees);
            if !leave_running || target.is_joint() {
                // Only what is safe on the disk may end.
                let stood = take(&mut stood);
                let pages = pages.take();
                let commit = || self.commit(target, stood, &version, pages);
                committed = Some(self.shut(member.as_ref(), commit)?);
            }
            if leave_running {
                // All of the job have been saved as they stand: from here on they may talk again.
                let port = member.as_ref().filter(|_| target.is_joint()).map(SavedInterface::port);
                port.map_or(Ok(()), |port| port.open(self.inside))?;
            } else {
                // From here on it is to end, whatever fails: process 1 does, and takes all along, CRIU included, which is not heard of again.
                noted = self.record.note_end(Some(End::Saved));
                self.end()?;
            }
            Ok(())
        });
        let frozen = stopped.elapsed();
        // What CRIU says of its end nobody wants to know.
        if let Err(why) = dumped
            && (committed.is_none() || !self.ended())
        {
            let why = criu.end_failed(why);
            // What took the pages may have failed first: then that is why.
            return Err(pages.and_then(|pages| pages.end().err()).unwrap_or(why));
        }
        noted?;
        criu.end();
        tidy(images.as_fd())?;
        let written = match committed {
            None => self.commit(target, stood, &version, pages)?,
            Some(written) => written,
        };
        if let Err(e) = target.prune(self.save.keep) {
            output::note(&format!(
                "checkpoint {slot}: it is saved, but an older one could not be removed: {e}"
            ));
        }
        let saved = Saved {
            checkpoint: slot.to_string(),
            instance: self.record.name.to_string(),
            processes: self.found.processes.len(),
            bytes: written.bytes,
            written_bytes: written.new,
            read_bytes: written.read,
            left_running: leave_running,
            tries: 1,
            frozen_ms: frozen.as_millis(),
            total_ms: begun.elapsed().as_millis(),
            path: dir_of(self.context, slot)?.display().to_string(),
            lost: None,
        };
        Ok((saved, written.record))
    }

    /// Ends it, without its supervisor if that does not.
    fn end(&self) -> Result<()> {
        let told = control::stop_at(&self.record.dir);
        if self.ended() {
            return Ok(());
        }
        let killed =
            pidfd_send_signal(self.inside.init, Signal::KILL).context(|| "process 1 of the instance");
        told.and(killed)
    }

    /// Whether its process 1 has.
    fn ended(&self) -> bool {
        let (mut init, now) =
            ([PollFd::new(&self.inside.init, PollFlags::IN)], Timespec { tv_sec: 0, tv_nsec: 0 });
        poll(&mut init, Some(&now)).is_ok() && !init[0].revents().is_empty()
    }

    /// Does what it ends with, and is shut out of its network from before then.
    fn shut<T>(&self, member: Option<&SavedInterface>, end: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(port) = member.map(SavedInterface::port) else { return end() };
        port.shut(self.inside)?;
        // If it is not to end after all, it is to be heard again.
        end().inspect_err(|_| port.open(self.inside).ignore_error("the first error is the one to tell"))
    }

    /// Has the pages of the processes taken, whose chunks others may have. A whole job's may lie on other hosts than its parts are saved on, and so
    /// are whole.
    fn take_pages(
        &self,
        new: &NewCheckpoint,
        store: ChunkStore,
        previous: Option<(&PreviousPages, &LeftOutPages)>,
    ) -> Result<(PageIntake, OwnedFd)> {
        let known = stored::known(new.home(), new.name())?;
        let dir = File::open(&new.dir).context(|| new.dir.display().to_string())?;
        PageIntake::begin(store, known, dir.as_fd(), self.queue_size()?, previous)
    }

    /// How many bytes of pages may wait. Those that are to end have to wait until all is written in any case.
    fn queue_size(&self) -> Result<QueueSize> {
        if !self.save.leave_running {
            return Ok(QueueSize::default());
        }
        Ok(QueueSize { limit: memory::spare()?, expected: memory::resident(self.init)? })
    }

    /// Makes it a checkpoint.
    fn commit(
        &self,
        target: &SaveTarget<'_>,
        stood: Stood,
        criu: &str,
        pages: Option<PageIntake>,
    ) -> Result<WrittenBytes> {
        let dir = target.dir();
        let unsaid = || Error::new("CRIU: it has not said that these were all pages");
        let taken = pages.map(|pages| pages.end()?.ok_or_else(unsaid)).transpose()?;
        // The store stays open until its list has its name.
        let (taken, store) = taken.unzip();
        let read = taken.as_ref().map(|taken| taken.read);
        let (in_store, stored) = taken.map_or((0, vec![]), |taken| (taken.new, taken.stored));
        if let Some(entry) = self.record.image()? {
            entry.write(&dir.join(super::restore::IMAGE))?;
        }
        let checkpoint = Checkpoint {
            created: now(),
            instance: self.started.clone(),
            processes: stood.processes,
            left_running: self.save.leave_running,
            trees: stood.trees,
            written: self.record.written()?,
            written_files: stood.written_files,
            clocks: stood.clocks,
            sysv: stood.sysv,
            posix_queues: stood.posix_queues,
            made_with: Versions::here(criu),
            files: sums(dir)?,
            stored,
        };
        checkpoint.write(dir)?;
        if let (Some(store), false) = (&store, self.save.leave_running) {
            // Chunks that older checkpoints have in common with it may be damaged by now.
            stored::verify_saved(store, dir, &checkpoint).map_err(|e| {
                e.hint("the instance goes on; `skiff checkpoint restore --dry-run` finds the checkpoints that are damaged: delete these, and save again")
            })?;
        }
        refuse_interrupted(StopPurpose::Save)?;
        target.commit(&checkpoint, self.save.keep)?;
        let record = watch::digest(&checkpoint.bytes()?);
        let new = checkpoint.files_size().saturating_add(in_store);
        Ok(WrittenBytes { bytes: checkpoint.size(), new, read, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_by_itself_is_tried_again() {
        let obstacle = |why: &str| Obstacle { pid: 2, name: "a".into(), why: why.into() };
        let waits = obstacle("a TCP connection that waits to be accepted; try again once it has been");
        let lease = obstacle("a lease on /a against readers (F_SETLEASE); try again once it has none");
        let name = "sim".parse().unwrap();
        let tried = |found: &[Obstacle], until: u32| {
            let mut tries = 0;
            let done = try_again((&name, StopPurpose::Save), || {
                tries += 1;
                refuse(if tries < until { found } else { &[] }, StopPurpose::Save)
            });
            (done.is_ok(), tries)
        };
        assert_eq!(tried(std::slice::from_ref(&waits), 3), (true, 3));
        assert_eq!(tried(std::slice::from_ref(&waits), 99), (false, TRIES));
        assert_eq!(tried(&[waits, lease], 3), (false, 1));
        assert!((1..TRIES).map(pause_after).sum::<Duration>() < Duration::from_secs(3));
    }
}
