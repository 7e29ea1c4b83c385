//! One save: CRIU dumps the processes while they stand still, all else is read then too, and it becomes a checkpoint.

use std::fs::File;
use std::mem::{replace, take};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use serde::Serialize;
use skiff_cli::SaveArgs;
use skiff_criu::rpc::{Options, PageServer, RequestType};
use skiff_output as output;
use skiff_sandbox::clocks::Clocks;
use skiff_snapshot::ChunkStore;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::checkpoints::dir_of;

use crate::criu::{self, CriuProcess};
use crate::files::{CopySettings, FileRules, OpenedFiles, ReadFile, WrittenFile};
use crate::inside_reader::{InsideContents, InsideReader};
use crate::member::SavedInterface;
use crate::memory;
use crate::obstacles::{Moment, SavedProcess, WaitingLook, begin_look, look_by, look_for_policies};
use crate::page_intake::{self, PageIntake, WaitingPages};
use crate::page_scan::LeftOutPages;
use crate::place::NewCheckpoint;
use crate::posix_queues::PosixQueues;
use crate::previous_pages::PreviousPages;
use crate::probe;
use crate::record::{self, Checkpoint, IMAGES, SavedTree, sums, tidy};
use crate::required_criu;
use crate::running::RunningInstance;
use crate::stored;
use crate::sysv::SystemV;
use crate::target::SaveTarget;
use crate::tries::{CheckpointAction, refuse_interrupted};
use crate::versions::Versions;
use crate::watch::Watch;

/// What is said of a save.
#[derive(Serialize)]
pub struct Saved {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Name of the instance.
    pub instance: String,
    /// How many processes were saved.
    pub processes: usize,
    /// Bytes of all that it holds.
    pub bytes: u64,
    /// Bytes that were written for it: less, where others have what it holds.
    pub written_bytes: u64,
    /// Bytes of memory that were read: less, where the kernel can tell what was written to since the last save. Only of memory that is in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_bytes: Option<u64>,
    /// Whether they go on.
    pub left_running: bool,
    /// How often it was tried: something was in the way that passes by itself.
    pub(crate) tries: u32,
    /// How long the processes stood still.
    pub frozen_ms: u128,
    /// How long it took in all.
    pub total_ms: u128,
    pub(crate) path: String,
    /// What is said of what is not in it.
    #[serde(skip)]
    pub lost: Option<String>,
}

/// What was seen of it when its processes stood still.
#[derive(Default)]
struct Stood {
    processes: Vec<SavedProcess>,
    trees: Vec<SavedTree>,
    /// Bytes that its command had written to its output.
    written: u64,
    clocks: Option<Clocks>,
    written_files: Vec<WrittenFile>,
    read_files: Vec<ReadFile>,
    sysv: Option<SystemV>,
    posix_queues: Option<PosixQueues>,
}

/// How large a checkpoint is, and what of it was written.
struct WrittenBytes {
    bytes: u64,
    new: u64,
    /// Bytes of memory that were read for it.
    read: Option<u64>,
    /// How many processes it has.
    processes: usize,
    /// The digest of its record.
    record: String,
}

/// One that is being saved.
pub(crate) struct Saving<'a> {
    pub instance: RunningInstance<'a>,
    pub save: &'a SaveArgs,
}

