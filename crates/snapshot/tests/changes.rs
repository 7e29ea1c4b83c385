//! What a job has changed over its snapshot is a snapshot: it shows what the job saw at its end.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::common::acts::{act, acts, cases};
use crate::common::{Overlay, Tree, World, as_merged, assert_same, dump, is_root, whiteout};
use proptest::prelude::*;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use skiff_snapshot::{
    Change, ChangeKind, ChangesInput, Error, LayerId, LayerStream, OpenHere, Pushed, SnapshotId, conflicts,
    push_changes,
};

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Runs a job in a snapshot on a node; what it saw at its end, and what became of its changes.
fn job(
    world: &World,
    parent: &SnapshotId,
    node: &str,
    run: impl FnOnce(&Path),
) -> (Tree, Option<Pushed>, Vec<Change>) {
    let place = world.path(node);
    for part in ["upper", "work"] {
        std::fs::create_dir_all(place.join(part)).unwrap();
    }
    let layers = world.fetch(parent);
    let base = world.path("base");
    let mut lowers: Vec<&Path> = layers.iter().rev().map(|layer| layer.path.as_path()).collect();
    lowers.push(&base);
    let overlay = Overlay::new(&lowers, Some((&place.join("upper"), &place.join("work"))));
    run(&overlay.path());
    let seen = as_merged(&dump(&overlay.path()));
    drop(overlay);
    let (upper, base, scratch) = (world.open(&format!("{node}/upper")), world.open("base"), world.open(node));
    let input = ChangesInput {
        parent,
        upper: upper.as_fd(),
        base: base.as_fd(),
        scratch: scratch.as_fd(),
        here: &|_| None,
    };
    // In a job something may be mounted there.
    let counts = |mut changes: Vec<Change>| {
        changes.retain(|change| change.path != b"dir/place");
        changes
    };
    let (pushed, changes) = push_changes(&world.depot, &input, counts).unwrap();
    (seen, pushed, changes)
}

fn told(changes: &[Change]) -> Vec<(&str, ChangeKind)> {
    changes.iter().map(|change| (std::str::from_utf8(&change.path).unwrap(), change.kind)).collect()
}

fn prepared() -> (World, SnapshotId) {
    let world = World::new();
    let (up, base) = (world.upper(), world.path("base"));
    for path in ["of-base", "dir/of-base", "dir/other", "gone/x"] {
        write(&base.join(path), path);
    }
    write(&up.join("dir/own"), "own");
    write(&up.join("opt/tool"), "1");
    whiteout(&up.join("of-base"));
    let id = world.push().id;
    (world, id)
}

/// A layer that a node has.
struct Kept(Vec<u8>);

impl LayerStream for Kept {
    fn read_at(&mut self, into: &mut [u8], at: u64) -> bool {
        let from = usize::try_from(at).ok().and_then(|at| self.0.get(at..at + into.len()));
        from.is_some_and(|bytes| {
            into.copy_from_slice(bytes);
            true
        })
    }
}

/// Nothing of what layers consist of is in the depot any more.
fn lose_packs(world: &World) {
    for pack in std::fs::read_dir(world.path("depot/packs")).unwrap() {
        let pack = pack.unwrap().path();
        let length = std::fs::metadata(&pack).unwrap().len();
        std::fs::remove_file(&pack).unwrap();
        std::fs::write(&pack, vec![0; usize::try_from(length).unwrap()]).unwrap();
    }
}

