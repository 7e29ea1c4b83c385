//! Mostly as root: whose directories are whose is what this is about.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::geteuid;

use super::*;

const BOB: u32 = 4711;
const MALLORY: u32 = 4712;

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    set(home.path(), geteuid().as_raw(), 0o755);
    home
}

fn set(path: &Path, uid: u32, mode: u32) {
    chown(path, Some(uid), None).expect("chown");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn needs_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        assert!(std::env::var_os("CI").is_none(), "only root can give directories to others");
        // Past the harness, which keeps what a passing test prints to itself.
        std::io::stderr().write_all(b"SKIPPED: only root can give directories to others\n").expect("said");
    }
    root
}

#[test]
fn ancestors_owners_and_modes() {
    if !needs_root() {
        return;
    }
    // Owner and mode of `a` and `a/b`; whose the path may be; whether it is trusted, and then, whether it is private.
    let cases = [
        ((0, 0o755), (0, 0o755), 0, Some(true)),
        ((0, 0o755), (BOB, 0o700), BOB, Some(true)),
        ((BOB, 0o755), (BOB, 0o755), BOB, Some(true)),
        ((0, 0o755), (0, 0o755), BOB, Some(false)),
        ((0, 0o1777), (BOB, 0o700), BOB, Some(true)),
        ((0, 0o1777), (BOB, 0o1777), BOB, Some(false)),
        ((0, 0o1777), (0, 0o755), 0, Some(true)),
        ((BOB, 0o1770), (BOB, 0o700), BOB, Some(true)),
        ((0, 0o777), (BOB, 0o700), BOB, None),
        ((0, 0o775), (BOB, 0o700), BOB, None),
        ((BOB, 0o775), (BOB, 0o700), BOB, None),
        ((0, 0o1777), (MALLORY, 0o700), BOB, None),
        ((0, 0o1777), (MALLORY, 0o755), 0, None),
        ((MALLORY, 0o755), (BOB, 0o700), BOB, None),
        ((MALLORY, 0o1777), (BOB, 0o700), BOB, None),
        ((BOB, 0o755), (0, 0o755), 0, None),
        ((0, 0o755), (BOB, 0o777), BOB, None),
    ];
    for (a, b, owner, want) in cases {
        let home = home();
        let path = home.path().join("a/b");
        fs::create_dir_all(&path).expect("directories");
        set(&path, b.0, b.1);
        set(&home.path().join("a"), a.0, a.1);
        let found = TrustedDir::open(&path, owner);
        let got =
            found.as_ref().ok().map(|_| TrustedDir::open(&path, owner).and_then(TrustedDir::private).is_ok());
        assert_eq!(got, want, "{a:?} {b:?} {owner}: {found:?}");
        if let Err(e) = found {
            assert!(e.to_string().contains("belongs to uid") && !e.hint().is_empty(), "{e}");
        }
    }
}

#[test]
fn links() {
    if !needs_root() {
        return;
    }
    // Where the link lies, whose it is, where it leads; for bob's path, and for root's.
    let cases = [
        ("roots", 0, "real", true, true),
        ("roots", BOB, "real", true, false),
        ("roots", MALLORY, "real", false, false),
        ("shared", 0, "real", false, false),
        ("shared", BOB, "real", false, false),
        ("roots", 0, "../roots/real/.", true, true),
        ("roots", 0, "../shared/hers", false, false),
        ("roots", 0, "link", false, false),
        ("roots", 0, "real/file", false, false),
    ];
    for (place, uid, target, bobs, roots) in cases {
        let home = home();
        for (name, uid, mode) in [
            ("roots", 0, 0o755),
            ("shared", 0, 0o1777),
            ("shared/hers", MALLORY, 0o755),
            ("roots/real", 0, 0o755),
            ("shared/real", 0, 0o755),
        ] {
            fs::create_dir(home.path().join(name)).expect("a directory");
            set(&home.path().join(name), uid, mode);
        }
        fs::write(home.path().join("roots/real/file"), "x").expect("a file");
        let link = home.path().join(place).join("link");
        symlink(target, &link).expect("a link");
        std::os::unix::fs::lchown(&link, Some(uid), None).expect("lchown");
        for (owner, want) in [(BOB, bobs), (0, roots)] {
            let found = TrustedDir::open(&link, owner);
            assert_eq!(found.is_ok(), want, "{place} {uid} {target} {owner}: {found:?}");
        }
    }
}

