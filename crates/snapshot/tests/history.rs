//! Snapshots compared with each other and made an upper again: what comes out is what overlays of their layers show.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::common::acts::{Act, act, acts, cases};
use crate::common::{Overlay, Tree, World, as_merged, assert_same, dump, is_root, opaque, whiteout};
use proptest::prelude::*;
use skiff_snapshot::{ChangeKind, How, Side, SnapshotId, apply, compare, put_in_place};

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

type Changes = Vec<(PathBuf, ChangeKind)>;

fn compared(world: &World, before: Side<'_>, after: Side<'_>) -> Changes {
    let path = |path: &[u8]| PathBuf::from(std::str::from_utf8(path).unwrap());
    let changes = compare(&world.depot, before, after, world.open("base").as_fd()).unwrap();
    let mut changes: Changes = changes.iter().map(|change| (path(&change.path), change.kind)).collect();
    changes.sort();
    changes
}

/// The same from what two overlays show.
fn expected(before: &Tree, after: &Tree) -> Changes {
    let plain = |tree: &Tree, path: &Path| {
        tree.get(path).cloned().map(|mut entry| {
            // Times of links and pipes are nobody's concern.
            if entry.kind == "symlink" || entry.kind == "fifo" {
                entry.mtime = None;
            }
            entry
        })
    };
    let mut changes = Changes::new();
    for path in before.keys().chain(after.keys().filter(|path| !before.contains_key(*path))) {
        let kind = match (plain(before, path), plain(after, path)) {
            (None, Some(_)) => ChangeKind::Added,
            (Some(_), None) => {
                let parent = path.parent().unwrap();
                // Of a deleted directory only the directory is told; one that is a file now is changed.
                if after.get(parent).is_none_or(|entry| entry.kind != "dir") {
                    continue;
                }
                ChangeKind::Deleted
            }
            (a, b) if a != b => ChangeKind::Changed,
            _ => continue,
        };
        changes.push((path.clone(), kind));
    }
    changes.sort();
    changes
}

/// Makes the environment again what a snapshot has, as a rollback does.
fn roll_back(world: &World, id: &SnapshotId) {
    let work = world.path("rollback");
    std::fs::create_dir(&work).unwrap();
    let (dir, base) = (world.open("rollback"), world.open("base"));
    apply(&world.depot, id, dir.as_fd(), base.as_fd()).unwrap();
    // The index and the upper go to where they are found.
    std::fs::rename(world.upper(), world.path("state/upper")).unwrap();
    put_in_place(dir.as_fd(), world.open("state").as_fd()).unwrap();
    std::fs::rename(world.path("state/upper"), world.upper()).unwrap();
    std::fs::remove_dir_all(work).unwrap();
}

#[test]
fn a_rollback_is_the_snapshot_and_the_next_one_is_unchanged() {
    if !is_root("a_rollback_is_the_snapshot_and_the_next_one_is_unchanged") {
        return;
    }
    let world = World::new();
    let (up, base) = (world.upper(), world.path("base"));
    for path in ["of-base", "dir/of-base", "gone/x", "was-dir/in", "plain/y"] {
        write(&base.join(path), path);
    }
    write(&up.join("dir/own"), "own");
    write(&up.join("gone/z"), "z");
    write(&up.join("only-here/a"), "a");
    write(&up.join("was-dir"), "a file now");
    std::fs::hard_link(up.join("dir/own"), up.join("linked")).unwrap();
    let first = world.push_as(How::Full);
    let shown_first = world.seen_in(&first.id);
    std::thread::sleep(std::time::Duration::from_millis(40));
    whiteout(&up.join("of-base"));
    opaque(&up.join("gone"));
    std::fs::remove_file(up.join("only-here/a")).unwrap();
    // The base's directory of that name stays hidden.
    std::fs::remove_file(up.join("was-dir")).unwrap();
    write(&up.join("was-dir/mine"), "m");
    opaque(&up.join("was-dir"));
    write(&up.join("dir/own"), "changed");
    let second = world.push();
    assert!(second.how == How::Incremental, "{second:?}");
    let shown_second = world.seen_in(&second.id);
    for (id, shown) in [(first.id, &shown_first), (second.id, &shown_second), (first.id, &shown_first)] {
        roll_back(&world, &id);
        let again = world.push();
        assert_eq!((again.how, again.id, again.bytes), (How::Unchanged, id, 0));
        assert_same(shown, &world.seen());
    }
    assert_eq!(
        compared(&world, Side::Snapshot(&first.id), Side::Snapshot(&second.id)),
        [
            ("dir/own".into(), ChangeKind::Changed),
            ("gone/x".into(), ChangeKind::Deleted),
            ("linked".into(), ChangeKind::Changed),
            ("of-base".into(), ChangeKind::Deleted),
            ("only-here/a".into(), ChangeKind::Deleted),
            ("was-dir".into(), ChangeKind::Changed),
            ("was-dir/mine".into(), ChangeKind::Added),
        ]
    );
}

