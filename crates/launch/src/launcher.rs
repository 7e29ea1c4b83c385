//! The processes that start the agents, and the door by which agents come that call back.

use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::signal::{Mask, start_with};

use crate::channel::Channel;
use crate::handshake::{Call, HELLO, PROOF, Responder, SharedSecret};
use crate::manager::{Launch, Way};

/// So much of what a launcher says is kept for the case that it fails.
const KEPT: usize = 4096;

/// What launchers say that is no reason for anything.
const NOISE: [&str; 1] = ["lacks support for cpu binding"];

/// How long a stranger at the door has to prove that they are none.
const AT_THE_DOOR: Duration = Duration::from_secs(10);

/// So many may be there at once.
const MOST_AT_THE_DOOR: usize = 256;

/// A process that starts agents.
pub struct Launcher {
    /// Program of the launcher.
    pub program: String,
    child: std::process::Child,
    /// A handle of it.
    pub pidfd: OwnedFd,
    /// What it and its agents say; nothing when they have closed it.
    pub errors: Option<OwnedFd>,
    /// The last of that.
    pub said: Vec<u8>,
    /// For which hosts it is.
    pub hosts: Vec<usize>,
    /// Whether it has ended.
    pub ended: bool,
}

impl Launcher {
    /// Starts it. The second is the talk with the agent, where that goes by pipes.
    ///
    /// # Errors
    /// When there is no such program, above all.
    pub fn start(launch: &Launch, call: &Call) -> Result<(Self, Option<Channel>)> {
        let (program, words) = launch.argv.split_first().ok_or_else(|| Fault::new("nothing to start"))?;
        let about = || program.display().to_string();
        let mut command = Command::new(program);
        command.args(words).stderr(Stdio::piped());
        // A key on the terminal is for the script; what it does to us is for us to decide.
        command.process_group(0);
        // It must hear when it is told to end.
        start_with(&mut command, Mask::from_bits(0));
        for name in &launch.without {
            command.env_remove(name);
        }
        match launch.way {
            Way::Pipes => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
            Way::CallBack => command.stdin(Stdio::piped()).stdout(Stdio::null()),
            Way::CallBackByFile => command.stdin(Stdio::null()).stdout(Stdio::null()),
        };
        let mut child = command.spawn().context(about).map_err(|e| {
            e.hint("the manager's own commands must be in your PATH on the host where the cluster is started")
        })?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Fault::new(format!("{}: no process", about())))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).context(about)?;
        let channel = match (launch.way, child.stdin.take(), child.stdout.take()) {
            (Way::Pipes, Some(to), Some(from)) => Some(Channel::new(from.into(), to.into()).context(about)?),
            (Way::CallBack, Some(mut to), _) => {
                let text =
                    serde_json::to_string(call).map_err(|e| Fault::new(format!("{}: {e}", about())))?;
                // If it does not read it, it has ended, which shows soon.
                writeln!(to, "{text}").unwrap_or_default();
                None
            }
            _ => None,
        };
        let errors = child.stderr.take().map(OwnedFd::from);
        let hosts = launch.hosts.clone();
        let program = about();
        Ok((Self { program, child, pidfd, errors, said: vec![], hosts, ended: false }, channel))
    }

    /// To wait for its end, if that has not come.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        (!self.ended).then_some(self.pidfd.as_fd())
    }

    /// To wait until it says something.
    pub fn words(&self) -> Option<BorrowedFd<'_>> {
        self.errors.as_ref().map(AsFd::as_fd)
    }

    /// What it has said before matters no more.
    pub fn forget(&mut self) {
        self.said.clear();
    }

    /// Reads what it says, when there is something.
    pub fn hear(&mut self) -> Vec<u8> {
        let Some(errors) = &self.errors else { return vec![] };
        let mut buffer = [0; 4096];
        match rustix::io::read(errors, &mut buffer) {
            Ok(0) | Err(_) => {
                self.errors = None;
                vec![]
            }
            Ok(n) => {
                self.said.extend(&buffer[..n]);
                let old = self.said.len().saturating_sub(KEPT);
                self.said.drain(..old);
                buffer[..n].to_vec()
            }
        }
    }

    /// Takes its exit status; what of that is worth saying.
    pub fn bury(&mut self) -> String {
        self.ended = true;
        self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }

    /// Tells it to end.
    pub fn terminate(&self) {
        if !self.ended {
            // It may have ended by itself.
            pidfd_send_signal(&self.pidfd, Signal::TERM).unwrap_or_default();
        }
    }

    /// Waits for its end, but no longer than that.
    pub fn wait_until(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        // Interrupted or late, it is ended by force.
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit)).map(drop).unwrap_or_default();
    }

    /// Ends it by force.
    pub fn kill(&mut self) {
        if !self.ended {
            // It may have ended by itself.
            self.child.kill().unwrap_or_default();
            self.bury();
        }
    }

    /// Lets it go on by itself.
    pub fn leave(mut self) {
        self.ended = true;
    }

    /// The last that it said, as one line.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.said);
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !NOISE.iter().any(|noise| line.contains(noise)));
        let lines: Vec<&str> = lines.collect();
        lines[lines.len().saturating_sub(6)..].join("; ")
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where agents come that call back. Anyone can knock; only who knows the secret is let in.
pub struct Door {
    listener: TcpListener,
    secret: SharedSecret,
    word: String,
    waiting: Vec<Guest>,
}

