//! Mounts that hang nowhere yet, and where to hang them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use skiff_spec::fault::{Context, Result};

/// What no mount of ours is to have.
const HARMLESS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// The group that terminals belong to nearly everywhere, by its number.
const TTY: &str = "5";

/// So many links the kernel follows in one path.
const MOST_LINKS: u32 = 40;

/// A new file system in memory; its size as tmpfs takes it.
pub fn memory(mode: u32, size: Option<&str>) -> rustix::io::Result<OwnedFd> {
    let fs = tmpfs(mode, size)?;
    fsconfig_create(&fs)?;
    as_mount(&fs)
}

fn tmpfs(mode: u32, size: Option<&str>) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", "skiff")?;
    fsconfig_set_string(&fs, "mode", format!("{mode:o}"))?;
    if let Some(size) = size {
        fsconfig_set_string(&fs, "size", size)?;
    }
    Ok(fs)
}

/// A file system that the kernel makes up (`proc`, `mqueue`), for the namespaces we are in.
pub fn made_up(kind: &str) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS.union(MountAttrFlags::MOUNT_ATTR_NOEXEC))
}

/// Pseudo terminals of our own, for whoever is inside.
pub fn terminals() -> rustix::io::Result<OwnedFd> {
    let make = |group: Option<&str>| {
        let fs = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "ptmxmode", "0666")?;
        fsconfig_set_string(&fs, "mode", "0620")?;
        group.map_or(Ok(()), |group| fsconfig_set_string(&fs, "gid", group))?;
        fsconfig_create(&fs)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
    };
    match make(Some(TTY)) {
        // Who has one id only has no such group.
        Err(Errno::INVAL) => make(None),
        made => made,
    }
}

/// The mount of a file system that has been configured.
pub fn as_mount(fs: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS)
}

/// The same of a root, in which setuid programs (`sudo`, `su`) work for other users inside.
pub fn as_root_mount(fs: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// A file or directory, with all that is mounted below it.
pub fn bind(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

/// A directory at a path that has no link, with all that is mounted below it. Whoever may rename what is on the path could otherwise put a
/// link there meanwhile, and have anything of the caller's mounted.
pub fn bind_without_links(path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(CWD, path, flags, Mode::empty(), resolve)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(&dir, "", flags)
}

/// A directory, without what is mounted below it.
pub fn bind_one(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(dir, "", flags)
}

/// Hangs a mount on a place of the namespace.
pub fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, place: impl AsRef<Path>) -> Result<()> {
    let place = place.as_ref();
    move_mount(mount, "", dir, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .context(|| format!("mount on {}", place.display()))
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

/// Whether this is a directory with nothing in it.
pub fn is_empty_dir(dir: BorrowedFd<'_>) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = openat(dir, ".", flags, Mode::empty()).and_then(Dir::new);
    let is_link = |entry: &rustix::fs::DirEntry| matches!(entry.file_name().to_bytes(), b"." | b"..");
    entries.is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| is_link(&entry))))
}

/// A descriptor as a path: file system options take paths, and this one cannot be redirected or need escaping.
pub fn by_number(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Looks a path up as if `root` were `/`.
pub fn resolve(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    open_in_root(root, path, flags)
}

/// Far more than any neighbour's renames make necessary.
const TRIES: u32 = 1000;

/// Opens a path as if `root` were `/`. Where `..` is passed while anything on the host is renamed or mounted, whoever does that, the kernel
/// cannot tell whether the look-up has left `root`, and says `EAGAIN` (openat2(2)).
pub(crate) fn open_in_root(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    let again = |opened: &rustix::io::Result<OwnedFd>| matches!(opened, Err(Errno::AGAIN));
    (1..TRIES).map(|_| open()).find(|opened| !again(opened)).unwrap_or_else(open)
}

/// The place at `path` below `root`, made if there is none: a directory, or an empty file. A link that leads nowhere is
/// followed, and what it leads to made.
pub fn resolve_or_make(root: BorrowedFd<'_>, path: &Path, dir: bool) -> rustix::io::Result<OwnedFd> {
    make_through(root, path, dir, MOST_LINKS)
}

fn make_through(root: BorrowedFd<'_>, path: &Path, dir: bool, links: u32) -> rustix::io::Result<OwnedFd> {
    match resolve(root, path) {
        Err(Errno::NOENT) => {}
        found => return found,
    }
    let above = path.parent().unwrap_or(Path::new(""));
    let parent = make_through(root, above, true, links)?;
    let name = Path::new(path.file_name().ok_or(Errno::INVAL)?);
    if let Ok(target) = readlinkat(&parent, name, vec![]) {
        let links = links.checked_sub(1).ok_or(Errno::LOOP)?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        // An absolute one begins at the root that was given, as everything here does.
        let target = target.strip_prefix("/").map_or_else(|_| above.join(target), Path::to_owned);
        return make_through(root, &target, dir, links);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_that_lead_nowhere_are_followed_and_stay_below_the_root() {
        let dir = std::env::temp_dir().join(format!("skiff-mounts.{}", std::process::id()));
        let root = dir.join("root");
        std::fs::create_dir_all(root.join("etc")).expect("a directory");
        let link = |to: &str, name: &str| symlink(to, root.join(name)).expect("a link");
        link("../run/resolve/stub.conf", "etc/relative");
        link("/run/absolute/stub.conf", "etc/absolute");
        link("../../../../outside", "etc/out");
        link("loop", "etc/loop");
        link("/var/new", "here");
        let fd = open_dir(CWD, &root).expect("it opens");
        let make = |path: &str, dir| resolve_or_make(fd.as_fd(), Path::new(path), dir);
        for (path, made) in [
            ("etc/relative", "run/resolve/stub.conf"),
            ("etc/absolute", "run/absolute/stub.conf"),
            ("etc/out", "outside"),
            ("here/there", "var/new/there"),
        ] {
            make(path, false).expect(path);
            assert!(root.join(made).is_file(), "{path}");
        }
        assert_eq!(make("etc/loop", false).err(), Some(Errno::LOOP));
        assert!(!dir.join("outside").exists());
        std::fs::remove_dir_all(&dir).expect("it goes");
    }
}
