//! `/dev` of a container: the host's own nodes, as nobody without privilege can make one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, symlinkat};
use rustix::io::Errno;
use skiff_sandbox::mounts::{attach_to, bind_one, resolve_or_make};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::mount::{MountAttr, set_attributes};

use crate::config::{BundleConfig, ListedDevice};
use crate::log::Log;
use crate::mount_options::MountOptions;

/// What every container has: name, major and minor number.
const USUAL: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Puts the usual devices and those of the configuration into the root, if its `/dev` is not one that exists outside.
///
/// # Errors
/// A device that the host does not have.
pub fn make(root: BorrowedFd<'_>, config: &BundleConfig, log: &Log) -> Result<()> {
    let is_shown = config.mounts.iter().any(|mount| {
        let is_bind = MountOptions::of(mount).is_ok_and(|options| options.bind.is_some());
        is_bind && mount.destination == Path::new("/dev")
    });
    if is_shown {
        return Ok(());
    }
    for (name, major, minor) in USUAL {
        put(root, &Path::new("/dev").join(name), ("c", major, minor), false)?;
    }
    for device in &config.linux.devices {
        let path = &device.path;
        let is_usual = USUAL.iter().any(|(name, ..)| path == &Path::new("/dev").join(name));
        if !is_usual {
            listed(root, device, log).map_err(|e| e.about(&format!("linux.devices: {}", path.display())))?;
        }
    }
    let dev = resolve_or_make(root, Path::new("dev"), true).context(|| "/dev")?;
    for (name, target) in LINKS {
        match symlinkat(target, &dev, name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e).context(|| format!("/dev/{name}")),
        }
    }
    Ok(())
}

fn listed(root: BorrowedFd<'_>, device: &ListedDevice, log: &Log) -> Result<()> {
    let kind = match &*device.kind {
        "c" | "u" => "c",
        "b" => "b",
        "p" => return Err(Fault::new("named pipes are not made").hint("put one into the image")),
        other => return Err(Fault::new(format!("type {other}: no such type"))),
    };
    let number = |of: Option<i64>| of.and_then(|of| u32::try_from(of).ok());
    let (Some(major), Some(minor)) = (number(device.major), number(device.minor)) else {
        return Err(Fault::new("no major and minor number"));
    };
    if !device.path.starts_with("/dev") {
        return Err(Fault::new("without privilege devices are only in /dev"));
    }
    let stat = put(root, &device.path, (kind, major, minor), true)?;
    let differs = |wanted: Option<u32>, found: u32| wanted.is_some_and(|wanted| wanted != found);
    let has_other_mode = differs(device.file_mode.map(|mode| mode & 0o777), stat.st_mode & 0o777);
    if has_other_mode || differs(device.uid, stat.st_uid) || differs(device.gid, stat.st_gid) {
        log.warn(&format!("linux.devices: {}: has the host's mode and owner", device.path.display()));
    }
    Ok(())
}

/// Shows the host's node of that path and number.
fn put(
    root: BorrowedFd<'_>,
    path: &Path,
    (kind, wanted_major, wanted_minor): (&str, u32, u32),
    is_listed: bool,
) -> Result<Stat> {
    let name = || format!("device {}", path.display());
    let node =
        open(path).context(name).map_err(|e| e.hint("only devices that this host has can be given"))?;
    let stat = fstat(&node).context(name)?;
    let is_kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => kind == "c",
        FileType::BlockDevice => kind == "b",
        _ => false,
    };
    let (its_major, its_minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    if !is_kind || (its_major, its_minor) != (wanted_major, wanted_minor) {
        return Err(Fault::new(format!(
            "{}: the host has {its_major}:{its_minor} there, not {kind} {wanted_major}:{wanted_minor}",
            name()
        ))
        .hint("only devices that this host has can be given"));
    }
    let mount = bind_one(node.as_fd()).context(name)?;
    if is_listed {
        set_attributes(mount.as_fd(), MountAttr::NOSUID.and(MountAttr::NOEXEC), false).context(name)?;
    }
    let at = resolve_or_make(root, path.strip_prefix("/").unwrap_or(path), false).context(name)?;
    attach_to(&mount, &at).context(name)?;
    Ok(stat)
}

/// A node of the host's.
///
/// # Errors
/// The system's.
pub fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
