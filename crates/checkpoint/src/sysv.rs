//! System V semaphores, message queues and shared memory of an instance. CRIU works in the instance's IPC namespace, takes it for its own, and
//! leaves all of it out. They are made again, with their numbers and keys, before CRIU makes the processes; what of these had segments attached
//! has placeholders there, which each process is made to replace before it goes on.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::memory::page_size;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork, fork_as, positive_pid};
use skiff_sys::sysv::{self, Attached, Kind, QueueMessage};

use crate::attach;
pub use crate::attach::Attachment;
use crate::hidden;
use crate::mappings::{self, Mapping};
use crate::obstacles::SavedProcess;
use crate::sysv_tables::{Entry, LOCKED, MARKED_FOR_REMOVAL, SystemVObject, next_number, table};
use crate::undo::{self, SetState, Undo};

/// Messages and what segments hold, in messages.
const HELD: &str = "what System V objects hold";
/// The kernel's limits of a namespace, below `/proc/sys`.
const LIMITS: [&str; 9] = [
    "kernel/sem",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/shmmax",
    "kernel/shmall",
    "kernel/shmmni",
    FORCED,
    "kernel/auto_msgmni",
];
/// Of what segments hold, blocks of this size are left out that are empty.
const BLOCK: usize = 4096;
/// The longest piece.
const PIECE: usize = 1 << 20;
/// Of so many bytes the kernel is asked at once which are in memory.
const STRETCH: usize = 1 << 30;
/// The most that limits of the namespace may be: an `int`, a number of objects, and what `shmmax` and `shmall` say at first. Source:
/// `ipc/ipc_sysctl.c`, `linux/shm.h`. (More objects there may be only where the kernel was started so.)
const MOST: u64 = 0x7fff_ffff;
const MOST_OBJECTS: u64 = 1 << 15;
const MOST_MEMORY: u64 = u64::MAX - (1 << 24);
/// Setting by which the kernel removes segments that no process has attached.
const FORCED: &str = "kernel/shm_rmid_forced";
/// So many messages are sent by one process.
const BATCH: usize = 1024;
/// No message is longer than the kernel's limit, and that not than this one. Source: `MSGMAX` may be set to 2 GiB; no sane host has it so.
const LONGEST_MESSAGE: usize = 16 << 20;

