//! A connection on which nobody else can read, change or repeat anything: Noise's transport messages, by keys of a [`handshake`](crate::handshake)
//! with a secret that both sides know.
//!
//! ```text
//! message = record*                          all but the last one are full
//! record  = length:u16 sealed                big-endian; `sealed` is a transport message of Noise's
//! sealed  = more:u8 bytes                    1: another record of this message follows
//! ```

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use snow::StatelessTransportState;

use crate::handshake::{HELLO, SharedSecret, noise};

/// Bytes of a record that are the message's: Noise's messages have 65,535 bytes at most.
const RECORD: usize = 65_535 - noise::TAG - 1;
/// Bytes of the first record, which is an empty message.
const PROOF: usize = 2 + 1 + noise::TAG;
/// So that no other use of a secret is taken for this one.
const PURPOSE: &str = "skiff secure connection\n";

/// The half that sends.
pub struct SecureWriter {
    socket: TcpStream,
    keys: Arc<StatelessTransportState>,
    next: u64,
    plain: Vec<u8>,
    out: Vec<u8>,
}

/// The half that receives.
pub struct SecureReader {
    socket: TcpStream,
    keys: Arc<StatelessTransportState>,
    next: u64,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    /// The last message: kept, as memory for large ones takes long to get.
    message: Vec<u8>,
}

/// Who has connected proves to know the secret, and has the other side prove it, by `until`. `word` tells what this connection is for.
///
/// # Errors
/// The socket's, and [`ErrorKind::PermissionDenied`] if the other side does not know the secret.
pub fn initiate(
    mut socket: TcpStream,
    (secret, word): (&SharedSecret, &str),
    until: Instant,
) -> Result<(SecureReader, SecureWriter)> {
    let mut state = noise::initiator(&purpose(word), Some(secret)).map_err(Error::other)?;
    let mut hello = [0; HELLO];
    state.write_message(&[], &mut hello).map_err(Error::other)?;
    socket.write_all(&hello)?;
    let mut answer = [0; HELLO];
    read_by(&mut socket, &mut answer, until)?;
    state.read_message(&answer, &mut []).map_err(|_| not_proven())?;
    let (reader, mut writer) = halves(socket, state.into_stateless_transport_mode().map_err(Error::other)?)?;
    // The other side believes nothing before this: a hello can have been recorded.
    writer.send(&[])?;
    writer.socket.set_read_timeout(None)?;
    Ok((reader, writer))
}

/// The same for the side that was connected to.
///
/// # Errors
/// As [`initiate`]'s.
pub fn respond(
    mut socket: TcpStream,
    (secret, word): (&SharedSecret, &str),
    until: Instant,
) -> Result<(SecureReader, SecureWriter)> {
    let mut state = noise::responder(&purpose(word), Some(secret)).map_err(Error::other)?;
    let mut hello = [0; HELLO];
    read_by(&mut socket, &mut hello, until)?;
    state.read_message(&hello, &mut []).map_err(|_| not_proven())?;
    let mut answer = [0; HELLO];
    state.write_message(&[], &mut answer).map_err(Error::other)?;
    socket.write_all(&answer)?;
    let mut proof = [0; PROOF];
    read_by(&mut socket, &mut proof, until)?;
    let (mut reader, writer) = halves(socket, state.into_stateless_transport_mode().map_err(Error::other)?)?;
    let (header, sealed) = proof.split_at(2);
    reader.sealed = sealed.to_vec();
    if header != ((PROOF - 2) as u16).to_be_bytes() || reader.open()? != [0] {
        return Err(not_proven());
    }
    writer.socket.set_read_timeout(None)?;
    Ok((reader, writer))
}

/// Fills the buffer by `until`, whatever comes how slowly.
fn read_by(socket: &mut TcpStream, mut into: &mut [u8], until: Instant) -> Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => into = &mut into[read..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn halves(socket: TcpStream, keys: StatelessTransportState) -> Result<(SecureReader, SecureWriter)> {
    let keys = Arc::new(keys);
    let reading = socket.try_clone()?;
    let (sealed, plain, message) = (vec![], vec![], vec![]);
    let reader = SecureReader { socket: reading, keys: Arc::clone(&keys), next: 0, sealed, plain, message };
    Ok((reader, SecureWriter { socket, keys, next: 0, plain: vec![], out: vec![] }))
}

fn purpose(word: &str) -> Vec<u8> {
    [PURPOSE, word].concat().into_bytes()
}

fn not_proven() -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        "the other side does not know the secret, or was changed on its way",
    )
}

