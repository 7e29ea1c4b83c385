//! System V semaphores, message queues and shared memory of an instance. CRIU works in the instance's IPC namespace, takes it for its own, and
//! leaves all of it out. They are made again, with their numbers and keys, before CRIU makes the processes; what of these had segments attached
//! has placeholders there, which each process is made to replace before it goes on.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::Plan;
use skiff_sys::sysv::{self, Kind};

use crate::attach;
pub use crate::attach::Attachment;
use crate::mappings::Placeholders;
use crate::obstacles::SavedProcess;
use crate::sysv_tables::{MARKED_FOR_REMOVAL, table};
use crate::undo::{self, SetState, Undo};

mod limits;
mod object;
mod queue;
mod segment;
mod semaphores;

use self::queue::SystemVQueue;
use self::segment::SystemVSegment;
use self::semaphores::Semaphores;
use limits::{FORCED, LIMITS, set_limit, widen_limit};
use object::named;

/// Messages and what segments hold, in messages.
const HELD: &str = "what System V objects hold";

/// All of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemV {
    /// Limits of the namespace: files below `/proc/sys`, and what they say.
    limits: Vec<(String, String)>,
    semaphores: Vec<Semaphores>,
    queues: Vec<SystemVQueue>,
    segments: Vec<SystemVSegment>,
    /// Where processes have segments attached.
    attached: Vec<Attachment>,
    /// Semaphores that are set back when a process ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    undo: Vec<Undo>,
}

/// A new file for what they hold, of a checkpoint.
pub(crate) struct SystemVFile {
    file: File,
    path: PathBuf,
}

impl SystemVFile {
    /// Makes it.
    pub fn new(path: PathBuf) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(&path);
        Ok(Self { file: file.context(|| path.display().to_string())?, path })
    }

    /// Inside: reads all of them; nothing if there are none. The processes stand still. CRIU, which is `tracer`, has stopped them, and waits for a word.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn read(
        &self,
        processes: &[SavedProcess],
        tracer: Option<i32>,
        placeholders: &Placeholders,
    ) -> Result<Option<SystemV>> {
        // Before the directories are read: no placeholder goes into the checkpoint, also if one was left.
        placeholders.remove_all();
        let about = || self.path.display().to_string();
        let mut into = BufWriter::new(self.file.try_clone().context(about)?);
        let found = SystemV::read(processes, tracer, &mut into)?;
        into.flush().context(about)?;
        Ok(found)
    }

    /// Removes it, if there are none.
    pub fn close(self, found: Option<SystemV>) -> Result<Option<SystemV>> {
        match found {
            None => fs::remove_file(&self.path).context(|| self.path.display().to_string()).map(|()| None),
            found => Ok(found),
        }
    }
}

impl AsFd for SystemVFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl SystemV {
    /// What there is, in words.
    #[must_use]
    pub fn summary(&self) -> String {
        let bytes = self.segments.iter().map(|segment| segment.size).fold(0, u64::saturating_add);
        let (sets, queues, segments) = (self.semaphores.len(), self.queues.len(), self.segments.len());
        let size = skiff_output::size(bytes);
        format!(
            "sets of semaphores {sets}, message queues {queues}, segments of shared memory {segments} ({size})"
        )
    }

    fn read(processes: &[SavedProcess], tracer: Option<i32>, into: &mut impl Write) -> Result<Option<Self>> {
        let numbers: Vec<i32> = processes.iter().map(|process| process.pid).collect();
        let attached = attach::read(&numbers)?;
        let mut found = Self { attached, ..Self::default() };
        for entry in table(Kind::Semaphores)? {
            found.semaphores.push(Semaphores::read(entry)?);
        }
        found.undo = undo::read(processes, tracer, &found.sets())?;
        for entry in table(Kind::Queue)? {
            found.queues.push(SystemVQueue::read(entry, into)?);
        }
        for entry in table(Kind::Segment)? {
            // What only sessions have, which are not saved, goes with them.
            if !entry.is_marked_for_removal() || found.attached.iter().any(|place| place.id == entry.id) {
                found.segments.push(SystemVSegment::read(entry, into)?);
            }
        }
        if found.semaphores.is_empty() && found.queues.is_empty() && found.segments.is_empty() {
            return Ok(None);
        }
        for name in LIMITS {
            let text = fs::read_to_string(format!("/proc/sys/{name}"));
            found.limits.extend(text.ok().map(|text| (name.to_owned(), text.trim().to_owned())));
        }
        found.refuse_forced()?;
        Ok(Some(found))
    }

    /// Refuses segments that the kernel would remove, as nobody has them attached and the process that made them is another one.
    fn refuse_forced(&self) -> Result<()> {
        let is_forced = self.limits.iter().any(|(name, text)| name == FORCED && text != "0");
        let is_attached =
            |segment: &&SystemVSegment| self.attached.iter().any(|one| one.id == segment.object.id);
        match self.segments.iter().find(|segment| is_forced && !is_attached(segment)) {
            Some(segment) => Err(Fault::new(format!(
                "{}: no process has it attached, and the kernel would remove it when it is restored",
                named(Kind::Segment, segment.object.id)
            ))
            .hint("inside: echo 0 >/proc/sys/kernel/shm_rmid_forced")),
            None => Ok(()),
        }
    }

    /// Makes all of them in a new instance, with what the file says that they held, and a placeholder for each segment that processes had attached. CRIU runs after that.
    ///
    /// # Errors
    /// When one cannot be made as it was.
    pub fn make_again(&self, inside: EnterTarget<'_>, plan: &Plan, file: &File) -> Result<()> {
        enter::run(inside, &[file.as_fd()], || {
            let copy = file.try_clone().context(|| HELD)?;
            self.make(&mut BufReader::new(copy))?;
            attach::make_placeholders(&Placeholders::of(plan), &self.attached, &self.sizes())
        })
    }

