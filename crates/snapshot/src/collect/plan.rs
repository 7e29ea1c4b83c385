//! What a collection is to remove, as plain data: nothing is looked at and nothing is done here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::{CollectedFiles, DepotContents, DepotManifest, DepotPart, DepotSnapshot, UnnamedFile};
use crate::depot::{Depot, manifest_name};
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::packs::pack_name;

/// A file that nobody has written to for so long is not being written.
const UNFINISHED: Duration = Duration::from_secs(600);

/// What may go.
#[derive(Debug, Clone, Copy)]
pub struct CollectOptions<'a> {
    /// Snapshots that something needs, whatever their age.
    pub keep: &'a BTreeSet<SnapshotId>,
    /// Snapshots that go for a budget only, whatever their age.
    pub keep_within_budget: &'a BTreeSet<SnapshotId>,
    /// All others go that nobody has used for so long.
    pub older_than: Duration,
    /// As long as the depot takes up more than so many bytes, others go as well, the longest unused first.
    pub budget: Option<u64>,
    /// Nothing goes that was used within this time: somebody may be about to name it in a manifest.
    pub grace: Duration,
}

/// What is to go, each with the time of its last use when that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectionPlan {
    /// Snapshots, the longest unused first.
    pub snapshots: Vec<(SnapshotId, i64)>,
    /// Layers that no other snapshot names.
    pub layers: Vec<(LayerId, i64)>,
    /// Packs that no other layer relies on.
    pub packs: Vec<(PackId, i64)>,
    /// What processes that died have left.
    pub unfinished: Vec<UnnamedFile>,
    /// Room that all of it takes up, in bytes.
    pub bytes: u64,
}

impl DepotContents {
    /// What goes by age, and for a budget.
    pub fn collectable(&self, options: &CollectOptions<'_>) -> CollectionPlan {
        let is_old = |used: i64, age: Duration| self.age(used) >= age.max(options.grace);
        let mut collector = Collector::new(self, options.grace);
        for left in self.unfinished.iter().filter(|left| is_old(left.file.used, UNFINISHED)) {
            collector.plan.bytes += left.file.bytes;
            collector.plan.unfinished.push(left.clone());
        }
        collector.take_unused();
        for (id, snapshot) in self.oldest_first(|id| !options.keep.contains(id)) {
            let is_over = options.budget.is_some_and(|budget| collector.left() > budget);
            let used = snapshot.file.used;
            let by_age = !options.keep_within_budget.contains(id);
            if (by_age && is_old(used, options.older_than)) || (is_over && is_old(used, Duration::ZERO)) {
                collector.take(*id, snapshot);
            }
        }
        collector.plan
    }

    /// What goes with these snapshots, whatever their age.
    pub fn without(&self, ids: &BTreeSet<SnapshotId>) -> CollectionPlan {
        let mut collector = Collector::new(self, Duration::ZERO);
        for (id, snapshot) in self.oldest_first(|id| ids.contains(id)) {
            collector.take(*id, snapshot);
        }
        collector.plan
    }

    /// How long ago somebody relied on a file. What seems to be used in the future was used just now.
    pub fn age(&self, used: i64) -> Duration {
        Duration::from_nanos(u64::try_from(self.now.saturating_sub(used)).unwrap_or(0))
    }

    /// Wanted snapshots of a known format: another version has to decide about its own.
    fn oldest_first(&self, is_wanted: impl Fn(&SnapshotId) -> bool) -> Vec<(&SnapshotId, &DepotSnapshot)> {
        let is_known = |snapshot: &DepotSnapshot| !matches!(snapshot.manifest, DepotManifest::Unknown(_));
        let mut found: Vec<_> =
            self.snapshots.iter().filter(|(id, one)| is_wanted(id) && is_known(one)).collect();
        found.sort_by_key(|(id, snapshot)| (snapshot.file.used, **id));
        found
    }
}

impl Depot {
    /// What [`Depot::carry_out`] would remove if nobody else came.
    pub fn would_remove(&self, contents: &DepotContents, plan: &CollectionPlan) -> CollectedFiles {
        let layer = |(id, _): &(LayerId, i64)| self.path_in(DepotPart::Layers, &contents.layer_name(id));
        let packs = plan.packs.iter().map(|(id, _)| self.path_in(DepotPart::Packs, &pack_name(id)));
        let layers = plan.layers.iter().map(layer).chain(packs);
        let unfinished = plan.unfinished.iter().map(|left| self.path_of(left));
        CollectedFiles {
            snapshots: plan.snapshots.iter().map(|(id, _)| *id).collect(),
            files: layers.chain(unfinished).collect(),
            bytes: plan.bytes,
        }
    }

