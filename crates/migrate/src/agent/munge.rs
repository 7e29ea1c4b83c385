//! Has munged open credentials, by the messages that libmunge and it exchange (version 4, since munge 0.5; `m_msg.c` in its source). `unmunge`, a
//! program for each, takes so much more of the processor that hundreds of false credentials held up who else came from that node.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

/// Where munged listens, whatever the distribution.
const SOCKET: &str = "/run/munge/munge.socket.2";
const MAGIC: u32 = 0x0060_6d4b;
const VERSION: u8 = 4;
/// Types of messages: to open a credential, and what came of it.
const DECODE: u8 = 4;
const DECODED: u8 = 5;
/// Magic, version, type, how often it was tried, and how many bytes follow.
const HEADER: usize = 11;
/// No answer is longer. Its bytes go through a pipe at once, and what is in a credential may have been compressed.
const LONGEST: usize = 16 << 10;
const HINT: &str = "the hosts need munge's one key and clocks that agree";

/// Who has shown a credential, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MungeCredential {
    pub uid: u32,
    pub payload: Vec<u8>,
}

/// A credential that munged is opening.
pub struct Opening {
    socket: UnixStream,
    answer: Vec<u8>,
}

impl Opening {
    /// Asks munged; nothing if too many others ask it at this moment.
    ///
    /// # Errors
    /// What is not a credential, and that there is no munged.
    pub fn begin(credential: &[u8]) -> Result<Option<Self>> {
        let is_one = credential.starts_with(b"MUNGE:") && credential.iter().all(u8::is_ascii_graphic);
        if !is_one {
            return Err(refused("it is not one"));
        }
        let address = SocketAddrUnix::new(SOCKET).context(|| SOCKET)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).context(|| SOCKET)?;
        match connect(&socket, &address) {
            Err(Errno::AGAIN) => return Ok(None),
            connected => connected.context(|| SOCKET)?,
        }
        Self::over(socket.into(), credential).map(Some)
    }

    /// By a connection to munged.
    pub(super) fn over(socket: UnixStream, credential: &[u8]) -> Result<Self> {
        // So few bytes go at once.
        std::io::Write::write_all(&mut &socket, &request(credential)).context(|| SOCKET)?;
        Ok(Self { socket, answer: vec![] })
    }

    /// Reads the answer; nothing as long as it is not whole.
    ///
    /// # Errors
    /// Why the credential does not count.
    pub fn go_on(&mut self) -> Result<Option<MungeCredential>> {
        let mut buffer = [0; 4096];
        loop {
            let ended = match self.socket.read(&mut buffer) {
                Ok(length) => {
                    self.answer.extend(&buffer[..length]);
                    length == 0
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e).context(|| SOCKET),
            };
            match answered(&self.answer)? {
                None if ended => return Err(Error::new("munged: no reply")),
                None => {}
                credential => return Ok(credential),
            }
        }
    }
}

impl AsFd for Opening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn refused(why: &str) -> Error {
    Error::new(format!("munge does not accept the credential: {why}")).hint(HINT)
}