impl Saving<'_> {
    /// Does it. If anything fails the processes go on, and nothing is left of it.
    pub fn carry_out(&self, target: &SaveTarget<'_>, slot: &CheckpointName) -> Result<Saved> {
        let mut watch = self.watch(target);
        let dir = self.instance.record.dir.clone();
        let saved = self.dump(target, slot, &mut watch);
        match (&saved, self.save.leave_running) {
            (Ok((_, record)), true) => {
                watch.keep(&dir, &dir_of(self.instance.context, slot)?, record.clone())
            }
            // Whatever a save has failed over, the next one is not to fail over it again.
            (Ok(_), false) | (Err(_), _) => Ok(()),
        }
        .ignore_error("the next save reads all memory");
        saved.map(|(saved, _)| saved)
    }

    /// What is watched of it since its last save. Without that all memory is read.
    fn watch(&self, target: &SaveTarget<'_>) -> Watch {
        let wanted = self.instance.context.config.checkpoint.track && !target.is_joint();
        let taken = if wanted { Watch::take(&self.instance.record.dir) } else { Ok(Watch::default()) };
        taken.default_on_error("all memory is read")
    }

    /// Saves it; what has been saved, and the digest of its record.
    fn dump(
        &self,
        target: &SaveTarget<'_>,
        slot: &CheckpointName,
        watch: &mut Watch,
    ) -> Result<(Saved, String)> {
        let begun = Instant::now();
        let (criu, options, mut dump) = self.begin(target, watch)?;
        let frozen = match dump.carry_out(&criu, options, watch) {
            Ok(frozen) => frozen,
            Err(why) => return Err(dump.explain(criu.end_failed(why))),
        };
        let written = dump.finish(criu)?;
        if let Err(e) = target.prune(self.save.keep) {
            output::note(&format!(
                "checkpoint {slot}: it is saved, but an older one could not be removed: {e}"
            ));
        }
        let saved = Saved {
            checkpoint: slot.to_string(),
            instance: self.instance.record.name.to_string(),
            processes: written.processes,
            bytes: written.bytes,
            written_bytes: written.new,
            read_bytes: written.read,
            left_running: self.save.leave_running,
            tries: 1,
            frozen_ms: frozen.as_millis(),
            total_ms: begun.elapsed().as_millis(),
            path: dir_of(self.instance.context, slot)?.display().to_string(),
            lost: None,
        };
        Ok((saved, written.record))
    }

    /// Prepares all that can be prepared while the processes run. CRIU is to be asked with these options.
    fn begin<'a>(
        &'a self,
        target: &'a SaveTarget<'a>,
        watch: &Watch,
    ) -> Result<(CriuProcess, Options, Dump<'a>)> {
        let dir = target.dir();
        let RunningInstance { context, record, started, inside, .. } = self.instance;
        let (rules, largest) = (FileRules::of(context, None)?, context.config.checkpoint.copied_file_bytes);
        let member = SavedInterface::leaving(context, record, started)?;
        member.iter().try_for_each(|member| member.write(dir))?;
        let images = dir.join(IMAGES);
        let images = File::open(&images).context(|| images.display().to_string())?;
        let DumpProcesses { criu, version, mut pages, page_server } =
            self.start_criu(target, images.as_fd(), watch)?;
        // They are ended by us, if they are to end: if CRIU were to do that and it then comes to nothing, terminals would have lost what
        // waits in them, and reading them would no longer wait.
        let leave_running = Some(true);
        let goes_on = self.save.leave_running && !target.is_joint();
        let pid = self.instance.first_process();
        let options = Options { pid, leave_running, page_server, ..criu::options(inside.net) };
        // What enters now need not do so while they stand still.
        let look = begin_look(inside)?;
        let reader = InsideReader::begin_with(inside, (&started.plan, record, dir), watch)?;
        pages.as_mut().map_or(Ok(()), PageIntake::wait_until_ready)?;
        target.before_stop(member.as_ref(), inside)?;
        let dump = Dump {
            saving: self,
            target,
            images,
            copied: CopySettings { rules, largest, goes_on },
            member,
            version,
            pages,
            waiting: Some((look, reader)),
            stood: Stood::default(),
            committed: None,
            noted: Ok(()),
        };
        Ok((criu, options, dump))
    }

    /// Starts CRIU, which leaves out what is unchanged as this watch has it, and who takes pages from it.
    fn start_criu(
        &self,
        target: &SaveTarget<'_>,
        images: BorrowedFd<'_>,
        watch: &Watch,
    ) -> Result<DumpProcesses> {
        let installed = required_criu()?;
        let new = target.own();
        // Before lists are read: what they name does not go as long as it is open.
        let store = new.map(|new| stored::open(new.home())).transpose()?;
        let left_out = LeftOutPages::new()?;
        let previous = new.zip(store.as_ref()).and_then(|(new, store)| watch.previous(new.home(), store));
        let previous = previous.as_ref().map(|previous| (previous, &left_out));
        let taken = new.zip(store).map(|(new, store)| self.take_pages(new, store, previous));
        let (pages, socket) = taken.transpose()?.unzip();
        let also: Vec<BorrowedFd<'_>> = socket.iter().map(OwnedFd::as_fd).collect();
        let inside = (self.instance.inside, &self.instance.started.plan);
        let start =
            |previous| CriuProcess::start_to_dump_changes(&installed, inside, Some(images), &also, previous);
        let mut criu = start(previous)?;
        let sends_pages = probe::is_at_least(&criu, page_intake::OLDEST)?;
        // One that writes the pages itself is told of all: nobody would put in what is left out.
        if !sends_pages && previous.is_some() {
            criu.end();
            criu = start(None)?;
        }
        let version = probe::version(&criu)?;
        let pages = pages.filter(|_| sends_pages);
        // CRIU has the socket by this number. As long as it is open here, nobody hears that CRIU has ended: it is closed as this returns.
        let number = socket.as_ref().filter(|_| pages.is_some()).map(OwnedFd::as_raw_fd);
        let page_server = number.map(|number| PageServer { fd: Some(number), ..PageServer::default() });
        Ok(DumpProcesses { criu, version, pages, page_server })
    }

    /// Does what it ends with, and is shut out of its network from before then.
    fn shut<T>(&self, member: Option<&SavedInterface>, end: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(port) = member.map(SavedInterface::port) else { return end() };
        port.shut(self.instance.inside)?;
        // If it is not to end after all, it is to be heard again.
        end().inspect_err(|_| {
            port.open(self.instance.inside).ignore_error("the first error is the one to tell")
        })
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
        PageIntake::begin(store, known, dir.as_fd(), self.waiting_pages()?, previous)
    }

    /// Which pages may wait. Processes that are to end have to wait until all is written in any case.
    fn waiting_pages(&self) -> Result<WaitingPages> {
        if !self.save.leave_running {
            return Ok(WaitingPages::default());
        }
        Ok(WaitingPages { limit: memory::spare()?, init: Some(self.instance.init) })
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
        if let Some(entry) = self.instance.record.image()? {
            entry.write(&dir.join(crate::restore::IMAGE))?;
        }
        let checkpoint = Checkpoint {
            created: now(),
            instance: self.instance.started.clone(),
            processes: stood.processes,
            left_running: self.save.leave_running,
            trees: stood.trees,
            written: stood.written,
            written_files: stood.written_files,
            read_files: stood.read_files,
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
            stored::verify_saved(store, dir, &checkpoint).map_err(|e| match e.hint == stored::DAMAGED {
                true => e.hint("the instance goes on; `skiff checkpoint restore --dry-run` finds the checkpoints that are damaged: delete these, and save again"),
                false => e,
            })?;
        }
        refuse_interrupted(CheckpointAction::Save)?;
        target.commit(&checkpoint, self.save.keep)?;
        let record = record::digest(&checkpoint.bytes()?);
        let new = checkpoint.files_size().saturating_add(in_store);
        let processes = checkpoint.processes.len();
        Ok(WrittenBytes { bytes: checkpoint.size(), new, read, processes, record })
    }
}

