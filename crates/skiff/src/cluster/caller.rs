//! An agent that was started without a way to talk: it calls the head, and from then on talks as all others do, by its standard
//! input and output.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use skiff_launch::handshake::{Call, HELLO, HandshakeError, Initiator, SharedSecret};
use skiff_launch::hosts;
use skiff_launch::launcher;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::process::inherited_fd;

/// How long each of the head's addresses is tried, and how long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// srun tells its tasks where it was started, which is where the head is.
const FROM: &str = "SLURM_LAUNCH_NODE_IPADDR";

/// By what name Slurm knows this host, whatever that calls itself.
const NAME: &str = "SLURMD_NODENAME";

/// Calls back; the secret by which the two know each other.
pub fn call(from: &Path) -> Result<Option<SharedSecret>> {
    let call = read(from)?;
    let own = hosts::own_name().context(|| "name of this host")?;
    let name = std::env::var(NAME).unwrap_or(own);
    call_as(&name, &call)?;
    Ok(call.secret)
}

/// The secret, if there is one, for the program that goes on in this process: in a pipe, whose number is no secret.
pub fn hand_on(secret: Option<&SharedSecret>) -> Result<OwnedFd> {
    let about = || "pipe to oneself";
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
    // So few bytes always fit.
    let text = secret.map(SharedSecret::to_hex).unwrap_or_default();
    rustix::io::write(&write, text.as_bytes()).context(about)?;
    Ok(read)
}

/// Takes what was handed on like that.
pub fn take_over(number: i32) -> Result<Option<SharedSecret>> {
    let mut secret = String::new();
    inherited_fd(number)
        .and_then(|pipe| File::from(pipe).read_to_string(&mut secret))
        .context(|| format!("descriptor {number}"))?;
    let secret = Some(secret).filter(|text| !text.is_empty()).map(|text| text.parse()).transpose()?;
    Ok(secret)
}

/// Calls as somebody of this name.
pub fn call_as(name: &str, call: &Call) -> Result<()> {
    let whom = "the cluster's head";
    let socket = dial(call, name, whom)?;
    dup2_stdin(&socket).and_then(|()| dup2_stdout(&socket)).context(|| whom)
}

/// A connection to `whom`, who has said how to call back; `name` says what it is for.
pub fn dial(call: &Call, name: &str, whom: &str) -> Result<OwnedFd> {
    let about = || whom.to_owned();
    let mut socket = connect(call, whom)?;
    socket.set_nodelay(true).context(about)?;
    socket.set_read_timeout(Some(PATIENCE)).context(about)?;
    prove(&mut socket, call, name).map_err(|e| e.about(whom))?;
    socket.set_read_timeout(None).context(about)?;
    let socket = OwnedFd::from(socket);
    launcher::keep_alive(&socket).context(about)?;
    Ok(socket)
}

/// Has both sides prove that they know the call's secret.
fn prove(socket: &mut TcpStream, call: &Call, name: &str) -> Result<()> {
    let secret = call.secret.as_ref().ok_or(HandshakeError::NotASecret)?;
    let (initiator, hello) = Initiator::begin(secret, &call.word)?;
    let mut answer = [0; HELLO];
    socket.write_all(&hello).and_then(|()| socket.read_exact(&mut answer)).map_err(|e| {
        // A head of another version hangs up, or waits for more.
        Error::new(format!("no answer ({e})")).hint("have the same version installed on all hosts")
    })?;
    let proof = initiator.prove(&answer, name)?;
    socket.write_all(&proof).context(|| "connection")
}

/// How to call back, from a file or the standard input (`-`).
pub fn read(from: &Path) -> Result<Call> {
    let about = || format!("how to call back ({})", from.display());
    let text = match from.to_str() {
        Some("-") => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).context(about)?;
            line
        }
        _ => std::fs::read_to_string(from).context(about)?,
    };
    let mut call: Call = skiff_ipc::from_json(text.as_bytes()).map_err(|e| Error::from(e).about(&about()))?;
    call.hosts.splice(..0, std::env::var(FROM));
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
    Err(Error::new(format!("{whom} cannot be reached at port {} ({})", call.port, tried.join("; ")))
        .hint("a firewall? the hosts must be able to connect to the one that has called on them"))
}
