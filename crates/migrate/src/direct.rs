//! Memory that goes from processes here straight into the ones that are made of them there, and is neither an image in between nor
//! twice anywhere. CRIU makes those without it; then it comes, read from the processes here, which stand still, and written into those there
//! before they run. Finding memory takes longer than anything else, and so that is done once.
//!
//! That is what a process has for itself alone and may write: large private mappings without a file. What processes may share with one they
//! come from, CRIU alone can put back so that they share it again.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, available_parallelism};

use rustix::process::Pid;
use skiff_checkpoint::obstacles::{children, number_inside};
use skiff_criu::page_protocol::{PAGE, PRESENT, PageServerCommand, of, process};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::memory::{read_of, write_of};

use crate::block::{Block, PIECE, piece};
use crate::early::PrecopyBuffer;
use crate::page_io::{self, OTHER_SIDE, bytes, strange};
use crate::populate::Reserve;

pub use crate::layout::{AddressRange, MemoryRanges};

/// Smaller mappings than this are no faster this way.
const LEAST: u64 = 1 << 20;
/// So many pieces may wait to be written.
const QUEUE: usize = 16;
/// More processors than these do not write faster than one reads the connection.
const MOST_THREADS: usize = 4;

/// Memory of a process that is to go so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// PID of the process inside.
    pub pid: i32,
    /// Where.
    pub address: u64,
    /// How much of it.
    pub pages: u64,
}

/// Looks at all that descends from the environment's process 1, `init`.
///
/// # Errors
/// When `/proc` does not show them.
pub fn ranges(init: Pid) -> Result<MemoryRanges> {
    let mut open = children(init.as_raw_nonzero().get())?;
    let mut all = MemoryRanges::new();
    while let Some(outer) = open.pop() {
        open.extend(children(outer)?);
        // What has ended meanwhile has none.
        let Some(pid) = number_inside(outer) else { continue };
        let maps = fs::read(format!("/proc/{outer}/maps")).default_on_error(
            "what has ended since has none either: it goes, as all that is not listed, by CRIU",
        );
        let maps = String::from_utf8_lossy(&maps);
        let mut ranges: Vec<AddressRange> = maps.lines().filter_map(mapping).collect();
        // One that has grown while they were told may be told twice.
        ranges.dedup_by(|next, last| next.0 < last.1);
        all.insert(pid, ranges);
    }
    Ok(of_one(all))
}

/// The place of a private mapping without a file that may be read and written, by its line of `/proc/PID/maps`.
fn mapping(line: &str) -> Option<AddressRange> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let rights = words.next()?;
    let (inode, name) = (words.nth(2)?, words.next().unwrap_or_default());
    let private = rights.starts_with("rw") && rights.ends_with('p');
    // A stack grows, and the kernel's own mappings are not to be written.
    let plain = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    (private && inode == "0" && plain && end.checked_sub(start)? >= LEAST).then_some((start, end))
}

/// Without those that two processes have at the same place: they may be one's, and the other's until it writes there.
fn of_one(mut all: MemoryRanges) -> MemoryRanges {
    let mut count: HashMap<AddressRange, usize> = HashMap::new();
    all.values().flatten().for_each(|range| *count.entry(*range).or_default() += 1);
    all.values_mut().for_each(|ranges| ranges.retain(|range| count[range] == 1));
    all
}

/// Only what is in both.
#[must_use]
pub fn in_both(mut one: MemoryRanges, other: &MemoryRanges) -> MemoryRanges {
    one.retain(|pid, _| other.contains_key(pid));
    for (pid, ranges) in &mut one {
        let theirs = &other[pid];
        let common = ranges.iter().flat_map(|&(start, end)| {
            // They are in their order, as the kernel shows them.
            let first = theirs.partition_point(|theirs| theirs.1 <= start);
            let near = theirs[first..].iter().take_while(move |theirs| theirs.0 < end);
            near.map(move |theirs| (theirs.0.max(start), theirs.1.min(end)))
        });
        *ranges = common.collect();
    }
    one
}

