//! The process of a node: two threads bring what is wanted, and each who asks is served by two more.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_launch::handshake::SharedSecret;
use skiff_launch::{listener, secure};
use skiff_snapshot::{Depot, DepotPiece};
use skiff_sys::IgnoreError;

use crate::link::{LinkReader, LinkWriter, word};
use crate::spool::{PieceOrigin, Spool, WaitedPiece};
use crate::tree::RelayTree;
use crate::upstream::{Meeting, NodeAbove, Upstream};
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// How often who waits is told that there is still somebody.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// So long after the last question the pieces are kept.
const IDLE: Duration = Duration::from_secs(60);
/// Of so many connections at most. A node is asked by four; more only come when others have failed.
const MOST_LINKS: usize = 64;
/// How long whoever has connected may take to prove that they belong to the job.
const TO_PROVE: Duration = Duration::from_secs(5);
/// Questions of one side that wait for their answers.
const MOST_ASKED: usize = 1024;
/// Each thread's stack. What is large lies on the heap.
const STACK: usize = 256 << 10;

/// What a node needs to know of the others.
pub struct RelaySetup {
    /// The job's nodes, in the same order on each; and which of them begin at the same time as this one.
    pub nodes: Vec<(String, bool)>,
    /// Which of them this one is.
    pub here: usize,
    /// What all of them know, and nobody else.
    pub secret: SharedSecret,
    /// Where each of them listens: at the first of these that it can have.
    pub ports: Vec<u16>,
    /// The depot.
    pub depot: Depot,
    /// A file without a name for what others will ask for.
    pub spool: Option<OwnedFd>,
}

/// Serves other nodes, and whoever asks by `local`, until the other end of `alive` is closed.
///
/// # Errors
/// When no thread can be started.
pub fn serve(setup: RelaySetup, local: UnixStream, alive: &OwnedFd) -> Result<()> {
    let RelaySetup { nodes, here, secret, ports, depot, spool } = setup;
    let is_kept = RelayTree::BOTH.map(|tree| tree.has_below(here, nodes.len()));
    let spool = Arc::new(Spool::new(is_kept, spool.map(File::from)));
    let listener = listen(&ports);
    let meeting = Arc::new(Meeting { secret, ports, begun: Instant::now() });
    let depot = Arc::new(depot);
    for tree in RelayTree::BOTH {
        let above = tree.above(here, nodes.len()).into_iter().map(|node| {
            let (name, is_expected) = nodes[node].clone();
            NodeAbove { number: node, name, is_expected }
        });
        let above: VecDeque<NodeAbove> = above.collect();
        let (spool, depot, meeting) = (Arc::clone(&spool), Arc::clone(&depot), Arc::clone(&meeting));
        thread(move || {
            let files = HashMap::new();
            Upstream { tree, spool: &spool, depot: &depot, meeting: &meeting, above, files }.run();
        })?;
    }
    let reading = local.try_clone()?;
    serve_one(LinkReader::Local(reading), LinkWriter::Local(local), &spool)?;
    wait(listener.as_ref(), alive, &spool, &meeting, &word(here));
    spool.end();
    Ok(())
}

/// Takes connections until the end.
fn wait(
    listener: Option<&TcpListener>,
    alive: &OwnedFd,
    spool: &Arc<Spool>,
    meeting: &Arc<Meeting>,
    word: &str,
) {
    let links = Arc::new(AtomicUsize::new(0));
    let tick = Timespec::try_from(IDLE).ok();
    loop {
        let mut fds = vec![PollFd::new(alive, PollFlags::IN)];
        fds.extend(listener.map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        let ready = poll(&mut fds, tick.as_ref());
        if !fds[0].revents().is_empty() {
            return;
        }
        if ready == Ok(0) {
            spool.forget_if_idle(IDLE);
        }
        let Some(Ok((socket, _))) =
            fds.get(1).filter(|fd| !fd.revents().is_empty()).and(listener).map(TcpListener::accept)
        else {
            continue;
        };
        if links.fetch_add(1, Ordering::Relaxed) >= MOST_LINKS {
            links.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (spool, meeting, count) = (Arc::clone(spool), Arc::clone(meeting), Arc::clone(&links));
        let word = word.to_owned();
        let begun = thread(move || {
            if let Ok((reader, writer)) = prove(socket, &meeting.secret, &word) {
                serve_one(LinkReader::Node(reader), LinkWriter::Node(writer), &spool)
                    .ignore_error("the other side asks another node then");
            }
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if begun.is_err() {
            links.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn prove(
    socket: TcpStream,
    secret: &SharedSecret,
    word: &str,
) -> Result<(secure::SecureReader, secure::SecureWriter)> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(TO_PROVE))?;
    let halves = secure::respond(socket, secret, word)?;
    let socket = halves.1.socket();
    socket.set_read_timeout(None)?;
    listener::keep_alive(&OwnedFd::from(socket.try_clone()?))?;
    Ok(halves)
}

/// Begins to serve one who asks; returns at once for the local one, whose answers a thread of its own gives.
fn serve_one(mut reader: LinkReader, writer: LinkWriter, spool: &Arc<Spool>) -> Result<()> {
    let (ask, asked) = sync_channel(MOST_ASKED);
    let wants = Arc::clone(spool);
    thread(move || {
        while let Ok(Some(PieceRequest(piece))) = reader.receive() {
            wants.want(piece);
            if ask.send(piece).is_err() {
                return;
            }
        }
    })?;
    let spool = Arc::clone(spool);
    match writer {
        LinkWriter::Local(_) => thread(move || answer(&asked, writer, &spool)),
        LinkWriter::Node(_) => {
            answer(&asked, writer, &spool);
            Ok(())
        }
    }
}

/// Answers in the order of the questions.
fn answer(asked: &Receiver<DepotPiece>, mut writer: LinkWriter, spool: &Spool) {
    for piece in asked {
        loop {
            let state = match spool.wait(&piece, SIGN_OF_LIFE) {
                WaitedPiece::Here(bytes, PieceOrigin::Node) => PieceState::Relayed(bytes.to_vec()),
                WaitedPiece::Here(bytes, PieceOrigin::Depot) => PieceState::Read(bytes.to_vec()),
                WaitedPiece::NotYet => PieceState::NotYet,
                WaitedPiece::Failed => PieceState::Failed,
            };
            let is_last = state != PieceState::NotYet;
            if writer.send(&PieceAnswer { piece, state }).is_err() {
                writer.close();
                return;
            }
            if is_last {
                break;
            }
        }
    }
    writer.close();
}

/// A socket at the first port that can be had; without one nobody is served, and others ask the next node above.
fn listen(ports: &[u16]) -> Option<TcpListener> {
    let any = |port| {
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))]
    };
    let bind = |port: &u16| any(*port).iter().find_map(|address| TcpListener::bind(address).ok());
    let listener = ports.iter().find_map(bind)?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}

fn thread(act: impl FnOnce() + Send + 'static) -> Result<()> {
    Builder::new().stack_size(STACK).spawn(act).map(drop).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => std::io::Error::new(e.kind(), "no more threads"),
        _ => e,
    })
}
