//! What has been sent of processes that run, so that it is known which of it has changed: of each page a code, as it was when it was sent, by a key of
//! this move alone. Two pages with one code would be an error that nobody sees; with a code of 128 bits by a key that nobody knows, that does not
//! happen, not even by intent.
//!
//! (The kernel could tell as well which pages have been written to. But it does so for root, or in kernels that were built for it, or
//! for a process that asks itself.)

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, available_parallelism};

use highway::{HighwayHash, HighwayHasher, Key};
use skiff_criu::page_protocol::PAGE;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::memory::read_of;

use crate::block::{Block, PIECE, zeros};
use crate::direct::{AddressRange, MemoryRanges, PageRun};
use crate::layout::{MemoryLayout, MemoryPart};

/// More processors than these do not read memory faster.
const MOST_THREADS: usize = 8;
/// Bytes of an entry of `/proc/PID/pagemap`.
const ENTRY: u64 = 8;
/// In it: the page is in memory, or was put away.
const THERE: u64 = 0b11 << 62;

/// Code of a page.
type Code = [u64; 2];
/// Of one that has not been sent. (If there were one with this code, it would be sent again.)
const NONE: Code = [0; 2];

/// Codes of the pages that have been sent.
pub struct Ledger {
    layout: MemoryLayout,
    codes: Vec<Code>,
    key: [u64; 4],
}

/// Some pages of one piece of memory, one after the other.
struct Seen<'a> {
    pid: i32,
    address: u64,
    bytes: &'a [u8],
    codes: &'a mut [Code],
}

/// A piece of memory and what is noted of it.
struct Piece<'a> {
    pid: i32,
    address: u64,
    codes: &'a mut [Code],
}

impl Ledger {
    /// One in which nothing has been sent, for memory in these ranges.
    ///
    /// # Errors
    /// When they are none, or the kernel gives no key.
    pub fn new(ranges: &MemoryRanges) -> Result<Self> {
        let layout = MemoryLayout::new(ranges)?;
        let pages =
            usize::try_from(layout.size() / PAGE).map_err(|_| Fault::new("memory: too much of it"))?;
        Ok(Self { layout, codes: vec![NONE; pages], key: key()? })
    }

    /// Looks at all of it, which may change meanwhile, and gives `send` what has not been sent as it is now: of which process, from where on, and the bytes.
    /// (What has never been written to may be there, too, as zeros; that takes no memory here, and is to take none there.) How many bytes are there.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn round(&mut self, send: impl Fn(i32, u64, &[u8]) -> Result<()> + Sync) -> Result<u64> {
        let (key, all) = (self.key, AtomicU64::new(0));
        // The processes themselves want the others.
        self.look(1, |Seen { pid, address, bytes, codes }| {
            let coded = |page: &[u8]| if zeros(page) { NONE } else { code(key, page) };
            let now: Vec<Code> = bytes.chunks(PAGE as usize).map(coded).collect();
            let changed = |(now, then): (&Code, &Code)| *now != NONE && now != then;
            let changed: Vec<bool> = now.iter().zip(codes.iter()).map(changed).collect();
            all.fetch_add(bytes.len() as u64, Relaxed);
            codes.copy_from_slice(&now);
            for (from, to) in runs(&changed) {
                let (start, end) = (from * PAGE as usize, to * PAGE as usize);
                send(pid, address + start as u64, bytes.get(start..end).unwrap_or_default())?;
            }
            Ok(())
        })?;
        Ok(all.into_inner())
    }

    /// Forgets what is no more as it was sent, now that the processes stand still.
    ///
    /// # Errors
    /// None but that of a thread.
    pub fn compare(&mut self) -> Result<()> {
        let key = self.key;
        let threads = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        self.look(threads, |Seen { bytes, codes, .. }| {
            for (page, noted) in bytes.chunks(PAGE as usize).zip(codes) {
                if *noted != NONE && code(key, page) != *noted {
                    *noted = NONE;
                }
            }
            Ok(())
        })
    }

    /// Divides a run of pages into those that are over there as they are here (true) and the others, in their order.
    #[must_use]
    pub fn divide(&self, run: &PageRun) -> Vec<(bool, u64, u64)> {
        let ranges: Vec<AddressRange> = self.layout.of(run.pid).iter().map(|part| part.range).collect();
        let mut parts = vec![];
        for (known, address, pages) in crate::direct::divide(&ranges, run.address, run.pages) {
            let place = known.then(|| self.layout.place(run.pid, address, pages * PAGE)).flatten();
            let Some(codes) = place.and_then(|place| self.at(place, pages)) else {
                parts.push((false, address, pages));
                continue;
            };
            let sent: Vec<bool> = codes.iter().map(|code| *code != NONE).collect();
            let mut at = 0;
            for (from, to) in runs(&sent).into_iter().chain([(sent.len(), sent.len())]) {
                let mut part = |known, from: usize, to: usize| {
                    if from < to {
                        parts.push((known, address + from as u64 * PAGE, (to - from) as u64));
                    }
                };
                part(false, at, from);
                part(true, from, to);
                at = to;
            }
        }
        parts
    }

    fn at(&self, place: u64, pages: u64) -> Option<&[Code]> {
        let from = usize::try_from(place / PAGE).ok()?;
        self.codes.get(from..from + usize::try_from(pages).ok()?)
    }

    /// Reads all that is in memory; of what is not, nothing is noted from then on.
    fn look(&mut self, threads: usize, act: impl Fn(Seen<'_>) -> Result<()> + Sync) -> Result<()> {
        let mut parts: Vec<(MemoryPart, &mut [Code])> = vec![];
        let mut left = &mut self.codes[..];
        for part in self.layout.parts() {
            let (codes, rest) = left.split_at_mut(((part.range.1 - part.range.0) / PAGE) as usize);
            parts.push((*part, codes));
            left = rest;
        }
        let pieces = parts.into_iter().flat_map(|(part, codes)| {
            let addresses = (part.range.0..).step_by(PIECE as usize);
            let pieces = codes.chunks_mut((PIECE / PAGE) as usize);
            addresses.zip(pieces).map(move |(address, codes)| Piece { pid: part.pid, address, codes })
        });
        let pieces = Mutex::new(pieces);
        let next = || pieces.lock().ok()?.next();
        if threads < 2 {
            return look_at_all(next, &act);
        }
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| look_at_all(next, &act))).collect();
            let ended = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Fault::new("memory of the processes: a thread has failed")))
            });
            ended.fold(Ok(()), Result::and)
        })
    }
}