/// Divides a run of a process's pages into those that go so and the others, in their order.
#[must_use]
pub fn divide(ranges: &[AddressRange], address: u64, pages: u64) -> Vec<(bool, u64, u64)> {
    let end = address.saturating_add(bytes(pages).unwrap_or(u64::MAX));
    let (mut parts, mut at) = (vec![], address);
    let mut part = |direct, from: u64, to: u64| {
        if from < to {
            parts.push((direct, from, (to - from) / PAGE));
        }
    };
    // They are in their order, too, as the kernel shows them.
    for (from, to) in ranges {
        let (from, to) = ((*from).clamp(at, end), (*to).clamp(at, end));
        part(false, at, from);
        part(true, from, to);
        at = to;
    }
    part(false, at, end);
    parts
}

/// Reads them, where the processes have these numbers, and sends them.
///
/// # Errors
/// When the connection is lost, or one cannot be read.
pub fn send(runs: &[PageRun], socket: &mut impl Write) -> Result<()> {
    let mut block = Block::new();
    for run in runs {
        send_run(run, &mut block, socket)?;
    }
    page_io::write(&PageServerCommand::Close, socket)
}

/// One of them.
pub(crate) fn send_run(run: &PageRun, block: &mut Block, socket: &mut impl Write) -> Result<()> {
    for (address, pages) in pieces(run)? {
        let bytes = block.resize(pages * PAGE);
        all(run.pid, address, pages * PAGE, |at, done| read_of(run.pid, at, &mut bytes[done..]))?;
        page_io::write(&PageServerCommand::Add { of: of(run.pid), address, pages, flags: PRESENT }, socket)?;
        socket.write_all(bytes).context(|| "connection for pages")?;
    }
    Ok(())
}

/// What is sent of it at a time: from where on, how many pages.
pub(crate) fn pieces(run: &PageRun) -> Result<impl Iterator<Item = (u64, u64)> + use<>> {
    let (address, end) = (run.address, run.address + bytes(run.pages)?);
    Ok((address..end).step_by(PIECE as usize).map(move |at| (at, PIECE.min(end - at) / PAGE)))
}

/// Does so until all of a piece has been done.
fn all(
    pid: i32,
    at: u64,
    length: u64,
    mut act: impl FnMut(u64, usize) -> std::io::Result<usize>,
) -> Result<()> {
    let mut done = 0;
    while done < length {
        match act(at + done, done as usize) {
            Ok(n) if n > 0 => done += n as u64,
            Ok(_) => return Err(Fault::new(format!("memory of process {pid} at {:#x}: it ends", at + done))),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context(|| format!("memory of process {pid} at {:#x}", at + done)),
        }
    }
    Ok(())
}

/// Where memory comes from that is to be written into processes, besides the connection.
#[derive(Clone, Copy)]
pub struct Stock<'a> {
    /// Memory for it.
    pub reserve: &'a Reserve,
    /// What has come of it already.
    pub early: Option<&'a PrecopyBuffer>,
}

/// A piece that has come, now or before.
struct Piece {
    pid: i32,
    address: u64,
    /// If it has come before, as many others.
    block: Block,
    before: bool,
}

impl Piece {
    /// Finds it, if it has come before, and gives the kernel the memory that it needs from here on: what a processor gives back, it is given again.
    fn find(&mut self, stock: Stock<'_>) -> Result<()> {
        let length = self.block.get().len() as u64;
        match stock.early {
            Some(early) if self.before => early.take(self.pid, self.address, self.block.get_mut())?,
            Some(early) => early.give(self.pid, self.address, length),
            None => {}
        }
        stock.reserve.give(length);
        Ok(())
    }

    fn write(&self) -> Result<()> {
        let bytes = self.block.get();
        all(self.pid, self.address, bytes.len() as u64, |address, done| {
            write_of(self.pid, address, &bytes[done..])
        })
    }
}

/// Takes all that [`send`] sends, or `crate::ahead`, and writes it to the processes that have these numbers here, into memory of `stock`;
/// `tell` hears of every piece.
///
/// # Errors
/// When the connection is lost, what comes is not understood, or a process has no such memory.
pub fn fill(socket: &mut impl Read, stock: Stock<'_>, mut tell: impl FnMut(u64)) -> Result<()> {
    let (pieces, queue) = sync_channel(QUEUE);
    let (give_back, used) = channel();
    let (queue, failed) = (Mutex::new(queue), AtomicBool::new(false));
    let threads = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    thread::scope(|scope| {
        let write = || write_all(&queue, (stock, &failed), &give_back);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
        let received = receive(socket, (pieces, used), (stock.early.is_some(), &failed), &mut tell);
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Fault::new("memory of the processes: a thread has failed")))
        });
        // Why nobody takes any more says more than that.
        ended.fold(Ok(()), Result::and).and(received)
    })
}

