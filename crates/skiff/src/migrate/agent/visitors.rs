//! Connections that have not shown who they are, so that none of them can hold up another: bounded in number, in time and by their source,
//! and waited for all at once. When there is no more room, one that says nothing goes first (as with sshd's MaxStartups), the oldest
//! of the source that has most.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use skiff_sys::process::Child;

/// How long one may take to say its first byte,
const SILENCE: Duration = Duration::from_secs(2);
/// and all of its credential.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long whom we refuse may take to hear it.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long it may take to start a receiver.
const START: Duration = Duration::from_secs(20);
/// No credential of ours is longer.
const LONGEST: usize = 16 << 10;
/// How many may be connected at once,
const MOST: usize = 256;
/// and how many from one source: an IPv4 address, or an IPv6 network of 64 bits.
const MOST_EACH: usize = 64;
/// For how many a receiver is started at once.
const MOST_ATTENDED: usize = 16;
/// To open a credential takes as much of the processor as to make a false one: for so long after one was refused, fewer are opened at once
/// for its source.
const SUSPICION: Duration = Duration::from_secs(1);
const MOST_SUSPECTED: usize = 2;

/// A connection.
pub struct Visitor {
    stream: TcpStream,
    source: IpAddr,
    since: Instant,
    line: Vec<u8>,
    state: State,
}

enum State {
    /// Its credential is not whole.
    Speaking,
    /// It is whole.
    Ready,
    /// A process looks at it.
    Attended(Child, Instant),
    /// It has been refused. To close with bytes of the visitor's unread would be a reset, which takes from it the answer that it has not
    /// read yet.
    Leaving(Instant),
    /// It has gone.
    Gone,
}

/// All of them, the oldest first.
#[derive(Default)]
pub struct Visitors {
    all: Vec<Visitor>,
    /// Sources of which one was refused, and until when that counts.
    suspects: HashMap<IpAddr, Instant>,
    /// How many had to go because there was no room.
    pub turned_away: u64,
}

impl Visitors {
    /// Takes one more. It may have said something already.
    pub fn add(&mut self, stream: TcpStream, from: IpAddr, now: Instant) {
        // One that cannot be read without waiting is not read.
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut visitor =
            Visitor { stream, source: source(from), since: now, line: vec![], state: State::Speaking };
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
        let largest = self.all.iter().map(|one| one.source).max_by_key(|source| of(*source));
        largest.filter(|_| self.all.len() > MOST)
    }

    /// Which one that is. Not the newest, of which nothing can have been heard yet.
    fn victim(&self, crowd: IpAddr) -> Option<usize> {
        let older = &self.all[..self.all.len() - 1];
        let candidates = older.iter().enumerate().filter(|(_, one)| one.source == crowd);
        candidates.filter_map(|(at, one)| Some((one.worth()?, at))).min().map(|(_, at)| at)
    }

    /// What is to be waited for, in the order in which [`Self::go_on`] wants the answers.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().filter_map(Visitor::descriptor)
    }

    /// Reads, counts the time, and forgets who has gone.
    pub fn go_on(&mut self, ready: &[bool], now: Instant) {
        let mut ready = ready.iter();
        for visitor in &mut self.all {
            let is_ready = visitor.descriptor().is_some() && ready.next() == Some(&true);
            let was_attended = visitor.is_attended();
            visitor.go_on(is_ready, now);
            if was_attended && matches!(visitor.state, State::Leaving(_)) {
                self.suspects.insert(visitor.source, now + SUSPICION);
            }
        }
        self.suspects.retain(|_, until| *until > now);
        self.all.retain(|visitor| !matches!(visitor.state, State::Gone));
    }

    /// Has processes look at those who are ready: of the source that has fewest of them, the oldest.
    pub fn attend(
        &mut self,
        now: Instant,
        mut start: impl FnMut(&TcpStream, IpAddr, &[u8]) -> Option<Child>,
    ) {
        loop {
            let attended: Vec<IpAddr> =
                self.all.iter().filter(|one| one.is_attended()).map(|one| one.source).collect();
            let of = |source: IpAddr| attended.iter().filter(|other| **other == source).count();
            let limit =
                |source| if self.suspects.contains_key(&source) { MOST_SUSPECTED } else { MOST_ATTENDED };
            let is_next =
                |one: &&mut Visitor| matches!(one.state, State::Ready) && of(one.source) < limit(one.source);
            let next = self.all.iter_mut().filter(is_next).min_by_key(|one| of(one.source));
            let Some(next) = next.filter(|_| attended.len() < MOST_ATTENDED) else { return };
            next.state = match start(&next.stream, next.source, &next.line) {
                Some(child) => State::Attended(child, now + START),
                None => State::Gone,
            };
        }
    }

    /// How long nothing happens by itself.
    pub fn next_deadline(&self, now: Instant) -> Option<Duration> {
        self.all.iter().filter_map(Visitor::deadline).min().map(|until| until.saturating_duration_since(now))
    }
}

