use std::collections::BTreeSet;

use super::super::header::tests::header;
use super::super::{HeaderReader, RpmAncestor, RpmPackage, differences};
use super::{RpmMerge, merge};
use crate::{Conflict, PackageChange, Unmet};

/// A package that was installed at some time.
fn at(time: u32, name: &str, version: &str) -> RpmPackage {
    let list = header(name, version, time, [&[name], &[]]);
    HeaderReader::new(&list[..]).next().unwrap().unwrap().package
}

fn package(name: &str, version: &str) -> RpmPackage {
    at(1, name, &format!("{version}-1"))
}

fn kernel(version: &str) -> RpmPackage {
    RpmPackage { is_install_only: true, ..package("kernel", version) }
}

fn run(ancestor: &[RpmPackage], user: &[RpmPackage], base: &[RpmPackage]) -> (RpmMerge, Vec<String>) {
    let merged = merge(&RpmAncestor::of(ancestor, String::new()), user, base);
    let all = user.iter().chain(base).filter(|package| merged.all.contains(&package.hash));
    let all: BTreeSet<String> = all.map(|package| package.label.clone()).collect();
    (merged, all.into_iter().collect())
}

fn change(name: &str, was: &str, now: &str) -> PackageChange {
    let version = |text: &str| (!text.is_empty()).then(|| format!("{text}-1"));
    PackageChange { name: format!("{name}.noarch"), was: version(was), now: version(now) }
}

#[test]
fn what_the_base_installs_upgrades_and_removes_is_taken() {
    let ancestor = [package("gone", "1"), package("same", "1"), package("up", "1")];
    let user = [&ancestor[..], &[package("mine", "1")]].concat();
    let base = [package("new", "1"), package("same", "1"), package("up", "2")];
    let (merged, all) = run(&ancestor, &user, &base);
    assert_eq!(all, ["mine-1-1.noarch", "new-1-1.noarch", "same-1-1.noarch", "up-2-1.noarch"]);
    assert_eq!(merged.changes, [change("gone", "1", ""), change("new", "", "1"), change("up", "1", "2")]);
    assert_eq!(merged.remove, ["gone-1-1.noarch", "up-1-1.noarch"].map(str::to_owned).into());
    assert_eq!(merged.add, [base[0].hash, base[2].hash].into());
    assert!(merged.conflicts.is_empty() && merged.standing.is_empty());
}

#[test]
fn what_the_user_has_changed_stays_and_is_named() {
    let ancestor = [package("down", "1"), package("out", "1"), package("re", "1"), package("up", "1")];
    let user = [package("both", "1"), package("down", "0"), at(2, "re", "1-1"), package("up", "3")];
    let base = [package("both", "2"), package("out", "2"), package("re", "2"), package("up", "2")];
    let (merged, _) = run(&ancestor, &user, &base);
    assert_eq!((merged.remove.len(), merged.add.len(), merged.changes.len()), (0, 0, 0));
    let named: Vec<_> =
        merged.conflicts.iter().map(|conflict| conflict.name.trim_end_matches(".noarch")).collect();
    assert_eq!(named, ["both", "down", "out", "re", "up"], "`re` was installed again");
    let conflict = Conflict { name: "out.noarch".into(), yours: None, host: Some("2-1".into()) };
    assert_eq!(merged.conflicts[2], conflict);
    // It is said once, and kept, also as text; until both have the same.
    let mut now = RpmAncestor::of(&base, "mark".into());
    now.conflicts = merged.standing;
    let now = RpmAncestor::from_text(&now.to_text()).unwrap();
    let again = merge(&now, &user, &base);
    assert_eq!((again.conflicts.len(), again.standing.len()), (0, 5));
    let solved = merge(&now, &base, &base);
    assert_eq!(solved.standing.len(), 0);
}

#[test]
fn of_the_same_version_installed_by_both_nothing_is_said() {
    let (merged, all) = run(&[package("a", "1")], &[at(5, "a", "2-1")], &[at(6, "a", "2-1")]);
    assert_eq!(
        (merged.conflicts.len(), merged.add.len(), &all[..]),
        (0, 0, &["a-2-1.noarch".to_owned()][..])
    );
}