fn look_at_all<'a>(
    next: impl Fn() -> Option<Piece<'a>>,
    act: &impl Fn(Seen<'_>) -> Result<()>,
) -> Result<()> {
    let (mut block, mut open) = (Block::new(), None);
    while let Some(piece) = next() {
        piece.look(&mut block, &mut open, act)?;
    }
    Ok(())
}

impl Piece<'_> {
    fn look(
        self,
        block: &mut Block,
        open: &mut Option<(i32, File)>,
        act: &impl Fn(Seen<'_>) -> Result<()>,
    ) -> Result<()> {
        let there = in_memory(open, self.pid, self.address, self.codes.len());
        let mut done = 0;
        for (from, to) in runs(&there) {
            let address = self.address + from as u64 * PAGE;
            let bytes = block.resize((to - from) as u64 * PAGE);
            let whole = read(self.pid, address, bytes) / PAGE as usize;
            forget(&mut self.codes[done..from]);
            let codes = &mut self.codes[from..from + whole];
            act(Seen { pid: self.pid, address, bytes: &bytes[..whole * PAGE as usize], codes })?;
            done = from + whole;
        }
        forget(&mut self.codes[done..]);
        Ok(())
    }
}

/// Nothing is written where nothing is noted: it takes no memory then.
fn forget(codes: &mut [Code]) {
    codes.iter_mut().filter(|code| **code != NONE).for_each(|code| *code = NONE);
}

