//! Stand-ins for what `other` may not read: the layer above the view of the host's root.
//!
//! The view alone keeps every secret, but by refusing, and package managers stumble over names they can see and not open.
//! So such names are made to look as on a fresh system: a file is absent, except that the password files have every
//! account locked and lock files are empty; a directory is empty. Only comfort depends on this layer being complete and
//! recent, so it is kept between starts and made anew when the directories that matter have changed, or once in a while.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, XattrFlags,
    chmodat, chownat, fgetxattr, flock, fsetxattr, fstat, mkdirat, mknodat, openat, openat2, renameat, stat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use skiff_sandbox::{Context, Error, Result};

/// Where it is kept: never inside the tree of `/` itself, as one layer of an overlay may not lie in another.
const DIR: &str = "/run/skiff";
/// Trees in which a system keeps things to itself.
const TREES: [&str; 5] = ["etc", "root", "var", "srv", "boot"];
/// Directories whose change says that something was added or taken away.
const WATCHED: [&str; 8] = ["etc", "etc/ssh", "root", "var", "var/lib", "var/log", "var/cache", "var/spool"];
/// Seconds after which it is made anew in any case.
const AGE: i64 = 600;
/// A bound on the work of one call. What lies beyond it the view keeps all the same.
const MOST: usize = 500_000;

/// Opens the current stand-ins, made anew if they are old.
pub fn current() -> Result<OwnedFd> {
    let dir = state_dir()?;
    let state = host_state();
    if let Some(layer) = open_if_fresh(dir.as_fd(), &state) {
        return Ok(layer);
    }
    let lock = openat(
        &dir,
        "lock",
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::from_raw_mode(0o600),
    )
    .context(|| format!("{DIR}/lock"))?;
    flock(&lock, FlockOperation::LockExclusive).context(|| format!("{DIR}/lock"))?;
    match open_if_fresh(dir.as_fd(), &state) {
        Some(layer) => Ok(layer),
        None => renew(dir.as_fd(), &state).context(|| format!("stand-ins in {DIR}")),
    }
}

/// `/run/skiff`, made and checked: root's, and on another file system than `/`.
fn state_dir() -> Result<OwnedFd> {
    let name = || DIR;
    match rustix::fs::mkdir(DIR, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        other => other.context(name)?,
    }
    let mut dir = open_state_dir()?;
    if stat("/").context(|| "/")?.st_dev == fstat(&dir).context(name)?.st_dev {
        rustix::mount::mount(
            "skiff",
            DIR,
            "tmpfs",
            rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV,
            c"mode=755",
        )
        .context(name)?;
        dir = open_state_dir()?;
    }
    Ok(dir)
}

fn open_state_dir() -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(CWD, DIR, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).context(|| DIR)?;
    let stat = fstat(&dir).context(|| DIR)?;
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
        return Err(Error::new(format!("{DIR}: does not belong to root alone"))
            .hint("administrator: chown root, chmod 755"));
    }
    Ok(dir)
}

/// What says that the host has changed: the times of directories, as text.
fn host_state() -> String {
    let time = |path: &&str| {
        stat(format!("/{path}"))
            .map_or_else(|_| "-".to_owned(), |s| format!("{}.{}", s.st_mtime, s.st_mtime_nsec))
    };
    WATCHED.iter().map(time).collect::<Vec<_>>().join(" ")
}

const STATE: &str = "user.skiff.state";

fn open_if_fresh(dir: BorrowedFd<'_>, state: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let layer = openat(dir, "mask", flags, Mode::empty()).ok()?;
    let mut buffer = [0u8; 512];
    let n = fgetxattr(&layer, STATE, &mut buffer[..]).ok()?;
    let (made, of) = std::str::from_utf8(buffer.get(..n)?).ok()?.split_once(' ')?;
    let age = now() - made.parse::<i64>().ok()?;
    (of == state && (0..AGE).contains(&age)).then_some(layer)
}

fn now() -> i64 {
    // Since boot: nobody sets this clock.
    rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec
}