#[test]
fn what_is_missing_is_made_for_the_owner_alone() {
    let me = geteuid().as_raw();
    let home = home();
    let shared = home.path().join("shared");
    fs::create_dir(&shared).expect("a directory");
    set(&shared, me, 0o1777);
    // Whoever only looks makes nothing, whether somebody else could make it or not.
    for place in [home.path(), &shared] {
        assert!(TrustedDir::find(&place.join("x/y"), me).expect("trusted").is_none());
        assert!(!place.join("x").exists());
    }
    let made =
        TrustedDir::make(&shared.join("x/y/z"), me, 0o755).and_then(TrustedDir::private).expect("made");
    assert_eq!(fs::metadata(made.path()).expect("made").mode() & 0o7777, 0o755);
    assert!(TrustedDir::find(made.path(), me).expect("trusted").is_some());
    for path in ["relative", ""] {
        let refused = TrustedDir::open(Path::new(path), me).expect_err("no path from / on");
        assert!(matches!(&refused, Error::Name { name } if name == path), "{refused}");
    }
}

#[test]
fn directories_that_root_gives() {
    if !needs_root() {
        return;
    }
    let home = home();
    let dir = TrustedDir::open(home.path(), 0).expect("trusted");
    let uid = |name: &str| fs::symlink_metadata(home.path().join(name)).expect("there").uid();
    dir.give_dir("new", (BOB, BOB)).expect("given");
    dir.give_dir("new", (BOB, BOB)).expect("given before");
    assert_eq!(
        (uid("new"), fs::metadata(home.path().join("new")).expect("there").mode() & 0o7777),
        (BOB, 0o700)
    );
    fs::create_dir(home.path().join("roots")).expect("a directory");
    dir.give_dir("roots", (BOB, BOB)).expect("interrupted before");
    assert_eq!(uid("roots"), BOB);
    // With directories in it; one that an interrupted call has made is there already.
    fs::create_dir_all(home.path().join("with/tmp")).expect("directories");
    dir.give_dir_with("with", (BOB, BOB), &["tmp", "vartmp"]).expect("given");
    dir.give_dir_with("of-root", (0, 0), &["tmp"]).expect("root is a user, too");
    assert!(fs::metadata(dir.path_of("of-root").join("tmp")).is_ok_and(|made| made.is_dir()));
    for part in ["with/tmp", "with/vartmp"] {
        let mode = fs::metadata(home.path().join(part)).expect("there").mode();
        assert_eq!((uid(part), mode & 0o7777), (BOB, 0o1777), "{part}");
    }
    // Not another user's, and by no link.
    assert!(matches!(dir.give_dir("new", (MALLORY, MALLORY)), Err(Error::Untrusted { uid: BOB, .. })));
    fs::write(home.path().join("secret"), "x").expect("a file");
    for (name, target) in [("to-file", "secret"), ("to-dir", "new"), ("to-nothing", "nothing")] {
        symlink(target, home.path().join(name)).expect("a link");
        let refused = dir.give_dir(name, (MALLORY, MALLORY)).expect_err(name);
        assert!(matches!(&refused, Error::NotADirectory { path } if path.ends_with(name)), "{refused}");
    }
    assert_eq!((uid("secret"), uid("new")), (0, BOB));
}

/// Mounts a FUSE file system of bob's that all may enter and whose server never answers; it is gone for good when the file is closed.
fn mount_silent_fuse(place: &Path) -> Option<fs::File> {
    use std::os::fd::AsRawFd;
    let Ok(server) = fs::File::options().read(true).write(true).open("/dev/fuse") else {
        std::io::stderr().write_all(b"SKIPPED: there is no /dev/fuse\n").expect("said");
        return None;
    };
    let options =
        format!("fd={},rootmode=40000,user_id={BOB},group_id={BOB},allow_other", server.as_raw_fd());
    let options = std::ffi::CString::new(options).expect("text");
    rustix::mount::mount("skiff-test", place, "fuse", rustix::mount::MountFlags::empty(), &*options)
        .expect("a mount");
    Some(server)
}

