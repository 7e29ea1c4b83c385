//! What layers make of each other: each case is layers of entries, and the paths that the image must have.

#![allow(clippy::unwrap_used)]

use crate::common;
use crate::common::layers::build::RawEntry as Tar;
use crate::common::layers::{from_bytes, from_entries};
use crate::common::seen::Seen;

/// Paths with the type, a file's size or a link's target, and the first name of what has several.
fn listing(seen: &Seen) -> Vec<String> {
    let line = |(path, entry): (&Vec<u8>, &common::seen::Entry)| {
        let path = String::from_utf8_lossy(path);
        let what = match entry.mode & 0o17_0000 {
            0o04_0000 => "/".to_string(),
            0o12_0000 => format!(" -> {}", String::from_utf8_lossy(&entry.target)),
            0o02_0000 => format!(" c {}:{}", entry.device.0, entry.device.1),
            _ => format!(" {}", entry.size),
        };
        let first = String::from_utf8_lossy(&entry.same_as);
        let same = if first == path { String::new() } else { format!(" = {first}") };
        format!("{path}{what}{same}")
    };
    seen.iter().skip(1).map(line).collect()
}

#[track_caller]
fn gives(layers: &[Vec<Tar>], expected: &[&str]) -> Seen {
    let seen = from_entries(layers).unwrap().seen();
    assert_eq!(listing(&seen), expected);
    seen
}

#[track_caller]
fn refused(layers: &[Vec<Tar>], because: &str) {
    let why = from_entries(layers).err().expect("must be refused").to_string();
    assert!(why.contains(because), "{why:?} does not say {because:?}");
}

fn file(path: &str, size: usize) -> Tar {
    Tar::file(path, vec![b'x'; size])
}

fn dir(path: &str) -> Tar {
    Tar::directory(path)
}

fn link(path: &str, target: &str) -> Tar {
    Tar::symlink(path, target)
}

fn hard(path: &str, target: &str) -> Tar {
    Tar::hard_link(path, target)
}

#[test]
fn upper_layers_add_and_replace() {
    gives(
        &[vec![dir("d"), file("d/a", 1), file("d/b", 2)], vec![file("d/b", 5000), file("e", 3)]],
        &["/d/", "/d/a 1", "/d/b 5000", "/e 3"],
    );
}

#[test]
fn whiteouts_act_on_lower_layers_wherever_they_stand() {
    let lower = || vec![dir("d"), file("d/a", 1), file("d/b", 2), file("f", 3)];
    gives(&[lower(), vec![file("d/.wh.a", 0), file(".wh.f", 0)]], &["/d/", "/d/b 2"]);
    // Before and behind what the layer itself has of that name.
    gives(&[lower(), vec![file(".wh.f", 0), file("f", 7)]], &["/d/", "/d/a 1", "/d/b 2", "/f 7"]);
    gives(&[lower(), vec![file("f", 7), file(".wh.f", 0)]], &["/d/", "/d/a 1", "/d/b 2", "/f 7"]);
    gives(&[lower(), vec![file("d/new", 9), file(".wh.d", 0)]], &["/d/", "/d/new 9", "/f 3"]);
    // Of what is not there, and in the lowest layer.
    gives(&[vec![file(".wh.x", 0), file("y", 1)], vec![file("no/.wh.x", 0), file("y/.wh.z", 0)]], &["/y 1"]);
}

#[test]
fn opaque_directories_hide_lower_layers_wherever_the_mark_stands() {
    let lower = || vec![dir("d"), file("d/a", 1), dir("d/sub"), file("d/sub/b", 2)];
    for upper in [
        vec![dir("d"), file("d/.wh..wh..opq", 0), file("d/new", 3)],
        vec![dir("d"), file("d/new", 3), file("d/.wh..wh..opq", 0)],
    ] {
        gives(&[lower(), upper], &["/d/", "/d/new 3"]);
    }
    gives(&[lower(), vec![file(".wh..wh..opq", 0), file("z", 1)]], &["/z 1"]);
    gives(
        &[lower(), vec![file("d/sub/.wh..wh..opq", 0)], vec![file("d/sub/c", 4)]],
        &["/d/", "/d/a 1", "/d/sub/", "/d/sub/c 4"],
    );
}

#[test]
fn what_aufs_left_is_left_out_but_its_links_are_kept() {
    let plnk = vec![
        dir(".wh..wh.plnk"),
        file(".wh..wh.plnk/12.3", 5),
        file(".wh..wh.aufs", 0),
        dir(".wh..wh.orph"),
        file(".wh..wh.orph/x", 1),
        hard("a", ".wh..wh.plnk/12.3"),
        hard("b", ".wh..wh.plnk/12.3"),
    ];
    let seen = gives(&[plnk], &["/a 5", "/b 5 = /a"]);
    assert_eq!(seen[&b"/a"[..].to_vec()].links, 2);
}

