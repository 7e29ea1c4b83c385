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
fn of_the_host_an_image_has_what_others_may_read_and_of_the_environment_all() {
    let own = [("etc/", 0o755), ("etc/own", 0o600), ("hidden/", 0o750), ("hidden/own", 0o600)];
    let (host, upper) = (tree(&HOST), tree(&own));
    let shown = tree(&[&HOST[..], &[("etc/own", 0o600), ("hidden/own", 0o600)]].concat());
    let [host, upper, root] = [&host, &upper, &shown].map(|dir| open_dir(dir.path()).expect("opened"));
    let judge = |is_judged| Judge {
        root: root.as_fd(),
        upper: upper.as_fd(),
        host: host.as_fd(),
        own: &[],
        is_judged,
        closed: RefCell::default(),
    };
    let left_out = |is_judged| -> Vec<&str> {
        let judge = judge(is_judged);
        let all = HOST.iter().map(|(name, _)| *name).chain(["etc/own", "hidden/own"]);
        all.filter(|name| judge.leaves_out(format!("/{}", name.trim_end_matches('/')).as_bytes(), None))
            .collect()
    };
    assert_eq!(left_out(true), ["etc/secret", "hidden/file", "hidden/in/", "hidden/in/file"]);
    assert_eq!(left_out(false), [""; 0], "the helper shows no more than that");
    // Two files, and the two directories that others may not read.
    assert_eq!(judge(true).count_closed(), 4);
    let replaced = judge(true).replaced().expect("read");
    assert_eq!(replaced[&b"/etc/machine-id"[..]].content, b"");
    assert!(replaced.contains_key(&b"/etc/shadow"[..]));
    assert!(!judge(false).replaced().expect("read").contains_key(&b"/etc/shadow"[..]));
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
    let judge =
        Judge { root: fd, upper: fd, host: fd, own: &own, is_judged: true, closed: RefCell::default() };
    let mounts = b"1 0 0:1 / / rw - overlay o rw\n2 1 0:2 / /proc rw - proc p rw\n\
        3 1 0:3 / /scratch rw - autofs a rw\n4 3 0:4 / /scratch rw - nfs4 s rw\n5 1 0:5 / /file rw - ext4 e rw\n\
        6 1 0:6 / /home2/alice rw - ext4 e rw\n7 4 0:7 / /scratch/in rw - nfs4 s rw\n";
    let told = judge.other_file_systems(mounts);
    let wanted = [("/scratch", "nfs4"), ("/scratch/in", "nfs4")];
    assert_eq!(told, wanted.map(|(place, kind)| (place.to_owned(), kind.to_owned())));
}