impl SecureWriter {
    /// Sends a message.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.send_parts([message, &[]])
    }

    /// Sends a message that lies in two places.
    ///
    /// # Errors
    /// The socket's.
    pub fn send_parts(&mut self, [mut first, mut second]: [&[u8]; 2]) -> Result<()> {
        self.out.clear();
        loop {
            let (of_first, first_rest) = first.split_at(first.len().min(RECORD));
            let (of_second, second_rest) = second.split_at(second.len().min(RECORD - of_first.len()));
            (first, second) = (first_rest, second_rest);
            let has_more = !first.is_empty() || !second.is_empty();
            self.seal([of_first, of_second], has_more)?;
            if !has_more {
                return self.socket.write_all(&self.out);
            }
        }
    }

    fn seal(&mut self, parts: [&[u8]; 2], more: bool) -> Result<()> {
        self.plain.clear();
        self.plain.push(u8::from(more));
        parts.iter().for_each(|part| self.plain.extend_from_slice(part));
        let length = self.plain.len() + noise::TAG;
        let header = u16::try_from(length).map_err(Error::other)?;
        self.out.extend(header.to_be_bytes());
        let from = self.out.len();
        self.out.resize(from + length, 0);
        self.keys.write_message(self.next, &self.plain, &mut self.out[from..]).map_err(Error::other)?;
        self.next += 1;
        Ok(())
    }

    /// The socket below.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl SecureReader {
    /// Receives a message of so many bytes at most; nothing where the other side has hung up behind a whole one. What it holds is taken as
    /// it comes.
    ///
    /// # Errors
    /// The socket's, [`ErrorKind::InvalidData`] for one that is longer, and [`ErrorKind::PermissionDenied`] for one that is not the other side's.
    pub fn receive(&mut self, longest: usize) -> Result<Option<&[u8]>> {
        self.message.clear();
        loop {
            let mut header = [0; 2];
            if !read_first(&mut self.socket, &mut header[..1])? {
                return if self.message.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
            self.socket.read_exact(&mut header[1..])?;
            self.sealed.resize(usize::from(u16::from_be_bytes(header)), 0);
            self.socket.read_exact(&mut self.sealed)?;
            let length = self.open()?.len();
            let (more, bytes) = self.plain[..length].split_first().ok_or(ErrorKind::InvalidData)?;
            if self.message.len() + bytes.len() > longest || (*more != 0 && bytes.is_empty()) {
                return Err(ErrorKind::InvalidData.into());
            }
            self.message.extend_from_slice(bytes);
            if *more == 0 {
                return Ok(Some(&self.message));
            }
        }
    }
}

impl SecureReader {
    /// What is in the record that has been read.
    fn open(&mut self) -> Result<&[u8]> {
        self.plain.resize(self.sealed.len(), 0);
        let opened = self.keys.read_message(self.next, &self.sealed, &mut self.plain);
        let length = opened.map_err(|_| not_proven())?;
        self.next += 1;
        Ok(&self.plain[..length])
    }
}

