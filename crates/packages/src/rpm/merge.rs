//! Three databases become one: what the base's has become since the ancestor is replayed under the user's own changes.
//!
//! The packages of one name and architecture are merged together. Usually that is one. Of some, like kernels, several versions are installed
//! beside each other: each of these is merged by itself, and they cannot contradict each other.

use std::collections::{BTreeMap, BTreeSet};

use super::ancestor::RpmAncestor;
use super::header::RpmPackage;
use crate::stanza::Hash;
use crate::{Conflict, PackageChange, Unmet};

/// What is to become of the user's database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RpmMerge {
    /// Labels of the packages to be taken out of the user's database.
    pub remove: BTreeSet<String>,
    /// Hashes of the headers that are to be put into it after that.
    pub add: BTreeSet<Hash>,
    /// Hashes of all headers that are in it then.
    pub all: BTreeSet<Hash>,
    /// What was taken from the base.
    pub changes: Vec<PackageChange>,
    /// What both have changed since the ancestor.
    pub conflicts: Vec<Conflict>,
    /// All packages that are not as the base's since both have changed them, those of earlier merges included.
    pub standing: BTreeMap<String, Conflict>,
    /// Packages of the user's that lack something now.
    pub unmet: Vec<Unmet>,
}

/// The packages of one name and architecture, by their hashes.
type Versions<'a> = BTreeMap<Hash, &'a RpmPackage>;

/// Merges.
#[must_use]
pub fn merge(ancestor: &RpmAncestor, user: &[RpmPackage], base: &[RpmPackage]) -> RpmMerge {
    let (users, bases) = (by_key(user), by_key(base));
    let known = ancestor.packages.keys().chain(ancestor.conflicts.keys()).map(String::as_str);
    let keys: BTreeSet<&str> = users.keys().chain(bases.keys()).copied().chain(known).collect();
    let mut merge = RpmMerge { standing: ancestor.conflicts.clone(), ..RpmMerge::default() };
    let none = Versions::new();
    let mut merged: Vec<&RpmPackage> = vec![];
    let mut gone: Vec<&RpmPackage> = vec![];
    for key in keys {
        let user = users.get(key).unwrap_or(&none);
        let base = bases.get(key).unwrap_or(&none);
        let now = merge.versions(key, &ancestor.hashes(key), user, base);
        merge.plan(user, &now);
        merge.changes.extend(changes(key, &versions(user), &versions(&now)));
        gone.extend(user.iter().filter(|(hash, _)| !now.contains_key(*hash)).map(|(_, package)| *package));
        merged.extend(now.into_values());
    }
    merge.unmet = unmet(&merged, &gone, &bases);
    merge
}

/// What has changed in a base from one ancestor to the next.
#[must_use]
pub fn differences(before: &RpmAncestor, now: &RpmAncestor) -> Vec<PackageChange> {
    let keys: BTreeSet<&String> = before.packages.keys().chain(now.packages.keys()).collect();
    let of = |ancestor: &RpmAncestor, key| {
        let versions = ancestor.packages.get(key).into_iter().flat_map(BTreeMap::values);
        versions.cloned().collect::<BTreeSet<String>>()
    };
    keys.into_iter().flat_map(|key| changes(key, &of(before, key), &of(now, key))).collect()
}