#[test]
fn hard_links_reach_into_lower_layers_and_outlive_their_targets() {
    let lower = || vec![file("a", 5000), link("s", "a")];
    let seen = gives(
        &[lower(), vec![hard("b", "a"), hard("t", "./s")]],
        &["/a 5000", "/b 5000 = /a", "/s -> a", "/t -> a = /s"],
    );
    assert_eq!(seen[&b"/b"[..].to_vec()].links, 2);
    let seen = gives(&[lower(), vec![hard("b", "/a")], vec![file(".wh.a", 0)]], &["/b 5000", "/s -> a"]);
    assert_eq!(seen[&b"/b"[..].to_vec()].links, 1);
    // Replaced, the other name keeps the old file.
    gives(&[vec![file("a", 1), hard("b", "a")], vec![file("a", 2)]], &["/a 2", "/b 1"]);
    // The link takes the place of something, of its own target's directory too.
    gives(&[vec![file("a", 1), dir("b"), file("b/c", 2)], vec![hard("b", "b/c")]], &["/a 1", "/b 2"]);
    gives(&[vec![file("a", 1), hard("a", "a")]], &["/a 1"]);
    refused(
        &[vec![hard("b", "nothing")]],
        "b: a hard link to nothing, which neither this layer nor one below has",
    );
    refused(&[vec![dir("d"), hard("b", "d")]], "which is a directory");
    refused(&[vec![hard("b", "../../etc/shadow")]], "a path with ..");
    // Some programs that make layers rename so.
    gives(&[vec![file("a", 1)], vec![file(".wh.a", 0), hard("b", "a")]], &["/b 1"]);
    refused(&[vec![file("a", 1)], vec![file(".wh.a", 0)], vec![hard("b", "a")]], "which neither");
}

#[test]
fn kinds_replace_each_other() {
    let tree = || vec![dir("d"), dir("d/e"), file("d/e/f", 1)];
    gives(&[tree(), vec![file("d", 2)]], &["/d 2"]);
    gives(&[tree(), vec![link("d", "x")]], &["/d -> x"]);
    gives(&[tree(), vec![file("d", 2)], vec![dir("d"), file("d/g", 3)]], &["/d/", "/d/g 3"]);
    gives(&[vec![link("d", "e"), dir("e")], vec![dir("d"), file("d/x", 1)]], &["/d/", "/d/x 1", "/e/"]);
    gives(&[vec![file("a", 1), file("a", 2)]], &["/a 2"]);
    gives(&[vec![file("a", 1), dir("a"), file("a/b", 2)]], &["/a/", "/a/b 2"]);
}

#[test]
fn devices_hide_what_is_below_and_are_not_there_themselves() {
    let device = |name| Tar::new(b'3', name).device(1, 5);
    gives(&[vec![file("a", 1), file("b", 2)], vec![device("a"), device("c")]], &["/b 2"]);
    gives(&[vec![device("a"), hard("b", "a")], vec![file("a", 1)]], &["/a 1"]);
    gives(&[vec![dir("d"), Tar::new(b'4', "d/disk").device(8, 0)]], &["/d/"]);
}

#[test]
fn a_directory_that_comes_again_has_new_attributes_and_its_old_children() {
    let lower = vec![dir("d").mode(0o700).owner(5, 6).mtime(7), file("d/a", 1)];
    let upper = vec![dir("d/").mode(0o1777).owner(8, 9).mtime(10).pax("SCHILY.xattr.user.k", "v")];
    let seen = gives(&[lower, upper], &["/d/", "/d/a 1"]);
    let d = &seen[&b"/d"[..].to_vec()];
    assert_eq!((d.mode, d.owner, d.mtime), (0o04_1777, (8, 9), (10, 0)));
    assert_eq!(d.xattrs[&b"user.k"[..].to_vec()], b"v");
}