impl Visitor {
    /// Whether it stays when there is no room: who is attended to does; else who has said more, then who is younger.
    fn worth(&self) -> Option<u8> {
        match self.state {
            State::Leaving(_) | State::Gone => Some(0),
            State::Speaking if self.line.is_empty() => Some(1),
            State::Speaking => Some(2),
            State::Ready => Some(3),
            State::Attended(..) => None,
        }
    }

    fn is_attended(&self) -> bool {
        matches!(self.state, State::Attended(..))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Speaking | State::Ready | State::Leaving(_) => Some(self.stream.as_fd()),
            State::Attended(child, _) => Some(child.pidfd.as_fd()),
            State::Gone => None,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Speaking if self.line.is_empty() => Some(self.since + SILENCE),
            State::Speaking => Some(self.since + PATIENCE),
            State::Attended(_, until) | State::Leaving(until) => Some(until),
            State::Ready | State::Gone => None,
        }
    }

    fn go_on(&mut self, is_ready: bool, now: Instant) {
        let is_late = self.deadline().is_some_and(|until| now >= until);
        match &self.state {
            State::Speaking if is_ready => self.read(now),
            // Nothing is done for one that has hung up.
            State::Ready | State::Leaving(_) if is_ready && !is_late => self.drain(),
            State::Attended(child, _) => {
                use rustix::process::{Signal, WaitOptions, pidfd_send_signal, waitpid};
                if is_late {
                    // What hangs hangs on a service that does not answer; if it has just ended, that is as well.
                    pidfd_send_signal(&child.pidfd, Signal::KILL).unwrap_or_default();
                }
                match waitpid(Some(child.pid), WaitOptions::NOHANG) {
                    Ok(None) => {}
                    Ok(Some((_, status))) if status.exit_status() == Some(0) => self.state = State::Gone,
                    Ok(Some(_)) | Err(_) => self.leave(now),
                }
            }
            State::Speaking if is_late => self.refuse("credential: it took too long", now),
            State::Leaving(_) if is_late => self.state = State::Gone,
            State::Speaking | State::Leaving(_) | State::Ready | State::Gone => {}
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
        // Whatever fails here: it has gone, and there is nobody to tell.
        self.stream.set_nonblocking(true).unwrap_or_default();
        self.stream.shutdown(Shutdown::Write).unwrap_or_default();
        self.state = State::Leaving(now + FAREWELL);
    }

    fn turn_away(mut self) {
        self.say(super::BUSY);
    }

    /// So few bytes go at once, or nobody reads them.
    fn say(&mut self, text: &str) {
        self.stream.write_all(format!("{text}\n").as_bytes()).unwrap_or_default();
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

    use super::*;

    /// A visitor from an address, and its own end.
    fn come(visitors: &mut Visitors, listener: &TcpListener, from: IpAddr, says: &str) -> TcpStream {
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

    fn ready(visitors: &Visitors) -> Vec<String> {
        let ready = visitors.all.iter().filter(|one| matches!(one.state, State::Ready));
        ready.map(|one| String::from_utf8_lossy(&one.line).into_owned()).collect()
    }

    #[test]
    fn who_speaks_is_never_turned_away_for_who_does_not() {
        let (listener, mut visitors) = (listener(), Visitors::default());
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
        let (listener, mut visitors) = (listener(), Visitors::default());
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
        let (listener, mut visitors) = (listener(), Visitors::default());
        let _held =
            [come(&mut visitors, &listener, ip(1), ""), come(&mut visitors, &listener, ip(1), "half")];
        let now = Instant::now();
        let states = |visitors: &mut Visitors, after: Duration| {
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
        let (listener, mut visitors) = (listener(), Visitors::default());
        let [stays, goes] = [1, 2].map(|last| come(&mut visitors, &listener, ip(last), "x\n"));
        drop(goes);
        visitors.go_on(&[false, true], Instant::now());
        let mut started = vec![];
        visitors.attend(Instant::now(), |_, source, _| {
            started.push(source);
            None
        });
        assert_eq!(started, [ip(1)]);
        drop(stays);
    }

    #[test]
    fn what_is_one_source() {
        let of = |text: &str| source(text.parse().expect("an address")).to_string();
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
