//! Where the pieces of one tree come from: the nodes above, nearest first, and in the end a file or the registry.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use skiff_launch::handshake::SharedSecret;
use skiff_launch::secure;
use skiff_snapshot::Depot;
use skiff_sys::IgnoreError;

use crate::bypass::{LinkPace, fetch_if_faster};
use crate::link::{LinkReader, LinkWriter, word};
use crate::patience::{KEPT_OPEN, RelayPatience};
use crate::piece::{ImageOpener, RelayFile, RelayPiece};
use crate::registry::RegistryThreads;
use crate::spool::{PieceOrigin, Spool};
use crate::tree::RelayTree;
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// Bytes that a node may be asked for before the first of them has come.
const WINDOW: usize = 8 << 20;
/// So many questions at most.
const MOST_ASKED: usize = 500;
/// How often a node is tried that has not begun yet.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// So many open files at most.
const MOST_FILES: usize = 32;
/// When so many nodes do not answer at all, others will not either.
const MOST_SILENT: u32 = 2;

/// A node above.
pub(crate) struct RelayAncestor {
    /// Which of the job's nodes it is.
    pub(crate) number: usize,
    pub(crate) name: String,
    /// Once they are known.
    pub(crate) addresses: Option<Vec<IpAddr>>,
    /// Whether it begins at the same time.
    pub(crate) is_expected: bool,
}

/// How nodes find and know each other.
pub(crate) struct PeerSettings {
    pub(crate) secret: SharedSecret,
    pub(crate) ports: Vec<u16>,
    pub(crate) begun: Instant,
    pub(crate) patience: RelayPatience,
}

/// What can be read of files.
pub(crate) struct FileSource {
    pub(crate) depot: Depot,
    pub(crate) image_files: Box<ImageOpener>,
}

pub(crate) struct Upstream<'a> {
    pub(crate) tree: RelayTree,
    pub(crate) spool: &'a Spool,
    pub(crate) source: &'a FileSource,
    pub(crate) peers: &'a PeerSettings,
    pub(crate) above: VecDeque<RelayAncestor>,
    pub(crate) files: HashMap<RelayFile, File>,
    pub(crate) registry: &'a RegistryThreads,
}

/// A connection to the node above that is asked.
struct RelayLink {
    reader: LinkReader,
    writer: LinkWriter,
    asked: VecDeque<RelayPiece>,
    pace: LinkPace,
}

