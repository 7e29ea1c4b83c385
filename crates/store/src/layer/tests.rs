//! Layers made by hand: what the overlay needs is in the file, and what is not the layer asked for never gets there.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use skiff_erofs::{InodeKind, Reader};
use skiff_image::assemble::ImageLimits;
use skiff_snapshot::stream::LayerReader;
use skiff_snapshot::{LayerId, LayerStream as _};
use skiff_spec::image::ImageId;

use super::file::{self, LayerFile};
use super::{LayerJob, Pace, ReceivedLayer, StoredLayer, receive};
use crate::error::{Error, Result};
use crate::protocol::LayerRequest;
use crate::store::{Quota, Store};

/// A layer's stream, record by record, as `crates/snapshot/src/layer/mod.rs` says.
struct Stream {
    bytes: Vec<u8>,
    records: u64,
    data: u64,
}

impl Stream {
    fn new() -> Self {
        let mut stream = Self { bytes: b"SKIFFLAY\x01\0\0\0\0\0\0\0".to_vec(), records: 0, data: 0 };
        stream.dir("", 0o755, false);
        stream
    }

    fn head(&mut self, tag: u8, name: &str) {
        self.records += 1;
        self.bytes.push(tag);
        self.bytes.extend((name.len() as u16).to_le_bytes());
        self.bytes.extend(name.as_bytes());
    }

    fn attr(&mut self, mode: u32, xattrs: &[(&str, &[u8])]) {
        for number in [mode, 7, 8] {
            self.bytes.extend(number.to_le_bytes());
        }
        self.bytes.extend(1_700_000_000_i64.to_le_bytes());
        self.bytes.extend(5_u32.to_le_bytes());
        self.bytes.extend((xattrs.len() as u16).to_le_bytes());
        for (name, value) in xattrs {
            self.bytes.extend((name.len() as u16).to_le_bytes());
            self.bytes.extend(name.as_bytes());
            self.bytes.extend((value.len() as u32).to_le_bytes());
            self.bytes.extend(*value);
        }
    }

    fn dir(&mut self, name: &str, mode: u32, opaque: bool) {
        self.head(1, name);
        self.attr(mode, &[]);
        self.bytes.push(u8::from(opaque));
    }

    fn up(&mut self) {
        self.records += 1;
        self.bytes.push(7);
    }

    /// A file whose data are these pieces; its length is where the last one ends, or `size`.
    fn file(&mut self, name: &str, linked: bool, size: u64, pieces: &[(u64, &[u8])]) {
        self.head(2, name);
        self.attr(0o4711, &[("user.note", b"kept")]);
        self.bytes.push(u8::from(linked));
        self.bytes.extend(size.to_le_bytes());
        let mut hasher = blake3::Hasher::new();
        for (at, bytes) in pieces {
            self.bytes.extend(at.to_le_bytes());
            self.bytes.extend((bytes.len() as u64).to_le_bytes());
            self.bytes.extend(*bytes);
            hasher.update(bytes);
            self.data += bytes.len() as u64;
        }
        self.bytes.extend(u64::MAX.to_le_bytes());
        self.bytes.extend(hasher.finalize().as_bytes());
    }

    fn symlink(&mut self, name: &str, target: &str) {
        self.head(3, name);
        self.attr(0o777, &[]);
        self.bytes.extend((target.len() as u16).to_le_bytes());
        self.bytes.extend(target.as_bytes());
    }

    fn fifo(&mut self, name: &str) {
        self.head(4, name);
        self.attr(0o600, &[]);
    }

    fn whiteout(&mut self, name: &str) {
        self.head(5, name);
    }

    fn link(&mut self, name: &str, number: u32) {
        self.head(6, name);
        self.bytes.extend(number.to_le_bytes());
    }

    /// The whole stream, and its digest.
    fn end(mut self) -> (Vec<u8>, ImageId) {
        self.up();
        self.bytes.push(8);
        self.bytes.extend(self.records.to_le_bytes());
        self.bytes.extend(self.data.to_le_bytes());
        let mut reader = LayerReader::new(&self.bytes[..], "test".into()).expect("a layer");
        while reader.record().expect("sound").is_some() {}
        let id = ImageId(reader.finish().expect("whole").0);
        (self.bytes, id)
    }
}

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).expect("a store");
    (dir, store)
}

fn send(store: &Store, uid: u32, id: ImageId, bytes: &[u8]) -> Result<ReceivedLayer> {
    send_as(store, uid, (id, bytes.len() as u64), bytes)
}

