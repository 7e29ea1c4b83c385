//! Memory in the store: each user has one beside their checkpoints, in which each chunk is once, whichever checkpoints need it. Before processes are
//! made of it, it becomes CRIU's images again, each chunk checked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use skiff_env::snapshot_fault::ours;
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_snapshot::{ChunkStore, ChunkUse, CollectedChunks, StoredList, StoredStream};
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_user::dirs::{self, make_private, new_in};
use skiff_user::named;

use crate::memory;
use crate::names_lock;
use crate::other_hosts;
use crate::record::{self, CHUNKS, Checkpoint, FileDigest, IMAGES, StoredImage};

/// The store, in the directory of checkpoints.
const STORE: &str = ".chunks";
/// Lists of other checkpoints are looked at up to so many bytes in all: those of 250 GiB of memory. In memory each takes up to four times as much, so they take at
/// most half of what may be used for a while.
const MOST_KNOWN: u64 = 1 << 30;
const ROOM_FOR_LISTS: u64 = 8;
/// Of memory so many bytes at most are there twice, in an image and in a process, before CRIU gives them back.
const TWICE: u64 = 128 << 20;
/// Packs of this age may be those of a save whose list is not there yet, where no lock keeps it apart.
const JUST_WRITTEN: Duration = Duration::from_secs(3600);
/// Bytes that all else may take.
const SLACK: u64 = 64 << 20;

/// Opens the store beside the checkpoints in `home`, and makes it where it is missing.
///
/// # Errors
/// The system's.
pub fn open(home: &Path) -> Result<ChunkStore> {
    ChunkStore::open(&make_private(&home.join(STORE))?).map_err(ours)
}

/// Lists of what the store has, as far as it is likely to be in a checkpoint of this name: of its newest, then of the newest of all others.
///
/// # Errors
/// When the directory cannot be read.
pub fn known(home: &Path, name: &EnvName) -> Result<Vec<StoredList>> {
    let mut all: Vec<CheckpointName> = named::all(home, IMAGES)?;
    all.retain(|slot| slot.newer == 0);
    all.sort_by_key(|slot| slot.name != *name);
    let most = MOST_KNOWN.min(memory::spare()? / ROOM_FOR_LISTS);
    let (mut known, mut bytes) = (vec![], 0);
    for slot in all {
        let dir = home.join(slot.to_string());
        let Ok(length) = dir.join(CHUNKS).symlink_metadata().map(|about| about.len()) else { continue };
        bytes += length;
        if bytes > most && slot.name != *name {
            continue;
        }
        // One that is damaged cannot be restored. What it needs is written again.
        known.extend(list_in(&dir).ok());
    }
    Ok(known)
}

pub(crate) fn list_in(dir: &Path) -> Result<StoredList> {
    let file = record::open(dir, CHUNKS)?;
    StoredList::read(file.into(), &record::place_of(dir).join(CHUNKS).display().to_string()).map_err(ours)
}

/// Removes from the store what no checkpoint in `home` needs any more, unless somebody saves or restores: who does so removes it later. Where locks do
/// not keep out other hosts, nothing is removed while one of them saves, nor what was written lately.
///
/// # Errors
/// The system's, or a list of chunks is damaged: nobody knows what it needs.
pub fn collect(home: &Path) -> Result<()> {
    collect_among(home, other_hosts::have_other_locks(home))
}

fn collect_among(home: &Path, others_have_other_locks: bool) -> Result<()> {
    let Some(store) = dirs::find(&home.join(STORE))? else { return Ok(()) };
    if others_have_other_locks && other_hosts::save(home)? {
        return Ok(());
    }
    let spared = if others_have_other_locks { JUST_WRITTEN } else { Duration::ZERO };
    CollectedChunks::remove_unused(&store, spared, || lists(home).map_err(StoreFault::Ours))
        .map(drop)
        .map_err(StoreFault::into_fault)
        .map_err(|e| e.hint("`skiff checkpoint delete` removes what is damaged; then the rest is removed"))
}

/// An error of the store, or of what is beside it.
enum StoreFault {
    Ours(Fault),
    Store(skiff_snapshot::Error),
}

impl From<skiff_snapshot::Error> for StoreFault {
    fn from(error: skiff_snapshot::Error) -> Self {
        Self::Store(error)
    }
}

