//! What is in the depot already is not written again, and what is damaged there is found.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::common::craft::ship;
use crate::common::{World, assert_same, collect, input, make_old, noise};
use skiff_snapshot::{Cache, Depot, How, MergePolicy, fetch, push};

const LARGE: usize = 8 << 20;

fn pause() {
    std::thread::sleep(Duration::from_millis(40));
}

fn files(world: &World, part: &str) -> Vec<PathBuf> {
    let dir = std::fs::read_dir(world.path("depot").join(part)).unwrap();
    dir.map(|entry| entry.unwrap().path()).collect()
}

fn stored(world: &World) -> u64 {
    let all = ["packs", "layers", "snapshots"].map(|part| files(world, part));
    all.iter().flatten().map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn a_small_change_of_a_large_file_sends_little() {
    let world = World::new();
    let at = |name: &str| world.upper().join(name);
    std::fs::create_dir_all(at("dir")).unwrap();
    std::fs::write(at("dir/large"), noise(1, LARGE)).unwrap();
    pause();
    let first = world.push_as(How::Full);
    assert!(first.bytes > LARGE as u64, "noise gets no smaller");
    let append = |path: PathBuf| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"xy");
        std::fs::write(path, bytes).unwrap();
    };
    let insert = |path: PathBuf| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.insert(LARGE / 3, 7);
        std::fs::write(path, bytes).unwrap();
    };
    let touch = |path: PathBuf| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now()).unwrap();
    };
    let overwrite = |path: PathBuf| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &noise(9, 8), LARGE as u64 / 2).unwrap();
    };
    // The list of the layer's chunks alone has 12 kB.
    let changes: [(&str, u64, &dyn Fn()); 8] = [
        ("touch", 16_000, &|| touch(at("dir/large"))),
        ("chmod", 16_000, &|| {
            std::fs::set_permissions(at("dir/large"), std::fs::Permissions::from_mode(0o700)).unwrap();
        }),
        ("overwrite", 160_000, &|| overwrite(at("dir/large"))),
        ("append", 160_000, &|| append(at("dir/large"))),
        ("insert", 160_000, &|| insert(at("dir/large"))),
        ("copy", 32_000, &|| {
            std::fs::copy(at("dir/large"), at("copy")).unwrap();
        }),
        ("rename", 32_000, &|| std::fs::rename(at("dir/large"), at("other")).unwrap()),
        ("rename a directory", 1_000, &|| std::fs::rename(at("dir"), at("elsewhere")).unwrap()),
    ];
    for (name, most, change) in changes {
        change();
        pause();
        let pushed = world.push();
        println!("{name}: {} bytes", pushed.bytes);
        assert!(pushed.how != How::Unchanged && pushed.bytes < most, "{name}: {pushed:?}");
        assert_same(&world.seen_in(&pushed.id), &world.seen());
    }
}

#[test]
fn many_small_changes_take_little_room() {
    let mut world = World::new();
    world.merge = MergePolicy::default();
    let at = |number: u64| world.upper().join(format!("file{}", number % 30));
    for number in 0..30 {
        std::fs::write(at(number), noise(number, 1_000_000)).unwrap();
    }
    pause();
    world.push();
    let first = stored(&world);
    for number in 0..80 {
        // In its middle, at its end, or all of it.
        let place = [Some(number * 12_000), Some(1_000_000), None][number as usize % 3];
        match place {
            Some(place) => {
                let file = std::fs::File::options().write(true).open(at(number)).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &noise(number + 1000, 9), place).unwrap();
            }
            None => std::fs::write(at(number), noise(number + 1000, 300)).unwrap(),
        }
        pause();
        world.push();
    }
    let end = stored(&world);
    println!("{first} bytes, {end} after all changes");
    assert!(end < first * 12 / 10, "{first} bytes, {end} after all changes");
}

