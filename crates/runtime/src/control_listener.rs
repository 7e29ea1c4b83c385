//! The supervisor's end of its control socket. A program inside that is shown the user's home can connect there as often as it likes and say
//! nothing: none of that keeps the user's own commands from being heard.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SocketFlags, SocketType, accept_with};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::fdpass;

use crate::control::{CONTROL, ControlRequest, listen_at};

/// How many connections that have said nothing are kept. Of more the oldest goes: a command that is cut off so tries again.
const MOST: usize = 64;
/// How long one may say nothing.
const SILENCE: Duration = Duration::from_secs(1);
/// How many connections are taken at a time, before anything else is looked after.
const BATCH: usize = 256;

/// What somebody wants.
pub struct HeardRequest {
    /// Who.
    pub connection: OwnedFd,
    /// What.
    pub want: ControlRequest,
    /// What came along.
    pub descriptors: Vec<OwnedFd>,
}

/// The listening socket, and connections that have not said yet what they want.
pub struct ControlListener {
    socket: OwnedFd,
    silent: VecDeque<(OwnedFd, Instant)>,
}

impl ControlListener {
    /// Listens in the directory of an environment.
    pub fn new(dir: &Path) -> Result<Self> {
        let socket = listen_at(dir, CONTROL, SocketType::SEQPACKET)?;
        fcntl_setfl(&socket, OFlags::NONBLOCK).context(|| CONTROL)?;
        Ok(Self { socket, silent: VecDeque::new() })
    }

    /// What is readable when there is something to be heard.
    pub fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.socket].into_iter().chain(self.silent.iter().map(|(connection, _)| connection))
    }

    /// How long to wait for that at most.
    pub fn patience(&self) -> Option<Duration> {
        let (_, since) = self.silent.front()?;
        Some((*since + SILENCE).saturating_duration_since(Instant::now()))
    }

    /// What is wanted by now, and by whom. Never waits.
    pub fn requests(&mut self) -> Vec<HeardRequest> {
        let mut heard = vec![];
        let now = Instant::now();
        for (connection, since) in std::mem::take(&mut self.silent) {
            self.hear(connection, since, now, &mut heard);
        }
        for _ in 0..BATCH {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(connection) = accept_with(&self.socket, flags) else { break };
            self.hear(connection, now, now, &mut heard);
            if self.silent.len() > MOST
                && let Some((oldest, since)) = self.silent.pop_front()
            {
                // Gone, unless it has spoken this moment.
                self.hear(oldest, since, since + SILENCE, &mut heard);
            }
        }
        heard
    }

    /// Keeps a connection that says nothing, unless that has gone on for too long.
    fn hear(&mut self, connection: OwnedFd, since: Instant, now: Instant, heard: &mut Vec<HeardRequest>) {
        match fdpass::receive(connection.as_fd(), 16) {
            Ok((bytes, descriptors)) => {
                let want = bytes.first().copied().and_then(ControlRequest::from_byte);
                heard.extend(want.map(|want| HeardRequest { connection, want, descriptors }));
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock && now < since + SILENCE => {
                self.silent.push_back((connection, since));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::control::dial;

    #[test]
    fn silent_connections_make_way_for_one_that_speaks() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut listener = ControlListener::new(dir.path()).expect("listens");
        let mut silent = vec![];
        for _ in 0..10 {
            silent.extend((0..32).map(|_| dial(dir.path()).expect("connected").expect("there")));
            assert!(listener.requests().is_empty());
            assert!(listener.descriptors().count() <= 1 + MOST);
        }
        let speaks = dial(dir.path()).expect("connected").expect("there");
        assert!(listener.requests().is_empty());
        fdpass::send(speaks.as_fd(), &[ControlRequest::Status.byte()], &[]).expect("said");
        let mut fds: Vec<_> = listener.descriptors().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        assert_eq!(poll(&mut fds, None), Ok(1), "it wakes who waits");
        let heard: Vec<_> = listener.requests().into_iter().map(|heard| heard.want).collect();
        assert_eq!(heard, [ControlRequest::Status]);
        std::thread::sleep(SILENCE);
        assert_eq!(listener.patience(), Some(Duration::ZERO));
        assert!(listener.requests().is_empty());
        assert_eq!(listener.descriptors().count(), 1, "nobody is waited for without end");
    }
}
