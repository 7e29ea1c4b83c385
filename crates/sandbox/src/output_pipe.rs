//! What a command prints whom nobody lets at the terminal: read from a pipe, and passed on as it came, or to a terminal without what it would obey. A descriptor of the terminal can be
//! read as well as written, whichever of the three it is.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread, read, retry_on_intr, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::stderr;
use rustix::termios::isatty;
use skiff_spec::fault::{Context, Result};

use crate::harmless::HarmlessOutput;

/// So much a pipe takes at once if it takes anything (`PIPE_BUF`): one for whom nobody reads must not keep its writer from hearing signals.
const MOST_AT_ONCE: usize = 4096;

/// So much of what is not passed on is kept: what a command said before its end.
const LONGEST_TAIL: usize = 64 << 10;

/// The end of what a command printed, for standard error: where that is a terminal, it obeys nothing but colours.
#[must_use]
pub fn shown(tail: &OutputTail) -> Vec<u8> {
    let tail = tail.borrow();
    if !isatty(stderr()) {
        return tail.clone();
    }
    let (mut filter, mut shown) = (HarmlessOutput::default(), vec![]);
    filter.pass(&tail, &mut shown);
    filter.end(&mut shown);
    shown
}

/// The end of what a command printed.
pub type OutputTail = Rc<RefCell<Vec<u8>>>;

/// A pipe whose bytes go to standard error, or are kept.
pub struct OutputPipe {
    /// Nothing once all writers have closed it, or nobody takes what comes.
    from: Option<OwnedFd>,
    /// Read, and not passed on yet.
    pending: Vec<u8>,
    /// Where the end of all is kept, if nothing is passed on.
    tail: Option<OutputTail>,
    /// What keeps the terminal from obeying, if what is printed goes to one.
    harmless: Option<HarmlessOutput>,
}

