//! Fills the two layers of stand-ins: `shown` with what is seen in place of the host's, and `hidden`, below it, with whiteouts,
//! which end the look-up. (One layer would do with the attribute that makes a directory opaque, but the overlay is the user's, so it would
//! have to be `user.overlay.opaque`, which tmpfs holds only since Linux 6.6.)

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, chmodat, chownat, fstat,
    mkdirat, mknodat, openat, openat2, statat,
};
use rustix::io::Errno;
use skiff_spec::locked;

use crate::files::FIRST_PERSON;

/// Trees in which a system keeps things to itself, and how deep they are searched. In `/usr` packages have few such things, none of them deep
/// (`/usr/share/polkit-1/rules.d`, `/usr/libexec/sssd/ldap_child`), and to search all of it takes up to a second.
const TREES: [(&str, usize); 6] =
    [("etc", DEEPEST), ("root", DEEPEST), ("var", DEEPEST), ("srv", DEEPEST), ("boot", DEEPEST), ("usr", 3)];
/// More entries than this are no system's secrets but somebody's data; the view keeps them all the same.
const MOST: usize = 200_000;
/// Deeper than this no system keeps its things, and each level holds a descriptor.
const DEEPEST: usize = 32;

/// `sudo` as a new installation has it: who may use it is the environment's own to say.
const SUDOERS: &str =
    "root ALL=(ALL:ALL) ALL\n%sudo ALL=(ALL:ALL) ALL\n%wheel ALL=(ALL:ALL) ALL\n#includedir /etc/sudoers.d\n";

const SHOWN: usize = 0;
const HIDDEN: usize = 1;
/// The layers' names, the upper one first.
const LAYERS: [&str; 2] = ["shown", "hidden"];

/// Fills `layers`, an empty directory.
pub fn fill(layers: BorrowedFd<'_>) -> rustix::io::Result<()> {
    for layer in LAYERS {
        mkdirat(layers, layer, Mode::from_raw_mode(0o755))?;
    }
    let host = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut builder = Builder { left: MOST };
    for (tree, depth) in TREES {
        builder.directory(host.as_fd(), OsStr::new(tree), &Place::Root(layers), depth)?;
    }
    Ok(())
}

/// Where in the layers a directory of the host will be, made only when something is put into it.
enum Place<'a> {
    Root(BorrowedFd<'a>),
    Below { parent: &'a Place<'a>, name: &'a OsStr, like: Stat },
}

impl Place<'_> {
    /// Whether this is `/etc`.
    fn is_etc(&self) -> bool {
        matches!(self, Self::Below { parent: Self::Root(_), name, .. } if *name == "etc")
    }

    fn open(&self, layer: usize) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match self {
            Self::Root(fd) => openat(fd, LAYERS[layer], flags, Mode::empty()),
            Self::Below { parent, name, like } => {
                let parent = parent.open(layer)?;
                match mkdirat(&parent, *name, Mode::from_raw_mode(0o700)) {
                    // The topmost layer that has a directory supplies its owner and mode.
                    Ok(()) => set_like(parent.as_fd(), name, like)?,
                    Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
                openat(&parent, *name, flags, Mode::empty())
            }
        }
    }

    fn whiteout(&self, name: &OsStr) -> rustix::io::Result<()> {
        // A character device 0:0 is what overlayfs calls a whiteout.
        mknodat(self.open(HIDDEN)?, name, FileType::CharacterDevice, Mode::empty(), 0)
    }
}

struct Builder {
    left: usize,
}

impl Builder {
    /// Goes through one directory of the host.
    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        place: &Place<'_>,
        depth: usize,
    ) -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Gone meanwhile, a link, or a mount: no part of the view. (What is mounted is not even asked: its server may be gone, or be a
        // user's program that never answers.)
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let dir = match openat2(parent, name, flags, Mode::empty(), resolve) {
            // What is made of less than all there is would be what everybody gets.
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(e),
            Err(_) => return Ok(()),
            Ok(dir) => dir,
        };
        let like = fstat(&dir)?;
        if like.st_mode & 0o005 == 0 {
            mkdirat(place.open(SHOWN)?, name, Mode::from_raw_mode(0o700))?;
            set_like(place.open(SHOWN)?.as_fd(), name, &like)?;
            return place.whiteout(name);
        }
        if depth == 0 {
            return Ok(());
        }
        // What anybody can fill, and what is somebody's, could be made to use up all of `left`. And names that `other` may not
        // list are not told by what stands in for them.
        if like.st_mode & 0o002 != 0 || like.st_mode & 0o004 == 0 || like.st_uid >= FIRST_PERSON {
            return Ok(());
        }
        let here = Place::Below { parent: place, name, like };
        for entry in Dir::new(rustix::io::fcntl_dupfd_cloexec(&dir, 3)?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || self.left == 0 {
                continue;
            }
            self.left -= 1;
            match entry.file_type() {
                FileType::Directory => self.directory(dir.as_fd(), name, &here, depth - 1)?,
                FileType::Symlink => {}
                _ => file(dir.as_fd(), name, &here)?,
            }
        }
        Ok(())
    }
}

fn file(dir: BorrowedFd<'_>, name: &OsStr, place: &Place<'_>) -> rustix::io::Result<()> {
    let Ok(like) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    let kind = FileType::from_raw_mode(like.st_mode);
    // What others may run and not read (RHEL's `sudo`) could not be run inside either: the view opens it with the rights of nobody.
    if like.st_mode & 0o004 != 0 || kind == FileType::Symlink {
        return Ok(());
    }
    let text = match name.as_bytes() {
        b"shadow" | b"gshadow" if kind == FileType::RegularFile && place.is_etc() => {
            locked_accounts(dir, name)
        }
        b"sudoers" if kind == FileType::RegularFile && place.is_etc() => SUDOERS.into(),
        _ if kind == FileType::RegularFile && like.st_size == 0 => String::new(),
        _ => return place.whiteout(name),
    };
    let at = place.open(SHOWN)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = openat(&at, name, flags, Mode::from_raw_mode(0o600))?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&fd, rest)?..];
    }
    set_like(at.as_fd(), name, &like)
}

pub fn set_like(at: BorrowedFd<'_>, name: &OsStr, like: &Stat) -> rustix::io::Result<()> {
    chownat(
        at,
        name,
        Some(Uid::from_raw(like.st_uid)),
        Some(Gid::from_raw(like.st_gid)),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    // Nothing here is to be run as anybody.
    chmodat(at, name, Mode::from_raw_mode(like.st_mode & 0o1777), AtFlags::empty())
}

/// The names in a password file, each locked.
fn locked_accounts(dir: BorrowedFd<'_>, name: &OsStr) -> String {
    let mut text = String::new();
    if let Ok(fd) = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
        && std::fs::File::from(fd).take(8 << 20).read_to_string(&mut text).is_err()
    {
        text.clear();
    }
    if name == "gshadow" { locked::gshadow(&text) } else { locked::shadow(&text) }
}