#[test]
fn directories_that_root_gives_and_something_is_mounted_on() {
    if !needs_root() {
        return;
    }
    let home = home();
    let dir = TrustedDir::open(home.path(), 0).expect("trusted");
    let place = home.path().join("of-bob");
    dir.give_dir("of-bob", (BOB, BOB)).expect("given");
    let own = fs::metadata(&place).expect("there").dev();
    // The site's own: a quota of each user's, for example.
    rustix::mount::mount("skiff-test", &place, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .expect("a mount");
    dir.give_dir("of-bob", (BOB, BOB)).expect("given on what is mounted");
    let stat = fs::metadata(&place).expect("there");
    assert!(stat.dev() != own, "the site's mount is gone");
    assert_eq!((stat.uid(), stat.mode() & 0o7777), (BOB, 0o700));
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).expect("unmounted");

    let Some(first) = mount_silent_fuse(&place) else { return };
    let second = mount_silent_fuse(&place);
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || say.send(dir.give_dir("of-bob", (BOB, BOB))));
    let given = said.recv_timeout(std::time::Duration::from_secs(10));
    // A thread that waits for them goes on, and the mounts, if they are still there, answer with errors.
    drop((first, second));
    let left = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
    given.expect("root waits for a server of bob's").expect("given");
    assert_eq!(left, Err(Errno::INVAL), "bob's mount is still there");
    assert_eq!(fs::metadata(&place).expect("there").dev(), own);
}

#[test]
fn entries() {
    let me = geteuid().as_raw();
    let home = home();
    fs::write(home.path().join("outside"), "secret").expect("a file");
    let dir = TrustedDir::make(&home.path().join("d"), me, 0o700).expect("made");
    for name in ["", ".", "..", "a/b", "../outside", "/etc/passwd", "a/"] {
        assert!(matches!(dir.read(name), Err(Error::Name { .. })), "{name:?}");
        assert!(matches!(dir.dir(name), Err(Error::Name { .. })), "{name:?}");
    }
    assert!(dir.read("f").expect("readable").is_none());
    dir.write("f", b"1", 0o600).expect("written");
    dir.write("f", b"2", 0o600).expect("written");
    assert_eq!(dir.read("f").expect("readable").as_deref(), Some(&b"2"[..]));
    assert_eq!(dir.names().expect("readable"), ["f"]);
    dir.symlink(Path::new("../outside"), "link").expect("made");
    assert_eq!(dir.read_link("link").expect("readable"), Some("../outside".into()));
    assert_eq!(dir.read_link("f").expect("readable"), None);
    assert_eq!(dir.read("link").expect_err("a link").errno(), Some(Errno::LOOP));
    // In its place, not where it leads.
    dir.write("link", b"3", 0o600).expect("written");
    assert_eq!(fs::read(home.path().join("outside")).expect("there"), b"secret");
    let held = dir.lock("lock", FlockOperation::NonBlockingLockExclusive).expect("a lock");
    assert!(held.is_some());
    assert!(dir.lock("lock", FlockOperation::NonBlockingLockExclusive).expect("a lock").is_none());
    let sub = dir.make_dir("sub", 0o755).expect("made");
    assert_eq!(dir.new_dir("sub", 0o755).expect_err("there").errno(), Some(Errno::EXIST));
    sub.write("g", b"4", 0o600).expect("written");
    dir.rename("f", &sub, "f").expect("moved");
    sub.symlink(home.path(), "out").expect("made");
    dir.remove_tree("sub").expect("removed");
    dir.remove_tree("sub").expect("gone");
    assert!(dir.stat("sub").expect("looked").is_none());
    assert!(home.path().join("outside").exists());
}