impl OutputPipe {
    /// A pipe, and its end for who writes.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn new() -> Result<(Self, OwnedFd)> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        Ok((Self { from: Some(from), pending: vec![], tail: None, harmless: None }, to))
    }

    /// Passes nothing on, but keeps the end of it here.
    #[must_use]
    pub fn kept_in(self, tail: OutputTail) -> Self {
        Self { tail: Some(tail), ..self }
    }

    /// The same; where standard error is a terminal, it obeys nothing but colours.
    #[must_use]
    pub fn harmless(self) -> Self {
        Self { harmless: isatty(stderr()).then(HarmlessOutput::default), ..self }
    }

    /// What is to be waited for before [`OutputPipe::go_on`]; nothing if there is nothing more to do.
    pub(crate) fn wanted(&self) -> Option<PollFd<'_>> {
        match (&self.from, self.pending.is_empty()) {
            (_, false) => Some(PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)),
            (Some(from), true) => Some(PollFd::new(from, PollFlags::IN)),
            (None, true) => None,
        }
    }

    /// Reads some bytes, or writes some of those that were read, without waiting for either.
    pub(crate) fn go_on(&mut self) {
        self.go_on_with(stderr(), MOST_AT_ONCE);
    }

    /// Gives how much was read.
    fn go_on_with(&mut self, to: impl AsFd, most: usize) -> usize {
        if self.pending.is_empty() {
            return self.take_in(most);
        }
        match retry_on_intr(|| write(&to, &self.pending)) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::AGAIN) => {}
            // Nobody is there any more: who writes is told as by a pipe of the caller's.
            Err(_) => {
                self.pending.clear();
                self.from = None;
            }
        }
        0
    }

    fn take_in(&mut self, most: usize) -> usize {
        let Some(from) = &self.from else { return 0 };
        let mut bytes = [0; MOST_AT_ONCE];
        let count = match retry_on_intr(|| read(from, &mut bytes[..most.min(MOST_AT_ONCE)])) {
            Ok(0) | Err(_) => {
                self.from = None;
                self.end_filter();
                return 0;
            }
            Ok(count) => count,
        };
        match (&self.tail, &mut self.harmless) {
            (None, None) => self.pending.extend(&bytes[..count]),
            (None, Some(harmless)) => harmless.pass(&bytes[..count], &mut self.pending),
            (Some(tail), _) => {
                let mut tail = tail.borrow_mut();
                tail.extend(&bytes[..count]);
                let excess = tail.len().saturating_sub(LONGEST_TAIL);
                tail.drain(..excess);
            }
        }
        count
    }

    /// What is held of the last letter or sequence is all of it.
    fn end_filter(&mut self) {
        if let Some(harmless) = &mut self.harmless {
            harmless.end(&mut self.pending);
        }
    }

    /// Passes on what is there now that the command has ended, and no more: its end for who writes may have been given to a process elsewhere,
    /// which may never close it.
    pub(crate) fn finish(mut self, gives_up: impl FnMut() -> bool) {
        self.finish_to(stderr(), gives_up);
    }

    fn finish_to(&mut self, to: impl AsFd, mut gives_up: impl FnMut() -> bool) {
        let left = self.from.as_ref().and_then(|from| ioctl_fionread(from).ok()).unwrap_or(0);
        let mut left = usize::try_from(left).unwrap_or(usize::MAX);
        loop {
            if self.pending.is_empty() {
                if left > 0 && self.from.is_some() {
                    left = left.saturating_sub(self.go_on_with(&to, left));
                    continue;
                }
                self.end_filter();
                if self.pending.is_empty() {
                    return;
                }
            }
            let mut out = [PollFd::new(&to, PollFlags::OUT)];
            match poll(&mut out, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 })) {
                Ok(1) => {
                    self.go_on_with(&to, left);
                }
                _ if gives_up() => return,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn all_that_was_written_is_passed_on_and_nobody_who_keeps_the_pipe_is_waited_for() {
        let (mut output, theirs) = OutputPipe::new().unwrap();
        let (mut read_back, to) = std::io::pipe().unwrap();
        let text: Vec<u8> = (0..30_000u32).map(|n| n as u8).collect();
        assert_eq!(write(&theirs, &text), Ok(text.len()));
        // A part before the end, the rest after.
        for _ in 0..2 {
            output.go_on_with(&to, MOST_AT_ONCE);
        }
        output.finish_to(&to, || false);
        drop(to);
        let mut got = vec![];
        read_back.read_to_end(&mut got).unwrap();
        assert!(got == text, "{} of {} bytes", got.len(), text.len());
        drop(theirs);
    }

    #[test]
    fn what_is_kept_is_the_end_and_nothing_is_passed_on() {
        let (output, theirs) = OutputPipe::new().unwrap();
        let tail = OutputTail::default();
        let mut output = output.kept_in(tail.clone());
        let (nothing, to) = std::io::pipe().unwrap();
        for byte in [b'a', b'b'] {
            assert_eq!(write(&theirs, &[byte; 60_000]), Ok(60_000));
            output.finish_to(&to, || false);
        }
        assert_eq!(
            (tail.borrow().len(), tail.borrow().iter().filter(|byte| **byte == b'b').count()),
            (LONGEST_TAIL, 60_000)
        );
        assert_eq!(ioctl_fionread(&nothing), Ok(0));
    }

    #[test]
    fn who_does_not_read_is_not_waited_for_for_ever() {
        let (mut output, theirs) = OutputPipe::new().unwrap();
        let (_nobody_reads, to) = std::io::pipe().unwrap();
        for _ in 0..2 {
            assert_eq!(write(&theirs, &[b'x'; 60_000]), Ok(60_000));
            output.finish_to(&to, || true);
        }
        assert!(!output.pending.is_empty());
        // And one who has gone is not written for.
        drop(_nobody_reads);
        output.go_on_with(&to, MOST_AT_ONCE);
        assert!(output.wanted().is_none());
        assert_eq!(write(&theirs, b"x"), Err(Errno::PIPE));
    }
}