impl StoreFault {
    fn into_fault(self) -> Fault {
        match self {
            Self::Ours(fault) => fault,
            Self::Store(error) => ours(error),
        }
    }
}

/// The lists of all that lies in `home`, also of what is being made or removed: it may be restored or sent still.
fn lists(home: &Path) -> Result<Vec<(OwnedFd, String)>> {
    let home = dirs::open(home)?;
    // While they are opened nothing changes places.
    let _lock = names_lock::take(&home, "store")?;
    let mut lists = vec![];
    for name in home.names()? {
        // Nobody saves now: one that is not finished will not be.
        if name.as_encoded_bytes().starts_with(b".new") && list_in(&home.path_of(&name)).is_err() {
            continue;
        }
        if let Some(file) = open_list(&home, &name)? {
            lists.push((file, home.path_of(name).join(CHUNKS).display().to_string()));
        }
    }
    Ok(lists)
}

/// Opens the list of one; nothing where there is none, or no directory.
fn open_list(home: &TrustedDir, name: &OsString) -> Result<Option<OwnedFd>> {
    let path = Path::new(name).join(CHUNKS);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::openat(home, &path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(e) => Err(e).context(|| home.path_of(&path).display().to_string()),
    }
}

/// The bytes in the store that each of the checkpoints in `home` needs and no other does, by their names. One whose list cannot be read is not
/// there.
///
/// # Errors
/// When the directory cannot be read.
pub fn own_bytes(home: &Path) -> Result<BTreeMap<String, u64>> {
    let Some(home) = dirs::find(home)? else { return Ok(BTreeMap::new()) };
    let (mut used, mut names) = (ChunkUse::default(), vec![]);
    for name in home.names()? {
        let list = open_list(&home, &name)?;
        let name = name.to_string_lossy().into_owned();
        if list.is_some_and(|list| used.add(list, &name).is_ok()) {
            names.push(name);
        }
    }
    Ok(names.into_iter().zip(used.own_bytes()).collect())
}

/// Checks what of the checkpoint in `dir` is in the store.
///
/// # Errors
/// The first that is not what it was.
pub fn verify(dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    each(dir, checkpoint, |_, file| file.write_to(&mut std::io::sink()))
}

/// The same of a save, which has the store open. To open it again might wait for somebody who waits to collect what nobody needs, and so for this save.
///
/// # Errors
/// As [`verify`].
pub fn verify_saved(store: &ChunkStore, dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    each_in(store, dir, checkpoint, |_, file| file.write_to(&mut std::io::sink()))
}

/// A stored file that is to be read.
pub struct StoredBytes<'a, 'b> {
    stream: &'a mut StoredStream<'b>,
    file: &'a StoredImage,
}

impl StoredBytes<'_, '_> {
    /// Writes all of it.
    ///
    /// # Errors
    /// The file is damaged, or `to` fails.
    pub fn write_to(self, to: &mut dyn Write) -> Result<()> {
        self.stream.copy(self.file.size, to, &self.file.path).map_err(ours)
    }
}

/// Has each of its stored files read, in order.
///
/// # Errors
/// The error of `read`, or a file is damaged.
pub fn each(
    dir: &Path,
    checkpoint: &Checkpoint,
    read: impl FnMut(&StoredImage, StoredBytes<'_, '_>) -> Result<()>,
) -> Result<()> {
    if checkpoint.stored.is_empty() {
        return Ok(());
    }
    let place = record::place_of(dir);
    let home = place.parent().unwrap_or(Path::new("/"));
    each_in(&open(home)?, dir, checkpoint, read)
}

fn each_in(
    store: &ChunkStore,
    dir: &Path,
    checkpoint: &Checkpoint,
    mut read: impl FnMut(&StoredImage, StoredBytes<'_, '_>) -> Result<()>,
) -> Result<()> {
    let place = record::place_of(dir);
    let damaged = |e: Fault| {
        e.about(&format!("checkpoint {}", place.display()))
            .hint("it is not restored, as it would come back wrong")
    };
    let list = list_in(dir).map_err(damaged)?;
    let is = FileDigest::of(dir, CHUNKS)?;
    if !checkpoint.files.contains(&is) || list.length() != checkpoint.stored_size() {
        return Err(damaged(Fault::new(format!("{CHUNKS} is damaged"))));
    }
    let mut stream = store.read(list).map_err(ours)?;
    for file in &checkpoint.stored {
        read(file, StoredBytes { stream: &mut stream, file }).map_err(damaged)?;
    }
    Ok(())
}