/// The message that asks to open a credential, which is sent with a zero behind it.
fn request(credential: &[u8]) -> Vec<u8> {
    let length = u32::try_from(credential.len() + 1).unwrap_or(u32::MAX);
    let mut message = MAGIC.to_be_bytes().to_vec();
    message.extend([VERSION, DECODE, 0]);
    message.extend((length + 4).to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(credential);
    message.push(0);
    message
}

/// What munged has answered; nothing if more is to come.
fn answered(bytes: &[u8]) -> Result<Option<MungeCredential>> {
    let strange = || Error::new("munged: invalid reply");
    let Some((header, body)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
    let mut header = Fields(header);
    let known = header.number() == Some(MAGIC) && header.byte() == Some(VERSION);
    if !known || header.byte() != Some(DECODED) {
        return Err(strange());
    }
    let length = header.byte().and_then(|_| header.number()).map_or(usize::MAX, |length| length as usize);
    if length > LONGEST {
        return Err(refused("there is too much in it"));
    }
    match body.get(..length) {
        Some(body) => opened(Fields(body)).ok_or_else(strange)?.map(Some),
        None => Ok(None),
    }
}

/// The fields of its answer, of which two matter here.
fn opened(mut body: Fields<'_>) -> Option<Result<MungeCredential>> {
    let error = body.byte()?;
    let why = body.counted()?;
    if error != 0 {
        return Some(Err(refused(String::from_utf8_lossy(why).trim_end_matches('\0'))));
    }
    let _cipher_mac_zip = body.bytes(3)?;
    let _realm = body.counted()?;
    let _ttl = body.number()?;
    let _address = body.counted()?;
    let _times = (body.number()?, body.number()?);
    let uid = body.number()?;
    let _gid_and_for_whom = (body.number()?, body.number()?, body.number()?);
    let length = body.number()? as usize;
    Some(Ok(MungeCredential { uid, payload: body.bytes(length)?.to_vec() }))
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    fn number(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.bytes(length.into())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    /// As munged says it.
    pub fn answer(error: u8, why: &str, uid: u32, payload: &[u8]) -> Vec<u8> {
        let mut body = vec![error, u8::try_from(why.len()).expect("short")];
        body.extend(why.as_bytes());
        body.extend([4, 5, 0, 0, 0, 0, 0, 60, 4, 10, 0, 0, 1]);
        for number in [1, 2, uid, 100, 0, u32::MAX, u32::try_from(payload.len()).expect("short")] {
            body.extend(number.to_be_bytes());
        }
        body.extend(payload);
        let mut message = MAGIC.to_be_bytes().to_vec();
        message.extend([VERSION, DECODED, 0]);
        message.extend(u32::try_from(body.len()).expect("short").to_be_bytes());
        message.extend(body);
        message
    }

    #[test]
    fn who_it_is_munge_says_and_nobody_else() {
        let whole = answer(0, "", 1000, b"UID: 0\n");
        let want = MungeCredential { uid: 1000, payload: b"UID: 0\n".to_vec() };
        assert_eq!(answered(&whole).expect("opened"), Some(want));
        for end in 0..whole.len() {
            assert_eq!(answered(&whole[..end]).expect("more is to come"), None, "{end}");
        }
        let replayed = answered(&answer(17, "Replayed credential\0", 0, b"")).expect_err("refused");
        assert_eq!(replayed.message, "munge does not accept the credential: Replayed credential");
    }

    #[test]
    fn what_is_not_understood_counts_for_nothing() {
        let whole = answer(0, "", 1000, b"x");
        // Wherever a byte is another one, nothing panics; in the header nothing counts.
        for at in 0..whole.len() {
            for other in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = other;
                let found = answered(&changed);
                if at < 6 && changed != whole {
                    let refused = found.expect_err("another header");
                    assert_eq!(refused.message, "munged: invalid reply", "{at} {other}");
                }
            }
        }
        // Fields that go beyond the end of it.
        let mut long = whole;
        let at = long.len() - 5;
        long[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(answered(&long).expect_err("too long").message, "munged: invalid reply");
    }

    #[test]
    fn what_is_no_credential_is_not_asked_about() {
        for credential in [&b""[..], b"GET / HTTP/1.1\r", b"MUNGE:a b:", b"MUNGE:\0:", b"munge:AA:"] {
            let why = Opening::begin(credential).err().expect("refused").message;
            assert!(why.contains("it is not one"), "{why}");
        }
    }

    #[test]
    fn an_answer_may_come_in_parts() {
        let (ours, mut munged) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        let mut opening = Opening::over(ours, b"MUNGE:x:").expect("asked");
        let mut asked = [0; 64];
        let length = munged.read(&mut asked).expect("heard");
        assert_eq!(&asked[..length], b"\0\x60\x6d\x4b\x04\x04\0\0\0\0\x0d\0\0\0\x09MUNGE:x:\0");
        let whole = answer(0, "", 7, b"x");
        let (first, rest) = whole.split_at(20);
        munged.write_all(first).expect("said");
        assert_eq!(opening.go_on().expect("waits"), None);
        munged.write_all(rest).expect("said");
        assert_eq!(opening.go_on().expect("whole").map(|credential| credential.uid), Some(7));
    }
}
