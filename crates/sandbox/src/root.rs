//! Builds the root of an environment and moves into it. Runs in the new namespaces, as root of them.
//!
//! Every source is opened before anything is mounted, so that what a mount covers can still be the source of another, and
//! every target is resolved inside the new root, so that no symbolic link there leads a mount out of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{readlinkat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsopen, unmount,
};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::plan::{Base, Source, Upper, inside};
use skiff_sys::IgnoreError;
use skiff_sys::mount::{MountAttr, set_attributes};

use crate::helper::Layers;
use crate::many_layers;
use crate::mounts::{
    as_root_mount, attach_to, bind_one, by_number, is_dir, is_empty_dir, resolve, resolve_or_make,
};
use crate::rootfs_inputs::{Opened, PLACE, RootfsInputs, Shims};
use crate::ssh_user;
use crate::{accounts, devices, mtab};

/// Stacks the layers, mounts the rest, makes it `/`. When it hangs at [`crate::rootfs_inputs::ROOT`], with nothing mounted on it yet, `hung` is called.
pub fn build(inputs: &mut RootfsInputs<'_>, layers: &Layers, hung: impl FnOnce()) -> Result<()> {
    let below = inputs.plan.stored_layers.len().min(layers.stored.len());
    let (below, data) = layers.stored.split_at(below);
    let data = data.iter().map(OwnedFd::try_clone).collect::<std::io::Result<Vec<_>>>();
    inputs.take_images(data.context(|| "descriptors of images")?)?;
    inputs.complete(layers.devices.as_ref())?;
    // Before Linux 6.15 the kernel takes as layers only mounts that hang in a namespace of ours.
    if let Some(mask) = &layers.mask {
        inputs.hang(mask, "mask")?;
    }
    inputs.hang(&layers.view, "view")?;
    for (number, layer) in below.iter().enumerate() {
        inputs.hang(layer, &stored(number))?;
    }
    let root = stack(inputs)?;
    inputs.hang(&root, "root")?;
    hung();
    accounts::add(root.as_fd(), &inputs.plan.accounts)?;
    if inputs.plan.base != Base::Host && !inputs.plan.is_bare() {
        mtab::make(root.as_fd()).ignore_error("programs that look there do without, as in the image alone");
    }
    furnish(root.as_fd(), inputs, layers.mask.as_ref().map(|_| &layers.view))
}

/// Mounts everything on the new root, which hangs somewhere, and makes it `/`.
pub fn furnish(root: BorrowedFd<'_>, inputs: &RootfsInputs<'_>, view: Option<&OwnedFd>) -> Result<()> {
    let fitting = devices::select_modules(root, &inputs.plan.devices)?;
    for Opened { mount, shown } in &inputs.sources {
        if fitting.without.contains(&mount.target) {
            continue;
        }
        if let Some(shown) = shown {
            if matches!(mount.source, Source::WorkingDir(_))
                && !is_vacant(root, &mount.target, inputs.plan.base)
            {
                continue;
            }
            place(root, shown, &mount.target)?;
            if mount.source == Source::Terminals {
                multiplexer(root, &mount.target)?;
            }
        } else if mount.source == Source::Volume {
            volume(root, &mount.target)?;
        }
    }
    if !inputs.plan.is_bare() {
        place(root, &inputs.program, Path::new(inside::PROGRAM))?;
    }
    for (mount, target) in [(view, inside::HOST), (inputs.socket.as_ref(), inside::SOCKET)] {
        if let Some(mount) = mount {
            place(root, mount, Path::new(target))?;
        }
    }
    for (mount, target) in devices::make(root, inputs, fitting)? {
        place(root, &mount, &target)?;
    }
    if let Some(user) = &inputs.plan.ssh_user {
        let is_kept = matches!(inputs.plan.upper, Upper::Directory(_));
        ssh_user::tell(root, user, is_kept)
            .ignore_error("without it ssh asks for root's keys, and all else works");
    }
    if inputs.plan.read_only {
        set_attributes(root, MountAttr::RDONLY, false).context(|| "read-only root")?;
    }
    enter(root)
}

