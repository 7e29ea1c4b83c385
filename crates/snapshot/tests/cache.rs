//! The depot and the cache in use: by several at once, when full, and after a crash.

#![allow(clippy::unwrap_used, clippy::unused_result_ok)] // what must hold is asserted afterwards

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common;
use crate::common::{World, is_root, noise};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use skiff_site::TrustedDir;
use skiff_snapshot::{Cache, Depot, How, fetch};

fn names(path: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn write(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Evicts what nobody uses any more. A lease is a lock, which children that other tests start here share with us until they
/// are programs of their own; so what was given back a moment ago may still look used.
fn evict(cache: &Cache, layers: u64) {
    let mut evicted = 0;
    for _ in 0..500 {
        evicted += cache.evict().unwrap().layers;
        if evicted >= layers {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(evicted, layers);
}

#[test]
fn many_who_want_one_layer_get_one() {
    let world = World::new();
    for number in 0..300 {
        write(&world.upper().join(format!("{number}")), &[1; 5000]);
    }
    let id = world.push().id;
    let inodes: BTreeSet<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    // Each its own, as in processes of their own.
                    let cache = Cache::open(&world.path("cache"), 0).unwrap();
                    let layers = fetch(&world.depot, &id, &cache).unwrap();
                    assert_eq!(names(&layers[0].path).len(), 300);
                    cache.evict().unwrap();
                    assert_eq!(names(&layers[0].path).len(), 300);
                    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&layers[0].path).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(!inodes.is_empty());
    assert!(names(&world.path("cache/tmp")).is_empty());
}

/// Whether somebody waits for the lock of this file: the kernel shows them with an arrow.
fn is_waited_for(file: &std::fs::File) -> bool {
    let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

#[test]
fn who_comes_while_another_unpacks_waits_for_him() {
    let world = World::new();
    write(&world.upper().join("file"), b"x");
    let pushed = world.push();
    let digest = world.depot.manifest(&pushed.id).unwrap().layers[0].digest.to_string();
    let lock = std::fs::File::create(world.path("cache/locks").join(&digest)).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.fetch(&pushed.id));
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !is_waited_for(&lock) && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_waited_for(&lock) && !waiting.is_finished());
        assert!(names(&world.path("cache/layers")).is_empty());
        rustix::fs::flock(&lock, FlockOperation::Unlock).unwrap();
        assert!(waiting.join().unwrap()[0].path.join("file").exists());
    });
}

#[test]
fn what_was_unused_longest_goes_first_and_what_is_in_use_stays() {
    let world = World::new();
    let mut ids = Vec::new();
    for number in 0..4 {
        write(&world.upper().join("big"), &vec![number; 1_000_000]);
        std::fs::remove_file(world.path("state/snapshot.index")).ok();
        ids.push(world.push_as(How::Full).id);
    }
    let cache = Cache::open(&world.path("cache"), 2_200_000).unwrap();
    let held = fetch(&world.depot, &ids[0], &cache).unwrap();
    for id in &ids[1..] {
        fetch(&world.depot, id, &cache).unwrap();
        // The file system's clock has to tick between two uses.
        std::thread::sleep(Duration::from_millis(30));
    }
    // Used again: now 2 is the one unused longest.
    fetch(&world.depot, &ids[1], &cache).unwrap();
    evict(&cache, 2);
    let digest = |at: usize| world.depot.manifest(&ids[at]).unwrap().layers[0].digest.to_string();
    let mut left = vec![digest(0), digest(1)];
    left.sort();
    assert_eq!(names(&world.path("cache/layers")), left);
    assert!(held[0].path.join("big").exists());
    drop(held);
    let none = Cache::open(&world.path("cache"), 0).unwrap();
    evict(&none, 2);
    for part in ["layers", "locks", "tmp"] {
        assert!(names(&world.path("cache").join(part)).is_empty());
    }
}

