//! What CRIU says to its page server, on its way: pages that go straight into the processes there ([`crate::direct`]) are noted and left
//! where they are, all else is sent at once.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::Pid;
use skiff_criu::page_protocol::{PRESENT, PageServerCommand, process};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use crate::direct::{self, MemoryRanges, PageRun};
use crate::page_io;
use crate::pages::{PIPE, move_bytes};
use crate::squeeze::hang_up;

/// A thread that does so.
pub struct Sorting {
    ours: Arc<File>,
    thread: JoinHandle<Result<Vec<PageRun>>>,
}

impl Sorting {
    /// Begins to read what CRIU says on the other end of `ours`. What goes at once goes by `out`; what may stay, of the processes that descend from
    /// `init`, is in `ranges`, as they were before they were stopped. When they are, `stopped` hears a byte.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn begin(
        ours: OwnedFd,
        out: OwnedFd,
        (init, ranges): (Pid, MemoryRanges),
        stopped: Option<OwnedFd>,
    ) -> Result<Self> {
        let about = || "connection for pages";
        let pipe = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        fcntl_setpipe_size(&pipe.0, PIPE).ignore_error("smaller ones do, too");
        let nowhere = openat(CWD, "/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let nowhere = nowhere.context(|| "/dev/null")?;
        let ours = Arc::new(File::from(ours));
        let to = ours.clone();
        let sorter = Sorter {
            criu: ours.clone(),
            out: out.into(),
            nowhere,
            pipe,
            init,
            ranges,
            stopped: false,
            news: stopped.map(File::from),
            runs: vec![],
        };
        // CRIU, too, learns of it when nobody takes what it says.
        Ok(Self { ours, thread: spawn(move || sorter.sort().inspect_err(|_| hang_up(&to))) })
    }

    /// CRIU has said all, or nothing more of it is wanted; what has stayed where it was.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn end(self) -> Result<Vec<PageRun>> {
        hang_up(&self.ours);
        self.thread.join().unwrap_or_else(|_| Err(Fault::new("connection for pages: its thread has ended")))
    }
}

struct Sorter {
    criu: Arc<File>,
    out: File,
    nowhere: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
    init: Pid,
    ranges: MemoryRanges,
    /// Whether the processes are known to stand still.
    stopped: bool,
    /// Who wants to know that.
    news: Option<File>,
    runs: Vec<PageRun>,
}

impl Sorter {
    fn sort(mut self) -> Result<Vec<PageRun>> {
        loop {
            let command = page_io::read(&mut &*self.criu)?;
            match command {
                PageServerCommand::Open(_) => {
                    self.look_again()?;
                    // There are no pages from before.
                    self.answer(&[0])?;
                }
                PageServerCommand::Add { of, address, pages, flags } if flags & PRESENT != 0 => {
                    self.divide(of, address, pages, flags)?;
                    continue;
                }
                PageServerCommand::Add { .. } => {}
                PageServerCommand::Close => self.answer(&0_i32.to_ne_bytes())?,
            }
            page_io::write(&command, &mut self.out)?;
            if command == PageServerCommand::Close {
                return Ok(self.runs);
            }
        }
    }

