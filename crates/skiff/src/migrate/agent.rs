//! `skiff agent`, root's on each machine: starts receivers for users who prove by a credential of munge's who they are, where there is
//! neither ssh nor a job between the machines. It reads that credential and nothing else: what is in it goes to the receiver, a process of
//! the user's, in a session of PAM's as a login has one.

mod account;
mod visitors;

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use account::Account;
use rustix::event::PollFlags;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::getuid;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_sys::lock;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};
use visitors::Visitors;

use super::peer::wait;
use crate::context::Context;
use crate::output;

/// How long the agent of another machine may take to be reached.
const PATIENCE: Duration = Duration::from_secs(10);
/// What whom there is no room for hears, for how long they come back, and how often.
const BUSY: &str = "the agent is busy";
const PERSISTENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// How many receivers a user may have at once.
const MOST_EACH: u32 = 16;
/// Where those have their locks.
const PLACES: &str = "/run/skiff/agent";
/// How long munged may take, in seconds.
const MUNGE: &str = "5";
/// So many connections the kernel takes while we look at one.
const BACKLOG: i32 = 1024;
/// How many are taken before those who are here are looked at again.
const AT_ONCE: usize = 64;
/// What PAM knows the agent's sessions as, and where that must be.
const SERVICE: &str = "skiff";
const SERVICES: [&str; 2] = ["/etc/pam.d/skiff", "/usr/lib/pam.d/skiff"];
/// There while systemd is process 1: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
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
    if is_systemd() && !SERVICES.iter().any(|path| Path::new(path).exists()) {
        return Err(Error::new(format!("{}: not there, so PAM would refuse everybody", SERVICES[0]))
            .hint("cp share/doc/skiff/pam-skiff /etc/pam.d/skiff, and look whether it suits this machine"));
    }
    let listener = listen(port).context(|| format!("port {port}"))?;
    output::note(&format!("waiting for users at port {port}"));
    let mut visitors = Visitors::default();
    loop {
        let ready = {
            let visitors_fds = visitors.descriptors().map(|fd| (fd, PollFlags::IN));
            let fds: Vec<_> =
                std::iter::once((listener.as_fd(), PollFlags::IN)).chain(visitors_fds).collect();
            wait(&fds, visitors.next_deadline(Instant::now()))?
        };
        let ready: Vec<bool> = ready.into_iter().map(|ready| !ready.is_empty()).collect();
        visitors.go_on(&ready[1..], Instant::now());
        if ready[0] {
            accept(&listener, &mut visitors);
        }
        visitors.attend(Instant::now(), start);
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let listener = TcpListener::bind(&any.map(|ip| SocketAddr::new(ip, port))[..])?;
    // Whoever does not fit into a queue that a neighbour has filled is heard a second later.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn accept(listener: &TcpListener, visitors: &mut Visitors) {
    let turned_away = visitors.turned_away;
    for _ in 0..AT_ONCE {
        match listener.accept() {
            Ok((stream, from)) => visitors.add(stream, from.ip(), Instant::now()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            // It has gone, or there is no memory for it now.
            Err(e) => {
                output::note(&format!("a visitor: {e}"));
                std::thread::sleep(Duration::from_millis(10));
                break;
            }
        }
    }
    // At 1, 2, 4, 8 ..., since whoever floods us would else flood root's journal.
    let (before, now) = (turned_away.checked_ilog2(), visitors.turned_away.checked_ilog2());
    if before != now {
        output::note(&format!("{} visitors turned away so far: too many at once", visitors.turned_away));
    }
}

/// A process that looks at a credential; none if there cannot be one now.
fn start(visitor: &TcpStream, source: IpAddr, credential: &[u8]) -> Option<Child> {
    match fork(CloneFlags::NONE) {
        Ok(Fork::Parent(child)) => Some(child),
        Ok(Fork::Child) => {
            close_all_except(&[visitor.as_fd()]);
            exit_now(attend(visitor, source, credential));
        }
        Err(e) => {
            output::note(&format!("process for a visitor: {e}"));
            None
        }
    }
}

/// In a process of its own: starts the receiver, or says why not.
fn attend(mut visitor: &TcpStream, source: IpAddr, credential: &[u8]) -> i32 {
    let Err(why) = receive(visitor, credential) else { return 0 };
    // To root's journal, and to the user, if they are still there.
    output::note(&format!("{source}: {why}"));
    visitor.write_all(format!("{why}\n").as_bytes()).unwrap_or_default();
    1
}

/// The receiver is nobody's child: whoever is being looked at takes one of few places, and it may be at it for long.
fn receive(visitor: &TcpStream, credential: &[u8]) -> Result<()> {
    let user = Credential::open(credential)?;
    let account = Account::fit(user.uid)?;
    let place = place(user.uid)?;
    let exe = std::env::current_exe().context(|| "own program")?;
    // The receiver's standard error.
    visitor.set_nonblocking(false).context(|| "visitor")?;
    let errors = OwnedFd::from(visitor.try_clone().context(|| "visitor")?);
    let (input, mut call) = std::io::pipe().context(|| "pipe")?;
    // So few bytes always go at once.
    call.write_all(&user.call).context(|| "pipe")?;
    drop(call);
    // It is whoever waits for the receiver's until the end.
    fcntl_setfd(&place, FdFlags::empty()).context(|| "place")?;
    let words = session(&account, is_systemd());
    let started = Command::new(&words[0])
        .args(&words[1..])
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
    started.map(drop).context(|| words[0].clone())
}

fn is_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// What runs the words behind it as a user, with PAM's word on the account and a session of PAM's. Only systemd can be told which service of PAM's
/// that is; `su` has its own. The user's slice has the limits that the site has for the user's other sessions.
fn session(account: &Account, by_systemd: bool) -> Vec<String> {
    let Account { name, uid, .. } = account;
    if by_systemd {
        vec![
            "systemd-run".into(),
            "--quiet".into(),
            "--collect".into(),
            "--pipe".into(),
            "--wait".into(),
            "--service-type=exec".into(),
            format!("--description=Receiver of skiff for {name}"),
            format!("--uid={name}"),
            format!("--slice=user-{uid}.slice"),
            format!("--property=PAMName={SERVICE}"),
            // What has come goes on when the receiver has done its work.
            "--property=KillMode=process".into(),
            "--property=WorkingDirectory=/".into(),
            "--".into(),
        ]
    } else {
        // The user's own shell would read the user's files first.
        ["su", "--shell=/bin/sh", "--command=exec \"$0\" \"$@\"", "--", name].map(String::from).to_vec()
    }
}

/// One of the user's places, which is the user's as long as anybody has it open.
fn place(uid: u32) -> Result<OwnedFd> {
    fs::create_dir_all(PLACES)
        .and_then(|()| fs::set_permissions(PLACES, Permissions::from_mode(0o700)))
        .context(|| PLACES)?;
    let dir = fs::File::open(PLACES).context(|| PLACES)?;
    let place = lock::try_one_of(dir.as_fd(), &uid.to_string(), MOST_EACH).context(|| PLACES)?;
    place.ok_or_else(|| {
        Error::new(format!("{MOST_EACH} instances of yours are on their way to this machine already"))
            .hint("wait until one has come")
    })
}

/// Who has shown a credential, and what is in it.
#[derive(Debug, PartialEq, Eq)]
struct Credential {
    uid: u32,
    /// How to call him back, for the receiver.
    call: Vec<u8>,
}

impl Credential {
    fn open(sealed: &[u8]) -> Result<Self> {
        let mut unmunge = Command::new("timeout")
            .args(["--signal=KILL", MUNGE, "unmunge", "--numeric", "--keys=UID"])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(|| "unmunge")?;
        if let Some(mut input) = unmunge.stdin.take() {
            // If it does not read all of it, it says why.
            input.write_all(sealed).unwrap_or_default();
        }
        let told = unmunge.wait_with_output().context(|| "unmunge")?;
        if !told.status.success() {
            let why = String::from_utf8_lossy(&told.stderr);
            let why = why.lines().next().unwrap_or("it does not say why").trim();
            return Err(Error::new(format!("munge does not accept the credential: {why}"))
                .hint("the machines need munge's one key and clocks that agree"));
        }
        let opened = Self::parse(&told.stdout);
        let opened = opened.ok_or_else(|| Error::new("unmunge: it says what is not understood"))?;
        match opened.uid {
            0 => Err(Error::new("root gets no receiver")),
            _ => Ok(opened),
        }
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
        Some(Self { uid: value("UID")?, call: told[end + 2..].to_vec() })
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
    let mut heard = [0; 4096];
    let until = Instant::now() + PERSISTENCE;
    loop {
        let mut agent = connect(node, port)?;
        let answer = agent.write_all(&sealed.stdout).and_then(|()| agent.read(&mut heard));
        let is_busy = match &answer {
            Ok(n) => heard[..*n].starts_with(BUSY.as_bytes()),
            // Those words can be lost where it has not read ours.
            Err(e) => matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        };
        if is_busy && Instant::now() < until {
            std::thread::sleep(PAUSE);
            continue;
        }
        let n = answer.context(about)?;
        std::io::stderr().write_all(&heard[..n]).context(about)?;
        std::io::copy(&mut agent, &mut std::io::stderr()).context(about)?;
        return Ok(0);
    }
}

fn connect(node: &str, port: u16) -> Result<TcpStream> {
    let about = || format!("the agent of {node} at port {port}");
    let addresses = std::net::ToSocketAddrs::to_socket_addrs(&(node, port)).context(about)?;
    let mut last = Error::new(format!("{}: its name has no address", about()));
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE).context(about) {
            Ok(agent) => return Ok(agent),
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
        let credential = |uid, call: &[u8]| Some(Credential { uid, call: call.to_vec() });
        for (told, want) in [
            (&b"UID:              1000\n\n{}\n"[..], credential(1000, b"{}\n")),
            (b"UID: 7\n\nUID: 0\n\n", credential(7, b"UID: 0\n\n")),
            (b"UID: 7\nUID: 0\n\n", None),
            (b"GID: 7\n\nUID: 8\n\n", None),
            (b"UID: -1\n\n", None),
            (b"UID: 7\n", None),
            (b"", None),
        ] {
            assert_eq!(Credential::parse(told), want, "{}", String::from_utf8_lossy(told));
        }
    }

    #[test]
    fn a_session_is_of_the_users_account() {
        let account = Account::named("bob", 1001);
        let by_systemd = session(&account, true);
        for word in ["--uid=bob", "--slice=user-1001.slice", "--property=PAMName=skiff"] {
            assert!(by_systemd.iter().any(|other| other == word), "{by_systemd:?}");
        }
        assert_eq!(by_systemd.last().map(String::as_str), Some("--"));
        assert_eq!(session(&account, false)[3..], ["--", "bob"]);
    }
}