    /// Paths of all that was removed.
    pub fn paths_of(&self, collected: &CollectedFiles) -> Vec<PathBuf> {
        let snapshots = collected.snapshots.iter();
        let paths = snapshots.map(|id| self.path_in(DepotPart::Snapshots, &manifest_name(id)));
        paths.chain(collected.files.iter().cloned()).collect()
    }
}

/// Takes snapshots one after the other, each with the layers that none of those left names.
struct Collector<'a> {
    contents: &'a DepotContents,
    grace: Duration,
    /// By how many snapshots each layer is named.
    references: BTreeMap<LayerId, usize>,
    /// By how many layers each pack is named.
    pack_references: BTreeMap<PackId, usize>,
    /// Whether a manifest cannot be read: any layer may be one that it names.
    has_unknown: bool,
    plan: CollectionPlan,
}

impl<'a> Collector<'a> {
    fn new(contents: &'a DepotContents, grace: Duration) -> Self {
        let mut references = BTreeMap::new();
        for snapshot in contents.snapshots.values() {
            layers(snapshot).into_iter().for_each(|layer| *references.entry(layer).or_default() += 1);
        }
        let is_unknown = |one: &DepotSnapshot| matches!(one.manifest, DepotManifest::Unknown(_));
        let has_unknown = contents.snapshots.values().any(is_unknown);
        let mut pack_references = BTreeMap::new();
        contents.lists.values().flatten().for_each(|pack| *pack_references.entry(*pack).or_default() += 1);
        let plan = CollectionPlan::default();
        Self { contents, grace, references, pack_references, has_unknown, plan }
    }

    fn left(&self) -> u64 {
        self.contents.bytes().saturating_sub(self.plan.bytes)
    }

    fn take_unused(&mut self) {
        let unused = self.contents.layers.keys().filter(|id| !self.references.contains_key(id));
        let unused: Vec<_> = unused.copied().collect();
        // Before their layers make more of them unused.
        let packs = self.contents.packs.keys().filter(|id| !self.pack_references.contains_key(id));
        packs.copied().collect::<Vec<_>>().into_iter().for_each(|id| self.take_pack(id));
        unused.into_iter().for_each(|id| self.take_layer(id));
    }

    fn take(&mut self, id: SnapshotId, snapshot: &DepotSnapshot) {
        self.plan.snapshots.push((id, snapshot.file.used));
        self.plan.bytes += snapshot.file.bytes;
        for layer in layers(snapshot) {
            let Some(references) = self.references.get_mut(&layer) else { continue };
            *references -= 1;
            if *references == 0 {
                self.take_layer(layer);
            }
        }
    }

    fn take_layer(&mut self, id: LayerId) {
        let Some(file) = self.contents.layers.get(&id) else { return };
        if !self.has_unknown && self.contents.age(file.used) >= self.grace {
            self.plan.layers.push((id, file.used));
            self.plan.bytes += file.bytes;
            for pack in self.contents.packs_of(&id) {
                let Some(references) = self.pack_references.get_mut(pack) else { continue };
                *references -= 1;
                if *references == 0 {
                    self.take_pack(*pack);
                }
            }
        }
    }

    fn take_pack(&mut self, id: PackId) {
        let Some(file) = self.contents.packs.get(&id) else { return };
        let has_unknown = self.has_unknown || self.contents.has_unreadable_list;
        if !has_unknown && self.contents.age(file.used) >= self.grace {
            self.plan.packs.push((id, file.used));
            self.plan.bytes += file.bytes;
        }
    }
}

fn layers(snapshot: &DepotSnapshot) -> BTreeSet<LayerId> {
    snapshot.layers().collect()
}

#[cfg(test)]
mod tests {
    use super::super::contents::{DepotFile, SECOND};
    use super::*;
    use crate::manifest::{LayerRef, SnapshotManifest};

    const MINUTE: u64 = 60;
    const DAY: u64 = 24 * 60 * MINUTE;

