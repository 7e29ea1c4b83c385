//! Keeps CRIU from reading what the checkpoint before has already: it is not told of pages that the kernel says are unchanged since, nor, therefore, asks
//! for them. What it was not told of is noted, and put into the new checkpoint from the one before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, pidfd_open};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::intercept::ScanCall;
use skiff_sys::memory::{page_size, read_of, write_of};
use skiff_sys::written::{self, PageScan, PageSpan, ScannedRun};

use crate::previous_pages::{PreviousPages, united};

/// Room for more runs than these is not used.
const MOST_RUNS: u64 = 1 << 20;
/// Bytes of what is noted of a run: the process, where it begins and ends.
const NOTE: usize = 24;

/// Pages that CRIU was not told of, in a file in memory: those who answer it and who take its pages are processes of their own.
pub(crate) struct LeftOutPages(File);

impl LeftOutPages {
    /// None.
    pub fn new() -> Result<Self> {
        memfd_create("pages", MemfdFlags::CLOEXEC).map(|file| Self(file.into())).context(|| "memfd")
    }

    /// Another descriptor of the same file.
    pub fn another(&self) -> Result<Self> {
        self.0.try_clone().map(Self).context(|| "memfd")
    }

    /// Notes ranges of pages of a process.
    pub fn note(&mut self, pid: i32, runs: &[PageSpan]) -> io::Result<()> {
        let number = u64::from(pid.unsigned_abs());
        let notes: Vec<u8> =
            runs.iter().flat_map(|(start, end)| [number, *start, *end]).flat_map(u64::to_ne_bytes).collect();
        self.0.write_all(&notes)
    }

    /// All of them, by their process; each once.
    pub fn all(mut self) -> Result<BTreeMap<i32, Vec<PageSpan>>> {
        let about = || "pages that have not changed";
        let mut bytes = vec![];
        self.0.rewind().and_then(|()| self.0.read_to_end(&mut bytes)).context(about)?;
        let mut all: BTreeMap<i32, Vec<PageSpan>> = BTreeMap::new();
        for note in bytes.chunks(NOTE) {
            let mut numbers = note.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_ne_bytes));
            let (Some(pid), Some(start), Some(end)) = (numbers.next(), numbers.next(), numbers.next()) else {
                return Err(Fault::new(format!("{}: a note is cut off", about())));
            };
            all.entry(pid as i32).or_default().push((start, end));
        }
        for runs in all.values_mut() {
            *runs = united(std::mem::take(runs));
        }
        Ok(all)
    }
}

impl AsFd for LeftOutPages {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What CRIU need not be told of.
pub(crate) struct ScanAnswers<'a> {
    previous: &'a PreviousPages,
    left_out: LeftOutPages,
    /// Of each process that was asked about: chunks of which all pages are unchanged.
    unchanged: BTreeMap<i32, Vec<PageSpan>>,
}

impl<'a> ScanAnswers<'a> {
    /// Leaves out what is unchanged since the checkpoint before.
    pub fn new(previous: &'a PreviousPages, left_out: LeftOutPages) -> Self {
        Self { previous, left_out, unchanged: BTreeMap::new() }
    }

    /// Answers a call: how many runs CRIU has been given, nothing if the kernel is to answer.
    ///
    /// # Errors
    /// CRIU's memory cannot be read or written, or nothing can be noted.
    pub fn answer(&mut self, call: ScanCall) -> io::Result<Option<usize>> {
        let caller = call.pid.as_raw_nonzero().get();
        let mut bytes = [0; PageScan::SIZE];
        read_exact(caller, call.scan, &mut bytes)?;
        let scan = PageScan::parse(&bytes).filter(|scan| scan.looks_for_content() && scan.room <= MOST_RUNS);
        let (Some(scan), Some(pid)) = (scan, process_of(caller, call.pagemap)) else { return Ok(None) };
        if self.previous.bounds(pid).is_none() {
            return Ok(None);
        }
        let pagemap = descriptor(call)?;
        if let Entry::Vacant(place) = self.unchanged.entry(pid) {
            place.insert(self.previous.unchanged(pid, pagemap.as_fd())?);
        }
        let unchanged = self.unchanged.get(&pid).map_or(&[][..], Vec::as_slice);
        if unchanged.is_empty() || scan.room == 0 {
            return Ok(None);
        }
        let Told { runs, left_out, end } =
            tell(&scan, unchanged, |part, room| part.ask(pagemap.as_fd(), room))?;
        self.left_out.note(pid, &left_out)?;
        let told: Vec<u8> =
            runs.iter().flat_map(|run| [run.start, run.end, run.kinds]).flat_map(u64::to_ne_bytes).collect();
        write_all(caller, scan.runs, &told)?;
        write_all(caller, call.scan + PageScan::WALK_END_AT, &end.to_ne_bytes())?;
        Ok(Some(told.len() / NOTE))
    }
}

/// What CRIU is told, of which it asks from the beginning of a range to where this ends.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    runs: Vec<ScannedRun>,
    /// What lies before the end and is not told.
    left_out: Vec<PageSpan>,
    end: u64,
}