    /// When CRIU speaks of the first process, all have been stopped. A mapping that has changed since they were looked at is CRIU's: it
    /// lets itself read what the process could not, and that would be seen now.
    fn look_again(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.stopped, true) {
            if let Some(mut news) = self.news.take() {
                news.write_all(&[0]).context(|| "what sends memory ahead")?;
            }
            let before = std::mem::take(&mut self.ranges);
            self.ranges = direct::in_both(direct::ranges(self.init)?, &before);
        }
        Ok(())
    }

    fn divide(&mut self, of: u64, address: u64, pages: u64, flags: u16) -> Result<()> {
        let pid = process(of);
        let ranges = pid.and_then(|pid| self.ranges.get(&pid)).map_or(&[][..], Vec::as_slice);
        for (stays, address, pages) in direct::divide(ranges, address, pages) {
            let to = match pid.filter(|_| stays) {
                Some(pid) => {
                    self.runs.push(PageRun { pid, address, pages });
                    self.nowhere.as_fd()
                }
                None => {
                    page_io::write(&PageServerCommand::Add { of, address, pages, flags }, &mut self.out)?;
                    self.out.as_fd()
                }
            };
            self.pass(to, pages)?;
        }
        Ok(())
    }

    fn pass(&self, to: BorrowedFd<'_>, pages: u64) -> Result<()> {
        move_bytes(self.criu.as_fd(), &self.pipe, to, page_io::bytes(pages)?)
    }

    fn answer(&self, word: &[u8]) -> Result<()> {
        (&*self.criu).write_all(word).context(|| "CRIU")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::squeeze::pair;
    use std::io::Read;

    #[test]
    fn what_criu_says_is_sent_but_for_what_may_stay() {
        let (criu, ours) = pair().expect("sockets");
        let (out, link) = pair().expect("sockets");
        let init = rustix::process::getpid();
        let sorting = Sorting::begin(ours, out, (init, MemoryRanges::new()), None).expect("begun");
        let (mut criu, mut link) = (File::from(criu), File::from(link));
        let page = [7; 4096];
        let add = PageServerCommand::Add { of: 2 << 8 | 1, address: 0x1000, pages: 1, flags: PRESENT };
        let hole = PageServerCommand::Add { of: 2 << 8 | 1, address: 0x3000, pages: 5, flags: 2 };
        PageServerCommand::Open(2 << 8 | 1).write(&mut criu).expect("said");
        criu.read_exact(&mut [1]).expect("an answer");
        for bytes in [&add.bytes()[..], &page, &hole.bytes(), &PageServerCommand::Close.bytes()] {
            criu.write_all(bytes).expect("said");
        }
        let mut well = [1; 4];
        criu.read_exact(&mut well).expect("an answer");
        assert_eq!(well, [0; 4]);
        assert_eq!(sorting.end().expect("sorted"), []);
        let mut came = vec![];
        link.read_to_end(&mut came).expect("read");
        let all = [
            &PageServerCommand::Open(2 << 8 | 1).bytes()[..],
            &add.bytes(),
            &page,
            &hole.bytes(),
            &PageServerCommand::Close.bytes(),
        ];
        assert!(came == all.concat());
    }

    #[test]
    fn criu_learns_that_nobody_listens() {
        let (criu, ours) = pair().expect("sockets");
        let (out, link) = pair().expect("sockets");
        drop(link);
        let sorting =
            Sorting::begin(ours, out, (rustix::process::getpid(), MemoryRanges::new()), None).expect("begun");
        let mut criu = File::from(criu);
        PageServerCommand::Open(2 << 8 | 1).write(&mut criu).expect("said");
        criu.read_exact(&mut [1]).expect("an answer");
        assert_eq!(criu.read(&mut [0]).expect("its end"), 0);
        let lost = sorting.end().expect_err("nobody listens");
        assert_eq!(lost.message, "connection for pages: Broken pipe (os error 32)");
    }

    #[test]
    fn pages_that_stay_are_noted() {
        let (mut theirs, ours) = pair().map(|(a, b)| (File::from(a), b)).expect("sockets");
        let (out, link) = pair().expect("sockets");
        let nowhere = File::options().write(true).open("/dev/null").expect("open");
        let mut sorter = Sorter {
            criu: Arc::new(File::from(ours)),
            out: out.into(),
            nowhere: nowhere.into(),
            pipe: pipe_with(PipeFlags::CLOEXEC).expect("a pipe"),
            init: rustix::process::getpid(),
            ranges: MemoryRanges::from([(2, vec![(0x2000, 0x4000)])]),
            stopped: true,
            news: None,
            runs: vec![],
        };
        let pages = [[1; 4096], [2; 4096], [3; 4096], [4; 4096]].concat();
        theirs.write_all(&pages).expect("said");
        sorter.divide(2 << 8 | 1, 0x1000, 4, PRESENT).expect("divided");
        assert_eq!(sorter.runs, [PageRun { pid: 2, address: 0x2000, pages: 2 }]);
        // Shared memory of that number, and another process, have no such place.
        for of in [2 << 8 | 2, 3 << 8 | 1] {
            theirs.write_all(&pages[..4096]).expect("said");
            sorter.divide(of, 0x2000, 1, PRESENT).expect("divided");
        }
        assert_eq!(sorter.runs.len(), 1);
        drop(sorter);
        let mut came = vec![];
        File::from(link).read_to_end(&mut came).expect("read");
        let add = |of, address| PageServerCommand::Add { of, address, pages: 1, flags: PRESENT }.bytes();
        let wanted = [
            &add(2 << 8 | 1, 0x1000)[..],
            &pages[..4096],
            &add(2 << 8 | 1, 0x4000),
            &pages[3 * 4096..],
            &add(2 << 8 | 2, 0x2000),
            &pages[..4096],
            &add(3 << 8 | 1, 0x2000),
            &pages[..4096],
        ];
        assert!(came == wanted.concat());
    }
}