impl RpmMerge {
    /// What becomes of the packages of one name and architecture.
    fn versions<'a>(
        &mut self,
        key: &str,
        known: &BTreeSet<Hash>,
        user: &Versions<'a>,
        base: &Versions<'a>,
    ) -> Versions<'a> {
        let hashes = |of: &Versions<'_>| of.keys().copied().collect::<BTreeSet<Hash>>();
        let (users, bases) = (hashes(user), hashes(base));
        if users == bases {
            self.standing.remove(key);
            return user.clone();
        }
        if bases == *known {
            return user.clone();
        }
        if users == *known {
            self.standing.remove(key);
            return base.clone();
        }
        let is_several = [&users, &bases, known].iter().any(|hashes| hashes.len() > 1)
            || user.values().chain(base.values()).any(|package| package.is_install_only);
        if is_several {
            let kept = user.iter().filter(|(hash, _)| !known.contains(*hash) || bases.contains(*hash));
            let came = base.iter().filter(|(hash, _)| !known.contains(*hash));
            return kept.chain(came).map(|(hash, package)| (*hash, *package)).collect();
        }
        let version = |of: &Versions<'_>| of.values().next().map(|package| package.version.clone());
        let conflict = Conflict { name: key.to_owned(), yours: version(user), host: version(base) };
        // One package or none at all is no contradiction that anybody would see.
        if conflict.yours == conflict.host {
            self.standing.remove(key);
        } else {
            self.standing.insert(key.to_owned(), conflict.clone());
            self.conflicts.push(conflict);
        }
        user.clone()
    }

    /// What is to be done so that the user's packages of one name become these. RPM removes all of a label at once.
    fn plan(&mut self, user: &Versions<'_>, now: &Versions<'_>) {
        let gone = user.iter().filter(|(hash, _)| !now.contains_key(*hash));
        let labels: BTreeSet<&String> = gone.map(|(_, package)| &package.label).collect();
        let fresh =
            now.iter().filter(|(hash, package)| !user.contains_key(*hash) || labels.contains(&package.label));
        self.add.extend(fresh.map(|(hash, _)| *hash));
        self.all.extend(now.keys());
        self.remove.extend(labels.into_iter().cloned());
    }
}

fn by_key(packages: &[RpmPackage]) -> BTreeMap<&str, Versions<'_>> {
    let mut keys: BTreeMap<&str, Versions<'_>> = BTreeMap::new();
    for package in packages {
        keys.entry(&package.key).or_default().insert(package.hash, package);
    }
    keys
}

fn versions(of: &Versions<'_>) -> BTreeSet<String> {
    of.values().map(|package| package.version.clone()).collect()
}

/// One version for another, or each that came or went.
fn changes(key: &str, was: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<PackageChange> {
    let gone: Vec<&String> = was.difference(now).collect();
    let came: Vec<&String> = now.difference(was).collect();
    let change = |was: Option<&String>, now: Option<&String>| PackageChange {
        name: key.to_owned(),
        was: was.cloned(),
        now: now.cloned(),
    };
    if let ([gone], [came]) = (&gone[..], &came[..]) {
        return vec![change(Some(gone), Some(came))];
    }
    let gone = gone.into_iter().map(|version| change(Some(version), None));
    gone.chain(came.into_iter().map(|version| change(None, Some(version)))).collect()
}

/// Packages of the user's own that need what only packages provided which are gone.
fn unmet(merged: &[&RpmPackage], gone: &[&RpmPackage], base: &BTreeMap<&str, Versions<'_>>) -> Vec<Unmet> {
    let mut lost: BTreeMap<&str, &str> = BTreeMap::new();
    for package in gone {
        lost.extend(package.provides.iter().map(|provided| (&provided[..], &package.key[..])));
    }
    if lost.is_empty() {
        return vec![];
    }
    for provided in merged.iter().flat_map(|package| &package.provides) {
        lost.remove(&provided[..]);
    }
    let is_own = |package: &&&RpmPackage| {
        !base.get(&package.key[..]).is_some_and(|versions| versions.contains_key(&package.hash))
    };
    let mut found = BTreeSet::new();
    for package in merged.iter().filter(is_own) {
        let needs = package.requires.iter().filter_map(|required| lost.get(&required[..]));
        found.extend(needs.map(|needs| (package.key.clone(), (*needs).to_owned())));
    }
    found.into_iter().map(|(name, needs)| Unmet { name, needs }).collect()
}

#[cfg(test)]
mod tests;
