//! Pages on their way by a slow link, packed while that is busy. Between who says them and the link are two threads: one reads and packs what is said,
//! one sends. A block is packed only while others wait to be sent, so that the processor never makes a link wait; and where packing
//! gained little, the next ones are let alone. What comes back, some bytes, goes as it is.
//!
//! A block has two numbers of four bytes at its head, how long it is on the way and how long it was (0: it is as it was); two zeros are the end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, spawn};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

/// The most that is read, and packed, at once.
const BLOCK: usize = 256 << 10;
/// How many blocks may wait.
const QUEUE: usize = 8;
/// Zstandard's fastest but for those that hardly pack.
const LEVEL: i32 = 1;
/// If packing leaves more than so much of 16 parts, it is not worth it.
const LITTLE: usize = 14;
/// So many blocks are let alone then, at most.
const MOST_ALONE: u32 = 32;

/// Two sockets: one for whoever talks as if it were to the link, one for [`Sending`] or [`Taking`].
///
/// # Errors
/// When descriptors are used up.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).context(|| "sockets")
}

/// Has `say` say something to a link, packed or not; how many bytes went by that, if they were counted.
///
/// # Errors
/// Its own, or that the link is lost.
pub fn through(
    link: BorrowedFd<'_>,
    packed: bool,
    say: impl FnOnce(&mut File) -> Result<()>,
) -> Result<Option<u64>> {
    if !packed {
        return say(&mut file(link)?).map(|()| None);
    }
    let (end, theirs) = pair()?;
    let sending = Sending::begin(theirs, link)?;
    let said = say(&mut File::from(end));
    // That the link is lost says more.
    sending.end().and_then(|sent| said.map(|()| Some(sent)))
}

/// What is said on a socket, on its way to the link.
pub struct Sending {
    ours: Arc<File>,
    packer: JoinHandle<()>,
    sender: JoinHandle<io::Result<u64>>,
    answers: JoinHandle<()>,
}

impl Sending {
    /// Begins.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn begin(ours: OwnedFd, link: BorrowedFd<'_>) -> Result<Self> {
        let ours = Arc::new(File::from(ours));
        let (out, back) = (file(link)?, file(link)?);
        let (blocks, queue) = sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let (from, to, count) = (ours.clone(), ours.clone(), waiting.clone());
        Ok(Self {
            packer: spawn(move || {
                // Whoever talks to us learns of it, and the sender says why.
                pack(&from, &blocks, &count);
                hang_up(&from);
            }),
            sender: spawn(move || send(out, &queue, &waiting)),
            answers: spawn(move || {
                answer(&back, &to);
                hang_up(&to);
            }),
            ours,
        })
    }

    /// All has been said and answered, or nothing more is to be sent: how many bytes went by the link.
    ///
    /// # Errors
    /// When the link is lost.
    pub fn end(self) -> Result<u64> {
        hang_up(&self.ours);
        // What went wrong with them the sender knows, or whoever talked to them.
        let (_, _) = (self.packer.join(), self.answers.join());
        let sent =
            self.sender.join().map_err(|_| Fault::new("connection for pages: its thread has ended"))?;
        sent.context(|| "connection for pages")
    }
}

fn file(fd: BorrowedFd<'_>) -> Result<File> {
    fd.try_clone_to_owned().map(File::from).context(|| "connection for pages")
}

/// Who reads from it finds its end. If it has ended already, that is as well.
pub(crate) fn hang_up(socket: &File) {
    shutdown(socket, Shutdown::Both).ignore_error("if it has ended already, that is as well");
}

fn pack(mut from: &File, blocks: &SyncSender<Vec<u8>>, waiting: &AtomicUsize) {
    let mut buffer = vec![0; BLOCK];
    let mut packer = Packer::default();
    while let Ok(n) = from.read(&mut buffer)
        && n > 0
    {
        let block = packer.block(&buffer[..n], waiting.load(Relaxed) > 0);
        waiting.fetch_add(1, Relaxed);
        if blocks.send(block).is_err() {
            return;
        }
    }
}

/// Decides which blocks are packed.
#[derive(Default)]
struct Packer {
    /// So many are let alone now.
    alone: u32,
    /// So many were let alone when packing last gained little.
    last: u32,
}

