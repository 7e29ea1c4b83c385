//! Directories of the user's: made, found and removed so that no other user can exchange them meanwhile.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::getuid;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::plan::Base;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_sys::kernel::host_name;

use crate::context::UserContext;

/// Directories of an environment and their modes. Work must be on the file system of upper.
const PARTS: [(&str, u32); 4] = [("upper", 0o755), ("work", 0o700), ("tmp", 0o1777), ("vartmp", 0o1777)];

/// What is being removed has this in front of its name until it is gone.
const TRASH: &str = ".trash.";
/// What is being made has this in front of its name until it is whole.
const NEW: &str = ".new.";
/// What another host has begun is taken for abandoned after this time: hosts that share a directory cannot see each other's processes.
const ABANDONED: Duration = Duration::from_hours(24);

/// What to do where a directory cannot be had.
pub const HINT: &str = "the directory for environments must be yours to write to, and have room: `state` in the configuration, or SKIFF_STATE";

/// A directory of the user's state, by name; see [`own_dir_in`].
pub fn own_dir(context: &UserContext, name: &str) -> Result<PathBuf> {
    own_dir_in(context.state()?.join(name))
}

/// A directory of the user's. If it is there, nobody else can exchange it. If it is missing, somebody else may make it meanwhile: what is in it counts once [`is_whole`] has said
/// so or [`make_private`] has made it.
pub fn own_dir_in(dir: PathBuf) -> Result<PathBuf> {
    find(&dir).map(|_| dir)
}

/// A directory of the user's, if it is there.
pub fn find(dir: &Path) -> Result<Option<TrustedDir>> {
    let found = TrustedDir::find(dir, getuid().as_raw());
    found.and_then(|found| found.map(TrustedDir::private).transpose()).map_err(hinted)
}

/// Whether a directory is there, the user's, and has this in it.
pub fn is_whole(dir: &Path, mark: &str) -> bool {
    // What cannot be looked at is none of this user's.
    open(dir).is_ok_and(|dir| dir.stat(mark).is_ok_and(|found| found.is_some()))
}

/// A directory of the user's.
pub fn open(dir: &Path) -> Result<TrustedDir> {
    TrustedDir::open(dir, getuid().as_raw()).map_err(hinted)
}

fn hinted(e: skiff_site::Error) -> Error {
    let e = Error::from(e);
    if e.hint.is_empty() { e.hint(HINT) } else { e }
}

/// Where something is made before it gets its name.
pub fn new_in(all: &Path, name: &EnvName) -> PathBuf {
    all.join(new_name(name))
}

/// What something is called until it gets its name.
pub fn new_name(name: &impl Display) -> String {
    unfinished(NEW, name)
}

/// `PREFIX` `PID.NAME@HOST`.
fn unfinished(prefix: &str, name: &impl Display) -> String {
    format!("{prefix}{}.{name}@{}", std::process::id(), this_host())
}

fn this_host() -> String {
    host_name().replace('/', "_")
}

/// Takes a directory away from under its name; gives where it is now.
pub fn set_aside(dir: &Path, name: &EnvName) -> Result<PathBuf> {
    let all = open(dir.parent().unwrap_or(Path::new("/")))?;
    let aside = unfinished(TRASH, name);
    all.rename(dir.file_name().unwrap_or_default(), &all, &aside)?;
    Ok(all.path_of(aside))
}

/// Makes what an upper on disk consists of, unless it is there.
pub fn make_parts(dir: &TrustedDir) -> Result<()> {
    for (part, mode) in PARTS {
        match dir.new_dir(part, mode) {
            // Root inside may have given it to another of the user's ids.
            Err(e) if e.errno() == Some(Errno::EXIST) => {}
            made => made.map(drop)?,
        }
    }
    Ok(())
}

/// Makes files with the modes written here: the user's umask is for their commands, and may be any.
pub fn with_umask<T>(make: impl FnOnce() -> T) -> T {
    let users = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let made = make();
    rustix::process::umask(users);
    made
}

/// What removals and creations that were interrupted have left in the directory of environments.
pub fn leftovers(all: &Path) -> Vec<PathBuf> {
    // What cannot be looked at is none of this user's.
    let all = find(all).ok().flatten();
    all.iter().flat_map(|all| left_in(all).into_iter().map(|name| all.path_of(name))).collect()
}

fn left_in(all: &TrustedDir) -> Vec<String> {
    let names = all.names().default_on_error("what cannot be listed shows when it is used").into_iter();
    let host = this_host();
    names.filter_map(|name| name.into_string().ok()).filter(|name| is_left(all, name, &host)).collect()
}

