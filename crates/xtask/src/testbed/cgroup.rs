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

/// The hierarchies of version 1 that proctrack/cgroup and task/cgroup of Slurm 22.05 use: to follow processes, and to bound what they have.
const HIERARCHIES: [&str; 3] = ["freezer", "memory", "cpuset"];
const ALL: &str = "/sys/fs/cgroup";
/// How many of them are used without limits.
const TO_FOLLOW: usize = 1;

/// In the bed's mount namespace: makes the subtrees and hides the rest.
pub fn enter(bed: &Bed) -> anyhow::Result<()> {
    let count = if bed.args.cgroup_conf.is_empty() { TO_FOLLOW } else { HIERARCHIES.len() };
    for name in &HIERARCHIES[..count] {
        let hierarchy = Path::new(ALL).join(name);
        let subtree = subtree(name, &bed.dir)?;
        fs::create_dir(&subtree).with_context(|| {
            format!("cannot make {}; --proctrack cgroup needs this hierarchy of version 1", subtree.display())
        })?;
        // A new one of this kind is empty, and takes no process.
        for file in ["cpuset.cpus", "cpuset.mems"].map(Path::new) {
            let given = hierarchy.join(file);
            if given.exists() {
                fs::copy(&given, subtree.join(file))
                    .with_context(|| format!("cannot copy {}", given.display()))?;
            }
        }
        mounts::bind(&subtree, &hierarchy)?;
    }
    Ok(())
}

/// On the machine: removes the subtrees of the bed with this directory, if it has any; its processes are dead or dying.
pub fn remove(bed: &Path) -> anyhow::Result<()> {
    for name in HIERARCHIES {
        let subtree = subtree(name, bed)?;
        let mut last = None;
        wait_for("an empty control group", Duration::from_secs(10), || {
            last = remove_tree(&subtree).err();
            Ok(last.is_none().then_some(()))
        })
        .with_context(|| format!("cannot remove {}: {last:?}", subtree.display()))?;
    }
    Ok(())
}

fn subtree(hierarchy: &str, bed: &Path) -> anyhow::Result<PathBuf> {
    let name = bed.file_name().context("the bed's directory has no name")?;
    Ok(Path::new(ALL).join(hierarchy).join(name))
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
