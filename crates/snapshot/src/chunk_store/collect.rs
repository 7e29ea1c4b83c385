//! What no list needs any more is removed: whole packs, and frames in those of which others are needed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW,
};
use rustix::io::Errno;
use rustix::time::ClockId;
use skiff_site::TrustedDir;
use skiff_sys::{SystemContext, lock};

use super::{LOCK, TURN, check_frames, packs, read_frames};
use crate::chunk::ChunkList;
use crate::depot::PACKS;
use crate::digest::PackId;
use crate::error::{Error, Result};
use crate::file::TEMP_PREFIX;
use crate::packs::{pack_name, pack_of};
use crate::tree::names;

/// A pack is not worth a look that takes so little more room than it needs, in bytes.
const SLACK: u64 = 1 << 20;

/// After such a time without a collection, in seconds, those who come to read or write wait for one.
const OVERDUE: i64 = 3600;
/// How long they do, as long as others read or write: shorter than they wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// The frames of a pack that are needed, by where they begin, with their length.
type NeededFrames = BTreeMap<u64, u64>;

/// What has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectedChunks {
    /// Packs that were removed.
    pub packs: usize,
    /// Bytes of these, and of the frames that were taken out of others.
    pub bytes: u64,
}

/// Which frames each of some checkpoints needs.
#[derive(Debug, Default)]
pub struct ChunkUse {
    lists: Vec<ChunkList>,
    users: BTreeMap<(PackId, u64), u32>,
}

impl ChunkUse {
    /// Adds a checkpoint's list, which is called `name` in messages.
    ///
    /// # Errors
    /// It is damaged.
    pub fn add(&mut self, file: OwnedFd, name: &str) -> Result<()> {
        let list = read_frames(file, name)?;
        for frame in &list.frames {
            *self.users.entry((list.packs[frame.pack as usize], frame.at)).or_default() += 1;
        }
        self.lists.push(list);
        Ok(())
    }

    /// For each list, in the order in which they were added, the bytes in the store that it needs and no other does.
    #[must_use]
    pub fn own_bytes(&self) -> Vec<u64> {
        let own = |list: &ChunkList| {
            let alone =
                |pack: u32, at: u64| self.users.get(&(list.packs[pack as usize], at)).copied() == Some(1);
            list.frames.iter().filter(|f| alone(f.pack, f.at)).map(|f| u64::from(f.stored)).sum()
        };
        self.lists.iter().map(own).collect()
    }
}

impl CollectedChunks {
    /// Removes from the store in this directory what is in none of the lists that `lists` opens, each with a name for messages. Packs that were written
    /// within the time `spared` stay: of whoever the lock does not keep out. Nothing is done, and nothing given, while somebody uses the store: whoever does so
    /// collects later. Once an hour, if nobody has, this waits for their end for up to 30 s, and those who come meanwhile wait for this.
    ///
    /// # Errors
    /// The system's, or a list is damaged: then nobody knows what it needs.
    pub fn remove_unused<E: From<Error>>(
        dir: &TrustedDir,
        spared: Duration,
        lists: impl FnOnce() -> std::result::Result<Vec<(OwnedFd, String)>, E>,
    ) -> std::result::Result<Option<Self>, E> {
        let Some(lock) = lock_alone(dir)? else { return Ok(None) };
        let mut needed: BTreeMap<PackId, NeededFrames> = BTreeMap::new();
        for (file, name) in lists()? {
            // With its digest: what is damaged here would be believed.
            let list = check_frames(file, &name)?;
            for frame in &list.frames {
                let pack = needed.entry(list.packs[frame.pack as usize]).or_default();
                pack.insert(frame.at, u64::from(frame.stored));
            }
        }
        let removed = remove(dir, &needed, spared)?;
        note_time(&lock, LOCK)?;
        Ok(Some(removed))
    }
}

fn note_time(file: &OwnedFd, name: &str) -> Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    Ok(rustix::fs::futimens(file, &times).on("set the time of", name)?)
}

fn seconds() -> i64 {
    rustix::time::clock_gettime(ClockId::Realtime).tv_sec
}

/// Keeps everybody else from the store; nothing while somebody uses it, or somebody else waits for that.
fn lock_alone(dir: &TrustedDir) -> Result<Option<OwnedFd>> {
    let alone = |name| dir.lock(name, FlockOperation::NonBlockingLockExclusive);
    if let Some(lock) = alone(LOCK)? {
        return Ok(Some(lock));
    }
    for name in [LOCK, TURN] {
        let last = dir.stat(name)?.map_or(0, |found| found.st_mtime);
        if seconds().saturating_sub(last) < OVERDUE {
            return Ok(None);
        }
    }
    // Whoever comes has it for a moment.
    let Some(turn) = lock::within(Duration::from_secs(1), || alone(TURN))? else { return Ok(None) };
    // Before: if this is in vain the next one does not try at once, or those who come would wait in vain, too.
    note_time(&turn, TURN)?;
    Ok(lock::within(PATIENCE, || alone(LOCK))?)
}

fn remove(
    dir: &TrustedDir,
    needed: &BTreeMap<PackId, NeededFrames>,
    spared: Duration,
) -> Result<CollectedChunks> {
    let (packs, now) = (packs(dir)?, seconds());
    let is_spared = |stat: &Stat| now.saturating_sub(stat.st_mtime).cast_unsigned() < spared.as_secs();
    let object =
        |name: &[u8]| [&dir.path_of(PACKS).into_os_string().into_encoded_bytes()[..], b"/", name].concat();
    let mut collected = CollectedChunks::default();
    for name in names(packs.as_fd()).on("read the directory", object(b""))? {
        let stat = match rustix::fs::statat(&packs, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat.on("look at", object(&name))?,
        };
        match pack_of(&name) {
            _ if is_spared(&stat) => {}
            Some(pack) if needed.contains_key(&pack) => {
                collected.bytes += thin(&packs, &pack, &needed[&pack], &stat)?;
            }
            // A writer that was killed has left one that is not finished.
            None if !name.starts_with(TEMP_PREFIX.as_bytes()) => {}
            _ => {
                rustix::fs::unlinkat(&packs, &name[..], AtFlags::empty()).on("remove", object(&name))?;
                collected.packs += 1;
                collected.bytes += room(&stat);
            }
        }
    }
    Ok(collected)
}

/// Takes out of a pack what is not needed of it; how much less room it takes.
fn thin(packs: &OwnedFd, pack: &PackId, frames: &NeededFrames, stat: &Stat) -> Result<u64> {
    let needed: u64 = frames.values().sum();
    if room(stat) <= needed.saturating_add(needed / 8).saturating_add(SLACK) {
        return Ok(0);
    }
    let name = pack_name(pack);
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(packs, &name, flags, Mode::empty()).on("open", &name)?;
    let (mut at, end) = (0, stat.st_size.cast_unsigned());
    for (next, length) in frames.iter().map(|(at, length)| (*at, *length)).chain([(end, 0)]) {
        if next > at {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&file, flags, at, next - at) {
                // It goes with the rest of the pack then.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(0),
                done => done.on("take chunks out of", &name)?,
            }
        }
        at = at.max(next + length);
    }
    let left = rustix::fs::fstat(&file).on("look at", &name)?;
    Ok(room(stat).saturating_sub(room(&left)))
}

fn room(stat: &Stat) -> u64 {
    stat.st_blocks.cast_unsigned() * 512
}