#[test]
fn what_the_host_installs_again_is_taken_without_a_word() {
    let (merged, _) = run(&[at(1, "a", "1-1")], &[at(1, "a", "1-1")], &[at(2, "a", "1-1")]);
    assert_eq!((merged.remove.len(), merged.add.len(), merged.changes.len()), (1, 1, 0));
}

#[test]
fn versions_beside_each_other_are_merged_one_by_one() {
    let ancestor = [kernel("1"), kernel("2")];
    let (merged, all) = run(&ancestor, &[kernel("1"), kernel("2"), kernel("9")], &[kernel("2"), kernel("3")]);
    assert_eq!(all, ["kernel-2-1.noarch", "kernel-3-1.noarch", "kernel-9-1.noarch"]);
    assert_eq!(merged.changes, [change("kernel", "1", "3")]);
    // The user has removed one, the host another.
    let (merged, all) = run(&ancestor, &[kernel("2")], &[kernel("1")]);
    assert_eq!((all.len(), merged.conflicts.len()), (0, 0));
    // Each has its own first one.
    let key = |version| at(1, "gpg-pubkey", version);
    let (merged, all) = run(&[], &[key("a-1")], &[key("b-1")]);
    assert_eq!((all.len(), merged.conflicts.len()), (2, 0));
}

#[test]
fn a_package_whose_need_the_host_has_removed_is_named() {
    let of = |name: &str, texts: [&[&str]; 2]| {
        let list = header(name, "1-1", 1, texts);
        HeaderReader::new(&list[..]).next().unwrap().unwrap().package
    };
    let library = of("library", [&["library", "lib.so.1()(64bit)"], &[]]);
    let other = of("other", [&["other", "cap"], &[]]);
    let another = of("another", [&["another", "cap"], &[]]);
    let mine = of("mine", [&["mine"], &["lib.so.1()(64bit)", "cap", "rpmlib(x)"]]);
    let ancestor = [library, other, another.clone()];
    let user = [&ancestor[..], &[mine]].concat();
    let (merged, _) = run(&ancestor, &user, &[another]);
    assert_eq!(merged.unmet, [Unmet { name: "mine.noarch".into(), needs: "library.noarch".into() }]);
}

#[test]
fn a_merge_is_final() {
    let ancestor = [package("a", "1"), package("b", "1"), kernel("1")];
    let user = [package("a", "1"), package("c", "1"), kernel("1"), kernel("5")];
    let base = [package("a", "2"), package("b", "2"), kernel("2")];
    let (merged, _) = run(&ancestor, &user, &base);
    let now: Vec<RpmPackage> =
        user.iter().chain(&base).filter(|package| merged.all.contains(&package.hash)).cloned().collect();
    let mut known = RpmAncestor::of(&base, String::new());
    known.conflicts = merged.standing;
    let again = merge(&known, &now, &base);
    assert_eq!(
        (again.remove.len(), again.add.len(), again.changes.len(), again.conflicts.len()),
        (0, 0, 0, 0)
    );
    assert_eq!(again.all, merged.all);
    // One that was interrupted before it was written down says the same of the user's.
    let repeated = merge(&RpmAncestor::of(&ancestor, String::new()), &now, &base);
    assert_eq!((repeated.all, repeated.changes.len()), (merged.all, 0));
}

#[test]
fn differences_of_a_base_are_told() {
    let before = RpmAncestor::of(&[package("a", "1"), package("b", "1"), kernel("1")], String::new());
    let now = RpmAncestor::of(&[package("a", "2"), kernel("1"), kernel("2")], String::new());
    let expected = [change("a", "1", "2"), change("b", "1", ""), change("kernel", "", "2")];
    assert_eq!(differences(&before, &now), expected);
}

#[test]
fn what_is_no_record_is_refused() {
    for text in [
        "",
        "skiff-packages 1\nx\n",
        "skiff-rpm-packages 1\nx\npackage a 00 1\n",
        "skiff-rpm-packages 1\nx\nnew a b c\n",
    ] {
        assert!(RpmAncestor::from_text(text).is_err(), "{text:?}");
    }
}
