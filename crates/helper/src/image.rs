//! Images of the trusted store as mounts.
//!
//! The kernel reads their files as root, so it gets only what our own writer has made and what its user, who is nobody's
//! login, alone can write: the place says so, not the caller, who names an image by its digest and nothing else. That they may
//! use it the writer has noted when they pulled it.
//!
//! There are no devices in the files that the writer makes. But no file of a store, whatever comes of its writer, is to be a way to the
//! machine's devices or to others' rights: so the flags against that are locked.
//!
//! An image is mounted once and kept, so that all who run it share what the kernel has read of it; what users get are copies
//! of that mount.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_NOW, fstat,
    fstatfs, mkdirat, openat, openat2, statat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::image::{ImageId, store};
use skiff_spec::site::{ImageFormat, Site};
use skiff_sys::IgnoreError;
use skiff_sys::cred::FsIds;
use skiff_sys::loopdev;
use skiff_sys::mount::{MountAttr, set_attributes};
use skiff_sys::verity::{self, Measured};

use crate::caller::Caller;
use crate::files::{FIRST_PERSON, refuse_unless_owned};
use crate::locked::lock_flags;
use crate::quota::Slot;
use crate::{files, mask, state};

/// Where images are mounted, each on a directory of its name.
const PLACE: &str = "images";
/// How many of them.
const MOST_KEPT: u64 = 200;
/// Seconds between two starts that are worth noting.
const NOTED_EVERY: u64 = 3600;
/// What an EROFS and a squashfs say of themselves in `statfs`.
const IMAGES: [u64; 2] = [0xE0F5_E1E2, 0x7371_7368];

/// The image as a mount that hangs nowhere yet.
pub fn open(caller: &Caller, id: ImageId) -> Result<OwnedFd> {
    let store = StoreDir::open(caller)?;
    store.check_permit(caller, id)?;
    let dir = place()?;
    let name = id.to_string();
    if let Some(mounted) = mounted(dir.as_fd(), &name) {
        return Ok(mounted);
    }
    // As for the stand-ins; two mounts of one image do no harm.
    let _maker = Slot::of_maker(caller.uid, mask::MAKING)?;
    if let Some(mounted) = mounted(dir.as_fd(), &name) {
        return Ok(mounted);
    }
    make_room(&dir)?;
    for _ in 0..mask::TRIES {
        if let Some(mounted) = mount_in(&dir, &store, id)? {
            return Ok(mounted);
        }
    }
    Err(Error::new(format!("image {id}: gone as soon as it was mounted")))
}

/// Mounts an image on its directory; nothing if another user's helper lets go of all this moment (see [`make_room`]).
fn mount_in(dir: &OwnedFd, store: &StoreDir, id: ImageId) -> Result<Option<OwnedFd>> {
    let (what, name) = (|| format!("image {id}"), id.to_string());
    let root = store
        .mount(id)?
        .context(what)
        .map_err(|e| e.hint("the kernel must have EROFS or squashfs (modprobe erofs); for squashfs, and before 6.12, also loop devices"))?;
    let made = mkdirat(dir, &name, Mode::from_raw_mode(0o700));
    made.or_else(|e| if e == Errno::EXIST { Ok(()) } else { Err(e) }).context(what)?;
    let root = lock_flags(&root)
        .context(what)
        .map_err(|e| e.hint("the kernel must let root make user namespaces (user.max_user_namespaces)"))?;
    match move_mount(&root, "", dir, &name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH) {
        Err(Errno::NOENT) => return Ok(None),
        moved => moved.context(what)?,
    }
    Ok(mounted(dir.as_fd(), &name))
}

/// Lets go of images that are no longer in the store: until then they take up its room. What runs on them goes on.
pub fn release(caller: &Caller) -> Result<()> {
    let store = StoreDir::open(caller)?;
    let_go(&place()?, |id| store.has_not(id))
}

/// The number of mounts on a machine is limited, and every mount namespace begins with a copy of all: nobody shall fill it with images. So
/// when there are many, all are let go, and those that are in use come back at their next start.
fn make_room(dir: &OwnedFd) -> Result<()> {
    // Each directory in it is a link to it.
    if fstat(dir).context(|| PLACE)?.st_nlink <= MOST_KEPT + 2 { Ok(()) } else { let_go(dir, |_| true) }
}

