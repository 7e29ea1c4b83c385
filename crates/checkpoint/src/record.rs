//! A checkpoint on disk: a directory with CRIU's images, file trees, the instance's output, and a record that names each file with its
//! digest. Whoever restores it checks all of that first: a damaged image would show only when processes are half made.
//!
//! ```text
//! checkpoint          one line with the format's name, its number and the digest of the rest; then JSON: `Checkpoint`
//! images/             what CRIU writes
//! trees/NAME          directories, as `skiff_snapshot::whole` writes them
//! trees/file.N        a copy of a file outside the instance that is open to be written (`files.rs`)
//! trees/sysv          what System V message queues and segments hold (`sysv.rs`)
//! trees/posix-queues  messages of POSIX message queues (`posix_queues.rs`)
//! chunks              of which chunks of the store beside the checkpoints the pages of memory consist (`stored.rs`), if they are there
//! image.json          the image below the instance, if there is one
//! ```

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::CWD;
use serde::{Deserialize, Serialize};
use skiff_sandbox::clocks::Clocks;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::instance::Started;
use skiff_sys::small_file;

use crate::files::{ReadFile, WrittenFile};
use crate::obstacles::SavedProcess;
use crate::posix_queues::PosixQueues;
use crate::sysv::SystemV;
use crate::versions::Versions;

mod digests;

pub use digests::{FileDigest, files, flush, sums, tidy};
use digests::{is_image, list};

/// The record's file.
pub const FILE: &str = "checkpoint";
pub use crate::parts::{CheckpointDir, TREES, open, place_of};
pub use skiff_spec::checkpoint::IMAGES;
/// What System V objects hold: a file's path in the directory.
pub const SYSV: &str = "trees/sysv";
/// The messages of POSIX message queues: likewise.
pub const POSIX_QUEUES: &str = "trees/posix-queues";
/// What the record begins with.
pub const MAGIC: &str = "skiff-checkpoint";
/// Name of the list of chunks of the store that make up the files which are not in the directory.
pub const CHUNKS: &str = "chunks";
/// The newest format that is read.
pub const FORMAT: u32 = 2;
/// The format of a checkpoint of which all files are in its directory.
pub(crate) const WHOLE: u32 = 1;
/// Below, the kernel gives a number only once; the process that serves a root has one of them.
const FIRST_FREE: i32 = 300;
/// The kernel has numbers up to this one at least.
const LAST_FREE: i32 = 32_767;
/// For sessions and groups without a leader CRIU makes processes, which get the first free numbers.
const FOR_SESSIONS: i32 = 1000;
/// No record of a sane checkpoint is longer.
pub const LONGEST: u64 = 64 << 20;
/// Why a record that was changed or cut is refused.
const DAMAGED: &str = "its record is damaged";

/// All that is known of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Seconds since 1970.
    pub created: u64,
    /// What the instance was started as.
    pub instance: Started,
    /// Processes of the instance; the first is the command's reaper, or in a checkpoint of an older Skiff the command.
    pub processes: Vec<SavedProcess>,
    /// Whether it went on afterwards.
    pub left_running: bool,
    /// Directories that belong to it.
    pub trees: Vec<SavedTree>,
    /// Bytes that its command had written to its output.
    #[serde(default)]
    pub written: u64,
    /// Files with names that are open to be written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written_files: Vec<WrittenFile>,
    /// Files outside the instance with names that are open to be read only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_files: Vec<ReadFile>,
    /// What its clocks said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<Clocks>,
    /// System V semaphores, message queues and shared memory of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysv: Option<SystemV>,
    /// POSIX message queues of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posix_queues: Option<PosixQueues>,
    /// What it was made with and on.
    pub made_with: Versions,
    /// All files beside the record.
    pub files: Vec<FileDigest>,
    /// Images whose bytes are in the store, in the order in which they follow each other in the list of chunks. Such a checkpoint is of format 2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<StoredImage>,
}

/// A file whose bytes are in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredImage {
    /// Relative to the checkpoint's directory.
    pub path: String,
    /// In bytes.
    pub size: u64,
}

/// A directory that is kept in one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTree {
    /// The file, below [`TREES`].
    pub file: String,
    /// What it holds.
    pub of: TreeContents,
    /// The digest of the file in the words of its format.
    pub id: String,
}

/// What a tree holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TreeContents {
    /// A directory of the instance's own (`upper`, `tmp` ...), by its name there.
    Own(String),
    /// What lies in memory, mounted at this path inside.
    Memory(PathBuf),
    /// The file that its command writes to.
    Output,
}

impl std::fmt::Display for TreeContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own(name) if name == "upper" => f.write_str("what it has changed"),
            Self::Own(name) => write!(f, "its own {name}"),
            Self::Memory(target) => write!(f, "in memory, {}", target.display()),
            Self::Output => f.write_str("its output"),
        }
    }
}