#[test]
fn what_another_environment_has_sent_is_there() {
    let world = World::new();
    std::fs::write(world.upper().join("large"), noise(1, 2 * LARGE)).unwrap();
    pause();
    let first = world.push();
    std::fs::create_dir(world.path("state2")).unwrap();
    let (upper, base, state) = (world.open("upper"), world.open("base"), world.open("state2"));
    std::fs::write(world.upper().join("small"), "of its own").unwrap();
    pause();
    let none = BTreeMap::new();
    let of_another = input(upper.as_fd(), base.as_fd(), state.as_fd(), &none);
    let second = push(&world.depot, &of_another).unwrap();
    assert_eq!(second.how, How::Full);
    assert!(second.bytes < first.bytes / 10, "{} and {} bytes", first.bytes, second.bytes);
}

fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn damage_is_found_and_mended_by_the_next_submission() {
    type Act = fn(&Path);
    let truncate: Act = |file| std::fs::File::options().write(true).open(file).unwrap().set_len(100).unwrap();
    let remove: Act = |file| std::fs::remove_file(file).unwrap();
    for (part, act, why) in [
        ("packs", damage as Act, "damaged or hostile"),
        ("packs", truncate, "it is cut off (in the pack"),
        ("packs", remove, "pack "),
        ("layers", damage, "list of chunks has another digest"),
        ("layers", truncate, "list of chunks"),
        ("layers", remove, "is not in the depot"),
    ] {
        let world = World::new();
        for number in 0..20 {
            std::fs::write(world.upper().join(format!("file{number}")), noise(number, 50_000)).unwrap();
        }
        pause();
        let pushed = world.push();
        let [file] = &files(&world, part)[..] else { panic!("{part}: not one file") };
        act(file);
        let error = fetch(&world.depot, &pushed.id, &world.cache).unwrap_err();
        assert!(error.to_string().contains(why) && error.hint().is_some(), "{part}: {error}");
        // As the hint says.
        if file.exists() {
            std::fs::remove_file(file).unwrap();
        }
        let again = world.push_as(How::Full);
        assert_same(&world.seen_in(&again.id), &world.seen());
    }
}

/// A new layer that is to replace a damaged one would forget what the other says.
#[test]
fn a_damaged_layer_is_not_replaced() {
    let mut world = World::new();
    world.merge = MergePolicy::default();
    std::fs::write(world.upper().join("large"), noise(1, 2_000_000)).unwrap();
    pause();
    world.push_as(How::Full);
    for number in 0..30 {
        std::fs::write(world.upper().join(format!("small{number}")), noise(number, 3)).unwrap();
    }
    pause();
    world.push_as(How::Incremental);
    let [pack] = &files(&world, "packs")
        .into_iter()
        .filter(|file| file.metadata().unwrap().len() < 100_000)
        .collect::<Vec<_>>()[..]
    else {
        panic!("not one small pack")
    };
    let good = std::fs::read(pack).unwrap();
    let index = std::fs::read(world.path("state/snapshot.index")).unwrap();
    std::fs::write(world.upper().join("more"), "").unwrap();
    pause();
    for at in (0..good.len()).step_by(good.len() / 40) {
        let mut altered = good.clone();
        altered[at] ^= 1;
        std::fs::write(pack, &altered).unwrap();
        match world.try_push() {
            Err(error) => assert!(error.to_string().contains("damaged or hostile"), "{at}: {error}"),
            // A few bits of a zstd frame mean nothing: the chunks are right all the same.
            Ok(pushed) => {
                assert!(at > 0);
                assert_same(&world.seen_in(&pushed.id), &world.seen());
                std::fs::write(world.path("state/snapshot.index"), &index).unwrap();
            }
        }
    }
    std::fs::write(pack, good).unwrap();
    let pushed = world.push_as(How::Incremental);
    assert_eq!(std::fs::read_dir(&world.fetch(&pushed.id)[1].path).unwrap().count(), 31);
}

