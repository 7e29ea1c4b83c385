//! Where the directory of all containers is, and whom it may belong to.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault, Result};

/// Where containers are noted if nothing else is said: below `XDG_RUNTIME_DIR`, which goes with the user's last session; else below `/tmp`.
pub fn usual() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    runtime.map_or_else(
        || PathBuf::from(format!("/tmp/skiff-oci.{}", geteuid().as_raw())),
        |dir| dir.join("skiff-oci"),
    )
}

/// Makes directories for the user alone.
///
/// # Errors
/// The system's.
pub fn make_all(path: &Path) -> rustix::io::Result<()> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Err(Errno::NOENT) => {
            make_all(path.parent().ok_or(Errno::NOENT)?)?;
            make_all(path)
        }
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Opens a directory that is no link.
///
/// # Errors
/// The system's.
pub fn open_dir(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Whether this process is root of the host, not of a user namespace.
///
/// # Errors
/// When `/proc` does not tell.
pub fn is_host_root() -> Result<bool> {
    let map = std::fs::read_to_string("/proc/self/uid_map").context(|| "/proc/self/uid_map")?;
    Ok(geteuid().is_root() && map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Opens a directory that must be the caller's own; nothing if it is missing.
///
/// # Errors
/// When it cannot be had, or is somebody else's.
pub fn find_own(path: &Path) -> Result<Option<OwnedFd>> {
    let name = || format!("directory of containers {}", path.display());
    let dir = match open_dir(CWD, path) {
        Err(Errno::NOENT) => return Ok(None),
        dir => dir.context(name)?,
    };
    let stat = fstat(&dir).context(name)?;
    if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        let (uid, mode) = (stat.st_uid, stat.st_mode & 0o7777);
        return Err(Fault::new(format!("{}: user {uid}, mode {mode:o}: others could change it", name()))
            .hint("name a directory of your own with --root"));
    }
    if is_host_root()? {
        return Err(roots_own(path));
    }
    Ok(Some(dir))
}

/// Opens a directory, for root, who becomes its owner for good; nothing if it is missing. With it, whether it is another's. No part of its
/// path may be one that a third user can exchange: they would choose whom root becomes, and where.
///
/// # Errors
/// When it cannot be had, or is not to be trusted.
pub fn find_as_root(path: &Path) -> Result<Option<(OwnedFd, bool)>> {
    let name = || format!("directory of containers {}", path.display());
    let path = &std::path::absolute(path).context(name)?;
    let owner = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat.context(name)?.st_uid,
    };
    if owner == geteuid().as_raw() {
        return Ok(find_own(path)?.map(|dir| (dir, false)));
    }
    let about = |e: skiff_site::Error| Fault::from(e).about("directory of containers");
    let Some(dir) = TrustedDir::find(path, owner).map_err(about)? else { return Ok(None) };
    let dir = dir.private().map_err(about)?;
    become_user(owner).map_err(|e| e.about(&name()))?;
    Ok(Some((dir.readable().map_err(about)?, true)))
}

fn roots_own(path: &Path) -> Fault {
    Fault::new(format!(
        "directory of containers {}: it is the host's root's, who has no containers",
        path.display()
    ))
    .hint("name a user's directory with --root; root becomes that user for the call")
}

/// With the group of the user's account: that of a directory may be any that its owner could give it.
fn become_user(uid: u32) -> Result<()> {
    let user = skiff_site::account::user(uid).ok_or_else(|| {
        Fault::new(format!("user {uid}: there is no such account"))
            .hint("root becomes only users that it knows")
    })?;
    let about = || format!("user {uid}");
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(user.gid));
    set_thread_groups(&[]).context(about)?;
    set_thread_res_gid(gid, gid, gid).context(about)?;
    set_thread_res_uid(uid, uid, uid).context(about)
}
