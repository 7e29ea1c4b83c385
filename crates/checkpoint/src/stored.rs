//! Memory in the store: each user has one beside their checkpoints, in which each chunk is once, whichever checkpoints need it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
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
use skiff_user::dirs::{self, make_private};
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
/// The hint where a checkpoint is damaged.
pub const DAMAGED: &str = "it is not restored, as it would come back wrong";
/// Packs of this age may be those of a save whose list is not there yet, where no lock keeps it apart.
const JUST_WRITTEN: Duration = Duration::from_secs(3600);

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
    read_in_any_order(dir, checkpoint, |_, _| Ok(()))
}

/// The same of a save, which has the store open. To open it again might wait for somebody who waits to collect what nobody needs, and so for this save.
///
/// # Errors
/// As [`verify`].
pub fn verify_saved(store: &ChunkStore, dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    read_from(store, dir, checkpoint, |_, _| Ok(()))
}

/// Passes each piece of its stored files to `take`, from several threads and in any order, once it is checked: with its place in the stream that these files
/// are one behind the other.
///
/// # Errors
/// An error of `take`, or a file is damaged.
pub fn read_in_any_order(
    dir: &Path,
    checkpoint: &Checkpoint,
    take: impl Fn(u64, &[u8]) -> Result<()> + Sync,
) -> Result<()> {
    if checkpoint.stored.is_empty() {
        return Ok(());
    }
    read_from(&store_of(dir)?, dir, checkpoint, take)
}

fn read_from(
    store: &ChunkStore,
    dir: &Path,
    checkpoint: &Checkpoint,
    take: impl Fn(u64, &[u8]) -> Result<()> + Sync,
) -> Result<()> {
    let list = checked_list(dir, checkpoint)?;
    store.read_all(&list, |at, bytes| take(at, bytes).map_err(StoreFault::Ours)).map_err(|e| match e {
        StoreFault::Store(e @ skiff_snapshot::Error::BadChunks { .. }) => damaged(dir, ours(e)),
        other => other.into_fault(),
    })
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
    mut read: impl FnMut(&StoredImage, StoredBytes<'_, '_>) -> Result<()>,
) -> Result<()> {
    if checkpoint.stored.is_empty() {
        return Ok(());
    }
    let (store, list) = (store_of(dir)?, checked_list(dir, checkpoint)?);
    let mut stream = store.read(&list).map_err(ours)?;
    for file in &checkpoint.stored {
        read(file, StoredBytes { stream: &mut stream, file }).map_err(|e| damaged(dir, e))?;
    }
    Ok(())
}

/// The store beside a checkpoint.
fn store_of(dir: &Path) -> Result<ChunkStore> {
    let place = record::place_of(dir);
    open(place.parent().unwrap_or(Path::new("/")))
}

/// The list of a checkpoint, if it is the one that was saved.
fn checked_list(dir: &Path, checkpoint: &Checkpoint) -> Result<StoredList> {
    let list = list_in(dir).map_err(|e| damaged(dir, e))?;
    let is = FileDigest::of(dir, CHUNKS)?;
    if !checkpoint.files.contains(&is) || list.length() != checkpoint.stored_size() {
        return Err(damaged(dir, Fault::new(format!("{CHUNKS} is damaged"))));
    }
    Ok(list)
}

fn damaged(dir: &Path, why: Fault) -> Fault {
    why.about(&format!("checkpoint {}", record::place_of(dir).display())).hint(DAMAGED)
}

/// Says that chunks were not removed: what was to be done is done.
pub fn tell_uncollected(collected: Result<()>) {
    if let Err(why) = collected {
        output::note(&format!("chunks that no checkpoint needs were not removed: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    use skiff_sys::IgnoreError;

    use super::*;

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