#[test]
fn layers_that_a_node_has_are_read_there() {
    if !is_root("layers_that_a_node_has_are_read_there") {
        return;
    }
    let (world, parent) = prepared();
    let layer = world.depot.manifest(&parent).unwrap().layers[0];
    let mut stream = vec![];
    world.depot.open_layer(&layer).unwrap().send(&mut stream).unwrap();
    let mut damaged = stream.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
    let upper = world.path("changed");
    write(&upper.join("opt/tool"), "2");
    let (upper, base, scratch) = (world.open("changed"), world.open("base"), world.open("base"));
    let changes = |here: Vec<u8>| {
        let opened = std::cell::Cell::new(0);
        let here = |id: &LayerId| -> Option<Box<dyn LayerStream>> {
            opened.set(opened.get() + u32::from(*id == layer.digest));
            (!here.is_empty()).then(|| Box::new(Kept(here.clone())) as Box<dyn LayerStream>)
        };
        let (upper, base, scratch) = (upper.as_fd(), base.as_fd(), scratch.as_fd());
        let input = ChangesInput { parent: &parent, upper, base, scratch, here: &here };
        // Nothing of it is kept.
        let told = std::cell::RefCell::new(vec![]);
        let pushed = push_changes(&world.depot, &input, |all| {
            told.replace(all);
            vec![]
        });
        assert_eq!(opened.get(), 1);
        pushed.map(|_| told.into_inner())
    };
    let expected = changes(vec![]).unwrap();
    assert!(told(&expected).contains(&("opt/tool", ChangeKind::Changed)), "{:?}", told(&expected));
    assert_eq!(told(&changes(damaged.clone()).unwrap()), told(&expected), "a damaged one");
    assert_eq!(told(&changes(vec![1; 5]).unwrap()), told(&expected), "a short one");
    lose_packs(&world);
    assert_eq!(told(&changes(stream).unwrap()), told(&expected));
    changes(damaged).unwrap_err();
    changes(vec![]).unwrap_err();
}

