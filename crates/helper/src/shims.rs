//! The layer of shims: a link to Skiff in the place of each command that by default the host runs for those inside (`srun`,
//! `sbatch` ...). Which these are is written in the program, so no configuration is read for it; whoever configured others
//! makes a layer of their own. What leads `ssh` of root inside to the user's keys is in it, too. Kept, like the stand-ins, because to make it takes 80 microseconds of every start.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, statat, symlinkat};
use rustix::io::Errno;
use skiff_sandbox::ssh_user;
use skiff_spec::config::Slurm;
use skiff_spec::plan::inside;

use crate::stand_ins::set_like;

/// The layer's name.
const LAYER: &str = "shims";

/// Makes the layer in `layers`.
pub fn fill(layers: BorrowedFd<'_>) -> rustix::io::Result<()> {
    mkdirat(layers, LAYER, Mode::from_raw_mode(0o755))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let layer = openat(layers, LAYER, flags, Mode::empty())?;
    let host = openat(CWD, "/", flags, Mode::empty())?;
    for shim in Slurm::default().shims() {
        put(host.as_fd(), layer.as_fd(), &shim)?;
    }
    let home = place_of(host.as_fd(), layer.as_fd(), ssh_user::ROOTS_HOME)?;
    home.map_or(Ok(()), |home| ssh_user::put_link(home.as_fd()))?;
    let configurations = place_of(host.as_fd(), layer.as_fd(), ssh_user::CONFIGURATIONS)?;
    configurations.map_or(Ok(()), |dir| ssh_user::put_configuration(dir.as_fd()))
}

/// The layer's directory for one that the host may lack, as a host without OpenSSH has no place for its configuration.
fn place_of(host: BorrowedFd<'_>, layer: BorrowedFd<'_>, dir: &str) -> rustix::io::Result<Option<OwnedFd>> {
    Path::new(dir).canonicalize().ok().map(|dir| place(host, layer, &dir)).transpose()
}

/// Puts one link, if the host has the command.
fn put(host: BorrowedFd<'_>, layer: BorrowedFd<'_>, shim: &Path) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (shim.parent(), shim.file_name()) else { return Ok(()) };
    if statat(host, shim, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return Ok(());
    }
    // Where a link leads to a directory, its own place must stay that link.
    let Ok(parent) = parent.canonicalize() else { return Ok(()) };
    match symlinkat(inside::PROGRAM, place(host, layer, &parent)?, name) {
        // Two of these directories may be one.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e),
    }
}

/// The layer's directory `path`, made as the host's is: the topmost layer that has a directory supplies its owner and mode.
fn place(host: BorrowedFd<'_>, layer: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = |at: BorrowedFd<'_>, name: &Path| openat(at, name, flags, Mode::empty());
    let (mut theirs, mut ours) = (open(host, Path::new("."))?, open(layer, Path::new("."))?);
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let like = statat(&theirs, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match mkdirat(&ours, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => set_like(ours.as_fd(), name, &like)?,
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        (theirs, ours) = (open(theirs.as_fd(), name.as_ref())?, open(ours.as_fd(), name.as_ref())?);
    }
    Ok(ours)
}
