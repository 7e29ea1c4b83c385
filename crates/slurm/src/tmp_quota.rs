//! How much a job may write to its directory on a node's disk: a limit of the file system's, for a project of the job's own.
//!
//! It keeps a job from filling the disk by mistake. A user who means to can take files of their own out of the project (`chattr -p`), or
//! put them into another one. So the number is drawn by lot, and nobody but the job's user and root can find it out.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::rand::{GetRandomFlags, getrandom};
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::{IgnoreError, project_quota};

/// The numbers of jobs' projects: beyond those that administrators give by hand or by uid.
const PROJECTS: Range<u32> = 1 << 30..1 << 31;

/// Limits what a job may write below `dir`, which nobody but root can enter yet. A file system without such limits is no reason to refuse the job.
pub fn limit(dir: &TrustedDir, bytes: u64) -> Result<()> {
    let about = || dir.path().display().to_string();
    let opened = dir.readable()?;
    if !project_quota::is_enforced(opened.as_fd()) {
        output::note(&format!(
            "{}: `slurm.tmp_quota` limits nothing, since this file system has no project quotas",
            about()
        ));
        return Ok(());
    }
    let mut lot = [0; 4];
    getrandom(&mut lot, GetRandomFlags::empty()).context(|| "random bytes")?;
    let project = PROJECTS.start + u32::from_ne_bytes(lot) % (PROJECTS.end - PROJECTS.start);
    project_quota::limit(opened.as_fd(), project, Some(bytes)).context(about)?;
    project_quota::assign(opened.as_fd(), project).context(about)
}

/// Forgets the limit of a job that has ended. `user_dir` is its user's directory, a place of which nothing is known but that no mount covers it.
pub fn forget(user_dir: BorrowedFd<'_>) {
    forgotten(user_dir)
        .ignore_error("a limit of nothing does no harm; a file system without projects has none");
}

fn forgotten(user_dir: BorrowedFd<'_>) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(user_dir, ".", flags, Mode::empty())?;
    let project = project_quota::project(opened.as_fd())?;
    // Its user may have given it another number, of a project that the site limits.
    match PROJECTS.contains(&project) {
        true => project_quota::limit(opened.as_fd(), project, None),
        false => Ok(()),
    }
}