impl Checkpoint {
    /// The process that all others descend from: the command's reaper, or in a checkpoint of an older Skiff the command.
    ///
    /// # Errors
    /// When there is none: nothing that we wrote.
    pub fn main(&self) -> Result<&SavedProcess> {
        self.processes.first().ok_or_else(|| Fault::new("the checkpoint has no process in it"))
    }

    /// A number far from those of the processes, and with none of theirs for a while behind it.
    #[must_use]
    pub fn free_number(&self) -> i32 {
        let threads = self.processes.iter().flat_map(|process| process.threads.iter().copied());
        let mut taken: Vec<i32> = threads.chain([FIRST_FREE, LAST_FREE]).collect();
        taken.retain(|number| (FIRST_FREE..=LAST_FREE).contains(number));
        taken.sort_unstable();
        let gaps = taken.windows(2).map(|pair| (pair[1] - pair[0], pair[0] + 1));
        let widest = gaps.max_by_key(|(length, first)| (*length, -first));
        widest.map_or(FIRST_FREE, |(length, first)| first + (length / 2).min(FOR_SESSIONS))
    }

    /// Bytes of all that it holds, whole.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files_size().saturating_add(self.stored_size())
    }

    /// Bytes of all files in its directory.
    #[must_use]
    pub fn files_size(&self) -> u64 {
        self.files.iter().fold(0, |all, file| all.saturating_add(file.size))
    }

    /// Bytes of what is in the store.
    #[must_use]
    pub fn stored_size(&self) -> u64 {
        self.stored.iter().fold(0, |all, file| all.saturating_add(file.size))
    }

    /// The bytes of its record.
    ///
    /// # Errors
    /// There is no JSON for it.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let body = serde_json::to_vec_pretty(self).map_err(|e| Fault::new(e.to_string()))?;
        // An older Skiff is to refuse what it cannot put together.
        let format = if self.stored.is_empty() { WHOLE } else { FORMAT };
        Ok(sealed((MAGIC, format), &body))
    }

    /// Writes the record into `dir`, as its last file, and flushes the directory: its name is next.
    ///
    /// # Errors
    /// What writing says.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let about = || path.display().to_string();
        let bytes = self.bytes().map_err(|e| e.about(&about()))?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path).context(about)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).context(about)?;
        flush(dir)
    }

    /// Reads the record in `dir`.
    ///
    /// # Errors
    /// When it is damaged, or of a format that is not known here.
    pub fn read(dir: &Path) -> Result<Self> {
        Self::read_with_digest(dir).map(|(read, _)| read)
    }

    /// The same, with the digest of the bytes that were read.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn read_with_digest(dir: &Path) -> Result<(Self, String)> {
        let path = dir.join(FILE);
        let about = || place_of(dir).join(FILE).display().to_string();
        let bytes = small_file::read_below(CWD, &*path, LONGEST).context(about)?;
        let read = Self::parse(&bytes).map_err(|why| {
            Fault::new(format!("checkpoint {}: {why}", place_of(dir).display()))
                .hint("it is not restored, as it would come back wrong")
        })?;
        Ok((read, digest(&bytes)))
    }

    /// From the record's bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let body = body_of((MAGIC, FORMAT), bytes)?;
        let read: Self = serde_json::from_slice(body).map_err(|e| format!("its record: {e}"))?;
        let below = |path: &str| {
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let mut named =
            read.files.iter().map(|file| &file.path).chain(read.trees.iter().map(|tree| &tree.file));
        let mut images = read.stored.iter().map(|file| &file.path);
        let image = |path: &String| Path::new(path).parent() == Some(Path::new(IMAGES)) && is_image(path);
        match named.find(|path| !below(path)).or_else(|| images.find(|path| !image(path))) {
            Some(path) => Err(format!("its record names {path:?}, which is not in it")),
            None => Ok(read),
        }
    }

    /// Checks every file; nothing else may lie where CRIU looks.
    ///
    /// # Errors
    /// The first that is not what it was.
    pub fn verify(&self, dir: &Path) -> Result<()> {
        let damaged = |what: String| {
            Fault::new(format!("checkpoint {}: {what}", place_of(dir).display()))
                .hint("it is not restored, as it would come back wrong")
        };
        for file in list(&dir.join(IMAGES))? {
            let path = format!("{IMAGES}/{file}");
            if is_image(&file) && !self.files.iter().any(|sum| sum.path == path) {
                return Err(damaged(format!("{path} does not belong to it")));
            }
        }
        for want in &self.files {
            let is = FileDigest::of(dir, &want.path)?;
            if is != *want {
                return Err(damaged(format!("{} is damaged", want.path)));
            }
        }
        Ok(())
    }
}

