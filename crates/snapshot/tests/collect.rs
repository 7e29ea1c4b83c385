//! What goes from a depot, and that nothing goes that somebody is relying on at that moment.

#![allow(clippy::unwrap_used)] // what must hold is asserted afterwards

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use skiff_snapshot::{
    CollectOptions, CollectedFiles, Depot, DepotVerdict, Error, How, Pushed, SnapshotId, SnapshotInput,
    fetch, push,
};

use crate::common::{NO_MERGE, World, collect, make_old};

const HOUR: Duration = Duration::from_secs(3600);
/// As long as the tests take at most, and longer.
const GRACE: Duration = Duration::from_secs(600);

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn files(depot: &Path) -> Vec<PathBuf> {
    let of =
        |part: &str| names(&depot.join(part)).into_iter().map(|name| depot.join(part).join(name)).collect();
    [of("layers"), of("packs"), of("snapshots")].into_iter().flat_map(|files: Vec<PathBuf>| files).collect()
}

/// A depot with three snapshots of an environment that was changed: one layer, two, three.
fn three() -> (World, Vec<SnapshotId>) {
    let world = World::new();
    let ids = (0..3).map(|number| {
        std::fs::write(world.upper().join("file"), [number; 5000]).unwrap();
        std::thread::sleep(Duration::from_millis(40));
        world.push().id
    });
    let ids = ids.collect();
    (world, ids)
}

#[test]
fn what_is_needed_or_young_stays() {
    let (world, ids) = three();
    let depot = world.path("depot");
    std::fs::write(depot.join("layers/.new-dead-1-2-3"), b"half").unwrap();
    std::fs::write(depot.join("layers/not ours"), b"").unwrap();
    assert_eq!(collect(&world.depot, &[], GRACE), CollectedFiles::default());
    files(&depot).iter().for_each(|file| make_old(file));
    // Two layers are those of the second one. The third one's goes, with its pack, and what a process that died has left.
    let collected = collect(&world.depot, &[ids[1]], GRACE);
    assert_eq!(collected.snapshots.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&ids[0], &ids[2]]));
    assert_eq!(collected.files.len(), 3, "{collected:?}");
    assert_eq!(world.fetch(&ids[1]).len(), 2);
    assert_eq!(names(&depot.join("layers")).len(), 3);
    let error = fetch(&world.depot, &ids[0], &world.cache).unwrap_err();
    assert!(error.to_string().contains(&format!("snapshot {} is not in the depot", ids[0])), "{error}");
    // The environment's last one has gone, so it is made anew, and is young.
    let again = world.push_as(How::Full);
    assert_eq!(collect(&world.depot, &[], GRACE).snapshots, [ids[1]]);
    world.fetch(&again.id);
}

#[test]
fn times_that_no_clock_can_have_set_keep_nothing_for_ever() {
    let (world, ids) = three();
    let depot = world.path("depot");
    std::fs::write(depot.join("layers/.new-dead-1-2-3"), b"half").unwrap();
    let set = |time: SystemTime| {
        for file in files(&depot) {
            File::open(file).unwrap().set_modified(time).unwrap();
        }
    };
    // Ahead by no more than clocks may be apart: nothing is known of it.
    set(SystemTime::now() + HOUR * 7 / 4);
    let is_ahead = |file: &PathBuf| file.metadata().unwrap().modified().unwrap() > SystemTime::now();
    assert_eq!(collect(&world.depot, &[], Duration::ZERO), CollectedFiles::default());
    assert!(files(&depot).iter().all(is_ahead));
    // By years: they are as if they had been used now, and a look changes nothing.
    set(SystemTime::now() + 24 * 365 * 50 * HOUR);
    let contents = world.depot.contents().unwrap();
    assert!(contents.snapshots.values().all(|snapshot| snapshot.file.used == contents.now));
    assert!(files(&depot).iter().all(is_ahead));
    assert_eq!(collect(&world.depot, &[], GRACE), CollectedFiles::default());
    std::thread::sleep(Duration::from_millis(40));
    assert!(!files(&depot).iter().any(is_ahead));
    ids.iter().for_each(|id| drop(world.fetch(id)));
    files(&depot).iter().for_each(|file| make_old(file));
    assert_eq!(collect(&world.depot, &[], GRACE).snapshots.len(), 3);
    assert!(files(&depot).is_empty());
}

