//! `base` and `image`: ids for a user namespace just made, and the layers below the user's own.
//!
//! The view of the host is an overlay over an id-mapped, read-only, non-recursive clone of `/`, mounted with credentials
//! that own nothing and have no capability over files. Overlayfs checks every access a second time with those, so
//! the kernel itself refuses what `other` may not do: a secret is safe the moment its mode says so, and no list can be
//! too short. That the user owns these files inside (they are uid 0 there) gives them no way around it.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};
use rustix::process::Gid;
use rustix::thread::{CapabilitySet, set_thread_groups};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::ids::IdMap;
use skiff_spec::image::ImageId;
use skiff_spec::site::Site;
use skiff_sys::cred::FsIds;
use skiff_sys::mount::{MountAttr, set_id_map};
use skiff_sys::{caps, ns};

use crate::caller::Caller;
use crate::files::NOBODY;
use crate::mask::{self, MaskGeneration};
use crate::namespaces::{check_owner, open_ns};
use crate::owned::{self, Owners};
use crate::{image, state};

/// What is given, and what is to be closed only after.
pub struct Given {
    /// How many ids there are inside.
    pub ids: u32,
    /// A snapshot's layers; the stand-ins and the view, or the image; then `/sys` of a network of the site's, if the caller is on one: detached mounts.
    pub mounts: Vec<OwnedFd>,
    /// The clone of `/` under the view. Nobody else may have it. To let go of it makes the kernel wait for a grace period, and
    /// whoever unmounts something meanwhile (the caller, the host's root) for that and another.
    pub host: Option<OwnedFd>,
}

/// What a user can take off again of the view and the stand-ins, as they are mounts of theirs: the file systems are read-only by themselves,
/// no file in them means anything outside as whose it is, and devices are opened with the rights of nobody. With images they
/// cannot (see `locked`).
const ATTRIBUTES: MountAttr = MountAttr::RDONLY.and(MountAttr::NOSUID).and(MountAttr::NODEV);

/// What the answer is made of and what does not depend on the process that it is for.
pub struct PreparedBase {
    ids: Ids,
    /// The layers of a snapshot, in the order in which they were asked for.
    layers: Vec<(ImageId, OwnedFd)>,
    below: Below,
}

/// What lies below the user's own.
enum Below {
    /// `owned`: the stand-ins as a copy for this user.
    Host {
        mask: MaskGeneration,
        owned: Option<OwnedFd>,
        root: OwnedFd,
    },
    Image {
        id: ImageId,
        root: OwnedFd,
    },
}

/// Answers [`Prepare`](skiff_spec::wire::Request::Prepare), and [`Layer`](skiff_spec::wire::Request::Layer) before it.
pub fn prepare(caller: &Caller, image: Option<ImageId>, layers: &[ImageId]) -> Result<PreparedBase> {
    let ids = Ids::of(caller)?;
    let layers = layers.iter().map(|id| Ok((*id, layer(caller, *id)?))).collect::<Result<_>>()?;
    let below = match image {
        Some(id) => Below::Image { id, root: image::open(caller, id)? },
        None => host(caller, &ids)?,
    };
    Ok(PreparedBase { ids, layers, below })
}

/// A layer, or a file with data, may go between the moment in which it was found in the store and this one.
fn layer(caller: &Caller, id: ImageId) -> Result<OwnedFd> {
    image::open(caller, id).map_err(|e| {
        Error::new(format!("layer, or mounted data: {}", e.message))
            .hint("try again; if that does not help, administrator: `skiff store verify`, or slurm.layers = \"unpacked\"")
    })
}

fn host(caller: &Caller, ids: &Ids) -> Result<Below> {
    let mask = mask::current(caller.uid)?;
    let owned = if owned::shared_will_do() {
        None
    } else {
        let owners = Owners { users: &ids.users, groups: &ids.groups };
        Some(owned::copy(mask.layers.as_fd(), &owners).context(|| "copy of the stand-ins")?)
    };
    // Not recursive: what is mounted below `/` (other disks, /proc, /home) is not part of the base.
    let root = open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .context(|| "/")?;
    Ok(Below::Host { mask, owned, root })
}

