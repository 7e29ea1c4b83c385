//! Removes by root what a user has made, however much and however deep it is: beyond some thousand levels paths are too long, descriptors and
//! the stack run out, and a directory that root cannot remove would be in the way of everybody's jobs.
//!
//! What is to go is first moved out of the way, into a directory of root's for each user (`.removed/UID`): that takes no time, and may be done
//! under a lock. It is emptied later, within a given time. What is left then, or by a crash, is emptied by the next one.
//!
//! Each directory below is moved up there, too, before what is in it is. So no more than one level is ever open, and nothing that its user
//! moves meanwhile leads elsewhere.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, ResolveFlags, Stat, fchmod, fchown, fstat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;

/// Beside what is removed; in it a directory for each user whose files they are.
const TRASH: &str = ".removed";
/// How often another's end may come between.
const TRIES: usize = 1000;
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Not across a mount, either: the server of a FUSE file system could let whoever opens it wait for ever.
const HERE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// A user's directory in one of root's, as a place only, and whose it is; nothing if there is no directory of this name.
pub fn opened(parent: &TrustedDir, name: &OsStr) -> Result<Option<(OwnedFd, Stat)>> {
    let shown = || parent.path_of(name).display().to_string();
    let open = || openat2(parent, name, DIR.union(OFlags::PATH), Mode::empty(), HERE);
    let mut dir = open();
    // Its user may mount another meanwhile.
    for _ in 0..TRIES {
        if !matches!(dir, Err(Errno::XDEV)) {
            break;
        }
        unmount_all(parent.as_fd(), name);
        dir = open();
    }
    match dir {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        dir => {
            let dir = dir.context(shown)?;
            let stat = fstat(&dir).context(shown)?;
            Ok(Some((dir, stat)))
        }
    }
}

/// Moves a directory in one of root's out of the way; one that is gone already is no error.
pub fn discard(parent: &TrustedDir, name: &OsStr, owner: u32) -> Result<()> {
    // The user's directory is one for all of the user's jobs: another's end may remove it before something is put in.
    for _ in 0..TRIES {
        // Not by stat(2), which asks the server of a FUSE file system that its user has mounted there, or fails (EACCES).
        if opened(parent, name)?.is_none() {
            return Ok(());
        }
        let bin = parent.make_dir(TRASH, 0o700).and_then(|trash| trash.make_dir(owner.to_string(), 0o700));
        let bin = match bin {
            Err(e) if e.errno() == Some(Errno::NOENT) => continue,
            bin => bin?,
        };
        match renameat(parent, name, &bin, unique()) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {}
            // Somebody has mounted something there: it goes with its directory.
            Err(Errno::BUSY) => unmount_all(parent.as_fd(), name),
            Err(e) => return Err(e).context(|| shown(parent, name)),
        }
    }
    Err(Errno::BUSY).context(|| shown(parent, name))
}

/// Removes what was discarded of a user's; whether all of it went within that time.
pub fn empty_of(parent: &TrustedDir, owner: u32, limit: Duration) -> Result<bool> {
    let Some(trash) = trash(parent)? else { return Ok(true) };
    empty_bin(&trash, owner.to_string().as_ref(), Some(limit))
}

/// Removes what was discarded of everybody's, each user's for an equal part of that time; whether all of it went.
pub fn empty(parent: &TrustedDir, limit: Option<Duration>) -> Result<bool> {
    let Some(trash) = trash(parent)? else { return Ok(true) };
    let bins = match trash.names() {
        Err(e) if e.errno() == Some(Errno::NOENT) => return Ok(true),
        bins => bins?,
    };
    let each = limit.map(|limit| limit / u32::try_from(bins.len()).unwrap_or(u32::MAX).max(1));
    let mut all_gone = Ok(true);
    for bin in &bins {
        // What cannot be removed of one user's keeps nothing of another's.
        let gone = empty_bin(&trash, bin, each);
        all_gone = all_gone.and_then(|all| Ok(gone? && all));
    }
    unlinkat(parent, TRASH, AtFlags::REMOVEDIR).ignore_error("another may have put something in");
    all_gone
}

/// What is to be emptied yet.
pub fn left(parent: &TrustedDir) -> Result<Vec<PathBuf>> {
    let Some(trash) = trash(parent)? else { return Ok(vec![]) };
    match trash.names() {
        Err(e) if e.errno() == Some(Errno::NOENT) => Ok(vec![]),
        names => Ok(names?.into_iter().map(|name| trash.path_of(name)).collect()),
    }
}