#[test]
fn what_is_not_ours_stays_whatever_it_is_called() {
    let (world, ids) = three();
    let depot = world.path("depot");
    let (digest, elsewhere) = ("ab".repeat(32), world.path("elsewhere"));
    std::fs::write(&elsewhere, "kept").unwrap();
    let link = |name: &str| std::os::unix::fs::symlink(&elsewhere, depot.join(name)).unwrap();
    link(&format!("layers/{digest}.layer"));
    link("layers/.new-link");
    link(&format!("snapshots/{digest}.json"));
    std::fs::create_dir(depot.join(format!("snapshots/{}.json", "cd".repeat(32)))).unwrap();
    std::fs::create_dir(depot.join("layers/.gone-dir")).unwrap();
    std::fs::write(depot.join("layers/.gone-unknown"), "").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        depot.join(format!("snapshots/{}.json", "ef".repeat(32))),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let planted = |before: &[PathBuf]| -> BTreeSet<PathBuf> {
        files(&depot).into_iter().filter(|file| !before.contains(file)).collect()
    };
    let ours: Vec<PathBuf> = files(&depot)
        .into_iter()
        .filter(|file| file.is_file() && !file.is_symlink())
        .filter(|file| !file.ends_with(".gone-unknown"))
        .collect();
    let others = planted(&ours);
    assert_eq!(others.len(), 7);
    ours.iter().for_each(|file| make_old(file));
    let collected = collect(&world.depot, &[], Duration::ZERO);
    assert_eq!((collected.snapshots.len(), collected.files.len()), (ids.len(), 6));
    assert_eq!(files(&depot).into_iter().collect::<BTreeSet<_>>(), others);
    assert_eq!(std::fs::read_to_string(elsewhere).unwrap(), "kept");
}

#[test]
fn an_interrupted_collection_is_taken_up_again() {
    let (world, ids) = three();
    let depot = world.path("depot");
    let gone = |part: &str, name: &str| {
        std::fs::rename(depot.join(part).join(name), depot.join(part).join(format!(".gone-{name}"))).unwrap();
    };
    let layer = names(&depot.join("layers")).remove(0);
    gone("layers", &layer);
    gone("snapshots", &format!("{}.json", ids[2]));
    // Its collector may be at it.
    collect(&world.depot, &[], GRACE);
    assert!(names(&depot.join("layers")).contains(&format!(".gone-{layer}")));
    // No clock but the kernel's sets the time of change: so the collection's is set ahead.
    let mut contents = world.depot.contents().unwrap();
    contents.now += 3_600_000_000_000;
    world.depot.carry_out(&contents, &Default::default()).unwrap();
    ids.iter().for_each(|id| drop(world.fetch(id)));
}

#[test]
fn a_manifest_of_another_version_keeps_all_layers_and_itself() {
    let (world, _) = three();
    let snapshots = world.path("depot/snapshots");
    let text = br#"{"format":9,"what":"is to come"}"#;
    let name = format!("{}.json", blake3::hash(text).to_hex());
    std::fs::write(snapshots.join(&name), text).unwrap();
    files(&world.path("depot")).iter().for_each(|file| make_old(file));
    let collected = collect(&world.depot, &[], Duration::ZERO);
    assert_eq!((collected.snapshots.len(), collected.files), (3, vec![]));
    assert_eq!(names(&snapshots), [name]);
    // One that lies about its name is nobody's, and its layers go.
    std::fs::write(snapshots.join(format!("{}.json", "ab".repeat(32))), text).unwrap();
    std::fs::remove_file(
        snapshots.join(names(&snapshots).into_iter().find(|n| !n.starts_with("abab")).unwrap()),
    )
    .unwrap();
    files(&world.path("depot")).iter().for_each(|file| make_old(file));
    assert_eq!(collect(&world.depot, &[], Duration::ZERO).files.len(), 6);
    assert!(files(&world.path("depot")).is_empty());
}