impl PreparedBase {
    /// Answers [`Base`](skiff_spec::wire::Request::Base) and [`Image`](skiff_spec::wire::Request::Image). Whoever owns the files in an image:
    /// inside they are of the user's ids.
    pub fn give(self, caller: &Caller, pid: u32) -> Result<Given> {
        let target = self.ids.give(caller, pid)?;
        let user_ns = target.user_ns.as_fd();
        let map = |(id, mount): (ImageId, OwnedFd)| {
            map_owners(mount.as_fd(), user_ns, &format!("layer {id}")).map(|()| mount)
        };
        let snapshot: Vec<OwnedFd> = self.layers.into_iter().map(map).collect::<Result<_>>()?;
        let (mounts, host) = match self.below {
            Below::Host { mask: MaskGeneration { layers, empty }, owned, root } => {
                let layers = match owned {
                    Some(owned) => owned,
                    None => map_owners(layers.as_fd(), user_ns, "the stand-ins").map(|()| layers)?,
                };
                map_owners(root.as_fd(), user_ns, "/")?;
                let view = view(&root, &empty, &self.ids.kept)?;
                (vec![layers, view], Some(root))
            }
            Below::Image { id, root } => {
                map_owners(root.as_fd(), user_ns, &format!("image {id}"))?;
                (vec![root], None)
            }
        };
        let devices = crate::network::devices()?;
        let mounts = snapshot.into_iter().chain(mounts).chain(devices).collect();
        Ok(Given { ids: self.ids.count, mounts, host })
    }
}

/// Gives the files of a mount to the ids of a user namespace.
fn map_owners(mount: BorrowedFd<'_>, user_ns: BorrowedFd<'_>, what: &str) -> Result<()> {
    set_id_map(mount, user_ns, ATTRIBUTES).context(|| format!("id-mapped mount of {what}")).map_err(|e| {
        e.hint(
            "the kernel (5.19 or newer) and the file system must support id-mapped mounts; SKIFF_HELPER=none does without",
        )
    })
}

/// The ids that a caller is to have in their user namespaces.
struct Ids {
    users: IdMap,
    groups: IdMap,
    /// The caller's groups that they must not leave.
    kept: Vec<Gid>,
    /// How many there are inside.
    count: u32,
}

impl Ids {
    fn of(caller: &Caller) -> Result<Self> {
        if caller.uid == 0 {
            return Err(
                Error::new("environments are for users, not for root").hint("su - USER, then try again")
            );
        }
        let (uids, gids) = caller.config.ranges(caller.uid)?;
        let groups = IdMap::new(caller.gid, Some(gids), &caller.groups);
        let kept = kept_groups(caller, &caller.config.site, &groups)?;
        let users = IdMap::new(caller.uid, Some(uids), &[]);
        Ok(Self { users, groups, kept, count: 1 + uids.count.min(gids.count) })
    }

    /// Gives them to the user namespace of `pid`.
    fn give(&self, caller: &Caller, pid: u32) -> Result<Target> {
        let target = Target::open(caller, pid)?;
        if !self.kept.is_empty() {
            // Before there is a map of groups nobody in there can have left one; after this nobody will.
            target.write("setgroups", "deny")?;
        }
        target.write("uid_map", &self.users.to_proc())?;
        target.write("gid_map", &self.groups.to_proc())?;
        Ok(target)
    }
}