impl Upstream<'_> {
    /// Brings whatever is wanted, until nobody wants anything any more.
    pub(crate) fn run(mut self) {
        let mut link = None;
        while let Some(piece) = self.next_wanted() {
            link = match link.take().or_else(|| self.connect()) {
                Some(open) => self.fetch_pieces(open, piece),
                None => {
                    self.read(piece);
                    None
                }
            };
        }
    }

    /// The next piece. Files stay open only while pieces are wanted.
    fn next_wanted(&mut self) -> Option<RelayPiece> {
        let soon = self.spool.wait_for_wanted(self.tree, Some(KEPT_OPEN));
        soon.or_else(|| {
            self.files.clear();
            self.spool.wait_for_wanted(self.tree, None)
        })
    }

    /// Asks for this piece and all others that are wanted meanwhile; gives the connection back when nothing is.
    fn fetch_pieces(&mut self, mut link: RelayLink, first: RelayPiece) -> Option<RelayLink> {
        let mut next = Some(first);
        loop {
            if let Some(piece) = next.take() {
                link.asked.push_back(piece);
                if link.writer.send(&PieceRequest::of(piece)).is_err() {
                    return self.drop_link(&link);
                }
            }
            let open: usize = link.asked.iter().map(|piece| piece.length as usize).sum();
            if open < WINDOW && link.asked.len() < MOST_ASKED {
                next = self.spool.next_wanted(self.tree);
            }
            match (&next, link.asked.front().copied()) {
                (Some(_), _) => {}
                (None, None) => return Some(link),
                (None, Some(expected)) => {
                    let Some(PieceAnswer { piece, state }) = receive(&mut link) else {
                        return self.drop_link(&link);
                    };
                    match state {
                        _ if piece != expected => return self.drop_link(&link),
                        PieceState::NotYet => {}
                        PieceState::Failed => {
                            link.asked.pop_front();
                            self.read_after_failure(piece);
                        }
                        PieceState::Relayed(bytes) | PieceState::Read(bytes) => {
                            link.asked.pop_front();
                            self.spool.put(piece, bytes, PieceOrigin::Node);
                        }
                    }
                    // One who asks for a piece at a time has nothing by which the two could be compared.
                    if link.pace.is_trial_due()
                        && !link.asked.is_empty()
                        && let Some(next) = self.bypass(&mut link)
                    {
                        return Some(next);
                    }
                }
            }
        }
    }

    /// A connection to the next node above, if that one is much faster than the one that was asked, which is then given up.
    fn bypass(&mut self, slow: &mut RelayLink) -> Option<RelayLink> {
        let found = self.above.get_mut(1).map(|next| dial(next, self.peers));
        let faster = match found {
            Some(Ok(mut next)) => {
                let halves = (&mut next.reader, &mut next.writer);
                fetch_if_faster(&slow.pace, slow.asked.iter(), halves, self.peers.patience.to_try)
                    .map(|pieces| (next, pieces))
            }
            // It is another program's port, or has no address.
            Some(Err(NoLink::Other)) => self.above.remove(1).and(None),
            // It may begin yet, or answer later.
            Some(Err(NoLink::NotYet | NoLink::TimedOut)) | None => None,
        };
        let Some((next, pieces)) = faster else {
            slow.pace.put_off();
            return None;
        };
        for (piece, bytes) in pieces {
            self.spool.put(piece, bytes, PieceOrigin::Node);
        }
        self.drop_link(slow);
        Some(next)
    }

    /// Gives up the node that was asked: the next one above is asked for what it has not answered.
    fn drop_link(&mut self, link: &RelayLink) -> Option<RelayLink> {
        link.writer.close();
        self.above.pop_front();
        self.spool.still_wanted(self.tree, link.asked.iter().copied());
        None
    }

    /// A connection to the nearest node above that is there.
    fn connect(&mut self) -> Option<RelayLink> {
        let mut timed_out = 0;
        while let Some(node) = self.above.front_mut() {
            let may_yet_begin = node.is_expected && self.peers.begun.elapsed() < self.peers.patience.to_begin;
            match dial(node, self.peers) {
                Ok(link) => return Some(link),
                Err(NoLink::NotYet) if may_yet_begin => sleep(RETRY_PAUSE),
                Err(NoLink::TimedOut) if timed_out + 1 >= MOST_SILENT => self.above.clear(),
                Err(why) => {
                    timed_out += u32::from(matches!(why, NoLink::TimedOut));
                    self.above.pop_front();
                }
            }
        }
        None
    }

    fn read(&mut self, piece: RelayPiece) {
        if matches!(piece.file, RelayFile::Manifest(_) | RelayFile::Blob(_)) {
            return self.registry.read(piece, self.spool);
        }
        match self.read_file(&piece) {
            Some(bytes) => self.spool.put(piece, Arc::new(bytes), PieceOrigin::Source),
            // Who wanted it reads it itself, and says what is wrong.
            None => self.spool.fail(piece),
        }
    }

    /// A piece that the node above could not have. What a registry has denied to that one, not each node asks it for in turn.
    fn read_after_failure(&mut self, piece: RelayPiece) {
        match piece.file {
            RelayFile::Depot(_) | RelayFile::Image(_) => self.read(piece),
            RelayFile::Manifest(_) | RelayFile::Blob(_) => self.spool.fail(piece),
        }
    }

    fn read_file(&mut self, piece: &RelayPiece) -> Option<Vec<u8>> {
        if self.files.len() >= MOST_FILES {
            self.files.clear();
        }
        if !self.files.contains_key(&piece.file)
            && let Some(file) = self.source.open(&piece.file)
        {
            self.files.insert(piece.file, file);
        }
        piece.read_from(self.files.get(&piece.file)?).ok()
    }
}