/// Hands pieces on to be written, in buffers that have been.
fn receive(
    socket: &mut impl Read,
    (pieces, used): (SyncSender<Piece>, Receiver<Block>),
    (early, failed): (bool, &AtomicBool),
    tell: &mut impl FnMut(u64),
) -> Result<()> {
    loop {
        let (pid, address, pages, flags) = match page_io::read(socket)? {
            PageServerCommand::Add { of, address, pages, flags } => {
                (process(of).ok_or_else(strange)?, address, pages, flags)
            }
            PageServerCommand::Open(_) => return Err(strange()),
            PageServerCommand::Close => return Ok(()),
        };
        let length = piece(address, pages).ok_or_else(strange)?;
        let before = flags & PRESENT == 0;
        if before && !early {
            return Err(strange());
        }
        let mut block = used.try_recv().unwrap_or_else(|_| Block::new());
        let bytes = block.resize(length);
        if !before {
            socket.read_exact(bytes).context(|| OTHER_SIDE)?;
        }
        if pieces.send(Piece { pid, address, block, before }).is_err() || failed.load(Relaxed) {
            return Err(Fault::new("memory of the processes: nobody writes it any more"));
        }
        tell(length);
    }
}

/// Writes pieces until there are no more; when one could not be written, it says so and only takes them.
fn write_all(
    queue: &Mutex<Receiver<Piece>>,
    (stock, failed): (Stock<'_>, &AtomicBool),
    give_back: &Sender<Block>,
) -> Result<()> {
    let mut written = Ok(());
    loop {
        // If another thread has failed in there, this one has nothing to do either.
        let Ok(Ok(mut piece)) = queue.lock().map(|queue| queue.recv()) else { return written };
        if failed.load(Relaxed) {
            continue;
        }
        written = piece.find(stock).and_then(|()| piece.write()).inspect_err(|_| failed.store(true, Relaxed));
        give_back.send(piece.block).ignore_error("once all have come, nobody wants it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copied::copy;
    use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

    #[test]
    fn what_is_a_processs_own_and_large_may_go_so() {
        for (line, range) in [
            ("7f0000000000-7f0000100000 rw-p 00000000 00:00 0 ", Some((0x7f00_0000_0000, 0x7f00_0010_0000))),
            ("7f0000000000-7f0000100000 rwxp 00000000 00:00 0", Some((0x7f00_0000_0000, 0x7f00_0010_0000))),
            ("1000000-2000000 rw-p 00000000 00:00 0          [heap]", Some((0x100_0000, 0x200_0000))),
            ("1000000-2000000 rw-p 00000000 00:00 0          [anon:arena]", Some((0x100_0000, 0x200_0000))),
            ("1000000-10ff000 rw-p 00000000 00:00 0 ", None),
            ("1000000-2000000 r--p 00000000 00:00 0 ", None),
            ("1000000-2000000 -w-p 00000000 00:00 0 ", None),
            ("1000000-2000000 rw-s 00000000 00:01 1033 /dev/zero (deleted)", None),
            ("1000000-2000000 rw-p 00000000 fe:00 1033 /usr/lib/x.so", None),
            ("1000000-2000000 rw-p 00000000 00:00 0 [stack]", None),
            ("1000000-2000000 rw-p 00000000 00:10 7 /anon_hugepage (deleted)", None),
            ("2000000-1000000 rw-p 00000000 00:00 0 ", None),
            ("", None),
        ] {
            assert_eq!(mapping(line), range, "{line}");
        }
        let all = MemoryRanges::from([(2, vec![(1, 5), (7, 9)]), (3, vec![(1, 5), (7, 8)]), (4, vec![])]);
        let own = MemoryRanges::from([(2, vec![(7, 9)]), (3, vec![(7, 8)]), (4, vec![])]);
        assert_eq!(of_one(all), own);
        let since = MemoryRanges::from([(2, vec![(7, 9)]), (3, vec![(3, 10)])]);
        assert_eq!(in_both(own, &since), MemoryRanges::from([(2, vec![(7, 9)]), (3, vec![(7, 8)])]));
        let (grown, split) = (
            MemoryRanges::from([(2, vec![(1, 9), (12, 20)])]),
            MemoryRanges::from([(2, vec![(0, 3), (5, 7), (8, 14), (20, 21)])]),
        );
        assert_eq!(in_both(grown, &split), MemoryRanges::from([(2, vec![(1, 3), (5, 7), (8, 9), (12, 14)])]));
    }

    #[test]
    fn a_run_is_divided_where_mappings_begin_and_end() {
        let ranges = [(0x2000, 0x4000), (0x6000, 0x7000), (0x9000, 0xf000)];
        for (address, pages, parts) in [
            (0x1000, 2, &[(false, 0x1000, 1), (true, 0x2000, 1)][..]),
            (0x3000, 1, &[(true, 0x3000, 1)]),
            (0x4000, 2, &[(false, 0x4000, 2)]),
            (0x3000, 4, &[(true, 0x3000, 1), (false, 0x4000, 2), (true, 0x6000, 1)]),
            (0xa000, 7, &[(true, 0xa000, 5), (false, 0xf000, 2)]),
            (0, 0, &[]),
        ] {
            assert_eq!(divide(&ranges, address, pages), parts, "{pages} pages at {address:#x}");
        }
        assert_eq!(divide(&[], 0x1000, 3), [(false, 0x1000, 3)]);
    }

    #[test]
    fn memory_goes_from_one_process_into_another() {
        // The third page of four, and more than one piece.
        let memory: Vec<u8> = (0..3 * PIECE).map(|at| (at / 4096) as u8 ^ at as u8).collect();
        let start = memory.as_ptr().addr() as u64 + 1;
        let (child, pid) = copy();
        let runs = [(0, 1), (1, 1), (2, PIECE / 4096 + 3)].map(|(page, pages)| PageRun {
            pid,
            address: start + page * 4096,
            pages,
        });
        let mut sent = vec![];
        send(&runs, &mut sent).expect("sent");
        let length = (PIECE + 5 * 4096) as usize;
        all(pid, start, length as u64, |at, done| write_of(pid, at, &vec![0; length - done]))
            .expect("cleared");
        let (mut told, none) = (0, Reserve::new(0).expect("a file"));
        let stock = Stock { reserve: &none, early: None };
        fill(&mut &sent[..], stock, |bytes| told += bytes).expect("filled");
        assert_eq!(told, length as u64);
        let mut there = vec![0; length];
        all(pid, start, length as u64, |at, done| read_of(pid, at, &mut there[done..])).expect("read");
        assert!(there == memory[1..=length], "it is as it was");
        // Cut, and where nothing is.
        let refused = |said: &[u8]| fill(&mut &said[..], stock, |_| ()).expect_err("not written").message;
        assert_eq!(
            refused(&sent[..sent.len() - 40]),
            "pages from the other side: failed to fill whole buffer"
        );
        let nowhere = PageServerCommand::Add {
            of: u64::from(pid.unsigned_abs()) << 8 | 1,
            address: 4096,
            pages: 1,
            flags: PRESENT,
        };
        let said = [&nowhere.bytes()[..], &[0; 4096], &PageServerCommand::Close.bytes()].concat();
        let no_memory = format!("memory of process {pid} at 0x1000: Bad address (os error 14)");
        assert_eq!(refused(&said), no_memory);
        let said = [&nowhere.bytes()[..], &[0; 4096]].concat().repeat(4 * QUEUE);
        assert_eq!(refused(&said), no_memory, "nobody waits for those who have failed");
        kill_process(child, Signal::KILL).expect("killed");
        waitpid(Some(child), WaitOptions::empty()).expect("gone");
        let gone = send(&runs, &mut vec![]).expect_err("it is gone").message;
        assert_eq!(gone, format!("memory of process {pid} at {start:#x}: No such process (os error 3)"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_take_the_receiver_down(said in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let mut told = 0;
            let reserve = Reserve::new(0).expect("a file");
            let filled = fill(&mut &said[..], Stock { reserve: &reserve, early: None }, |bytes| told += bytes);
            assert!(filled.is_err() || told == 0);
        }
    }
}
