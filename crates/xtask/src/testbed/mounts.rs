//! The few shapes of mount the bed needs, each error naming its target.

use std::ffi::CStr;
use std::fs;
use std::path::Path;

use anyhow::Context;
use rustix::fs::CWD;
use rustix::mount::{self, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};

/// Cuts the bed's mounts off from the machine's.
pub fn make_private() -> anyhow::Result<()> {
    mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot make the mounts private")
}

/// A fresh tmpfs; `data` holds its options, for example `mode=1777`.
pub fn tmpfs(target: &str, data: &CStr) -> anyhow::Result<()> {
    mount::mount("tmpfs", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, data)
        .with_context(|| format!("cannot mount a tmpfs on {target}"))
}

/// A bind mount of one file or directory.
pub fn bind(source: &Path, target: &Path) -> anyhow::Result<()> {
    mount::mount_bind(source, target)
        .with_context(|| format!("cannot bind {} on {}", source.display(), target.display()))
}

/// A fresh `/run` in which some of the old one's directories (`keep`, names) stay visible.
pub fn fresh_run(keep: &[&str]) -> anyhow::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let kept: Vec<_> = keep
        .iter()
        .map(|name| {
            let tree = mount::open_tree(CWD, format!("/run/{name}"), flags);
            tree.map(|tree| (name, tree)).with_context(|| format!("cannot clone /run/{name}"))
        })
        .collect::<anyhow::Result<_>>()?;
    tmpfs("/run", c"mode=755")?;
    fs::create_dir("/run/lock").context("cannot make /run/lock")?;
    for (name, tree) in kept {
        let target = format!("/run/{name}");
        fs::create_dir(&target).with_context(|| format!("cannot make {target}"))?;
        mount::move_mount(&tree, "", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .with_context(|| format!("cannot mount {target}"))?;
    }
    Ok(())
}

/// Terminals and shared memory of this node's own, as a booted system has them.
pub fn devices() -> anyhow::Result<()> {
    let options = c"newinstance,ptmxmode=0666,mode=620,gid=5";
    mount::mount("devpts", "/dev/pts", "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
        .context("cannot mount /dev/pts")?;
    bind(Path::new("/dev/pts/ptmx"), Path::new("/dev/ptmx"))?;
    tmpfs("/dev/shm", c"mode=1777")
}
