//! How fast a layer must come. Who sends it has announced how long it is, and that counts for its user from then on; others wait for who makes a
//! layer. So whoever announces one must send it, too.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use skiff_ipc::Until;

/// How fast a layer must come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long the first byte is waited for, and after that each `step`.
    pub longest_step: Duration,
    /// So many bytes.
    pub step: u64,
    /// Longest time in which all of it comes.
    pub longest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            // A node waits 30 s for others of its job before it reads the depot itself, which may be slow as well.
            longest_step: Duration::from_secs(40),
            step: 1 << 20,
            // Depots lie on file systems that may hang.
            longest: Duration::from_secs(600),
        }
    }
}

/// What comes by a socket, as long as it comes fast enough.
pub(super) struct PacedReader<'a> {
    socket: &'a UnixStream,
    pace: Pace,
    end: Instant,
    /// How long the first byte, or the rest of a step, is waited for. What the reader does between two reads does not count.
    patience: Duration,
    /// Bytes of the step that are missing; none before the first byte.
    missing: u64,
}

impl<'a> PacedReader<'a> {
    pub fn new(socket: &'a UnixStream, pace: Pace) -> Self {
        Self { socket, pace, end: Instant::now() + pace.longest, patience: pace.longest_step, missing: 0 }
    }
}

impl Read for PacedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let read = Until::new(self.socket, self.end.min(begun + self.patience)).read(buffer)?;
        self.patience = self.patience.saturating_sub(begun.elapsed());
        self.missing = self.missing.saturating_sub(read as u64);
        if self.missing == 0 {
            (self.patience, self.missing) = (self.pace.longest_step, self.pace.step);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn who_sends_nothing_or_a_trickle_is_not_waited_for() {
        let longest_step = Duration::from_millis(400);
        let pace = Pace { longest_step, step: 1000, longest: Duration::from_secs(60) };
        // How many bytes are read of pieces that come every 50 ms, until none comes any more, or not fast enough.
        let read = |piece: usize, count: usize| {
            let (socket, mut sender) = UnixStream::pair().expect("sockets");
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for _ in 0..count {
                        std::thread::sleep(Duration::from_millis(50));
                        // The reader may have given up.
                        if sender.write_all(&vec![1; piece]).is_err() {
                            return;
                        }
                    }
                    std::thread::sleep(Duration::from_millis(600));
                });
                let (mut reader, mut all) = (PacedReader::new(&socket, pace), 0);
                loop {
                    match reader.read(&mut [0; 5000]) {
                        Ok(0) => panic!("waited for until the sender went"),
                        Ok(read) => all += read,
                        Err(e) => {
                            assert_eq!(e.kind(), io::ErrorKind::TimedOut);
                            return all;
                        }
                    }
                }
            })
        };
        assert_eq!(read(0, 0), 0, "no first byte");
        assert_eq!(read(1000, 20), 20_000, "fast enough, and for longer than a step may take");
        assert!((2..15).contains(&read(1, 40)), "a trickle");
    }
}
