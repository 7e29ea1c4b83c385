//! Connections that have not shown who they are, so that none of them can hold up another: bounded in number, in time and by their source,
//! and waited for all at once. When there is no more room, one that says nothing goes first (as with sshd's MaxStartups), the oldest
//! of the source that has most.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::Child;

use crate::agent::BUSY;
use crate::agent::munge::{MungeCredential, Opening};

/// How long one may take to say its first byte,
const SILENCE: Duration = Duration::from_secs(2);
/// and all of its credential.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long whom we refuse may take to hear it.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long it may take to start a receiver.
const START: Duration = Duration::from_secs(20);
/// When one that was killed is killed again, should it not be gone.
const DYING: Duration = Duration::from_secs(1);
/// No credential of ours is longer.
const LONGEST: usize = 16 << 10;
/// How many may be connected at once,
const MOST: usize = 256;
/// and how many from one source: an IPv4 address, or an IPv6 network of 64 bits.
const MOST_EACH: usize = 64;
/// For how many munged is asked at once. It takes a tenth of a millisecond for each.
const MOST_ASKED: usize = 8;
/// When it is asked again if it had no room.
const AGAIN: Duration = Duration::from_millis(10);
/// How long munged may take.
const MUNGE: Duration = Duration::from_secs(5);
/// For how many a receiver is started at once,
const MOST_ATTENDED: usize = 16;
/// and how many of one user's, whom munged has named by then; how many more of that user's may wait.
const MOST_ATTENDED_EACH: usize = 4;
const MOST_WAITING_EACH: usize = 4;
/// How often root's journal is told of refusals at most: whoever floods the agent would else flood that.
const TOLD: Duration = Duration::from_secs(1);

/// A connection.
pub struct AgentConnection {
    stream: TcpStream,
    source: IpAddr,
    since: Instant,
    line: Vec<u8>,
    state: State,
}

enum State {
    /// The visitor's credential is not whole.
    Speaking,
    /// The visitor's credential is whole.
    Ready,
    /// Munged is opening it.
    Asked(Opening, Instant),
    /// Munged has said whose it is.
    Proven(MungeCredential),
    /// A process starts that user's receiver.
    Attended(Child, u32, Instant),
    /// The visitor has been refused. To close with bytes of the visitor's unread would be a reset, which takes from it
    /// the answer that it has not read yet.
    Leaving(Instant),
    /// The visitor has gone.
    Gone,
}

/// All of them, the oldest first.
#[derive(Default)]
pub struct AgentConnections {
    all: Vec<AgentConnection>,
    /// Of credentials refused since the journal was told: how many, the last one's source, and why.
    refused: Option<(u64, IpAddr, String)>,
    /// When that was.
    told: Option<Instant>,
    /// How many had to go because there was no room.
    pub turned_away: u64,
}

impl AgentConnections {
    /// Takes one more. It may have said something already.
    pub fn add(&mut self, stream: TcpStream, from: IpAddr, now: Instant) {
        // One that cannot be read without waiting is not read.
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut visitor = AgentConnection {
            stream,
            source: source(from),
            since: now,
            line: vec![],
            state: State::Speaking,
        };
        visitor.read(now);
        self.all.push(visitor);
        while let Some(crowd) = self.crowd() {
            // Who has said something since is not to go for having been silent.
            let silent =
                self.all.iter_mut().filter(|one| one.source == crowd && matches!(one.state, State::Speaking));
            silent.for_each(|one| one.read(now));
            let Some(victim) = self.victim(crowd) else { return };
            self.all.remove(victim).turn_away();
            self.turned_away += 1;
        }
    }

    /// Of which source one has to go, if there are too many.
    fn crowd(&self) -> Option<IpAddr> {
        let of = |source: IpAddr| self.all.iter().filter(|one| one.source == source).count();
        let newest = self.all.last()?.source;
        if of(newest) > MOST_EACH {
            return Some(newest);
        }
        if self.all.len() <= MOST {
            return None;
        }
        self.all.iter().map(|one| one.source).max_by_key(|source| of(*source))
    }