#[test]
fn a_lease_goes_with_the_process_and_is_not_inherited() {
    let world = World::new();
    write(&world.upper().join("file"), b"x");
    let layers = world.fetch(&world.push().id);
    let flags = rustix::io::fcntl_getfd(layers[0].lease.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let none = Cache::open(&world.path("cache"), 0).unwrap();
    assert_eq!(none.evict().unwrap().layers, 0);
    drop(layers);
    evict(&none, 1);
}

#[test]
fn a_layer_that_another_process_fetched_can_be_kept() {
    let world = World::new();
    write(&world.upper().join("file"), b"x");
    let path = world.fetch(&world.push().id)[0].path.clone();
    let none = Cache::open(&world.path("cache"), 0).unwrap();
    let lease = none.lease(&path).unwrap();
    assert!(lease.is_some());
    assert_eq!(none.evict().unwrap().layers, 0);
    drop(lease);
    evict(&none, 1);
    for gone in [&path, Path::new("/"), Path::new("../../../tree")] {
        assert!(none.lease(gone).unwrap().is_none());
    }
    assert!(names(&world.path("cache/locks")).is_empty());
}

#[test]
fn what_a_dead_process_left_is_removed() {
    let world = World::new();
    write(&world.upper().join("file"), b"x");
    let pushed = world.push();
    let digest = world.depot.manifest(&pushed.id).unwrap().layers[0].digest.to_string();
    write(&world.path("cache/tmp").join(&digest).join("tree/half"), b"");
    write(&world.path("cache/tmp").join("0".repeat(64)).join("tree/half"), b"");
    assert_eq!(names(&world.fetch(&pushed.id)[0].path), ["file"]);
    assert_eq!(world.cache.evict().unwrap().unfinished, 1);
    assert!(names(&world.path("cache/tmp")).is_empty());
}

#[test]
fn a_layer_of_another_boot_is_made_again() {
    let world = World::new();
    write(&world.upper().join("file"), b"content");
    let pushed = world.push();
    let tree = world.fetch(&pushed.id)[0].path.clone();
    std::fs::write(tree.join("file"), "").unwrap();
    let mark = tree.with_file_name("mark");
    let text = std::fs::read_to_string(&mark).unwrap();
    for torn in [text.replacen("boot\":\"", "boot\":\"other", 1), text[..9].into(), String::new()] {
        std::fs::write(tree.join("file"), "").unwrap();
        std::fs::write(&mark, torn).unwrap();
        let again = world.fetch(&pushed.id);
        assert_eq!(std::fs::read(again[0].path.join("file")).unwrap(), b"content");
    }
}

/// A file system of one megabyte, attached nowhere.
fn small() -> (TrustedDir, PathBuf) {
    use std::os::fd::AsRawFd;
    let fs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    rustix::mount::fsconfig_set_string(fs.as_fd(), "size", "1m").unwrap();
    rustix::mount::fsconfig_create(fs.as_fd()).unwrap();
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mount = rustix::mount::fsmount(fs.as_fd(), flags, MountAttrFlags::empty()).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}/", mount.as_raw_fd()));
    (TrustedDir::from_fd(mount, &path, rustix::process::geteuid().as_raw()).unwrap(), path)
}

#[test]
fn a_full_depot_is_told_and_left_clean() {
    if !is_root("a_full_depot_is_told_and_left_clean") {
        return;
    }
    let mut world = World::new();
    let (small, place) = small();
    world.depot = Depot::open_in(&small.make_dir("depot", 0o700).unwrap()).unwrap();
    write(&world.upper().join("small"), b"fits");
    let first = world.push();
    write(&world.upper().join("big"), &noise(1, 3_000_000));
    let error = world.try_push().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOSPC));
    assert!(error.to_string().contains("depot") && error.hint().is_some(), "{error}");
    assert_eq!(names(&place.join("depot/layers")).len(), 1);
    std::fs::remove_file(world.upper().join("big")).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    assert!(matches!(world.push().how, How::Unchanged | How::Incremental));
    world.fetch(&first.id);
}