/// Asks the kernel, by `ask`, for what lies between these ranges, which are in order. What lies in them need not be gone through again.
fn tell(
    scan: &PageScan,
    unchanged: &[PageSpan],
    mut ask: impl FnMut(PageScan, usize) -> io::Result<(Vec<ScannedRun>, u64)>,
) -> io::Result<Told> {
    let (begin, last) = scan.span();
    let (mut told, room) = (Told { runs: vec![], left_out: vec![], end: begin }, scan.room as usize);
    let known = unchanged[unchanged.partition_point(|range| range.1 <= begin)..].iter();
    let known = known.map(|(start, end)| ((*start).max(begin), (*end).min(last)));
    for (start, end) in known.take_while(|range| range.0 < last).chain([(last, last)]) {
        if told.end < start {
            let pages = usize::try_from((start - told.end) / page_size() as u64).unwrap_or(usize::MAX);
            let (runs, walked) = ask(scan.part((told.end, start)), pages.min(room - told.runs.len()))?;
            told.runs.extend(runs);
            told.end = walked.min(start);
            if told.end < start || told.runs.len() == room {
                // It asks again from where this ends.
                return Ok(told);
            }
        }
        if start < end {
            told.left_out.push((start, end));
            told.end = end;
        }
    }
    Ok(told)
}

/// The process that a descriptor of CRIU's tells of.
fn process_of(caller: i32, pagemap: i32) -> Option<i32> {
    let link = fs::read_link(format!("/proc/{caller}/fd/{pagemap}")).ok()?;
    link.to_str()?.strip_prefix("/proc/")?.strip_suffix("/pagemap")?.parse().ok()
}

fn descriptor(call: ScanCall) -> io::Result<OwnedFd> {
    let caller = pidfd_open(call.pid, PidfdFlags::empty())?;
    written::copy_of(caller.as_fd(), call.pagemap)
}

fn read_exact(pid: i32, at: u64, into: &mut [u8]) -> io::Result<()> {
    match read_of(pid, at, into)? {
        count if count == into.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn write_all(pid: i32, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match write_of(pid, at + done as u64, &bytes[done..])? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of pages `from..to`, of which these runs hold something, if there is room for so many runs.
    fn told(runs: &[(u64, u64, u64)], unchanged: &[PageSpan], (from, to): PageSpan, room: u64) -> Told {
        let page = page_size() as u64;
        let mut scan = PageScan::default().part((from * page, to * page));
        scan.room = room;
        let ranges: Vec<PageSpan> = unchanged.iter().map(|(start, end)| (start * page, end * page)).collect();
        let kernel = |part: PageScan, room: usize| {
            let (from, to) = part.span();
            let found = runs.iter().filter_map(|(start, end, kinds)| {
                let (start, end) = ((start * page).max(from), (end * page).min(to));
                (start < end).then_some(ScannedRun { start, end, kinds: *kinds })
            });
            let mut found: Vec<ScannedRun> = found.collect();
            let walked = found.get(room).map_or(to, |next| next.start);
            found.truncate(room);
            Ok((found, walked))
        };
        let Told { mut runs, mut left_out, end } = tell(&scan, &ranges, kernel).expect("told");
        for run in &mut runs {
            (run.start, run.end) = (run.start / page, run.end / page);
        }
        for range in &mut left_out {
            *range = (range.0 / page, range.1 / page);
        }
        Told { runs, left_out, end: end / page }
    }

    #[test]
    fn what_is_unchanged_is_left_out_of_what_is_told() {
        let run = |start, end, kinds| ScannedRun { start, end, kinds };
        let ranges = [(2, 4), (6, 7), (9, 20), (30, 40)];
        let all = [(0, 8, 1), (8, 35, 2), (50, 51, 1)];
        for ((from, to), room, runs, left_out, end) in [
            ((40, 50), 9, vec![], vec![], 50),
            ((0, 2), 9, vec![run(0, 2, 1)], vec![], 2),
            ((9, 20), 9, vec![], vec![(9, 20)], 20),
            ((10, 12), 9, vec![], vec![(10, 12)], 12),
            ((3, 6), 9, vec![run(4, 6, 1)], vec![(3, 4)], 6),
            (
                (0, 60),
                9,
                vec![run(0, 2, 1), run(4, 6, 1), run(7, 8, 1), run(8, 9, 2), run(20, 30, 2), run(50, 51, 1)],
                vec![(2, 4), (6, 7), (9, 20), (30, 40)],
                60,
            ),
            // Where there is no room for more, it asks again from where this ends.
            ((0, 60), 1, vec![run(0, 2, 1)], vec![], 2),
            ((2, 60), 1, vec![run(4, 6, 1)], vec![(2, 4)], 6),
            ((6, 60), 1, vec![run(7, 8, 1)], vec![(6, 7)], 8),
            ((8, 60), 1, vec![run(8, 9, 2)], vec![], 9),
            ((9, 60), 2, vec![run(20, 30, 2), run(50, 51, 1)], vec![(9, 20), (30, 40)], 60),
        ] {
            assert_eq!(
                told(&all, &ranges, (from, to), room),
                Told { runs, left_out, end },
                "{from} {to} {room}"
            );
        }
    }

    #[test]
    fn what_is_noted_is_there_once() {
        let mut pages = LeftOutPages::new().expect("memory");
        let mut another = pages.another().expect("memory");
        pages.note(7, &[(8, 12), (2, 4)]).expect("noted");
        another.note(3, &[(5, 6)]).expect("noted");
        another.note(7, &[(3, 5), (12, 13), (20, 30)]).expect("noted");
        let all = pages.all().expect("read");
        assert_eq!(all, BTreeMap::from([(3, vec![(5, 6)]), (7, vec![(2, 5), (8, 13), (20, 30)])]));
    }
}