/// Before, each layer was a file of its own, and there were no packs.
#[test]
fn a_depot_of_the_version_before_is_read_and_gone_on_with() {
    let world = World::new();
    std::fs::write(world.upper().join("large"), noise(1, 300_000)).unwrap();
    std::fs::write(world.upper().join("small"), "1").unwrap();
    pause();
    let old = world.push_as(How::Full);
    let layer = world.depot.manifest(&old.id).unwrap().layers[0];
    let mut bytes = vec![];
    world.depot.open_layer(&layer).unwrap().send(&mut bytes).unwrap();
    let whole = world.path("depot/layers").join(format!("{}.layer", layer.digest));
    std::fs::write(&whole, &bytes).unwrap();
    std::fs::remove_file(world.path("depot/layers").join(format!("{}.chunks", layer.digest))).unwrap();
    std::fs::remove_dir_all(world.path("depot/packs")).unwrap();

    // On a node, and by who only looks at it: nothing is made.
    let read = Depot::open_existing(&world.path("depot")).unwrap();
    let cache = Cache::open(&world.path("another"), u64::MAX).unwrap();
    let layers = fetch(&read, &old.id, &cache).unwrap();
    assert_eq!(std::fs::read(layers[0].path.join("large")).unwrap(), noise(1, 300_000));
    assert!(read.verify(&read.contents().unwrap(), None).unwrap().iter().all(|check| check.is_sound()));
    assert!(!world.path("depot/packs").exists());

    // What has not changed is the same snapshot; what has is a layer over the old one.
    let depot = Depot::open(&world.path("depot")).unwrap();
    let world = World { depot, ..world };
    assert_eq!(world.push_as(How::Unchanged).id, old.id);
    std::fs::write(world.upper().join("small"), "2").unwrap();
    pause();
    let new = world.push_as(How::Incremental);
    assert_eq!(world.depot.manifest(&new.id).unwrap().layers[0], layer);
    assert_same(&world.seen_in(&new.id), &world.seen());

    // It stays as long as a snapshot needs it, and goes with the last one.
    for (keep, is_there) in [(&[new.id][..], true), (&[], false)] {
        for file in ["packs", "layers", "snapshots"].iter().flat_map(|part| files(&world, part)) {
            make_old(&file);
        }
        collect(&world.depot, keep, Duration::from_secs(600));
        assert_eq!(whole.exists(), is_there);
    }
    // One that is damaged is refused.
    std::fs::remove_file(world.path("state/snapshot.index")).unwrap();
    world.push_as(How::Full);
    let manifest = ship(&world.depot, &bytes, &layer.digest, bytes.len() as u64);
    bytes[100_000..100_008].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&whole, &bytes).unwrap();
    let cache = Cache::open(&world.path("third"), u64::MAX).unwrap();
    let error = fetch(&world.depot, &manifest, &cache).unwrap_err().to_string();
    assert!(error.contains("damaged or hostile"), "{error}");
}

#[test]
fn what_no_layer_needs_goes() {
    let world = World::new();
    std::fs::write(world.upper().join("old"), noise(1, 200_000)).unwrap();
    pause();
    world.push();
    std::fs::remove_file(world.upper().join("old")).unwrap();
    std::fs::write(world.upper().join("new"), noise(2, 300_000)).unwrap();
    std::fs::remove_file(world.path("state/snapshot.index")).unwrap();
    pause();
    let kept = world.push_as(How::Full);
    std::fs::write(world.path("depot/packs/.new-dead-1"), b"half").unwrap();
    for file in ["packs", "layers", "snapshots"].iter().flat_map(|part| files(&world, part)) {
        make_old(&file);
    }
    let collected = collect(&world.depot, &[kept.id], Duration::from_secs(600));
    // Its layer, its pack, and what a process that died has left.
    assert_eq!((collected.snapshots.len(), collected.files.len()), (1, 3), "{collected:?}");
    assert_eq!(files(&world, "packs").len(), 1);
    assert_same(&world.seen_in(&kept.id), &world.seen());
}
