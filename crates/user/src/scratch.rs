//! Changes that go with what they were made in: whether memory can hold them, and if they go to a disk, a directory that a process of ours
//! removes when its owner ends, however that is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, MemfdFlags, XattrFlags, flock, fsetxattr, memfd_create};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getuid, setsid};
use rustix::rand::{GetRandomFlags, getrandom};
use skiff_sandbox::start::reap;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::Upper;
use skiff_spec::scratch::ScratchPlace;
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

use crate::context::UserContext;
use crate::dirs::{check_file_system, delete, make_parts, with_umask};

/// What all of them begin with, before the user's number.
const BEGIN: &str = "skiff-scratch.";

/// How long what was made in it may take to end when its owner has.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often what uses a directory for its changes may be made anew.
const MOST_IN_ONE: u32 = 10_000;

/// What a container in such a directory is called, where there is only one.
pub const ONLY: &str = "root";

/// Whether changes in memory can be of all kinds. In an attribute (`user.overlay.opaque`) overlayfs notes which directories hide those below
/// them. tmpfs has taken such attributes since Linux 6.6; before, no directory of the base can be removed or renamed (EIO).
pub fn memory_will_do() -> bool {
    // To try it takes 20 microseconds of a start.
    skiff_sys::kernel::is_at_least(6, 6) || memory_takes_attributes()
}

/// The same, tried: a kernel can be older and have it, or be built without it.
pub fn memory_takes_attributes() -> bool {
    // All memory is of one file system to the kernel, so this file without a name tells it.
    memfd_create("skiff", MemfdFlags::CLOEXEC)
        .and_then(|file| fsetxattr(&file, "user.skiff", &[], XattrFlags::empty()))
        .is_ok()
}

/// Where changes go that are not kept: to memory, or into a new directory in `dir`, which is removed with all that is in it.
pub fn not_kept(context: &UserContext, dir: &TrustedDir) -> Result<Upper> {
    match memory_will_do() {
        true => Ok(Upper::Memory { size: context.config.run.memory.clone() }),
        false => on_disk(dir),
    }
}

/// The same, but never to memory: what is there can be read when nothing runs any more.
pub fn on_disk(dir: &TrustedDir) -> Result<Upper> {
    // One that has been used would be refused by the kernel: nobody waited for the disk when it ended.
    for number in 0..MOST_IN_ONE {
        let name = format!("changes.{number}");
        match dir.new_dir(&name, 0o755) {
            Err(e) if e.errno() == Some(Errno::EXIST) => {}
            made => {
                with_umask(|| make_parts(&made?))?;
                return Ok(Upper::Scratch(dir.path_of(&name)));
            }
        }
    }
    Err(Error::new(format!("{}: all {MOST_IN_ONE} names changes.N are in use", dir.path().display()))
        .hint("start the instance or job again"))
}

/// Where the changes of a command go: to memory, or, if that cannot hold them, to a disk, where they are as long as the second that is
/// returned. If that is only to be shown, nothing is made, and it is the directory that one would be made in.
pub fn of_a_command(context: &UserContext, is_for_show: bool) -> Result<(Upper, Option<Scratch>)> {
    let memory = || Upper::Memory { size: context.config.run.memory.clone() };
    match (memory_will_do(), is_for_show) {
        (true, _) => Ok((memory(), None)),
        (false, true) => Ok((Upper::Scratch(usual()), None)),
        (false, false) => {
            // Where no disk will do either, memory has to.
            let (scratch, _) = make(context, &ScratchPlace::Usual)?;
            let upper = scratch.as_ref().map(|scratch| scratch.upper(ONLY)).transpose()?;
            Ok((upper.unwrap_or_else(memory), scratch))
        }
    }
}

/// Such a directory.
pub struct Scratch {
    dir: TrustedDir,
    /// Held as long as it is of use.
    _lock: OwnedFd,
    /// Closed by our end.
    alive: Option<OwnedFd>,
    janitor: Child,
}

/// Makes one where that has been asked for; nothing, and why if that is of interest, if changes are to go to memory.
pub fn make(context: &UserContext, wanted: &ScratchPlace) -> Result<(Option<Scratch>, Option<String>)> {
    match wanted {
        ScratchPlace::Memory => Ok((None, None)),
        ScratchPlace::Directory(dir) => {
            let made = Scratch::make(context, dir).map_err(|e| match e.hint.as_str() {
                "" => e.hint("--scratch is a directory on a local disk of each machine, or `memory`"),
                _ => e,
            });
            made.map(|scratch| (Some(scratch), None))
        }
        ScratchPlace::Usual => Ok(match Scratch::make(context, &usual()) {
            Ok(scratch) => (Some(scratch), None),
            Err(e) => (None, Some(format!("changes go to memory: {e}"))),
        }),
    }
}

