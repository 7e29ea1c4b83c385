//! `skiff agent`, root's on each machine: starts receivers for users who prove by a credential of munge's who they are, where there is
//! neither ssh nor a job between the machines. It reads that credential and nothing else: what is in it goes to the receiver, a process of
//! the user's, which setpriv makes.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{WaitOptions, getuid, wait};
use skiff_sandbox::{Context as _, Error, Result};
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exit_now, fork};

use crate::context::Context;
use crate::output;

/// How long somebody may take to say who he is.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long whom we refuse may take to hear it.
const FAREWELL: Duration = Duration::from_secs(1);
/// No credential of ours is longer.
const LONGEST: usize = 16 << 10;
/// How many may be at it at once.
const MOST: usize = 64;
/// How many receivers a user may have at once.
const MOST_EACH: u32 = 16;
/// Where those have their locks.
const PLACES: &str = "/run/skiff/agent";
/// What root runs is not looked for where others may have put it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Serves until it is ended.
pub fn serve(context: &Context) -> Result<i32> {
    if !getuid().is_root() {
        return Err(Error::new("the agent starts programs as whoever asks for it: only root can do that")
            .hint("systemctl enable --now skiff-agent; users need no agent of their own where they have ssh or a job"));
    }
    let port = context.config.migrate.port;
    if port == 0 {
        return Err(Error::new("the configuration names no port for agents")
            .hint("[migrate] port = 7790 in /etc/skiff/config.toml, the same on all machines"));
    }
    let about = || format!("port {port}");
    let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let any = any.map(|ip| SocketAddr::new(ip, port));
    let listener = TcpListener::bind(&any[..]).context(about)?;
    output::note(&format!("waiting for users at port {port}"));
    let mut busy = 0;
    loop {
        let visitor = listener.accept();
        while busy > 0
            && matches!(
                wait(if busy < MOST { WaitOptions::NOHANG } else { WaitOptions::empty() }),
                Ok(Some(_))
            )
        {
            busy -= 1;
        }
        let Ok((visitor, from)) = visitor else { continue };
        match fork(CloneFlags::NONE).context(|| "process for a visitor")? {
            Fork::Parent(_) => busy += 1,
            Fork::Child => {
                close_all_except(&[visitor.as_fd()]);
                exit_now(attend(visitor, from));
            }
        }
    }
}

/// In a process of its own: starts the receiver, or says why not.
fn attend(mut visitor: TcpStream, from: SocketAddr) -> i32 {
    let Err(why) = receive(&visitor) else { return 0 };
    // To root's journal, and to him, if he is still there.
    output::note(&format!("{}: {why}", from.ip()));
    visitor.write_all(format!("{why}\n").as_bytes()).unwrap_or_default();
    hang_up(&visitor);
    1
}

/// To close with words of his unread would be a reset, which takes from him the answer that he has not read yet. But he is waited for
/// no longer than that takes: others want to be attended to.
fn hang_up(mut visitor: &TcpStream) {
    let until = Instant::now() + FAREWELL;
    // Whatever fails here: he has gone, and there is nobody to tell.
    visitor.shutdown(Shutdown::Write).unwrap_or_default();
    let mut rest = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero()
            || visitor.set_read_timeout(Some(left)).is_err()
            || !matches!(visitor.read(&mut rest), Ok(n) if n > 0)
        {
            return;
        }
    }
}

/// The receiver is nobody's child: whoever is being looked at takes one of few places, and it may be at it for long.
fn receive(visitor: &TcpStream) -> Result<()> {
    let user = Visitor::known_by(&credential(visitor)?)?;
    let place = place(user.uid)?;
    let exe = std::env::current_exe().context(|| "own program")?;
    let errors = OwnedFd::from(visitor.try_clone().context(|| "visitor")?);
    let (input, mut call) = std::io::pipe().context(|| "pipe")?;
    // So few bytes always go at once.
    call.write_all(&user.call).context(|| "pipe")?;
    drop(call);
    // It is the receiver's until its end.
    fcntl_setfd(&place, FdFlags::empty()).context(|| "place")?;
    let started = Command::new("setpriv")
        .arg(format!("--reuid={}", user.uid))
        .arg(format!("--regid={}", user.gid))
        .args(["--init-groups", "--inh-caps=-all", "--ambient-caps=-all", "--reset-env", "--"])
        .arg(exe)
        .arg("migrate-receive")
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(errors)
        .process_group(0)
        .spawn();
    started.map(drop).context(|| "setpriv")
}