/// The overlay: upper, snapshots, shims, stand-ins, the host's view; one mount.
fn stack(inputs: &RootfsInputs<'_>) -> Result<OwnedFd> {
    let plan = inputs.plan;
    let (upper, work) = (inputs.own("upper", 0o755)?, inputs.own("work", 0o700)?);
    let mut lower: Vec<String> = inputs.layers.iter().map(|fd| by_number(fd.as_fd())).collect();
    // By where they hang: a number takes 10 microseconds to look up.
    let at = |name: &str| format!("{PLACE}/{name}");
    lower.extend(plan.stored_layers.iter().enumerate().map(|(number, _)| at(&stored(number))));
    match &inputs.shims {
        Shims::Usual => lower.push(at("mask/shims")),
        Shims::These(shims) if shims.is_empty() => {}
        Shims::These(shims) => {
            let layer = inputs.dir("shims", 0o755)?;
            put_shims(shims, layer.as_fd())?;
            if plan.ssh_user.is_some() {
                ssh_user::lead(layer.as_fd()).context(|| "layer of shims")?;
            }
            lower.push(at("shims"));
        }
    }
    if plan.base == Base::Host {
        lower.extend(["mask/shown", "mask/hidden"].map(at));
    }
    lower.push(at("view"));
    let own = |fd: &OwnedFd, name: &str| match plan.upper {
        Upper::Directory(_) | Upper::Scratch(_) => by_number(fd.as_fd()),
        Upper::Memory { .. } => at(&format!("own.{name}")),
    };
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context(|| "overlay")?;
    let is_volatile = matches!(plan.upper, Upper::Memory { .. } | Upper::Scratch(_));
    let is_many = many_layers::are_many(&lower);
    if is_many {
        inputs.dir("stacked", 0o755)?;
    }
    let make = || -> rustix::io::Result<OwnedFd> {
        if is_many {
            let mut options = format!("upperdir={},workdir={}", own(&upper, "upper"), own(&work, "work"));
            options.push_str(if is_volatile { ",volatile" } else { "" });
            options.push_str(if plan.dumpable { ",xino=on" } else { "" });
            return many_layers::stack(&at("stacked"), &lower, &options);
        }
        fsconfig_set_flag(&fs, "userxattr")?;
        fsconfig_set_string(&fs, "source", "skiff")?;
        fsconfig_set_string(&fs, "lowerdir", lower.join(":"))?;
        fsconfig_set_string(&fs, "upperdir", own(&upper, "upper"))?;
        fsconfig_set_string(&fs, "workdir", own(&work, "work"))?;
        if is_volatile {
            fsconfig_set_flag(&fs, "volatile")?;
        }
        if plan.dumpable {
            fsconfig_set_string(&fs, "xino", "on")?;
        }
        fsconfig_create(&fs)?;
        as_root_mount(&fs)
    };
    let root = make().map_err(|e| {
        let said = kernel_words(fs.as_fd());
        Fault::new(format!("overlay of environment {}: {e}{said}", plan.name))
            .hint("`skiff doctor` checks the kernel and the file system that holds the environment")
    })?;
    let read_only = rustix::fs::fstatvfs(&root).context(|| "overlay")?.f_flag;
    if read_only.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(Fault::new(format!(
            "overlay of environment {}: the kernel made it read-only",
            plan.name
        ))
        .hint("its upper directory's file system lacks user extended attributes or belongs to other ids"));
    }
    Ok(root)
}

/// Where a layer of the store is attached.
fn stored(number: usize) -> String {
    format!("layer.{number}")
}

/// Links at the places of the commands that the host must run.
fn put_shims(shims: &[&Path], layer: BorrowedFd<'_>) -> Result<()> {
    let mut last: Option<(&Path, OwnedFd)> = None;
    for shim in shims {
        let name = || format!("shim {}", shim.display());
        let Some((parent, file)) = shim.parent().zip(shim.file_name()) else { continue };
        let dir = match last.take().filter(|(path, _)| *path == parent) {
            Some((_, dir)) => dir,
            None => resolve_or_make(layer, parent.strip_prefix("/").unwrap_or(parent), true).context(name)?,
        };
        symlinkat(inside::PROGRAM, &dir, file).context(name)?;
        last = Some((parent, dir));
    }
    Ok(())
}

