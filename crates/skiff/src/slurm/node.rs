//! Prolog and epilog, as root on a node: a directory for the job that its user may write in, and nothing afterwards. Whatever
//! touches what a user supplied is done by a process of that user.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skiff_sandbox::{Context as _, Error, Result};

use super::job::{DESCRIPTOR, JOBS, Job, USER, dir, number};
use crate::context::Context;

/// Before a job's first step on this node: makes its directory and fetches its snapshot.
pub fn prolog() -> Result<()> {
    // What others have left is no reason for this job to fail.
    if let Err(e) = sweep_jobs(false) {
        crate::output::complain(&e);
    }
    let Some(job) = Job::from_variables()? else { return Ok(()) };
    let (uid, gid) = owner()?;
    let context = Context::load()?;
    make_for_user(&dir(job.id), None)?;
    make_for_user(&job.user_dir(), Some((uid, gid)))?;
    let line = job.descriptor.to_line().map_err(|e| Error::new(format!("job {}: {e}", job.id)))?;
    let record = dir(job.id).join(DESCRIPTOR);
    fs::write(&record, line).context(|| record.display().to_string())?;
    make_for_user(&Path::new(&context.config.slurm.cache).join(uid.to_string()), Some((uid, gid)))?;
    // What goes wrong is said again, to the user, when his step begins.
    as_user(uid, gid, "fetch", job.id)
}

/// After a job's last step on this node: ends what is left of it and removes its directory.
pub fn epilog() -> Result<()> {
    remove_job(number("SLURM_JOB_ID")?)
}

/// Removes what jobs that are no longer here have left; gives their directories.
pub fn sweep_jobs(dry_run: bool) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(JOBS) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        other => other.context(|| JOBS)?,
    };
    let jobs: Vec<u32> = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    let mut left = vec![];
    // Nearly always there is none but this one: then Slurm need not be asked.
    let own = number("SLURM_JOB_ID").ok();
    let alive = if jobs.iter().any(|id| Some(*id) != own) { living_jobs() } else { None };
    for id in jobs {
        if alive.as_ref().is_some_and(|alive| !alive.contains(&id)) && Some(id) != own {
            left.push(dir(id));
            if !dry_run {
                remove_job(id)?;
            }
        }
    }
    Ok(left)
}

/// The jobs that may still have steps, as Slurm says; nothing if it says nothing.
fn living_jobs() -> Option<Vec<u32>> {
    let out = Command::new("timeout").args(["10", "squeue", "-h", "-a", "-o", "%A"]).output().ok()?;
    out.status.success().then(|| {
        String::from_utf8_lossy(&out.stdout).lines().filter_map(|id| id.trim().parse().ok()).collect()
    })
}

fn remove_job(id: u32) -> Result<()> {
    let dir = dir(id);
    if let Ok(meta) = dir.join(USER).symlink_metadata()
        && meta.is_dir()
    {
        as_user(meta.uid(), meta.gid(), "stop-job", id)?;
    }
    match fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context(|| format!("removing {}", dir.display())),
        _ => Ok(()),
    }
}

/// The job's user and his group, as the job manager says.
fn owner() -> Result<(u32, u32)> {
    let uid = ["SLURM_JOB_UID", "SLURM_UID"].iter().find_map(|name| number(name).ok());
    let uid = uid.ok_or_else(|| Error::new("SLURM_JOB_UID is not set"))?;
    let gid = number("SLURM_JOB_GID").ok().or_else(|| group_of(uid));
    Ok((uid, gid.ok_or_else(|| Error::new(format!("user {uid}: his group is not known")))?))
}

fn group_of(uid: u32) -> Option<u32> {
    let out =
        Command::new("getent").arg("passwd").arg(uid.to_string()).stderr(Stdio::null()).output().ok()?;
    String::from_utf8_lossy(&out.stdout).split(':').nth(3)?.parse().ok()
}

/// A directory that is root's, or the user's alone; one that is there already must be so.
fn make_for_user(path: &Path, owner: Option<(u32, u32)>) -> Result<()> {
    let shown = || path.display().to_string();
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).context(shown)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let meta = path.symlink_metadata().context(shown)?;
            let want = owner.map_or(0, |o| o.0);
            if !meta.is_dir() || meta.uid() != want {
                return Err(Error::new(format!(
                    "{}: is there and not a directory of uid {want}",
                    path.display()
                )));
            }
            return Ok(());
        }
        Err(e) => return Err(e).context(shown),
    }
    match owner {
        // The parents are root's, so nobody could have put another thing here meanwhile.
        Some((uid, gid)) => chown(path, Some(uid), Some(gid)).context(shown),
        None => fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context(shown),
    }
}

/// Runs one of our own commands as the user, for a bounded time.
fn as_user(uid: u32, gid: u32, what: &str, job: u32) -> Result<()> {
    let program = std::env::current_exe().context(|| "own program")?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "600"]).arg(program).args(["slurm", what]).env_clear();
    for name in ["SPANK_SKIFF_JOB", "SKIFF_JOB", "SLURM_CONF"] {
        if let Ok(value) = std::env::var(name) {
            command.env(name, value);
        }
    }
    command.env("SLURM_JOB_ID", job.to_string()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(home) = crate::context::user_fields(uid).map(|f| f[5].clone()) {
        command.env("HOME", home);
    }
    let status = command
        .uid(uid)
        .gid(gid)
        .current_dir("/")
        .stdin(Stdio::null())
        .status()
        .context(|| what.to_owned())?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::new(format!("job {job}: {what} as user {uid}: {status}")))
    }
}