#[test]
fn a_whiteout_is_left_only_where_the_overlay_looks_for_one() {
    if !is_root("a_whiteout_is_left_only_where_the_overlay_looks_for_one") {
        return;
    }
    let world = World::new();
    let (up, base) = (world.upper(), world.path("base"));
    write(&base.join("shared/of-base"), "b");
    for path in ["shared/own", "shared/kept", "own/one", "own/two"] {
        write(&up.join(path), path);
    }
    world.push_as(How::Full);
    std::thread::sleep(std::time::Duration::from_millis(40));
    std::fs::remove_file(up.join("shared/own")).unwrap();
    std::fs::remove_file(up.join("own/one")).unwrap();
    let second = world.push_as(How::Incremental);
    roll_back(&world, &second.id);
    let names = |dir: &str| {
        let mut names: Vec<_> =
            std::fs::read_dir(up.join(dir)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names("own"), ["two"]);
    assert_eq!(names("shared"), ["kept", "own"]);
    // And so the directory can be removed in the environment.
    let overlay = Overlay::new(&[&base], Some((&up, &world.path("work"))));
    std::fs::remove_file(overlay.path().join("own/two")).unwrap();
    std::fs::remove_dir(overlay.path().join("own")).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    /// A user works in their environment, takes snapshots, and goes back to each of them.
    #[test]
    fn differences_and_rollbacks_are_as_the_overlays_show(
        base in prop::collection::vec(acts(), 0..25),
        rounds in prop::collection::vec(prop::collection::vec(acts(), 1..12), 1..4),
        last in prop::collection::vec(acts(), 0..6),
    ) {
        if !is_root("differences_and_rollbacks_are_as_the_overlays_show") {
            return Ok(());
        }
        let world = World::new();
        base.iter().for_each(|done| act(&world.path("base"), done));
        let work = |acts: &[Act]| {
            let overlay = Overlay::new(&[&world.path("base")], Some((&world.upper(), &world.path("work"))));
            acts.iter().for_each(|done| act(&overlay.path(), done));
        };
        let mut taken: Vec<(SnapshotId, Tree)> = vec![];
        for round in &rounds {
            work(round);
            let pushed = world.push();
            taken.push((pushed.id, world.seen_in(&pushed.id)));
        }
        work(&last);
        let now = world.seen();
        for (a, tree_a) in &taken {
            let (upper, state) = (world.open("upper"), world.open("state"));
            let upper = Side::Upper(upper.as_fd(), state.as_fd());
            prop_assert_eq!(compared(&world, Side::Snapshot(a), upper), expected(tree_a, &now));
            prop_assert_eq!(compared(&world, upper, Side::Snapshot(a)), expected(&now, tree_a));
            for (b, tree_b) in &taken {
                let found = compared(&world, Side::Snapshot(a), Side::Snapshot(b));
                prop_assert_eq!(found, expected(tree_a, tree_b));
            }
        }
        for (id, tree) in &taken {
            roll_back(&world, id);
            let again = world.push();
            prop_assert_eq!((again.how, again.id), (How::Unchanged, *id));
            assert_same(tree, &as_merged(&dump_shown(&world)));
        }
    }
}

fn dump_shown(world: &World) -> Tree {
    let overlay = Overlay::new(&[&world.path("base")], Some((&world.upper(), &world.path("work"))));
    let tree = dump(&overlay.path());
    // What the overlay lists can be looked at.
    assert!(tree.values().all(|entry| entry.kind != "whiteout"));
    tree
}
