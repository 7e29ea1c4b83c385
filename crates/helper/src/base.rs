//! `base`: ids for a user namespace just made, and the layers below the user's own.
//!
//! The view of the host is an overlay over an id-mapped, read-only, non-recursive clone of `/`, mounted with credentials
//! that own nothing and have no capability over files. Overlayfs checks every access a second time with those, so
//! the kernel itself refuses what `other` may not do: a secret is safe the moment its mode says so, and no list can be
//! too short. That the user owns these files inside (uid 0 there is he) gives him no way around it.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, open_tree,
};
use rustix::thread::CapabilitySet;
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::ids::IdMap;
use skiff_sys::cred::FsIds;
use skiff_sys::mount::{MountAttr, set_id_map};
use skiff_sys::{caps, ns};

use crate::caller::Caller;
use crate::{mask, site};

/// An id that no file has: 2^32 - 2. (2^32 - 1 means "none" to the kernel.)
const NOBODY: u32 = u32::MAX - 1;

/// Answers the request: the number of ids inside, the stand-ins, the view.
pub fn give(caller: &Caller, pid: u32) -> Result<(u32, Vec<OwnedFd>)> {
    let (uids, gids) = site::ranges(caller)?;
    let target = Target::open(caller, pid)?;
    target.write_map("uid_map", &IdMap::new(caller.uid, Some(uids), &[]))?;
    target.write_map("gid_map", &IdMap::new(caller.gid, Some(gids), &caller.groups))?;
    let mask = mask::current()?;
    let attr = MountAttr::RDONLY.and(MountAttr::NOSUID).and(MountAttr::NODEV);
    let mask = id_mapped(mask.as_fd(), "", target.user_ns.as_fd(), attr).context(|| "stand-ins")?;
    let view = view(target.user_ns.as_fd(), attr)?;
    Ok((1 + uids.count.min(gids.count), vec![mask, view]))
}

/// The process whose user namespace gets its map.
struct Target {
    proc: OwnedFd,
    user_ns: OwnedFd,
}

impl Target {
    /// Opens it, if its user namespace was made by the caller directly below ours. Nothing else can gain by a map.
    fn open(caller: &Caller, pid: u32) -> Result<Self> {
        let name = format!("process {pid}");
        let path = format!("/proc/{pid}");
        let proc = openat(CWD, &path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .context(|| name.clone())?;
        let user_ns = open_ns(proc.as_fd(), "user").context(|| name.clone())?;
        check_owner(caller, user_ns.as_fd(), &name)?;
        Ok(Self { proc, user_ns })
    }

    /// Writes a map once; the kernel refuses a second time.
    fn write_map(&self, file: &str, map: &IdMap) -> Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = openat2(&self.proc, file, flags, Mode::empty(), resolve).context(|| file.to_owned())?;
        // The file stands for the namespace at the time of opening. The process may only ever move to namespaces further
        // down, so if it is still in the one checked, the file is that one's.
        let now = open_ns(self.proc.as_fd(), "user").context(|| file.to_owned())?;
        if !ns::same(now.as_fd(), self.user_ns.as_fd()).context(|| file.to_owned())? {
            return Err(Error::new("the process has changed its user namespace meanwhile"));
        }
        std::fs::File::from(fd).write_all(map.to_proc().as_bytes()).context(|| format!("writing {file}")).map_err(|e| {
            e.hint("administrator: the ids in /etc/subuid and /etc/subgid must be nobody's, the user's own not among them")
        })
    }
}

/// Opens a namespace of a process.
pub fn open_ns(proc: BorrowedFd<'_>, kind: &str) -> rustix::io::Result<OwnedFd> {
    // This one link of /proc must be followed: what it leads to is the namespace, whatever the process calls it.
    openat(proc, format!("ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Refuses unless `user_ns` was made by the caller directly below the user namespace we are in.
pub fn check_owner(caller: &Caller, user_ns: BorrowedFd<'_>, name: &str) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::new(format!("{name}: {why}")).hint("the helper serves only what you have made yourself"))
    };
    if !ns::is_user_ns(user_ns) {
        return refuse("that is no user namespace");
    }
    if ns::owner_uid(user_ns).context(|| name.to_owned())? != caller.uid {
        return refuse("its user namespace was made by somebody else");
    }
    let ours = open_ns(own_proc()?.as_fd(), "user").context(|| "own user namespace")?;
    match ns::parent(user_ns) {
        Ok(parent) if ns::same(parent.as_fd(), ours.as_fd()).context(|| name.to_owned())? => Ok(()),
        _ => refuse("it is not directly below the host's user namespace"),
    }
}

/// `/proc/self`.
pub fn own_proc() -> Result<OwnedFd> {
    openat(CWD, "/proc/self", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context(|| "/proc/self")
}

fn id_mapped(
    dir: BorrowedFd<'_>,
    path: &str,
    user_ns: BorrowedFd<'_>,
    attr: MountAttr,
) -> std::io::Result<OwnedFd> {
    // Not recursive: what is mounted below `/` (other disks, /proc, /home) is not part of the base.
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(dir, path, flags)?;
    set_id_map(tree.as_fd(), user_ns, attr)?;
    Ok(tree)
}

fn view(user_ns: BorrowedFd<'_>, attr: MountAttr) -> Result<OwnedFd> {
    let host = id_mapped(CWD, "/", user_ns, attr).context(|| "id-mapped mount of /").map_err(|e| {
        e.hint("the kernel (5.19 or newer) and the file system of / must support id-mapped mounts; SKIFF_HELPER=none does without")
    })?;
    // An overlay without upper wants two layers; the second is empty and of a file system of its own.
    let empty = memory().context(|| "empty layer")?;
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context(|| "overlay")?;
    let lower = format!("/proc/self/fd/{}:/proc/self/fd/{}/empty", host.as_raw_fd(), empty.as_raw_fd());
    as_nobody(|| {
        fsconfig_set_string(&fs, "source", "skiff-host")?;
        fsconfig_set_string(&fs, "lowerdir", &lower)?;
        // Whatever the kernel was built to do by default: nothing in the host's tree redirects the view.
        fsconfig_set_string(&fs, "redirect_dir", "nofollow")?;
        fsconfig_set_string(&fs, "metacopy", "off")?;
        fsconfig_create(&fs)
    })
    .context(|| "view of the host's root")
    .map_err(|e| e.hint("is / itself an overlay of overlays? `skiff doctor` says what the kernel can do"))?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr).context(|| "view of the host's root")
}

/// Does one thing with the credentials that the view is to have for good: nobody's ids, no groups, no capability but
/// the one that mounting takes.
fn as_nobody(act: impl FnOnce() -> rustix::io::Result<()>) -> std::io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    let ids = FsIds::become_(NOBODY, NOBODY)?;
    caps::effective_only(CapabilitySet::SYS_ADMIN)?;
    let done = act();
    drop(ids);
    caps::effective_all()?;
    Ok(done?)
}

fn memory() -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "mode", "755")?;
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    mkdirat(&mount, "empty", Mode::from_raw_mode(0o755))?;
    rustix::fs::chmodat(&mount, "empty", Mode::from_raw_mode(0o755), AtFlags::empty())?;
    Ok(mount)
}
