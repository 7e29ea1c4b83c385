//! The relay as a registry of this node's: who pulls the job's image here asks it as any mirror, over loopback.
//!
//! Of the distribution protocol it has what such a client needs: manifests and blobs by digest, and ranges of blobs. It answers 404 for
//! anything else, and for what it cannot have. Then the client asks the next place, in the end the registry itself.

use std::io::{Error, ErrorKind, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use skiff_launch::handshake::SharedSecret;
use skiff_oci::hash::sha256_bytes;
use skiff_oci::manifest::MAX_DOCUMENT;
use skiff_snapshot::PieceCounts;
use skiff_sys::IgnoreError;

use crate::patience::ACCEPT_PAUSE;
use crate::piece::{RelayFile, RelayPiece};
use crate::request::{COUNTS, LONGEST_HEAD, MirrorRequest, parse, read_until, receive_head};
use crate::spool::{PieceOrigin, Spool, WaitedPiece};
use crate::thread::{lock, spawn_thread};
use crate::visitors::{Visitor, Visitors};

/// So many bytes of a range are wanted before the first of them has been sent.
const READ_AHEAD: u64 = 2 << 20;
/// If less than so much comes in so long while somebody waits, the registry is asked directly from then on. A registry that fetches from another one
/// first may say nothing for long.
const SILENCE: Duration = Duration::from_secs(40);
const LEAST: u64 = 1 << 20;
/// Interval between looks whether a piece has come.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a client may take nothing.
const TO_TAKE: Duration = Duration::from_secs(60);
/// Longest wait for the answer to a question for counts.
const TO_COUNT: Duration = Duration::from_secs(2);

/// A mirror that listens.
pub struct Mirror {
    listener: TcpListener,
    address: MirrorAddress,
}

/// Where a mirror is to be had.
#[derive(Clone)]
pub struct MirrorAddress {
    socket: SocketAddr,
    /// Stands before what is asked for. Other users of this node do not know it.
    path: String,
}

impl Mirror {
    /// One for this node only.
    ///
    /// # Errors
    /// The socket's.
    pub fn open() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let secret = SharedSecret::generate().map_err(Error::other)?;
        let path = format!("relay/{}", secret.to_hex());
        let address = MirrorAddress { socket: listener.local_addr()?, path };
        Ok(Self { listener, address })
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> &MirrorAddress {
        &self.address
    }

    /// What the process that serves it needs.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl MirrorAddress {
    /// As registries are called: `HOST:PORT` and the path of a repository.
    #[must_use]
    pub fn location(&self) -> (String, String) {
        (self.socket.to_string(), self.path.clone())
    }

    /// What has come by it so far; nothing if it does not answer soon.
    #[must_use]
    pub fn counts(&self) -> Option<PieceCounts> {
        let deadline = Instant::now() + TO_COUNT;
        let mut socket = TcpStream::connect_timeout(&self.socket, TO_COUNT).ok()?;
        socket.set_write_timeout(Some(TO_COUNT)).ok()?;
        socket.write_all(format!("GET /v2/{}/{COUNTS} HTTP/1.1\r\n\r\n", self.path).as_bytes()).ok()?;
        // The server closes the connection then.
        socket.shutdown(Shutdown::Write).ok()?;
        let (mut answer, mut buffer) = (vec![], [0; 256]);
        while answer.len() < LONGEST_HEAD {
            match read_until(&mut socket, &mut buffer, deadline).ok()? {
                0 => break,
                count => answer.extend_from_slice(&buffer[..count]),
            }
        }
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let (relayed, read) = body.split_once(' ').filter(|_| head.starts_with("HTTP/1.1 200 "))?;
        Some(PieceCounts { relayed: relayed.parse().ok()?, read: read.parse().ok()? })
    }
}

/// Serves who pulls on this node, as long as this process lives.
pub(crate) fn serve_mirror(mirror: &Mirror, spool: &Arc<Spool>) {
    let state = Arc::new(MirrorState {
        spool: Arc::clone(spool),
        path: mirror.address.path.clone(),
        counts: Mutex::default(),
        pace: Mutex::new(MirrorPace { since: Instant::now(), came: 0, waiting: 0 }),
        is_disabled: AtomicBool::new(false),
    });
    let visitors = Arc::new(Visitors::default());
    for socket in mirror.listener.incoming() {
        let Ok(socket) = socket else {
            sleep(ACCEPT_PAUSE);
            continue;
        };
        let Ok(visitor) = visitors.come(&socket) else { continue };
        let state = Arc::clone(&state);
        spawn_thread(move || {
            state.serve(socket, visitor).ignore_error("the client asks another place then");
        })
        .ignore_error("so does it where there are no threads");
    }
}

/// What all connections share.
struct MirrorState {
    spool: Arc<Spool>,
    path: String,
    counts: Mutex<PieceCounts>,
    pace: Mutex<MirrorPace>,
    is_disabled: AtomicBool,
}

/// How much has come since when, while somebody waited.
struct MirrorPace {
    since: Instant,
    came: u64,
    waiting: usize,
}

impl MirrorPace {
    fn begin_to_wait(&mut self) {
        if self.waiting == 0 {
            (self.since, self.came) = (Instant::now(), 0);
        }
        self.waiting += 1;
    }

    /// Whether too little has come in all the time that is looked at.
    fn is_too_slow(&mut self) -> bool {
        if self.since.elapsed() < SILENCE {
            return false;
        }
        let is_too_slow = self.came < LEAST;
        (self.since, self.came) = (Instant::now(), 0);
        is_too_slow
    }
}

impl MirrorState {
    /// Answers one request after the other.
    fn serve(&self, mut socket: TcpStream, mut visitor: Visitor) -> Result<()> {
        socket.set_write_timeout(Some(TO_TAKE))?;
        socket.set_nodelay(true)?;
        let mut received = vec![];
        while let Some(length) = receive_head(&mut socket, &mut received)? {
            let request = parse(&received[..length], &self.path)?;
            received.drain(..length);
            // Who knows the path is the user.
            let is_known = !matches!(request, MirrorRequest::Version | MirrorRequest::Unknown);
            if is_known && !visitor.prove() {
                return Ok(());
            }
            self.answer(&mut socket, request)?;
        }
        Ok(())
    }

    fn answer(&self, socket: &mut TcpStream, request: MirrorRequest) -> Result<()> {
        match request {
            MirrorRequest::Version => reply(socket, "200 OK", "", b""),
            MirrorRequest::Counts => {
                let PieceCounts { relayed, read } = *lock(&self.counts);
                reply(socket, "200 OK", "", format!("{relayed} {read}").as_bytes())
            }
            MirrorRequest::HasManifest(digest) if !self.is_disabled() => {
                reply(socket, "200 OK", &format!("Docker-Content-Digest: {digest}\r\n"), b"")
            }
            MirrorRequest::Whole(file) => match self.whole(file) {
                Some(bytes) => reply(socket, "200 OK", "", &bytes),
                None => reply_not_found(socket),
            },
            MirrorRequest::Range(file, first, last) => self.send_range(socket, file, (first, last)),
            MirrorRequest::HasManifest(_) | MirrorRequest::Unknown => reply_not_found(socket),
        }
    }

    /// A file that is no longer than a manifest may be.
    fn whole(&self, file: RelayFile) -> Option<Vec<u8>> {
        let mut all = vec![];
        loop {
            let piece = RelayPiece::of_image(file, all.len() as u64);
            self.spool.want(piece);
            let is_it = |all: &[u8]| sha256_bytes(all) == *file.digest();
            let Some((bytes, origin)) = self.wait(&piece) else {
                // Where the last piece is a whole one, there is none behind it. Or it could not be had.
                return (!all.is_empty() && is_it(&all)).then_some(all);
            };
            self.count(origin, bytes.len());
            all.extend_from_slice(&bytes);
            match bytes.len() < piece.length as usize {
                true => return is_it(&all).then_some(all),
                false if all.len() as u64 > MAX_DOCUMENT => return None,
                false => {}
            }
        }
    }

    /// Sends bytes as they come. Where some cannot be had the connection ends, and the client asks for the rest.
    fn send_range(&self, socket: &mut TcpStream, file: RelayFile, (first, last): (u64, u64)) -> Result<()> {
        let Some(end) = last.checked_add(1).filter(|end| first < *end) else {
            return reply_not_found(socket);
        };
        let (mut at, mut wanted) = (first, first);
        while at < end {
            while wanted < end && wanted < at.saturating_add(READ_AHEAD) {
                let piece = RelayPiece::of_image(file, wanted);
                self.spool.want(piece);
                wanted = piece.at.saturating_add(piece.length.into());
            }
            let piece = RelayPiece::of_image(file, at);
            let came = self.wait(&piece);
            let part = came.as_ref().and_then(|(bytes, _)| {
                let to = (end - piece.at).min(bytes.len() as u64) as usize;
                bytes.get((at - piece.at) as usize..to).filter(|part| !part.is_empty())
            });
            let Some(part) = part else {
                return if at == first {
                    reply_not_found(socket)
                } else {
                    Err(ErrorKind::UnexpectedEof.into())
                };
            };
            if at == first {
                let head =
                    format!("Content-Range: bytes {first}-{last}/*\r\nContent-Length: {}\r\n", end - first);
                socket.write_all(format!("HTTP/1.1 206 Partial Content\r\n{head}\r\n").as_bytes())?;
            }
            socket.write_all(part)?;
            at += part.len() as u64;
            came.iter().for_each(|(_, origin)| self.count(*origin, part.len()));
        }
        Ok(())
    }

    /// A piece that is wanted, and where it has come from.
    fn wait(&self, piece: &RelayPiece) -> Option<(Arc<Vec<u8>>, PieceOrigin)> {
        lock(&self.pace).begin_to_wait();
        let came = self.wait_at_this_pace(piece);
        let mut pace = lock(&self.pace);
        pace.waiting -= 1;
        pace.came += came.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64);
        came
    }

    fn wait_at_this_pace(&self, piece: &RelayPiece) -> Option<(Arc<Vec<u8>>, PieceOrigin)> {
        while !self.is_disabled() {
            match self.spool.wait(piece, POLL_INTERVAL) {
                WaitedPiece::Here(bytes, origin) => return Some((bytes, origin)),
                WaitedPiece::Failed => return None,
                WaitedPiece::NotYet if lock(&self.pace).is_too_slow() => {
                    self.is_disabled.store(true, Ordering::Relaxed);
                }
                WaitedPiece::NotYet => {}
            }
        }
        None
    }

    fn count(&self, origin: PieceOrigin, bytes: usize) {
        let mut counts = lock(&self.counts);
        match origin {
            PieceOrigin::Node => counts.relayed += bytes as u64,
            PieceOrigin::Source => counts.read += bytes as u64,
        }
    }

    fn is_disabled(&self) -> bool {
        self.is_disabled.load(Ordering::Relaxed)
    }
}

fn reply(socket: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> Result<()> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    socket.write_all(&[head.as_bytes(), body].concat())
}

fn reply_not_found(socket: &mut TcpStream) -> Result<()> {
    reply(socket, "404 Not Found", "", b"")
}