/// The groups of a caller that they must not leave: being their member may deny them what `other` may do (mode 0604, say), and who has
/// subordinate groups could otherwise leave all of their own (CVE-2018-7169).
fn kept_groups(caller: &Caller, site: &Site, map: &IdMap) -> Result<Vec<Gid>> {
    if site.kept_groups.contains(&caller.gid) {
        return Err(Error::new(format!(
            "group {} is to be kept, but inside anybody can change his main group",
            caller.gid
        ))
        .hint("administrator: make it one of the user's other groups, or take it out of kept_groups"));
    }
    let kept: Vec<u32> = caller.groups.iter().filter(|g| site.kept_groups.contains(g)).copied().collect();
    // One without a place in the map would be no group of any file of the view.
    match kept.iter().find(|g| !map.lines().iter().any(|l| (l.inside, l.outside) == (**g, **g))) {
        Some(lost) => {
            Err(Error::new(format!("group {lost} is to be kept, but there are too many groups for it"))
                .hint("administrator: the user must be a member of fewer groups"))
        }
        None => Ok(kept.into_iter().map(Gid::from_raw).collect()),
    }
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

    /// Writes what the kernel takes once, before or with the maps.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = openat2(&self.proc, file, flags, Mode::empty(), resolve).context(|| file.to_owned())?;
        // The file stands for the namespace at the time of opening. The process may only ever move to namespaces further
        // down, so if it is still in the one checked, the file is that one's.
        let now = open_ns(self.proc.as_fd(), "user").context(|| file.to_owned())?;
        if !ns::same(now.as_fd(), self.user_ns.as_fd()).context(|| file.to_owned())? {
            return Err(Error::new("the process has changed its user namespace meanwhile"));
        }
        std::fs::File::from(fd).write_all(text.as_bytes()).context(|| format!("writing {file}")).map_err(|e| {
            e.hint("administrator: the ids in /etc/subuid and /etc/subgid must be nobody's, the user's own not among them")
        })
    }
}

/// The host's root, as far as `other` may read it, as a mount that hangs nowhere yet; `host` is the clone of it below.
fn view(host: &OwnedFd, empty: &OwnedFd, groups: &[Gid]) -> Result<OwnedFd> {
    // An overlay without upper wants two layers.
    let by_number = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let made = match overlay(&by_number(host), &by_number(empty), groups) {
        // Before Linux 6.15 a layer must hang in a namespace.
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => overlay_apart(host, groups),
        other => other,
    };
    made.context(|| "view of the host's root")
        .map_err(|e| e.hint("is / itself an overlay of overlays? `skiff doctor` says what the kernel can do"))
}

/// The same with a mount namespace of our own, in which the layers hang for as long as it takes.
fn overlay_apart(host: &OwnedFd, groups: &[Gid]) -> std::io::Result<OwnedFd> {
    skiff_sys::ns::unshare_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    let stage = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    for name in ["host", "empty"] {
        mkdirat(&stage, name, Mode::from_raw_mode(0o755))?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&stage, "", CWD, state::DIR, flags)?;
    move_mount(host, "", &stage, "host", flags)?;
    overlay(&format!("{}/host", state::DIR), &format!("{}/empty", state::DIR), groups)
}

/// An overlay of two layers that looks at them as nobody in these groups.
fn overlay(upper: &str, lower: &str, groups: &[Gid]) -> std::io::Result<OwnedFd> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    as_nobody(groups, || {
        fsconfig_set_string(&fs, "source", "skiff-host")?;
        fsconfig_set_string(&fs, "lowerdir", format!("{upper}:{lower}"))?;
        // Whatever the kernel was built to do by default: nothing in the host's tree redirects the view.
        fsconfig_set_string(&fs, "redirect_dir", "nofollow")?;
        fsconfig_set_string(&fs, "metacopy", "off")?;
        // A file handle would lead past directories that `other` may not search.
        fsconfig_set_string(&fs, "nfs_export", "off")?;
        fsconfig_create(&fs)
    })?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    Ok(fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)?)
}

/// Does one thing with the credentials that the view is to have for good: nobody's ids, no groups but these, no capability
/// but the one that mounting takes.
fn as_nobody(groups: &[Gid], act: impl FnOnce() -> rustix::io::Result<()>) -> std::io::Result<()> {
    if !groups.is_empty() {
        set_thread_groups(groups)?;
    }
    let ids = FsIds::become_(NOBODY, NOBODY)?;
    caps::effective_only(CapabilitySet::SYS_ADMIN)?;
    let done = act();
    drop(ids);
    caps::effective_all()?;
    if !groups.is_empty() {
        set_thread_groups(&[])?;
    }
    Ok(done?)
}