/// As mallory did with the cache's directory: made first, and exchanged with a link all the time.
#[test]
fn an_exchange_gains_nothing() {
    if !needs_root() {
        return;
    }
    let home = home();
    let (shared, victim) = (home.path().join("shared"), home.path().join("victim"));
    fs::create_dir(&shared).expect("a directory");
    fs::create_dir_all(victim.join("jobs")).expect("a directory");
    set(&shared, 0, 0o1777);
    let (cache, link) = (shared.join("cache"), shared.join("link"));
    // Root does here what is mallory's right: both names are hers.
    fs::create_dir(&cache).expect("a directory");
    set(&cache, MALLORY, 0o755);
    symlink(&victim, &link).expect("a link");
    std::os::unix::fs::lchown(&link, Some(MALLORY), None).expect("lchown");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200_000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                renameat_with(CWD, &cache, CWD, &link, RenameFlags::EXCHANGE).expect("exchanged");
            }
        });
        let gained = (0..2000).find(|_| TrustedDir::make(&cache.join("jobs"), 0, 0o755).is_ok());
        stop.store(true, Ordering::Relaxed);
        assert_eq!(gained, None);
    });
    // One that was open before is used by its descriptor: what has its name now is not touched.
    let own = TrustedDir::make(&shared.join("own"), 0, 0o755).and_then(TrustedDir::private).expect("made");
    fs::rename(shared.join("own"), shared.join("away")).expect("moved");
    symlink(&victim, shared.join("own")).expect("a link");
    own.give_dir("mallory", (MALLORY, MALLORY)).expect("given");
    assert!(!victim.join("mallory").exists() && shared.join("away/mallory").exists());
}

#[test]
fn a_tree_goes_however_deep_it_is() {
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("kept"), "x").expect("written");
    let dir = TrustedDir::make(&home.path().join("all"), geteuid().as_raw(), 0o700).expect("made");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let fewer = rustix::process::Rlimit { current: limit.current.map(|n| n.min(1024)), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, fewer).expect("fewer descriptors");
    // More levels than descriptors, and longer than a path may be. On the way there are other directories, and one is closed.
    let mut level = dir.make_dir("sub", 0o700).expect("made").readable().expect("open");
    for number in 0..1200 {
        rustix::fs::mkdirat(&level, "down", Mode::RWXU).expect("made");
        if number % 100 == 0 {
            for name in ["a", "z"] {
                rustix::fs::mkdirat(&level, name, Mode::RWXU).expect("made");
            }
            rustix::fs::symlinkat(home.path(), &level, "a/link").expect("a link");
        }
        let below = openat(&level, "down", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("open");
        if number == 100 {
            rustix::fs::fchmod(&below, Mode::empty()).expect("closed");
            rustix::fs::mkdirat(&level, "closed", Mode::empty()).expect("made");
            rustix::fs::fchmod(&below, Mode::RWXU).expect("open");
        }
        level = below;
    }
    rustix::fs::fchmod(&level, Mode::empty()).expect("closed");
    dir.remove_tree("sub").expect("removed");
    assert!(dir.stat("sub").expect("looked").is_none());
    assert!(home.path().join("kept").exists());
}

#[test]
fn what_stays_keeps_nothing_else() {
    if !needs_root() {
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let dir = TrustedDir::make(home.path(), geteuid().as_raw(), 0o700).expect("made");
    for part in ["a/in", "m/in/it", "n/in", "z/in"] {
        fs::create_dir_all(home.path().join("sub/x").join(part)).expect("made");
    }
    let mounted = home.path().join("sub/x/m/in");
    rustix::mount::mount("skiff-test", &mounted, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .expect("mounted");
    fs::write(mounted.join("theirs"), "x").expect("written");
    let stays = dir.remove_tree("sub").expect_err("a mount");
    let is_there = mounted.join("theirs").exists();
    rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    assert!(is_there);
    assert!(stays.to_string().starts_with(&format!("cannot remove {}: ", mounted.display())), "{stays}");
    let names = |path: &str| {
        fs::read_dir(home.path().join(path))
            .expect("there")
            .flatten()
            .map(|e| e.file_name())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("sub/x"), ["m"]);
    dir.remove_tree("sub").expect("removed");
}
