//! Removes by root what a user has made, however deep it is: beyond some thousand levels paths are too long, descriptors and the stack run
//! out, and a directory that root cannot remove would be in the way of everybody's jobs.
//!
//! Each directory is first moved into one of root's own, and what is in it follows likewise. So no more than one level is ever open, and
//! nothing that its user moves meanwhile leads elsewhere.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fchmod, fchown, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;
use skiff_sandbox::{Context as _, Result};
use skiff_site::TrustedDir;

/// Beside what is removed; whatever a crash has left in it goes with the next.
const TRASH: &str = ".removed";
/// How often another's end may come between.
const TRIES: usize = 1000;
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory in one of root's; one that is gone already is no error.
pub fn remove(parent: &TrustedDir, name: &OsStr) -> Result<()> {
    let shown = || format!("removing {}", parent.path_of(name).display());
    // It is one for all jobs of the node: another's end may remove it before we have put something in.
    for _ in 0..TRIES {
        if parent.stat(name)?.is_none() {
            return Ok(());
        }
        let bin = match parent.make_dir(TRASH, 0o700).and_then(|bin| bin.readable()) {
            Err(e) if e.errno() == Some(Errno::NOENT) => continue,
            bin => bin?,
        };
        let own = unique();
        match renameat(parent, name, &bin, &own) {
            Err(Errno::NOENT) => continue,
            // Somebody has mounted something there: it goes with its directory.
            Err(Errno::BUSY) => {
                unmount_all(parent.as_fd(), name);
                continue;
            }
            put => put.context(shown)?,
        };
        if let Err(e) = empty(&bin)
            && rustix::fs::statat(&bin, &own, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        {
            // What else stays is another's, whose removal says so, or is tried again by the next.
            return Err(e).context(shown);
        }
        // Another may have put something in.
        unlinkat(parent, TRASH, AtFlags::REMOVEDIR).unwrap_or_default();
        return Ok(());
    }
    Err(Errno::NOENT).context(shown)
}

/// Removes everything, level by level. What cannot be removed stays, and keeps nothing else from going.
///
/// # Errors
/// The last, if a look at all that is left has removed nothing.
fn empty(bin: &OwnedFd) -> rustix::io::Result<()> {
    loop {
        let (mut removed, mut failed) = (false, Ok(()));
        for name in names(bin.as_fd())? {
            match lift(bin, &name) {
                Ok(()) => removed = true,
                Err(e) => failed = Err(e),
            }
        }
        if !removed {
            return failed;
        }
    }
}

/// Removes an entry of the first level, to which what is below it moves up.
fn lift(bin: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    if is_removed(bin.as_fd(), name)? {
        return Ok(());
    }
    let dir = match openat(bin, name, DIR, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        dir => dir?,
    };
    // From now on its user puts nothing into it.
    fchown(&dir, Some(geteuid()), None)?;
    fchmod(&dir, Mode::RWXU)?;
    for child in names(dir.as_fd())? {
        if is_removed(dir.as_fd(), &child)? {
            continue;
        }
        match renameat(&dir, &*child, bin, unique()) {
            Err(Errno::BUSY) => {
                unmount_all(dir.as_fd(), OsStr::from_bytes(child.to_bytes()));
                gone(renameat(&dir, &*child, bin, unique()))?;
            }
            moved => gone(moved)?,
        }
    }
    gone(unlinkat(bin, name, AtFlags::REMOVEDIR))
}

/// Takes off what a user has mounted on a file or directory (FUSE file systems can be, without a right).
fn unmount_all(dir: BorrowedFd<'_>, name: &OsStr) {
    let place = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    // What cannot be unmounted shows when it is to be removed.
    while unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
}

/// Removes a file or an empty directory; not one in which something is.
fn is_removed(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
    let remove = || match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => unlinkat(dir, name, AtFlags::REMOVEDIR),
        other => other,
    };
    let removed = match remove() {
        Err(Errno::BUSY) => {
            unmount_all(dir, OsStr::from_bytes(name.to_bytes()));
            remove()
        }
        other => other,
    };
    match removed {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        other => gone(other).map(|()| true),
    }
}

fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<std::ffi::CString>> {
    let all = match Dir::read_from(dir) {
        // What another has removed meanwhile cannot be read any more.
        Err(Errno::NOENT) => return Ok(vec![]),
        all => all?.map(|entry| entry.map(|entry| entry.file_name().to_owned())),
    };
    let is_dots = |name: &std::ffi::CString| matches!(name.to_bytes(), b"." | b"..");
    all.filter(|name| !matches!(name, Err(Errno::NOENT)) && !name.as_ref().is_ok_and(is_dots)).collect()
}

/// Several may remove the same.
fn gone(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if done == Err(Errno::NOENT) { Ok(()) } else { done }
}

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Not the PID alone: what a removal that was killed has left may have been named by a process of the same PID.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{}.{now}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use rustix::fs::{CWD, mkdirat, symlinkat};

    use std::io::Write;

    use super::*;

    fn home(name: &str) -> (PathBuf, TrustedDir) {
        let path = std::env::temp_dir().join(format!("skiff-trash{name}.{}", std::process::id()));
        let dir = TrustedDir::make(&path, geteuid().as_raw(), 0o755).expect("a directory");
        (path, dir)
    }

    #[test]
    fn many_at_once() {
        let (home, dir) = home("-many");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (home, dir) = (&home, &dir);
                scope.spawn(move || {
                    for number in 0..300 {
                        let name = format!("{thread}.{number}");
                        let path = home.join(&name);
                        fs::create_dir_all(path.join("in/it")).expect("a directory");
                        remove(dir, name.as_ref()).expect("gone");
                        assert!(!path.exists(), "{}", path.display());
                    }
                });
            }
        });
        fs::remove_dir(home).expect("empty");
    }

    #[test]
    fn what_is_mounted_on_it_goes_and_keeps_nothing_else() {
        if !geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "only root can mount");
            // Past the harness, which keeps what a passing test prints to itself.
            std::io::stderr().write_all(b"SKIPPED: only root can mount\n").expect("said");
            return;
        }
        let (home, dir) = home("-mounted");
        for path in ["9/sub/file", "10/other"] {
            let path = home.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, "x").expect("a file");
        }
        let flags = rustix::mount::MountFlags::empty();
        for place in ["9", "9/sub"] {
            rustix::mount::mount("skiff-test", home.join(place), "tmpfs", flags, None).expect("a mount");
            fs::create_dir_all(home.join("9/sub")).expect("a directory");
        }
        remove(&dir, "9".as_ref()).expect("gone");
        remove(&dir, "10".as_ref()).expect("gone");
        let left: Vec<_> =
            fs::read_dir(&home).expect("a directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, [""; 0]);
        fs::remove_dir(home).expect("empty");
    }

    #[test]
    fn however_deep_it_goes_and_what_links_lead_to_stays() {
        let (home, parent) = home("");
        let room = home.join("7");
        fs::create_dir_all(&room).expect("a directory");
        fs::write(home.join("kept"), "x").expect("a file");
        let mut dir = openat(CWD, &room, DIR, Mode::empty()).expect("a directory");
        for _ in 0..5000 {
            mkdirat(&dir, "d", Mode::from_raw_mode(0o700)).expect("a level");
            symlinkat(&home, &dir, "link").expect("a link");
            dir = openat(&dir, "d", DIR, Mode::empty()).expect("a level");
        }
        remove(&parent, "7".as_ref()).expect("all gone");
        remove(&parent, "7".as_ref()).expect("gone already");
        let left: Vec<_> =
            fs::read_dir(&home).expect("a directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["kept"]);
        // One that another has removed after it was opened is empty.
        let (path, found) = (home.join("8"), || openat(CWD, home.join("8"), DIR, Mode::empty()));
        fs::create_dir(&path).expect("a directory");
        let dir = found().expect("a directory");
        fs::remove_dir(&path).expect("gone");
        assert_eq!(names(dir.as_fd()), Ok(vec![]));
        fs::remove_dir_all(home).expect("gone");
    }
}