fn trash(parent: &TrustedDir) -> Result<Option<TrustedDir>> {
    match parent.dir(TRASH) {
        Err(e) if e.errno() == Some(Errno::NOENT) => Ok(None),
        trash => Ok(Some(trash?)),
    }
}

fn empty_bin(trash: &TrustedDir, name: &OsStr, limit: Option<Duration>) -> Result<bool> {
    let bin = match openat2(trash, name, DIR, Mode::empty(), HERE) {
        Err(Errno::NOENT) => return Ok(true),
        bin => bin.context(|| shown(trash, name))?,
    };
    // Whatever lies here, no user puts anything into it.
    fchown(&bin, Some(geteuid()), None)
        .and_then(|()| fchmod(&bin, Mode::RWXU))
        .context(|| shown(trash, name))?;
    let mut emptying =
        Emptying { bin: &bin, until: limit.map(|limit| Instant::now() + limit), removed: false };
    match emptying.all() {
        Err(Errno::TIME) => return Ok(false),
        done => done.context(|| shown(trash, name))?,
    }
    unlinkat(trash, name, AtFlags::REMOVEDIR).ignore_error("another may have put something in");
    Ok(true)
}

fn shown(parent: &TrustedDir, name: &OsStr) -> String {
    format!("removing {}", parent.path_of(name).display())
}

/// Whose names are read one by one: millions of them would not fit into memory.
struct Emptying<'a> {
    bin: &'a OwnedFd,
    /// Beyond that, everything ends with `ETIME`.
    until: Option<Instant>,
    /// Whether anything has gone since that was last asked.
    removed: bool,
}

impl Emptying<'_> {
    /// Removes everything, level by level. What cannot be removed stays, and keeps nothing else from going.
    ///
    /// # Errors
    /// The last, if a look at all that is left has removed nothing.
    fn all(&mut self) -> rustix::io::Result<()> {
        loop {
            self.removed = false;
            let mut failed = Ok(());
            for name in names(self.bin.as_fd())? {
                match self.lift(&name?) {
                    Ok(()) => {}
                    Err(Errno::TIME) => return Err(Errno::TIME),
                    Err(e) => failed = Err(e),
                }
            }
            if !self.removed {
                return failed;
            }
        }
    }

    /// Removes an entry of the first level, to which what is below it moves up.
    fn lift(&mut self, name: &CStr) -> rustix::io::Result<()> {
        if self.is_removed(self.bin.as_fd(), name)? {
            return Ok(());
        }
        let open = || openat2(self.bin, name, DIR, Mode::empty(), HERE);
        let dir = match open() {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::XDEV) => {
                unmount_all(self.bin.as_fd(), OsStr::from_bytes(name.to_bytes()));
                open()?
            }
            dir => dir?,
        };
        // From now on its user puts nothing into it.
        fchown(&dir, Some(geteuid()), None)?;
        fchmod(&dir, Mode::RWXU)?;
        for child in names(dir.as_fd())? {
            let child = child?;
            if !self.is_removed(dir.as_fd(), &child)? {
                self.move_up(&dir, &child)?;
            }
        }
        self.gone(unlinkat(self.bin, name, AtFlags::REMOVEDIR))
    }

    fn move_up(&mut self, dir: &OwnedFd, child: &CStr) -> rustix::io::Result<()> {
        let rename = || renameat(dir, child, self.bin, unique());
        let moved = match rename() {
            Err(Errno::BUSY) => {
                unmount_all(dir.as_fd(), OsStr::from_bytes(child.to_bytes()));
                rename()
            }
            moved => moved,
        };
        self.gone(moved)
    }

    /// Removes a file or an empty directory; not one in which something is.
    fn is_removed(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(Errno::TIME);
        }
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
            other => self.gone(other).map(|()| true),
        }
    }

    /// Several may remove the same.
    fn gone(&mut self, done: rustix::io::Result<()>) -> rustix::io::Result<()> {
        match done {
            Err(Errno::NOENT) => Ok(()),
            done => {
                self.removed |= done.is_ok();
                done
            }
        }
    }
}

/// Takes off what a user has mounted on a file or directory (FUSE file systems can be, without a right).
fn unmount_all(dir: BorrowedFd<'_>, name: &OsStr) {
    let place = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    // What cannot be unmounted shows when it is to be removed, as does what its user mounts meanwhile.
    for _ in 0..TRIES {
        if unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            return;
        }
    }
}