/// All of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemV {
    /// Limits of the namespace: files below `/proc/sys`, and what they say.
    limits: Vec<(String, String)>,
    semaphores: Vec<Semaphores>,
    queues: Vec<Queue>,
    segments: Vec<Segment>,
    /// Where processes have segments attached.
    attached: Vec<Attachment>,
    /// Semaphores that are set back when a process ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    undo: Vec<Undo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Semaphores {
    object: SystemVObject,
    /// Whether anybody has waited for or changed one: programs tell by it whether they must set them first.
    used: bool,
    /// Value of each, and the process that has last changed it.
    all: Vec<(u16, i32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Queue {
    object: SystemVObject,
    /// Bytes that it may hold.
    limit: u64,
    messages: u64,
    /// The process that has last sent one.
    sender: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    object: SystemVObject,
    size: u64,
    /// The process that has made it.
    maker: i32,
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
    pub fn read(&self, processes: &[SavedProcess], tracer: Option<i32>) -> Result<Option<SystemV>> {
        let about = || self.path.display().to_string();
        let mut into = BufWriter::new(self.file.try_clone().context(about)?);
        hidden::refuse(processes, tracer)?;
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
        // Whoever has died with a segment attached has left a placeholder.
        let attached = attach::read(&numbers)?;
        let mut found = Self { attached, ..Self::default() };
        for entry in table(Kind::Semaphores)? {
            found.semaphores.push(Semaphores::read(entry)?);
        }
        found.undo = undo::read(processes, tracer, &found.sets())?;
        for entry in table(Kind::Queue)? {
            found.queues.push(Queue::read(entry, into)?);
        }
        for entry in table(Kind::Segment)? {
            // What only sessions have, which are not saved, goes with them.
            if !entry.is_marked_for_removal() || found.attached.iter().any(|place| place.id == entry.id) {
                found.segments.push(Segment::read(entry, into)?);
            }
        }
        if found.semaphores.is_empty() && found.queues.is_empty() && found.segments.is_empty() {
            return Ok(None);
        }
        for name in LIMITS {
            let text = fs::read_to_string(format!("/proc/sys/{name}"));
            found.limits.extend(text.ok().map(|text| (name.to_owned(), text.trim().to_owned())));
        }
        attach::remove_placeholders(&found.attached);
        found.refuse_forced()?;
        Ok(Some(found))
    }

    /// Refuses segments that the kernel would remove, as nobody has them attached and the process that made them is another one.
    fn refuse_forced(&self) -> Result<()> {
        let is_forced = self.limits.iter().any(|(name, text)| name == FORCED && text != "0");
        let is_attached = |segment: &&Segment| self.attached.iter().any(|one| one.id == segment.object.id);
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
    pub fn make_again(&self, inside: EnterTarget<'_>, file: &File) -> Result<()> {
        enter::run(inside, &[file.as_fd()], || {
            let copy = file.try_clone().context(|| HELD)?;
            self.make(&mut BufReader::new(copy))?;
            attach::make_placeholders(&self.attached, &self.sizes())
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
    pub fn attach_again(&self, inside: EnterTarget<'_>) -> Result<()> {
        if self.attached.is_empty() && self.undo.is_empty() {
            return Ok(());
        }
        enter::run(EnterTarget { number: None, ..inside }, &[], || {
            attach::again(&self.attached, &self.sizes())?;
            undo::set_again(&self.undo, &self.sets())?;
            attach::remove_placeholders(&self.attached);
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

/// An object, in messages.
fn named(kind: Kind, id: i32) -> String {
    let what = match kind {
        Kind::Semaphores => "semaphores",
        Kind::Queue => "message queue",
        Kind::Segment => "shared memory",
    };
    format!("System V {what} {id}")
}

fn set_limit(name: &str, text: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    let is_known = LIMITS.contains(&name);
    let unknown = || Fault::new(format!("{name:?}: not a limit of System V objects"));
    is_known.then_some(()).ok_or_else(unknown)?;
    match fs::read_to_string(&path) {
        Ok(has) if has.trim() == text => Ok(()),
        _ => fs::write(&path, text).context(|| path),
    }
}

/// Sets a limit so that it is in nobody's way, if the kernel lets us. (If not, it is as it was by itself, and what was there fits.)
fn widen_limit(name: &str, saved: &str) {
    let path = format!("/proc/sys/{name}");
    let widest: &[u64] = match name {
        "kernel/sem" => &[MOST, MOST, 0, MOST_OBJECTS],
        "kernel/msgmax" | "kernel/msgmnb" => &[MOST],
        "kernel/msgmni" | "kernel/shmmni" => &[MOST_OBJECTS],
        "kernel/shmmax" | "kernel/shmall" => &[MOST_MEMORY],
        FORCED => {
            fs::write(&path, "0").ignore_error("then what is made is missed at once");
            return;
        }
        _ => return,
    };
    let has = fs::read_to_string(&path).default_on_error("a kernel without this limit");
    let number = |text: &str, place: usize| text.split_whitespace().nth(place)?.parse::<u64>().ok();
    let numbers = widest.iter().enumerate().map(|(place, most)| {
        let others = [number(&has, place), number(saved, place)];
        others.into_iter().flatten().fold(*most, u64::max).to_string()
    });
    let text = numbers.collect::<Vec<_>>().join(" ");
    fs::write(&path, text).ignore_error("it is as wide as the kernel lets us have it");
}

/// Does something in a process of this number, or of another where it cannot have that, and with these ids. The kernel remembers of some objects
/// who has made or changed them last.
fn as_process(number: i32, ids: (u32, u32), act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let begun = match positive_pid(number) {
        Some(number) => fork_as(number, CloneFlags::NONE).or_else(|_| fork(CloneFlags::NONE)),
        None => fork(CloneFlags::NONE),
    };
    match begun? {
        Fork::Child => {
            let (uid, gid) = (Uid::from_raw(ids.0), Gid::from_raw(ids.1));
            let is_another = ids != (0, 0);
            // Ids that are none inside were those of somebody outside.
            if is_another {
                let (_, saved) = (Gid::ROOT, Gid::ROOT);
                set_thread_res_gid(gid, gid, saved).ignore_error("then root has made it");
                set_thread_res_uid(uid, uid, Uid::ROOT).ignore_error("then root has made it");
            }
            let code = act().map_or_else(|e| e.raw_os_error().unwrap_or(255), |()| 0);
            exit_now(code)
        }
        Fork::Parent(child) => {
            let ended = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty())?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

impl SystemVObject {
    /// Makes it with its number, by `create`.
    fn make(&self, kind: Kind, maker: i32, create: impl Fn(i32, u32) -> io::Result<i32>) -> Result<()> {
        let about = || named(kind, self.id);
        fs::write(next_number(kind), self.id.to_string()).context(about)?;
        as_process(maker, self.creator, || create(self.key, self.mode & 0o777).map(drop)).context(about)?;
        let is_it = |entry: &Entry| (entry.id, entry.key) == (self.id, self.key);
        table(kind)?
            .iter()
            .any(is_it)
            .then_some(())
            .ok_or_else(|| Fault::new(format!("{}: the kernel has given it another number", about())))
    }

    fn set_owner(&self, kind: Kind, limit: u64) -> Result<()> {
        let owner = (self.uid, self.gid, self.mode & 0o777);
        sysv::set_owner(kind, self.id, owner, limit).context(|| named(kind, self.id))
    }
}

impl Semaphores {
    fn read(entry: Entry) -> Result<Self> {
        let about = || named(Kind::Semaphores, entry.id);
        let count = i32::try_from(entry.size).map_err(|_| Fault::new(about()))?;
        let mut all = vec![];
        for number in 0..count {
            let value = sysv::semaphore_value(entry.id, number).context(about)?;
            all.push((value, sysv::semaphore_pid(entry.id, number).context(about)?));
        }
        // When one was last used.
        let used = entry.number(8) != 0;
        Ok(Self { object: entry.object, used, all })
    }

    fn make(&self) -> Result<()> {
        let id = self.object.id;
        let about = || named(Kind::Semaphores, id);
        let count = i32::try_from(self.all.len()).map_err(|_| Fault::new(about()))?;
        self.object.make(Kind::Semaphores, 0, |key, mode| sysv::create_semaphores(key, count, mode))?;
        if self.used {
            // All are zero yet. One that somebody has changed is changed again below.
            let changed = self.all.iter().position(|(_, process)| *process != 0).unwrap_or(0);
            let number = u16::try_from(changed).map_err(|_| Fault::new(about()))?;
            let process = self.all.get(changed).map_or(0, |(_, process)| *process);
            as_process(process, (0, 0), || sysv::use_semaphores(id, number)).context(about)?;
        }
        let mut processes: Vec<i32> = self.all.iter().map(|(_, process)| *process).collect();
        processes.sort_unstable();
        processes.dedup();
        for process in processes {
            let of_it = || (0..).zip(&self.all).filter(|(_, (_, last))| *last == process);
            // One that nobody has changed is zero as it is.
            let changed = || of_it().filter(|(_, (value, last))| *last != 0 || *value != 0);
            if changed().next().is_some() {
                as_process(process, (0, 0), || {
                    changed().try_for_each(|(number, (value, _))| sysv::set_semaphore(id, number, *value))
                })
                .context(about)?;
            }
        }
        self.object.set_owner(Kind::Semaphores, 0)
    }
}

impl Queue {
    fn read(entry: Entry, into: &mut impl Write) -> Result<Self> {
        let about = || named(Kind::Queue, entry.id);
        let limit = sysv::queue_limit(entry.id).context(about)?;
        // None is longer than all together.
        let longest = usize::try_from(entry.number(3)).unwrap_or(0).clamp(1, LONGEST_MESSAGE);
        let mut messages = 0;
        while let Some(message) =
            sysv::peek_message(entry.id, usize::try_from(messages).unwrap_or(usize::MAX), longest)
                .map_err(|e| unread(e, about()))?
        {
            into.write_all(&message.kind.to_le_bytes())
                .and_then(|()| into.write_all(&(message.text.len() as u64).to_le_bytes()))
                .and_then(|()| into.write_all(&message.text))
                .context(about)?;
            messages += 1;
        }
        let sender = entry.process(5);
        Ok(Self { object: entry.object, limit, messages, sender })
    }

    fn make(&self, from: &mut impl Read) -> Result<()> {
        let id = self.object.id;
        let about = || named(Kind::Queue, id);
        self.object.make(Kind::Queue, 0, sysv::create_queue)?;
        let (mut batch, mut bytes) = (vec![], 0);
        for place in 1..=self.messages {
            let message = message(from).context(about)?;
            bytes += message.text.len();
            batch.push(message);
            // Whoever wrote the checkpoint does not say how much of our memory they take.
            if bytes >= PIECE || batch.len() == BATCH || place == self.messages {
                let send = || batch.iter().try_for_each(|message| sysv::send_message(id, message));
                as_process(self.sender, (0, 0), send).context(about)?;
                (batch, bytes) = (vec![], 0);
            }
        }
        // It may hold more than it may be given now.
        self.object.set_owner(Kind::Queue, self.limit)
    }
}

/// Why a message cannot be read so that it stays.
fn unread(e: io::Error, queue: String) -> Fault {
    let is_longer = e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error());
    match is_longer {
        true => Fault::new(format!("{queue}: it has a message that is longer than kernel.msgmax is now"))
            .hint("inside: make /proc/sys/kernel/msgmax as large as it was"),
        false => Fault::new(format!("{queue}: {e}")),
    }
}

fn message(from: &mut impl Read) -> io::Result<QueueMessage> {
    let kind = i64::from_le_bytes(number(from)?);
    let length = usize::try_from(u64::from_le_bytes(number(from)?));
    let length = length.ok().filter(|length| *length <= LONGEST_MESSAGE);
    let mut text = vec![0; length.ok_or_else(|| io::Error::other("a message is too long"))?];
    from.read_exact(&mut text)?;
    Ok(QueueMessage { kind, text })
}

fn number(from: &mut impl Read) -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Segment {
    /// What it holds stands in `into` as runs of pages that are not empty: from where, how many bytes, these; a run of none is the last.
    fn read(entry: Entry, into: &mut impl Write) -> Result<Self> {
        let about = || named(Kind::Segment, entry.id);
        let size = usize::try_from(entry.size).map_err(|_| Fault::new(about()))?;
        let attached = Attached::attach(entry.id, size).context(about)?;
        refuse_huge(&attached).context(about)?;
        let size = size.next_multiple_of(page_size());
        // What the table said when it was read; the kernel may move pages to swap space at any time.
        let seen = match memory_of(&entry) {
            (held, 0) => Some(write_present(&attached, (size, held), into).context(about)?),
            _ => None,
        };
        let now = table(Kind::Segment)?.into_iter().find(|line| line.id == entry.id);
        let now = now.ok_or_else(|| Fault::new(format!("{}: it is not there any more", about())))?;
        let (held, swapped) = memory_of(&now);
        // If none is in swap space and as many are there as were seen, those were all. Of what is there the kernel does not say which.
        if swapped != 0 || seen != Some(held) {
            mappings::refuse_without_room((size as u64).saturating_sub(held)).context(about)?;
            write_all_of(&attached, size, into).context(about)?;
        }
        into.write_all(&[0; 16]).context(about)?;
        let maker = entry.process(4);
        Ok(Self { object: entry.object, size: entry.size, maker })
    }

    fn make(&self, from: &mut impl Read) -> Result<()> {
        let id = self.object.id;
        let about = || named(Kind::Segment, id);
        let size = usize::try_from(self.size).map_err(|_| Fault::new(about()))?;
        self.object.make(Kind::Segment, self.maker, |key, mode| sysv::create_segment(key, size, mode))?;
        let attached = Attached::attach(id, size).context(about)?;
        loop {
            let at = usize::try_from(u64::from_le_bytes(number(from).context(about)?));
            let length = usize::try_from(u64::from_le_bytes(number(from).context(about)?));
            let (Ok(at), Ok(length @ ..=PIECE)) = (at, length) else {
                return Err(Fault::new(format!("{}: invalid contents", about())));
            };
            if length == 0 {
                break;
            }
            let mut bytes = vec![0; length];
            from.read_exact(&mut bytes).context(about)?;
            if attached.write(at, &bytes) != length {
                return Err(Fault::new(format!("{}: more than it held", about())));
            }
        }
        drop(attached);
        if self.object.mode & LOCKED != 0 {
            sysv::lock_segment(id).context(about)?;
        }
        self.object.set_owner(Kind::Segment, 0)
    }
}

/// How many bytes of a segment are in memory, and in swap space.
fn memory_of(entry: &Entry) -> (u64, u64) {
    let bytes = |place| u64::try_from(entry.number(place)).unwrap_or(u64::MAX);
    (bytes(14), bytes(15))
}

/// Writes what of a segment of this size is in memory, where so many bytes should be; how many were. To read what was never written would make
/// it take memory.
fn write_present(attached: &Attached, (size, held): (usize, u64), into: &mut impl Write) -> io::Result<u64> {
    let (page, mut piece, mut seen) = (page_size(), vec![0; PIECE], 0);
    for at in (0..size).step_by(STRETCH) {
        // Most of a large one may be empty.
        if seen >= held {
            break;
        }
        let pages = attached.in_memory(at, STRETCH.min(size - at));
        let mut number = 0;
        while number < pages.len() {
            let run = pages[number..].iter().take(PIECE / page).take_while(|is_there| **is_there).count();
            let from = at + number * page;
            let got = attached.read(from, &mut piece[..run * page]);
            write_runs(from, &piece[..got], into)?;
            seen += got as u64;
            number += run.max(1);
        }
    }
    Ok(seen)
}

/// Writes all that a segment of this size holds.
fn write_all_of(attached: &Attached, size: usize, into: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    for at in (0..size).step_by(PIECE) {
        let got = attached.read(at, &mut piece[..PIECE.min(size - at)]);
        write_runs(at, &piece[..got], into)?;
    }
    Ok(())
}

/// Huge pages are not to be had on every host.
fn refuse_huge(attached: &Attached) -> io::Result<()> {
    let own = mappings::own()?;
    let is_it = |mapping: &&Mapping| mapping.start == attached.address() as u64;
    let device = own.iter().find(is_it).map(|mapping| (mapping.object.0, mapping.object.1));
    match device == mappings::memory_device().ok() {
        true => Ok(()),
        false => Err(io::Error::other("it has huge pages")),
    }
}

/// Writes those of these pages that are not empty.
fn write_runs(at: usize, bytes: &[u8], into: &mut impl Write) -> io::Result<()> {
    let is_empty = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let mut pages = bytes.chunks(BLOCK).enumerate().peekable();
    while let Some((number, page)) = pages.next() {
        if is_empty(page) {
            continue;
        }
        let (begin, mut end) = (number * BLOCK, number * BLOCK + page.len());
        while let Some((_, page)) = pages.next_if(|(_, page)| !is_empty(page)) {
            end += page.len();
        }
        let run = &bytes[begin..end];
        into.write_all(&((at + begin) as u64).to_le_bytes())?;
        into.write_all(&(run.len() as u64).to_le_bytes())?;
        into.write_all(run)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apart::is_apart;

    #[test]
    fn empty_pages_are_left_out() {
        let mut bytes = vec![0; 4 * BLOCK + 7];
        bytes[BLOCK] = 1;
        bytes[2 * BLOCK] = 2;
        bytes[4 * BLOCK + 6] = 3;
        let mut written = vec![];
        write_runs(PIECE, &bytes, &mut written).expect("written");
        let head = |at: usize, length: usize| [(PIECE + at).to_le_bytes(), length.to_le_bytes()].concat();
        let wanted =
            [&head(BLOCK, 2 * BLOCK)[..], &bytes[BLOCK..3 * BLOCK], &head(4 * BLOCK, 7), &bytes[4 * BLOCK..]]
                .concat();
        assert_eq!(written, wanted);
    }

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