#[test]
fn parents_are_followed_within_the_image() {
    let lower = || {
        vec![
            dir("run"),
            link("var", "/run"),
            link("up", "../../../.."),
            dir("deep"),
            link("deep/l", "../run/."),
        ]
    };
    gives(
        &[lower(), vec![file("var/x", 1), file("up/y", 2), file("deep/l/z", 3)]],
        &[
            "/deep/",
            "/deep/l -> ../run/.",
            "/run/",
            "/run/x 1",
            "/run/z 3",
            "/up -> ../../../..",
            "/var -> /run",
            "/y 2",
        ],
    );
    // To a place that is not there yet.
    gives(&[vec![link("l", "/a/b"), file("l/c", 1)]], &["/a/", "/a/b/", "/a/b/c 1", "/l -> /a/b"]);
    // Whiteouts and hard links follow too.
    gives(&[vec![dir("r"), file("r/f", 1), link("l", "r")], vec![file("l/.wh.f", 0)]], &["/l -> r", "/r/"]);
    gives(
        &[vec![dir("r"), file("r/f", 1), link("l", "r")], vec![hard("g", "l/f")]],
        &["/g 1", "/l -> r", "/r/", "/r/f 1 = /g"],
    );
    // But not where the layer has a directory in the link's place.
    gives(
        &[vec![dir("r"), file("r/f", 1), link("l", "r")], vec![dir("l"), file("l/.wh.f", 0), file("l/g", 2)]],
        &["/l/", "/l/g 2", "/r/", "/r/f 1"],
    );
    refused(&[vec![link("a", "b"), link("b", "a"), file("a/x", 1)]], "more than 40 symbolic links");
    refused(&[vec![link("a", "a/b"), file("a/x", 1)]], "more than 40 symbolic links");
    refused(&[vec![file("a", 1), file("a/b", 1)]], "a/b: a on its way is not a directory");
}

#[test]
fn missing_parents_are_made() {
    let seen = gives(&[vec![file("a/b/c", 1)]], &["/a/", "/a/b/", "/a/b/c 1"]);
    let b = &seen[&b"/a/b"[..].to_vec()];
    assert_eq!((b.mode, b.owner, b.mtime), (0o04_0755, (0, 0), (0, 0)));
    // What comes later about them counts.
    let seen = gives(&[vec![file("a/b", 1), dir("a").mode(0o700)]], &["/a/", "/a/b 1"]);
    assert_eq!(seen[&b"/a"[..].to_vec()].mode, 0o04_0700);
}

#[test]
fn names_are_taken_as_meant() {
    gives(
        &[vec![file("./a", 1), file("/b", 2), file(".//c/./d", 3), dir("c/")]],
        &["/a 1", "/b 2", "/c/", "/c/d 3"],
    );
    let seen = from_entries(&[vec![dir("./").mode(0o711).owner(1, 2)]]).unwrap().seen();
    assert_eq!((seen[&vec![]].mode, seen[&vec![]].owner), (0o04_0711, (1, 2)));
    for path in ["..", "a/../b", "../../etc/passwd", "/../x"] {
        refused(&[vec![file(path, 1)]], "a path with ..");
    }
    refused(&[vec![file(&"n".repeat(256), 1)]], "a name of 256 bytes");
    refused(&[vec![file("/", 1)]], "must be a directory");
    refused(&[vec![file(".wh.", 0)]], "a whiteout without a name");
    refused(&[vec![file("d/.wh...", 0)]], "a whiteout without a name");
    refused(&[vec![link("l", "")]], "a symbolic link to nothing");
}

#[test]
fn directories_without_end_are_refused() {
    // Each link leads 500 directories further down than the one before, with short paths.
    let way = "d/".repeat(500);
    let mut entries = vec![];
    for step in 0..6 {
        let from = if step == 0 { String::new() } else { format!("l{}/", step - 1) };
        entries.extend([dir(&format!("{from}{way}")), link(&format!("l{step}"), &format!("{from}{way}"))]);
    }
    refused(&[entries], "more than 2048 directories deep");
}

#[test]
fn layers_may_be_empty() {
    gives(&[vec![], vec![file("a", 1)], vec![]], &["/a 1"]);
    let seen = from_bytes(&[vec![], vec![0; 1024], vec![0; 10240]]).unwrap().seen();
    assert_eq!(listing(&seen), [""; 0]);
    assert_eq!(listing(&from_bytes(&[]).unwrap().seen()), [""; 0], "an image without layers");
}

#[test]
fn only_attributes_that_mean_the_same_here_are_kept() {
    let names = [
        "user.a",
        "security.capability",
        "trusted.x",
        "trusted.overlay.opaque",
        "user.overlay.redirect",
        "security.selinux",
    ];
    let tar =
        names.iter().fold(file("a", 1), |tar, name| tar.pax(format!("SCHILY.xattr.{name}"), "\x01\x00"));
    let seen = gives(&[vec![tar]], &["/a 1"]);
    let kept: Vec<_> =
        seen[&b"/a"[..].to_vec()].xattrs.keys().map(|name| String::from_utf8_lossy(name)).collect();
    assert_eq!(kept, ["security.capability", "trusted.x", "user.a"]);
}