    fn file(seconds_ago: u64, bytes: u64) -> DepotFile {
        DepotFile { used: 1_000 * DAY as i64 * SECOND - seconds_ago as i64 * SECOND, bytes, len: bytes }
    }

    /// Snapshots by number, how long ago they were used, and their layers; each layer takes a hundred bytes, each manifest one.
    fn contents(snapshots: &[(u8, u64, &[u8])], unused: &[(u8, u64)]) -> DepotContents {
        let mut contents = DepotContents { now: file(0, 0).used, ..DepotContents::default() };
        for (number, age, layers) in snapshots {
            let refs = layers.iter().map(|layer| LayerRef { digest: LayerId([*layer; 32]), size: 100 });
            let manifest = SnapshotManifest::new("dev", &BTreeMap::new(), 0, refs.collect());
            let one = DepotSnapshot { file: file(*age, 1), manifest: DepotManifest::Sound(manifest) };
            contents.snapshots.insert(SnapshotId([*number; 32]), one);
            for layer in *layers {
                let known = contents.layers.entry(LayerId([*layer; 32])).or_insert(file(*age, 100));
                known.used = known.used.max(file(*age, 100).used);
            }
        }
        contents.layers.extend(unused.iter().map(|(layer, age)| (LayerId([*layer; 32]), file(*age, 100))));
        contents
    }

    fn numbers(plan: &CollectionPlan) -> (Vec<u8>, Vec<u8>, u64) {
        let snapshots = plan.snapshots.iter().map(|(id, _)| id.0[0]).collect();
        (snapshots, plan.layers.iter().map(|(id, _)| id.0[0]).collect(), plan.bytes)
    }

