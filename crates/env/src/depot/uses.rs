//! What is noted of jobs in a depot: that a job has begun to use a snapshot. A requeued job is submitted anew, as it seems, but its snapshot is
//! the one of before.
//!
//! A note is an empty file, `uses/JOB-SNAPSHOT`. So it can be made at once by all nodes of a job, and listed without being read.

use std::ffi::OsString;
use std::path::Path;

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;
use rustix::process::getuid;
use skiff_site::TrustedDir;
use skiff_snapshot::SnapshotId;
use skiff_spec::fault::Result;

use crate::depot_dir;

/// In a depot.
pub(super) const DIR: &str = "uses";
/// How long a note counts where nobody knows which jobs there are, in seconds.
pub(super) const LONGEST: u64 = 30 * skiff_sys::clock::DAY;

/// A note that a job has begun to use a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotedUse {
    /// Name of the file.
    pub(super) name: OsString,
    pub(super) job: u32,
    pub(super) snapshot: SnapshotId,
    /// When it was noted, in nanoseconds since 1970.
    pub(super) since: i64,
}

/// Notes that a job uses a snapshot, unless another of its nodes has done so.
pub fn note_use(depot: &Path, job: u32, snapshot: &SnapshotId) -> Result<()> {
    // Where the depot is not mounted, nothing is to be made in its place.
    let Some(depot) = depot_dir::find(depot, getuid())? else { return Ok(()) };
    let uses = depot.make_dir(DIR, 0o700)?;
    let name = format!("{job}-{snapshot}");
    // Of a thousand nodes most only look.
    if uses.stat(&name)?.is_some() {
        return Ok(());
    }
    match uses.file(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600) {
        Err(e) if e.errno() == Some(Errno::EXIST) => Ok(()),
        made => Ok(made.map(drop)?),
    }
}

/// All notes.
pub(super) fn all(depot: &Path) -> Result<Vec<NotedUse>> {
    let Some(uses) = TrustedDir::find(&depot.join(DIR), getuid().as_raw())? else { return Ok(vec![]) };
    let mut all = vec![];
    for name in uses.names()? {
        let Some((job, snapshot)) = name.to_str().and_then(parse) else { continue };
        if let Some(stat) = uses.stat(&name)? {
            all.push(NotedUse { name, job, snapshot, since: since(&stat) });
        }
    }
    Ok(all)
}

/// Removes notes.
pub(super) fn forget(depot: &Path, names: &[OsString]) -> Result<()> {
    let Some(uses) = TrustedDir::find(&depot.join(DIR), getuid().as_raw())? else { return Ok(()) };
    Ok(names.iter().try_for_each(|name| uses.remove_file(name))?)
}

fn parse(name: &str) -> Option<(u32, SnapshotId)> {
    let (job, snapshot) = name.split_once('-')?;
    Some((job.parse().ok()?, snapshot.parse().ok()?))
}

fn since(stat: &Stat) -> i64 {
    stat.st_mtime.saturating_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_noted_once_and_what_is_not_a_note_is_left() {
        let path = std::env::temp_dir().join(format!("skiff-uses.{}", std::process::id()));
        let depot = TrustedDir::make(&path, getuid().as_raw(), 0o700).expect("a directory");
        let (one, two) = (SnapshotId([1; 32]), SnapshotId([2; 32]));
        assert!(all(depot.path()).expect("no notes yet").is_empty());
        let empty = path.join("empty");
        std::fs::create_dir(&empty).expect("a directory");
        for nowhere in [&empty, &path.join("nowhere")] {
            note_use(nowhere, 7, &one).expect("no depot");
        }
        assert!(
            std::fs::read_dir(&empty).expect("a directory").next().is_none()
                && !path.join("nowhere").exists()
        );
        depot.new_dir(depot_dir::SNAPSHOTS, 0o700).expect("a depot");
        for (job, snapshot) in [(7, &one), (7, &one), (7, &two), (8, &one)] {
            note_use(depot.path(), job, snapshot).expect("noted");
        }
        let others = ["7", "7-", "-7", "x-y", &format!("7-{one}.old")];
        for name in others {
            std::fs::write(path.join(DIR).join(name), "").expect("a file");
        }
        std::os::unix::fs::symlink("/etc/passwd", path.join(DIR).join(format!("9-{one}"))).expect("a link");
        let mut found = all(depot.path()).expect("listed");
        found.sort_by_key(|noted| (noted.job, noted.snapshot));
        let told: Vec<_> = found.iter().map(|noted| (noted.job, noted.snapshot)).collect();
        assert_eq!(told, [(7, one), (7, two), (8, one), (9, one)]);
        forget(depot.path(), &found.into_iter().map(|noted| noted.name).collect::<Vec<_>>())
            .expect("removed");
        let left = std::fs::read_dir(path.join(DIR)).expect("a directory").count();
        assert_eq!(left, others.len());
        assert!(Path::new("/etc/passwd").exists());
        std::fs::remove_dir_all(path).expect("gone");
    }
}
