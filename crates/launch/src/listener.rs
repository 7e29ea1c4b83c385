//! Where programs on other hosts call back, each of which proves that it knows the secret of the one who had it started.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::channel::Channel;
use crate::error::{Error, OfSystem as _, Result};
use crate::handshake::{Call, HELLO, PROOF, Responder, SharedSecret};
use crate::launcher::Launcher;

/// How long a caller has to prove that it knows the secret.
const PROVING: Duration = Duration::from_secs(10);

/// So many callers may be at that at once.
const MOST_PROVING: usize = 256;

/// A port for programs that call back. Anybody can connect; only who knows the secret is accepted.
pub struct CallbackListener {
    listener: TcpListener,
    secret: SharedSecret,
    word: String,
    waiting: Vec<Proving>,
    /// So many of them at a time.
    most: usize,
}

/// A caller that has not proved yet that it knows the secret.
struct Proving {
    socket: OwnedFd,
    since: Instant,
    /// What has come of the next message.
    received: Vec<u8>,
    /// Our side, once there was a hello.
    responder: Option<Responder>,
}

/// What becomes of a caller.
enum Verdict {
    /// There is more to come.
    More,
    /// One of ours, by this name.
    Ours(String),
    /// One that does not know the secret.
    Stranger,
}

impl CallbackListener {
    /// Opens a port, with a new secret.
    ///
    /// # Errors
    /// When no port is free.
    pub fn open() -> Result<Self> {
        let secret =
            SharedSecret::generate().map_err(|why| Error::Handshake { whom: "this host".into(), why })?;
        Self::open_to(secret, "")
    }

    /// Opens a port for those who know this secret, and are told this word.
    ///
    /// # Errors
    /// As [`CallbackListener::open`].
    pub fn open_to(secret: SharedSecret, word: &str) -> Result<Self> {
        let about = || "port for the hosts to call back";
        // Of both kinds of addresses, where the kernel has both.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = TcpListener::bind(any).or_else(|_| TcpListener::bind("0.0.0.0:0")).of(about)?;
        listener.set_nonblocking(true).of(about)?;
        Ok(Self { listener, secret, word: word.into(), waiting: vec![], most: MOST_PROVING })
    }

    /// What programs need to call back, to a host of these names and addresses.
    ///
    /// # Errors
    /// None that happens to a socket that listens.
    pub fn call(&self, hosts: Vec<String>) -> Result<Call> {
        let address = self.listener.local_addr().of(|| "port for the hosts to call back")?;
        let (secret, word) = (Some(self.secret.clone()), self.word.clone());
        Ok(Call { hosts, port: address.port(), secret, word })
    }

