//! Memory of processes is sent while they run, in rounds: in the first all of it, in each further one what has changed since. When little is left, or no
//! round makes it less, they can be stopped: of what is over there already, only that it is so is said then.
//!
//! A process inside the environment does so. It knows what it has sent (`ledger.rs`), and hears when they stand still.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_criu::page_protocol::{PAGE, PRESENT, PageServerCommand, of};
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use crate::block::Block;
use crate::direct::{MemoryRanges, PageRun, pieces, send_run};
use crate::ledger::Ledger;
use crate::page_io::write;
use crate::squeeze::{hang_up, pair, through};

/// With so few bytes left another round gains nothing.
const FEW: u64 = 16 << 20;
/// Nor with so few of all: looking at the others takes longer.
const FEW_OF: u64 = 64;
/// A round that is not shorter than the one before by a quarter is the last.
const SHORTER: (u64, u64) = (3, 4);
/// And there are no more than so many.
const MOST_ROUNDS: usize = 10;
/// Bytes of a run as it is said.
const RUN: usize = 20;
/// Bytes of what is said of a round.
const ROUND: usize = 16;

/// A round that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecopyRound {
    /// Bytes that were sent.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
}

/// Memory being sent before the processes are stopped.
pub struct Precopy {
    talk: File,
    doing: Option<ReportingChild<u64>>,
}

impl Precopy {
    /// Begins to send what is in these ranges of the processes inside by `link`.
    ///
    /// # Errors
    /// When there are no processes or descriptors to be had.
    pub fn begin(
        inside: EnterTarget<'_>,
        link: BorrowedFd<'_>,
        packed: bool,
        ranges: &MemoryRanges,
    ) -> Result<Self> {
        let (ours, theirs) = pair()?;
        let doing = enter::begin(inside, &[link, theirs.as_fd()], || {
            let talk = File::from(theirs.try_clone().context(about)?);
            serve(&talk, link, packed, ranges)
        })?;
        Ok(Self { talk: ours.into(), doing: Some(doing) })
    }

    /// Readable once all rounds are over, or it has failed.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.talk.as_fd()
    }

    /// All rounds. It waits for them.
    ///
    /// # Errors
    /// Why it has failed.
    pub fn rounds(&mut self) -> Result<Vec<PrecopyRound>> {
        let mut count = [0];
        let mut said = vec![];
        let heard = self.talk.read_exact(&mut count).and_then(|()| {
            said.resize(usize::from(count[0]) * ROUND, 0);
            self.talk.read_exact(&mut said)
        });
        match heard {
            Ok(()) => Ok(said.chunks(ROUND).map(PrecopyRound::parse).collect()),
            // It says itself why it has ended.
            Err(e) => Err(self
                .doing
                .take()
                .and_then(|doing| doing.end().err())
                .unwrap_or_else(|| Fault::new(format!("{}: {e}", about())))),
        }
    }

    /// Who is to hear a byte when the processes stand still.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn stopped(&self) -> Result<OwnedFd> {
        self.talk.as_fd().try_clone_to_owned().context(about)
    }

    /// Has it say the rest: these runs, in which they have changed or not. What is being done gives the number of bytes that it has sent in all.
    ///
    /// # Errors
    /// When it has ended.
    pub fn send(mut self, runs: &[PageRun]) -> Result<ReportingChild<u64>> {
        let doing = self.doing.take().ok_or_else(|| Fault::new(format!("{}: it has ended", about())))?;
        let said: Vec<u8> = runs.iter().flat_map(PageRun::bytes).collect();
        let words = [&(runs.len() as u64).to_ne_bytes()[..], &said].concat();
        match (&self.talk).write_all(&words) {
            Ok(()) => Ok(doing),
            Err(e) => Err(doing.end().err().unwrap_or_else(|| Fault::new(format!("{}: {e}", about())))),
        }
    }
}

impl Drop for Precopy {
    fn drop(&mut self) {
        if let Some(doing) = self.doing.take() {
            hang_up(&self.talk);
            doing.end().ignore_error("whoever drops it has another error to tell");
        }
    }
}

fn about() -> &'static str {
    "memory that is sent ahead"
}

