//! The store of chunks that checkpoints have in common: what is written, read, and removed again.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::geteuid;
use skiff_site::TrustedDir;
use skiff_snapshot::{ChunkStore, ChunkUse, CollectedChunks, Error, StoredList};

const CHUNK: usize = 16 << 10;
const MIB: usize = 1 << 20;

struct TestStore {
    _temp: tempfile::TempDir,
    dir: TrustedDir,
}

impl TestStore {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = TrustedDir::make(&temp.path().join("store"), geteuid().as_raw(), 0o700).unwrap();
        Self { _temp: temp, dir }
    }

    /// Saves these bytes under a name; how many were new.
    fn save(&self, name: &str, bytes: &[u8], known: &[&str]) -> u64 {
        let store = ChunkStore::open(&self.dir).unwrap();
        let mut writer = store.writer(known.iter().map(|name| self.list(name)).collect()).unwrap();
        bytes.chunks(CHUNK).for_each(|chunk| writer.chunk(chunk.to_vec()).unwrap());
        let written = writer.finish().unwrap();
        assert_eq!(written.length, bytes.len() as u64);
        fs::write(self.path(name), written.list).unwrap();
        written.new
    }

    fn restore(&self, name: &str) -> Result<Vec<u8>, Error> {
        let store = ChunkStore::open(&self.dir)?;
        let list = self.list(name);
        let (length, mut bytes) = (list.length(), vec![]);
        store.read(&list)?.copy(length, &mut bytes, name)?;
        Ok(bytes)
    }

    /// The same by several threads.
    fn restore_in_any_order(&self, name: &str) -> Result<Vec<u8>, Error> {
        let (store, list) = (ChunkStore::open(&self.dir)?, self.list(name));
        let taken = Mutex::new(vec![None; list.length() as usize]);
        store.read_all(&list, |at, bytes| {
            let mut taken = taken.lock().unwrap();
            let places = &mut taken[at as usize..][..bytes.len()];
            assert!(places.iter_mut().zip(bytes).all(|(place, byte)| place.replace(*byte).is_none()));
            Ok::<_, Error>(())
        })?;
        Ok(taken.into_inner().unwrap().into_iter().collect::<Option<_>>().expect("all"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self, name: &str) -> OwnedFd {
        File::open(self.path(name)).unwrap().into()
    }

    fn list(&self, name: &str) -> StoredList {
        StoredList::read(self.open(name), name).unwrap()
    }

    fn collect(&self, names: &[&str]) -> Result<Option<CollectedChunks>, Error> {
        let lists = || Ok(names.iter().map(|name| (self.open(name), (*name).to_owned())).collect());
        CollectedChunks::remove_unused(&self.dir, Duration::ZERO, lists)
    }

    /// The files in it, and the room that they take.
    fn packs(&self) -> Vec<(PathBuf, u64)> {
        let entries = fs::read_dir(self.path("packs")).unwrap();
        entries.map(|e| e.unwrap().path()).map(|path| (path.clone(), room(&path))).collect()
    }
}

fn room(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Bytes that cannot be compressed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn what_has_changed_is_written_and_all_comes_back() {
    let place = TestStore::new();
    let mut bytes = noise(1, 8 * MIB);
    bytes.extend(vec![0; 4 * MIB]);
    bytes.extend(b"the end");
    let first = place.save("first", &bytes, &[]);
    assert!((8 * MIB as u64..9 * MIB as u64).contains(&first), "{first}");
    for at in [5, 3 * MIB, 9 * MIB] {
        bytes[at] ^= 1;
    }
    let second = place.save("second", &bytes, &["first"]);
    assert!(second <= 3 * CHUNK as u64, "{second}");
    assert_eq!(place.save("third", &bytes, &["second"]), 0);
    for name in ["second", "third"] {
        assert!(place.restore(name).unwrap() == bytes);
        assert!(place.restore_in_any_order(name).unwrap() == bytes);
    }
    bytes[5] ^= 1;
    assert!(place.restore("first").unwrap() != bytes);
    place.save("empty", &[], &[]);
    assert!(place.restore("empty").unwrap().is_empty());
    assert!(place.restore_in_any_order("empty").unwrap().is_empty());
}

#[test]
fn damage_is_found_and_what_is_gone_is_written_again() {
    let place = TestStore::new();
    let bytes = [noise(2, 4 * MIB), vec![7; MIB]].concat();
    place.save("one", &bytes, &[]);
    let (pack, _) = place.packs().pop().unwrap();
    let length = fs::metadata(&pack).unwrap().len();
    for at in [0, length / 2, length - 8] {
        let whole = fs::read(&pack).unwrap();
        let file = OpenOptions::new().write(true).open(&pack).unwrap();
        file.write_all_at(b"\x55\xaa\x55\xaa\x55\xaa\x55\xaa", at).unwrap();
        let why = place.restore("one").expect_err("damaged").to_string();
        assert!(why.contains("is damaged") && why.contains(".pack"), "{why}");
        assert_eq!(place.restore_in_any_order("one").expect_err("damaged").to_string(), why);
        fs::write(&pack, whole).unwrap();
    }
    assert!(place.restore("one").unwrap() == bytes);
    OpenOptions::new().write(true).open(&pack).unwrap().set_len(length - 1).unwrap();
    assert!(place.restore("one").expect_err("cut").to_string().contains("cut off"));
    assert!(place.restore_in_any_order("one").expect_err("cut").to_string().contains("cut off"));
    // Whoever saves now does not rely on it.
    assert!(place.save("two", &bytes, &["one"]) > 4 * MIB as u64);
    assert!(place.restore("two").unwrap() == bytes);
    fs::remove_file(&pack).unwrap();
    place.save("three", &bytes, &["one"]);
    assert!(place.restore("three").unwrap() == bytes);
}

#[test]
fn where_one_piece_is_not_taken_the_others_are_left() {
    let place = TestStore::new();
    place.save("one", &noise(2, 32 * MIB), &[]);
    let taken = AtomicUsize::new(0);
    let store = ChunkStore::open(&place.dir).unwrap();
    let full = || Error::BadChunks { object: "the disk".into(), why: "full".into() };
    let all = store.read_all(&place.list("one"), |_, _| match taken.fetch_add(1, Ordering::Relaxed) {
        0 => Err(full()),
        _ => {
            std::thread::sleep(Duration::from_millis(10));
            Ok(())
        }
    });
    assert_eq!(all.expect_err("full").to_string(), full().to_string());
    // Of 128 pieces, those of the parts that were begun.
    assert!((1..=64).contains(&taken.into_inner()));
}

#[test]
fn chunks_of_one_frame_over_and_over_are_shared_among_threads() {
    let place = TestStore::new();
    let bytes = [vec![0; 40 * MIB], noise(3, MIB), vec![0; 3 * MIB]].concat();
    place.save("zeros", &bytes, &[]);
    assert!(place.restore_in_any_order("zeros").unwrap() == bytes);
}

#[test]
fn what_no_list_needs_goes_and_nothing_else() {
    let place = TestStore::new();
    let (old, new) = (noise(3, 8 * MIB), noise(4, 2 * MIB));
    let both = [&new[..], &old[4 * MIB..]].concat();
    place.save("old", &old, &[]);
    place.save("both", &both, &["old"]);
    assert_eq!(place.packs().len(), 2);
    assert_eq!(place.collect(&["old", "both"]).unwrap(), Some(CollectedChunks::default()));
    // What killed writers leave on NFS; and something that is nobody's of ours.
    fs::write(place.path("packs/.new-host-1-2-3"), "half").unwrap();
    fs::write(place.path("packs/notes"), "mine").unwrap();
    let store = ChunkStore::open(&place.dir).unwrap();
    assert_eq!(place.collect(&["both"]).unwrap(), None, "somebody uses it");
    drop(store);
    let before: u64 = place.packs().iter().map(|(_, room)| room).sum();
    let collected = place.collect(&["both"]).unwrap().unwrap();
    let after: u64 = place.packs().iter().map(|(_, room)| room).sum();
    assert_eq!((collected.packs, collected.bytes), (1, before - after));
    assert!(before - after > 3 * MIB as u64, "{before} {after}");
    assert!(place.restore("both").unwrap() == both);
    place.restore("old").expect_err("half of it is gone");
    assert_eq!(place.collect(&[]).unwrap().unwrap().packs, 2);
    assert_eq!(place.packs().len(), 1, "that is not ours");
}

#[test]
fn where_somebody_always_saves_what_nobody_needs_goes_nevertheless() {
    let place = TestStore::new();
    place.save("one", &noise(10, MIB), &[]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let held = ChunkStore::open(&place.dir).unwrap();
        for _ in 0..3 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let _store = ChunkStore::open(&place.dir).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            std::thread::sleep(Duration::from_millis(15));
        }
        let soon = place.collect(&[]);
        drop(held);
        let hours_ago = SystemTime::now() - Duration::from_secs(7200);
        let age = |name: &str| File::open(place.path(name)).unwrap().set_modified(hours_ago).unwrap();
        ["lock", "turn"].into_iter().for_each(age);
        let overdue = place.collect(&[]);
        let time = fs::metadata(place.path("lock")).unwrap().modified().unwrap();
        ended.store(true, Ordering::Relaxed);
        assert_eq!(soon.unwrap(), None);
        assert_eq!(overdue.unwrap().unwrap().packs, 1);
        assert!(time > hours_ago);
    });
}

