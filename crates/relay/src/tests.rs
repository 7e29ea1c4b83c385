use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use skiff_launch::handshake::SharedSecret;
use skiff_launch::secure;
use skiff_oci::hash::sha256_hex;
use skiff_snapshot::{Depot, DepotPiece, PackId, PieceCounts, PieceFile, PieceReader};
use tempfile::TempDir;

use skiff_ipc::Codec as _;

use crate::link::word;
use crate::piece::{IMAGE_PIECE, STRIPE};
use crate::wire::{PieceAnswer, PieceRequest, PieceState};
use crate::{
    ImageOpener, Mirror, MirrorAddress, RegistryReader, RelayFile, RelayPatience, RelayPiece, RelayReader,
    RelaySetup, serve,
};

const PIECE: u32 = 300_000;
const IMAGE: [u8; 32] = [5; 32];

/// A job: a depot with one pack, and who listens where.
struct Job {
    dir: TempDir,
    bytes: Vec<u8>,
    secret: SharedSecret,
    ports: Vec<u16>,
    to_answer: Duration,
    to_send: Duration,
}

/// A node that has begun.
struct Node {
    reader: RelayReader,
    alive: OwnedFd,
    served: JoinHandle<()>,
}

impl Job {
    fn new(length: usize, nodes: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("one's own");
        let _made = Depot::open(dir.path()).expect("a depot");
        let bytes: Vec<u8> =
            (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(dir.path().join(format!("packs/{}.pack", pack())), &bytes).expect("a pack");
        // Some more than they need: other tests may take one meanwhile.
        let free: Vec<TcpListener> =
            (0..nodes + 4).map(|_| TcpListener::bind("[::]:0").expect("a port")).collect();
        let ports = free.iter().map(|socket| socket.local_addr().expect("bound").port()).collect();
        let secret = SharedSecret::generate().expect("random bytes");
        let minute = Duration::from_secs(60);
        Self { dir, bytes, secret, ports, to_answer: minute, to_send: minute }
    }

    /// Listens at a port of the job's, as a node does: another test of this program may have taken some meanwhile.
    fn listen(&self) -> TcpListener {
        self.ports.iter().find_map(|port| TcpListener::bind(("::", *port)).ok()).expect("a free port")
    }

    /// The port at which a node answers who belongs to the job.
    fn port_of(&self, node: usize) -> u16 {
        let end = soon();
        while Instant::now() < end {
            for port in &self.ports {
                let Ok(socket) = TcpStream::connect(("127.0.0.1", *port)) else { continue };
                let patience = Instant::now() + Duration::from_secs(5);
                if secure::initiate(socket, (&self.secret, &word(node)), patience).is_ok() {
                    return *port;
                }
            }
        }
        panic!("node {node} does not answer");
    }

    fn pieces(&self) -> Vec<DepotPiece> {
        let starts = (0..self.bytes.len()).step_by(PIECE as usize);
        starts.map(|at| DepotPiece { file: PieceFile::Pack(pack()), at: at as u64, length: PIECE }).collect()
    }

    /// One image has the bytes of the pack.
    fn image_files(&self) -> Box<ImageOpener> {
        let file = self.dir.path().join(format!("packs/{}.pack", pack()));
        Box::new(move |digest| (*digest == IMAGE).then(|| fs::File::open(&file).expect("it is there")))
    }

    fn begin(&self, here: usize, nodes: usize, is_expected: impl Fn(usize) -> bool) -> Node {
        self.begin_with(here, nodes, is_expected, None)
    }

    fn begin_with(
        &self,
        here: usize,
        nodes: usize,
        is_expected: impl Fn(usize) -> bool,
        image: Option<(Mirror, Vec<Box<dyn RegistryReader>>)>,
    ) -> Node {
        let (own, local) = UnixStream::pair().expect("sockets");
        let (waiting, alive) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let setup = RelaySetup {
            nodes: (0..nodes).map(|node| ("127.0.0.1".to_owned(), is_expected(node))).collect(),
            here,
            secret: self.secret.clone(),
            ports: self.ports.clone(),
            depot: Depot::open_existing(self.dir.path()).expect("the depot"),
            image_files: self.image_files(),
            spool: Some(tempfile::tempfile().expect("a file").into()),
            // On a busy machine threads of this process wait for long.
            patience: RelayPatience {
                to_begin: Duration::from_secs(60),
                to_connect: Duration::from_secs(60),
                to_prove: Duration::from_secs(10),
                to_answer: self.to_answer,
                to_send: self.to_send,
                to_try: Duration::from_secs(60),
            },
            image,
        };
        let reader = RelayReader::new(own).expect("a reader");
        let served = thread::spawn(move || serve(setup, local, &waiting).expect("served"));
        Node { reader, alive, served }
    }

    /// Has all nodes read the pack at the same time; where it came from on each.
    fn all_read(&self, nodes: Vec<Node>) -> Vec<PieceCounts> {
        thread::scope(|scope| {
            let read = |node: &Node| {
                node.reader.begin(&self.pieces());
                for piece in self.pieces() {
                    let expected = &self.bytes[piece.at as usize..];
                    let expected = &expected[..expected.len().min(PIECE as usize)];
                    assert!(node.reader.read(&piece).expect("a piece") == expected);
                }
            };
            let reading: Vec<_> = nodes.iter().map(|node| scope.spawn(move || read(node))).collect();
            reading.into_iter().for_each(|reader| reader.join().expect("read"));
        });
        let counts = |node: Node| {
            drop(node.alive);
            node.served.join().expect("it ends");
            node.reader.counts()
        };
        nodes.into_iter().map(counts).collect()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn pack() -> PackId {
    PackId([7; 32])
}

fn from_depot(counts: &[PieceCounts]) -> u64 {
    counts.iter().map(|count| count.read).sum()
}

#[test]
fn the_depot_is_read_once_by_all_together() {
    for nodes in [1, 2, 3, 8] {
        let job = Job::new(30_000_000, nodes);
        let begun = (0..nodes).map(|here| job.begin(here, nodes, |_| true)).collect();
        let counts = job.all_read(begun);
        let length = job.bytes.len() as u64;
        assert_eq!(from_depot(&counts), length, "{counts:?}");
        assert!(counts.iter().all(|count| count.relayed + count.read == length), "{counts:?}");
    }
}

#[test]
fn who_comes_later_has_it_from_the_others() {
    let job = Job::new(9_000_000, 3);
    let first = job.begin(0, 3, |_| true);
    let last = job.begin(2, 3, |_| true);
    let later = job.begin(1, 3, |_| true);
    for node in [&first, &last, &later, &later] {
        node.reader.begin(&job.pieces());
        job.pieces().iter().for_each(|piece| assert!(node.reader.read(piece).is_some()));
    }
    assert_eq!(later.reader.counts().read, 0);
    assert_eq!(from_depot(&job.all_read(vec![first, last, later])), 2 * job.bytes.len() as u64);
}

#[test]
fn nodes_that_are_not_there_are_gone_round() {
    let job = Job::new(9_000_000, 8);
    // Neither the first nor the last one has begun, nor one in the middle.
    let is_there = |node: usize| ![0, 3, 7].contains(&node);
    let begun = (0..8).filter(|node| is_there(*node)).map(|here| job.begin(here, 8, is_there)).collect();
    let counts = job.all_read(begun);
    let length = job.bytes.len() as u64;
    assert!(counts.iter().all(|count| count.relayed + count.read == length));
    // Those below the missing tops read it: two of each tree.
    assert!(from_depot(&counts) <= 3 * length, "{counts:?}");
}

#[test]
fn a_node_that_falls_silent_or_answers_nonsense_is_given_up() {
    for answer in [&[][..], b"nonsense"] {
        let job = Job { to_answer: Duration::from_secs(1), ..Job::new(9_000_000, 2) };
        let listener = job.listen();
        let secret = job.secret.clone();
        let silent = thread::spawn(move || {
            // Nodes of other tests may ask for somebody at this port.
            let mut visits = std::iter::repeat_with(|| listener.accept().expect("a visit").0);
            let (mut reader, mut writer) = visits
                .find_map(|socket| secure::respond(socket, (&secret, &word(0)), soon()).ok())
                .expect("one that knows the secret");
            reader.receive(100).expect("a question");
            if !answer.is_empty() {
                writer.send(answer).expect("sent");
            }
            (reader, writer)
        });
        let counts = job.all_read(vec![job.begin(1, 2, |_| true)]);
        assert_eq!(from_depot(&counts), job.bytes.len() as u64);
        drop(silent.join().expect("no panic"));
    }
}

/// Serves the pack as node `here` does, but slowly. Gives how many pieces it has sent to whom asked for any.
fn serve_slowly(job: &Job, here: usize, pause: Duration) -> JoinHandle<usize> {
    let (listener, secret, bytes) = (job.listen(), job.secret.clone(), job.bytes.clone());
    thread::spawn(move || {
        let mut visits = std::iter::repeat_with(|| listener.accept().expect("a visit").0);
        let (mut reader, mut writer) = visits
            .find_map(|socket| secure::respond(socket, (&secret, &word(here)), soon()).ok())
            .expect("one that knows the secret");
        let mut sent = 0;
        while let Ok(Some(question)) = reader.receive(PieceRequest::LONGEST) {
            let PieceRequest { piece, .. } = PieceRequest::from_bytes(question).expect("a question");
            thread::sleep(pause);
            let from = &bytes[piece.at as usize..];
            let state = PieceState::Relayed(Arc::new(from[..from.len().min(PIECE as usize)].to_vec()));
            let answer = PieceAnswer { piece, state }.to_bytes().expect("an answer");
            if writer.send(&answer).is_err() {
                break;
            }
            sent += 1;
        }
        sent
    })
}

#[test]
fn a_slow_node_is_bypassed() {
    // Of four nodes the last asks the second in the first tree, and nobody in the other. It is compared with the first node.
    let job = Job { to_send: Duration::from_secs(1), ..Job::new(24_000_000, 4) };
    let slow = serve_slowly(&job, 1, Duration::from_secs(1));
    let begun = [0, 2, 3].map(|here| job.begin(here, 4, |_| true)).into();
    let counts = job.all_read(begun);
    let sent = slow.join().expect("no panic");
    // The trials come when it has been waited for 1, 2 and then twice as many seconds.
    let all = job.pieces().iter().filter(|piece| piece.at / STRIPE % 2 == 1).count();
    assert!((1..all).contains(&sent), "{sent} of {all} pieces that go this way");
    assert_eq!(from_depot(&counts), job.bytes.len() as u64, "{counts:?}");
}

/// Serves as node `here` does that has nothing. Counts what it has been asked for.
fn serve_nothing(job: &Job, here: usize) -> Arc<AtomicU64> {
    let (listener, secret, asked) = (job.listen(), job.secret.clone(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&asked);
    // Ends with this program.
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let Ok((mut reader, mut writer)) = secure::respond(socket, (&secret, &word(here)), soon()) else {
                continue;
            };
            while let Ok(Some(question)) = reader.receive(PieceRequest::LONGEST) {
                let PieceRequest { piece, .. } = PieceRequest::from_bytes(question).expect("a question");
                count.fetch_add(1, Ordering::Relaxed);
                let answer = PieceAnswer { piece, state: PieceState::Failed }.to_bytes().expect("an answer");
                if writer.send(&answer).is_err() {
                    break;
                }
            }
        }
    });
    asked
}

#[test]
fn a_node_is_kept_if_the_next_one_has_nothing_sooner() {
    let job = Job { to_send: Duration::from_millis(200), ..Job::new(8_000_000, 4) };
    let slow = serve_slowly(&job, 1, Duration::from_millis(100));
    let asked = serve_nothing(&job, 0);
    job.all_read(vec![job.begin(3, 4, |_| true)]);
    // The second 4 MiB go down the first tree.
    let expected = job.pieces().iter().filter(|piece| piece.at >= STRIPE).count();
    assert_eq!(slow.join().expect("no panic"), expected);
    assert!(asked.load(Ordering::Relaxed) > 0, "the two were compared");
}

#[test]
fn a_node_that_has_not_begun_is_waited_for_though_strangers_have_some_of_its_ports() {
    let job = Job::new(9_000_000, 2);
    let stranger = job.listen();
    let (visited, visits) = std::sync::mpsc::channel();
    let port = stranger.local_addr().expect("bound").port();
    let stranger = thread::spawn(move || {
        while let Ok((socket, _)) = stranger.accept() {
            drop(socket);
            if visited.send(()).is_err() {
                return;
            }
        }
    });
    let later = job.begin(1, 2, |_| true);
    let first = thread::scope(|scope| {
        let read = || {
            later.reader.begin(&job.pieces());
            job.pieces().iter().for_each(|piece| assert!(later.reader.read(piece).is_some()));
        };
        let reading = scope.spawn(read);
        for visit in 0..3 {
            assert!(visits.recv_timeout(Duration::from_secs(20)).is_ok(), "{visit}");
        }
        let first = job.begin(0, 2, |_| true);
        reading.join().expect("read");
        first
    });
    let counts = later.reader.counts();
    job.all_read(vec![first, later]);
    drop(visits);
    // It may have ended already by a visit of a node's.
    let _woken = TcpStream::connect(("127.0.0.1", port));
    stranger.join().expect("no panic");
    assert!(counts.relayed > 0, "{counts:?}");
}

#[test]
fn strangers_are_not_served() {
    let job = Job::new(1_000_000, 2);
    let node = job.begin(0, 2, |_| false);
    let port = job.port_of(0);
    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let other = SharedSecret::generate().expect("random bytes");
    assert!(secure::initiate(connect(), (&other, &word(0)), soon()).is_err());
    // The right secret, but for another node.
    assert!(secure::initiate(connect(), (&job.secret, &word(1)), soon()).is_err());
    let mut socket = connect();
    socket.write_all(&[0; 48]).expect("sent");
    assert_eq!(socket.read(&mut [0; 48]).unwrap_or(0), 0);
    // One who knows it is not held up by all those that say nothing.
    let _silent: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    secure::initiate(connect(), (&job.secret, &word(0)), soon()).expect("it belongs to the job");
    assert_eq!(from_depot(&job.all_read(vec![node])), job.bytes.len() as u64);
}

#[test]
fn what_a_node_has_said_is_of_no_use_to_whoever_has_recorded_it() {
    let job = Job::new(1_000_000, 2);
    let node = job.begin(0, 2, |_| false);
    let port = job.port_of(0);
    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    // Stands between a node and the one above it, and keeps what the first one says.
    let between = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = between.local_addr().expect("bound");
    let (mut above, passed_on) = (connect(), between);
    let recorder = thread::spawn(move || {
        let mut below = passed_on.accept().expect("a node").0;
        let (mut answers, mut to_below) =
            (above.try_clone().expect("the same"), below.try_clone().expect("the same"));
        let back = thread::spawn(move || std::io::copy(&mut answers, &mut to_below).map(drop));
        let (mut said, mut bytes) = (vec![], [0; 4096]);
        while let Ok(count @ 1..) = below.read(&mut bytes) {
            said.extend_from_slice(&bytes[..count]);
            above.write_all(&bytes[..count]).expect("passed on");
        }
        above.shutdown(std::net::Shutdown::Both).expect("the end");
        drop(back.join().expect("no panic"));
        said
    });
    let to_recorder = TcpStream::connect(address).expect("it listens");
    let (mut reader, mut writer) =
        secure::initiate(to_recorder, (&job.secret, &word(0)), soon()).expect("it belongs to the job");
    let question = PieceRequest::of(RelayPiece {
        file: RelayFile::Depot(PieceFile::Pack(pack())),
        at: 0,
        length: PIECE,
    });
    writer.send(&question.to_bytes().expect("short")).expect("asked");
    let answer = loop {
        let answer = reader.receive(PieceAnswer::LONGEST).expect("received").expect("an answer");
        match PieceAnswer::from_bytes(answer).expect("one").state {
            PieceState::NotYet => {}
            state => break state,
        }
    };
    assert!(matches!(answer, PieceState::Read(bytes) if bytes[..] == job.bytes[..PIECE as usize]));
    writer.socket().shutdown(std::net::Shutdown::Both).expect("the end");
    let said = recorder.join().expect("no panic");
    assert!(said.len() > 100, "a hello, a proof and a question");
    // All of it, or any beginning: at most the answer to the hello comes, of which whoever has not made the hello understands nothing.
    for end in [said.len(), said.len() - 1, 48, 48 + 19] {
        let mut socket = connect();
        socket.write_all(&said[..end]).expect("sent");
        socket.shutdown(std::net::Shutdown::Write).expect("nothing more");
        let mut answer = vec![];
        let (Ok(_) | Err(_)) = socket.read_to_end(&mut answer);
        assert!(answer.len() <= 48, "{} bytes came for {end} that were repeated", answer.len());
    }
    job.all_read(vec![node]);
}

#[test]
fn what_the_depot_lacks_is_not_had() {
    let job = Job::new(1_000_000, 2);
    let nodes = [job.begin(0, 2, |_| true), job.begin(1, 2, |_| true)];
    let missing = DepotPiece { file: PieceFile::Pack(PackId([8; 32])), at: 0, length: 10 };
    for node in &nodes {
        node.reader.begin(&[missing]);
        assert_eq!(node.reader.read(&missing), None);
        // The others can be had all the same.
        node.reader.begin(&job.pieces());
        assert!(node.reader.read(&job.pieces()[0]).is_some());
    }
}

#[test]
fn the_file_of_an_image_is_read_once_by_all_together() {
    let job = Job::new(20_000_001, 3);
    let nodes: Vec<Node> = (0..3).map(|here| job.begin(here, 3, |_| true)).collect();
    let length = job.bytes.len() as u64;
    let read = |node: &Node, (digest, length)| {
        let mut all = vec![];
        let take = |bytes: &[u8]| {
            all.extend_from_slice(bytes);
            Ok(())
        };
        let is_whole = node.reader.read_image((digest, length), take).expect("taken");
        (is_whole, all)
    };
    thread::scope(|scope| {
        let reading: Vec<_> =
            nodes.iter().map(|node| scope.spawn(move || read(node, (IMAGE, length)))).collect();
        for reader in reading {
            assert!(reader.join().expect("read") == (true, job.bytes.clone()));
        }
    });
    let counts: Vec<PieceCounts> = nodes.iter().map(|node| node.reader.counts()).collect();
    assert_eq!(from_depot(&counts), length, "{counts:?}");
    assert!(counts.iter().all(|count| count.relayed + count.read == length), "{counts:?}");
    for node in &nodes {
        // One that nobody has, and one that is shorter than it should be.
        assert!(!read(node, ([6; 32], 10)).0 && !read(node, (IMAGE, length + 1)).0);
        // Where the bytes cannot be taken, no more are asked for; the snapshot is read all the same.
        let full = node.reader.read_image((IMAGE, length), |_| Err(std::io::ErrorKind::StorageFull.into()));
        assert_eq!(full.map_err(|e| e.kind()), Err(std::io::ErrorKind::StorageFull));
    }
    job.all_read(nodes);
}

/// A registry with one blob, which counts what is read of it.
#[derive(Clone)]
struct Registry {
    blob: Arc<Vec<u8>>,
    read: Arc<AtomicU64>,
}

const BLOB: [u8; 32] = [9; 32];

impl RegistryReader for Registry {
    fn read(&mut self, piece: &RelayPiece) -> Option<Vec<u8>> {
        let from = (piece.at as usize).min(self.blob.len());
        let to = (from + piece.length as usize).min(self.blob.len());
        let bytes = self.blob[from..to].to_vec();
        (piece.file == RelayFile::Blob(BLOB)).then(|| {
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            bytes
        })
    }