    /// What to wait for: new callers, and those that have not proved it yet.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.waiting.iter().map(|caller| caller.socket.as_fd()))
    }

    /// Serves whoever is there; those who have proved it, with the names by which they call.
    pub fn serve(&mut self) -> Vec<(String, Channel)> {
        self.waiting.retain(|caller| caller.since.elapsed() < PROVING);
        self.accept_new();
        let mut ours = vec![];
        for mut caller in std::mem::take(&mut self.waiting) {
            match caller.serve(&self.secret, &self.word) {
                Verdict::More => self.waiting.push(caller),
                Verdict::Stranger => {}
                Verdict::Ours(name) => ours.extend(caller.come_in().map(|channel| (name, channel))),
            }
        }
        ours
    }

    fn accept_new(&mut self) {
        // A part of them at a time: those that are at it are served in between.
        for _ in 0..self.most / 2 {
            let is_full = self.waiting.len() == self.most;
            let silent = self.waiting.iter().position(|caller| caller.responder.is_none());
            if is_full && silent.is_none() {
                // All are programs of ours: the others wait in the kernel's queue.
                return;
            }
            let Ok((socket, _)) = self.listener.accept() else { return };
            if let (true, Some(oldest)) = (is_full, silent) {
                // Programs of ours send their hello at once, so strangers who say nothing keep none of them out.
                self.waiting.remove(oldest);
            }
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            let caller =
                Proving { socket: socket.into(), since: Instant::now(), received: vec![], responder: None };
            self.waiting.push(caller);
        }
    }

    /// Waits until somebody has called by each of these names; nothing if they have not within that time.
    ///
    /// # Errors
    /// [`Error::LauncherEnded`] with what the launcher said last, if it ends before.
    pub fn accept<const N: usize>(
        &mut self,
        names: [&str; N],
        launcher: &mut Launcher,
        within: Duration,
    ) -> Result<Option<[Channel; N]>> {
        let until = Instant::now() + within;
        let mut called: [Option<Channel>; N] = std::array::from_fn(|_| None);
        loop {
            for (name, channel) in self.serve() {
                let at = names.iter().position(|known| *known == name);
                at.map(|at| called[at].insert(channel));
            }
            if called.iter().all(Option::is_some) {
                let all: Vec<Channel> = called.into_iter().flatten().collect();
                return Ok(all.try_into().ok());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wait(launcher, left)?;
        }
    }

    /// Waits for any news, and hears the launcher's.
    fn wait(&self, launcher: &mut Launcher, left: Duration) -> Result<()> {
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(&launcher.pidfd, PollFlags::IN)];
        fds.extend(self.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(launcher.errors.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut fds, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            polled => polled.map(drop).of(|| "callers")?,
        }
        let ended = !fds[0].revents().is_empty();
        let said = launcher.errors.is_some() && fds.last().is_some_and(|fd| !fd.revents().is_empty());
        if said {
            launcher.hear();
        } else if ended {
            let how = launcher.bury();
            let words = Some(launcher.last_words()).filter(|words| !words.is_empty());
            return Err(Error::LauncherEnded(words.unwrap_or(how)));
        }
        Ok(())
    }
}

impl Proving {
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
    use crate::manager::{ConnectMethod, Launch};

