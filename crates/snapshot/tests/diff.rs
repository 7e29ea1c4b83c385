//! What `env diff` tells is what differs between the base and what the user sees.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::common::acts::{act, acts, cases};
use crate::common::{Overlay, World, as_merged, dump, is_root, opaque, whiteout};
use proptest::prelude::*;
use skiff_snapshot::{Change, ChangeKind, DiffOptions, diff};

fn told(world: &World) -> Vec<Change> {
    let (upper, base) = (world.open("upper"), world.open("base"));
    diff(upper.as_fd(), base.as_fd(), &DiffOptions::default()).unwrap()
}

fn shown(changes: &[Change]) -> Vec<String> {
    let letter = |kind| match kind {
        ChangeKind::Added => 'A',
        ChangeKind::Changed => 'C',
        ChangeKind::Deleted => 'D',
    };
    let line = |change: &Change| format!("{} {}", letter(change.kind), String::from_utf8_lossy(&change.path));
    changes.iter().map(line).collect()
}

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn copy_up(world: &World, path: &str) {
    let (from, to) = (world.path("base").join(path), world.upper().join(path));
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let status = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success());
}

#[test]
fn each_kind_of_difference() {
    type Edit = fn(&World);
    let edits: [(&str, Edit, &[&str]); 15] = [
        ("nothing", |_| {}, &[]),
        ("new file", |w| write(&w.upper().join("n"), ""), &["A n"]),
        ("new tree", |w| write(&w.upper().join("n/m/o"), ""), &["A n", "A n/m", "A n/m/o"]),
        ("in a copied-up dir", |w| write(&w.upper().join("d/n"), ""), &["A d/n"]),
        ("copied up, the same", |w| copy_up(w, "d/e/f"), &[]),
        ("content", |w| write(&w.upper().join("d/e/f"), "other"), &["C d/e/f"]),
        (
            "same size and time, other content",
            |w| {
                copy_up(w, "d/e/f");
                let time = std::fs::metadata(w.upper().join("d/e/f")).unwrap().modified().unwrap();
                write(&w.upper().join("d/e/f"), "d/e/F");
                let file = std::fs::File::options().write(true).open(w.upper().join("d/e/f")).unwrap();
                file.set_modified(time).unwrap();
            },
            &["C d/e/f"],
        ),
        (
            "mode",
            |w| {
                copy_up(w, "d/e/f");
                let mode = std::fs::Permissions::from_mode(0o4755);
                std::fs::set_permissions(w.upper().join("d/e/f"), mode).unwrap();
            },
            &["C d/e/f"],
        ),
        (
            "dir mode",
            |w| {
                std::fs::create_dir(w.upper().join("d")).unwrap();
                std::fs::set_permissions(w.upper().join("d"), std::fs::Permissions::from_mode(0o700))
                    .unwrap();
            },
            &["C d"],
        ),
        ("deleted", |w| whiteout(&w.upper().join("d")), &["D d"]),
        ("whiteout over nothing", |w| whiteout(&w.upper().join("nothing")), &[]),
        (
            "opaque",
            |w| {
                write(&w.upper().join("d/e/new"), "");
                opaque(&w.upper().join("d"));
            },
            &["A d/e/new", "D d/e/f", "D d/g"],
        ),
        ("file for dir", |w| write(&w.upper().join("d"), ""), &["C d"]),
        ("dir for file", |w| write(&w.upper().join("top/in"), ""), &["C top", "A top/in"]),
        ("link target", |w| symlink("elsewhere", w.upper().join("link")).unwrap(), &["C link"]),
    ];
    for (what, edit, expected) in edits {
        let world = World::new();
        for path in ["d/e/f", "d/g", "top"] {
            write(&world.path("base").join(path), path);
        }
        symlink("target", world.path("base/link")).unwrap();
        edit(&world);
        let mut expected = expected.to_vec();
        expected.sort_by_key(|line| line[2..].to_string());
        assert_eq!(shown(&told(&world)), expected, "{what}");
    }
}

