use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// A tree of files with these modes; what ends with a slash is a directory.
fn tree(files: &[(&str, u32)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("made");
    for (name, mode) in files {
        let path = dir.path().join(name);
        match name.strip_suffix('/') {
            Some(_) => fs::create_dir(&path).expect("made"),
            None => fs::write(&path, if name.ends_with("empty") { "" } else { "x" }).expect("written"),
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(*mode)).expect("set");
    }
    dir
}

const HOST: [(&str, u32); 10] = [
    ("etc/", 0o755),
    ("etc/open", 0o644),
    ("etc/secret", 0o640),
    ("etc/empty", 0o600),
    ("etc/shadow", 0o640),
    ("hidden/", 0o750),
    ("hidden/file", 0o644),
    ("hidden/in/", 0o755),
    ("hidden/in/file", 0o644),
    ("listed/", 0o744),
];

#[test]
fn what_is_shown_is_in_the_image_and_what_cannot_be_had_is_said() {
    let own = [("etc/", 0o755), ("etc/own", 0o600), ("hidden/", 0o750), ("hidden/own", 0o600)];
    let (host, upper) = (tree(&HOST), tree(&own));
    let shown = tree(&[&HOST[..], &[("etc/own", 0o600), ("hidden/own", 0o600)]].concat());
    let [host, upper, root] = [&host, &upper, &shown].map(|dir| open_dir(dir.path()).expect("opened"));
    let judge = Judge::new(root.as_fd(), (upper.as_fd(), host.as_fd()), &[]);
    let all = HOST.iter().map(|(name, _)| *name).chain(["etc/own", "hidden/own"]);
    let is_left_out = |name: &&str| {
        let path = format!("/{}", name.trim_end_matches('/'));
        judge.leaves_out(path.as_bytes(), None).expect("looked at")
    };
    assert_eq!(
        all.filter(is_left_out).collect::<Vec<_>>(),
        [""; 0],
        "the helper shows what there is to have"
    );
    assert!(judge.leaves_out(b"/gone", None).expect("gone meanwhile"));
    let long = ["/etc", &"/d".repeat(3000)].concat();
    assert!(
        judge.leaves_out(long.as_bytes(), None).is_err(),
        "what cannot be looked at is not left out silently"
    );
    // Two files, and the two directories that others may not read.
    assert_eq!(judge.count_closed(), 4);
    assert_eq!(judge.replaced().expect("read")[&b"/etc/machine-id"[..]].content, b"");
    judge.unreadable.borrow_mut().push(b"/etc/open".to_vec());
    judge.refuse_incomplete("dev").expect("the host's");
    judge.unreadable.borrow_mut().push(b"/etc/own".to_vec());
    judge.refuse_incomplete("dev").expect_err("the environment's own");
}

#[test]
fn without_the_helper_lists_of_passwords_are_locked_unless_they_are_the_environments_own() {
    let files = [("etc/", 0o755), ("etc/passwd", 0o644), ("etc/shadow", 0o640)];
    let (shown, none) = (tree(&files), tree(&files[..1]));
    fs::write(shown.path().join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").expect("written");
    let [root, none] = [&shown, &none].map(|dir| open_dir(dir.path()).expect("opened"));
    for (upper, want) in [
        (&none, vec!["/etc/gshadow", "/etc/machine-id", "/etc/shadow"]),
        (&root, vec!["/etc/gshadow", "/etc/machine-id"]),
    ] {
        let judge = Judge::new(root.as_fd(), (upper.as_fd(), root.as_fd()), &[]);
        let replaced = Judge { is_merged: true, ..judge }.replaced().expect("read");
        let names: Vec<_> = replaced.keys().map(|path| String::from_utf8_lossy(path)).collect();
        assert_eq!(names, want);
        assert!(replaced.get(&b"/etc/shadow"[..]).is_none_or(|list| list.content.starts_with(b"root:*:")));
    }
}

#[test]
fn what_is_of_a_running_system_or_the_users_own_is_no_part() {
    let own = [PathBuf::from("/data/alice")];
    for (path, is) in [
        ("/tmp", false),
        ("/tmp/x", true),
        ("/var/tmp/x", true),
        ("/var/tmpfiles", false),
        ("/home/bob", true),
        ("/homes/bob", false),
        ("/data", false),
        ("/data/alice", true),
        ("/data/alice/x", true),
        ("/data/alice2", false),
        ("/lost+found", true),
        ("/opt/tmp/x", false),
    ] {
        assert_eq!(is_no_part(path.as_bytes(), &own), is, "{path}");
    }
}

#[test]
fn other_file_systems_are_told_once() {
    let root = tree(&[("scratch/", 0o755), ("file", 0o644)]);
    let root = open_dir(root.path()).expect("opened");
    let (fd, own) = (root.as_fd(), [PathBuf::from("/home2/alice")]);
    let judge = Judge::new(fd, (fd, fd), &own);
    let mounts = b"1 0 0:1 / / rw - overlay o rw\n2 1 0:2 / /proc rw - proc p rw\n\
        3 1 0:3 / /scratch rw - autofs a rw\n4 3 0:4 / /scratch rw - nfs4 s rw\n5 1 0:5 / /file rw - ext4 e rw\n\
        6 1 0:6 / /home2/alice rw - ext4 e rw\n7 4 0:7 / /scratch/in rw - nfs4 s rw\n";
    let told = judge.other_file_systems(mounts);
    let wanted = [("/scratch", "nfs4"), ("/scratch/in", "nfs4")];
    assert_eq!(told, wanted.map(|(place, kind)| (place.to_owned(), kind.to_owned())));
}
