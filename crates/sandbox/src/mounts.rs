//! Mounts that hang nowhere yet, and where to hang them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::{Context, Result};

/// What no mount of ours is to have.
const HARMLESS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// A new file system in memory; its size as tmpfs takes it.
pub fn memory(mode: u32, size: Option<&str>) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", "skiff")?;
    fsconfig_set_string(&fs, "mode", format!("{mode:o}"))?;
    if let Some(size) = size {
        fsconfig_set_string(&fs, "size", size)?;
    }
    fsconfig_create(&fs)?;
    as_mount(&fs)
}

/// A file system that the kernel makes up (`proc`, `mqueue`), for the namespaces we are in.
pub fn made_up(kind: &str) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS.union(MountAttrFlags::MOUNT_ATTR_NOEXEC))
}

/// The mount of a file system that has been configured.
pub fn as_mount(fs: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS)
}

/// A file or directory, with all that is mounted below it.
pub fn bind(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

/// A directory, without what is mounted below it.
pub fn bind_one(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(dir, "", flags)
}

/// Hangs a mount on a place of the namespace.
pub fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, place: &str) -> Result<()> {
    move_mount(mount, "", dir, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .context(|| format!("mount on {place}"))
}

/// Hangs a mount on something opened.
pub fn attach_to(mount: &OwnedFd, at: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", at, "", flags)
}

/// Mounts a new `/proc` over the one of another PID namespace.
pub fn own_processes() -> Result<()> {
    let proc = made_up("proc").context(|| "/proc of the step")?;
    attach(proc.as_fd(), CWD, "/proc")
}

/// A directory to mount or look at.
pub fn open_dir(at: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether what is mounted is a directory.
pub fn is_dir(mount: BorrowedFd<'_>) -> Result<bool> {
    let stat = rustix::fs::fstat(mount).context(|| "mount")?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// A descriptor as a path: file system options take paths, and this one cannot be redirected or need escaping.
pub fn by_number(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Looks a path up as if `root` were `/`.
pub fn resolve(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

/// The place at `path` below `root`, made if there is none: a directory, or an empty file.
pub fn resolve_or_make(root: BorrowedFd<'_>, path: &Path, dir: bool) -> rustix::io::Result<OwnedFd> {
    match resolve(root, path) {
        Err(Errno::NOENT) => {}
        found => return found,
    }
    let parent = resolve_or_make(root, path.parent().unwrap_or(Path::new("")), true)?;
    let name = Path::new(path.file_name().ok_or(Errno::INVAL)?);
    let made = if dir {
        mkdirat(&parent, name, Mode::from_raw_mode(0o755))
    } else {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        openat(&parent, name, flags, Mode::from_raw_mode(0o644)).map(drop)
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => resolve(parent.as_fd(), name),
        Err(e) => Err(e),
    }
}