    /// Which one that is. Not the newest, of which nothing can have been heard yet.
    fn victim(&self, crowd: IpAddr) -> Option<usize> {
        let older = &self.all[..self.all.len() - 1];
        let candidates = older.iter().enumerate().filter(|(_, one)| one.source == crowd);
        candidates.filter_map(|(at, one)| Some((one.worth()?, at))).min().map(|(_, at)| at)
    }

    /// How many have shown a credential that munged has not been asked about.
    pub fn ready(&self) -> usize {
        self.all.iter().filter(|one| matches!(one.state, State::Ready)).count()
    }

    /// What is to be waited for, in the order in which [`Self::go_on`] wants the answers.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().filter_map(AgentConnection::descriptor)
    }

    /// Reads, counts the time, and forgets who has gone.
    pub fn go_on(&mut self, ready: &[bool], now: Instant) {
        let mut ready = ready.iter();
        let mut waiting: HashMap<u32, usize> = HashMap::new();
        for visitor in &mut self.all {
            let is_ready = visitor.descriptor().is_some() && ready.next() == Some(&true);
            if let Err(e) = visitor.go_on(is_ready, now) {
                let (count, ..) = self.refused.take().unwrap_or((0, visitor.source, String::new()));
                self.refused = Some((count + 1, visitor.source, e.message.clone()));
                visitor.refuse(&e.to_string(), now);
            }
            if let State::Proven(credential) = &visitor.state {
                let of_user = waiting.entry(credential.uid).or_default();
                *of_user += 1;
                if *of_user > MOST_WAITING_EACH {
                    visitor.refuse(BUSY, now);
                }
            }
        }
        self.all.retain(|visitor| !matches!(visitor.state, State::Gone));
    }

    /// Has munged asked about those who are ready, and receivers started for those whom it has named.
    pub fn attend(
        &mut self,
        now: Instant,
        mut open: impl FnMut(&[u8]) -> Result<Option<Opening>>,
        mut start: impl FnMut(&TcpStream, IpAddr, &MungeCredential) -> Option<Child>,
    ) {
        while let Some(next) = self.next_to_ask() {
            match open(&next.line) {
                Ok(Some(opening)) => next.state = State::Asked(opening, now + MUNGE),
                // It has no room for us at this moment.
                Ok(None) => break,
                Err(e) => next.refuse(&e.to_string(), now),
            }
        }
        while let Some((next, credential)) = self.next_to_start() {
            next.state = match start(&next.stream, next.source, &credential) {
                Some(child) => State::Attended(child, credential.uid, now + START),
                None => State::Gone,
            };
        }
    }

    /// Of the source for which it is asked least, the oldest.
    fn next_to_ask(&mut self) -> Option<&mut AgentConnection> {
        let is_asked = |one: &&AgentConnection| matches!(one.state, State::Asked(..));
        let asked: Vec<IpAddr> = self.all.iter().filter(is_asked).map(|one| one.source).collect();
        let of = |source: IpAddr| asked.iter().filter(|other| **other == source).count();
        let ready = self.all.iter_mut().filter(|one| matches!(one.state, State::Ready));
        ready.min_by_key(|one| of(one.source)).filter(|_| asked.len() < MOST_ASKED)
    }

    /// Of the user for whom fewest are started, the oldest.
    fn next_to_start(&mut self) -> Option<(&mut AgentConnection, MungeCredential)> {
        let started: Vec<u32> = self.all.iter().filter_map(AgentConnection::attended).collect();
        let of = |uid: u32| started.iter().filter(|other| **other == uid).count();
        let proven = self.all.iter_mut().filter_map(|one| match &one.state {
            State::Proven(credential) => Some(credential.clone()).map(|credential| (one, credential)),
            _ => None,
        });
        let next = proven.min_by_key(|(_, credential)| of(credential.uid));
        next.filter(|(_, credential)| {
            started.len() < MOST_ATTENDED && of(credential.uid) < MOST_ATTENDED_EACH
        })
    }

    /// Tells root's journal of credentials that were refused.
    pub fn tell_refusals(&mut self, now: Instant) {
        if self.told.is_some_and(|told| now < told + TOLD) {
            return;
        }
        if let Some((count, source, why)) = self.refused.take() {
            let more = if count > 1 {
                format!(" ({} more since the last such line)", count - 1)
            } else {
                String::new()
            };
            output::note(&format!("{source}: {why}{more}"));
            self.told = Some(now);
        }
    }

    /// How long nothing happens by itself.
    pub fn next_deadline(&self, now: Instant) -> Option<Duration> {
        let next = self.all.iter().filter_map(AgentConnection::deadline).min();
        let left = next.map(|until| until.saturating_duration_since(now));
        // That munged has room again nobody tells.
        let is_waiting = self.all.iter().any(|one| matches!(one.state, State::Ready));
        if is_waiting { left.map(|left| left.min(AGAIN)) } else { left }
    }
}

