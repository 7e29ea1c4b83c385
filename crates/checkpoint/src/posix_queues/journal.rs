//! The file of messages that are out of a queue:
//!
//! ```text
//! 0           the head, which is written by one call: phase, numbers, the queue's name
//! 512         before each message that is taken: how many messages the file has, and the queue
//! 64 KiB      the slot: where the kernel writes the message that it takes
//! behind it   messages, each with its priority and length
//! ```

use std::fs::File;
use std::io::{self, BufReader, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::Errno;
use skiff_sys::mqueue::{self, MessageSlot, PriorityMessage};

use super::killed::point;
use super::{LONGEST, message, write};

/// No name of a queue is longer (`NAME_MAX`).
const LONGEST_NAME: usize = 255;
/// Bytes of the head in front of the name, and of all of it.
const NUMBERS: usize = 32;
const HEAD: usize = NUMBERS + LONGEST_NAME;
/// Where the head has the number of messages that are back.
const FIRST: u64 = 16;
/// Where it says what the queue was before a message was taken.
const BEFORE: u64 = 512;
/// Where the slot is: a multiple of the size of pages of every host.
const SLOT: u64 = 64 << 10;
/// What the slot has in place of a priority before there is a message. (Above `MQ_PRIO_MAX`.)
const NONE: [u8; 4] = [0xff; 4];
/// What the slot has in place of a text: no text of UTF-8 has this byte.
const NO_TEXT: u8 = 0xf7;
/// If programs may have used the queue, a message's length as the queue's size says it is believed up to so many bytes behind the last that differs
/// from `NO_TEXT`: they may have taken a long message out, and put a short one in.
const ALIKE: usize = 8;
/// Bytes of a message beside its text.
const BESIDE_TEXT: u64 = 12;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalPhase {
    /// Messages are taken out: all in the file are out of the queue.
    Taking = b'T' as isize,
    /// Messages go back: those before `first` are back, `first` may be, the others are out.
    Putting = b'P' as isize,
    /// The same, and those from `seam` on have been taken out since.
    TakingAgain = b'A' as isize,
}

#[derive(Clone, Debug)]
pub(super) struct Head {
    pub phase: JournalPhase,
    pub name: String,
    /// The longest message that the slot takes.
    pub longest: u64,
    /// How many are back.
    pub first: u64,
    /// How many there were before messages were taken out again.
    pub seam: u64,
}

/// The file, and what it says.
pub(super) struct QueueJournal {
    file: File,
    pub head: Head,
    pub messages: Vec<PriorityMessage>,
    /// Where the next message goes.
    end: u64,
    slot: Slot,
}

/// Where the slot is: in the file, or in memory where a file system has no mappings of that kind.
struct Slot {
    file: File,
    at: u64,
    mapped: MessageSlot,
}

impl QueueJournal {
    /// Makes it of a file: nothing has been taken yet.
    pub(super) fn begin(file: File, name: &str, longest: usize) -> io::Result<Self> {
        file.set_len(0)?;
        point("empty");
        let head = Head {
            phase: JournalPhase::Taking,
            name: name.into(),
            longest: longest as u64,
            first: 0,
            seam: 0,
        };
        let end = head.messages();
        file.set_len(end)?;
        file.write_all_at(&NONE, SLOT)?;
        let slot = Slot::map(&file, longest)?;
        slot.clear(longest)?;
        point("slot");
        head.write(&file)?;
        Ok(Self { file, head, messages: vec![], end, slot })
    }

    /// Reads it; nothing if it was not finished, and so nothing has been taken out.
    pub(super) fn read(file: File) -> io::Result<Option<Self>> {
        let Some(head) = Head::read(&file)? else { return Ok(None) };
        let mut from = BufReader::new(&file);
        let mut end = from.seek(SeekFrom::Start(head.messages()))?;
        let mut messages = vec![];
        while let Some(message) = cut(message(&mut from))? {
            end = from.stream_position()?;
            messages.push(message);
        }
        drop(from);
        let is_whole = head.phase != JournalPhase::TakingAgain
            || (head.first < head.seam && head.seam <= messages.len() as u64);
        if !is_whole {
            return Err(io::Error::other("it is damaged"));
        }
        let slot = Slot::map(&file, head.longest as usize)?;
        Ok(Some(Self { file, head, messages, end, slot }))
    }

    /// Has the file system keep room for what is in the queue, where it can: nothing is taken out that finds none.
    pub(super) fn reserve(&self, messages: i64, queue: BorrowedFd<'_>) -> io::Result<()> {
        let beside = u64::try_from(messages).unwrap_or(0).saturating_mul(BESIDE_TEXT);
        let length = beside.saturating_add(size(queue)?).max(1);
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.end, length) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Takes a message out of the queue; whether there was one.
    pub(super) fn take(&mut self, queue: BorrowedFd<'_>) -> io::Result<bool> {
        self.slot.file.write_all_at(&NONE, self.slot.at)?;
        point("no priority");
        let last = self.messages.last().map_or(0, |message| message.text.len());
        self.slot.clear(last)?;
        let before = [self.messages.len() as u64, count(queue)?, size(queue)?];
        self.file.write_all_at(&before.map(u64::to_le_bytes).concat(), BEFORE)?;
        point("before");
        let Some(length) = self.slot.mapped.take(queue)? else { return Ok(false) };
        point("take");
        let message = self.slot.message(length)?;
        self.add(&message).inspect_err(|_| self.messages.push(message))?;
        Ok(true)
    }

    /// Adds a message that is out of the queue.
    pub(super) fn add(&mut self, message: &PriorityMessage) -> io::Result<()> {
        let mut bytes = vec![];
        write(message, &mut bytes)?;
        // What was cut is written over.
        self.file.set_len(self.end)?;
        point("cut");
        self.file.write_all_at(&bytes, self.end)?;
        point("add");
        self.end += bytes.len() as u64;
        self.messages.push(message.clone());
        Ok(())
    }

    /// Adds the message that is in the slot, if whoever took it has not come to do that.
    pub(super) fn finish_slot(&mut self, queue: BorrowedFd<'_>, is_unused: bool) -> io::Result<()> {
        let left = self.left_in_slot(queue, is_unused)?;
        left.map_or(Ok(()), |message| self.add(&message))
    }

    /// The message that is in the slot only. The queue `is_unused` if all programs have stood still since it was taken.
    pub(super) fn left_in_slot(
        &self,
        queue: BorrowedFd<'_>,
        is_unused: bool,
    ) -> io::Result<Option<PriorityMessage>> {
        let mut priority = [0; 4];
        self.slot.file.read_exact_at(&mut priority, self.slot.at)?;
        let mut before = [0; 24];
        self.file.read_exact_at(&mut before, BEFORE)?;
        let [had, there, size_before] = numbers(&before);
        if priority == NONE || had != self.messages.len() as u64 {
            return Ok(None);
        }
        let longest = self.head.longest as usize;
        let text = self.slot.message(longest)?.text;
        let least = text.iter().rposition(|byte| *byte != NO_TEXT).map_or(0, |at| at + 1);
        // The queue tells exactly, if nobody has used it since.
        let said = if count(queue)? + 1 == there { size_before.checked_sub(size(queue)?) } else { None };
        let said = said.and_then(|said| usize::try_from(said).ok());
        let most = if is_unused { longest } else { longest.min(least + ALIKE) };
        let length = said.filter(|said| (least..=most).contains(said));
        self.slot.message(length.unwrap_or(least)).map(Some)
    }

    /// From here on messages go back.
    pub(super) fn begin_putting(&mut self) -> io::Result<()> {
        self.set(Head { phase: JournalPhase::Putting, first: 0, ..self.head.clone() })
    }

    /// The message that goes back next.
    pub(super) fn next(&self) -> Option<&PriorityMessage> {
        self.messages.get(self.head.first as usize)
    }

    /// Notes that it is back.
    pub(super) fn note_put(&mut self) -> io::Result<()> {
        self.head.first += 1;
        self.file.write_all_at(&self.head.first.to_le_bytes(), FIRST)?;
        point("noted");
        Ok(())
    }

    /// Whether all messages are back.
    pub(super) fn is_all_back(&self) -> bool {
        self.head.phase == JournalPhase::Putting && self.next().is_none()
    }

    /// From here on messages are taken out again, where some had been put back.
    pub(super) fn look_again(&mut self) -> io::Result<()> {
        if self.head.phase != JournalPhase::Putting {
            return Ok(());
        }
        let seam = self.messages.len() as u64;
        self.set(Head { phase: JournalPhase::TakingAgain, seam, ..self.head.clone() })
    }

    /// Says that nothing is missing.
    pub(super) fn end(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    fn set(&mut self, head: Head) -> io::Result<()> {
        head.write(&self.file)?;
        point("head");
        self.head = head;
        Ok(())
    }
}

impl Head {
    /// How many of the messages are back and noted so.
    pub(super) fn back(&self) -> usize {
        if self.phase == JournalPhase::Putting { self.first as usize } else { 0 }
    }

    /// Where the messages are.
    fn messages(&self) -> u64 {
        let slot = self.longest.saturating_add(MessageSlot::TEXT as u64);
        SLOT + slot.next_multiple_of(SLOT)
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let numbers = [self.longest, self.first, self.seam].map(u64::to_le_bytes).concat();
        let head = [self.phase as u8, self.name.len().min(LONGEST_NAME) as u8, 0, 0, 0, 0, 0, 0];
        file.write_all_at(&[&head[..], &numbers, self.name.as_bytes()].concat(), 0)
    }

    fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; HEAD];
        if cut(file.read_exact_at(&mut bytes, 0))?.is_none() {
            return Ok(None);
        }
        let phase = match bytes[0] {
            0 => return Ok(None),
            b'T' => JournalPhase::Taking,
            b'P' => JournalPhase::Putting,
            b'A' => JournalPhase::TakingAgain,
            _ => return Err(io::Error::other("another version of Skiff has written it")),
        };
        let [longest, first, seam] = numbers(&bytes[8..NUMBERS]);
        let name = bytes[NUMBERS..NUMBERS + usize::from(bytes[1])].to_vec();
        let name = String::from_utf8(name).map_err(io::Error::other)?;
        let head = Self { phase, name, longest, first, seam };
        if longest <= LONGEST as u64 { Ok(Some(head)) } else { Err(io::Error::other("it is damaged")) }
    }
}