/// The digest of a record, by its bytes (BLAKE3, hexadecimal).
pub(crate) fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// A record as it is written: a line with what it is, its format and the digest of the rest.
pub(crate) fn sealed((magic, format): (&str, u32), body: &[u8]) -> Vec<u8> {
    let head = format!("{magic} {format} {}\n", blake3::hash(body));
    [head.as_bytes(), body].concat()
}

/// What is behind the first line of a record, if that fits and is of no newer format.
pub(crate) fn body_of<'a>(
    (magic, newest): (&str, u32),
    bytes: &'a [u8],
) -> std::result::Result<&'a [u8], String> {
    let end = bytes.iter().take(256).position(|b| *b == b'\n').ok_or(DAMAGED)?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| DAMAGED)?;
    let words: Vec<&str> = head.split(' ').collect();
    let [is, format, digest] = words[..] else { return Err("not a checkpoint".into()) };
    if is != magic {
        return Err("not a checkpoint".into());
    }
    match format.parse::<u32>() {
        Ok(known) if (WHOLE..=newest).contains(&known) => {}
        Ok(other) => {
            return Err(format!("it is of format {other}, and this Skiff knows formats up to {newest}"));
        }
        Err(_) => return Err(DAMAGED.into()),
    }
    let body = &bytes[end + 1..];
    match blake3::hash(body).to_hex().as_str() == digest {
        true => Ok(body),
        false => Err(DAMAGED.into()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::attributes::ThreadAttributes;
    use skiff_spec::network::Net;
    use skiff_spec::plan::{Accounts, Base, Identity, Plan, Route, Upper};

    pub(crate) fn example() -> Checkpoint {
        let plan = Plan {
            name: "c".into(),
            route: Route::Helper,
            base: Base::Host,
            layers: vec![],
            stored_layers: vec![],
            upper: Upper::Directory("/d".into()),
            read_only: false,
            dumpable: true,
            contain: false,
            untrusted: false,
            unpacked: None,
            accounts: Accounts::default(),
            mounts: vec![],
            net: Net::Host,
            hostname: None,
            ssh_user: None,
            devices: Default::default(),
            shims: vec![],
        };
        let instance = Started {
            name: "c".parse().expect("a name"),
            of: "host".into(),
            image: None,
            snapshot: None,
            command: vec!["a".into()],
            identity: Identity::Root,
            net: Net::Host,
            checkpoint: true,
            saved_as: None,
            checkpoint_every: None,
            started: 1,
            definition_variables: vec![],
            plan,
        };
        let attributes =
            vec![ThreadAttributes { thread: 2, io_priority: Some(16_390), ..ThreadAttributes::default() }];
        let process = SavedProcess {
            attributes,
            pid: 2,
            parent: 1,
            name: "a".into(),
            threads: vec![2],
            memory: 0,
            files: 0,
            sockets: 0,
            processor_ms: 0,
            locks: vec![],
            timers: vec![],
            socket_options: vec![],
        };
        let made_with = Versions {
            skiff: "0".into(),
            criu: "4.1".into(),
            kernel: "6".into(),
            machine: "x86_64".into(),
            processor: vec!["sse".into()],
        };
        let tree = SavedTree { file: "upper".into(), of: TreeContents::Own("upper".into()), id: "00".into() };
        let (trees, files, processes) = (vec![tree], vec![], vec![process]);
        let (created, left_running, written) = (7, false, 9);
        let clocks = Some(Clocks { monotonic: 1 << 50, boot: 1 << 51 });
        let written_files = vec![WrittenFile {
            path: "/log".into(),
            size: 3,
            number: 7,
            copy: Some("file.0".into()),
            owner: Some((0, 0, 0o600)),
            ..WrittenFile::default()
        }];
        let read_files = vec![ReadFile { path: "/input".into(), modified: (7, 8) }];
        Checkpoint {
            created,
            instance,
            processes,
            left_running,
            trees,
            written,
            written_files,
            read_files,
            clocks,
            sysv: None,
            posix_queues: None,
            made_with,
            files,
            stored: vec![],
        }
    }

    fn make() -> (tempfile::TempDir, Checkpoint) {
        let dir = tempfile::tempdir().expect("a directory");
        for part in [IMAGES, TREES] {
            fs::create_dir(dir.path().join(part)).expect("made");
        }
        fs::write(dir.path().join("images/core.img"), "core").expect("written");
        fs::write(dir.path().join("trees/upper"), "tree").expect("written");
        let checkpoint = Checkpoint { files: sums(dir.path()).expect("read"), ..example() };
        checkpoint.write(dir.path()).expect("written");
        (dir, checkpoint)
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was_written() {
        let (dir, checkpoint) = make();
        let read = Checkpoint::read(dir.path()).expect("read");
        assert_eq!(read, checkpoint);
        assert_eq!((read.files.len(), read.size()), (2, 8));
        read.verify(dir.path()).expect("whole");
    }

    #[test]
    fn criu_gets_a_number_in_the_largest_gap() {
        let with = |threads: &[i32]| {
            let mut made = example();
            made.processes[0].threads = threads.to_vec();
            made.free_number()
        };
        assert_eq!(with(&[2, 5]), 1301);
        assert_eq!(with(&[2, 500]), 1501);
        assert_eq!(with(&[2, 32_000]), 1301);
        assert_eq!(with(&[2, 70_000]), 1301);
    }

    #[test]
    fn what_is_damaged_cut_or_foreign_is_refused() {
        type Act<'a> = &'a dyn Fn(&Path);
        let spoil: [(&str, Act<'_>, &str); 5] = [
            (
                "changed",
                &|dir| fs::write(dir.join("images/core.img"), "cors").expect("written"),
                "is damaged",
            ),
            ("cut", &|dir| fs::write(dir.join("trees/upper"), "tre").expect("written"), "is damaged"),
            ("more", &|dir| fs::write(dir.join("images/x.img"), "").expect("written"), "does not belong"),
            ("gone", &|dir| fs::remove_file(dir.join("trees/upper")).expect("gone"), "trees/upper"),
            (
                "a link",
                &|dir| {
                    fs::rename(dir.join("trees/upper"), dir.join("elsewhere")).expect("renamed");
                    std::os::unix::fs::symlink("../elsewhere", dir.join("trees/upper")).expect("a link");
                },
                "trees/upper",
            ),
        ];
        for (what, act, word) in spoil {
            let (dir, checkpoint) = make();
            act(dir.path());
            let why = checkpoint.verify(dir.path()).expect_err(what);
            assert!(why.message.contains(word), "{what}: {}", why.message);
        }
    }

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let (dir, _) = make();
        let bytes = fs::read(dir.path().join(FILE)).expect("read");
        assert!(Checkpoint::parse(&bytes).is_ok());
        for end in [0, 5, 40, bytes.len() / 2, bytes.len() - 1] {
            assert_eq!(Checkpoint::parse(&bytes[..end]).as_ref().err(), Some(&DAMAGED.into()), "{end} bytes");
        }
        let newer = [b"skiff-checkpoint 3 ", &bytes[19..]].concat();
        assert!(Checkpoint::parse(&newer).expect_err("newer").contains("format 3"));
        let mut out = example();
        out.trees[0].file = "../../x".into();
        let body = serde_json::to_vec(&out).expect("JSON");
        let forged = [format!("{MAGIC} {FORMAT} {}\n", blake3::hash(&body)).as_bytes(), &body].concat();
        assert!(Checkpoint::parse(&forged).expect_err("outside").contains("not in it"));
    }

    #[test]
    fn only_what_an_older_skiff_cannot_put_together_is_of_another_format() {
        let stored = |path: &str| {
            let stored = vec![StoredImage { path: path.into(), size: 1 << 40 }];
            Checkpoint { stored, ..example() }.bytes().expect("JSON")
        };
        let whole = example().bytes().expect("JSON");
        assert!(whole.starts_with(b"skiff-checkpoint 1 "));
        assert!(!String::from_utf8_lossy(&whole).contains("stored"));
        let bytes = stored("images/pages-1.img");
        assert!(bytes.starts_with(b"skiff-checkpoint 2 "));
        assert_eq!(Checkpoint::parse(&bytes).expect("read").size(), 1 << 40);
        for elsewhere in
            ["trees/upper", "images/../x.img", "pages-1.img", "images/a/b.img", "/x.img", "images/x"]
        {
            assert!(Checkpoint::parse(&stored(elsewhere)).expect_err(elsewhere).contains("not in it"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let text = [b"skiff-checkpoint 1 ", &bytes[..]].concat();
            for bytes in [&bytes, &text] {
                let refused = Checkpoint::parse(bytes).expect_err("no record");
                assert!([DAMAGED, "not a checkpoint"].contains(&&*refused), "{refused}");
            }
        }

        #[test]
        fn any_flipped_bit_shows(at in 0usize..10_000, bit in 0u8..8) {
            static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let read = || fs::read(make().0.path().join(FILE)).expect("read");
            let mut bytes = BYTES.get_or_init(read).clone();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let refused = Checkpoint::parse(&bytes).expect_err("changed");
            let known = [DAMAGED, "not a checkpoint"].contains(&&*refused) || refused.starts_with("it is of format");
            assert!(known, "byte {at}: {refused}");
        }
    }
}