impl PrecopyRound {
    fn bytes(self) -> [u8; ROUND] {
        let mut bytes = [0; ROUND];
        bytes[..8].copy_from_slice(&self.bytes.to_ne_bytes());
        bytes[8..].copy_from_slice(&(self.time.as_micros() as u64).to_ne_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Self {
        let number = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        Self { bytes: number(0), time: Duration::from_micros(number(8)) }
    }
}

impl PageRun {
    fn bytes(&self) -> Vec<u8> {
        [&self.pid.to_ne_bytes()[..], &self.address.to_ne_bytes(), &self.pages.to_ne_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Self {
        let number = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let pid = bytes[..4].try_into().map_or(0, i32::from_ne_bytes);
        Self { pid, address: number(4), pages: number(12) }
    }
}

/// All of it, inside; how many bytes went by the link.
fn serve(mut talk: &File, link: BorrowedFd<'_>, packed: bool, ranges: &MemoryRanges) -> Result<u64> {
    let mut ledger = Ledger::new(ranges)?;
    let mut rounds = vec![];
    let ahead = through(link, packed, |link| {
        rounds = all_rounds(&mut ledger, link, talk)?;
        Ok(())
    })?;
    let ahead = ahead.unwrap_or_else(|| rounds.iter().map(|round| round.bytes).sum());
    let said = rounds.iter().flat_map(|round| round.bytes()).collect();
    // No more than there may be.
    talk.write_all(&[vec![rounds.len() as u8], said].concat()).context(about)?;
    if !heard(talk, &mut [0])? {
        return Ok(ahead);
    }
    ledger.compare()?;
    let mut count = [0; 8];
    if !heard(talk, &mut count)? {
        return Ok(ahead);
    }
    let mut said = vec![];
    talk.take(u64::from_ne_bytes(count).saturating_mul(RUN as u64)).read_to_end(&mut said).context(about)?;
    let runs: Vec<PageRun> = said.chunks_exact(RUN).map(PageRun::parse).collect();
    let mut plain = 0;
    let rest = through(link, packed, |link| {
        plain = send_rest(&ledger, &runs, link)?;
        Ok(())
    })?;
    Ok(ahead + rest.unwrap_or(plain))
}

/// Whether something is said; if not, nothing more is wanted.
fn heard(mut talk: &File, word: &mut [u8]) -> Result<bool> {
    match talk.read_exact(word) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        said => said.map(|()| true).context(about),
    }
}

fn all_rounds(ledger: &mut Ledger, link: &mut File, talk: &File) -> Result<Vec<PrecopyRound>> {
    let (mut rounds, mut there): (Vec<PrecopyRound>, u64) = (vec![], 0);
    while !enough(&rounds, there) {
        let begun = Instant::now();
        let out = Mutex::new((&mut *link, 0));
        there = ledger.round(|pid, address, bytes| {
            if gone(talk) {
                return Err(Fault::new(format!("{}: cancelled", about())));
            }
            let mut out = out.lock().map_err(|_| Fault::new(format!("{}: a thread has failed", about())))?;
            let pages = bytes.len() as u64 / PAGE;
            write(&PageServerCommand::Add { of: of(pid), address, pages, flags: PRESENT }, out.0)?;
            out.0.write_all(bytes).context(|| "connection for pages")?;
            out.1 += bytes.len() as u64;
            Ok(())
        })?;
        let bytes = out.into_inner().map_or(0, |(_, bytes)| bytes);
        rounds.push(PrecopyRound { bytes, time: begun.elapsed() });
    }
    write(&PageServerCommand::Close, link)?;
    Ok(rounds)
}

/// Whether they are to be stopped now, with so much memory.
fn enough(rounds: &[PrecopyRound], size: u64) -> bool {
    let [.., last] = rounds else { return false };
    let before = rounds.len().checked_sub(2).and_then(|at| rounds.get(at));
    let no_shorter =
        |before: &PrecopyRound| last.bytes.saturating_mul(SHORTER.1) > before.bytes.saturating_mul(SHORTER.0);
    last.bytes <= FEW.max(size / FEW_OF) || rounds.len() >= MOST_ROUNDS || before.is_some_and(no_shorter)
}

/// Whether whoever wanted it has gone.
fn gone(talk: &File) -> bool {
    let mut fds = [PollFd::new(talk, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().is_empty()
}

/// Of what has not changed that it has not, of all else what it is; how many bytes of that.
fn send_rest(ledger: &Ledger, runs: &[PageRun], link: &mut File) -> Result<u64> {
    let (mut block, mut sent) = (Block::new(), 0);
    let mut link = std::io::BufWriter::new(link);
    for run in runs {
        for (known, address, pages) in ledger.divide(run) {
            let part = PageRun { pid: run.pid, address, pages };
            if known {
                for (address, pages) in pieces(&part)? {
                    write(&PageServerCommand::Add { of: of(run.pid), address, pages, flags: 0 }, &mut link)?;
                }
            } else {
                send_run(&part, &mut block, &mut link)?;
                sent += pages * PAGE;
            }
        }
    }
    write(&PageServerCommand::Close, &mut link)?;
    link.flush().context(|| "connection for pages")?;
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_on_while_they_make_it_less() {
        let round = |bytes| PrecopyRound { bytes, time: Duration::from_micros(7) };
        let mib = 1 << 20;
        for (bytes, size, over) in [
            (&[][..], 900, false),
            (&[900], 900, false),
            (&[16], 900, true),
            (&[900, 17], 900, false),
            (&[2000, 31], 2000, true),
            (&[900, 676], 900, true),
            (&[900, 674], 900, false),
            (&[900, 600, 400, 300, 200, 140, 100, 70, 50], 900, false),
            (&[900, 600, 400, 300, 200, 140, 100, 70, 50, 30], 900, true),
        ] {
            let rounds: Vec<PrecopyRound> = bytes.iter().map(|bytes| round(bytes * mib)).collect();
            assert_eq!(enough(&rounds, size * mib), over, "{bytes:?}");
        }
        assert_eq!(PrecopyRound::parse(&round(5).bytes()), round(5));
        let run = PageRun { pid: 70000, address: 0x7fff_0000_1000, pages: 1 << 40 };
        assert_eq!(PageRun::parse(&run.bytes()), run);
    }
}