#[test]
fn who_waited_to_collect_in_vain_does_not_keep_others_waiting_at_once_again() {
    let place = TestStore::new();
    place.save("one", &noise(13, MIB), &[]);
    let hours_ago = SystemTime::now() - Duration::from_secs(7200);
    File::open(place.path("lock")).unwrap().set_modified(hours_ago).unwrap();
    // Of somebody who waited just now.
    File::open(place.path("turn")).unwrap().set_modified(SystemTime::now()).unwrap();
    let _held = ChunkStore::open(&place.dir).unwrap();
    let begun = Instant::now();
    assert_eq!(place.collect(&[]).unwrap(), None);
    assert!(begun.elapsed() < Duration::from_secs(25), "it waited for 30 s");
}

#[test]
fn what_was_written_lately_can_be_spared() {
    let place = TestStore::new();
    place.save("one", &noise(11, MIB), &[]);
    place.save("two", &noise(12, MIB), &[]);
    let (pack, _) = place.packs().pop().unwrap();
    let earlier = SystemTime::now() - Duration::from_secs(600);
    File::options().write(true).open(&pack).unwrap().set_modified(earlier).unwrap();
    let spared = |seconds| {
        let collected = CollectedChunks::remove_unused(&place.dir, Duration::from_secs(seconds), || {
            Ok::<_, Error>(vec![])
        });
        collected.unwrap().unwrap().packs
    };
    assert_eq!((spared(900), spared(300), spared(300), spared(0)), (0, 1, 0, 1));
}

