//! Collections that nobody has asked for: once a day after a submission, and by `skiff sweep`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::getuid;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::clock::{DAY, was_within};
use skiff_user::context::UserContext;

use super::users::JobList;
use super::{Collection, Limits};
use crate::job_records::JobRecords;
use crate::time_limit::{in_background, until};

/// In a depot: a file whose time is that of the last such collection.
const STAMP: &str = "collected";
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Begins a collection in a process that goes on by itself, unless there was one within a day. Nobody waits for it.
pub fn collect_daily(context: &UserContext, depot: &Path) {
    begin_daily(context, depot)
        .ignore_error("the snapshot is there; what could go stays until the next time");
}

fn begin_daily(context: &UserContext, depot: &Path) -> Result<()> {
    let depot = TrustedDir::open(depot, getuid().as_raw())?;
    let last = depot.stat(STAMP)?.map(|stat| stat.st_mtime.cast_unsigned());
    if last.is_some_and(|last| was_within(DAY, last)) {
        return Ok(());
    }
    // Before it begins: submissions that come meanwhile begin none.
    depot.write(STAMP, b"", 0o600)?;
    let program = std::env::current_exe().context(|| "own program")?;
    Command::new(program)
        .arg0("skiff")
        .args(["depot", "gc", "--background"])
        .env_clear()
        .envs(context.own_variables())
        .current_dir("/")
        // The keys of the caller's terminal are not for it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
        .context(|| "skiff depot gc")
}

/// Removes old records of jobs in a process that goes on by itself, unless that was done within a day: also where no snapshot is ever taken, as of
/// containers. Nobody waits for it.
pub fn trim_records_daily(depot: &Path) {
    begin_to_trim(depot).ignore_error("they are removed another day");
}

fn begin_to_trim(depot: &Path) -> Result<()> {
    let Some(records) = JobRecords::find(depot)? else { return Ok(()) };
    if !records.begin_to_trim()? {
        return Ok(());
    }
    in_background("remover of records", LIMIT, "they are removed another day", || {
        JobRecords::find(depot)?.map_or(Ok(()), |all| all.trim())
    })
}

/// Collects by the configuration. Nobody hears what it says.
pub(super) fn collect(context: &UserContext) {
    until("collector", Instant::now() + LIMIT, || collect_now(context))
        .ignore_error("whoever needs the room calls `skiff depot gc`, which says what is wrong");
}

/// The files that go; nothing goes while it is not known what jobs need.
fn collect_now(context: &UserContext) -> Result<Vec<PathBuf>> {
    let Some(collection) = plan(context)? else { return Ok(vec![]) };
    let collected = collection.carry_out()?;
    Ok(collection.depot.paths_of(&collected))
}

fn plan(context: &UserContext) -> Result<Option<Collection>> {
    if super::existing(context)?.is_none() {
        return Ok(None);
    }
    let Ok(jobs) = JobList::ask(context) else { return Ok(None) };
    Collection::plan(context, &Limits::of(context, None, None)?, &jobs)
}

/// What `skiff sweep` would remove.
pub fn leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let collection = plan(context)?;
    let would_go = |one: Collection| one.depot.paths_of(&one.depot.would_remove(&one.contents, &one.plan));
    Ok(collection.map_or_else(Vec::new, would_go))
}

/// Removes it.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    collect_now(context)
}