    /// Makes them in this process's namespace; `from` has what they hold. Limits are set last: what was there when they were set may be above
    /// them, and where segments are removed that nobody has attached, they must have been attached before.
    fn make(&self, from: &mut impl Read) -> Result<()> {
        self.refuse_forced()?;
        self.limits.iter().for_each(|(name, text)| widen_limit(name, text));
        self.semaphores.iter().try_for_each(Semaphores::make)?;
        self.queues.iter().try_for_each(|queue| queue.make(from))?;
        self.segments.iter().try_for_each(|segment| segment.make(from))?;
        if self.attached.is_empty() && self.undo.is_empty() {
            return self.set_limits();
        }
        Ok(())
    }

    fn sets(&self) -> Vec<SetState<'_>> {
        self.semaphores.iter().map(|set| SetState { object: &set.object, all: &set.all }).collect()
    }

    /// Ids of the segments, and their sizes.
    fn sizes(&self) -> Vec<(i32, u64)> {
        self.segments.iter().map(|segment| (segment.object.id, segment.size)).collect()
    }

    fn set_limits(&self) -> Result<()> {
        self.limits.iter().try_for_each(|(name, text)| set_limit(name, text))
    }

    /// Has processes, which are there and stand still, attach segments where they had them, and have semaphores set back at their ends. Then the
    /// limits are as they were.
    ///
    /// # Errors
    /// When one cannot.
    pub fn attach_again(&self, inside: EnterTarget<'_>, plan: &Plan) -> Result<()> {
        if self.attached.is_empty() && self.undo.is_empty() {
            return Ok(());
        }
        enter::run(EnterTarget { number: None, ..inside }, &[], || {
            attach::again(&self.attached, &self.sizes())?;
            undo::set_again(&self.undo, &self.sets())?;
            Placeholders::of(plan).remove_all();
            for segment in &self.segments {
                let id = segment.object.id;
                if segment.object.mode & MARKED_FOR_REMOVAL != 0 {
                    sysv::remove_segment(id).context(|| named(Kind::Segment, id))?;
                }
            }
            self.set_limits()
        })
    }
}

#[cfg(test)]
mod tests {
    use skiff_sys::IgnoreError;
    use skiff_sys::sysv::{Attached, QueueMessage};

    use super::object::as_process;
    use super::*;
    use crate::apart::is_apart;

    /// Of a page.
    const BLOCK: usize = 4096;

    /// Leaves all objects behind, and is where there are none.
    #[expect(deprecated, reason = "what makes it unsafe is CLONE_FILES, which is not asked for")]
    fn leave_objects() {
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWIPC).expect("another namespace");
    }

    /// Makes one of each; their table is what comes back.
    fn make_some() -> Result<(SystemV, Vec<u8>)> {
        let about = || "objects";
        let set = sysv::create_semaphores(7, 3, 0o640).context(about)?;
        sysv::use_semaphores(set, 0).context(about)?;
        as_process(50, (0, 0), || sysv::set_semaphore(set, 1, 9)).context(about)?;
        let queue = sysv::create_queue(0, 0o600).context(about)?;
        for (kind, text) in [(2, &b"two"[..]), (1, b""), (2, b"again")] {
            sysv::send_message(queue, &QueueMessage { kind, text: text.into() }).context(about)?;
        }
        // Not the first number of its kind.
        let first = sysv::create_segment(0, 1, 0o600).context(about)?;
        sysv::remove_segment(first).context(about)?;
        let segment = sysv::create_segment(-5, 3 * BLOCK + 1, 0o600).context(about)?;
        let attached = Attached::attach(segment, 3 * BLOCK + 1).context(about)?;
        attached.write(2 * BLOCK - 1, b"across");
        // What is there may be above a limit that was set since.
        sysv::set_owner(Kind::Queue, queue, (0, 0, 0o600), 5).context(about)?;
        for (name, below) in [("shmmax", "4096"), ("shmmni", "0"), ("msgmax", "5"), ("msgmnb", "3")] {
            fs::write(format!("/proc/sys/kernel/{name}"), below)
                .ignore_error("an old kernel lets nobody set it here");
        }
        let mut held = vec![];
        let found = SystemV::read(&[], None, &mut held)?.ok_or_else(|| Fault::new("nothing"))?;
        Ok((found, held))
    }

    #[test]
    fn what_is_read_is_made_again() {
        if !is_apart("sysv::tests::what_is_read_is_made_again") {
            return;
        }
        let (found, held) = make_some().expect("made");
        assert_eq!((found.semaphores.len(), found.queues.len(), found.segments.len()), (1, 1, 1));
        assert_eq!(found.semaphores[0].all[1], (9, 50));
        assert!(found.segments[0].object.id > 0);
        leave_objects();
        found.make(&mut &held[..]).expect("made again");
        let mut held_again = vec![];
        let mut again = SystemV::read(&[], None, &mut held_again).expect("read").expect("some");
        // Of a restart: whoever makes them is another process.
        again.segments[0].maker = found.segments[0].maker;
        again.queues[0].sender = found.queues[0].sender;
        again.semaphores[0].all[0].1 = found.semaphores[0].all[0].1;
        assert_eq!((again, &held_again), (found.clone(), &held));
        for end in 0..held.len().min(100) {
            leave_objects();
            assert!(found.make(&mut &held[..end]).is_err(), "cut at {end}");
        }
    }
}