impl FileSource {
    fn open(&self, file: &RelayFile) -> Option<File> {
        match file {
            RelayFile::Depot(file) => self.depot.open_piece_file(file).ok().map(File::from),
            RelayFile::Image(digest) => (self.image_files)(digest),
            RelayFile::Manifest(_) | RelayFile::Blob(_) => None,
        }
    }
}

/// The next answer; nothing if there is none.
fn receive(link: &mut RelayLink) -> Option<PieceAnswer> {
    let began = Instant::now();
    let answer = link.reader.receive::<PieceAnswer>().ok()??;
    let came = match &answer.state {
        PieceState::Relayed(bytes) | PieceState::Read(bytes) => bytes.len(),
        PieceState::NotYet | PieceState::Failed => 0,
    };
    link.pace.note(began.elapsed(), came);
    Some(answer)
}

/// Why there is no connection to a node.
enum NoLink {
    /// At some of its ports nobody listens, and at the others are strangers: it may not have begun.
    NotYet,
    /// Nobody answers at all.
    TimedOut,
    /// Whoever listens at all of its ports does not know the secret, or something else is wrong.
    Other,
}

/// A connection to a node, at whichever of the ports it listens.
fn dial(node: &mut RelayAncestor, peers: &PeerSettings) -> std::result::Result<RelayLink, NoLink> {
    let until = Instant::now() + peers.patience.to_connect;
    let addresses = node.addresses.get_or_insert_with(|| resolve(&node.name, until));
    let (mut tried, mut refused, mut timed_out) = (0, 0, false);
    for address in addresses.iter() {
        for port in &peers.ports {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoLink::TimedOut);
            }
            tried += 1;
            match dial_at(SocketAddr::new(*address, *port), peers, node.number, left) {
                Ok(link) => return Ok(link),
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => refused += 1,
                // Its other ports do not answer either; another address may.
                Err(e) if e.kind() == ErrorKind::TimedOut => {
                    timed_out = true;
                    break;
                }
                Err(_) => {}
            }
        }
    }
    Err(match tried {
        0 => NoLink::Other,
        _ if timed_out => NoLink::TimedOut,
        _ if refused > 0 => NoLink::NotYet,
        _ => NoLink::Other,
    })
}

/// The addresses of a name. The thread that asks is left behind if nobody answers it.
fn resolve(name: &str, until: Instant) -> Vec<IpAddr> {
    let (answer, answered) = channel();
    let name = name.to_owned();
    let asked = Builder::new().spawn(move || {
        let ips =
            |found: std::vec::IntoIter<SocketAddr>| found.map(|address| address.ip()).collect::<Vec<_>>();
        answer
            .send((name.as_str(), 0).to_socket_addrs().map(ips))
            .ignore_error("nobody waits for it any longer");
    });
    let left = until.saturating_duration_since(Instant::now());
    let found = asked.ok().and_then(|_| answered.recv_timeout(left).ok());
    let Some(Ok(mut found)) = found else { return vec![] };
    found.dedup();
    found
}

fn dial_at(address: SocketAddr, peers: &PeerSettings, node: usize, limit: Duration) -> Result<RelayLink> {
    let limit = limit.min(peers.patience.to_prove);
    let until = Instant::now() + limit;
    let socket = TcpStream::connect_timeout(&address, limit)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(peers.patience.to_answer))?;
    // One who listens and says nothing is another's program: the next port may be the node's.
    let (reader, writer) = secure::initiate(socket, (&peers.secret, &word(node)), until)
        .map_err(|e| if e.kind() == ErrorKind::TimedOut { ErrorKind::WouldBlock.into() } else { e })?;
    writer.socket().set_read_timeout(Some(peers.patience.to_answer))?;
    let (reader, writer) = (LinkReader::Node(reader), LinkWriter::Node(writer));
    Ok(RelayLink { reader, writer, asked: VecDeque::new(), pace: LinkPace::new(peers.patience.to_send) })
}