/// The images of a checkpoint, as CRIU reads them. What was made for that goes when this is dropped.
pub struct WholeImages {
    path: PathBuf,
    /// What holds it, if it is in memory.
    memory: Option<OwnedFd>,
    /// What is to be removed, if it is on the disk.
    on_disk: Option<PathBuf>,
}

impl WholeImages {
    /// Makes those whole that are in the store: in memory, where there is enough, else beside the checkpoints.
    ///
    /// # Errors
    /// The checkpoint in `dir`, of this name, is damaged, or there is no room.
    pub fn of(dir: &Path, name: &EnvName, checkpoint: &Checkpoint) -> Result<Self> {
        if checkpoint.stored.is_empty() {
            return Ok(Self { path: dir.join(IMAGES), memory: None, on_disk: None });
        }
        let wanted = checkpoint.size().saturating_add(SLACK);
        let twice = checkpoint.stored_size().min(TWICE);
        let images = if wanted.saturating_add(twice) <= memory::available()? {
            let memory = memory::make(wanted)?;
            Self { path: images_in(&memory), memory: Some(memory), on_disk: None }
        } else {
            let place = record::place_of(dir);
            let new = new_in(place.parent().unwrap_or(&place), name);
            let images = Self { path: new.join(IMAGES), memory: None, on_disk: Some(new.clone()) };
            make_private(&new)?;
            make_private(&images.path)?;
            images
        };
        images.fill(dir, checkpoint)?;
        Ok(images)
    }

    fn fill(&self, dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
        let create = |path: &str| {
            let path = self.path.join(Path::new(path).file_name().unwrap_or_default());
            File::options().write(true).create_new(true).open(&path).context(|| path.display().to_string())
        };
        for file in checkpoint.files.iter().filter(|file| Path::new(&file.path).starts_with(IMAGES)) {
            let mut from = record::open(dir, &file.path)?;
            let copied = FileDigest::of_copy(&file.path, &mut from, &mut create(&file.path)?);
            if copied.context(|| file.path.clone())? != *file {
                let place = record::place_of(dir);
                return Err(Fault::new(format!("checkpoint {}: {} is damaged", place.display(), file.path)));
            }
        }
        each(dir, checkpoint, |file, bytes| bytes.write_to(&mut create(&file.path)?))
    }

    /// Where they are, and what has to stay open as long as that is to lead there.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn kept(&self) -> Result<(PathBuf, Vec<OwnedFd>)> {
        let Some(memory) = &self.memory else { return Ok((self.path.clone(), vec![])) };
        let memory = memory.try_clone().context(|| "directory in memory")?;
        Ok((images_in(&memory), vec![memory]))
    }

    /// Whether what has been read of them may go: they are there for this once.
    #[must_use]
    pub fn used_up(&self) -> bool {
        self.memory.is_some() || self.on_disk.is_some()
    }
}

fn images_in(memory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd())).join(IMAGES)
}

impl Drop for WholeImages {
    fn drop(&mut self) {
        if let Some(dir) = &self.on_disk {
            fs::remove_dir_all(dir).ignore_error("`skiff sweep` removes what stays of it");
        }
        // Who serves the instance has it open as long as that runs.
        if self.memory.is_some() {
            let left = fs::read_dir(&self.path).into_iter().flatten().flatten();
            left.for_each(|image| {
                fs::remove_file(image.path()).ignore_error("it is gone when the instance has ended");
            });
        }
    }
}