fn let_go(dir: &OwnedFd, unneeded: impl Fn(ImageId) -> bool) -> Result<()> {
    for entry in Dir::read_from(dir).context(|| PLACE)? {
        let entry = entry.context(|| PLACE)?;
        let Some(id) = entry.file_name().to_str().ok().and_then(|n| n.parse::<ImageId>().ok()) else {
            continue;
        };
        if unneeded(id) {
            unmount_all(dir.as_fd(), &id.to_string());
        }
    }
    Ok(())
}

/// Best effort: what stays is found the next time.
fn unmount_all(dir: BorrowedFd<'_>, name: &str) {
    let place = format!("{}/{PLACE}/{name}", state::DIR);
    while unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
    unlinkat(dir, name, AtFlags::REMOVEDIR)
        .ignore_error("a directory that is in use is removed the next time");
}

/// `/run/skiff/images`, for root alone.
fn place() -> Result<OwnedFd> {
    let parent = state::dir()?;
    let what = || format!("{}/{PLACE}", state::DIR);
    match mkdirat(&parent, PLACE, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e).context(what),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(&parent, PLACE, flags, Mode::empty()).context(what)
}

/// A copy of the mount that is kept; nothing if there is none.
fn mounted(dir: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(dir, name, flags).ok()?;
    IMAGES.contains(&(fstatfs(&copy).ok()?.f_type as u64)).then_some(copy)
}

fn mount_as(format: ImageFormat, source: &str) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen(format.name(), FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", source)?;
    fsconfig_set_flag(&fs, "ro")?;
    fsconfig_create(&fs)?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)
}

/// The trusted store.
pub struct StoreDir {
    path: String,
    dir: OwnedFd,
    owner: u32,
    group: u32,
    /// What the administrator says of [`StoreDir::format`].
    format: Option<ImageFormat>,
}

impl StoreDir {
    /// Opens it, if nobody but root can have put it there and nobody but a system user can write to it.
    pub fn open(caller: &Caller) -> Result<Self> {
        let Site { store: path, image_format: format, .. } = caller.config.site.clone();
        let what = || format!("store {path}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir =
            openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).context(what).map_err(
                |e| e.hint("administrator: libexec/skiff/make-store makes it, for a system user of its own"),
            )?;
        files::check_parents(&path)?;
        let stat = fstat(&dir).context(what)?;
        refuse_unless_owned(&stat, Path::new(&path), 0o022, FIRST_PERSON - 1).map_err(|e| {
            e.hint("it must belong to a system user (uid below 1000) and be writable by nobody else")
        })?;
        Ok(Self { path, dir, owner: stat.st_uid, group: stat.st_gid, format })
    }

    /// Where it is.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whose it is: user and group.
    pub fn owner(&self) -> (u32, u32) {
        (self.owner, self.group)
    }

