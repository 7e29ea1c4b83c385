//! The relay as a registry of this node's: who pulls the job's image here asks it as any mirror, over loopback.
//!
//! Of the distribution protocol it has what such a client needs: manifests and blobs by digest, and ranges of blobs. What it cannot have it
//! denies. Then the client asks the next place, in the end the registry itself.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use skiff_launch::handshake::SharedSecret;
use skiff_oci::manifest::MAX_DOCUMENT;
use skiff_snapshot::PieceCounts;
use skiff_sys::IgnoreError;

use crate::piece::{RelayFile, RelayPiece};
use crate::request::{COUNTS, LONGEST_HEAD, Question, parse, receive_head};
use crate::spool::{PieceOrigin, Spool, WaitedPiece};
use crate::thread::spawn_thread;

/// So many bytes of a range are wanted before the first of them has been sent.
const AHEAD: u64 = 2 << 20;
/// If nothing at all has come for so long, the registry is asked directly from then on.
const SILENCE: Duration = Duration::from_secs(20);
/// How often is looked whether a piece has come.
const LOOK: Duration = Duration::from_millis(500);
/// How long a client may say nothing, or take nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the question takes at most what has come.
const TO_ANSWER: Duration = Duration::from_secs(2);
/// Most connections at a time. A pull has eight, and everybody on this node can connect.
const MOST_CLIENTS: usize = 64;
/// After a connection that could not be taken: descriptors may be free then.
const PAUSE: Duration = Duration::from_millis(100);

/// Where a mirror listens.
pub struct Mirror {
    listener: TcpListener,
    address: MirrorAddress,
}

/// Where a mirror is to be had.
#[derive(Clone, Debug)]
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

    /// Where it is.
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

    /// What has come by it so far; nothing if it does not answer.
    #[must_use]
    pub fn counts(&self) -> Option<PieceCounts> {
        let mut socket = TcpStream::connect_timeout(&self.socket, TO_ANSWER).ok()?;
        socket.set_read_timeout(Some(TO_ANSWER)).ok()?;
        socket.write_all(format!("GET /v2/{}/{COUNTS} HTTP/1.1\r\n\r\n", self.path).as_bytes()).ok()?;
        // It hangs up then.
        socket.shutdown(Shutdown::Write).ok()?;
        let mut answer = String::new();
        socket.take(LONGEST_HEAD as u64).read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let (relayed, read) = body.split_once(' ').filter(|_| head.starts_with("HTTP/1.1 200 "))?;
        Some(PieceCounts { relayed: relayed.parse().ok()?, read: read.parse().ok()? })
    }
}

/// Serves who pulls on this node, as long as this process lives.
pub(crate) fn serve_mirror(mirror: &Mirror, spool: &Arc<Spool>) {
    let desk = Arc::new(Desk {
        spool: Arc::clone(spool),
        path: mirror.address.path.clone(),
        counts: Mutex::default(),
        last_came: Mutex::new(Instant::now()),
        has_given_up: AtomicBool::new(false),
    });
    let clients = Arc::new(AtomicUsize::new(0));
    for socket in mirror.listener.incoming() {
        let Ok(socket) = socket else {
            sleep(PAUSE);
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= MOST_CLIENTS {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (desk, count) = (Arc::clone(&desk), Arc::clone(&clients));
        let begun = spawn_thread(move || {
            desk.serve(socket).ignore_error("the client asks another place then");
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if begun.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What all connections share.
struct Desk {
    spool: Arc<Spool>,
    path: String,
    counts: Mutex<PieceCounts>,
    /// When any piece has come.
    last_came: Mutex<Instant>,
    has_given_up: AtomicBool,
}

impl Desk {
    /// Answers one request after the other.
    fn serve(&self, mut socket: TcpStream) -> Result<()> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let mut received = vec![];
        while let Some(length) = receive_head(&mut socket, &mut received)? {
            let question = parse(&received[..length], &self.path)?;
            received.drain(..length);
            self.answer(&mut socket, question)?;
        }
        Ok(())
    }

    fn answer(&self, socket: &mut TcpStream, question: Question) -> Result<()> {
        match question {
            Question::Version => reply(socket, "200 OK", "", b""),
            Question::Counts => {
                let PieceCounts { relayed, read } = *lock(&self.counts);
                reply(socket, "200 OK", "", format!("{relayed} {read}").as_bytes())
            }
            Question::HasManifest(digest) if !self.has_given_up() => {
                reply(socket, "200 OK", &format!("Docker-Content-Digest: {digest}\r\n"), b"")
            }
            Question::Whole(file) => match self.whole(file) {
                Some(bytes) => reply(socket, "200 OK", "", &bytes),
                None => deny(socket),
            },
            Question::Range(file, first, last) => self.send_range(socket, file, (first, last)),
            Question::HasManifest(_) | Question::Unknown => deny(socket),
        }
    }

    /// A file that is no longer than a manifest may be.
    fn whole(&self, file: RelayFile) -> Option<Vec<u8>> {
        let mut all = vec![];
        loop {
            let piece = RelayPiece::of_registry(file, all.len() as u64);
            self.spool.want(piece);
            let bytes = self.wait(&piece)?;
            self.count(bytes.1, bytes.0.len());
            all.extend_from_slice(&bytes.0);
            match bytes.0.len() < piece.length as usize {
                true => return Some(all),
                false if all.len() as u64 > MAX_DOCUMENT => return None,
                false => {}
            }
        }
    }

    /// Sends bytes as they come. Where some cannot be had the connection ends: the client asks for the rest, and is denied that.
    fn send_range(&self, socket: &mut TcpStream, file: RelayFile, (first, last): (u64, u64)) -> Result<()> {
        let Some(end) = last.checked_add(1).filter(|end| first < *end) else { return deny(socket) };
        let (mut at, mut wanted) = (first, first);
        while at < end {
            while wanted < end && wanted < at.saturating_add(AHEAD) {
                let piece = RelayPiece::of_registry(file, wanted);
                self.spool.want(piece);
                wanted = piece.at.saturating_add(piece.length.into());
            }
            let piece = RelayPiece::of_registry(file, at);
            let came = self.wait(&piece);
            let part = came.as_ref().and_then(|(bytes, _)| {
                let to = (end - piece.at).min(bytes.len() as u64) as usize;
                bytes.get((at - piece.at) as usize..to).filter(|part| !part.is_empty())
            });
            let Some(part) = part else {
                return if at == first { deny(socket) } else { Err(ErrorKind::UnexpectedEof.into()) };
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
        let began = Instant::now();
        while !self.has_given_up() {
            match self.spool.wait(piece, LOOK) {
                WaitedPiece::Here(bytes, origin) => {
                    *lock(&self.last_came) = Instant::now();
                    return Some((bytes, origin));
                }
                WaitedPiece::Failed => return None,
                WaitedPiece::NotYet => {
                    let came = (*lock(&self.last_came)).max(began);
                    self.has_given_up.fetch_or(came.elapsed() > SILENCE, Ordering::Relaxed);
                }
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

    fn has_given_up(&self) -> bool {
        self.has_given_up.load(Ordering::Relaxed)
    }
}

fn reply(socket: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> Result<()> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    socket.write_all(&[head.as_bytes(), body].concat())
}

fn deny(socket: &mut TcpStream) -> Result<()> {
    reply(socket, "404 Not Found", "", b"")
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