/// Somebody at the door.
struct Guest {
    socket: OwnedFd,
    since: Instant,
    /// What has come of the next message.
    received: Vec<u8>,
    /// Our side, once there was a hello.
    responder: Option<Responder>,
}

/// What becomes of somebody at the door.
enum Verdict {
    /// There is more to come.
    More,
    /// An agent of ours, on a host of this name.
    Ours(String),
    /// Not an agent of ours.
    Stranger,
}

impl Door {
    /// Opens it.
    ///
    /// # Errors
    /// When no port is free.
    pub fn open() -> Result<Self> {
        Self::open_to(SharedSecret::generate()?, "")
    }

    /// Opens it to those who know this secret, and are told this word.
    ///
    /// # Errors
    /// As above.
    pub fn open_to(secret: SharedSecret, word: &str) -> Result<Self> {
        let about = || "port for the hosts to call back";
        // Of both kinds of addresses, where the kernel has both.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = TcpListener::bind(any).or_else(|_| TcpListener::bind("0.0.0.0:0")).context(about)?;
        listener.set_nonblocking(true).context(about)?;
        Ok(Self { listener, secret, word: word.into(), waiting: vec![] })
    }

    /// What agents need to find it, on a host of these names and addresses.
    ///
    /// # Errors
    /// None that happens to a socket that listens.
    pub fn call(&self, hosts: Vec<String>) -> Result<Call> {
        let address = self.listener.local_addr().context(|| "port for the hosts to call back")?;
        let (secret, word) = (Some(self.secret.clone()), self.word.clone());
        Ok(Call { hosts, port: address.port(), secret, word })
    }

    /// What to wait for: the door and all who stand at it.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.waiting.iter().map(|guest| guest.socket.as_fd()))
    }

    /// Serves whoever is there; those who have proved to be ours, with the names of their hosts.
    pub fn serve(&mut self) -> Vec<(String, Channel)> {
        self.waiting.retain(|guest| guest.since.elapsed() < AT_THE_DOOR);
        while let Ok((socket, _)) = self.listener.accept() {
            if self.waiting.len() < MOST_AT_THE_DOOR && socket.set_nonblocking(true).is_ok() {
                let guest =
                    Guest { socket: socket.into(), since: Instant::now(), received: vec![], responder: None };
                self.waiting.push(guest);
            }
        }
        let mut ours = vec![];
        for mut guest in std::mem::take(&mut self.waiting) {
            match guest.serve(&self.secret, &self.word) {
                Verdict::More => self.waiting.push(guest),
                Verdict::Stranger => {}
                Verdict::Ours(name) => ours.extend(guest.come_in().map(|channel| (name, channel))),
            }
        }
        ours
    }
}

