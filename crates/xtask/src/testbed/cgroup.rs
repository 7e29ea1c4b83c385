//! Control groups of slurmd, for beds with `--proctrack cgroup`.
//!
//! They are the one thing that does not die with the namespaces, and slurmd names them after the node, so two beds
//! would share them. So a bed works in a subtree of its own, which it sees as the whole hierarchy.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::bed::Bed;
use super::mounts;
use super::process::wait_for;

/// The only hierarchy that proctrack/cgroup of Slurm 22.05 uses on version 1.
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// In the bed's mount namespace: makes the subtree and hides the rest.
pub fn enter(bed: &Bed) -> anyhow::Result<()> {
    let subtree = subtree(&bed.dir)?;
    fs::create_dir(&subtree).with_context(|| {
        format!("cannot make {}; --proctrack cgroup needs the version 1 freezer hierarchy", subtree.display())
    })?;
    mounts::bind(&subtree, Path::new(FREEZER))
}

/// On the machine: removes the subtree of the bed with this directory, if it has one; its processes are dead or dying.
pub fn remove(bed: &Path) -> anyhow::Result<()> {
    let subtree = subtree(bed)?;
    let mut last = None;
    wait_for("an empty control group", Duration::from_secs(10), || {
        last = remove_tree(&subtree).err();
        Ok(last.is_none().then_some(()))
    })
    .with_context(|| format!("cannot remove {}: {last:?}", subtree.display()))
}

fn subtree(bed: &Path) -> anyhow::Result<PathBuf> {
    let name = bed.file_name().context("the bed's directory has no name")?;
    Ok(Path::new(FREEZER).join(name))
}

/// Files in a control group cannot be removed, and need not be.
fn remove_tree(dir: &Path) -> std::io::Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(dir)
}