fn request(id: ImageId, size: u64) -> LayerRequest {
    LayerRequest { id, size, budget: u64::MAX, snapshot: vec![id], patience_ms: 700 }
}

/// Sends a layer that is said to be so long.
fn send_as(store: &Store, uid: u32, (id, size): (ImageId, u64), bytes: &[u8]) -> Result<ReceivedLayer> {
    let (sent, mut to) = UnixStream::pair().expect("sockets");
    let bytes = bytes.to_vec();
    // A writer that wants no more hangs up.
    let sending = std::thread::spawn(move || drop(to.write_all(&bytes)));
    let wanted = request(id, size);
    let job = LayerJob { store, uid, wanted: &wanted, sent: &sent, pace: Pace::default() };
    let taken = receive(&job, &mut || ());
    drop(sent);
    sending.join().expect("sent");
    taken
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed ^ (n >> 8) as u8)).collect()
}

fn read_all<S: skiff_erofs::ReadAt>(reader: &Reader<S>, inode: &skiff_erofs::StoredInode) -> Vec<u8> {
    let mut bytes = vec![0; inode.size as usize];
    if !bytes.is_empty() {
        reader.read_at(inode, &mut bytes, 0).expect("read");
    }
    bytes
}

/// Whatever quota the user has: a layer that is a few bytes in a depot may have gigabytes of them.
#[test]
fn what_is_kept_in_memory_of_a_layer_is_bounded() {
    let mut stream = Stream::new();
    for number in 0..20 {
        stream.symlink(&format!("{number:02}"), &"t".repeat(4000));
    }
    let (bytes, id) = stream.end();
    let dir = tempfile::tempdir().expect("a directory");
    let room = std::fs::File::open(dir.path()).expect("open");
    let write = |entries, texts| {
        let image = tempfile::tempfile_in(dir.path()).expect("a file");
        let target = LayerFile {
            image: image.as_fd(),
            name: "layer",
            scratch: (room.as_fd(), "room"),
            limits: ImageLimits { bytes: u64::MAX, entries, texts },
            check_quota: &mut || Ok(()),
            room: &mut |_| Ok(()),
        };
        let reader = LayerReader::new(&bytes[..], "layer".into()).expect("a layer");
        file::write(reader, LayerId(id.0), target).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(write(30, 100_000), Ok(()));
    for (refused, why) in [
        (write(30, 50_000), "more than 50000 bytes of names, links and attributes"),
        (write(10, 100_000), "more than 10 entries"),
    ] {
        let error = refused.expect_err("too much");
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn all_of_a_layer_is_in_its_file() {
    let whole = [0, 1, 4095, 4096, 4097, 3 << 20].map(|length| pattern(length, 3));
    let names = ["a0", "a1", "a4095", "a4096", "a4097", "alarge"];
    let mut stream = Stream::new();
    for (name, bytes) in names.iter().zip(&whole) {
        let pieces = [(0, &bytes[..])];
        let pieces = if bytes.is_empty() { &[][..] } else { &pieces[..] };
        stream.file(name, *name == "a1", bytes.len() as u64, pieces);
    }
    stream.fifo("fifo");
    stream.link("link", 0);
    stream.dir("opaque", 0o2750, true);
    stream.whiteout("gone");
    stream.up();
    // Pieces that share a block, that end with the file and that do not, and a hole at the end.
    let [one, two, three] = [pattern(100, 1), pattern(10_000, 2), pattern(7, 9)];
    stream.file("sparse", false, 50_000, &[(10, &one), (200, &two), (40_001, &three)]);
    stream.symlink("symlink", "../where/ever");
    stream.whiteout("too");
    let (bytes, id) = stream.end();

    let (_dir, store) = store();
    assert!(!send(&store, 7, id, &bytes).expect("taken").there);
    store.verify(id).expect("as it was made");
    let record = store.find(id).expect("readable").expect("there");
    assert!(record.layer && record.data_sum.is_some());
    let reader = Reader::open(store.open_image(id).expect("open"), "test").expect("EROFS");
    let files: Vec<_> = reader.files().map(|file| file.expect("sound")).collect();
    let find = |path: &str| files.iter().find(|f| f.path == path.as_bytes()).expect(path).inode;
    for (name, bytes) in names.iter().zip(&whole) {
        assert_eq!(read_all(&reader, &find(name)), *bytes, "{name}");
    }
    let mut sparse = vec![0; 50_000];
    for (at, bytes) in [(10, &one), (200, &two), (40_001, &three)] {
        sparse[at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert_eq!(read_all(&reader, &find("sparse")), sparse);
    assert_eq!(find("a1").number, find("link").number);
    assert_eq!((find("a1").links, find("a1").mode, find("a1").uid, find("a1").gid), (2, 0o4711, 7, 8));
    assert_eq!((find("a1").mtime, find("a1").mtime_nsec), (1_700_000_000, 5));
    assert_eq!(find("opaque").mode, 0o2750);
    for name in ["opaque/gone", "too"] {
        assert_eq!(find(name).kind, InodeKind::CharDevice(0, 0), "{name}");
    }
    assert_eq!((find("fifo").kind, find("symlink").kind), (InodeKind::Fifo, InodeKind::Symlink));
    assert_eq!(reader.target(&find("symlink")).expect("read"), b"../where/ever");
    let xattrs = |name| -> Vec<_> {
        let all = reader.xattrs(&find(name)).expect("read");
        all.into_iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    };
    assert_eq!(xattrs("opaque"), [(b"user.overlay.opaque".to_vec(), b"y".to_vec())]);
    assert_eq!(xattrs("a0"), [(b"user.note".to_vec(), b"kept".to_vec())]);
}

#[test]
fn a_layer_comes_out_as_the_stream_that_it_was_made_of() {
    let whole = [0, 1, 4095, 4096, 4097, 3 << 20].map(|length| pattern(length, 3));
    let mut stream = Stream::new();
    stream.dir("a", 0o755, false);
    stream.dir("b", 0o2750, true);
    for (name, bytes) in ["f0", "f1", "f4095", "f4096", "f4097", "flarge"].iter().zip(&whole) {
        let pieces = [(0, &bytes[..])];
        let pieces = if bytes.is_empty() { &[][..] } else { &pieces[..] };
        stream.file(name, name.len() == 5, bytes.len() as u64, pieces);
    }
    stream.whiteout("gone");
    stream.up();
    stream.up();
    stream.fifo("fifo");
    for (name, number) in [("link", 0), ("link2", 2), ("link3", 1)] {
        stream.link(name, number);
    }
    let [one, two] = [pattern(8192, 1), pattern(9040, 2)];
    stream.file("sparse", false, 50_000, &[(4096, &one), (40_960, &two)]);
    stream.file("sparse-at-its-end", false, 50_000, &[(0, &one)]);
    stream.symlink("symlink", "../where/ever");
    stream.whiteout("too");
    let (bytes, id) = stream.end();

    let (_dir, store) = store();
    send(&store, 7, id, &bytes).expect("taken");
    let open = || StoredLayer::open(store.open_image(id).expect("open"), "test".into()).expect("a layer");
    let mut stored = open();
    assert_eq!(stored.length(), bytes.len() as u64);
    for piece in [7, 1000, 100_003, bytes.len()] {
        let mut all = vec![0; bytes.len()];
        for (number, part) in all.chunks_mut(piece).enumerate() {
            assert!(stored.read_at(part, (number * piece) as u64));
        }
        let differs = all.iter().zip(&bytes).position(|(one, other)| one != other);
        assert_eq!(differs, None, "in pieces of {piece}");
    }
    // In any order, and not beyond its end.
    let mut part = vec![0; 50_000];
    for at in [3_000_000, 20, 100_000, bytes.len() - part.len()] {
        assert!(open().read_at(&mut part, at as u64));
        assert!(part == bytes[at..at + part.len()], "{at}");
    }
    let last = bytes.len() - part.len();
    assert!(!stored.read_at(&mut part, last as u64 + 1));
    assert!(!stored.read_at(&mut part, u64::MAX));
}

#[test]
fn a_file_of_very_many_pieces_is_read_in_a_time_that_grows_with_its_length() {
    let (piece, count) = (pattern(4096, 3), 8192);
    let pieces: Vec<(u64, &[u8])> = (0..count).map(|number| (number * 8192, &piece[..])).collect();
    let mut stream = Stream::new();
    stream.file("sparse", false, count * 8192, &pieces);
    let (bytes, id) = stream.end();
    let (_dir, store) = store();
    send(&store, 7, id, &bytes).expect("taken");
    let open = || StoredLayer::open(store.open_image(id).expect("open"), "test".into()).expect("a layer");
    // Each looks up all pieces once.
    let begun = Instant::now();
    (0..100).for_each(|_| drop(open()));
    let looked_up = begun.elapsed();
    let (mut stored, begun) = (open(), Instant::now());
    let mut all = vec![0; bytes.len()];
    for (number, part) in all.chunks_mut(8000).enumerate() {
        assert!(stored.read_at(part, (number * 8000) as u64));
    }
    let took = begun.elapsed();
    assert!(all == bytes);
    assert!(
        took < looked_up,
        "{took:?} for {} reads, {looked_up:?} for 100 times all pieces",
        bytes.len() / 8000
    );
}

#[test]
fn what_is_not_as_it_was_sent_does_not_come_out_as_something_else() {
    // A piece that begins within a block: EROFS knows only the block.
    let mut stream = Stream::new();
    stream.file("sparse", false, 50_000, &[(10, &pattern(100, 1)), (20_000, &pattern(7, 9))]);
    let (bytes, id) = stream.end();
    let (_dir, store) = store();
    send(&store, 7, id, &bytes).expect("taken");
    let stored = StoredLayer::open(store.open_image(id).expect("open"), "test".into()).expect("a layer");
    assert_ne!(stored.length(), bytes.len() as u64);
}

fn small() -> (Vec<u8>, ImageId) {
    let mut stream = Stream::new();
    stream.file("file", false, 6000, &[(0, &pattern(6000, 5))]);
    stream.end()
}

#[test]
fn nothing_is_there_of_a_layer_that_is_not_the_one_asked_for() {
    let (bytes, id) = small();
    let (dir, store) = store();
    let refused = |id, bytes: &[u8]| {
        let error = send(&store, 7, id, bytes).map(|_| ()).expect_err("refused");
        assert!(matches!(error, Error::Layer(_)), "{error}");
        assert!(store.images().expect("images").is_empty() && !store.permitted(7, id));
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).expect("a directory").count(), 0);
    };
    refused(ImageId([1; 32]), &bytes);
    for cut in [0, 8, 16, 40, bytes.len() / 2, bytes.len() - 1] {
        refused(id, &bytes[..cut]);
    }
    for at in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        refused(id, &changed);
    }
    refused(id, &[&bytes[..], b"more"].concat());
    let longer = send_as(&store, 7, (id, bytes.len() as u64 - 1), &bytes).map(|_| ()).expect_err("refused");
    assert!(longer.to_string().contains("cut off"), "{longer}");
    assert!(!send(&store, 7, id, &bytes).expect("the right one").there);
}

#[test]
fn another_users_layer_is_had_by_sending_all_of_it() {
    let (bytes, id) = small();
    let (_dir, store) = store();
    send(&store, 7, id, &bytes).expect("taken");
    assert!(send(&store, 7, id, b"").expect("theirs").there, "what is one's own is not sent again");
    for wrong in [&b""[..], &bytes[..bytes.len() - 9]] {
        assert!(send(&store, 8, id, wrong).is_err() && !store.permitted(8, id));
    }
    assert!(send(&store, 8, id, &bytes).expect("proven").there);
    assert!(store.permitted(8, id) && store.permitted(7, id));
}

#[test]
fn a_layer_beyond_the_quota_is_refused_and_leaves_nothing() {
    let (bytes, id) = small();
    let (dir, store) = store();
    let store = store.with_quota(Quota::Bytes(4096));
    let error = send(&store, 7, id, &bytes).map(|_| ()).expect_err("refused");
    assert!(matches!(error, Error::Quota { .. }), "{error}");
    assert!(store.images().expect("images").is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).expect("a directory").count(), 0);
}

/// A byte in a long hole takes a chunk of many blocks at the end: that is known before, and nothing of it is written.
#[test]
fn what_files_with_holes_take_at_the_end_counts_before_it_is_written() {
    let mut stream = Stream::new();
    for number in 0..100 {
        stream.file(&format!("f{number:03}"), false, 4 << 30, &[((2 << 30) + 82 * 4096, b"x")]);
    }
    let (bytes, id) = stream.end();
    let (dir, store) = store();
    let limit = 4 << 20;
    let error = send(&store.with_quota(Quota::Bytes(limit)), 7, id, &bytes).map(|_| ()).expect_err("refused");
    let Error::Quota { used, more, quota } = error else { panic!("{error}") };
    assert!(quota == limit && used <= limit && more > limit, "{used} + {more}");
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).expect("a directory").count(), 0);
    // The file system may need some blocks of its own.
    let quota = Quota::Bytes(used + more + (1 << 20));
    let store = Store::open(dir.path()).expect("a store").with_quota(quota);
    send(&store, 7, id, &bytes).expect("there is room for it");
    let has = store.usage_of(7).expect("usage").total();
    assert!(has > more, "{has} of {used} + {more}");
}