fn names(
    dir: BorrowedFd<'_>,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<std::ffi::CString>>> {
    let entries = match Dir::read_from(dir) {
        // What another has removed meanwhile cannot be read any more.
        Err(Errno::NOENT) => None,
        entries => Some(entries?),
    };
    let all = entries.into_iter().flatten().map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let is_dots = |name: &std::ffi::CString| matches!(name.to_bytes(), b"." | b"..");
    Ok(all.filter(move |name| !matches!(name, Err(Errno::NOENT)) && !name.as_ref().is_ok_and(is_dots)))
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

    use rustix::fs::{CWD, mkdirat, openat, symlinkat};

    use std::io::Write;

    use super::*;

    fn remove(dir: &TrustedDir, name: &str) {
        discard(dir, name.as_ref(), 7).expect("moved");
        // Another may be at it, too, and may not have finished.
        while !empty(dir, None).expect("gone") {}
    }

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
                        remove(dir, &name);
                        assert!(!path.exists(), "{}", path.display());
                    }
                });
            }
        });
        fs::remove_dir(home).expect("empty");
    }

    #[test]
    fn what_takes_too_long_is_gone_on_with_by_the_next_and_keeps_nobody_elses() {
        let (home, dir) = home("-long");
        for (name, owner) in [("1", 7), ("2", 8)] {
            fs::create_dir_all(home.join(name).join("in/it")).expect("a directory");
            for file in 0..5000 {
                fs::write(home.join(name).join("in").join(file.to_string()), "").expect("a file");
            }
            discard(&dir, name.as_ref(), owner).expect("moved");
            assert!(!home.join(name).exists());
        }
        let left = |owner: &str| home.join(TRASH).join(owner).exists();
        assert!(!empty_of(&dir, 7, Duration::ZERO).expect("in time"));
        assert!(empty_of(&dir, 8, Duration::from_secs(60)).expect("in time"));
        assert!(left("7") && !left("8"));
        assert_eq!(super::left(&dir).expect("listed"), [home.join(TRASH).join("7")]);
        // What an earlier release has left, and a crash.
        fs::create_dir_all(home.join(TRASH).join("1.2.3/in/it")).expect("a directory");
        assert!(!empty(&dir, Some(Duration::ZERO)).expect("in time"));
        assert!(left("7"));
        assert!(empty(&dir, None).expect("gone"));
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
        remove(&dir, "9");
        remove(&dir, "10");
        let left: Vec<_> =
            fs::read_dir(&home).expect("a directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, [""; 0]);
        fs::remove_dir(home).expect("empty");
    }

    #[test]
    fn what_its_user_mounts_on_it_meanwhile_goes_too() {
        let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
        let (true, Ok(server)) = (geteuid().is_root(), fuse) else {
            std::io::stderr().write_all(b"SKIPPED: not root, or no /dev/fuse\n").expect("said");
            return;
        };
        let (home, dir) = home("-meanwhile");
        fs::create_dir(home.join("9")).expect("a directory");
        let flags = rustix::mount::MountFlags::empty();
        // Without `allow_other` root gets EACCES for whatever it asks.
        let options = format!("fd={},rootmode=40000,user_id=4712,group_id=4712", server.as_raw_fd());
        let options = std::ffi::CString::new(options).expect("text");
        rustix::mount::mount("skiff-test", home.join("9"), "fuse", flags, &*options).expect("a mount");
        let refused = dir.stat("9").expect_err("this is no attack");
        assert_eq!(refused.errno(), Some(rustix::io::Errno::ACCESS));
        discard(&dir, "9".as_ref(), 7).expect("moved");
        assert!(empty(&dir, None).expect("gone"));
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
        remove(&parent, "7");
        remove(&parent, "7");
        let left: Vec<_> =
            fs::read_dir(&home).expect("a directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["kept"]);
        // One that another has removed after it was opened is empty.
        let (path, found) = (home.join("8"), || openat(CWD, home.join("8"), DIR, Mode::empty()));
        fs::create_dir(&path).expect("a directory");
        let dir = found().expect("a directory");
        fs::remove_dir(&path).expect("gone");
        assert_eq!(names(dir.as_fd()).expect("empty").count(), 0);
        fs::remove_dir_all(home).expect("gone");
    }
}