/// Says that chunks were not removed: what was to be done is done.
pub fn tell_uncollected(collected: Result<()>) {
    if let Err(why) = collected {
        output::note(&format!("chunks that no checkpoint needs were not removed: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A checkpoint's directory in `home` with these chunks.
    fn save(home: &Path, name: &str, chunks: &[u8]) -> u64 {
        let store = open(home).expect("a store");
        let mut writer =
            store.writer(known(home, &"a".parse().expect("a name")).expect("known")).expect("begun");
        chunks.iter().for_each(|byte| writer.chunk(noise(*byte)).expect("written"));
        let written = writer.finish().expect("written");
        fs::create_dir_all(home.join(name).join(IMAGES)).expect("made");
        fs::write(home.join(name).join(CHUNKS), written.list).expect("written");
        written.new
    }

    /// 16 KiB that cannot be compressed.
    fn noise(seed: u8) -> Vec<u8> {
        let mut bytes = vec![0; 16 << 10];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn packs(home: &Path) -> usize {
        fs::read_dir(home.join(STORE).join("packs")).expect("there").count()
    }

    #[test]
    fn the_newest_of_each_name_is_known() {
        let temp = tempfile::tempdir().expect("a directory");
        let home = temp.path();
        assert!(save(home, "a@1", &[1, 2]) > 0);
        assert!(save(home, "b", &[1, 3]) > 0, "the older one of a name is not looked at");
        assert_eq!(save(home, "a", &[1, 3]), 0);
        fs::write(home.join("b").join(CHUNKS), "no list").expect("written");
        assert_eq!(save(home, "c", &[3]), 0, "one that cannot be read is left out");
    }

    #[test]
    fn what_is_being_made_or_removed_keeps_its_chunks() {
        let temp = tempfile::tempdir().expect("a directory");
        let home = temp.path();
        collect(home).expect("no store yet");
        save(home, ".new.1.a@host", &[1]);
        save(home, ".trash.1.a@host", &[2]);
        save(home, "a", &[3]);
        for (gone, left) in [("none", 3), ("a", 2), (".new.1.a@host", 1), (".trash.1.a@host", 0)] {
            fs::remove_dir_all(home.join(gone)).ignore_error("the first is not there");
            collect(home).expect("collected");
            assert_eq!(packs(home), left, "{gone}");
        }
    }

    #[test]
    fn where_locks_do_not_keep_out_other_hosts_nothing_goes_as_long_as_one_may_save() {
        let temp = tempfile::tempdir().expect("a directory");
        let home = temp.path();
        save(home, "a", &[1]);
        fs::remove_dir_all(home.join("a")).expect("gone");
        let pack =
            fs::read_dir(home.join(STORE).join("packs")).expect("there").next().expect("one").expect("one");
        let left = |others| {
            collect_among(home, others).expect("collected");
            packs(home)
        };
        assert_eq!(left(true), 1, "it was written just now");
        let hours_ago = std::time::SystemTime::now() - 2 * JUST_WRITTEN;
        File::options()
            .write(true)
            .open(pack.path())
            .and_then(|pack| pack.set_modified(hours_ago))
            .expect("set");
        fs::create_dir(home.join(".new.1.a@another")).expect("made");
        assert_eq!(left(true), 1, "another host saves");
        fs::remove_dir(home.join(".new.1.a@another")).expect("gone");
        assert_eq!(left(true), 0);
        save(home, "a", &[1]);
        fs::remove_dir_all(home.join("a")).expect("gone");
        fs::create_dir(home.join(".new.1.a@another")).expect("made");
        assert_eq!(left(false), 0, "the lock keeps it out");
    }

    #[test]
    fn with_a_list_that_is_damaged_nothing_goes_and_the_others_are_counted() {
        let temp = tempfile::tempdir().expect("a directory");
        let home = temp.path();
        save(home, "a", &[1, 2]);
        save(home, "b", &[1, 2, 3]);
        save(home, "c", &[4]);
        let own = own_bytes(home).expect("counted");
        let of = |name: &str| own.get(name).copied();
        assert_eq!((of("a"), of("b"), of("c")), (Some(0), Some(16 << 10), Some(16 << 10)));
        let list = File::options().write(true).open(home.join("b").join(CHUNKS)).expect("there");
        list.write_all_at(&[0x55; 8], 0).expect("damaged");
        fs::remove_dir_all(home.join("c")).expect("gone");
        let why = collect(home).expect_err("damaged");
        assert!(why.message.contains("b/chunks is damaged"), "{}", why.message);
        assert_eq!(packs(home), 3);
        assert!(!own_bytes(home).expect("counted").contains_key("b"));
        fs::remove_dir_all(home.join("b")).expect("gone");
        collect(home).expect("collected");
        assert_eq!(packs(home), 1);
    }
}