#[test]
fn owners_are_compared_through_the_map() {
    if !is_root("owners_are_compared_through_the_map") {
        return;
    }
    let world = World::new();
    std::fs::create_dir(world.path("base/d")).unwrap();
    std::fs::create_dir(world.path("upper/d")).unwrap();
    chown(world.path("upper/d"), Some(1000), Some(1000)).unwrap();
    assert_eq!(shown(&told(&world)), ["C d"]);
    let (upper, base) = (world.open("upper"), world.open("base"));
    let map = |uid, gid| (uid + 1000, gid + 1000);
    let changes = diff(upper.as_fd(), base.as_fd(), &DiffOptions { map_owner: &map }).unwrap();
    // The root is not mapped in the upper here, so now it is the one that differs.
    assert_eq!(shown(&changes), ["C "]);
}

#[test]
fn a_link_in_the_upper_leads_nowhere() {
    let world = World::new();
    symlink("/etc", world.upper().join("d")).unwrap();
    write(&world.path("base/d/passwd"), "");
    assert_eq!(shown(&told(&world)), ["C d"]);
    // And one in the base neither: the upper's directory hides it.
    let world = World::new();
    symlink("/etc", world.path("base/d")).unwrap();
    write(&world.upper().join("d/passwd"), "");
    assert_eq!(shown(&told(&world)), ["C d", "A d/passwd"]);
}

#[test]
fn json_keeps_every_byte() {
    for (path, json) in [
        (&b"etc/motd"[..], r#"{"path":"etc/motd","kind":"added"}"#),
        (b"a\xff", "{\"path\":\"a\u{fffd}\",\"path_hex\":\"61ff\",\"kind\":\"added\"}"),
        ("\u{fffd}".as_bytes(), "{\"path\":\"\u{fffd}\",\"kind\":\"added\"}"),
        (b"", r#"{"path":"","kind":"added"}"#),
    ] {
        let change = Change { path: path.to_vec(), kind: ChangeKind::Added, base_changed: false };
        assert_eq!(serde_json::to_string(&change).unwrap(), json);
        assert_eq!(serde_json::from_str::<Change>(json).unwrap(), change);
    }
    for bad in ["6", "6g", "é"] {
        let json = format!(r#"{{"path":"","path_hex":"{bad}","kind":"added"}}"#);
        let refused = serde_json::from_str::<Change>(&json).expect_err(bad).to_string();
        assert!(refused.contains(&format!("not hex digits: {bad:?}")), "{refused}");
    }
}

/// What differs between two views, told as `diff` does.
fn expected(world: &World) -> BTreeMap<PathBuf, ChangeKind> {
    let (base, seen) = (as_merged(&dump(&world.path("base"))), world.seen());
    let mut changes = BTreeMap::new();
    for (path, entry) in &seen {
        match base.get(path) {
            None => drop(changes.insert(path.clone(), ChangeKind::Added)),
            Some(before) if before != entry => drop(changes.insert(path.clone(), ChangeKind::Changed)),
            Some(_) => {}
        }
    }
    for path in base.keys().filter(|path| !seen.contains_key(*path)) {
        // Only the top of what went, and nothing in a directory that something else replaced.
        if path.parent().and_then(|parent| seen.get(parent)).is_some_and(|parent| parent.kind == "dir") {
            changes.insert(path.clone(), ChangeKind::Deleted);
        }
    }
    changes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn diff_tells_what_the_user_would_find(
        base in prop::collection::vec(acts(), 0..25),
        work in prop::collection::vec(acts(), 0..25),
    ) {
        if !is_root("diff_tells_what_the_user_would_find") {
            return Ok(());
        }
        let world = World::new();
        base.iter().for_each(|done| act(&world.path("base"), done));
        {
            let overlay = Overlay::new(&[&world.path("base")], Some((&world.upper(), &world.path("work"))));
            work.iter().for_each(|done| act(&overlay.path(), done));
        }
        let changes = told(&world);
        let found: BTreeMap<PathBuf, ChangeKind> =
            changes.iter().map(|change| (OsStr::from_bytes(&change.path).into(), change.kind)).collect();
        prop_assert_eq!(found.len(), changes.len());
        prop_assert_eq!(found, expected(&world));
    }
}