/// How much of it could be read: what the process has given back meanwhile cannot.
fn read(pid: i32, address: u64, into: &mut [u8]) -> usize {
    let mut done = 0;
    while done < into.len() {
        match read_of(pid, address + done as u64, &mut into[done..]) {
            Ok(n) if n > 0 => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    done
}

/// Which of so many pages are in memory; of a process that has ended, none.
fn in_memory(open: &mut Option<(i32, File)>, pid: i32, address: u64, pages: usize) -> Vec<bool> {
    if open.as_ref().is_none_or(|(of, _)| *of != pid) {
        *open = File::open(format!("/proc/{pid}/pagemap")).ok().map(|file| (pid, file));
    }
    let mut entries = vec![0; pages * ENTRY as usize];
    let read = open.as_ref().map(|(_, file)| file.read_exact_at(&mut entries, address / PAGE * ENTRY));
    if !matches!(read, Some(Ok(()))) {
        return vec![false; pages];
    }
    let there = |entry: &[u8]| entry.try_into().is_ok_and(|entry| u64::from_ne_bytes(entry) & THERE != 0);
    entries.chunks(ENTRY as usize).map(there).collect()
}

/// From where to before where they are true.
fn runs(which: &[bool]) -> Vec<(usize, usize)> {
    let mut at = 0;
    let chunks = which.chunk_by(|one, next| one == next).map(|chunk| {
        at += chunk.len();
        (chunk[0], (at - chunk.len(), at))
    });
    chunks.filter(|(so, _)| *so).map(|(_, run)| run).collect()
}

fn code(key: [u64; 4], page: &[u8]) -> Code {
    HighwayHasher::new(Key(key)).hash128(page)
}

fn key() -> Result<[u64; 4]> {
    let mut bytes = [0; 32];
    let n = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context(|| "random numbers")?;
    if n < bytes.len() {
        return Err(Fault::new("random numbers: too few of them"));
    }
    let mut key = [0; 4];
    for (number, bytes) in key.iter_mut().zip(bytes.chunks(8)) {
        *number = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copied::copy;
    use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
    use skiff_sys::memory::write_of;

    #[test]
    fn runs_of_what_is_true() {
        for (which, found) in [
            (&[][..], &[][..]),
            (&[false, false], &[]),
            (&[true], &[(0, 1)]),
            (&[false, true, true, false, true], &[(1, 3), (4, 5)]),
        ] {
            assert_eq!(runs(which), found, "{which:?}");
        }
    }

    #[test]
    fn what_has_changed_is_sent_again_and_nothing_else() {
        const PAGES: u64 = 200;
        let memory: Vec<u8> = (0..(PAGES + 1) * PAGE).map(|at| (at / PAGE) as u8 ^ at as u8).collect();
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(PAGE);
        let page = |number: u64| start + number * PAGE;
        let (child, pid) = copy();
        // Beyond it there may be anything, but nothing that one can have.
        let mut ledger = Ledger::new(&MemoryRanges::from([
            (pid, vec![(start, page(PAGES))]),
            (pid + 1, vec![(0x1000, 0x9000)]),
        ]))
        .expect("a key");
        let sent = Mutex::new(vec![]);
        let round = |ledger: &mut Ledger| {
            ledger
                .round(|pid, at, bytes| {
                    let mut before = vec![0; bytes.len()];
                    assert_eq!(read_of(pid, at, &mut before).expect("read"), bytes.len());
                    assert!(before == bytes, "what is sent is what is there");
                    sent.lock().expect("ours").push((at, bytes.len() as u64 / PAGE));
                    Ok(())
                })
                .expect("sent");
            std::mem::take(&mut *sent.lock().expect("ours"))
        };
        assert_eq!(round(&mut ledger), [0, 64, 128, 192].map(|at| (page(at), 64.min(PAGES - at))));
        assert_eq!(round(&mut ledger), []);
        for number in [3, 4, 70] {
            write_of(pid, page(number) + 17, b"other").expect("written");
        }
        assert_eq!(round(&mut ledger), [(page(3), 2), (page(70), 1)]);
        let run = PageRun { pid, address: page(0), pages: PAGES };
        assert_eq!(ledger.divide(&run), [(true, page(0), PAGES)]);
        // Back to what it was once: that is not what was sent last.
        let mut was = [0; 5];
        was.copy_from_slice(&memory[(page(3) as usize + 17 - memory.as_ptr().addr())..][..5]);
        write_of(pid, page(3) + 17, &was).expect("written");
        write_of(pid, page(199), b"last").expect("written");
        ledger.compare().expect("compared");
        let (known, other) = (true, false);
        let divided =
            [(known, page(0), 3), (other, page(3), 1), (known, page(4), 195), (other, page(199), 1)];
        assert_eq!(ledger.divide(&run), divided);
        // What has nothing in it does not go ahead, and what had something is forgotten.
        write_of(pid, page(10), &[0; 4096]).expect("written");
        assert_eq!(round(&mut ledger), [(page(3), 1), (page(199), 1)]);
        ledger.compare().expect("compared");
        assert_eq!(ledger.divide(&run)[1], (other, page(10), 1));
        write_of(pid, page(199), b"more").expect("written");
        ledger.compare().expect("compared");
        // What it was never for.
        let beside = PageRun { pid, address: page(198), pages: 3 };
        assert_eq!(
            ledger.divide(&beside),
            [(known, page(198), 1), (other, page(199), 1), (other, page(200), 1)]
        );
        assert_eq!(ledger.divide(&PageRun { pid: 1, ..run }), [(other, page(0), PAGES)]);
        kill_process(child, Signal::KILL).expect("killed");
        waitpid(Some(child), WaitOptions::empty()).expect("gone");
        ledger.compare().expect("compared");
        assert_eq!(ledger.divide(&run), [(other, page(0), PAGES)], "it has none any more");
    }
}