/// The first byte of a message; false at the end. A process that was stopped and goes on is interrupted here.
pub fn read_first(from: &mut impl Read, byte: &mut [u8]) -> Result<bool> {
    loop {
        match from.read(byte) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            read => return Ok(read? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        (one, listener.accept().expect("one has connected").0)
    }

    fn secure() -> ((SecureReader, SecureWriter), (SecureReader, SecureWriter)) {
        let (one, other) = pair();
        let secret = SharedSecret::generate().expect("random bytes");
        let same = secret.clone();
        let other = thread::spawn(move || respond(other, (&same, "w"), soon()).expect("the same secret"));
        let one = initiate(one, (&secret, "w"), soon()).expect("the same secret");
        (one, other.join().expect("no panic"))
    }

    #[test]
    fn messages_of_every_length_come_as_they_went() {
        let ((mut reader, _keep), (_other, mut writer)) = secure();
        let lengths = [0, 1, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD, 400_000];
        let sent: Vec<Vec<u8>> =
            lengths.iter().map(|n| (0..*n).map(|at| (at % 251) as u8).collect()).collect();
        let same = sent.clone();
        let sender = thread::spawn(move || same.iter().try_for_each(|message| writer.send(message)));
        for message in sent {
            assert_eq!(reader.receive(400_000).expect("received"), Some(&message[..]));
        }
        sender.join().expect("no panic").expect("sent");
    }

    #[test]
    fn a_message_in_two_places_is_one() {
        let ((mut reader, _keep), (_other, mut writer)) = secure();
        let bytes: Vec<u8> = (0..2 * RECORD + 7).map(|at| (at % 251) as u8).collect();
        for cut in [0, 1, 50, RECORD - 1, RECORD, RECORD + 1, 2 * RECORD, bytes.len()] {
            let (first, second) = bytes.split_at(cut);
            writer.send_parts([first, second]).expect("sent");
            assert_eq!(reader.receive(bytes.len()).expect("received"), Some(&bytes[..]), "{cut}");
        }
    }

    #[test]
    fn one_that_is_too_long_is_refused_and_the_end_is_seen() {
        let ((mut reader, _keep), (_other, mut writer)) = secure();
        writer.send(&[7; 11]).expect("sent");
        assert_eq!(reader.receive(10).expect_err("too long").kind(), ErrorKind::InvalidData);
        let ((mut reader, _keep), other) = secure();
        drop(other);
        assert_eq!(reader.receive(10).expect("the end"), None);
    }

    #[test]
    fn who_does_not_know_the_secret_or_its_use_learns_nothing() {
        for (secret, word) in [(None, "w"), (Some(()), "v")] {
            let (one, other) = pair();
            let own = SharedSecret::generate().expect("random bytes");
            let theirs =
                secret.map_or_else(|| SharedSecret::generate().expect("random bytes"), |()| own.clone());
            let other = thread::spawn(move || respond(other, (&own, "w"), soon()).map(drop));
            assert!(initiate(one, (&theirs, word), soon()).is_err());
            assert_eq!(
                other.join().expect("no panic").expect_err("a stranger").kind(),
                ErrorKind::PermissionDenied
            );
        }
    }

    #[test]
    fn a_recorded_beginning_proves_nothing() {
        let (one, mut other) = pair();
        let secret = SharedSecret::generate().expect("random bytes");
        let mut hello = [0; HELLO];
        let same = secret.clone();
        let first = thread::spawn(move || initiate(one, (&same, "w"), soon()).map(drop));
        other.read_exact(&mut hello).expect("a hello");
        drop(other);
        assert!(first.join().expect("no panic").is_err());
        let (mut again, other) = pair();
        let responder = thread::spawn(move || respond(other, (&secret, "w"), soon()).map(drop));
        again.write_all(&hello).expect("sent");
        let mut answer = [0; HELLO];
        again.read_exact(&mut answer).expect("it answers a true hello");
        again.write_all(&[0, 17]).and_then(|()| again.write_all(&[0; 17])).expect("sent");
        let refused = responder.join().expect("no panic").expect_err("no proof");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let (one, other) = pair();
        let (to_one, to_other) = pair();
        let secret = SharedSecret::generate().expect("random bytes");
        let same = secret.clone();
        // In between stands somebody who changes the last byte of the last message.
        let between = thread::spawn(move || {
            let (mut from, mut to) = (other, to_one);
            let mut back = (to.try_clone().expect("a socket"), from.try_clone().expect("a socket"));
            let mut hello = [0; HELLO];
            from.read_exact(&mut hello).and_then(|()| to.write_all(&hello)).expect("passed on");
            back.0.read_exact(&mut hello).and_then(|()| back.1.write_all(&hello)).expect("passed on");
            let mut proof = [0; 2 + 1 + noise::TAG];
            from.read_exact(&mut proof).and_then(|()| to.write_all(&proof)).expect("passed on");
            let mut message = [0; 2 + 1 + 5 + noise::TAG];
            from.read_exact(&mut message).expect("a message");
            *message.last_mut().expect("not empty") ^= 1;
            to.write_all(&message).expect("passed on");
            (from, to)
        });
        let responder =
            thread::spawn(move || respond(to_other, (&same, "w"), soon()).expect("the same secret"));
        let (_reader, mut writer) = initiate(one, (&secret, "w"), soon()).expect("the same secret");
        writer.send(b"hello").expect("sent");
        let (mut reader, _writer) = responder.join().expect("no panic");
        let refused = reader.receive(100).expect_err("changed");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        drop(between.join().expect("no panic"));
    }

    #[test]
    fn who_sends_byte_by_byte_gets_no_more_time() {
        let (mut one, other) = pair();
        let secret = SharedSecret::generate().expect("random bytes");
        let until = Instant::now() + Duration::from_millis(300);
        let responder =
            thread::spawn(move || (respond(other, (&secret, "w"), until).map(drop), Instant::now()));
        for _ in 0..HELLO - 1 {
            if one.write_all(&[0]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        let (refused, ended) = responder.join().expect("no panic");
        assert!(refused.is_err());
        assert!(ended < until + Duration::from_secs(2), "{:?}", ended - until);
    }
}
