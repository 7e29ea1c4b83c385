//! What a store promises: nothing half-made is seen, nothing is done twice, nothing stays for ever.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skiff_spec::image::ImageId;
use skiff_store::Error;
use skiff_store::{Begun, ImageMetadata, Patience, Store};

const A: ImageId = ImageId([0xaa; 32]);
const B: ImageId = ImageId([0xbb; 32]);
const C: ImageId = ImageId([0xcc; 32]);

fn record() -> ImageMetadata {
    ImageMetadata {
        size: 9,
        data_sum: None,
        layers: vec![],
        origins: vec![],
        layer: false,
        files: 1,
        config: serde_json::json!({ "architecture": "amd64" }),
    }
}

fn make(store: &Store, id: ImageId, bytes: &[u8]) {
    match store.begin((id, 7), Patience::default(), &mut || ()).unwrap() {
        Begun::There(_) => panic!("{id} is there already"),
        Begun::New(making) => {
            let mut file = fs::File::from(making.file().try_clone_to_owned().unwrap());
            file.write_all(bytes).unwrap();
            assert_eq!(store.find(id).unwrap(), None, "not before it is published");
            making.publish(&record()).unwrap();
        }
    }
}

/// Every file below `dir` but the version.
fn files(dir: &Path) -> Vec<String> {
    let mut all = vec![];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if !path.ends_with("version") {
            all.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    all.sort();
    all
}

#[test]
fn an_image_is_there_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    match store.begin((A, 7), Patience::default(), &mut || ()).unwrap() {
        Begun::New(making) => {
            rustix::io::write(making.file(), b"half").unwrap();
        }
        Begun::There(_) => panic!("nobody made it"),
    }
    assert_eq!(files(dir.path()), [""; 0], "given up, nothing stays");
    make(&store, A, b"the image");
    assert_eq!(store.find(A).unwrap(), Some(record()));
    assert_eq!(files(dir.path()), [format!("{A}.erofs"), format!("{A}.json")]);
    assert!(matches!(store.begin((A, 7), Patience::default(), &mut || ()).unwrap(), Begun::There(_)));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut store.open_image(A).unwrap(), &mut text).unwrap();
    assert_eq!(text, "the image");
}

#[test]
fn what_a_crash_left_does_not_stand_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fs::write(dir.path().join(format!("images/{A}.lock")), "").unwrap();
    let older = dir.path().join(format!("tmp/{A}"));
    fs::write(&older, "an older try, which was longer").unwrap();
    fs::set_permissions(&older, fs::Permissions::from_mode(0o400)).unwrap();
    fs::write(dir.path().join(format!("images/{A}.json")), "{").unwrap();
    make(&store, A, b"the image");
    assert_eq!(fs::read(dir.path().join(format!("images/{A}.erofs"))).unwrap(), b"the image");
    assert_eq!(store.find(A).unwrap(), Some(record()));
}

#[test]
fn of_several_at_once_one_does_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let (made, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = Store::open(dir.path()).unwrap();
                begin.wait();
                let mut waiting = || {
                    waited.fetch_add(1, Ordering::Relaxed);
                };
                if let Begun::New(making) = store.begin((A, 7), Patience::default(), &mut waiting).unwrap() {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    made.fetch_add(1, Ordering::Relaxed);
                    making.publish(&record()).unwrap();
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
    assert!(waited.into_inner() >= 1);
    assert_eq!(files(dir.path()), [format!("{A}.erofs"), format!("{A}.json")]);
}

/// A user whose registry never ends does not keep the others from an image.
#[test]
fn who_does_not_get_on_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let first = store.begin((A, 7), Patience::default(), &mut || ()).unwrap();
    let mut waited = 0;
    let patience = Patience { stall_of_others: Duration::from_millis(200), ..Patience::default() };
    let Begun::New(second) = store.begin((A, 7), patience, &mut || waited += 1).unwrap() else {
        panic!("it is there")
    };
    assert_eq!(waited, 1);
    second.publish(&record()).unwrap();
    let published = fs::metadata(dir.path().join(format!("images/{A}.erofs"))).unwrap();
    assert!(
        matches!(store.begin((A, 7), patience, &mut || ()).unwrap(), Begun::There(_)),
        "though the first has the lock"
    );
    let Begun::New(first) = first else { panic!("nobody made it") };
    first.publish(&record()).unwrap();
    let now = fs::metadata(dir.path().join(format!("images/{A}.erofs"))).unwrap();
    assert_eq!(now.ino(), published.ino(), "what is there is not changed");
    assert_eq!(files(dir.path()), [format!("{A}.erofs"), format!("{A}.json")]);
}

