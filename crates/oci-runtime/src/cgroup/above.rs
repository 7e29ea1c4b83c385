//! The groups above a container's, which several containers may share: made where they are missing, and removed with the last container there.

use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, lsetxattr};
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use super::open_group::{MADE, OpenGroup};

/// Nor more of those above it that were made for it.
const MOST_ABOVE: usize = 64;
/// How often groups above are made anew that the last container there removes meanwhile.
pub const TRIES: usize = 10;

pub fn make_all(path: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    let name = || path.display().to_string();
    let is_there = |e: &std::io::Error| e.kind() == std::io::ErrorKind::AlreadyExists;
    let mut tries = 0..TRIES;
    let created = loop {
        path.parent().map_or(Ok(()), |parent| make_above(parent, made))?;
        match std::fs::create_dir(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && tries.next().is_some() => {}
            created => break created,
        }
    };
    if created.as_ref().is_err_and(is_there) {
        return Err(Fault::new(format!("{}: it is there already, so it is not the container's", name())));
    }
    created.context(name)?;
    made.push(path.to_owned());
    Ok(())
}

/// Makes the groups that are missing on the way to one, and that one.
fn make_above(path: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    use std::io::ErrorKind::{AlreadyExists, NotFound};
    let missing: Vec<&Path> = path.ancestors().take_while(|group| !group.exists()).collect();
    for group in missing.into_iter().rev() {
        match std::fs::create_dir(group) {
            // Another call has made it meanwhile, or removed the one above: what is below cannot be made then, and all is tried again.
            Err(e) if matches!(e.kind(), AlreadyExists | NotFound) => continue,
            created => created.context(|| group.display().to_string())?,
        }
        lsetxattr(group, MADE, &[], XattrFlags::empty()).ignore_error(
            "kernels before 5.7 have no such marks; who has made the group has it in the record",
        );
        if !made.iter().any(|known| known == group) {
            made.push(group.to_owned());
        }
    }
    for controller in ["cpu", "cpuset", "io", "memory", "pids"] {
        write(&path.join("cgroup.subtree_control"), &format!("+{controller}"))
            .ignore_error("a limit that cannot be set is told when it is");
    }
    Ok(())
}

/// Removes groups, from the last to the first, as far as nobody is in them.
pub fn remove_empty(groups: &[PathBuf]) {
    for group in groups.iter().rev() {
        std::fs::remove_dir(group).ignore_error("others may have come into it");
    }
}

/// Removes the groups above one, the nearest first, as far as nobody is in them, and as they were made for this container or another one.
pub fn remove_above(path: &Path, made: &[PathBuf]) {
    for group in path.ancestors().skip(1).take(MOST_ABOVE) {
        let is_ours = match OpenGroup::open(group) {
            Err(Errno::NOENT) => continue,
            open => open.is_ok_and(|open| open.is_marked() || made.iter().any(|known| known == group)),
        };
        if !is_ours || std::fs::remove_dir(group).is_err() {
            return;
        }
    }
}

/// Writes to a file that the kernel has made.
fn write(file: &Path, value: &str) -> std::io::Result<()> {
    std::io::Write::write_all(&mut std::fs::File::options().write(true).open(file)?, value.as_bytes())
}