/// One of the user's places, which is his as long as anybody has it open.
fn place(uid: u32) -> Result<OwnedFd> {
    fs::create_dir_all(PLACES)
        .and_then(|()| fs::set_permissions(PLACES, Permissions::from_mode(0o700)))
        .context(|| PLACES)?;
    for number in 0..MOST_EACH {
        let path = format!("{PLACES}/{uid}.{number}");
        // Nothing can be written by whoever has it then.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(CWD, &path, flags, Mode::from_raw_mode(0o600)).context(|| path.clone())?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::AGAIN) => {}
            Err(e) => return Err(e).context(|| path),
        }
    }
    Err(Error::new(format!("{MOST_EACH} instances of yours are on their way to this machine already"))
        .hint("wait until one has come"))
}

/// What he has to show: one line.
fn credential(mut visitor: &TcpStream) -> Result<Vec<u8>> {
    let about = || "credential";
    let until = Instant::now() + PATIENCE;
    let (mut line, mut buffer) = (vec![], [0; 4096]);
    while line.len() < LONGEST {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        visitor.set_read_timeout(Some(left)).context(about)?;
        let n = visitor.read(&mut buffer).context(about)?;
        line.extend(&buffer[..n]);
        if n == 0 || Instant::now() >= until {
            break;
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
    }
    Err(Error::new("credential: it is not whole"))
}

/// Who has shown a credential, and what is in it.
#[derive(Debug, PartialEq, Eq)]
struct Visitor {
    uid: u32,
    gid: u32,
    /// How to call him back, for the receiver.
    call: Vec<u8>,
}

impl Visitor {
    fn known_by(credential: &[u8]) -> Result<Self> {
        let mut unmunge = Command::new("unmunge")
            .args(["--numeric", "--keys=UID,GID"])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(|| "unmunge")?;
        if let Some(mut input) = unmunge.stdin.take() {
            // If it does not read all of it, it says why.
            input.write_all(credential).unwrap_or_default();
        }
        let told = unmunge.wait_with_output().context(|| "unmunge")?;
        if !told.status.success() {
            let why = String::from_utf8_lossy(&told.stderr);
            let why = why.lines().next().unwrap_or("it does not say why").trim();
            return Err(Error::new(format!("munge does not accept the credential: {why}"))
                .hint("the machines need munge's one key and clocks that agree"));
        }
        let visitor = Self::parse(&told.stdout);
        let visitor = visitor.ok_or_else(|| Error::new("unmunge: it says what is not understood"))?;
        if visitor.uid == 0 || visitor.gid == 0 {
            return Err(Error::new("root gets no receiver"));
        }
        Ok(visitor)
    }

    /// What unmunge prints: lines `KEY: value`, an empty one, and what was in the credential.
    fn parse(told: &[u8]) -> Option<Self> {
        let end = told.windows(2).position(|two| two == b"\n\n")?;
        let head = std::str::from_utf8(&told[..end]).ok()?;
        let value = |key: &str| {
            let mut values = head.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let value = values.next()?.trim().parse().ok()?;
            values.next().is_none().then_some(value)
        };
        Some(Self { uid: value("UID")?, gid: value("GID")?, call: told[end + 2..].to_vec() })
    }
}

/// `skiff agent-call`: a launcher, as ssh and srun are. What is said to it goes to the agent of another machine, sealed by munge so that only
/// root can open it there; what that says comes out again.
pub fn call(node: &str, port: u16) -> Result<i32> {
    let about = || format!("the agent of {node} at port {port}");
    let mut munge = Command::new("munge");
    munge.args(["--restrict-uid=0", "--ttl=60"]).stdin(Stdio::inherit()).stderr(Stdio::inherit());
    let sealed = munge.output().context(|| "munge")?;
    if !sealed.status.success() {
        return Err(Error::new(format!("munge: {}", sealed.status)).hint("does munged run on this machine?"));
    }
    let addresses = std::net::ToSocketAddrs::to_socket_addrs(&(node, port)).context(about)?;
    let mut last = Error::new(format!("{}: its name has no address", about()));
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE).context(about) {
            Ok(mut agent) => {
                agent.write_all(&sealed.stdout).context(about)?;
                std::io::copy(&mut agent, &mut std::io::stderr()).context(about)?;
                return Ok(0);
            }
            Err(e) => last = e.hint("does skiff-agent run there, with the same port in its configuration?"),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_it_is_munge_says_and_nobody_else() {
        let visitor = |uid, gid, call: &[u8]| Some(Visitor { uid, gid, call: call.to_vec() });
        for (told, want) in [
            (&b"UID:              1000\nGID:              1001\n\n{}\n"[..], visitor(1000, 1001, b"{}\n")),
            (b"UID: 7\nGID: 8\n\nUID: 0\n\n", visitor(7, 8, b"UID: 0\n\n")),
            (b"UID: 7\nUID: 0\nGID: 8\n\n", None),
            (b"UID: 7\n\nGID: 8\n\n", None),
            (b"UID: -1\nGID: 8\n\n", None),
            (b"UID: 7\nGID: 8\n", None),
            (b"", None),
        ] {
            assert_eq!(Visitor::parse(told), want, "{}", String::from_utf8_lossy(told));
        }
    }
}