/// The directory itself is open, for the helper to look at.
#[test]
fn nobody_else_can_look_in() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    make(&store, A, b"a secret");
    store.permit(1001, A).unwrap();
    store.blobs(1001).unwrap();
    let mode = |place: &str| fs::metadata(dir.path().join(place)).unwrap().mode() & 0o777;
    for place in ["images", "users"] {
        assert_eq!(mode(place), 0o711, "{place}: one can look for a name, if one knows it");
    }
    for place in ["meanings", "blobs", "blobs/1001", "tmp"] {
        assert_eq!(mode(place), 0o700, "{place}");
    }
    assert_eq!((mode(&format!("images/{A}.erofs")), mode(&format!("images/{A}.json"))), (0o400, 0o600));
}

/// With user 1001 in its ACL, whose mask takes the group's place in the mode.
#[test]
fn only_the_user_may_look_at_their_permits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users/1001");
    let acl_and_mode = || {
        let mut acl = [0; 64];
        let length = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut acl).unwrap();
        (acl[..length].to_vec(), fs::metadata(&path).unwrap().mode() & 0o777)
    };
    let store = Store::open(dir.path()).unwrap();
    store.permit(1001, A).unwrap();
    let (acl, mode) = acl_and_mode();
    assert_eq!(mode, 0o710);
    let user = [&[2, 0, 1, 0][..], &1001_u32.to_le_bytes()].concat();
    assert_eq!(acl[12..20], user);
    assert_eq!(acl.len(), 4 + 5 * 8);
    // One that an older version has made.
    rustix::fs::removexattr(&path, "system.posix_acl_access").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(acl_and_mode(), (acl, 0o710));
    assert!(store.permitted(1001, A));
    // In a store of the user's own nobody else is named.
    let own = rustix::process::getuid().as_raw();
    store.permit(own, A).unwrap();
    assert_eq!(fs::metadata(dir.path().join(format!("users/{own}"))).unwrap().mode() & 0o777, 0o700);
}

/// Of the user's own store root inside has what the user has pulled outside. Another's store is not theirs, even if they can read it.
#[test]
fn root_has_the_permits_of_its_own_store_alone() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: this test must be root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    make(&store, A, b"pulled outside");
    store.permit(1001, A).unwrap();
    assert!(store.permitted(0, A) && !store.permitted(1002, A));
    std::os::unix::fs::chown(dir.path(), Some(1001), None).unwrap();
    assert!(store.permitted(1001, A) && !store.permitted(0, A));
}

#[test]
fn an_image_stays_as_long_as_somebody_may_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    make(&store, A, b"shared");
    for uid in [1001, 1002] {
        store.permit(uid, A).unwrap();
        assert!(store.permitted(uid, A));
    }
    assert!(!store.permitted(1003, A));
    store.forbid(1001, A).unwrap();
    assert!(!store.permitted(1001, A) && store.find(A).unwrap().is_some());
    store.forbid(1002, A).unwrap();
    assert_eq!(store.find(A).unwrap(), None);
    assert_eq!(files(dir.path()), [""; 0]);
}

#[test]
fn collection_takes_the_unused_first_and_never_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for (id, uid) in [(A, 1001), (B, 1002)] {
        make(&store, id, &[1; 40_000]);
        store.permit(uid, id).unwrap();
    }
    make(&store, C, &[1; 40_000]);
    let blobs = store.blobs(1001).unwrap();
    let blob = |digit: &str| blobs.join(format!("sha256-{}", digit.repeat(64)));
    let (held, free) = (blob("1"), blob("2"));
    for blob in [&held, &free] {
        fs::write(blob, [1; 40_000]).unwrap();
        fs::write(blob.with_extension("journal"), "").unwrap();
    }
    // Somebody fetches it.
    let hold = fs::File::open(held.with_extension("journal")).unwrap();
    rustix::fs::flock(hold.as_fd(), rustix::fs::FlockOperation::LockExclusive).unwrap();
    // A was used long before B.
    let old = fs::File::open(dir.path().join(format!("users/1001/{A}"))).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();

    let planned = store.collect(None, true).unwrap();
    assert_eq!((planned.images.as_slice(), planned.files.len()), (&[C][..], 0));
    assert_eq!(store.images().unwrap(), [A, B, C], "a dry run takes nothing");
    assert_eq!(store.collect(None, false).unwrap(), planned);
    assert_eq!(store.images().unwrap(), [A, B]);

    let two_files = 100_000;
    let done = store.collect(Some(two_files), false).unwrap();
    assert_eq!((done.images.as_slice(), done.files.as_slice()), (&[A][..], &[free][..]));
    assert!(store.usage().unwrap().total() <= two_files && held.exists());
    assert_eq!(store.images().unwrap(), [B]);
}

#[test]
fn a_newer_store_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap();
    fs::write(dir.path().join("version"), "2\n").unwrap();
    let error = Store::open(dir.path()).err().unwrap();
    assert!(matches!(&error, Error::Newer { version, .. } if version == "2"), "{error}");
    assert!(error.hint().is_some());
}