/// What dumps.
struct DumpProcesses {
    criu: CriuProcess,
    /// CRIU's version.
    version: String,
    /// Who takes pages, if CRIU can send them.
    pages: Option<PageIntake>,
    /// Where CRIU is to send them.
    page_server: Option<PageServer>,
}

/// A dump for which all is prepared.
struct Dump<'a> {
    saving: &'a Saving<'a>,
    target: &'a SaveTarget<'a>,
    images: File,
    copied: CopySettings,
    member: Option<SavedInterface>,
    version: String,
    pages: Option<PageIntake>,
    /// Processes that wait inside.
    waiting: Option<(WaitingLook, InsideReader<'a>)>,
    stood: Stood,
    /// What was written while the processes stood still.
    committed: Option<WrittenBytes>,
    /// Whether it was noted that the instance was saved as it ended.
    noted: Result<()>,
}

impl Dump<'_> {
    /// Has CRIU stop and dump the processes; how long they stood still.
    fn carry_out(&mut self, criu: &CriuProcess, options: Options, watch: &mut Watch) -> Result<Duration> {
        let mut stopped = Instant::now();
        let dumped = criu.carry_out(RequestType::Dump, options, |stage| match stage {
            "pre-dump" => {
                // Up to here CRIU has prepared itself.
                stopped = Instant::now();
                Ok(())
            }
            "post-dump" => self.stand_still(criu, watch),
            _ => Ok(()),
        });
        let frozen = stopped.elapsed();
        match dumped {
            // What CRIU says of its end nobody wants to know.
            Err(_) if self.committed.is_some() && self.saving.instance.has_ended() => Ok(frozen),
            dumped => dumped.map(|_| frozen),
        }
    }

    /// While the processes stand still: reads all but their memory, and settles whether they go on.
    fn stand_still(&mut self, criu: &CriuProcess, watch: &mut Watch) -> Result<()> {
        refuse_interrupted(CheckpointAction::Save)?;
        let (goes_on, is_joint) = (self.saving.save.leave_running, self.target.is_joint());
        self.read(criu, watch)?;
        if !goes_on || is_joint {
            self.refuse_policies()?;
            // Only what is safe on the disk may end.
            self.commit_before_end()?;
        }
        if goes_on {
            // All of the job have been saved as they stand: from here on they may talk again.
            let port = self.member.as_ref().filter(|_| is_joint).map(SavedInterface::port);
            return port.map_or(Ok(()), |port| port.open(self.saving.instance.inside));
        }
        // From here on it is to end, whatever fails: process 1 does, and takes all along, CRIU included, which is not heard of again.
        self.noted = self.saving.instance.record.note_end(Some(End::Saved));
        self.saving.instance.end()
    }

    fn read(&mut self, criu: &CriuProcess, watch: &mut Watch) -> Result<()> {
        let Saving { instance: RunningInstance { started, init, inside, context, .. }, save } = self.saving;
        let (look, reader) =
            self.waiting.take().ok_or_else(|| Error::new("CRIU: it says twice that it has dumped all"))?;
        let dir = self.target.dir();
        let found =
            look_by(*init, (*inside, &started.plan), Moment::Frozen, look)?.with_images(&dir.join(IMAGES))?;
        found.refuse(CheckpointAction::Save)?;
        // Not before: what is left of a timer is read after its process's memory, and no timer may end early.
        self.stood.clocks = Some(Clocks::of(*init)?);
        let opened = OpenedFiles::of(self.images.as_fd())?;
        let is_tracked = context.config.checkpoint.track && self.pages.is_some();
        let watch = Some(watch).filter(|_| save.leave_running && is_tracked);
        let read = reader.read_with(&found.processes, criu, &opened.paths, watch)?;
        (self.stood.processes, self.stood.written) = (found.processes, read.written);
        let kept = opened.copy(*inside, dir, &self.copied, read.files)?;
        (self.stood.written_files, self.stood.read_files) = (kept.written, kept.read);
        let InsideContents { sysv, posix_queues, trees, .. } = read;
        (self.stood.sysv, self.stood.posix_queues, self.stood.trees) = (sysv, posix_queues, trees);
        Ok(())
    }

    /// Refuses NUMA policies that were set since the first look. Processes that go on do not stand still for this: if they have set one since, the
    /// next save would be refused in any case.
    fn refuse_policies(&self) -> Result<()> {
        look_for_policies(self.saving.instance.init)?.refuse(CheckpointAction::Save)
    }

    fn commit_before_end(&mut self) -> Result<()> {
        let (stood, pages) = (take(&mut self.stood), self.pages.take());
        let commit = || self.saving.commit(self.target, stood, &self.version, pages);
        self.committed = Some(self.saving.shut(self.member.as_ref(), commit)?);
        Ok(())
    }

    /// Why it failed, where CRIU says this: who took the pages may have failed first.
    fn explain(self, why: Error) -> Error {
        self.pages.and_then(|pages| pages.end().err()).unwrap_or(why)
    }

    /// Writes all that is not written yet.
    fn finish(mut self, criu: CriuProcess) -> Result<WrittenBytes> {
        replace(&mut self.noted, Ok(()))?;
        criu.end();
        tidy(self.images.as_fd())?;
        if self.committed.is_none() {
            self.refuse_policies()?;
        }
        match self.committed {
            None => self.saving.commit(self.target, self.stood, &self.version, self.pages),
            Some(written) => Ok(written),
        }
    }
}