impl AgentConnection {
    /// Whether it stays when there is no room: who is attended to does; else who has said more, then who is younger.
    fn worth(&self) -> Option<u8> {
        match self.state {
            State::Leaving(_) | State::Gone => Some(0),
            State::Speaking if self.line.is_empty() => Some(1),
            State::Speaking => Some(2),
            State::Ready => Some(3),
            State::Proven(_) => Some(4),
            State::Asked(..) | State::Attended(..) => None,
        }
    }

    /// For whom a receiver is being started.
    fn attended(&self) -> Option<u32> {
        match self.state {
            State::Attended(_, uid, _) => Some(uid),
            _ => None,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Speaking | State::Ready | State::Proven(_) | State::Leaving(_) => {
                Some(self.stream.as_fd())
            }
            State::Asked(opening, _) => Some(opening.as_fd()),
            State::Attended(child, ..) => Some(child.pidfd.as_fd()),
            State::Gone => None,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Speaking if self.line.is_empty() => Some(self.since + SILENCE),
            State::Speaking | State::Ready => Some(self.since + PATIENCE),
            State::Asked(_, until) | State::Attended(_, _, until) | State::Leaving(until) => Some(until),
            State::Proven(_) | State::Gone => None,
        }
    }

    /// # Errors
    /// Why its credential does not count.
    fn go_on(&mut self, is_ready: bool, now: Instant) -> Result<()> {
        let is_late = self.deadline().is_some_and(|until| now >= until);
        match &mut self.state {
            State::Speaking if is_ready => self.read(now),
            State::Speaking if is_late => self.refuse("credential: it took too long", now),
            State::Ready if is_late => self.refuse(BUSY, now),
            State::Asked(..) if is_late => return Err(Error::new("munged: it does not answer")),
            State::Asked(opening, _) if is_ready => {
                if let Some(credential) = opening.go_on()? {
                    self.state = State::Proven(credential);
                }
            }
            // Nothing is done for one that has hung up.
            State::Ready | State::Proven(_) | State::Leaving(_) if is_ready && !is_late => self.drain(),
            State::Leaving(_) if is_late => self.state = State::Gone,
            State::Attended(..) => self.await_start(is_late, now),
            _ => {}
        }
        Ok(())
    }

    fn await_start(&mut self, is_late: bool, now: Instant) {
        use rustix::process::{Signal, WaitOptions, pidfd_send_signal, waitpid};
        let State::Attended(child, _, until) = &mut self.state else { return };
        if is_late {
            // A deadline in the past would have the agent look again and again until the child is gone.
            *until = now + DYING;
            // What hangs hangs on a service that does not answer.
            pidfd_send_signal(&child.pidfd, Signal::KILL)
                .ignore_error("if it has just ended, that is as well");
        }
        match waitpid(Some(child.pid), WaitOptions::NOHANG) {
            Ok(None) => {}
            Ok(Some((_, status))) if status.exit_status() == Some(0) => self.state = State::Gone,
            Ok(Some(_)) | Err(_) => self.leave(now),
        }
    }