impl Guest {
    fn serve(&mut self, secret: &SharedSecret, word: &str) -> Verdict {
        // Not a byte more than belongs to the handshake: what follows is the channel's.
        let wanted = if self.responder.is_none() { HELLO } else { PROOF };
        let mut buffer = [0; PROOF];
        match rustix::io::read(&self.socket, &mut buffer[..wanted - self.received.len()]) {
            Ok(0) => return Verdict::Stranger,
            Ok(n) => self.received.extend(&buffer[..n]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Verdict::More,
            Err(_) => return Verdict::Stranger,
        }
        if self.received.len() < wanted {
            return Verdict::More;
        }
        let message = std::mem::take(&mut self.received);
        let Some(responder) = self.responder.take() else { return self.answer(secret, word, &message) };
        responder.name(&message).map_or(Verdict::Stranger, Verdict::Ours)
    }

    fn answer(&mut self, secret: &SharedSecret, word: &str, hello: &[u8]) -> Verdict {
        let Ok((responder, answer)) = Responder::begin(secret, word, hello) else { return Verdict::Stranger };
        self.responder = Some(responder);
        // So few bytes always go at once, unless nobody is there any more.
        match rustix::io::write(&self.socket, &answer) {
            Ok(n) if n == answer.len() => Verdict::More,
            _ => Verdict::Stranger,
        }
    }

    fn come_in(self) -> Option<Channel> {
        keep_alive(&self.socket).ok()?;
        let output = self.socket.try_clone().ok()?;
        Channel::new(self.socket, output).ok()
    }
}

/// Has the kernel find out within half a minute that the other side's host is gone.
///
/// # Errors
/// When it is no TCP socket.
pub fn keep_alive(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    sockopt::set_tcp_user_timeout(socket, 25_000)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::handshake::Initiator;

    /// Lets everybody in who has come until somebody has, or the door has nobody left.
    fn serve(door: &mut Door) -> Vec<(String, Channel)> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let ours = door.serve();
            if !ours.is_empty() || door.waiting.is_empty() || Instant::now() > until {
                return ours;
            }
        }
    }

    #[test]
    fn agents_come_in_byte_by_byte_and_strangers_do_not() {
        let secret = SharedSecret::generate().expect("random bytes");
        let mut door = Door::open_to(secret.clone(), "w").expect("a port");
        let port = door.call(vec![]).expect("a call").port;
        let knock = || TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let other = SharedSecret::generate().expect("random bytes");
        for (known, word) in [(&other, "w"), (&secret, "another")] {
            let (_, hello) = Initiator::begin(known, word).expect("begun");
            let mut stranger = knock();
            stranger.write_all(&hello).expect("sent");
            stranger.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
            let hung_up = (0..500).any(|_| {
                assert!(door.serve().is_empty());
                stranger.read(&mut [0]).is_ok_and(|n| n == 0)
            });
            assert!(hung_up);
        }
        let (initiator, hello) = Initiator::begin(&secret, "w").expect("begun");
        let mut agent = knock();
        agent.set_nodelay(true).expect("set");
        for byte in hello {
            agent.write_all(&[byte]).expect("sent");
            assert!(door.serve().is_empty());
        }
        while door.waiting.iter().all(|guest| guest.responder.is_none()) {
            assert!(door.serve().is_empty());
        }
        let mut answer = [0; HELLO];
        agent.read_exact(&mut answer).expect("answered");
        let proof = initiator.prove(&answer, "n1").expect("proven");
        agent.write_all(&[&proof[..], b"what follows"].concat()).expect("sent");
        let [(name, mut channel)] = serve(&mut door).try_into().ok().expect("one agent");
        assert_eq!(name, "n1");
        // Nothing of what follows was taken for the handshake's.
        assert!(channel.receive());
        let strange = channel.take::<Call>().expect_err("no talk of ours").message;
        assert!(strange.contains("what follows"), "{strange}");
    }
}