    /// Serves everybody who has come until somebody has, or nobody is left.
    fn serve(listener: &mut CallbackListener) -> Vec<(String, Channel)> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let ours = listener.serve();
            if !ours.is_empty() || listener.waiting.is_empty() || Instant::now() > until {
                return ours;
            }
        }
    }

    #[test]
    fn programs_are_accepted_byte_by_byte_and_strangers_are_not() {
        let secret = SharedSecret::generate().expect("random bytes");
        let mut listener = CallbackListener::open_to(secret.clone(), "w").expect("a port");
        let port = listener.call(vec![]).expect("a call").port;
        let connect = || TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let other = SharedSecret::generate().expect("random bytes");
        for (known, word) in [(&other, "w"), (&secret, "another")] {
            let (_, hello) = Initiator::begin(known, word).expect("begun");
            let mut stranger = connect();
            stranger.write_all(&hello).expect("sent");
            stranger.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
            let hung_up = (0..500).any(|_| {
                assert!(listener.serve().is_empty());
                stranger.read(&mut [0]).is_ok_and(|n| n == 0)
            });
            assert!(hung_up);
        }
        let (initiator, hello) = Initiator::begin(&secret, "w").expect("begun");
        let mut agent = connect();
        agent.set_nodelay(true).expect("set");
        for byte in hello {
            agent.write_all(&[byte]).expect("sent");
            assert!(listener.serve().is_empty());
        }
        while listener.waiting.iter().all(|caller| caller.responder.is_none()) {
            assert!(listener.serve().is_empty());
        }
        let mut answer = [0; HELLO];
        agent.read_exact(&mut answer).expect("answered");
        let proof = initiator.prove(&answer, "n1").expect("proven");
        agent.write_all(&[&proof[..], b"what follows"].concat()).expect("sent");
        let [(name, mut channel)] = serve(&mut listener).try_into().ok().expect("one agent");
        assert_eq!(name, "n1");
        // Nothing of what follows was taken for the handshake's.
        assert!(channel.receive());
        let strange = channel.take::<Call>().expect_err("no talk of ours");
        assert!(matches!(&strange, Error::OtherTalk(said) if said.contains("what follows")), "{strange}");
    }

    #[test]
    fn strangers_who_say_nothing_keep_no_program_out() {
        let mut listener = CallbackListener::open().expect("a port");
        let call = listener.call(vec!["127.0.0.1".into()]).expect("a call");
        let connect = || TcpStream::connect(("127.0.0.1", call.port)).expect("connected");
        let mut strangers = vec![];
        while strangers.len() < MOST_PROVING + 64 {
            // Not more than the kernel keeps waiting.
            strangers.extend((0..64).map(|_| connect()));
            assert!(listener.serve().is_empty());
        }
        assert_eq!(listener.waiting.len(), MOST_PROVING);
        let program = std::thread::spawn({
            let call = call.clone();
            move || crate::callback::dial(&call, "n1", "the head").map(drop)
        });
        assert_eq!(serve(&mut listener).first().map(|(name, _)| name.as_str()), Some("n1"));
        program.join().expect("it ends").expect("it was let in");
    }

    #[test]
    fn programs_that_are_proving_it_make_way_for_nobody() {
        let mut listener = CallbackListener::open().expect("a port");
        let call = listener.call(vec!["127.0.0.1".into()]).expect("a call");
        let secret = call.secret.as_ref().expect("a secret");
        listener.most = 16;
        let mut connected = vec![];
        for at in 0..24 {
            let mut program = TcpStream::connect(("127.0.0.1", call.port)).expect("connected");
            let (_, hello) = Initiator::begin(secret, "").expect("a hello");
            program.write_all(&hello).expect("sent");
            connected.push(program);
            if at % 4 == 3 {
                assert!(listener.serve().is_empty());
            }
        }
        let began = listener.waiting.iter().filter(|caller| caller.responder.is_some()).count();
        assert_eq!((began, listener.waiting.len()), (16, 16));
    }

    /// A launcher of one program, which does this.
    fn launcher(script: &str, call: &Call) -> Launcher {
        let argv = ["sh", "-c", script].map(Into::into).to_vec();
        let launch = Launch { argv, without: vec![], way: ConnectMethod::CallBack, hosts: vec![0] };
        Launcher::start(&launch, call).expect("started").0
    }

    #[test]
    fn one_waits_until_all_names_have_called_or_the_launcher_has_failed() {
        let names = ["control", "data"];
        for (script, calling, within, outcome) in [
            ("exec sleep 10", &["control", "data"][..], 10_000, Ok(true)),
            // Whoever else knows the secret is in nobody's way.
            ("exec sleep 10", &["other", "data", "control"], 10_000, Ok(true)),
            ("exec sleep 10", &["control"], 300, Ok(false)),
            ("echo 'sh: no such host' >&2; exit 1", &[], 10_000, Err("sh: no such host")),
            ("exit 3", &[], 10_000, Err("exit status: 3")),
        ] {
            let mut listener = CallbackListener::open().expect("a port");
            let call = listener.call(vec!["127.0.0.1".into()]).expect("a call");
            let mut launcher = launcher(script, &call);
            let callers: Vec<_> = calling
                .iter()
                .map(|name| {
                    let (call, name) = (call.clone(), (*name).to_owned());
                    std::thread::spawn(move || crate::callback::dial(&call, &name, "the head"))
                })
                .collect();
            let accepted = listener.accept(names, &mut launcher, Duration::from_millis(within));
            match accepted {
                Ok(channels) => assert_eq!(Ok(channels.is_some()), outcome, "{script} {calling:?}"),
                Err(Error::LauncherEnded(why)) => assert_eq!(Err(why.as_str()), outcome, "{script}"),
                Err(other) => panic!("{other:?}"),
            }
            drop(listener);
            // Of those that were not waited for some were cut off.
            callers.into_iter().for_each(|caller| drop(caller.join().expect("it ends")));
        }
    }
}
