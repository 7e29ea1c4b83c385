//! The process of a node: two threads bring what is wanted, and each who asks is served by two more.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_launch::handshake::SharedSecret;
use skiff_launch::{listener, secure};
use skiff_snapshot::Depot;
use skiff_sys::IgnoreError;

use crate::link::{LinkReader, LinkWriter, word};
use crate::mirror::{Mirror, serve_mirror};
use crate::patience::{ACCEPT_PAUSE, RelayPatience};
use crate::piece::{ImageOpener, RegistryReader};
use crate::registry::RegistryThreads;
use crate::spool::{PieceOrigin, Spool, WaitedPiece};
use crate::thread::spawn_thread;
use crate::tree::{RelayTree, asked, may_be_asked};
use crate::upstream::{FileSource, PeerSettings, RelayAncestor, Upstream};
use crate::visitors::Visitors;
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// How often who waits is told that there is still somebody.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// So long after the last question the pieces are kept.
const IDLE: Duration = Duration::from_secs(60);
/// How long whoever has connected may take to prove that they belong to the job.
const TO_PROVE: Duration = Duration::from_secs(5);
/// Questions of one side that wait for their answers.
const MOST_ASKED: usize = 1024;

/// What a node needs to know of the others.
pub struct RelaySetup {
    /// The job's nodes, in the same order on each; and which of them begin at the same time as this one.
    pub nodes: Vec<(String, bool)>,
    /// The place of this node among them.
    pub here: usize,
    /// What all of them know, and nobody else.
    pub secret: SharedSecret,
    /// Where each of them listens: at the first of these that it can have.
    pub ports: Vec<u16>,
    /// The depot.
    pub depot: Depot,
    /// Who opens the files of images that are in no registry.
    pub image_files: Box<ImageOpener>,
    /// A file without a name for what others will ask for.
    pub spool: Option<OwnedFd>,
    /// How long others may take.
    pub patience: RelayPatience,
    /// Where the job's image is to be had on this node, and who asks its registry.
    pub image: Option<(Mirror, Vec<Box<dyn RegistryReader>>)>,
}

/// Serves other nodes, and whoever asks by `local`, until the other end of `alive` is closed.
///
/// # Errors
/// When no thread can be started.
pub fn serve(setup: RelaySetup, local: UnixStream, alive: &OwnedFd) -> Result<()> {
    let RelaySetup { nodes, here, secret, ports, depot, image_files, spool, patience, image } = setup;
    let begin_now: Vec<bool> = nodes.iter().map(|(_, begins)| *begins).collect();
    let is_kept = RelayTree::BOTH.map(|tree| may_be_asked(tree, here, &begin_now));
    let spool = Arc::new(Spool::new(is_kept, spool.map(File::from)));
    let listener = listen(&ports);
    let peers = Arc::new(PeerSettings { secret, ports, begun: Instant::now(), patience });
    let source = Arc::new(FileSource { depot, image_files });
    let (mirror, readers) = image.map_or((None, vec![]), |(mirror, readers)| (Some(mirror), readers));
    let registry = Arc::new(RegistryThreads::begin(readers, &spool)?);
    for tree in RelayTree::BOTH {
        let above = asked(tree, here, &begin_now).into_iter().map(|node| {
            let (name, is_expected) = nodes[node].clone();
            RelayAncestor { number: node, name, addresses: None, is_expected }
        });
        let above: VecDeque<RelayAncestor> = above.collect();
        let (spool, source, peers) = (Arc::clone(&spool), Arc::clone(&source), Arc::clone(&peers));
        let registry = Arc::clone(&registry);
        spawn_thread(move || {
            let files = HashMap::new();
            Upstream {
                tree,
                spool: &spool,
                source: &source,
                peers: &peers,
                above,
                files,
                registry: &registry,
            }
            .run();
        })?;
    }
    if let Some(mirror) = mirror {
        let spool = Arc::clone(&spool);
        spawn_thread(move || serve_mirror(&mirror, &spool))?;
    }
    let reading = local.try_clone()?;
    serve_one(LinkReader::Local(reading, vec![]), LinkWriter::Local(local), &spool, || false)?;
    accept_connections(listener.as_ref(), alive, &spool, &peers, &word(here));
    spool.end();
    Ok(())
}

