//! Where the program's words go. Whoever reads them may be slow; we do not wait for them, or the hosts would wait for us.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PIPE_BUF;

use skiff_sys::IgnoreError;

/// One of our own outputs.
pub struct Outlet {
    fd: BorrowedFd<'static>,
    held: Vec<u8>,
    closed: bool,
}

impl Outlet {
    pub fn stdout() -> Self {
        Self { fd: rustix::stdio::stdout(), held: vec![], closed: false }
    }

    pub fn stderr() -> Self {
        Self { fd: rustix::stdio::stderr(), held: vec![], closed: false }
    }

    /// What to wait for; nothing if nothing is held.
    pub fn waits(&self) -> Option<BorrowedFd<'_>> {
        (!self.held.is_empty()).then(|| self.fd.as_fd())
    }

    /// How many bytes are held.
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Whether nobody reads it any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes what can be written at once, and holds the rest.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.closed {
            self.held.extend(bytes);
            self.flush();
        }
    }

    /// Writes what can be written at once. (The descriptor is not ours alone, so that it may not be set to refuse waiting; but what
    /// is ready takes so many bytes.)
    pub fn flush(&mut self) {
        let mut gone = 0;
        while gone < self.held.len() && self.is_ready() {
            let end = self.held.len().min(gone + PIPE_BUF);
            match rustix::io::write(self.fd, &self.held[gone..end]) {
                Ok(n) => gone += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    // What is held is for nobody.
                    self.closed = true;
                    gone = self.held.len();
                }
            }
        }
        self.held.drain(..gone);
    }

    /// Writes all, however long that takes.
    pub fn finish(&mut self) {
        while !self.held.is_empty() {
            poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], None)
                .ignore_error("interrupted, it is tried again");
            self.flush();
        }
    }

    fn is_ready(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(&now)) == Ok(1)
    }
}