#[test]
fn what_is_damaged_is_found_and_made_anew() {
    let (world, ids) = three();
    let depot = world.path("depot");
    let verify = |only: Option<&BTreeSet<SnapshotId>>| {
        world.depot.verify(&world.depot.contents().unwrap(), only).unwrap()
    };
    assert!(verify(None).iter().all(|check| check.is_sound()));
    assert_eq!(verify(None).len(), 6);
    // The layer that only the second and the third have.
    let second = world.depot.manifest(&ids[1]).unwrap().layers[1].digest;
    let path = depot.join(format!("layers/{second}.chunks"));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(depot.join(format!("snapshots/{}.json", ids[0])), "{}").unwrap();
    let checked = verify(None);
    let bad: Vec<_> = checked.iter().filter(|check| !check.is_sound()).collect();
    assert_eq!(bad.len(), 2, "{bad:?}");
    assert!(bad.iter().all(|check| matches!(check.verdict, DepotVerdict::Damaged(_))), "{bad:?}");
    assert_eq!(bad[0].snapshots, BTreeSet::from([ids[0]]));
    assert_eq!(bad[1].snapshots, BTreeSet::from([ids[1], ids[2]]));
    assert_eq!(verify(Some(&BTreeSet::from([ids[2]]))).iter().filter(|check| !check.is_sound()).count(), 1);
    world.depot.remove_damaged(&checked).unwrap();
    let bad: Vec<_> = verify(None).into_iter().filter(|check| !check.is_sound()).collect();
    assert_eq!(bad.len(), 1);
    assert_eq!(bad[0].verdict, DepotVerdict::Missing);
    let again = world.push_as(How::Full);
    world.fetch(&again.id);
}

fn make_old_if_there(path: &Path) {
    if let Ok(file) = File::open(path) {
        file.set_modified(SystemTime::now() - 24 * HOUR).unwrap();
    }
}

/// An environment of its own, for a thread.
struct Submitter {
    dir: tempfile::TempDir,
    name: String,
}

impl Submitter {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for part in ["upper", "base", "state"] {
            std::fs::create_dir(dir.path().join(part)).unwrap();
        }
        Self { dir, name: name.into() }
    }

    fn write(&self, content: &str, time: SystemTime) {
        let path = self.dir.path().join("upper/file");
        std::fs::write(&path, content).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        File::open(path.parent().unwrap()).unwrap().set_modified(time).unwrap();
    }

    fn push(&self, depot: &Depot) -> skiff_snapshot::Result<Pushed> {
        let open = |part: &str| File::open(self.dir.path().join(part)).unwrap();
        let (upper, base, state) = (open("upper"), open("base"), open("state"));
        push(
            depot,
            &SnapshotInput {
                environment: &self.name,
                upper: upper.as_fd(),
                base: base.as_fd(),
                state: state.as_fd(),
                base_fingerprint: &BTreeMap::new(),
                merge: NO_MERGE,
            },
        )
    }
}

/// Collects as fast as it can until it is told to end; how many files it has removed.
fn collect_until(end: &AtomicBool, path: &Path, older_than: Duration, grace: Duration) -> u64 {
    let depot = Depot::open_existing(path).unwrap();
    let mut removed = 0;
    while !end.load(Ordering::Relaxed) {
        let contents = depot.contents().unwrap();
        let options = CollectOptions {
            keep: &BTreeSet::new(),
            keep_within_budget: &BTreeSet::new(),
            older_than,
            budget: Some(0),
            grace,
        };
        let collected = depot.carry_out(&contents, &contents.collectable(&options)).unwrap();
        removed += collected.snapshots.len() as u64 + collected.files.len() as u64;
    }
    removed
}

/// What is missing of a submission that has just ended: nothing, as long as its manifest is there. A collector may have taken all of it; the
/// manifest goes first then. It may be about to give a layer its name back; so several looks are taken.
fn missing(depot: &Depot, path: &Path, pushed: &Pushed) -> Vec<String> {
    let manifest = match depot.manifest(&pushed.id) {
        Ok(manifest) => manifest,
        Err(Error::Missing { .. }) => return vec![],
        Err(error) => panic!("{error}"),
    };
    let is_there = |part: &str, name: String| {
        ["", ".gone-"].iter().any(|begin| path.join(format!("{part}/{begin}{name}")).exists())
    };
    let mut gone = vec![];
    for _ in 0..20 {
        let layers: Vec<_> = manifest.layers.iter().map(|layer| layer.digest).collect();
        let lists = depot.contents().unwrap().lists;
        let packs = layers.iter().filter_map(|layer| lists.get(layer)).flatten();
        let layers = layers.iter().map(|layer| ("layers", format!("{layer}.chunks")));
        let needed = layers.chain(packs.map(|pack| ("packs", format!("{pack}.pack"))));
        gone = needed.filter(|(part, name)| !is_there(part, name.clone())).map(|(_, name)| name).collect();
        if gone.is_empty() || !path.join(format!("snapshots/{}.json", pushed.id)).exists() {
            return vec![];
        }
    }
    gone
}