/// Builds a new layer beside the old one and swaps the names. Environments that run keep the old one: its tree stays, under a
/// number, until the next boot, unless it is the same as the new.
fn renew(dir: BorrowedFd<'_>, state: &str) -> rustix::io::Result<OwnedFd> {
    let number = (0..)
        .map(|n: u32| format!("mask.{n}"))
        .find(|name| statat(dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_err());
    let name = number.ok_or(Errno::NOSPC)?;
    let host = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    mkdirat(dir, &name, Mode::from_raw_mode(0o755))?;
    let layer = openat(dir, &name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut builder = Builder { left: MOST, device: fstat(&host)?.st_dev };
    for tree in TREES {
        builder.directory(host.as_fd(), OsStr::new(tree), &Place::Root(layer.as_fd()))?;
    }
    fsetxattr(&layer, STATE, format!("{} {state}", now()).as_bytes(), XattrFlags::empty())?;
    match unlinkat(dir, "mask.new", AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    symlinkat(&name, dir, "mask.new")?;
    renameat(dir, "mask.new", dir, "mask")?;
    Ok(layer)
}

/// Where in the layer a directory of the host will be, made only when something is put into it.
enum Place<'a> {
    Root(BorrowedFd<'a>),
    Below { parent: &'a Place<'a>, name: &'a OsStr, like: Stat },
}

impl Place<'_> {
    fn open(&self) -> rustix::io::Result<OwnedFd> {
        match self {
            Self::Root(fd) => rustix::io::fcntl_dupfd_cloexec(fd, 3),
            Self::Below { parent, name, like } => {
                let parent = parent.open()?;
                match mkdirat(&parent, *name, Mode::from_raw_mode(0o700)) {
                    Ok(()) => set_like(parent.as_fd(), name, like)?,
                    Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
                openat(
                    &parent,
                    *name,
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                    Mode::empty(),
                )
            }
        }
    }
}

struct Builder {
    left: usize,
    device: u64,
}

impl Builder {
    /// Goes through one directory of the host.
    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        place: &Place<'_>,
    ) -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Gone meanwhile, or a link: not a directory of this system's.
        let Ok(dir) = openat(parent, name, flags, Mode::empty()) else { return Ok(()) };
        let like = fstat(&dir)?;
        // Where anybody can put things (/var/tmp), nothing is the system's, and the number of things is anybody's choice.
        if like.st_dev != self.device || like.st_mode & 0o002 != 0 {
            return Ok(());
        }
        if like.st_mode & 0o005 == 0 {
            return stand_in_directory(place.open()?.as_fd(), name, &like);
        }
        let here = Place::Below { parent: place, name, like };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || self.left == 0 {
                continue;
            }
            self.left -= 1;
            if entry.file_type() == FileType::Directory {
                self.directory(dir.as_fd(), name, &here)?;
            } else {
                file(dir.as_fd(), name, &here)?;
            }
        }
        Ok(())
    }
}

fn file(dir: BorrowedFd<'_>, name: &OsStr, place: &Place<'_>) -> rustix::io::Result<()> {
    let Ok(like) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    let kind = FileType::from_raw_mode(like.st_mode);
    if like.st_mode & 0o004 != 0 || kind == FileType::Symlink {
        return Ok(());
    }
    let at = place.open()?;
    let text = match name.as_bytes() {
        b"shadow" | b"gshadow" if kind == FileType::RegularFile => Some(locked_accounts(dir, name)),
        _ if kind == FileType::RegularFile && like.st_size == 0 => Some(String::new()),
        _ => None,
    };
    match text {
        // A character device 0:0 is what overlayfs calls a whiteout.
        None => mknodat(&at, name, FileType::CharacterDevice, Mode::empty(), 0),
        Some(text) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let fd = openat(&at, name, flags, Mode::from_raw_mode(0o600))?;
            rustix::io::write(&fd, text.as_bytes())?;
            set_like(at.as_fd(), name, &like)
        }
    }
}

/// An empty directory that hides the host's.
fn stand_in_directory(at: BorrowedFd<'_>, name: &OsStr, like: &Stat) -> rustix::io::Result<()> {
    mkdirat(at, name, Mode::from_raw_mode(0o700))?;
    let fd = openat(
        at,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )?;
    fsetxattr(&fd, "user.overlay.opaque", b"y", XattrFlags::empty())?;
    set_like(at, name, like)
}

fn set_like(at: BorrowedFd<'_>, name: &OsStr, like: &Stat) -> rustix::io::Result<()> {
    chownat(
        at,
        name,
        Some(Uid::from_raw(like.st_uid)),
        Some(Gid::from_raw(like.st_gid)),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    chmodat(at, name, Mode::from_raw_mode(like.st_mode & 0o7777), AtFlags::empty())
}

/// The names in a password file, each locked.
fn locked_accounts(dir: BorrowedFd<'_>, name: &OsStr) -> String {
    let mut text = String::new();
    if let Ok(fd) = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
        && std::fs::File::from(fd).take(8 << 20).read_to_string(&mut text).is_err()
    {
        text.clear();
    }
    let rest = if name == "gshadow" { "*::" } else { "*:19000:0:99999:7:::" };
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(account, _)| format!("{account}:{rest}\n"))
        .collect()
}