/// The directory for temporary files. What the manager says of it was said on another host, perhaps.
fn usual() -> PathBuf {
    Some(std::env::temp_dir())
        .filter(|dir| dir.is_absolute() && dir.is_dir())
        .unwrap_or_else(|| "/tmp".into())
}

impl Scratch {
    fn make(context: &UserContext, all: &Path) -> Result<Self> {
        check_file_system(all).map_err(|e| e.hint("--scratch DIR, on a local disk, or --scratch memory"))?;
        // Nobody has cleared up after those whose janitor was killed, too.
        delete_dead(context, all)?;
        let (dir, lock) = new(context, all)?;
        let (gone, alive) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        match fork(CloneFlags::NONE).context(|| "janitor")? {
            Fork::Parent(janitor) => Ok(Self { dir, _lock: lock, alive: Some(alive), janitor }),
            Fork::Child => {
                close_all_except(&[gone.as_fd(), lock.as_fd()]);
                watch(context, dir.path(), &gone);
                exit_now(0)
            }
        }
    }

    /// The directory, for a process that has none of our descriptors but this.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where a container's changes may go, by its name.
    pub fn upper(&self, name: &str) -> Result<Upper> {
        self.forget(name)?;
        with_umask(|| make_parts(&self.dir.new_dir(name, 0o755)?))?;
        Ok(Upper::Scratch(self.dir.path_of(name)))
    }

    /// Removes those of one that has ended. Only the root of the user's ids can.
    pub fn forget(&self, name: &str) -> Result<()> {
        Ok(self.dir.remove_tree(name)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.alive = None;
        reap(self.janitor.pid);
    }
}

/// Removes the directory when its owner ends.
fn watch(context: &UserContext, dir: &Path, gone: &OwnedFd) {
    // Whoever ends the owner with all of its session is not to end this.
    setsid().ignore_error("it fails only in who leads a group already");
    skiff_sys::title::set("skiff-janitor");
    skiff_sandbox::start::detach_stdio();
    while rustix::io::read(gone, &mut [0]) == Err(rustix::io::Errno::INTR) {}
    let end = Instant::now() + PATIENCE;
    while delete(context, dir.to_owned()).is_err() && dir.exists() && Instant::now() < end {
        // Its processes are about to end.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The directory that they are in: others may write there, but not touch what is this user's.
fn open(all: &Path) -> skiff_site::Result<TrustedDir> {
    TrustedDir::open(all, getuid().as_raw())
}

/// A new one, held.
fn new(context: &UserContext, all: &Path) -> Result<(TrustedDir, OwnedFd)> {
    let all = open(all)?;
    loop {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty()).context(|| "random bytes")?;
        let name = format!("{BEGIN}{}.{:016x}", context.uid, u64::from_le_bytes(random));
        let dir = all.new_dir(&name, 0o700)?.private()?;
        // Another process of the user's that has found it without a holder removes it: then it is to be another.
        if let Some(lock) = hold(&dir)
            && all.stat(&name)?.is_some()
        {
            return Ok((dir, lock));
        }
    }
}

/// The lock of one, if nobody has it.
fn hold(dir: &TrustedDir) -> Option<OwnedFd> {
    let lock = dir.readable().ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok().map(|()| lock)
}

/// Scratch directories that belong to nobody any more, and now to whoever asks.
fn dead(context: &UserContext, all: &Path) -> Vec<(PathBuf, OwnedFd)> {
    let own = format!("{BEGIN}{}.", context.uid);
    // What cannot be trusted, or not be read, holds nothing that is to be removed.
    let Ok(all) = open(all) else { return vec![] };
    let names =
        all.names().default_on_error("what cannot be read holds nothing that is to be removed").into_iter();
    let ours = names.filter(|name| name.to_string_lossy().starts_with(&own));
    let dirs = ours.filter_map(|name| all.dir(name).and_then(TrustedDir::private).ok());
    dirs.filter_map(|dir| hold(&dir).map(|lock| (dir.path().to_owned(), lock))).collect()
}

fn delete_dead(context: &UserContext, all: &Path) -> Result<Vec<PathBuf>> {
    let dead = dead(context, all);
    dead.iter().try_for_each(|(dir, _)| delete(context, dir.clone()))?;
    Ok(dead.into_iter().map(|(dir, _)| dir).collect())
}

/// What killed ones have left in the directory for temporary files.
pub fn leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    Ok(dead(context, &usual()).into_iter().map(|(dir, _)| dir).collect())
}

/// Removes those.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    delete_dead(context, &usual())
}
