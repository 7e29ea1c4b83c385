//! A program that was started on another host, and calls back whoever had it started.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::stdio::{dup2_stdin, dup2_stdout};
use skiff_ipc::from_json;
use skiff_sys::kernel::host_name;

use crate::error::{Error, OfSystem as _, Result};
use crate::handshake::{Call, HELLO, HandshakeError, Initiator, SharedSecret};
use crate::{listener, manager};

/// How long each of the addresses is tried, and how long the other side may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Calls back under the name that the manager has for this host, and talks by standard input and output from then on; the secret by which the two know each
/// other.
///
/// # Errors
/// When the call cannot be read, nobody is there, or nobody who knows the secret.
pub fn call(from: &Path, whom: &str) -> Result<Option<SharedSecret>> {
    let call = read(from)?;
    let name = manager::own_name(&|name| std::env::var(name).ok()).unwrap_or_else(host_name);
    call_as(&name, &call, whom)?;
    Ok(call.secret)
}

/// Calls `whom` by this name, and talks by standard input and output from then on.
///
/// # Errors
/// As [`dial`].
pub fn call_as(name: &str, call: &Call, whom: &str) -> Result<()> {
    let socket = dial(call, name, whom)?;
    dup2_stdin(&socket).and_then(|()| dup2_stdout(&socket)).of(|| whom)
}

/// A connection to `whom`, who has said how to call back; `name` says what it is for.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::NoAnswer`], [`Error::Handshake`].
pub fn dial(call: &Call, name: &str, whom: &str) -> Result<OwnedFd> {
    let about = || whom.to_owned();
    let mut socket = connect(call, whom)?;
    socket.set_nodelay(true).of(about)?;
    socket.set_read_timeout(Some(PATIENCE)).of(about)?;
    prove(&mut socket, call, (name, whom))?;
    socket.set_read_timeout(None).of(about)?;
    let socket = OwnedFd::from(socket);
    listener::keep_alive(&socket).of(about)?;
    Ok(socket)
}

/// Has both sides prove that they know the call's secret.
fn prove(socket: &mut TcpStream, call: &Call, (name, whom): (&str, &str)) -> Result<()> {
    let handshake = |why| Error::Handshake { whom: whom.into(), why };
    let secret = call.secret.as_ref().ok_or(HandshakeError::NotASecret).map_err(handshake)?;
    let (initiator, hello) = Initiator::begin(secret, &call.word).map_err(handshake)?;
    let mut answer = [0; HELLO];
    // One of another version hangs up, or waits for more.
    let answered = socket.write_all(&hello).and_then(|()| socket.read_exact(&mut answer));
    answered.map_err(|why| Error::NoAnswer { whom: whom.into(), why })?;
    let proof = initiator.prove(&answer, name).map_err(handshake)?;
    socket.write_all(&proof).of(|| whom.to_owned())
}

/// How to call back, from a file or the standard input (`-`). Where a manager says from where this was started, that is tried first.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read(from: &Path) -> Result<Call> {
    let about = || format!("how to call back ({})", from.display());
    let text = match from.to_str() {
        Some("-") => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).of(about)?;
            line
        }
        _ => std::fs::read_to_string(from).of(about)?,
    };
    let invalid = |why| Error::InvalidCall { from: from.display().to_string(), why };
    let mut call: Call = from_json(text.as_bytes()).map_err(invalid)?;
    call.hosts.splice(..0, manager::started_from(&|name| std::env::var(name).ok()));
    Ok(call)
}

fn connect(call: &Call, whom: &str) -> Result<TcpStream> {
    let mut tried = vec![];
    for host in &call.hosts {
        let found = (host.as_str(), call.port).to_socket_addrs();
        let attempt = found.and_then(|addresses| {
            let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
            for address in addresses {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(socket) => return Ok(socket),
                    Err(e) => last = e,
                }
            }
            Err(last)
        });
        match attempt {
            Ok(socket) => return Ok(socket),
            Err(e) => tried.push(format!("{host}: {e}")),
        }
    }
    Err(Error::Unreachable { whom: whom.into(), port: call.port, tried: tried.join("; ") })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::listener::CallbackListener;

    /// What comes of a call to somebody who does `answer`.
    fn called(secret: Option<SharedSecret>, answer: impl FnOnce(TcpStream) + Send + 'static) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let other = std::thread::spawn(move || answer(listener.accept().expect("a caller").0));
        let call = Call { hosts: vec!["127.0.0.1".into()], port, secret, word: String::new() };
        let why = dial(&call, "n1", "the head").expect_err("nobody who knows the secret");
        other.join().expect("it ends");
        why
    }

    #[test]
    fn whom_one_has_called_proves_it_or_is_not_talked_to() {
        let secret = || Some(SharedSecret::generate().expect("random bytes"));
        let hello = |socket: &mut TcpStream| socket.read_exact(&mut [0; HELLO]).expect("a hello");
        let silent = called(secret(), move |mut socket| hello(&mut socket));
        assert!(matches!(&silent, Error::NoAnswer { whom, .. } if whom == "the head"), "{silent:?}");
        assert_eq!(silent.hint(), "have the same version installed on all hosts");
        let lies = called(secret(), move |mut socket| {
            hello(&mut socket);
            socket.write_all(&[7; HELLO]).expect("answered");
            // A name is said only to one who has proved it.
            assert_eq!(socket.read(&mut [0]).expect("hung up"), 0);
        });
        let not_proven = HandshakeError::NotProven;
        assert!(matches!(&lies, Error::Handshake { why, .. } if *why == not_proven), "{lies:?}");
        let none = called(None, drop);
        assert!(matches!(none, Error::Handshake { why: HandshakeError::NotASecret, .. }), "{none:?}");
    }

    #[test]
    fn where_nobody_is_all_that_was_tried_is_told() {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let hosts = vec!["127.0.0.1".into(), "no such name".into()];
        let call = Call { hosts, port: free.port(), secret: None, word: String::new() };
        let why = dial(&call, "n1", "the head").expect_err("nobody is there");
        let Error::Unreachable { port, tried, .. } = &why else { panic!("{why:?}") };
        assert_eq!(*port, free.port());
        assert!(tried.starts_with("127.0.0.1: ") && tried.contains("; no such name: "), "{tried}");
    }

    #[test]
    fn a_call_is_read_whole_or_not_at_all() {
        let path = std::env::temp_dir().join(format!("skiff-callback.{}", std::process::id()));
        let listener = CallbackListener::open().expect("a port");
        let call = listener.call(vec!["n1".into()]).expect("a call");
        let text = serde_json::to_string(&call).expect("JSON");
        let long = format!("{}{text}", " ".repeat(64 << 10));
        for (text, is_call) in [(text.as_str(), true), (&text[1..], false), ("", false), (&long, false)] {
            std::fs::write(&path, text).expect("written");
            match read(&path) {
                Ok(read) => assert!(is_call && read == call, "{text:.80}"),
                Err(why) => assert!(!is_call && matches!(why, Error::InvalidCall { .. }), "{why:?}"),
            }
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(matches!(read(&path), Err(Error::System { .. })));
    }
}