/// Names of what another host is making in a directory, unless it was begun more than a day ago.
pub fn unfinished_elsewhere(all: &TrustedDir) -> Result<Vec<String>> {
    let host = this_host();
    let is_theirs = |name: &String| {
        let of = name.strip_prefix(NEW).and_then(|rest| rest.split_once('@'));
        of.is_some_and(|(_, of)| of != host) && !is_left(all, name, &host)
    };
    Ok(all.names()?.into_iter().filter_map(|name| name.into_string().ok()).filter(is_theirs).collect())
}

/// Whether an entry is something that nobody is making or removing any more.
fn is_left(all: &TrustedDir, name: &str, this_host: &str) -> bool {
    let Some(rest) = name.strip_prefix(TRASH).or_else(|| name.strip_prefix(NEW)) else { return false };
    match rest.split_once('@') {
        Some((_, host)) if host != this_host => {
            let stat = all.stat(name).default_on_error("what cannot be looked at is left to its host");
            let changed = stat.and_then(|stat| u64::try_from(stat.st_mtime).ok());
            changed.is_some_and(|changed| now().saturating_sub(changed) > ABANDONED.as_secs())
        }
        _ => {
            let pid = rest.split('.').next().unwrap_or_default();
            !Path::new("/proc").join(pid).exists()
        }
    }
}

/// Removes leftovers as far as the user's own rights go (the rest `skiff sweep` does).
pub fn sweep(all: &TrustedDir) {
    for name in left_in(all) {
        all.remove_tree(name).ignore_error("what stays is tried again the next time");
    }
}

/// Makes the directory of environments, and makes sure that it can hold any.
pub fn make_ready(all: &Path) -> Result<TrustedDir> {
    let all = make_private(all)?;
    check_file_system(all.path())?;
    Ok(all)
}

/// Makes a directory that is the user's alone.
pub fn make_private(dir: &Path) -> Result<TrustedDir> {
    TrustedDir::make(dir, getuid().as_raw(), 0o700).and_then(TrustedDir::private).map_err(hinted)
}

/// An upper must be on a file system that overlayfs can write to.
pub fn check_file_system(dir: &Path) -> Result<()> {
    const GOOD: [(u64, &str); 7] = [
        (0xEF53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0xF2F5_2010, "f2fs"),
        (0x2FC1_2FC1, "zfs"),
        (0x8584_58F6, "ramfs"),
    ];
    const BAD: [(u64, &str); 8] = [
        (0x6969, "NFS"),
        (0x0BD0_0BD0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x6573_5546, "FUSE"),
        (0xFF53_4D42, "CIFS"),
        (0x794C_7630, "overlay"),
        (0x1983_0326, "BeeGFS"),
        (0x00C3_6400, "Ceph"),
    ];
    let kind = rustix::fs::statfs(dir).context(|| dir.display().to_string())?.f_type as u64;
    if GOOD.iter().any(|(magic, _)| *magic == kind) {
        return Ok(());
    }
    let name = BAD
        .iter()
        .find(|(magic, _)| *magic == kind)
        .map_or_else(|| format!("type {kind:#x}"), |b| b.1.into());
    Err(Error::new(format!(
        "{}: its file system ({name}) cannot hold the changes of an environment",
        dir.display()
    ))
    .hint("set `state` in the configuration (or SKIFF_STATE) to a directory on a local disk"))
}

/// Deletes a directory whose files belong to any of the user's ids.
pub fn delete(context: &UserContext, dir: PathBuf) -> Result<()> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(()) };
    let parent = TrustedDir::open(parent, getuid().as_raw())?;
    as_root_of_ids(context.helper.as_deref(), Base::Host, |_| Ok(parent.remove_tree(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_host_is_making_is_left_to_it_for_a_day() {
        let home = tempfile::tempdir().unwrap();
        let dir = TrustedDir::make(&home.path().join("all"), getuid().as_raw(), 0o700).unwrap();
        // No process has it: it is above the kernel's limit.
        let dead = "4999999";
        let this = std::process::id();
        let entries = [
            (format!(".new.{this}.dev@here"), 0, false),
            (format!(".new.{dead}.dev@here"), 0, true),
            (format!(".trash.{dead}.dev@here"), 0, true),
            (format!(".new.{dead}.dev@there"), 0, false),
            (format!(".new.{dead}.dev@there"), 25, true),
            (format!(".trash.{this}.dev@there"), 25, true),
            // As older versions called it.
            (format!(".new.{dead}.dev"), 0, true),
            (format!(".new.{this}.dev"), 0, false),
            ("dev".into(), 25, false),
        ];
        for (name, hours, is) in entries {
            dir.make_dir(&name, 0o700).unwrap();
            let time = std::time::SystemTime::now() - Duration::from_hours(hours);
            std::fs::File::open(dir.path_of(&name)).unwrap().set_modified(time).unwrap();
            assert_eq!(is_left(&dir, &name, "here"), is, "{name}, {hours} hours");
        }
    }
}