/// Whether the root has nothing at `target`. An image's empty directory is a place for a mount; over the host's root it is the host's own, and
/// takes the environment's changes.
fn is_vacant(root: BorrowedFd<'_>, target: &Path, base: Base) -> bool {
    match resolve(root, target.strip_prefix("/").unwrap_or(target)) {
        Err(e) => e == Errno::NOENT,
        Ok(found) => base != Base::Host && is_empty_dir(found.as_fd()),
    }
}

/// Hangs a mount into the root at `target`, making the place if there is none.
fn place(root: BorrowedFd<'_>, mount: &OwnedFd, target: &Path) -> Result<()> {
    let shown = || format!("mount on {}", target.display());
    let relative =
        target.strip_prefix("/").map_err(|_| Fault::new(format!("{}: not an absolute path", shown())))?;
    let dir = is_dir(mount.as_fd())?;
    let at = match resolve_or_make(root, relative, dir) {
        // /dev is the host's: what it has no place for stays away.
        Err(Errno::ROFS | Errno::PERM | Errno::ACCESS) if target.starts_with("/dev") => return Ok(()),
        other => other.context(shown)?,
    };
    attach_to(mount, &at).context(shown).map_err(|e| match is_dir(at.as_fd()) {
        Ok(place) if place != dir => e.hint("a file mounts on a file, a directory on a directory"),
        _ => e,
    })
}

/// Mounts a directory of the root on itself: this mount stays writable when the root's is not any more. What is written goes where the
/// root's changes go.
fn volume(root: BorrowedFd<'_>, target: &Path) -> Result<()> {
    let shown = || format!("volume {}", target.display());
    let at = resolve_or_make(root, target.strip_prefix("/").unwrap_or(target), true).context(shown)?;
    // An image may say so of a file; Docker would not run it.
    if !is_dir(at.as_fd())? {
        return Ok(());
    }
    let again = bind_one(at.as_fd()).context(shown)?;
    attach_to(&again, &at).context(shown)
}

/// Shows what makes terminals beside their directory, where programs look for it. (A node of the host's would do, too, as the kernel looks
/// for `pts` beside it; what the host has mounted there would not, and makes the host's.)
fn multiplexer(root: BorrowedFd<'_>, terminals: &Path) -> Result<()> {
    let name = || format!("what makes terminals in {}", terminals.display());
    let below = terminals.strip_prefix("/").unwrap_or(terminals);
    let made = match resolve(root, &below.join("ptmx")) {
        // The host has no place for them.
        Err(Errno::NOENT) => return Ok(()),
        made => made.context(name)?,
    };
    let beside = resolve(root, &below.with_file_name("")).context(name)?;
    // A link leads into the directory anyway.
    if readlinkat(&beside, "ptmx", vec![]).is_ok() {
        return Ok(());
    }
    let shown = bind_one(made.as_fd()).context(name)?;
    place(root, &shown, &terminals.with_file_name("ptmx"))
}

/// Makes the new root `/` and lets go of the host's.
fn enter(root: BorrowedFd<'_>) -> Result<()> {
    rustix::process::fchdir(root).context(|| "new root")?;
    // Both at ".": the old root lands on top of the new one and is taken off there.
    rustix::process::pivot_root(".", ".").context(|| "pivot into the new root")?;
    unmount(".", UnmountFlags::DETACH).context(|| "old root")?;
    rustix::process::chdir("/").context(|| "/")
}

/// What the kernel adds to an error of the new mount interface.
fn kernel_words(fs: BorrowedFd<'_>) -> String {
    let mut text = String::new();
    let mut buffer = [0; 512];
    while let Ok(n) = rustix::io::read(fs, &mut buffer) {
        if n == 0 {
            break;
        }
        text.push_str("; ");
        text.push_str(String::from_utf8_lossy(&buffer[..n]).trim_end().trim_start_matches("e "));
    }
    text
}