#[test]
fn a_full_cache_makes_room_or_tells() {
    if !is_root("a_full_cache_makes_room_or_tells") {
        return;
    }
    let world = World::new();
    let (small, place) = small();
    let cache = Cache::open_in(&small.make_dir("cache", 0o700).unwrap(), u64::MAX).unwrap();
    let mut ids = Vec::new();
    for (number, size) in [(1, 600_000), (2, 700_000), (3, 3_000_000)] {
        write(&world.upper().join("big"), &vec![number; size]);
        std::fs::remove_file(world.path("state/snapshot.index")).ok();
        ids.push(world.push().id);
    }
    let first = fetch(&world.depot, &ids[0], &cache).unwrap();
    let error = fetch(&world.depot, &ids[1], &cache).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOSPC), "{error}");
    assert!(names(&place.join("cache/tmp")).is_empty());
    drop(first);
    // Now the first one can go.
    let second = fetch(&world.depot, &ids[1], &cache).unwrap();
    assert_eq!(names(&place.join("cache/layers")).len(), 1);
    assert_eq!(std::fs::metadata(second[0].path.join("big")).unwrap().len(), 700_000);
    drop(second);
    let error = fetch(&world.depot, &ids[2], &cache).unwrap_err();
    assert!(error.hint().unwrap().contains("space"), "{error}");
    assert!(names(&place.join("cache/tmp")).is_empty());
}

const CHILD: &str = "SKIFF_TEST_CRASH_DIR";

/// What the process that gets killed does: it changes, ships and unpacks without end. Not a test of its own.
#[test]
fn crash_child() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let depot = Depot::open(&dir.join("depot")).unwrap();
    let cache = Cache::open(&dir.join("cache"), 0).unwrap();
    let open = |part: &str| std::fs::File::open(dir.join(part)).unwrap();
    for round in 0u32.. {
        write(&dir.join("upper/d").join((round % 7).to_string()), &vec![round as u8; 400_000]);
        let (upper, base, state) = (open("upper"), open("base"), open("state"));
        let none = Default::default();
        let pushed =
            skiff_snapshot::push(&depot, &common::input(upper.as_fd(), base.as_fd(), state.as_fd(), &none))
                .unwrap();
        drop(fetch(&depot, &pushed.id, &cache).unwrap());
        cache.evict().unwrap();
    }
}

#[test]
fn a_kill_at_any_moment_leaves_only_what_is_whole() {
    let world = World::new();
    let child = std::env::current_exe().unwrap();
    let mut whole = 0;
    for round in 0..40u64 {
        // The last rounds are for machines on which nothing was written so soon.
        if round >= 25 && whole > 0 {
            break;
        }
        let mut child = Command::new(&child)
            .args(["--exact", "cache::crash_child"])
            .env(CHILD, world.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(25 + round * 7 + round.saturating_sub(24) * 1000));
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        // All that has a final name is whole.
        for name in names(&world.path("depot/snapshots")).iter().filter(|name| !name.starts_with('.')) {
            let id = name.strip_suffix(".json").unwrap().parse().unwrap();
            let layers = world.fetch(&id);
            assert!(!layers.is_empty());
            whole += 1;
        }
        for name in names(&world.path("depot/layers")).iter().filter(|name| !name.starts_with('.')) {
            assert!(name.ends_with(".chunks"), "{name}");
        }
    }
    assert!(whole > 0, "no round has written a snapshot");
    let pushed = world.push();
    let newest = world.fetch(&pushed.id);
    assert!(newest.iter().any(|layer| layer.path.join("d").exists()));
    // What the killed ones left goes.
    drop(newest);
    for part in ["layers", "packs", "snapshots"] {
        for name in names(&world.path("depot").join(part)) {
            common::make_old(&world.path("depot").join(part).join(name));
        }
    }
    common::collect(&world.depot, &[pushed.id], Duration::ZERO);
    for part in ["layers", "packs"] {
        assert!(names(&world.path("depot").join(part)).iter().all(|name| !name.starts_with('.')));
    }
    assert_eq!(names(&world.path("depot/snapshots")).len(), 1);
    let cache = Cache::open(&world.path("cache"), 0).unwrap();
    cache.evict().unwrap();
    for part in ["layers", "tmp"] {
        assert!(names(&world.path("cache").join(part)).is_empty());
    }
}
