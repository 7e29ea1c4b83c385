//! Snapshots that build on the one before show what the environment shows.

#![allow(clippy::unwrap_used, clippy::unused_result_ok)] // what must hold is asserted afterwards

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common;
use crate::common::acts::{Act, act, acts, cases, paths};
use crate::common::{World, assert_same, is_root, opaque, whiteout};
use proptest::prelude::*;
use skiff_snapshot::{How, MergePolicy, push};

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Long enough for a change to get another ctime, and for entries not to be "racy".
fn pause() {
    std::thread::sleep(Duration::from_millis(40));
}

/// Takes a snapshot and compares what it shows with what the environment shows.
#[track_caller]
fn check(world: &World, how: How) -> skiff_snapshot::Pushed {
    // First: mounting the overlay may leave a note on a directory, which is a change of its ctime.
    let seen = world.seen();
    let pushed = world.push_as(how);
    assert_same(&seen, &world.seen_in(&pushed.id));
    pushed
}

#[test]
fn each_kind_of_change_makes_one_small_layer() {
    if !is_root("each_kind_of_change_makes_one_small_layer") {
        return;
    }
    type Edit = (&'static str, fn(&Path), How, u64);
    let edits: [Edit; 15] = [
        ("add", |up| write(&up.join("new"), "x"), How::Incremental, 2),
        ("content", |up| write(&up.join("d/file"), "other"), How::Incremental, 3),
        ("append", |up| write(&up.join("d/file"), "filemore"), How::Incremental, 3),
        ("mode", |up| mode(&up.join("d/file"), 0o700), How::Incremental, 3),
        ("owner", |up| chown(up.join("d/file"), Some(5), None).unwrap(), How::Incremental, 3),
        ("xattr", |up| common::set_xattr(&up.join("d/file"), "user.x", b"1"), How::Incremental, 3),
        ("dir mode", |up| mode(&up.join("d"), 0o700), How::Incremental, 2),
        // Only the upper has it: the overlay leaves no whiteout.
        ("remove", |up| std::fs::remove_file(up.join("d/file")).unwrap(), How::Incremental, 3),
        ("remove dir", |up| std::fs::remove_dir_all(up.join("d/e")).unwrap(), How::Incremental, 3),
        ("whiteout", |up| whiteout(&up.join("base-file")), How::Incremental, 2),
        ("file to dir", |up| swap(&up.join("d/file"), |p| write(&p.join("in"), "x")), How::Incremental, 4),
        ("dir to file", |up| swap(&up.join("d/e"), |p| write(p, "x")), How::Incremental, 3),
        ("opaque", |up| opaque(&up.join("d")), How::Incremental, 6),
        // The base's file shows again: no layer can say so.
        ("unhide", |up| std::fs::remove_file(up.join("base-gone")).unwrap(), How::Full, 9),
        (
            "link",
            |up| std::fs::hard_link(up.join("d/e/f"), up.join("d/linked")).unwrap(),
            How::Incremental,
            5,
        ),
    ];
    for (what, edit, how, entries) in edits {
        eprintln!("{what}");
        let world = World::new();
        let (up, base) = (world.upper(), world.path("base"));
        for path in ["base-file", "base-gone", "d/of-base", "both"] {
            write(&base.join(path), path);
        }
        for path in ["d/file", "d/e/f", "d/e/g", "both", "other/x"] {
            write(&up.join(path), path);
        }
        whiteout(&up.join("base-gone"));
        pause();
        check(&world, How::Full);
        pause();
        edit(&up);
        let pushed = check(&world, how);
        assert_eq!(pushed.entries, entries, "{what}");
        let again = check(&world, How::Unchanged);
        assert_eq!((again.id, again.bytes), (pushed.id, 0));
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn swap(path: &Path, make: fn(&Path)) {
    if path.is_dir() {
        std::fs::remove_dir_all(path).unwrap()
    } else {
        std::fs::remove_file(path).unwrap()
    }
    make(path);
}

#[test]
fn a_change_in_the_same_instant_is_not_missed() {
    let world = World::new();
    let file = world.upper().join("file");
    write(&file, "one");
    let time = std::fs::metadata(&file).unwrap().modified().unwrap();
    world.push_as(How::Full);
    // Same size, same times: as on a kernel whose clock did not tick between the two.
    write(&file, "two");
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    let pushed = world.push_as(How::Incremental);
    let layers = world.fetch(&pushed.id);
    assert_eq!(std::fs::read(layers[1].path.join("file")).unwrap(), b"two");
    world.push_as(How::Unchanged);
}

#[test]
fn hard_links_that_have_just_been_made_are_not_shipped_twice() {
    let world = World::new();
    let [a, b] = ["a", "b"].map(|name| world.upper().join(name));
    write(&a, "one");
    std::fs::hard_link(&a, &b).unwrap();
    let time = std::fs::metadata(&a).unwrap().modified().unwrap();
    world.push_as(How::Full);
    world.push_as(How::Unchanged);
    // In the same instant as well: another content, and another name.
    std::fs::write(&b, "two").unwrap();
    std::fs::File::options().write(true).open(&b).unwrap().set_modified(time).unwrap();
    let layers = world.fetch(&world.push_as(How::Incremental).id);
    assert_eq!(std::fs::read(layers[1].path.join("a")).unwrap(), b"two");
    std::fs::rename(&b, world.upper().join("c")).unwrap();
    let layers = world.fetch(&world.push_as(How::Incremental).id);
    let top = common::dump(&layers[layers.len() - 1].path);
    assert_eq!(top[Path::new("c")].links, Path::new("a"));
    world.push_as(How::Unchanged);
}

#[test]
fn a_hard_link_group_is_shipped_whole() {
    let world = World::new();
    for (a, b) in [("a", "z"), ("other", "other2")] {
        write(&world.upper().join(a), a);
        std::fs::hard_link(world.upper().join(a), world.upper().join(b)).unwrap();
    }
    pause();
    world.push_as(How::Full);
    pause();
    write(&world.upper().join("z"), "changed through one name");
    let layers = world.fetch(&world.push_as(How::Incremental).id);
    let top = common::dump(&layers[1].path);
    assert_eq!(top.keys().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(), ["", "a", "z"]);
    assert_eq!(top[Path::new("z")].links, Path::new("a"));
}

#[test]
fn chains_stay_short() {
    let world = World::new();
    write(&world.upper().join("keep"), &"k".repeat(100_000));
    let mut fulls = 0;
    for round in 0..20 {
        pause();
        write(&world.upper().join("one"), &round.to_string());
        let pushed = world.push();
        fulls += u32::from(pushed.how == How::Full);
        let layers = world.depot.manifest(&pushed.id).unwrap().layers.len();
        assert!(layers <= 16, "{layers}");
    }
    assert_eq!(fulls, 1);
}

#[test]
fn a_layer_takes_the_place_of_small_ones() {
    let mut world = World::new();
    world.merge = MergePolicy::default();
    let (mut lengths, mut fulls) = (vec![], 0);
    for round in 0..60 {
        write(
            &world.upper().join(format!("file{round}")),
            &format!("{round}").repeat(if round == 0 { 4_000_000 } else { 20_000 }),
        );
        pause();
        let pushed = world.push();
        fulls += u32::from(pushed.how == How::Full);
        assert_same_tree(&world, &pushed);
        lengths.push(world.depot.manifest(&pushed.id).unwrap().layers.len());
    }
    assert!(lengths.iter().all(|length| *length <= 6), "{lengths:?}");
    // What has come since is less than the first layer.
    assert_eq!(fulls, 1);
}

/// What is in the layers, as no overlay is needed for it.
fn assert_same_tree(world: &World, pushed: &skiff_snapshot::Pushed) {
    let names = |dir: &Path| -> Vec<_> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let mut found: Vec<_> = world.fetch(&pushed.id).iter().flat_map(|layer| names(&layer.path)).collect();
    let mut there = names(&world.upper());
    [&mut found, &mut there].into_iter().for_each(|names| {
        names.sort();
        names.dedup();
    });
    assert_eq!(found, there);
}

#[test]
fn dead_weight_is_dropped() {
    let world = World::new();
    let mut hows = Vec::new();
    for round in 0..5 {
        write(&world.upper().join("big"), &format!("{round}").repeat(2_000_000));
        pause();
        hows.push(world.push().how);
    }
    assert_eq!(hows, [How::Full, How::Incremental, How::Full, How::Incremental, How::Full]);
}

#[test]
fn a_lost_or_foreign_index_or_depot_means_a_full_layer() {
    let world = World::new();
    write(&world.upper().join("file"), "x");
    pause();
    let first = world.push_as(How::Full);
    std::fs::write(world.path("state/snapshot.index"), "torn").unwrap();
    let second = world.push_as(How::Full);
    assert!(first.bytes > 0 && second.bytes == 0, "all of it is there already");
    let layer = std::fs::read_dir(world.path("depot/layers")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(layer).unwrap();
    world.push_as(How::Full);
    let manifest = world.path("depot/snapshots").join(format!("{}.json", world.push().id));
    std::fs::write(manifest, "{}").unwrap();
    world.push_as(How::Full);
}

#[test]
fn another_base_gets_another_manifest_of_the_same_layers() {
    let world = World::new();
    write(&world.upper().join("file"), "x");
    pause();
    let first = world.push();
    let identity = BTreeMap::from([("release".to_string(), "13".to_string())]);
    let (upper, base, state) = (world.open("upper"), world.open("base"), world.open("state"));
    let input = common::input(upper.as_fd(), base.as_fd(), state.as_fd(), &identity);
    let second = push(&world.depot, &input).unwrap();
    assert_eq!((second.how, second.bytes), (How::Restated, 0));
    let manifest = |id| world.depot.manifest(id).unwrap();
    assert_eq!(manifest(&first.id).layers, manifest(&second.id).layers);
    assert_eq!(manifest(&second.id).base, identity);
    assert_eq!(push(&world.depot, &input).unwrap().how, How::Unchanged);
    assert_eq!(skiff_snapshot::last_snapshot(state.as_fd()).unwrap(), Some(second.id));
}

#[test]
fn a_busy_environment_is_taken_in_one_state_of_each_file() {
    let world = World::new();
    let log = world.upper().join("log");
    write(&log, "begin\n");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let go_on = || !stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let mut file = std::fs::File::options().append(true).open(&log).unwrap();
            while go_on() {
                file.write_all(b"line\n").unwrap();
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                if !go_on() {
                    break;
                }
                let path = world.upper().join(format!("tmp/{}", round % 50));
                write(&path, "short-lived");
                if round % 3 > 0 {
                    std::fs::remove_file(&path).unwrap();
                }
                if round % 50 == 49 {
                    std::fs::remove_dir_all(world.upper().join("tmp")).unwrap();
                }
            }
        });
        for _ in 0..20 {
            let pushed = world.try_push();
            let done = pushed.as_ref().map(|pushed| world.fetch(&pushed.id));
            if done.is_err() {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            let layers = done.unwrap();
            for layer in layers {
                if let Ok(text) = std::fs::read_to_string(layer.path.join("log")) {
                    let lines = text.strip_prefix("begin\n").unwrap();
                    let whole = lines.len() - lines.len() % 5;
                    assert!(lines.as_bytes()[..whole].chunks(5).all(|line| line == b"line\n"));
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // Quiet again: exact.
    pause();
    let pushed = world.push();
    if is_root("comparison of a busy environment") {
        assert_same(&world.seen(), &world.seen_in(&pushed.id));
    }
}

/// What someone does to the upper itself, past the overlay: marks appear and vanish.
#[derive(Debug, Clone)]
enum Meddle {
    Plain(Act),
    Whiteout(PathBuf),
    Opaque(PathBuf),
    Transparent(PathBuf),
}

/// Often the one or the other layer is replaced, sometimes none, sometimes all.
fn policies() -> impl Strategy<Value = MergePolicy> {
    let percents = prop::sample::select(vec![0, 80, 125, 400, u64::MAX]);
    percents.prop_map(|percent| MergePolicy { percent, small: 0 })
}

fn meddles() -> impl Strategy<Value = Meddle> {
    prop_oneof![
        4 => acts().prop_map(Meddle::Plain),
        2 => paths().prop_map(Meddle::Whiteout),
        2 => paths().prop_map(Meddle::Opaque),
        1 => paths().prop_map(Meddle::Transparent),
    ]
}

fn meddle(root: &Path, how: &Meddle) {
    match how {
        Meddle::Plain(done) => act(root, done),
        Meddle::Whiteout(path) => {
            let kind = rustix::fs::FileType::CharacterDevice;
            let mode = rustix::fs::Mode::empty();
            rustix::fs::mknodat(rustix::fs::CWD, root.join(path), kind, mode, 0).ok();
        }
        Meddle::Opaque(path) if root.join(path).is_dir() && !root.join(path).is_symlink() => {
            opaque(&root.join(path))
        }
        Meddle::Transparent(path) => {
            rustix::fs::lremovexattr(root.join(path), "user.overlay.opaque").ok();
        }
        Meddle::Opaque(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    /// A user works in their environment, through the real overlay; after each round a job sees what they see, and the chain of
    /// layers shows what one full layer shows.
    #[test]
    fn a_job_sees_what_the_user_sees(
        base in prop::collection::vec(acts(), 0..25),
        rounds in prop::collection::vec((prop::collection::vec(acts(), 0..12), policies()), 1..8),
    ) {
        if !is_root("a_job_sees_what_the_user_sees") {
            return Ok(());
        }
        let mut world = World::new();
        base.iter().for_each(|done| act(&world.path("base"), done));
        let mut last = None;
        for (round, merge) in rounds {
            world.merge = merge;
            {
                let overlay = common::Overlay::new(
                    &[&world.path("base")], Some((&world.upper(), &world.path("work"))));
                round.iter().for_each(|done| act(&overlay.path(), done));
            }
            let pushed = world.push();
            assert_same(&world.seen(), &world.seen_in(&pushed.id));
            if pushed.how == How::Unchanged {
                prop_assert_eq!(last, Some(pushed.id));
            }
            last = Some(pushed.id);
        }
        std::fs::remove_file(world.path("state/snapshot.index")).unwrap();
        let full = world.push_as(How::Full);
        assert_same(&world.seen_in(&full.id), &world.seen_in(&last.unwrap()));
    }

    /// The same for an upper that is changed behind the overlay's back, as when it is restored from elsewhere.
    #[test]
    fn a_meddled_upper_is_shipped_as_it_is(
        base in prop::collection::vec(acts(), 0..25),
        rounds in prop::collection::vec((prop::collection::vec(meddles(), 0..12), policies()), 1..8),
    ) {
        if !is_root("a_meddled_upper_is_shipped_as_it_is") {
            return Ok(());
        }
        let mut world = World::new();
        base.iter().for_each(|done| act(&world.path("base"), done));
        for (round, merge) in rounds {
            world.merge = merge;
            round.iter().for_each(|done| meddle(&world.upper(), done));
            let pushed = world.push();
            assert_same(&world.seen(), &world.seen_in(&pushed.id));
            if pushed.how == How::Full {
                let layers = world.fetch(&pushed.id);
                assert_same(&common::dump(&world.upper()), &common::dump(&layers[0].path));
            }
        }
    }
}
