//! Where the pieces of one tree come from: the nodes above, nearest first, and in the end the depot.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Result};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use skiff_launch::handshake::SharedSecret;
use skiff_launch::secure;
use skiff_snapshot::{Depot, DepotPiece, PieceFile};

use crate::link::{LinkReader, LinkWriter, word};
use crate::spool::{PieceOrigin, Spool};
use crate::tree::RelayTree;
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// Bytes that a node may be asked for before the first of them has come.
const WINDOW: usize = 8 << 20;
/// So many questions at most.
const MOST_ASKED: usize = 500;
/// A node that is silent for so long is given up: who waits itself says so more often.
const SILENCE: Duration = Duration::from_secs(3);
/// How long a connection may take to be made.
const TO_CONNECT: Duration = Duration::from_secs(1);
/// How long nodes that begin at the same time as this one may take until they listen.
const TO_BEGIN: Duration = Duration::from_secs(3);
/// How often that is tried.
const AGAIN: Duration = Duration::from_millis(20);

/// A node above.
pub(crate) struct NodeAbove {
    /// Which of the job's nodes it is.
    pub(crate) number: usize,
    pub(crate) name: String,
    /// Whether it begins at the same time.
    pub(crate) is_expected: bool,
}

/// How nodes find and know each other.
pub(crate) struct Meeting {
    pub(crate) secret: SharedSecret,
    pub(crate) ports: Vec<u16>,
    pub(crate) begun: Instant,
}

pub(crate) struct Upstream<'a> {
    pub(crate) tree: RelayTree,
    pub(crate) spool: &'a Spool,
    pub(crate) depot: &'a Depot,
    pub(crate) meeting: &'a Meeting,
    pub(crate) above: VecDeque<NodeAbove>,
    pub(crate) files: HashMap<PieceFile, OwnedFd>,
}

struct Link {
    reader: LinkReader,
    writer: LinkWriter,
    asked: VecDeque<DepotPiece>,
}

impl Upstream<'_> {
    /// Brings whatever is wanted, until nobody wants anything any more.
    pub(crate) fn run(mut self) {
        let mut link = None;
        while let Some(piece) = self.spool.next_wanted(self.tree, true) {
            link = match link.take().or_else(|| self.connect()) {
                Some(open) => self.bring(open, piece),
                None => {
                    self.read(piece);
                    None
                }
            };
        }
    }

    /// Asks for this piece and all others that are wanted meanwhile; gives the connection back when nothing is.
    fn bring(&mut self, mut link: Link, first: DepotPiece) -> Option<Link> {
        let mut next = Some(first);
        loop {
            if let Some(piece) = next.take() {
                link.asked.push_back(piece);
                if link.writer.send(&PieceRequest(piece)).is_err() {
                    return self.lose(&link);
                }
            }
            let open: usize = link.asked.iter().map(|piece| piece.length as usize).sum();
            if open < WINDOW && link.asked.len() < MOST_ASKED {
                next = self.spool.next_wanted(self.tree, false);
            }
            match (&next, link.asked.front().copied()) {
                (Some(_), _) => {}
                (None, None) => return Some(link),
                (None, Some(expected)) => match link.reader.receive::<PieceAnswer>() {
                    Ok(Some(PieceAnswer { piece, state })) if piece == expected => match state {
                        PieceState::NotYet => {}
                        PieceState::Failed => {
                            link.asked.pop_front();
                            self.read(piece);
                        }
                        PieceState::Relayed(bytes) | PieceState::Read(bytes) => {
                            link.asked.pop_front();
                            self.spool.put(piece, bytes, PieceOrigin::Node);
                        }
                    },
                    _ => return self.lose(&link),
                },
            }
        }
    }

    /// Gives up the node that was asked: the next one above is asked for what it has not answered.
    fn lose(&mut self, link: &Link) -> Option<Link> {
        link.writer.close();
        self.above.pop_front();
        self.spool.still_wanted(self.tree, link.asked.iter().copied());
        None
    }

    /// A connection to the nearest node above that is there.
    fn connect(&mut self) -> Option<Link> {
        while let Some(node) = self.above.front() {
            match dial(node, self.meeting) {
                Ok(link) => return Some(link),
                Err(e) if e.kind() == ErrorKind::ConnectionRefused && self.may_yet_begin(node) => {
                    sleep(AGAIN)
                }
                Err(_) => {
                    self.above.pop_front();
                }
            }
        }
        None
    }

    fn may_yet_begin(&self, node: &NodeAbove) -> bool {
        node.is_expected && self.meeting.begun.elapsed() < TO_BEGIN
    }

    fn read(&mut self, piece: DepotPiece) {
        if !self.files.contains_key(&piece.file)
            && let Ok(file) = self.depot.open_piece_file(&piece.file)
        {
            self.files.insert(piece.file, file);
        }
        match self.files.get(&piece.file).map(|file| piece.read_from(file)) {
            Some(Ok(bytes)) => self.spool.put(piece, bytes, PieceOrigin::Depot),
            // Who wanted it reads the depot itself, and says what is wrong.
            _ => self.spool.fail(piece),
        }
    }
}

/// A connection to a node, at whichever of the ports it listens. That none of them does is the answer only if all say so.
fn dial(node: &NodeAbove, meeting: &Meeting) -> Result<Link> {
    let mut refused = Err(ErrorKind::AddrNotAvailable.into());
    for port in &meeting.ports {
        for address in (node.name.as_str(), *port).to_socket_addrs()? {
            match dial_at(address, &meeting.secret, node.number) {
                Ok(link) => return Ok(link),
                // Somebody else listens there, or nobody.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => refused = Err(e),
                Err(e) if e.kind() == ErrorKind::TimedOut => return Err(e),
                Err(_) => {}
            }
        }
    }
    refused
}

fn dial_at(address: SocketAddr, secret: &SharedSecret, node: usize) -> Result<Link> {
    let socket = TcpStream::connect_timeout(&address, TO_CONNECT)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TO_CONNECT))?;
    socket.set_write_timeout(Some(SILENCE))?;
    let (reader, writer) = secure::initiate(socket, secret, &word(node))?;
    writer.socket().set_read_timeout(Some(SILENCE))?;
    Ok(Link { reader: LinkReader::Node(reader), writer: LinkWriter::Node(writer), asked: VecDeque::new() })
}
