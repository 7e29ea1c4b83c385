//! Stand-ins for what `other` may not read: the layers above the view of the host's root.
//!
//! The view alone keeps every secret, but by refusing, and package managers stumble over names they can see and not open.
//! So such names are made to look as on a fresh system: a file is absent, except that the password files have every
//! account locked and lock files are empty; a directory is empty. Only comfort depends on these layers being complete and
//! recent, so they are kept between starts and made anew when the directories that matter have changed, or once in a while.
//!
//! All users share them, so no user may change them. What a user gets is a mount of their own namespace, whose read-only flag
//! they can take off; the file system itself is therefore made read-only before anybody gets it. Each generation is one file
//! system, which the kernel drops when the last environment that uses it has ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{
    CWD, Mode, OFlags, ResolveFlags, XattrFlags, fgetxattr, fsetxattr, mkdirat, openat, openat2, stat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    unmount,
};
use rustix::time::ClockId;
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_sys::lock;

use crate::quota::Slot;
use crate::{shims, stand_ins};

/// Where the current generation is mounted. (Never a part of `/` itself: one layer of an overlay may not lie in another.)
const PLACE: &str = "/run/skiff/base";
/// In a generation: the layers; and a directory that stays empty.
const LAYERS: &str = "layers";
const EMPTY: &str = "empty";
/// Directories whose change says that something was added or taken away.
const WATCHED: [&str; 10] = [
    "etc",
    "etc/ssh",
    "root",
    "usr/bin",
    "usr/local/bin",
    "var",
    "var/lib",
    "var/log",
    "var/cache",
    "var/spool",
];
/// Seconds after which it is made anew in any case.
const AGE: i64 = 600;

/// How long the same user's other helper is waited for that makes what both need.
pub const MAKING: Duration = Duration::from_millis(100);

/// How long it takes, and many times more, to put a generation in the place of another.
const EXCHANGE: Duration = Duration::from_millis(10);
/// How often what all users share is made when another user's helper takes it away at that moment.
pub const TRIES: usize = 3;

/// The current generation.
pub struct MaskGeneration {
    /// The directory of the layers, as a mount that hangs nowhere yet.
    pub layers: OwnedFd,
    /// An empty directory.
    pub empty: OwnedFd,
}

/// Opens the current generation, made anew if it is old. Each user makes it on their own, as whoever does can be stopped (a frozen control
/// group). While another helper of the user's does, what is old will do; where there is nothing, the work is done twice.
pub fn current(uid: u32) -> Result<MaskGeneration> {
    let state = host_state();
    let old = match open_current(&state) {
        Some((mask, true)) => return Ok(mask),
        old => old.map(|(mask, _)| mask),
    };
    let patience = if old.is_some() { Duration::ZERO } else { MAKING };
    let maker = Slot::of_maker(uid, patience)?;
    match (open_current(&state), old) {
        (Some((mask, true)), _) => return Ok(mask),
        (_, Some(mask)) if maker.is_none() => return Ok(mask),
        _ => {}
    }
    for _ in 0..TRIES {
        renew(&state).context(|| format!("stand-ins in {PLACE}"))?;
        // Another user's helper may put its own in the place of these this moment; or be stopped before it has.
        if let Some((mask, _)) = lock::within(EXCHANGE, || Ok::<_, Error>(open_current(&state)))? {
            return Ok(mask);
        }
    }
    Err(Error::new(format!("stand-ins in {PLACE}: gone as soon as they were made")).hint("try again"))
}

/// What says that the host has changed: the times of directories, as text.
fn host_state() -> String {
    let time = |path: &&str| {
        stat(format!("/{path}"))
            .map_or_else(|_| "-".to_owned(), |s| format!("{}.{}", s.st_mtime, s.st_mtime_nsec))
    };
    WATCHED.iter().map(time).collect::<Vec<_>>().join(" ")
}

/// On the root of a generation: when it was made, and of what. (Of `trusted`, as tmpfs has no `user` ones before Linux 6.6.)
const STATE: &str = "trusted.skiff.state";

/// The generation mounted now, and whether it is fresh; nothing if there is none, or it has just been taken away.
fn open_current(state: &str) -> Option<(MaskGeneration, bool)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat2(CWD, PLACE, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    let mut buffer = [0u8; 512];
    let n = fgetxattr(&root, STATE, &mut buffer[..]).ok()?;
    let (made, of) = std::str::from_utf8(buffer.get(..n)?).ok()?.split_once(' ')?;
    let age = now() - made.parse::<i64>().ok()?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let layers = open_tree(&root, LAYERS, flags).ok()?;
    let empty =
        openat(&root, EMPTY, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    Some((MaskGeneration { layers, empty }, of == state && (0..AGE).contains(&age)))
}

fn now() -> i64 {
    // Since boot: nobody sets this clock.
    rustix::time::clock_gettime(ClockId::Boottime).tv_sec
}

/// A file system in memory that `fill` has filled and nobody can write to any more, as a mount that hangs nowhere.
pub fn file_system(fill: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>) -> std::io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "skiff"), ("mode", "755"), ("size", "64m"), ("uid", "0"), ("gid", "0")] {
        fsconfig_set_string(&fs, key, value)?;
    }
    fsconfig_create(&fs)?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)?;
    fill(root.as_fd())?;
    fsconfig_set_flag(&fs, "ro")?;
    fsconfig_reconfigure(&fs)?;
    Ok(root)
}

/// Makes a new generation, aside until it is complete, and puts it in the place of the old one.
fn renew(state: &str) -> std::io::Result<()> {
    let root = file_system(|root| Ok(fill(root, state)?))?;
    match rustix::fs::mkdir(PLACE, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    // Two, where two made one at the same time. Whoever uses them keeps them.
    while unmount(PLACE, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
    Ok(move_mount(&root, "", CWD, PLACE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn fill(root: BorrowedFd<'_>, state: &str) -> rustix::io::Result<()> {
    for name in [LAYERS, EMPTY] {
        mkdirat(root, name, Mode::from_raw_mode(0o755))?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let layers = openat(root, LAYERS, flags, Mode::empty())?;
    stand_ins::fill(layers.as_fd())?;
    shims::fill(layers.as_fd())?;
    fsetxattr(
        openat(root, ".", flags, Mode::empty())?,
        STATE,
        format!("{} {state}", now()).as_bytes(),
        XattrFlags::empty(),
    )
}
