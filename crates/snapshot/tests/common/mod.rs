//! What the tests share: dumps of trees, and overlays that are mounted nowhere.

#![allow(dead_code, clippy::unwrap_used)] // each test binary uses a part of it; a test may panic

pub mod acts;
pub mod craft;
pub mod userns;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use skiff_snapshot::{
    Cache, CollectOptions, CollectedFiles, Depot, How, LayerDir, MergePolicy, Pushed, SnapshotId,
    SnapshotInput, fetch, push,
};
use std::time::{Duration, SystemTime};

/// One path of a tree, with everything that a snapshot has to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: String,
    pub owner: (u32, u32, u32),
    /// Times of directories are those of the upper only in a tree, not in a merged view.
    pub mtime: Option<(i64, i64)>,
    pub content: Vec<u8>,
    pub holes: Option<bool>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same inode.
    pub links: PathBuf,
}

pub type Tree = BTreeMap<PathBuf, Entry>;

/// Everything in a directory; paths relative to it.
pub fn dump(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut first = BTreeMap::new();
    add(root, Path::new(""), &mut tree, &mut first);
    tree
}

fn add(root: &Path, path: &Path, tree: &mut Tree, first: &mut BTreeMap<u64, PathBuf>) {
    let full = root.join(path);
    // An overlay lists a whiteout in a directory that only one layer has, but there is nothing of that name.
    let Ok(meta) = std::fs::symlink_metadata(&full) else { return };
    let kind = meta.file_type();
    let mut content = Vec::new();
    let mut holes = None;
    let mut name = "file".to_string();
    if kind.is_dir() {
        name = "dir".into();
    } else if kind.is_symlink() {
        name = "symlink".into();
        content = std::fs::read_link(&full).unwrap().as_os_str().as_bytes().to_vec();
    } else if kind.is_fifo() {
        name = "fifo".into();
    } else if kind.is_char_device() && meta.rdev() == 0 {
        name = "whiteout".into();
    } else if !kind.is_file() {
        name = format!("{kind:?}");
    } else {
        content = std::fs::read(&full).unwrap();
        holes = Some(meta.blocks() * 512 + 4096 < meta.len());
    }
    let links = first.entry(meta.ino()).or_insert_with(|| path.to_path_buf()).clone();
    let whiteout = name == "whiteout";
    let entry = Entry {
        kind: name,
        owner: if whiteout { (0, 0, 0) } else { (meta.mode() & 0o7777, meta.uid(), meta.gid()) },
        mtime: (!whiteout).then(|| (meta.mtime(), meta.mtime_nsec())),
        content,
        holes,
        xattrs: if kind.is_dir() || kind.is_file() { xattrs(&full) } else { BTreeMap::new() },
        links: if kind.is_file() { links } else { PathBuf::new() },
    };
    tree.insert(path.to_path_buf(), entry);
    if kind.is_dir() {
        let mut names: Vec<_> =
            std::fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            add(root, &path.join(name), tree, first);
        }
    }
}

pub fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::listxattr(path, &mut names[..]).unwrap_or(0);
    let mut found = BTreeMap::new();
    // What an overlay notes for itself, and we must not ship.
    let notes = [&b"uuid"[..], b"origin", b"impure", b"nlink"];
    let is_note = |name: &[u8]| name.strip_prefix(b"user.overlay.").is_some_and(|note| notes.contains(&note));
    let in_upper = path.iter().any(|part| part == "upper");
    let kept = |name: &&[u8]| !(name.is_empty() || (in_upper && is_note(name)));
    for name in names[..length].split(|byte| *byte == 0).filter(kept) {
        let mut value = vec![0; 65536];
        let length = rustix::fs::getxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        found.insert(name.to_vec(), value);
    }
    found
}

/// What two trees differ in, for a message.
pub fn differences(a: &Tree, b: &Tree) -> Vec<String> {
    let mut told = Vec::new();
    for path in a.keys().chain(b.keys().filter(|path| !a.contains_key(*path))) {
        if a.get(path) != b.get(path) {
            let short = |entry: Option<&Entry>| {
                entry.map(|entry| {
                    let mut entry = entry.clone();
                    entry.content.truncate(40);
                    entry
                })
            };
            told.push(format!("{path:?}:\n  {:?}\n  {:?}", short(a.get(path)), short(b.get(path))));
        }
    }
    told
}

#[track_caller]
pub fn assert_same(a: &Tree, b: &Tree) {
    assert!(a == b, "{}", differences(a, b).join("\n"));
}

/// A merged view has no times of directories, no extents, and names of one lower file are told apart by the overlay's rules.
pub fn as_merged(tree: &Tree) -> Tree {
    let plain = |entry: &Entry| {
        let dir = entry.kind == "dir";
        let xattrs = entry.xattrs.iter().filter(|(name, _)| !name.starts_with(b"user.overlay."));
        Entry {
            mtime: if dir { None } else { entry.mtime },
            holes: None,
            links: PathBuf::new(),
            xattrs: xattrs.map(|(name, value)| (name.clone(), value.clone())).collect(),
            ..entry.clone()
        }
    };
    tree.iter().map(|(path, entry)| (path.clone(), plain(entry))).collect()
}