/// A file system in memory, attached nowhere, which holds so few files.
fn for_few_files(count: &str) -> OwnedFd {
    let fs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    rustix::mount::fsconfig_set_string(fs.as_fd(), "nr_inodes", count).unwrap();
    rustix::mount::fsconfig_create(fs.as_fd()).unwrap();
    rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

/// A snapshot of so many layers that the next one makes one of them.
struct ManyLayers {
    world: World,
    id: SnapshotId,
    /// The layers, as a node has them.
    streams: BTreeMap<LayerId, Vec<u8>>,
}

impl ManyLayers {
    fn new() -> ManyLayers {
        let (world, id) = prepared();
        std::fs::create_dir(world.path("scratch")).unwrap();
        let mut many = ManyLayers { world, id, streams: BTreeMap::new() };
        for number in 0..63 {
            let name = format!("up{number}");
            many.write(&name, "opt/count", &number.to_string());
            many.write(&name, &format!("opt/of/{}", number % 7), &number.to_string());
            many.id = many.push(&name, &many.scratch(), &|_| None).unwrap();
        }
        let depot = &many.world.depot;
        for layer in depot.manifest(&many.id).unwrap().layers {
            let mut stream = vec![];
            depot.open_layer(&layer).unwrap().send(&mut stream).unwrap();
            many.streams.insert(layer.digest, stream);
        }
        assert_eq!(many.streams.len(), 64);
        many
    }

    fn write(&self, upper: &str, path: &str, content: &str) {
        write(&self.world.path(upper).join(path), content);
    }

    fn scratch(&self) -> OwnedFd {
        self.world.open("scratch").into()
    }

    /// Pushes what a job in the snapshot has changed.
    fn push(
        &self,
        upper: &str,
        scratch: &OwnedFd,
        here: &OpenHere<'_>,
    ) -> skiff_snapshot::Result<SnapshotId> {
        let (upper, base) = (self.world.open(upper), self.world.open("base"));
        let (upper, base, scratch) = (upper.as_fd(), base.as_fd(), scratch.as_fd());
        let input = ChangesInput { parent: &self.id, upper, base, scratch, here };
        push_changes(&self.world.depot, &input, |all| all).map(|(pushed, _)| pushed.unwrap().id)
    }

    /// A layer as the node has it, but for so many bytes that are damaged.
    fn on_node(&self, id: &LayerId, damage: usize) -> Option<Box<dyn LayerStream>> {
        let mut stream = self.streams.get(id)?.clone();
        let middle = stream.len() / 2;
        stream[middle..middle + damage].iter_mut().for_each(|byte| *byte ^= 0x55);
        Some(Box::new(Kept(stream)))
    }

    fn layers_of(&self, id: &SnapshotId) -> usize {
        self.world.depot.manifest(id).unwrap().layers.len()
    }
}

#[test]
fn layers_that_are_made_one_are_read_in_the_depot_where_the_nodes_are_damaged() {
    if !is_root("layers_that_are_made_one_are_read_in_the_depot_where_the_nodes_are_damaged") {
        return;
    }
    let many = ManyLayers::new();
    many.write("last", "opt/count", "last");
    let merged = many.push("last", &many.scratch(), &|id| many.on_node(id, 8)).unwrap();
    assert_eq!(many.layers_of(&merged), 1);
    let seen = many.world.seen_in(&merged);
    assert_eq!(seen[Path::new("opt/count")].content, b"last");
    assert_eq!(seen[Path::new("opt/of/3")].content, b"59");
}

#[test]
fn a_disk_that_is_full_when_layers_are_made_one_is_told_and_nothing_stays_on_it() {
    if !is_root("a_disk_that_is_full_when_layers_are_made_one_is_told_and_nothing_stays_on_it") {
        return;
    }
    let many = ManyLayers::new();
    many.write("last", "opt/count", "last");
    // In the middle, of which nobody can know before: it says that there is room.
    let full = for_few_files("8");
    let told = many.push("last", &full, &|id| many.on_node(id, 0)).unwrap_err();
    assert!(matches!(told, Error::NoRoom { layers: 65, .. }), "{told}");
    let left = rustix::fs::Dir::read_from(&full).unwrap().flatten();
    let left: Vec<_> = left
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| !name.to_bytes().starts_with(b"."))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn layers_that_only_the_node_has_are_made_one_if_they_are_whole() {
    if !is_root("layers_that_only_the_node_has_are_made_one_if_they_are_whole") {
        return;
    }
    let many = ManyLayers::new();
    lose_packs(&many.world);
    many.write("other", "opt/count", "a content that no layer has");
    many.push("other", &many.scratch(), &|id| many.on_node(id, 8)).unwrap_err();
    let merged = many.push("other", &many.scratch(), &|id| many.on_node(id, 0)).unwrap();
    assert_eq!(many.layers_of(&merged), 1);
}

#[test]
fn what_a_job_changed_is_a_snapshot_over_its_own() {
    if !is_root("what_a_job_changed_is_a_snapshot_over_its_own") {
        return;
    }
    let (world, parent) = prepared();
    let before = world.seen_in(&parent);
    let (seen, pushed, changes) = job(&world, &parent, "n1", |root| {
        std::fs::remove_file(root.join("dir/own")).unwrap();
        std::fs::remove_file(root.join("dir/other")).unwrap();
        std::fs::remove_dir_all(root.join("gone")).unwrap();
        write(&root.join("gone/anew"), "n");
        std::fs::create_dir(root.join("dir/place")).unwrap();
        write(&root.join("opt/tool"), "2");
        write(&root.join("of-base"), "again");
        // In the place of a layer's file, what no snapshot holds.
        std::fs::remove_file(root.join("dir/of-base")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(root.join("dir/of-base")).unwrap());
    });
    let pushed = pushed.unwrap();
    assert_eq!(pushed.skipped, [b"dir/of-base"]);
    let mut without = seen;
    without.remove(Path::new("dir/of-base"));
    without.remove(Path::new("dir/place"));
    assert_same(&without, &world.seen_in(&pushed.id));
    assert_eq!(
        told(&changes),
        [
            ("dir/of-base", ChangeKind::Changed),
            ("dir/other", ChangeKind::Deleted),
            ("dir/own", ChangeKind::Deleted),
            ("gone", ChangeKind::Changed),
            ("gone/anew", ChangeKind::Added),
            ("gone/x", ChangeKind::Deleted),
            ("of-base", ChangeKind::Added),
            ("opt/tool", ChangeKind::Changed),
        ]
        .into_iter()
        .filter(|(path, _)| *path != "gone")
        .collect::<Vec<_>>()
    );
    // The environment and its snapshot are as they were.
    assert_same(&before, &world.seen_in(&parent));
    assert_same(&before, &world.seen());
    // A second job in what the first has left.
    let (seen, again, _) = job(&world, &pushed.id, "n2", |root| write(&root.join("gone/anew"), "m"));
    assert_same(&seen, &world.seen_in(&again.unwrap().id));
}

#[test]
fn jobs_in_what_jobs_have_changed_come_to_no_end() {
    if !is_root("jobs_in_what_jobs_have_changed_come_to_no_end") {
        return;
    }
    let (world, mut parent) = prepared();
    let mut longest = 0;
    for number in 0..70 {
        let (seen, pushed, _) = job(&world, &parent, &format!("n{number}"), |root| {
            write(&root.join("opt/count"), &number.to_string());
            write(&root.join(format!("opt/of/{}", number % 7)), &number.to_string());
            // Deleted and made again, once over the base and once over a layer.
            for path in ["dir/of-base", "opt/tool"] {
                match number % 3 {
                    0 => std::fs::remove_file(root.join(path)).unwrap(),
                    _ => write(&root.join(path), &number.to_string()),
                }
            }
            std::fs::remove_dir_all(root.join("gone")).unwrap();
            write(&root.join("gone/anew"), &number.to_string());
        });
        let id = pushed.unwrap().id;
        let layers = world.depot.manifest(&id).unwrap().layers.len();
        if layers == 1 || number == 69 {
            assert_same(&seen, &world.seen_in(&id));
            assert!(!world.path(&format!("n{number}/merged")).exists());
        }
        (parent, longest) = (id, longest.max(layers));
    }
    assert_eq!(longest, 64);
    assert!(world.depot.manifest(&parent).unwrap().layers.len() < 10);
}

#[test]
fn a_job_that_changed_nothing_makes_no_snapshot() {
    if !is_root("a_job_that_changed_nothing_makes_no_snapshot") {
        return;
    }
    let (world, parent) = prepared();
    let (_, pushed, changes) = job(&world, &parent, "n1", |root| {
        // Copied up, and as before.
        let file = root.join("dir/other");
        let mode = std::fs::metadata(&file).unwrap().permissions();
        std::fs::set_permissions(&file, mode).unwrap();
        std::fs::create_dir(root.join("dir/place")).unwrap();
        write(&root.join("dir/short"), "x");
        std::fs::remove_file(root.join("dir/short")).unwrap();
    });
    assert!(pushed.is_none() && changes.is_empty(), "{:?}", told(&changes));
    assert_eq!(std::fs::read_dir(world.path("depot/snapshots")).unwrap().count(), 1);
}

#[test]
fn only_what_nodes_changed_differently_is_a_conflict() {
    if !is_root("only_what_nodes_changed_differently_is_a_conflict") {
        return;
    }
    let (world, parent) = prepared();
    let one = |root: &Path| {
        write(&root.join("same"), "same");
        write(&root.join("opt/tool"), "one");
        write(&root.join("dir/only-one"), "1");
        std::fs::remove_file(root.join("dir/other")).unwrap();
        std::fs::remove_file(root.join("dir/of-base")).unwrap();
    };
    let two = |root: &Path| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        write(&root.join("same"), "same");
        write(&root.join("opt/tool"), "two");
        write(&root.join("dir/only-two"), "2");
        std::fs::remove_file(root.join("dir/other")).unwrap();
        write(&root.join("dir/of-base"), "changed");
    };
    let ids = [
        job(&world, &parent, "n1", one).1.unwrap().id,
        job(&world, &parent, "n2", two).1.unwrap().id,
        job(&world, &parent, "n3", |root| write(&root.join("same"), "same")).1.unwrap().id,
    ];
    let found = conflicts(&world.depot, &parent, &ids).unwrap();
    let found: Vec<(&str, &[usize])> = found
        .iter()
        .map(|conflict| (std::str::from_utf8(&conflict.path).unwrap(), &conflict.changed_by[..]))
        .collect();
    assert_eq!(found, [("dir/of-base", &[0, 1][..]), ("opt/tool", &[0, 1])]);
    assert!(conflicts(&world.depot, &parent, &ids[..1]).unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_job_does_its_snapshot_shows(
        before in proptest::collection::vec(acts(), 0..12),
        during in proptest::collection::vec(acts(), 0..12),
    ) {
        if !is_root("whatever_a_job_does_its_snapshot_shows") {
            return Ok(());
        }
        let world = World::new();
        write(&world.path("base/a/of-base"), "b");
        {
            let overlay =
                Overlay::new(&[&world.path("base")], Some((&world.upper(), &world.path("work"))));
            before.iter().for_each(|one| act(&overlay.path(), one));
        }
        let parent = world.push().id;
        let (seen, pushed, changes) = job(&world, &parent, "n1", |root| {
            during.iter().for_each(|one| act(root, one));
        });
        let after = pushed.map_or(parent, |pushed| pushed.id);
        if after != parent {
            assert_same(&seen, &world.seen_in(&after));
        }
        prop_assert_eq!(after == parent, changes.is_empty());
    }
}