impl Packer {
    /// One for the link.
    fn block(&mut self, bytes: &[u8], busy: bool) -> Vec<u8> {
        let packed = if busy && self.alone == 0 { zstd::bulk::compress(bytes, LEVEL).ok() } else { None };
        self.alone = self.alone.saturating_sub(1);
        match packed {
            Some(packed) if packed.len() * 16 <= bytes.len() * LITTLE => {
                self.last = 0;
                framed(&packed, bytes.len())
            }
            Some(_) => {
                self.last = (self.last * 2).clamp(1, MOST_ALONE);
                self.alone = self.last;
                framed(bytes, 0)
            }
            None => framed(bytes, 0),
        }
    }
}

fn framed(bytes: &[u8], length: usize) -> Vec<u8> {
    // Neither is longer than a block.
    let head = [bytes.len() as u32, length as u32].map(u32::to_ne_bytes).concat();
    [&head, bytes].concat()
}

fn send(mut link: File, queue: &Receiver<Vec<u8>>, waiting: &AtomicUsize) -> io::Result<u64> {
    let mut sent = 0;
    for block in queue {
        link.write_all(&block)?;
        waiting.fetch_sub(1, Relaxed);
        sent += block.len() as u64;
    }
    link.write_all(&framed(&[], 0)).map(|()| sent)
}

/// Hands on what comes back, until nobody listens any more.
fn answer(mut link: &File, mut to: &File) {
    let mut buffer = [0; 64];
    loop {
        let mut fds = [PollFd::new(&link, PollFlags::IN), PollFd::new(&to, PollFlags::RDHUP)];
        match poll(&mut fds, None) {
            Ok(_) if fds[1].revents().is_empty() => {}
            Err(rustix::io::Errno::INTR) => continue,
            _ => return,
        }
        match link.read(&mut buffer) {
            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => {}
            _ => return,
        }
    }
}

/// What comes by the link, on its way to a socket.
pub struct Taking {
    taker: JoinHandle<Result<()>>,
    answers: JoinHandle<()>,
}

impl Taking {
    /// Begins.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn begin(ours: OwnedFd, link: BorrowedFd<'_>) -> Result<Self> {
        let ours = Arc::new(File::from(ours));
        let (link, mut out) = (file(link)?, file(link)?);
        let to = ours.clone();
        let taker = spawn(move || {
            let taken = take(link, &to);
            // Whoever still reads waits for what does not come.
            shutdown(&to, Shutdown::Write).ignore_error("if it has ended already, that is as well");
            taken
        });
        let answers = spawn(move || {
            io::copy(&mut &*ours, &mut out).ignore_error("it ends when the other end of the socket does");
        });
        Ok(Self { taker, answers })
    }

    /// Whoever read from the socket has all, and has closed it.
    ///
    /// # Errors
    /// When what came could not be understood.
    pub fn end(self) -> Result<()> {
        let (taken, answered) = (self.taker.join(), self.answers.join());
        answered
            .and(taken)
            .unwrap_or_else(|_| Err(Fault::new("pages from the other side: a thread has ended")))
    }
}