    fn read(&mut self, now: Instant) {
        let mut buffer = [0; 4096];
        while self.line.len() < LONGEST {
            match self.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => self.line.extend(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.state = State::Gone;
                    return;
                }
            }
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                self.line.truncate(end);
                self.state = State::Ready;
                return;
            }
        }
        self.refuse("credential: it is not whole", now);
    }

    fn drain(&mut self) {
        let mut rest = [0; 4096];
        match self.stream.read(&mut rest) {
            Ok(n) if n > 0 => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => self.state = State::Gone,
        }
    }

    fn refuse(&mut self, why: &str, now: Instant) {
        self.say(why);
        self.leave(now);
    }

    fn leave(&mut self, now: Instant) {
        self.stream.set_nonblocking(true).ignore_error("it may have gone, and then there is nobody to tell");
        self.stream
            .shutdown(Shutdown::Write)
            .ignore_error("it may have gone, and then there is nobody to tell");
        self.state = State::Leaving(now + FAREWELL);
    }

    fn turn_away(mut self) {
        self.say(BUSY);
    }

    /// So few bytes go at once, or nobody reads them.
    fn say(&mut self, text: &str) {
        self.stream
            .write_all(format!("{text}\n").as_bytes())
            .ignore_error("so few bytes go at once, or nobody reads them");
    }
}