/// Takes connections until the end.
fn accept_connections(
    listener: Option<&TcpListener>,
    alive: &OwnedFd,
    spool: &Arc<Spool>,
    peers: &Arc<PeerSettings>,
    word: &str,
) {
    let visitors = Arc::new(Visitors::default());
    let tick = Timespec::try_from(IDLE).ok();
    let mut looked = Instant::now();
    loop {
        let mut fds = vec![PollFd::new(alive, PollFlags::IN)];
        fds.extend(listener.map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        poll(&mut fds, tick.as_ref()).ignore_error("interrupted or not: what is ready shows");
        if !fds[0].revents().is_empty() {
            return;
        }
        if looked.elapsed() >= IDLE {
            spool.forget_if_idle(IDLE);
            looked = Instant::now();
        }
        let has_come = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        match listener.filter(|_| has_come).map(TcpListener::accept) {
            Some(Ok((socket, _))) => serve_connection(socket, (spool, peers, word), &visitors),
            Some(Err(e)) if e.kind() != ErrorKind::WouldBlock => sleep(ACCEPT_PAUSE),
            _ => {}
        }
    }
}

/// Serves whoever has connected, if they prove that they belong to the job.
fn serve_connection(
    socket: TcpStream,
    (spool, peers, word): (&Arc<Spool>, &Arc<PeerSettings>, &str),
    visitors: &Arc<Visitors>,
) {
    let Ok(mut visitor) = visitors.come(&socket) else { return };
    let (spool, peers, word) = (Arc::clone(spool), Arc::clone(peers), word.to_owned());
    spawn_thread(move || {
        if let Ok((reader, writer)) = prove(socket, &peers.secret, &word)
            && visitor.prove()
        {
            serve_one(LinkReader::Node(reader), LinkWriter::Node(writer), &spool, || visitor.are_many())
                .ignore_error("the other side asks another node then");
        }
    })
    .ignore_error("so does it where there are no threads");
}

fn prove(
    socket: TcpStream,
    secret: &SharedSecret,
    word: &str,
) -> Result<(secure::SecureReader, secure::SecureWriter)> {
    socket.set_nonblocking(false)?;
    let halves = secure::respond(socket, (secret, word), Instant::now() + TO_PROVE)?;
    listener::keep_alive(&OwnedFd::from(halves.1.socket().try_clone()?))?;
    Ok(halves)
}

/// Begins to serve one who asks; returns at once for the local one, whose answers a thread of its own gives.
fn serve_one(
    mut reader: LinkReader,
    writer: LinkWriter,
    spool: &Arc<Spool>,
    is_busy: impl Fn() -> bool,
) -> Result<()> {
    let (ask, asked) = sync_channel(MOST_ASKED);
    let wants = Arc::clone(spool);
    spawn_thread(move || {
        while let Ok(Some(request)) = reader.receive::<PieceRequest>() {
            if !request.only_if_here {
                wants.want(request.piece);
            }
            if ask.send(request).is_err() {
                return;
            }
        }
    })?;
    let spool = Arc::clone(spool);
    match writer {
        LinkWriter::Local(_) => spawn_thread(move || answer(&asked, writer, &spool, || false)),
        LinkWriter::Node(_) => {
            answer(&asked, writer, &spool, is_busy);
            Ok(())
        }
    }
}

/// Answers in the order of the questions. Whoever could ask another node is refused where there are many.
fn answer(asked: &Receiver<PieceRequest>, mut writer: LinkWriter, spool: &Spool, is_busy: impl Fn() -> bool) {
    for PieceRequest { piece, only_if_here } in asked {
        loop {
            let found = match only_if_here {
                true if is_busy() => WaitedPiece::Failed,
                true => spool.find(&piece),
                false => spool.wait(&piece, SIGN_OF_LIFE),
            };
            let state = match found {
                WaitedPiece::Here(bytes, PieceOrigin::Node) => PieceState::Relayed(bytes),
                WaitedPiece::Here(bytes, PieceOrigin::Source) => PieceState::Read(bytes),
                WaitedPiece::NotYet if only_if_here => PieceState::Failed,
                WaitedPiece::NotYet => PieceState::NotYet,
                WaitedPiece::Failed => PieceState::Failed,
            };
            let is_last = state != PieceState::NotYet;
            if writer.send_answer(&PieceAnswer { piece, state }).is_err() {
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