#[test]
fn layers_announced_at_once_take_no_more_than_the_quota_and_go_when_nothing_comes() {
    let (dir, store) = store();
    let quota = 4 << 20;
    let store = store.with_quota(Quota::Bytes(quota));
    let tmp = dir.path().join("tmp");
    let on_disk = || -> u64 {
        let files = std::fs::read_dir(&tmp).expect("a directory");
        files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.blocks() * 512).sum()
    };
    for round in 0..5 {
        let (start, ended) = (Barrier::new(8), AtomicUsize::new(0));
        let announce = |number| {
            let (sent, _sender) = UnixStream::pair().expect("sockets");
            let wanted = request(ImageId([number; 32]), 3 << 20);
            let pace = Pace { longest_step: Duration::from_millis(300), ..Pace::default() };
            start.wait();
            let job = LayerJob { store: &store, uid: 7, wanted: &wanted, sent: &sent, pace };
            receive(&job, &mut || ()).map(|_| ()).expect_err("nothing came");
            ended.fetch_add(1, Ordering::Relaxed);
        };
        let (mut most, begun) = (0, Instant::now());
        std::thread::scope(|scope| {
            for number in 0..8 {
                let announce = &announce;
                scope.spawn(move || announce(number));
            }
            while ended.load(Ordering::Relaxed) < 8 && begun.elapsed() < Duration::from_secs(20) {
                most = on_disk().max(most);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(most <= quota, "round {round}: {most} bytes taken");
        assert!(begun.elapsed() < Duration::from_secs(20), "who sends nothing is not waited for");
        assert_eq!(on_disk(), 0);
    }
}

#[test]
fn another_users_lock_costs_no_more_than_the_patience_that_is_left() {
    let (bytes, id) = small();
    let (dir, store) = store();
    let lock = std::fs::File::create(dir.path().join(format!("images/{id}.lock"))).expect("a lock");
    flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("locked");
    let send = |patience_ms| {
        let (sent, mut to) = UnixStream::pair().expect("sockets");
        to.write_all(&bytes).expect("sent");
        drop(to);
        let wanted = LayerRequest { patience_ms, ..request(id, bytes.len() as u64) };
        let job = LayerJob { store: &store, uid: 7, wanted: &wanted, sent: &sent, pace: Pace::default() };
        let taken = receive(&job, &mut || ()).expect("taken");
        store.forbid(7, id).expect("removed");
        taken.waited
    };
    assert!(send(0) < Duration::from_millis(150));
    let waited = send(300);
    assert!((Duration::from_millis(300)..Duration::from_millis(650)).contains(&waited), "{waited:?}");
}

#[test]
fn holes_do_not_fill_the_disk() {
    let (_dir, store) = store();
    let refused = |size: u64, files: usize| {
        let mut stream = Stream::new();
        for number in 0..files {
            stream.file(&format!("{number:03}"), false, size, &[(0, b"x")]);
        }
        let (bytes, id) = stream.end();
        send(&store, 7, id, &bytes).is_err()
    };
    assert!(refused(i64::MAX.cast_unsigned(), 1) && refused(17 << 40, 1) && refused(8 << 40, 9));
    assert!(!refused(1 << 40, 2), "files of a TiB are had");
    let usage = store.usage().expect("usage");
    assert!(usage.images < 64 << 20, "{usage:?}");
}

#[test]
fn times_before_1970_and_data_across_the_writers_pieces() {
    let mut stream = Stream::new();
    let large = pattern((1 << 20) + 5000, 4);
    stream.file("sparse", false, 9 << 20, &[(4096, &large), (5 << 20, &large)]);
    let mut bytes = vec![];
    // The root's time: behind magic, version, tag, name, mode and owners.
    std::mem::swap(&mut bytes, &mut stream.bytes);
    bytes[16 + 3 + 12..16 + 3 + 20].copy_from_slice(&(-5_i64).to_le_bytes());
    stream.bytes = bytes;
    let (bytes, id) = stream.end();
    let (_dir, store) = store();
    send(&store, 7, id, &bytes).expect("taken");
    store.verify(id).expect("as it was made");
    let reader = Reader::open(store.open_image(id).expect("open"), "test").expect("EROFS");
    assert_eq!(reader.root().expect("root").mtime, -5);
    let file = reader.files().map(|f| f.expect("sound")).find(|f| f.path == b"sparse").expect("there").inode;
    let mut wanted = vec![0; 9 << 20];
    wanted[4096..4096 + large.len()].copy_from_slice(&large);
    wanted[5 << 20..(5 << 20) + large.len()].copy_from_slice(&large);
    assert!(read_all(&reader, &file) == wanted);
}
