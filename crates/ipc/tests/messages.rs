//! Messages arrive as they were sent, or the receiver says why not: whatever the other side sends, and whenever it goes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use skiff_ipc::{
    Error, Message, Until, receive, receive_descriptors, receive_packet, send, send_descriptors, send_packet,
};
use skiff_sys::fdpass;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Word {
    Text(String),
    Files(usize),
}

impl Message for Word {
    const LONGEST: usize = 100;
    const DESCRIPTORS: usize = 20;
}

fn text(length: usize) -> Word {
    // {"Text":"..."}
    Word::Text("a".repeat(length - 11))
}

fn files(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| File::open("/dev/null").expect("a file").into()).collect()
}

fn borrowed(files: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}

fn packets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets")
}

/// A word for how it went, for tables.
fn outcome<T>(result: &Result<T, Error>) -> &'static str {
    match result {
        Ok(_) => "taken",
        Err(Error::Closed) => "closed",
        Err(Error::TimedOut) => "late",
        Err(Error::TooLong { .. }) => "too long",
        Err(Error::Invalid(_)) => "invalid",
        Err(Error::Descriptors { .. }) => "descriptors",
        Err(_) => "another error",
    }
}

#[test]
fn messages_come_back_as_they_went() {
    let sent = [Word::Files(3), text(100), Word::Text(String::new())];
    let mut bytes = vec![];
    sent.iter().for_each(|word| send(&mut bytes, word).expect("a short word"));
    assert_eq!(&bytes[..15], b"\x0b\0\0\0{\"Files\":3}", "what versions before this one understand");
    let mut rest = &bytes[..];
    for word in sent {
        assert_eq!(receive(&mut rest).expect("whole"), Some(word));
    }
    assert!(receive::<Word>(&mut rest).expect("the end").is_none());
}

#[test]
fn what_is_not_a_whole_message_is_refused() {
    let mut whole = vec![];
    send(&mut whole, &Word::Files(3)).expect("a short word");
    for end in 1..whole.len() {
        assert_eq!(outcome(&receive::<Word>(&mut &whole[..end])), "closed", "{end}");
    }
    let cases: [(&[u8], &str); 6] = [
        (b"\x65\0\0\0", "too long"),
        (b"\xff\xff\xff\xff", "too long"),
        (b"\x64\0\0\0", "closed"),
        (b"\x02\0\0\0{}", "invalid"),
        (b"\x03\0\0\0\xff\xff\xff", "invalid"),
        (b"\0\0\0\0", "invalid"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(outcome(&receive::<Word>(&mut &bytes[..])), expected, "{bytes:?}");
    }
}

/// Gives what it has, and notes how much room the reader had for it at most.
struct Watched<'a>(&'a [u8], usize);

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1.max(buffer.len());
        self.0.read(buffer)
    }
}

#[test]
fn memory_is_not_taken_for_what_is_only_claimed() {
    #[derive(Serialize, Deserialize)]
    struct Long(String);
    impl Message for Long {
        const LONGEST: usize = 1 << 30;
    }
    let mut few = Watched(b"\0\0\0\x40few", 0);
    assert_eq!(outcome(&receive::<Long>(&mut few)), "closed");
    assert!(few.1 < 1 << 16, "room for {} bytes", few.1);
}

#[test]
fn senders_keep_to_the_limits_too() {
    let mut bytes = vec![];
    assert_eq!(outcome(&send(&mut bytes, &text(101))), "too long");
    assert!(bytes.is_empty());
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let many = files(21);
    assert_eq!(outcome(&send_descriptors::<Word>(&ours, &borrowed(&many))), "descriptors");
    let (socket, _other) = packets();
    assert_eq!(outcome(&send_packet(socket.as_fd(), &text(101), &[])), "too long");
    drop(theirs);
    assert_eq!(outcome(&send(&mut &ours, &Word::Files(0))), "closed");
}

