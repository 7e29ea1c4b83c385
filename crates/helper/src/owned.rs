//! The stand-ins as one user's own copy, for kernels on which the mount that all share cannot be given to a user's ids: tmpfs takes
//! id-mapped mounts from Linux 6.3 on only. The owners in the copy are what an id-mapped mount would show; it is read-only as
//! the shared one is, and goes with the environment.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, mkdirat, mknodat, openat,
    readlinkat, statat, symlinkat,
};
use skiff_spec::ids::IdMap;

use crate::files::NOBODY;
use crate::mask;

/// Whether tmpfs takes id maps. By the version, as there is no user namespace yet to try it with; where a distribution has added it to
/// an older kernel, a copy does as well.
pub fn shared_will_do() -> bool {
    skiff_sys::kernel::is_at_least(6, 3)
}

/// Which ids the copy's owners get.
pub struct Owners<'a> {
    pub users: &'a IdMap,
    pub groups: &'a IdMap,
}

/// A detached mount with all that is in `layers`.
pub fn copy(layers: BorrowedFd<'_>, owners: &Owners<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let from = openat(layers, ".", flags, Mode::empty())?;
    mask::file_system(|root| tree(from.as_fd(), root, owners))
}

fn tree(from: BorrowedFd<'_>, to: BorrowedFd<'_>, owners: &Owners<'_>) -> io::Result<()> {
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            one(from, to, name, owners)?;
        }
    }
    Ok(())
}

fn one(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, owners: &Owners<'_>) -> io::Result<()> {
    let like = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let read = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match FileType::from_raw_mode(like.st_mode) {
        FileType::Directory => {
            mkdirat(to, name, Mode::from_raw_mode(0o700))?;
            let flags = read | OFlags::DIRECTORY;
            let (source, target) =
                (openat(from, name, flags, Mode::empty())?, openat(to, name, flags, Mode::empty())?);
            tree(source.as_fd(), target.as_fd(), owners)?;
        }
        FileType::RegularFile => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mut source = std::fs::File::from(openat(from, name, read, Mode::empty())?);
            let mut target = std::fs::File::from(openat(to, name, flags, Mode::from_raw_mode(0o600))?);
            io::copy(&mut source, &mut target)?;
        }
        FileType::Symlink => symlinkat(readlinkat(from, name, vec![])?, to, name)?,
        // A whiteout, whose owner is nobody's concern.
        kind => return Ok(mknodat(to, name, kind, Mode::empty(), like.st_rdev)?),
    }
    set_owner(to, name, &like, owners)
}

/// What has no owner inside belongs to nobody.
fn set_owner(at: BorrowedFd<'_>, name: &CStr, like: &Stat, owners: &Owners<'_>) -> io::Result<()> {
    let user = Uid::from_raw(owners.users.outside(like.st_uid).unwrap_or(NOBODY));
    let group = Gid::from_raw(owners.groups.outside(like.st_gid).unwrap_or(NOBODY));
    chownat(at, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(like.st_mode) != FileType::Symlink {
        chmodat(at, name, Mode::from_raw_mode(like.st_mode & 0o1777), AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use skiff_spec::ids::Range;

    use super::*;

    /// CI's kernel has no need of copies, so it is tried for itself.
    #[test]
    fn copies_belong_to_the_user_and_take_no_changes() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "only root can mount");
            // Past the harness, which keeps what a passing test prints to itself.
            return io::Write::write_all(&mut io::stderr(), b"SKIPPED: only root can mount\n").unwrap();
        }
        let dir = std::env::temp_dir().join(format!("skiff-owned-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("shown/etc")).unwrap();
        std::fs::write(dir.join("shown/etc/shadow"), "root:*:1::::::\n").unwrap();
        chown(dir.join("shown/etc/shadow"), Some(0), Some(42)).unwrap();
        chown(dir.join("shown/etc"), Some(70_000), Some(0)).unwrap();
        symlink("/run/skiff/program", dir.join("srun")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let layers = openat(rustix::fs::CWD, &dir, flags, Mode::empty()).unwrap();
        mknodat(&layers, "gone", FileType::CharacterDevice, Mode::empty(), 0).unwrap();

        let map = |own| IdMap::new(own, Some(Range { first: 100_000, count: 65535 }), &[]);
        let (users, groups) = (map(1000), map(1001));
        let copy = copy(layers.as_fd(), &Owners { users: &users, groups: &groups }).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();

        for (path, user, group) in [
            ("shown", 1000, 1001),
            ("shown/etc", NOBODY, 1001),
            ("shown/etc/shadow", 1000, 100_041),
            ("srun", 1000, 1001),
        ] {
            let like = statat(&copy, path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            assert_eq!((like.st_uid, like.st_gid), (user, group), "{path}");
        }
        let whiteout = statat(&copy, "gone", AtFlags::empty()).unwrap();
        assert_eq!(
            (FileType::from_raw_mode(whiteout.st_mode), whiteout.st_rdev),
            (FileType::CharacterDevice, 0)
        );
        let file = openat(&copy, "shown/etc/shadow", OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(std::fs::File::from(file).metadata().unwrap().len(), 15);
        let more = openat(&copy, "more", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600));
        assert_eq!(more.unwrap_err(), rustix::io::Errno::ROFS);
    }
}