/// Who is one source: a user gets many IPv6 addresses as easily as one.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::unix::net::UnixStream;

    use super::super::munge;
    use super::*;

    /// A visitor from an address, and its own end.
    fn come(visitors: &mut AgentConnections, listener: &TcpListener, from: IpAddr, says: &str) -> TcpStream {
        let mut own = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        own.write_all(says.as_bytes()).expect("is heard");
        visitors.add(listener.accept().expect("comes").0, from, Instant::now());
        own
    }

    fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
    }

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn ready(visitors: &AgentConnections) -> Vec<String> {
        let ready = visitors.all.iter().filter(|one| matches!(one.state, State::Ready));
        ready.map(|one| String::from_utf8_lossy(&one.line).into_owned()).collect()
    }

    #[test]
    fn who_speaks_is_never_turned_away_for_who_does_not() {
        let (listener, mut visitors) = (listener(), AgentConnections::default());
        let mut held = vec![come(&mut visitors, &listener, ip(1), "first\n")];
        for n in 0..MOST_EACH + 20 {
            held.push(come(&mut visitors, &listener, ip(1), if n % 2 == 0 { "" } else { "half" }));
        }
        held.push(come(&mut visitors, &listener, ip(1), "last\n"));
        held.push(come(&mut visitors, &listener, ip(2), "other\n"));
        assert_eq!(ready(&visitors), ["first", "last", "other"]);
        assert_eq!((visitors.all.len(), visitors.turned_away), (MOST_EACH + 1, 22));
        // The silent have gone before those who have said half of it.
        assert_eq!(visitors.all.iter().filter(|one| one.line == b"half").count(), (MOST_EACH + 20) / 2);
        let mut told = String::new();
        held[1].read_to_string(&mut told).expect("told");
        assert_eq!(told.trim(), super::super::BUSY);
    }

    #[test]
    fn the_largest_crowd_makes_room() {
        let (listener, mut visitors) = (listener(), AgentConnections::default());
        let mut held = vec![come(&mut visitors, &listener, ip(0), "")];
        for n in 0..MOST {
            held.push(come(&mut visitors, &listener, ip(1 + u8::try_from(n / MOST_EACH).expect("few")), "x"));
        }
        assert_eq!((visitors.all.len(), visitors.turned_away), (MOST, 1));
        assert_eq!(visitors.all[0].source, ip(0), "the only one of its source stays");
        // Even if all others are ready, the newest can say something yet.
        held.push(come(&mut visitors, &listener, ip(1), ""));
        assert_eq!(visitors.all.last().map(|one| one.line.len()), Some(0));
    }

    #[test]
    fn nobody_stays_for_long() {
        let (listener, mut visitors) = (listener(), AgentConnections::default());
        let _held =
            [come(&mut visitors, &listener, ip(1), ""), come(&mut visitors, &listener, ip(1), "half")];
        let now = Instant::now();
        let states = |visitors: &mut AgentConnections, after: Duration| {
            visitors.go_on(&[false, false], now + after);
            visitors.all.iter().map(|one| matches!(one.state, State::Leaving(_))).collect::<Vec<_>>()
        };
        assert_eq!(states(&mut visitors, Duration::ZERO), [false, false]);
        assert!(visitors.next_deadline(now).is_some_and(|left| left <= SILENCE));
        assert_eq!(states(&mut visitors, SILENCE), [true, false]);
        assert_eq!(states(&mut visitors, SILENCE + FAREWELL), [false]);
        assert_eq!(states(&mut visitors, PATIENCE), [true]);
        assert!(states(&mut visitors, PATIENCE + FAREWELL).is_empty());
    }

    #[test]
    fn what_was_said_by_one_that_has_hung_up_is_not_looked_at() {
        let (listener, mut visitors) = (listener(), AgentConnections::default());
        let [stays, goes] = [1, 2].map(|last| come(&mut visitors, &listener, ip(last), "x\n"));
        drop(goes);
        visitors.go_on(&[false, true], Instant::now());
        let mut asked = vec![];
        let open = |line: &[u8]| {
            asked.push(line.to_vec());
            Ok(None)
        };
        visitors.attend(Instant::now(), open, |_, _, _| None);
        assert_eq!(asked, [b"x"]);
        drop(stays);
    }

    /// A turn: munged answers at once what each has said, a uid; nothing that is started ends.
    fn turn(visitors: &mut AgentConnections, started: &mut Vec<(u32, std::process::Child)>) {
        let munged = |line: &[u8]| {
            let uid = std::str::from_utf8(line).expect("text").parse();
            let (ours, mut munged) = UnixStream::pair().expect("a pair");
            ours.set_nonblocking(true).expect("a socket");
            let error = u8::from(uid.is_err());
            munged.write_all(&munge::tests::answer(error, "no", uid.unwrap_or(0), b"")).expect("said");
            Opening::over(ours, b"MUNGE:").map(Some)
        };
        let ready: Vec<bool> = visitors.all.iter().map(|one| matches!(one.state, State::Asked(..))).collect();
        visitors.go_on(&ready, Instant::now());
        visitors.attend(Instant::now(), munged, |_, _, credential| {
            let child = std::process::Command::new("sleep").arg("100").spawn().expect("a process");
            let pid = rustix::process::Pid::from_child(&child);
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
            started.push((credential.uid, child));
            Some(Child { pid, pidfd: pidfd.expect("a process") })
        });
    }

    #[test]
    fn one_user_takes_no_more_than_a_part_be_the_credentials_true_or_false() {
        let (listener, mut visitors) = (listener(), AgentConnections::default());
        let (mut held, mut started) = (vec![], vec![]);
        for n in 0..40 {
            held.push(come(&mut visitors, &listener, ip(1), if n % 2 == 0 { "7\n" } else { "false\n" }));
        }
        held.push(come(&mut visitors, &listener, ip(1), "8\n"));
        for _ in 0..20 {
            turn(&mut visitors, &mut started);
        }
        let mut users: Vec<u32> = started.iter().map(|(uid, _)| *uid).collect();
        users.sort_unstable();
        started.iter_mut().for_each(|(_, child)| child.kill().expect("killed"));
        assert_eq!(users, [7, 7, 7, 7, 8]);
        let waiting = visitors.all.iter().filter(|one| matches!(one.state, State::Proven(_))).count();
        assert_eq!(waiting, MOST_WAITING_EACH);
        // The journal gets one line of it.
        assert!(visitors.refused.as_ref().is_some_and(|(count, ..)| *count == 20));
        visitors.tell_refusals(Instant::now());
        assert!(visitors.refused.is_none());
        let mut told = String::new();
        held[1].read_to_string(&mut told).expect("told");
        assert_eq!(told, "munge does not accept the credential: no\n");
    }

    #[test]
    fn what_takes_too_long_to_start_is_killed_and_waited_for_without_haste() {
        let (listener, mut visitors) = (listener(), AgentConnections::default());
        let mut started = vec![];
        let _held = come(&mut visitors, &listener, ip(1), "7\n");
        for _ in 0..3 {
            turn(&mut visitors, &mut started);
        }
        assert_eq!(started.len(), 1);
        let late = Instant::now() + START;
        visitors.go_on(&[false], late);
        // Whether it is still dying or gone already: the agent does not look again at once, and again.
        assert!(visitors.next_deadline(late).is_some_and(|left| !left.is_zero()));
        for (_, mut child) in started {
            // It was killed; the visitor may have waited for it, which is an error here.
            drop(child.wait());
        }
    }

    #[test]
    fn what_is_one_source() {
        let of = |text: &str| source(text.parse().expect("an address")).to_string();
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
