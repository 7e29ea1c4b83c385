//! Messages between a container's first process and the call that makes it, by a socket that keeps them apart.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::Pid;
use skiff_spec::fault::{Context as _, Fault, Result};

/// The longest message, in bytes; an error's text is cut.
const LONGEST: usize = 8192;

/// A message from the container's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitStatus {
    /// The PID of the first process.
    Process(Pid),
    /// The root is there, and hooks of the runtime may run.
    Mounted,
    /// All is there but the program.
    Created,
    /// Why it ends.
    Failed(Fault),
    /// Nothing more comes: it has become its program, or was killed.
    Closed,
}

/// Two ends: the call's and the container's.
///
/// # Errors
/// When descriptors are used up.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).context(|| "socket")
}

/// Sends a message to the call.
///
/// # Errors
/// When nobody listens any more.
pub fn send(socket: impl AsFd, status: &InitStatus) -> Result<()> {
    let (kind, text) = match status {
        InitStatus::Process(pid) => (b'p', pid.as_raw_nonzero().to_string().into_bytes()),
        InitStatus::Mounted => (b'm', vec![]),
        InitStatus::Created => (b'c', vec![]),
        InitStatus::Failed(fault) => (b'f', fault.to_bytes()),
        InitStatus::Closed => return Ok(()),
    };
    let mut bytes = vec![kind];
    bytes.extend(text);
    bytes.truncate(LONGEST);
    net::send(socket, &bytes, SendFlags::NOSIGNAL).map(drop).context(|| "the call that creates the container")
}

/// Waits for the next message.
///
/// # Errors
/// One that there is not.
pub fn receive(socket: impl AsFd) -> Result<InitStatus> {
    let mut bytes = vec![0; LONGEST];
    let about = || "process of the container";
    let read = rustix::io::retry_on_intr(|| recv(&socket, &mut bytes, RecvFlags::empty()));
    let length = match read {
        Err(rustix::io::Errno::CONNRESET) => 0,
        read => read.context(about)?.0,
    };
    let strange = || Fault::new(format!("{}: an unexpected message", about()));
    let Some((kind, text)) = bytes[..length].split_first() else { return Ok(InitStatus::Closed) };
    match kind {
        b'p' => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            number.and_then(skiff_sys::process::positive_pid).map(InitStatus::Process).ok_or_else(strange)
        }
        b'm' => Ok(InitStatus::Mounted),
        b'c' => Ok(InitStatus::Created),
        b'f' => Ok(InitStatus::Failed(Fault::from_bytes(text))),
        _ => Err(strange()),
    }
}

/// Lets the container's side go on from [`wait`].
///
/// # Errors
/// When it has ended.
pub fn release(socket: impl AsFd) -> Result<()> {
    net::send(socket, b"g", SendFlags::NOSIGNAL).map(drop).context(|| "process of the container")
}

/// Waits until the call lets the container's side go on.
///
/// # Errors
/// When the call has ended: so does the container's process.
pub fn wait(socket: impl AsFd) -> Result<()> {
    let mut byte = [0];
    let got = rustix::io::retry_on_intr(|| recv(&socket, &mut byte, RecvFlags::empty()));
    match got.context(|| "the call that creates the container")?.0 {
        0 => Err(Fault::new("the call that creates the container has ended")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (call, container) = pair().expect("a socket");
        let messages = [
            InitStatus::Process(rustix::process::getpid()),
            InitStatus::Mounted,
            InitStatus::Created,
            InitStatus::Failed(Fault::new("a: b").hint("c")),
        ];
        for message in messages {
            send(&container, &message).expect("sent");
            assert_eq!(receive(&call), Ok(message));
        }
        release(&call).expect("sent");
        assert_eq!(wait(&container), Ok(()));
        net::send(&container, b"x", SendFlags::NOSIGNAL).expect("sent");
        assert!(receive(&call).is_err());
        drop(call);
        assert!(wait(&container).is_err());
        let (call, container) = pair().expect("a socket");
        drop(container);
        assert_eq!(receive(&call), Ok(InitStatus::Closed));
    }
}
