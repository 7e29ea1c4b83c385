//! What a container's first process and the call that makes it say to each other, by a socket that keeps messages apart.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::Pid;
use skiff_spec::fault::{Context as _, Fault, Result};

/// The longest message, in bytes; an error's text is cut.
const LONGEST: usize = 8192;

/// What the container's side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitWord {
    /// The PID of the first process.
    Process(Pid),
    /// The root is there, and hooks of the runtime may run.
    Mounted,
    /// All is there but the program.
    Created,
    /// Why it ends.
    Failed(Fault),
    /// Nothing more comes: it has become its program, or was killed.
    Silence,
}

/// Two ends: the call's and the container's.
///
/// # Errors
/// When descriptors are used up.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).context(|| "socket")
}

/// Says something to the call.
///
/// # Errors
/// When nobody listens any more.
pub fn say(socket: impl AsFd, word: &InitWord) -> Result<()> {
    let (kind, text) = match word {
        InitWord::Process(pid) => (b'p', pid.as_raw_nonzero().to_string().into_bytes()),
        InitWord::Mounted => (b'm', vec![]),
        InitWord::Created => (b'c', vec![]),
        InitWord::Failed(fault) => (b'f', fault.to_bytes()),
        InitWord::Silence => return Ok(()),
    };
    let mut bytes = vec![kind];
    bytes.extend(text);
    bytes.truncate(LONGEST);
    send(socket, &bytes, SendFlags::NOSIGNAL).map(drop).context(|| "the call that creates the container")
}

/// Waits for the next word.
///
/// # Errors
/// One that nobody says.
pub fn hear(socket: impl AsFd) -> Result<InitWord> {
    let mut bytes = vec![0; LONGEST];
    let about = || "process of the container";
    let read = rustix::io::retry_on_intr(|| recv(&socket, &mut bytes, RecvFlags::empty()));
    let length = match read {
        Err(rustix::io::Errno::CONNRESET) => 0,
        read => read.context(about)?.0,
    };
    let strange = || Fault::new(format!("{}: an unexpected message", about()));
    let Some((kind, text)) = bytes[..length].split_first() else { return Ok(InitWord::Silence) };
    match kind {
        b'p' => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            number.and_then(skiff_sys::process::positive_pid).map(InitWord::Process).ok_or_else(strange)
        }
        b'm' => Ok(InitWord::Mounted),
        b'c' => Ok(InitWord::Created),
        b'f' => Ok(InitWord::Failed(Fault::from_bytes(text))),
        _ => Err(strange()),
    }
}

/// Lets the container's side go on.
///
/// # Errors
/// When it has ended.
pub fn go_on(socket: impl AsFd) -> Result<()> {
    send(socket, b"g", SendFlags::NOSIGNAL).map(drop).context(|| "process of the container")
}

/// Waits until the call lets it go on.
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
    fn words_arrive_as_they_were_said() {
        let (call, container) = pair().expect("a socket");
        let words = [
            InitWord::Process(rustix::process::getpid()),
            InitWord::Mounted,
            InitWord::Created,
            InitWord::Failed(Fault::new("a: b").hint("c")),
        ];
        for word in words {
            say(&container, &word).expect("said");
            assert_eq!(hear(&call), Ok(word));
        }
        go_on(&call).expect("said");
        assert_eq!(wait(&container), Ok(()));
        send(&container, b"x", SendFlags::NOSIGNAL).expect("sent");
        assert!(hear(&call).is_err());
        drop(call);
        assert!(wait(&container).is_err());
        let (call, container) = pair().expect("a socket");
        drop(container);
        assert_eq!(hear(&call), Ok(InitWord::Silence));
    }
}
