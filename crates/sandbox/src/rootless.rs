//! The root of an environment without any privilege: fuse-overlayfs, running in the user's own namespaces, stacks it.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags, mkdirat, open};
use skiff_spec::plan::{Plan, Upper};
use skiff_sys::process::keep_on_exec;

use crate::root::{self, Extras, Own};
use crate::{Context, Error, Result};

/// The program.
pub const PROGRAM: &str = "/usr/bin/fuse-overlayfs";

/// Stacks with fuse-overlayfs, then mounts the rest and makes it `/`.
pub fn build(plan: &Plan, extras: Extras<'_>) -> Result<()> {
    let own = Own::open(&plan.upper)?;
    let sources = root::open_sources(plan, &own)?;
    let extras = extras.open()?;
    let (upper, work) = (own.sub("upper").context(|| "upper")?, own.sub("work").context(|| "work")?);
    let stage = root::memory(0o755, None).context(|| "file system in memory")?;
    mkdirat(&stage, "root", Mode::from_raw_mode(0o755)).context(|| "place for the root")?;
    let target = Path::new(root::attach_on_stage(stage.as_fd())?).join("root");

    // By descriptor: the stage may cover the place where the upper is.
    for fd in [&upper, &work] {
        keep_on_exec(fd.as_fd()).context(|| "upper")?;
    }
    let lower = plan.layers.iter().map(|l| l.display().to_string()).chain(["/".into()]).collect::<Vec<_>>();
    let mut options = format!(
        "squash_to_root,lowerdir={},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}",
        lower.join(":"),
        upper.as_raw_fd(),
        work.as_raw_fd()
    );
    if matches!(plan.upper, Upper::Memory { .. }) {
        options.push_str(",volatile");
    }
    let out = Command::new(PROGRAM).arg("-o").arg(options).arg(&target).output();
    let out = out.context(|| PROGRAM).map_err(|e| e.hint("install fuse-overlayfs, or have the helper installed"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        return Err(Error::new(format!("{PROGRAM}: {said}")).hint("is /dev/fuse there and open to you?"));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(&target, flags, Mode::empty()).context(|| "new root")?;
    root::furnish(root.as_fd(), sources, None, extras)
}