/// For how long a race goes on, and for how long at most on a busy machine until it has been one.
const RACE: Duration = Duration::from_secs(3);
const LONGEST_RACE: Duration = Duration::from_secs(120);

/// Lets submitters and two collectors loose on a depot, until there has been `enough` at least; how often something was submitted and removed.
fn race(
    enough: impl Fn(u64) -> bool + Sync,
    (older_than, grace): (Duration, Duration),
    submit: impl Fn(usize, &Depot, &Path) + Sync,
) -> (u64, u64) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("depot");
    let depot = Depot::open(&path).unwrap();
    let (end, submitted) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let removed = std::thread::scope(|scope| {
        let collectors: Vec<_> =
            (0..2).map(|_| scope.spawn(|| collect_until(&end, &path, older_than, grace))).collect();
        let submitters: Vec<_> = (0..4)
            .map(|number| {
                let (depot, path, submit, submitted, enough) = (&depot, &path, &submit, &submitted, &enough);
                scope.spawn(move || {
                    let goes_on = || match begun.elapsed() {
                        time if time < RACE => true,
                        time => time < LONGEST_RACE && !enough(submitted.load(Ordering::Relaxed)),
                    };
                    while goes_on() {
                        submit(number, depot, path);
                        submitted.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let submitters: Vec<_> = submitters.into_iter().map(|thread| thread.join()).collect();
        end.store(true, Ordering::Relaxed);
        assert!(submitters.iter().all(|ended| ended.is_ok()));
        collectors.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    (submitted.into_inner(), removed)
}

#[test]
fn a_snapshot_that_was_old_is_there_when_its_submission_has_ended() {
    let submitters: Vec<_> = (0..4).map(|number| Submitter::new(&format!("env{number}"))).collect();
    for (number, one) in submitters.iter().enumerate() {
        one.write(&number.to_string(), SystemTime::now() - HOUR);
    }
    std::thread::sleep(Duration::from_millis(50));
    let (reused, made) = (AtomicU64::new(0), AtomicU64::new(0));
    // What was used within the grace stays. So what a submission has touched stays; but it was a day old the moment before.
    let enough = |_| [&reused, &made].iter().all(|count| count.load(Ordering::Relaxed) > 20);
    let counts = race(enough, (HOUR, GRACE), |number, depot, path| {
        let pushed = submitters[number].push(depot).unwrap();
        match pushed.how {
            How::Unchanged => reused.fetch_add(1, Ordering::Relaxed),
            _ => made.fetch_add(1, Ordering::Relaxed),
        };
        let manifest = depot.manifest(&pushed.id).expect("the manifest is there");
        assert_eq!(missing(depot, path, &pushed), [""; 0]);
        let lists = depot.contents().unwrap().lists;
        let packs = manifest.layers.iter().filter_map(|layer| lists.get(&layer.digest)).flatten();
        let packs = packs.map(|pack| format!("packs/{pack}.pack"));
        let layers = manifest.layers.iter().map(|layer| format!("layers/{}.chunks", layer.digest));
        for file in layers.chain(packs).chain([format!("snapshots/{}.json", pushed.id)]) {
            // A collector that has seen it old may be looking whether it still is.
            make_old_if_there(&path.join(file));
        }
    });
    let how = (reused.into_inner(), made.into_inner());
    assert!(how.0 > 20 && how.1 > 20 && counts.1 > 20, "no race: {how:?} of {counts:?}");
}

#[test]
fn no_manifest_is_left_without_its_layers() {
    let submitters: Vec<_> = (0..4).map(|number| Submitter::new(&format!("env{number}"))).collect();
    let round = AtomicU64::new(0);
    let then = SystemTime::now() - HOUR;
    // All have the same few contents, so they share layers; and everything goes at once.
    let enough = |submitted| submitted > 20;
    let counts = race(enough, (Duration::ZERO, Duration::ZERO), |number, depot, path| {
        let content = round.fetch_add(1, Ordering::Relaxed) / 4 % 3;
        submitters[number].write(&content.to_string(), then);
        match submitters[number].push(depot) {
            Ok(pushed) => assert_eq!(missing(depot, path, &pushed), [""; 0], "{:?}", pushed.how),
            // Each of its tries has met a collector.
            Err(Error::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    });
    assert!(counts.0 > 20 && counts.1 > 20, "no race: {counts:?}");
}