/// Whether this process may do what the test needs. A test that is skipped says so, and fails where nothing may be skipped.
pub fn is_root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root");
    // Past the harness, which keeps what a passing test prints to itself.
    std::io::stderr().write_all(format!("SKIPPED {test}: it needs root\n").as_bytes()).unwrap();
    false
}

/// Bytes that nothing makes smaller, others for each seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// An overlay that is attached nowhere and goes with its descriptor.
pub struct Overlay(OwnedFd);

impl Overlay {
    /// `lowers`: top first.
    pub fn new(lowers: &[&Path], upper: Option<(&Path, &Path)>) -> Overlay {
        let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        let set = |key: &str, value: &Path| {
            rustix::mount::fsconfig_set_string(fs.as_fd(), key, value).unwrap();
        };
        // One by one: a value is limited to 255 bytes.
        lowers.iter().for_each(|lower| set("lowerdir+", lower));
        if let Some((upper, work)) = upper {
            set("upperdir", upper);
            set("workdir", work);
        }
        rustix::mount::fsconfig_set_flag(fs.as_fd(), "userxattr").unwrap();
        rustix::mount::fsconfig_create(fs.as_fd()).unwrap();
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        Overlay(rustix::mount::fsmount(fs.as_fd(), flags, MountAttrFlags::empty()).unwrap())
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/", self.0.as_raw_fd()).into()
    }
}

/// An environment, a depot and a cache in a temporary directory.
pub struct World {
    pub dir: tempfile::TempDir,
    pub depot: Depot,
    pub cache: Cache,
    pub merge: MergePolicy,
}

/// Each change stays a layer of its own.
pub const NO_MERGE: MergePolicy = MergePolicy { percent: 0, small: 0 };

impl World {
    pub fn new() -> World {
        World::under(&std::env::temp_dir())
    }

    pub fn under(place: &Path) -> World {
        let dir = tempfile::tempdir_in(place).unwrap();
        for part in ["upper", "work", "base", "state"] {
            std::fs::create_dir(dir.path().join(part)).unwrap();
        }
        let depot = Depot::open(&dir.path().join("depot")).unwrap();
        let cache = Cache::open(&dir.path().join("cache"), u64::MAX).unwrap();
        World { dir, depot, cache, merge: NO_MERGE }
    }

    pub fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    pub fn upper(&self) -> PathBuf {
        self.path("upper")
    }

    pub fn open(&self, part: &str) -> std::fs::File {
        std::fs::File::open(self.path(part)).unwrap()
    }

    pub fn try_push(&self) -> skiff_snapshot::Result<Pushed> {
        let (upper, base, state) = (self.open("upper"), self.open("base"), self.open("state"));
        let none = BTreeMap::new();
        let input = input(upper.as_fd(), base.as_fd(), state.as_fd(), &none);
        push(&self.depot, &SnapshotInput { merge: self.merge, ..input })
    }

    pub fn push(&self) -> Pushed {
        self.try_push().unwrap()
    }

    /// Pushes and asserts how.
    #[track_caller]
    pub fn push_as(&self, how: How) -> Pushed {
        let pushed = self.push();
        assert_eq!(pushed.how, how);
        pushed
    }

    pub fn fetch(&self, id: &SnapshotId) -> Vec<LayerDir> {
        fetch(&self.depot, id, &self.cache).unwrap()
    }

    /// What the environment shows.
    pub fn seen(&self) -> Tree {
        let overlay = Overlay::new(&[&self.path("base")], Some((&self.upper(), &self.path("work"))));
        as_merged(&dump(&overlay.path()))
    }

    /// What a job in this snapshot sees.
    pub fn seen_in(&self, id: &SnapshotId) -> Tree {
        let layers = self.fetch(id);
        let base = self.path("base");
        let mut lowers: Vec<&Path> = layers.iter().rev().map(|layer| layer.path.as_path()).collect();
        lowers.push(&base);
        as_merged(&dump(&Overlay::new(&lowers, None).path()))
    }
}

pub fn input<'a>(
    upper: BorrowedFd<'a>,
    base: BorrowedFd<'a>,
    state: BorrowedFd<'a>,
    base_fingerprint: &'a BTreeMap<String, String>,
) -> SnapshotInput<'a> {
    SnapshotInput { environment: "test", upper, base, state, base_fingerprint, merge: NO_MERGE }
}

pub fn whiteout(path: &Path) {
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::empty(), 0).unwrap();
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

pub fn opaque(path: &Path) {
    set_xattr(path, "user.overlay.opaque", b"y");
}

/// As if the file had last been used a day ago.
pub fn make_old(path: &Path) {
    let day = Duration::from_secs(86_400);
    std::fs::File::open(path).unwrap().set_modified(SystemTime::now() - day).unwrap();
}

/// Removes what nobody has used for an hour, but for what is to be kept.
pub fn collect(depot: &Depot, keep: &[SnapshotId], grace: Duration) -> CollectedFiles {
    let contents = depot.contents().unwrap();
    let keep = keep.iter().copied().collect();
    let older_than = Duration::from_secs(3600);
    let plan = contents.collectable(&CollectOptions {
        keep: &keep,
        keep_within_budget: &std::collections::BTreeSet::new(),
        older_than,
        budget: None,
        grace,
    });
    depot.carry_out(&contents, &plan).unwrap()
}