#[test]
fn descriptors_come_behind_their_message_and_no_others() {
    // How many are expected; how many come in each message; what of it.
    let cases: [(usize, &[usize], &str); 7] = [
        (20, &[8, 8, 4], "taken"),
        (2, &[1, 1], "taken"),
        (2, &[1], "descriptors"),
        (2, &[1, 0, 1], "descriptors"),
        (1, &[2], "descriptors"),
        (3, &[2, 2], "descriptors"),
        (21, &[], "descriptors"),
    ];
    for (wanted, come, expected) in cases {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        send(&mut &ours, &Word::Files(wanted)).expect("a short word");
        for count in come {
            fdpass::send(ours.as_fd(), &[0], &borrowed(&files(*count))).expect("files");
        }
        drop(ours);
        assert_eq!(receive::<Word>(&mut theirs).expect("whole"), Some(Word::Files(wanted)));
        let received = receive_descriptors::<Word>(&theirs, wanted);
        assert_eq!(outcome(&received), expected, "{wanted} of {come:?}");
        for fd in received.iter().flatten() {
            assert!(fcntl_getfd(fd).expect("its flags").contains(FdFlags::CLOEXEC));
        }
    }
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let (mut watched, given) = UnixStream::pair().expect("sockets");
    let mut bytes = vec![];
    send(&mut bytes, &Word::Files(0)).expect("a short word");
    fdpass::send(ours.as_fd(), &bytes, &[given.as_fd()]).expect("a message with a file");
    drop(given);
    assert!(receive::<Word>(&mut theirs).expect("whole").is_some());
    assert_eq!(watched.read(&mut [0]).expect("its end"), 0, "somebody has the file open");
}

#[test]
fn packets_come_whole_with_their_descriptors_or_not_at_all() {
    let long = serde_json::to_vec(&text(101)).expect("JSON");
    // The text; how many descriptors come with it; what of it.
    let cases: [(&[u8], usize, &str); 6] = [
        (br#"{"Files":3}"#, 0, "taken"),
        (br#"{"Files":3}"#, 8, "taken"),
        (&long, 0, "too long"),
        (b"{", 0, "invalid"),
        (b"\xff", 1, "invalid"),
        (b"", 0, "closed"),
    ];
    for (text, count, expected) in cases {
        let (ours, theirs) = packets();
        match text {
            b"" => drop(ours),
            _ => fdpass::send(ours.as_fd(), text, &borrowed(&files(count))).expect("a message"),
        }
        let received = receive_packet::<Word>(theirs.as_fd());
        assert_eq!(outcome(&received), expected, "{text:?}");
        if let Ok((_, fds)) = received {
            assert_eq!(fds.len(), count);
        }
    }
}

#[test]
fn more_descriptors_than_the_type_allows_are_refused() {
    #[derive(Serialize, Deserialize)]
    struct Bare;
    impl Message for Bare {
        const LONGEST: usize = 4;
    }
    let (ours, theirs) = packets();
    fdpass::send(ours.as_fd(), b"null", &borrowed(&files(1))).expect("a message");
    assert_eq!(outcome(&receive_packet::<Bare>(theirs.as_fd())), "descriptors");
}

/// Senders of ours cannot do that: there is room for [`fdpass::MOST_FDS`] in what receives them.
#[test]
fn more_descriptors_than_one_message_may_carry_are_refused() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let many = files(fdpass::MOST_FDS + 1);
    let many = borrowed(&many);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fdpass::MOST_FDS + 1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
    sendmsg(&ours, &[std::io::IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).expect("sent");
    assert_eq!(outcome(&receive_descriptors::<Word>(&theirs, fdpass::MOST_FDS)), "descriptors");
}

#[test]
fn whoever_sends_slowly_gets_no_more_time() {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let begun = Instant::now();
    let until = begun + Duration::from_millis(200);
    let mut message = vec![];
    send(&mut message, &text(100)).expect("a short word");
    let sender = std::thread::spawn(move || {
        // 104 bytes would take 2 s; the test does not wait for them.
        for byte in message {
            if ours.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut from = Until::new(&theirs, until);
    assert_eq!(outcome(&receive::<Word>(&mut from)), "late");
    assert!(begun.elapsed() < Duration::from_secs(2));
    drop(theirs);
    sender.join().expect("it ends as nobody listens");
    let (_ours, theirs) = UnixStream::pair().expect("sockets");
    assert_eq!(outcome(&Until::new(&theirs, until).receive_descriptors::<Word>(1)), "late");
}