    /// The image as a detached mount, for another mount namespace.
    pub fn tree(&self) -> std::io::Result<OwnedFd> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&self.dir, "", flags)?;
        set_attributes(tree.as_fd(), MountAttr::NOSUID.and(MountAttr::NODEV).and(MountAttr::NOEXEC), false)?;
        Ok(tree)
    }

    /// As what its images are mounted here.
    pub fn format(&self) -> ImageFormat {
        let found = || match fsopen(ImageFormat::Erofs.name(), FsOpenFlags::FSOPEN_CLOEXEC) {
            Err(Errno::NODEV) => ImageFormat::Squashfs,
            _ => ImageFormat::Erofs,
        };
        self.format.unwrap_or_else(found)
    }

    /// An image, mounted anew.
    fn mount(&self, id: ImageId) -> Result<std::io::Result<OwnedFd>> {
        let format = self.format();
        let name = match format {
            ImageFormat::Erofs => store::image(id),
            ImageFormat::Squashfs => store::squashfs(id),
        };
        let file = self.file(id, &name)?;
        let by_file = match format {
            ImageFormat::Erofs => {
                self.as_owner(|| mount_as(format, &skiff_sandbox::mounts::by_number(file.as_fd())))?
            }
            ImageFormat::Squashfs => Err(Errno::NOTBLK),
        };
        // Before Linux 6.12, and where the file system of the store cannot: by way of a block device.
        if matches!(by_file, Err(Errno::NOTBLK | Errno::OPNOTSUPP)) {
            let device = loopdev::attach_read_only(file.as_fd());
            return Ok(device.and_then(|device| Ok(mount_as(format, &device.path())?)));
        }
        Ok(by_file.map_err(Into::into))
    }

    /// Whether an image is certainly not there. (One that cannot be opened for another reason, as by a caller's limits, is.)
    fn has_not(&self, id: ImageId) -> bool {
        let found = self.as_owner(|| statat(&self.dir, store::image(id), AtFlags::SYMLINK_NOFOLLOW));
        matches!(found, Ok(Err(Errno::NOENT)))
    }

    /// An image's file of this name.
    fn file(&self, id: ImageId, name: &str) -> Result<OwnedFd> {
        let what = || format!("image {id}: {name}");
        let missing = |e: Error| e.hint("`skiff pull` or `skiff import` makes it again");
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = || openat2(&self.dir, name, flags, Mode::empty(), resolve);
        let file = self.as_owner(open)?.context(what).map_err(missing)?;
        let stat = fstat(&file).context(what)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !self.wrote(&stat) {
            return Err(Error::new(format!("{}: its file is not the store's own", what()))
                .hint("administrator: somebody else has written into the store; `skiff store verify`"));
        }
        self.check_verity(&file, id, name)?;
        Ok(file)
    }

    /// Refuses a file that the kernel does not hold to the digest that was noted when the image was made. (Without a note it was made where
    /// fs-verity could not be enabled; on a file system without fs-verity a note came along with a copy of the store.)
    fn check_verity(&self, file: &OwnedFd, id: ImageId, name: &str) -> Result<()> {
        let what = || format!("image {id}: {name}");
        let measured = verity::measure(file.as_fd()).context(what)?;
        if measured == Measured::Unsupported {
            return Ok(());
        }
        let note = store::verity(name);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let read = || -> rustix::io::Result<_> {
            let note = openat(&self.dir, &note, flags, Mode::empty())?;
            let mut noted = [0; 33];
            let length = pread(&note, &mut noted, 0)?;
            Ok(noted[..length].to_vec())
        };
        let fault = match (self.as_owner(read)?, measured) {
            (Ok(noted), Measured::Digest(digest)) if noted == digest => return Ok(()),
            (Err(Errno::NOENT), _) => return Ok(()),
            (Ok(_), Measured::Nothing) => "it has lost its fs-verity",
            (Ok(_), _) => "its fs-verity digest is not the one noted",
            (Err(e), _) => return Err(e).context(what),
        };
        let (path, hint) = (&self.path, "then `skiff pull` makes it again");
        Err(Error::new(format!("{}: {fault}", what()))
            .hint(format!("administrator: rm {path}/{name} {path}/{note}; {hint}")))
    }

    /// Refuses a user who has not shown that they may have the image.
    fn check_permit(&self, caller: &Caller, id: ImageId) -> Result<()> {
        let look = || statat(&self.dir, store::permit(caller.uid, id), AtFlags::SYMLINK_NOFOLLOW);
        match self.as_owner(look)? {
            Ok(stat) if self.wrote(&stat) => self.note_use(caller, id, stat.st_mtime),
            _ => Err(Error::new(format!("image {id}: not yours on this host")).hint("`skiff pull` gets it")),
        }
    }

    /// Sets the time of the permit, by which the store's collection knows what was not used for longest.
    fn note_use(&self, caller: &Caller, id: ImageId, last: i64) -> Result<()> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .default_on_error("a clock before 1970 notes no use")
            .as_secs();
        if now.saturating_sub_signed(last) < NOTED_EVERY {
            return Ok(());
        }
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let permit = store::permit(caller.uid, id);
        self.as_owner(|| {
            utimensat(&self.dir, permit, &times, AtFlags::SYMLINK_NOFOLLOW)
                .ignore_error("a store that takes no changes is good enough to run from")
        })
    }

    /// Looks into it as its owner: nobody else may, and on a file server root is nobody.
    fn as_owner<T>(&self, look: impl FnOnce() -> T) -> Result<T> {
        let _owner =
            FsIds::become_(self.owner, self.group).context(|| format!("owner of store {}", self.path))?;
        Ok(look())
    }

    fn wrote(&self, stat: &Stat) -> bool {
        stat.st_uid == self.owner && stat.st_mode & 0o022 == 0
    }
}