#[test]
fn with_a_list_that_cannot_be_read_nothing_goes() {
    let place = TestStore::new();
    place.save("one", &noise(5, MIB), &[]);
    place.save("two", &noise(6, MIB), &[]);
    let file = OpenOptions::new().write(true).open(place.path("one")).unwrap();
    file.write_all_at(b"\x55\xaa\x55\xaa\x55\xaa\x55\xaa", 60).unwrap();
    place.collect(&["one"]).expect_err("damaged");
    assert_eq!(place.packs().len(), 2);
    place.collect(&["two"]).unwrap();
    assert_eq!(place.packs().len(), 1);
}

#[test]
fn a_frame_of_which_little_is_needed_does_not_stay_for_ever() {
    let place = TestStore::new();
    let old = noise(7, 4 * MIB);
    place.save("0", &old, &[]);
    // All but every 16th chunk changes.
    let mut bytes = old.clone();
    for (number, chunk) in bytes.chunks_mut(CHUNK).enumerate().filter(|(number, _)| number % 16 != 0) {
        chunk.copy_from_slice(&noise(100 + number as u64, CHUNK));
    }
    place.save("1", &bytes, &["0"]);
    // The few that have not are written anew now, and the first pack goes.
    let new = place.save("2", &bytes, &["1"]);
    assert!((1..=4 * MIB as u64 / 16 + CHUNK as u64).contains(&new), "{new}");
    place.collect(&["2"]).unwrap();
    let room: u64 = place.packs().iter().map(|(_, room)| room).sum();
    assert!(room < 5 * MIB as u64, "{room}");
    assert!(place.restore("2").unwrap() == bytes);
}

#[test]
fn how_much_only_one_needs() {
    let place = TestStore::new();
    let mut bytes = noise(8, 4 * MIB);
    place.save("one", &bytes, &[]);
    bytes.truncate(2 * MIB);
    bytes.extend(noise(9, MIB));
    place.save("two", &bytes, &["one"]);
    let own = |names: &[&str]| {
        let mut used = ChunkUse::default();
        names.iter().for_each(|name| used.add(place.open(name), name).unwrap());
        used.own_bytes()
    };
    assert_eq!(own(&["one"]), [4 * MIB as u64]);
    assert_eq!(own(&["one", "two"]), [2 * MIB as u64, MIB as u64]);
    assert_eq!(own(&["two", "two"]), [0, 0]);
}