fn take(mut link: File, mut to: &File) -> Result<()> {
    let about = || "pages from the other side";
    let strange = || Fault::new(format!("{}: a block that is not understood", about()));
    let mut packed = vec![0; zstd::zstd_safe::compress_bound(BLOCK)];
    loop {
        let mut head = [0; 8];
        link.read_exact(&mut head).context(about)?;
        let number =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (here, length) = (number(0), number(4));
        if here == 0 && length == 0 {
            return Ok(());
        }
        let block = packed.get_mut(..here).filter(|block| !block.is_empty()).ok_or_else(strange)?;
        link.read_exact(block).context(about)?;
        let written = match length {
            0 => to.write_all(block),
            1..=BLOCK => {
                let bytes = zstd::bulk::decompress(block, length).map_err(|_| strange())?;
                if bytes.len() != length {
                    return Err(strange());
                }
                to.write_all(&bytes)
            }
            _ => return Err(strange()),
        };
        written.context(about)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// A link that takes a millisecond for each 16 KiB in one direction: by a fast one nothing waits, and so nothing is packed.
    fn slow_link() -> (OwnedFd, OwnedFd) {
        let ((near, from), (to, far)) = (pair().expect("sockets"), pair().expect("sockets"));
        let (from, to) = (Arc::new(File::from(from)), Arc::new(File::from(to)));
        for (from, to, pause) in [(from.clone(), to.clone(), 1), (to, from, 0)] {
            spawn(move || {
                let mut buffer = [0; 16 << 10];
                while let Ok(n @ 1..) = (&*from).read(&mut buffer) {
                    sleep(Duration::from_millis(pause));
                    if (&*to).write_all(&buffer[..n]).is_err() {
                        break;
                    }
                }
                hang_up(&to);
            });
        }
        (near, far)
    }

    /// What arrives of it, and by how many bytes on the way.
    fn by_link(said: &[u8]) -> (Vec<u8>, u64) {
        let (link, far) = slow_link();
        let ((criu, ours), (end, theirs)) = (pair().expect("sockets"), pair().expect("sockets"));
        let sending = Sending::begin(ours, link.as_fd()).expect("begun");
        let length = said.len();
        let said = said.to_vec();
        let speaker = spawn(move || {
            let mut criu = File::from(criu);
            criu.write_all(&said).expect("said");
            let mut answer = [0; 2];
            criu.read_exact(&mut answer).expect("an answer");
            assert_eq!(&answer, b"ok");
        });
        let taking = Taking::begin(theirs, far.as_fd()).expect("begun");
        let mut end = File::from(end);
        let mut came = vec![0; length];
        end.read_exact(&mut came).expect("all there");
        end.write_all(b"ok").expect("answered");
        speaker.join().expect("it ends");
        drop(end);
        let sent = sending.end().expect("sent");
        taking.end().expect("taken");
        (came, sent)
    }

    #[test]
    fn what_is_said_arrives_and_what_can_be_packed_is() {
        let mut noise = vec![0; 8 << 20];
        let mut hash = blake3::Hasher::new();
        hash.update(b"noise").finalize_xof().fill(&mut noise);
        let text = b"the same again and again ".repeat(400_000);
        for (said, most) in
            [(&b"x"[..], 9), (&noise, noise.len() as u64 + 4096), (&text, text.len() as u64 / 2)]
        {
            let (came, sent) = by_link(said);
            assert!(came == said, "{} bytes", said.len());
            assert!(sent <= most, "{sent} of {}", said.len());
        }
    }

    #[test]
    fn what_cannot_be_packed_is_soon_let_alone() {
        let (mut packer, mut noise) = (Packer::default(), [0; 4096]);
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let alone: Vec<u32> = (0..12)
            .map(|_| {
                packer.block(&noise, true);
                packer.alone
            })
            .collect();
        assert_eq!(alone, [1, 0, 2, 1, 0, 4, 3, 2, 1, 0, 8, 7]);
        assert!(packer.block(&[0; 4096], false).len() > 4096, "nobody waits");
    }

    #[test]
    fn blocks_that_are_cut_or_too_long_are_refused() {
        let (ends, strange) = ("failed to fill whole buffer", "a block that is not understood");
        for (what, came, reason) in [
            ("no end", framed(b"abc", 0), ends),
            ("cut", framed(b"abc", 0)[..9].to_vec(), ends),
            ("too long", [u32::MAX, 0].map(u32::to_ne_bytes).concat(), strange),
            ("too long then", framed(b"abc", BLOCK + 1), strange),
            ("nothing", framed(b"", 7), strange),
            ("not packed", framed(b"abc", 3), strange),
            ("shorter than said", framed(&zstd::bulk::compress(b"abc", 1).expect("packed"), 4), strange),
        ] {
            let (link, far) = pair().expect("sockets");
            let (end, ours) = pair().expect("sockets");
            let taking = Taking::begin(ours, far.as_fd()).expect("begun");
            let mut link = File::from(link);
            link.write_all(&came).expect("sent");
            hang_up(&link);
            drop(link);
            // Whoever reads hears the end, and only then leaves: before, what comes would find nobody.
            File::from(end).read_to_end(&mut vec![]).expect("read");
            let refused = taking.end().expect_err(what);
            assert_eq!(refused.message, format!("pages from the other side: {reason}"), "{what}");
        }
    }
}
