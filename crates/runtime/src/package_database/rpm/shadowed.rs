//! RPM packages of the user's that hide newer ones of the host's.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use skiff_packages::rpm::{RpmAncestor, RpmMerge, RpmPackage, compare, merge};
use skiff_sandbox::inside::begin_isolated;
use skiff_spec::fault::{Fault as Error, Result};

use super::base::BaseHeaders;
use super::location::Location;
use super::{PATIENCE, own};
use crate::package_database::ShadowedPackage;

/// Compares the database of the environment whose process 1 is `init` with the host's.
pub(super) fn compared(
    location: &Location,
    init: BorrowedFd<'_>,
    known: &RpmAncestor,
) -> Result<Vec<ShadowedPackage>> {
    let until = Instant::now() + PATIENCE;
    let busy = || {
        Error::new("the host's RPM packages are being changed")
            .hint("try again when its package manager has ended")
    };
    let mark = location.mark().ok_or_else(busy)?;
    let base = BaseHeaders::read(location, &mark, None)?.ok_or_else(busy)?;
    let child = begin_isolated(init, &[], || {
        let user = own::packages(location, until)?;
        Ok(differing(known, &user, &base.packages))
    })?;
    child.end_by(until)?.ok_or_else(|| Error::new("RPM inside does not answer"))
}

/// What is known without looking: the conflicts of the last merges.
pub(super) fn recorded(known: &RpmAncestor) -> Vec<ShadowedPackage> {
    let conflicts = known.conflicts.values();
    let package = |conflict: &skiff_packages::Conflict| {
        shadowed(&conflict.name, conflict.yours.clone(), conflict.host.clone(), true)
    };
    conflicts.map(package).collect()
}

fn differing(known: &RpmAncestor, user: &[RpmPackage], base: &[RpmPackage]) -> Vec<ShadowedPackage> {
    // What the next session takes from the host hides nothing.
    let RpmMerge { all, standing, .. } = merge(known, user, base);
    let merged = user.iter().chain(base).filter(|package| all.contains(&package.hash));
    let mut users: BTreeMap<&str, Vec<&RpmPackage>> = BTreeMap::new();
    for package in merged {
        users.entry(&package.key).or_default().push(package);
    }
    let newest =
        |of: &[&RpmPackage]| of.iter().map(|package| package.version.clone()).max_by(|a, b| compare(a, b));
    let mut found: BTreeMap<&str, ShadowedPackage> = BTreeMap::new();
    for package in base {
        let yours = users.get(&package.key[..]).and_then(|of| newest(of));
        if yours.as_ref().is_some_and(|yours| compare(yours, &package.version).is_lt()) {
            let is_conflict = standing.contains_key(&package.key);
            let row = shadowed(&package.key, yours, Some(package.version.clone()), is_conflict);
            found.insert(&package.key, row);
        }
    }
    for key in standing.keys() {
        let base: Vec<&RpmPackage> = base.iter().filter(|package| package.key == *key).collect();
        let yours = users.get(&key[..]).and_then(|of| newest(of));
        found.entry(key).or_insert_with(|| shadowed(key, yours, newest(&base), true));
    }
    found.into_values().filter(|package| package.yours != package.host).collect()
}

fn shadowed(name: &str, yours: Option<String>, host: Option<String>, conflict: bool) -> ShadowedPackage {
    ShadowedPackage { name: name.to_owned(), yours, host, conflict, held: false, security: None }
}