    #[test]
    fn what_is_old_or_over_the_budget_goes_unless_it_is_needed() {
        // 1 and 2 share layer 10; 4 was used just now; 30 and 31 belong to nobody.
        let depot = contents(
            &[
                (1, 9 * DAY, &[10]),
                (2, 8 * DAY, &[10, 11]),
                (3, DAY, &[12]),
                (4, MINUTE, &[13]),
                (5, 2 * DAY, &[14]),
            ],
            &[(30, DAY), (31, MINUTE)],
        );
        type Case = (&'static [u8], u64, Option<u64>, (Vec<u8>, Vec<u8>, u64));
        let week = 7 * DAY;
        let cases: [Case; 8] = [
            (&[], week, None, (vec![1, 2], vec![30, 10, 11], 302)),
            (&[1], week, None, (vec![2], vec![30, 11], 201)),
            (&[2], week, None, (vec![1], vec![30], 101)),
            (&[1, 2], week, None, (vec![], vec![30], 100)),
            // 705 bytes in all.
            (&[1, 2], week, Some(700), (vec![], vec![30], 100)),
            (&[1, 2], week, Some(600), (vec![5], vec![30, 14], 201)),
            (&[5], week, Some(0), (vec![1, 2, 3], vec![30, 10, 11, 12], 403)),
            (&[], 0, None, (vec![1, 2, 5, 3], vec![30, 10, 11, 14, 12], 504)),
        ];
        for (keep, older_than, budget, want) in cases {
            let keep = keep.iter().map(|number| SnapshotId([*number; 32])).collect();
            let options = CollectOptions {
                keep: &keep,
                keep_within_budget: &BTreeSet::new(),
                older_than: Duration::from_secs(older_than),
                budget,
                grace: Duration::from_secs(10 * MINUTE),
            };
            let plan = depot.collectable(&options);
            assert_eq!(numbers(&plan), want, "{keep:?} {older_than} {budget:?}");
        }
    }

    #[test]
    fn with_snapshots_go_the_layers_that_they_alone_have() {
        let depot = contents(&[(1, 0, &[10]), (2, 0, &[10, 11]), (3, 0, &[12])], &[(30, DAY)]);
        for (ids, want) in [
            (vec![1], (vec![1], vec![], 1)),
            (vec![2], (vec![2], vec![11], 101)),
            (vec![1, 2], (vec![1, 2], vec![10, 11], 202)),
            (vec![7], (vec![], vec![], 0)),
        ] {
            let plan = depot.without(&ids.iter().map(|id| SnapshotId([*id; 32])).collect());
            assert_eq!(numbers(&plan), want, "{ids:?}");
        }
    }

    #[test]
    fn a_history_goes_for_a_budget_only_and_the_oldest_of_it_first() {
        let depot = contents(&[(1, 9 * DAY, &[10]), (2, 8 * DAY, &[11]), (3, 7 * DAY, &[12])], &[]);
        let history = [1, 2].map(|number| SnapshotId([number; 32])).into();
        for (budget, want) in
            [(None, vec![3]), (Some(303), vec![3]), (Some(102), vec![1, 2]), (Some(0), vec![1, 2, 3])]
        {
            let options = CollectOptions {
                keep: &BTreeSet::new(),
                keep_within_budget: &history,
                older_than: Duration::from_secs(DAY),
                budget,
                grace: Duration::from_secs(600),
            };
            let mut gone = numbers(&depot.collectable(&options)).0;
            gone.sort_unstable();
            let want: Vec<u8> = if budget == Some(102) { vec![1, 2, 3] } else { want };
            assert_eq!(gone, want, "{budget:?}");
        }
    }

    #[test]
    fn packs_go_with_the_last_layer_that_relies_on_them() {
        let mut depot = contents(&[(1, 0, &[10]), (2, 0, &[11])], &[(30, DAY)]);
        for (layer, packs) in [(10, &[1, 2][..]), (11, &[2]), (30, &[5])] {
            let packs = packs.iter().map(|pack| PackId([*pack; 32])).collect();
            depot.lists.insert(LayerId([layer; 32]), packs);
        }
        // 3 and 4 belong to nobody; 4 was made just now.
        let packs = [(1, DAY), (2, DAY), (3, DAY), (4, MINUTE), (5, DAY)];
        depot.packs.extend(packs.map(|(pack, age)| (PackId([pack; 32]), file(age, 1000))));
        let packs_of = |plan: CollectionPlan| -> Vec<u8> {
            let bytes = plan.bytes / 1000 * 1000;
            assert_eq!(bytes, 1000 * plan.packs.len() as u64);
            plan.packs.iter().map(|(id, _)| id.0[0]).collect()
        };
        let options = CollectOptions {
            keep: &BTreeSet::new(),
            keep_within_budget: &BTreeSet::new(),
            older_than: Duration::from_secs(DAY),
            budget: None,
            grace: Duration::from_secs(600),
        };
        for (ids, want) in [(vec![1], vec![1]), (vec![2], vec![]), (vec![1, 2], vec![1, 2])] {
            let ids = ids.into_iter().map(|id| SnapshotId([id; 32])).collect();
            assert_eq!(packs_of(depot.without(&ids)), want, "{ids:?}");
        }
        assert_eq!(packs_of(depot.collectable(&options)), [3, 5]);
        depot.has_unreadable_list = true;
        assert_eq!(packs_of(depot.collectable(&options)), [0; 0]);
    }

    #[test]
    fn a_snapshot_of_another_version_keeps_all_layers() {
        let mut depot = contents(&[(1, 9 * DAY, &[10])], &[(30, DAY)]);
        let newer =
            DepotSnapshot { file: file(9 * DAY, 1), manifest: DepotManifest::Unknown("format 9".into()) };
        depot.snapshots.insert(SnapshotId([2; 32]), newer);
        let options = CollectOptions {
            keep: &BTreeSet::new(),
            keep_within_budget: &BTreeSet::new(),
            older_than: Duration::ZERO,
            budget: Some(0),
            grace: Duration::ZERO,
        };
        assert_eq!(numbers(&depot.collectable(&options)), (vec![1], vec![], 1));
    }

    #[test]
    fn clocks_that_differ_and_files_of_the_future_remove_nothing_young() {
        let future = file(0, 0).used + 3600 * SECOND;
        let mut depot = contents(&[(1, 0, &[10])], &[]);
        depot.snapshots.values_mut().for_each(|one| one.file.used = future);
        let half = UnnamedFile { part: DepotPart::Layers, name: b".new-1".to_vec(), file: file(60, 5) };
        let old = UnnamedFile { file: file(DAY, 5), ..half.clone() };
        depot.unfinished = vec![half, old.clone()];
        let options = CollectOptions {
            keep: &BTreeSet::new(),
            keep_within_budget: &BTreeSet::new(),
            older_than: Duration::ZERO,
            budget: Some(0),
            grace: Duration::from_secs(600),
        };
        let plan = depot.collectable(&options);
        assert_eq!((numbers(&plan), plan.unfinished), ((vec![], vec![], 5), vec![old]));
    }
}
