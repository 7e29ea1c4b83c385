//! How much a job may write to its directory on a node's disk: a limit of the file system's, for a project whose number the job gives.
//!
//! It keeps a job from filling the disk by mistake. A user who means to can take files of their own out of the project (`chattr -p`).

use std::os::fd::AsFd;

use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::{IgnoreError, project_quota};

/// Projects of jobs begin behind those that administrators number by hand or by uid.
const FIRST_PROJECT: u32 = 1 << 30;

/// Limits what a job may write below `dir`, which nobody but root can enter yet. A file system without such limits is no reason to refuse the job.
pub fn limit(dir: &TrustedDir, job: u32, bytes: u64) -> Result<()> {
    let about = || dir.path().display().to_string();
    let opened = dir.readable()?;
    if !project_quota::is_enforced(opened.as_fd()) {
        output::note(&format!(
            "{}: `slurm.tmp_quota` limits nothing, since this file system has no project quotas",
            about()
        ));
        return Ok(());
    }
    project_quota::limit(opened.as_fd(), project(job), Some(bytes)).context(about)?;
    project_quota::assign(opened.as_fd(), project(job)).context(about)
}

/// Forgets the limit of a job that has ended, whose files were below `dir`: the next one of this number may have another.
pub fn forget(dir: &TrustedDir, job: u32) {
    let forgotten = project_quota::limit(dir.as_fd(), project(job), None);
    forgotten.ignore_error("there was none, as this file system has no project quotas");
}

fn project(job: u32) -> u32 {
    // Of all numbers only 0 is no project. That job would be 2^32 - 2^30, which no Slurm has.
    job.wrapping_add(FIRST_PROJECT)
}
