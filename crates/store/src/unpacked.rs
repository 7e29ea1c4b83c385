//! An image without the helper: its files in a directory of the user's, unpacked at its first run. A user may not have the kernel
//! mount their files, but they may have it stack their directories.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, open, openat,
    utimensat,
};
use skiff_erofs as erofs;
use skiff_image::unpack::{LeftOut, unpack};
use skiff_sandbox::visit::as_root_of_ids;
use skiff_site::TrustedDir;
use skiff_spec::fault::{self, Context as _, Fault};
use skiff_spec::image::{ImageId, store as names};
use skiff_spec::plan::Base;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::client;
use crate::error::{Result, ours};
use crate::store::Store;

/// Where an image's files are; unpacks them if nobody has yet. What the user should know of that is passed to `note`.
///
/// # Errors
/// The image is not there, or cannot be unpacked.
pub fn tree(context: &UserContext, id: ImageId, note: fn(&str)) -> Result<PathBuf> {
    let (all, tree) = (home(context), path(context, id));
    note_use(context, id);
    if tree.exists() {
        return Ok(tree);
    }
    let what = || all.display().to_string();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&all).context(what)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = open(all.join(format!("{id}.lock")), flags, Mode::from_raw_mode(0o600)).context(what)?;
    flock(&lock, FlockOperation::LockExclusive).context(what)?;
    if !tree.exists() {
        note(
            "unpacking the image, as there is no helper that would have it mounted; the next start will not have to",
        );
        let left_out = fill(context, id, &tree)?;
        tell(left_out, note);
    }
    Ok(tree)
}

/// Where they are, or will be.
pub fn path(context: &UserContext, id: ImageId) -> PathBuf {
    home(context).join(id.to_string())
}

/// As the helper does in the trusted store: what was not used for longest is collected first.
fn note_use(context: &UserContext, id: ImageId) {
    let permit = client::own(context).join(names::permit(context.uid, id));
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    utimensat(CWD, &permit, &times, AtFlags::SYMLINK_NOFOLLOW)
        .ignore_error("a store that takes no changes is good enough to run from");
}

fn fill(context: &UserContext, id: ImageId, tree: &std::path::Path) -> Result<LeftOut> {
    let new = tree.with_extension("new");
    remove(context, &new)?;
    let store = client::own(context);
    let unpacked: fault::Result<[u64; 4]> = as_root_of_ids(None, Base::Host, |_| {
        let what = || new.display().to_string();
        let file = Store::open(&store).and_then(|store| store.open_image(id)).map_err(ours)?;
        let reader = erofs::Reader::open(file, id.to_string()).map_err(ours)?;
        fs::create_dir(&new).context(what)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let target = openat(CWD, &new, flags, Mode::empty()).context(what)?;
        let LeftOut { devices, sockets, owners, xattrs } =
            unpack(&reader, std::os::fd::AsFd::as_fd(&target)).map_err(ours)?;
        rustix::fs::syncfs(&target).context(what)?;
        Ok([devices, sockets, owners, xattrs])
    });
    if unpacked.is_err() {
        remove(context, &new).ignore_error("the first error is the one to tell");
    }
    let [devices, sockets, owners, xattrs] = unpacked?;
    fs::rename(&new, tree).context(|| tree.display().to_string())?;
    Ok(LeftOut { devices, sockets, owners, xattrs })
}

fn tell(left_out: LeftOut, note: fn(&str)) {
    left_out.notes().iter().for_each(|text| note(text));
    if left_out.owners > 0 {
        note(&format!("{} files belong to root inside, as you have no id for their owners", left_out.owners));
    }
}

/// Removes an image's files.
pub fn forget(context: &UserContext, id: ImageId) -> Result<()> {
    let tree = path(context, id);
    remove(context, &tree)?;
    match fs::remove_file(tree.with_extension("lock")) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).context(|| tree.display().to_string())?
        }
        _ => Ok(()),
    }
}

/// As root of the user's ids: some of the files belong to others of them.
fn remove(context: &UserContext, tree: &std::path::Path) -> Result<()> {
    if !tree.exists() || context.helper.is_some() {
        return Ok(());
    }
    let (Some(all), Some(name)) = (tree.parent(), tree.file_name()) else { return Ok(()) };
    let all = TrustedDir::open(all, context.uid).map_err(Fault::from)?;
    Ok(as_root_of_ids(None, Base::Host, |_| Ok(all.remove_tree(name)?))?)
}

fn home(context: &UserContext) -> PathBuf {
    client::own(context).join("trees")
}