    fn pause(&mut self) {}
}

impl Registry {
    fn new(length: u32) -> Self {
        let blob: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        Self { blob: Arc::new(blob), read: Arc::default() }
    }

    fn mirror(&self) -> ((Mirror, Vec<Box<dyn RegistryReader>>), MirrorAddress) {
        let mirror = Mirror::open().expect("a port");
        let address = mirror.address().clone();
        let reader = |_| -> Box<dyn RegistryReader> { Box::new(self.clone()) };
        ((mirror, (0..8).map(reader).collect()), address)
    }
}

/// One request; the status, and what came with it.
fn ask(at: &MirrorAddress, below: &str, range: Option<(usize, usize)>) -> (String, Vec<u8>) {
    let (server, path) = at.location();
    let mut socket = TcpStream::connect(server).expect("it listens");
    let range = range.map(|(first, last)| format!("Range: bytes={first}-{last}\r\n")).unwrap_or_default();
    write!(socket, "GET /v2/{path}/{below} HTTP/1.1\r\nHost: here\r\n{range}\r\n").expect("sent");
    socket.shutdown(std::net::Shutdown::Write).expect("no more requests");
    let mut answer = vec![];
    socket.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let status = String::from_utf8_lossy(&answer[9..12]).into_owned();
    (status, answer.split_off(end))
}

#[test]
fn a_registry_is_asked_once_by_all_together() {
    let hex = "09".repeat(32);
    let registry = Registry::new(9_000_001);
    let length = registry.blob.len();
    let job = Job::new(1_000, 4);
    let (images, mirrors): (Vec<_>, Vec<_>) = (0..4).map(|_| registry.mirror()).unzip();
    let begin = |(here, image)| job.begin_with(here, 4, |_| true, Some(image));
    let nodes: Vec<_> = images.into_iter().enumerate().map(begin).collect();
    thread::scope(|scope| {
        for mirror in &mirrors {
            // As a pull does: both ends, and what lies between in ranges that begin anywhere.
            for (first, last) in [
                (0, 65_535),
                (length - 70_000, length - 1),
                (65_536, 4_500_000),
                (4_500_001, length - 70_001),
            ] {
                let (hex, blob) = (&hex, &registry.blob);
                scope.spawn(move || {
                    let (status, bytes) = ask(mirror, &format!("blobs/sha256:{hex}"), Some((first, last)));
                    assert_eq!(status, "206");
                    assert!(bytes == blob[first..=last], "{first}-{last}");
                });
            }
        }
    });
    assert_eq!(registry.read.load(Ordering::Relaxed), length as u64);
    let counts: Vec<PieceCounts> =
        mirrors.iter().map(|mirror| mirror.counts().expect("it answers")).collect();
    assert!(counts.iter().all(|count| count.relayed + count.read == length as u64), "{counts:?}");
    assert_eq!(from_depot(&counts), length as u64, "{counts:?}");
    // What ends before is not made up, and what is not there is denied, as is a stranger who does not know the path.
    let past_the_end = ask(&mirrors[2], &format!("blobs/sha256:{hex}"), Some((length - 10, length + 10)));
    assert_eq!(past_the_end.1.len(), 10);
    assert_eq!(ask(&mirrors[1], &format!("blobs/sha256:{hex}"), Some((length, length + 1))).0, "404");
    assert_eq!(ask(&mirrors[1], &format!("blobs/sha256:{}", "08".repeat(32)), Some((0, 9))).0, "404");
    assert_eq!(ask(&mirrors[1], &format!("manifests/sha256:{hex}"), None).0, "404");
    for node in nodes {
        drop(node.alive);
        node.served.join().expect("it ends");
    }
}

/// A registry with one manifest, of which it gives nothing from some place on.
struct BrokenRegistry {
    manifest: Vec<u8>,
    from: u64,
}

impl RegistryReader for BrokenRegistry {
    fn read(&mut self, piece: &RelayPiece) -> Option<Vec<u8>> {
        let from = usize::try_from(piece.at).ok().filter(|_| piece.at < self.from)?;
        let to = (from + piece.length as usize).min(self.manifest.len());
        Some(self.manifest.get(from..to)?.to_vec())
    }

    fn pause(&mut self) {}
}

#[test]
fn half_a_manifest_is_none() {
    let piece = IMAGE_PIECE as usize;
    for (length, fails_from, is_whole) in [
        (2 * piece - 1, 2 * piece, true),
        // There is nothing behind its end.
        (piece, piece, true),
        (2 * piece - 1, piece, false),
    ] {
        let manifest: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let hex = sha256_hex(&manifest);
        let mirror = Mirror::open().expect("a port");
        let address = mirror.address().clone();
        let registry = BrokenRegistry { manifest: manifest.clone(), from: fails_from as u64 };
        let node = Job::new(1_000, 1).begin_with(0, 1, |_| true, Some((mirror, vec![Box::new(registry)])));
        let (status, body) = ask(&address, &format!("manifests/sha256:{hex}"), None);
        match is_whole {
            true => assert!(status == "200" && body == manifest, "{length}: {status}"),
            false => assert_eq!(status, "404", "{length}"),
        }
        drop(node.alive);
        node.served.join().expect("it ends");
    }
}
