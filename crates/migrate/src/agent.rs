//! `skiff agent`, root's on each host: starts receivers for users who prove by a credential of munge's who they are, where there is
//! neither ssh nor a job between the hosts. It reads that credential and nothing else: what is in it goes to the receiver, a process of
//! the user's, in a session of PAM's as a login has one.

mod account;
mod call;
mod munge;
pub mod request;
mod visitors;

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use account::TargetAccount;
pub use call::call;
use rustix::event::PollFlags;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::getuid;
use skiff_output as output;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_sys::lock;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};
use skiff_user::context::UserContext;

use crate::peer::wait;
use munge::{MungeCredential, Opening};
use visitors::AgentConnections;

/// What whom there is no room for hears; they come back.
const BUSY: &str = "the agent is busy";
/// How many receivers a user may have at once.
const MOST_EACH: u32 = 16;
/// Where those have their locks.
const PLACES: &str = "/run/skiff/agent";
/// So many connections the kernel takes while we look at one.
const BACKLOG: i32 = 1024;
/// How many are taken before those who are here are looked at again,
const AT_ONCE: usize = 32;
/// and none as long as so many wait for munged.
const ENOUGH: usize = 32;
/// What PAM knows the agent's sessions as, and where that must be.
const SERVICE: &str = "skiff";
const SERVICES: [&str; 2] = ["/etc/pam.d/skiff", "/usr/lib/pam.d/skiff"];
/// There while systemd is process 1: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// What root runs is not looked for where others may have put it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Serves until it is ended.
pub fn serve(context: &UserContext) -> Result<i32> {
    if !getuid().is_root() {
        return Err(Error::new("the agent starts programs as whoever asks for it: only root can do that")
            .hint("systemctl enable --now skiff-agent; users need no agent of their own where they have ssh or a job"));
    }
    let port = context.config.migrate.port;
    if port == 0 {
        return Err(Error::new("the configuration names no port for agents")
            .hint("put [migrate] and port = 7790 in /etc/skiff/conf.d/agent.toml, the same on all hosts"));
    }
    if is_systemd() && !SERVICES.iter().any(|path| Path::new(path).exists()) {
        return Err(Error::new(format!("{}: not there, so PAM would refuse everybody", SERVICES[0]))
            .hint("cp /usr/local/share/doc/skiff/pam-skiff /etc/pam.d/skiff (/usr/local: the prefix of your installation), and adapt it to the site"));
    }
    let listener = listen(port).context(|| format!("port {port}"))?;
    output::note(&format!("waiting for users at port {port}"));
    let mut visitors = AgentConnections::default();
    loop {
        let ready = {
            let visitors_fds = visitors.descriptors().map(|fd| (fd, PollFlags::IN));
            // Those whom munged is not asked about yet would only be turned away by more of them; the kernel keeps the order.
            let others = if visitors.ready() < ENOUGH { PollFlags::IN } else { PollFlags::empty() };
            let fds: Vec<_> = std::iter::once((listener.as_fd(), others)).chain(visitors_fds).collect();
            wait(&fds, visitors.next_deadline(Instant::now()))?
        };
        let ready: Vec<bool> = ready.into_iter().map(|ready| !ready.is_empty()).collect();
        visitors.go_on(&ready[1..], Instant::now());
        if ready[0] {
            accept(&listener, &mut visitors);
        }
        visitors.attend(Instant::now(), Opening::begin, start);
        visitors.tell_refusals(Instant::now());
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

fn accept(listener: &TcpListener, visitors: &mut AgentConnections) {
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

/// A process that starts a receiver; none if there cannot be one now.
fn start(visitor: &TcpStream, source: IpAddr, credential: &MungeCredential) -> Option<Child> {
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
fn attend(mut visitor: &TcpStream, source: IpAddr, credential: &MungeCredential) -> i32 {
    let Err(why) = receive(visitor, credential) else { return 0 };
    // To root's journal, and to the user, if they are still there.
    output::note(&format!("{source}: {why}"));
    visitor.write_all(format!("{why}\n").as_bytes()).ignore_error("if they have gone, the journal has it");
    1
}

/// The receiver is nobody's child: whoever is being looked at takes one of few places, and it may be at it for long.
fn receive(visitor: &TcpStream, credential: &MungeCredential) -> Result<()> {
    if credential.uid == 0 {
        return Err(Error::new("root gets no receiver"));
    }
    let here = host_name();
    let reached_at = visitor.local_addr().context(|| "visitor")?.ip();
    let words = request::call_for(&credential.payload, &here, reached_at)?;
    let account = TargetAccount::fit(credential.uid)?;
    let place = place(credential.uid)?;
    let exe = std::env::current_exe().context(|| "own program")?;
    // The receiver's standard error.
    visitor.set_nonblocking(false).context(|| "visitor")?;
    let errors = OwnedFd::from(visitor.try_clone().context(|| "visitor")?);
    let (input, mut call) = std::io::pipe().context(|| "pipe")?;
    // So few bytes always go at once.
    call.write_all(&words).context(|| "pipe")?;
    drop(call);
    // It is whoever waits for the receiver's until the end.
    fcntl_setfd(&place, FdFlags::empty()).context(|| "place")?;
    let session = session(&account, is_systemd());
    let started = Command::new(&session[0])
        .args(&session[1..])
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
    started.map(drop).context(|| session[0].clone())
}

fn is_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// What runs the words behind it as a user, with PAM's word on the account and a session of PAM's. Only systemd can be told which service of PAM's
/// that is; `su` has its own. The user's slice has the limits that the site has for the user's other sessions.
fn session(account: &TargetAccount, by_systemd: bool) -> Vec<String> {
    let TargetAccount { name, uid, .. } = account;
    if by_systemd {
        vec![
            "systemd-run".into(),
            "--collect".into(),
            "--pipe".into(),
            "--wait".into(),
            // With `exec` and a session of PAM's systemd 252 takes the start for unfinished, and ends it after 90 s.
            "--service-type=simple".into(),
            format!("--description=Receiver of skiff for {name}"),
            format!("--uid={name}"),
            format!("--slice=user-{uid}.slice"),
            format!("--property=PAMName={SERVICE}"),
            // What has come goes on when the receiver has done its work. (With a session of PAM's systemd refuses KillMode=process.)
            "--property=KillMode=mixed".into(),
            "--property=SendSIGKILL=no".into(),
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
        Error::new(format!("{MOST_EACH} instances of yours are on their way to this host already"))
            .hint("wait until one has come")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_of_the_users_account() {
        let account = TargetAccount::named("bob", 1001);
        let by_systemd = session(&account, true);
        for word in ["--uid=bob", "--slice=user-1001.slice", "--property=PAMName=skiff"] {
            assert!(by_systemd.iter().any(|other| other == word), "{by_systemd:?}");
        }
        assert_eq!(by_systemd.last().map(String::as_str), Some("--"));
        assert_eq!(session(&account, false)[3..], ["--", "bob"]);
    }
}
