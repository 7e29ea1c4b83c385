//! The root of an environment without any privilege: fuse-overlayfs, running in the user's own namespaces, stacks it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags, mkdirat, open};
use skiff_spec::plan::{Plan, Upper};

use crate::root::{self, Extras, Own};
use crate::{Context, Error, Result};

/// The program.
pub const PROGRAM: &str = "/usr/bin/fuse-overlayfs";

/// Stacks with fuse-overlayfs, then mounts the rest and makes it `/`.
pub fn build(plan: &Plan, extras: Extras<'_>) -> Result<()> {
    let own = Own::open(&plan.upper)?;
    let sources = root::open_sources(plan, &own)?;
    let extras = extras.open()?;
    // fuse-overlayfs wants paths, so the stage must not cover the place where the upper is.
    let (dir, stage) = match &plan.upper {
        Upper::Memory { .. } => (own.attach(root::SECOND_STAGE)?, root::STAGE),
        Upper::Directory(dir) if dir.starts_with(root::STAGE) => (dir.clone(), root::SECOND_STAGE),
        Upper::Directory(dir) => (dir.clone(), root::STAGE),
    };
    let place = root::memory(0o755, None).context(|| "file system in memory")?;
    mkdirat(&place, "root", Mode::from_raw_mode(0o755)).context(|| "place for the root")?;
    root::attach(place.as_fd(), stage)?;
    let target = Path::new(stage).join("root");

    let lower = plan.layers.iter().map(|l| l.display().to_string()).chain(["/".into()]).collect::<Vec<_>>();
    let mut options = format!(
        "squash_to_root,lowerdir={},upperdir={},workdir={}",
        lower.join(":"),
        dir.join("upper").display(),
        dir.join("work").display()
    );
    if matches!(plan.upper, Upper::Memory { .. }) {
        options.push_str(",volatile");
    }
    let out = Command::new(PROGRAM).arg("-o").arg(options).arg(&target).output();
    let out = out
        .context(|| PROGRAM)
        .map_err(|e| e.hint("install fuse-overlayfs, or have the helper installed"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        return Err(Error::new(format!("{PROGRAM}: {said}")).hint("is /dev/fuse there and open to you?"));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(&target, flags, Mode::empty()).context(|| "new root")?;
    root::furnish(root.as_fd(), sources, None, extras)
}