impl Slot {
    fn map(file: &File, longest: usize) -> io::Result<Self> {
        if let Ok(mapped) = MessageSlot::map(file.as_fd(), SLOT, longest) {
            return Ok(Self { file: file.try_clone()?, at: SLOT, mapped });
        }
        // Then the message that is just being taken goes with whoever takes it.
        let file = File::from(memfd_create("skiff-message", MemfdFlags::CLOEXEC)?);
        file.set_len((MessageSlot::TEXT + longest) as u64)?;
        let mapped = MessageSlot::map(file.as_fd(), 0, longest)?;
        file.write_all_at(&NONE, 0)?;
        Ok(Self { file, at: 0, mapped })
    }

    /// Takes out what it has: a text of this length.
    fn clear(&self, length: usize) -> io::Result<()> {
        self.file.write_all_at(&NONE, self.at)?;
        self.file.write_all_at(&vec![NO_TEXT; length], self.at + MessageSlot::TEXT as u64)
    }

    /// The message in it, whose text has this length.
    fn message(&self, length: usize) -> io::Result<PriorityMessage> {
        let (mut priority, mut text) = ([0; 4], vec![0; length]);
        self.file.read_exact_at(&mut priority, self.at)?;
        self.file.read_exact_at(&mut text, self.at + MessageSlot::TEXT as u64)?;
        Ok(PriorityMessage { priority: u32::from_ne_bytes(priority), text })
    }
}

/// How many messages a queue has.
fn count(queue: BorrowedFd<'_>) -> io::Result<u64> {
    u64::try_from(mqueue::attributes(queue)?.messages).map_err(io::Error::other)
}

/// How many bytes the messages of a queue have, as its descriptor says (`mq_overview(7)`).
fn size(queue: BorrowedFd<'_>) -> io::Result<u64> {
    let mut said = [0; 256];
    let length = rustix::io::pread(queue, &mut said, 0)?;
    let said = String::from_utf8_lossy(&said[..length]);
    let size = said.split_whitespace().find_map(|word| word.strip_prefix("QSIZE:")?.parse().ok());
    size.ok_or_else(|| io::Error::other("the kernel does not say how many bytes are in it"))
}

/// Numbers that were written one behind the other.
fn numbers<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let all = bytes.as_chunks().0;
    std::array::from_fn(|place| all.get(place).map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// Nothing of what ends too early.
fn cut<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(Some),
    }
}
