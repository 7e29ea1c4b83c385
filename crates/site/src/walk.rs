//! From `/` to a directory, component by component: each is opened from the descriptor of the one before and looked at by its own
//! descriptor, so that nothing is resolved twice.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, getxattr, mkdirat, openat2, readlinkat,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{geteuid, getgid};

use crate::error::{Error, On, Result};

/// Beneath a descriptor, by no link.
pub(crate) const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// O_DIRECTORY has a home's automount done, which O_PATH alone does not.
const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// A user may mount a file system on another, which root then finds one after the other.
const MOST_MOUNTS: u32 = 1000;
/// As the kernel follows.
const MOST_LINKS: u32 = 40;
/// The uid that stands for those that a user namespace does not map.
const UNMAPPED: u32 = 65534;

/// An open directory of the path.
pub(crate) struct Step {
    pub(crate) fd: OwnedFd,
    name: OsString,
    /// Others may make entries here, but not touch those that are not theirs.
    pub(crate) shared: bool,
}

/// A path being walked.
pub(crate) struct Walk {
    owner: u32,
    steps: Vec<Step>,
    /// Backwards.
    rest: Vec<OsString>,
    links: u32,
}

impl Walk {
    pub(crate) fn begin(path: &Path, owner: u32) -> Result<Self> {
        if !path.is_absolute() {
            return Err(Error::Name { name: path.display().to_string() });
        }
        let root = || PathBuf::from("/");
        let fd = openat2(CWD, "/", DIR, Mode::empty(), ResolveFlags::empty()).on("open", root)?;
        let stat = fstat(&fd).on("look at", root)?;
        let shared = check(&stat, owner, false, &fd).map_err(|()| untrusted(root(), &stat, owner))?;
        let mut walk =
            Self { owner, steps: vec![Step { fd, name: OsString::new(), shared }], rest: vec![], links: 0 };
        walk.push(path);
        Ok(walk)
    }

    fn push(&mut self, path: &Path) {
        let parts = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
        let at = self.rest.len();
        self.rest.extend(parts.map(|part| part.as_os_str().to_owned()));
        self.rest[at..].reverse();
    }

    /// Goes as far as there are directories; whether the last one was reached.
    pub(crate) fn go(&mut self) -> Result<bool> {
        while let Some(name) = self.rest.pop() {
            if name == ".." {
                // That of the root is the root.
                if self.steps.len() > 1 {
                    self.steps.pop();
                }
                continue;
            }
            match self.step(&name) {
                Err(e) if e.errno() == Some(Errno::NOENT) => {
                    self.rest.push(name);
                    return Ok(false);
                }
                done => done?,
            }
        }
        Ok(true)
    }

    fn last(&self) -> &Step {
        &self.steps[self.steps.len() - 1]
    }

    /// Makes the component at which [`Walk::go`] has stopped.
    pub(crate) fn make(&mut self, mode: u32) -> Result<()> {
        let Some(name) = self.rest.pop() else { return Ok(()) };
        let made = match mkdirat(&self.last().fd, &*name, Mode::from_raw_mode(mode)) {
            // Whoever was faster is looked at like anybody.
            Err(Errno::EXIST) => false,
            made => made.map(|()| true).on("make directory", || self.path_of(&name))?,
        };
        self.step(&name)?;
        if made {
            set_mode(&self.last().fd, mode).on("set the mode of", || self.path())?;
        }
        Ok(())
    }

    pub(crate) fn end(mut self) -> Step {
        // There is always the root.
        self.steps.swap_remove(self.steps.len() - 1)
    }

    fn step(&mut self, name: &OsStr) -> Result<()> {
        let last = self.last();
        let fd = match enter(&last.fd, last.shared, name) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP) => return self.follow(name),
            Err(Errno::XDEV) => return Err(Error::Mounted { path: self.path_of(name) }),
            Err(source) => return Err(Error::Io { what: "open", path: self.path_of(name), source }),
        };
        let stat = fstat(&fd).on("look at", || self.path_of(name))?;
        let shared = check(&stat, self.owner, self.last().shared, &fd)
            .map_err(|()| untrusted(self.path_of(name), &stat, self.owner))?;
        self.steps.push(Step { fd, name: name.to_owned(), shared });
        Ok(())
    }

    /// A symbolic link: its text is walked like the rest.
    fn follow(&mut self, name: &OsStr) -> Result<()> {
        let shown = || self.path_of(name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat2(&self.last().fd, name, flags, Mode::empty(), BENEATH).on("open", shown)?;
        let stat = fstat(&fd).on("look at", shown)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {}
            // It was exchanged this moment.
            FileType::Directory => return Err(untrusted(shown(), &stat, self.owner)),
            _ => return Err(Error::NotADirectory { path: shown() }),
        }
        // In a shared directory another user may give a name to a link of this one's: protected_hardlinks is a setting.
        if self.last().shared || !is_own(stat.st_uid, self.owner, false) {
            return Err(Error::Link { path: shown(), uid: stat.st_uid });
        }
        if self.links == MOST_LINKS {
            return Err(Error::Io { what: "open", path: shown(), source: Errno::LOOP });
        }
        let text = readlinkat(&fd, "", vec![]).on("read link", shown)?;
        self.links += 1;
        let text = Path::new(OsStr::from_bytes(text.to_bytes())).to_owned();
        if text.is_absolute() {
            self.steps.truncate(1);
        }
        self.push(&text);
        Ok(())
    }

    fn path(&self) -> PathBuf {
        Path::new("/").join(self.steps.iter().skip(1).map(|step| &step.name).collect::<PathBuf>())
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path().join(name)
    }
}

/// A directory in another. Out of a shared one no way leads into a FUSE file system that is mounted there (`XDEV`): any user can serve
/// one, says who owns what is in it, and need never answer.
pub(crate) fn enter(parent: &OwnedFd, shared: bool, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let open = |resolve| openat2(parent, name, DIR, Mode::empty(), resolve);
    if !shared {
        return open(BENEATH);
    }
    match open(BENEATH | ResolveFlags::NO_XDEV) {
        Err(Errno::XDEV) => {
            let mounted = open(BENEATH)?;
            if is_on_fuse(&mounted)? { Err(Errno::XDEV) } else { Ok(mounted) }
        }
        opened => opened,
    }
}

/// A directory in one of root's, as a place only; what users have mounted on it (FUSE file systems) is unmounted first. Nothing here asks
/// the server of one, which could leave root's process waiting in the kernel, where no signal ends it.
pub(crate) fn enter_without_fuse(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let open = |resolve| openat2(parent, name, DIR, Mode::empty(), BENEATH | resolve);
    let place = Path::new(&proc_path(parent)).join(name);
    // Its user may mount another meanwhile.
    for _ in 0..MOST_MOUNTS {
        match open(ResolveFlags::NO_XDEV) {
            Err(Errno::XDEV) => {}
            opened => return opened,
        }
        let mounted = open(ResolveFlags::empty())?;
        if !is_on_fuse(&mounted)? {
            return Ok(mounted);
        }
        match unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Its user was faster.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::BUSY)
}

/// By the kernel's list of mounts: `fstatfs` asks the file system's server. What is unmounted already counts as FUSE. Names in the list are
/// any user's who mounts one, and of any bytes.
fn is_on_fuse(dir: &OwnedFd) -> rustix::io::Result<bool> {
    let read = |path: &str| std::fs::read(path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
    let info = read(&format!("/proc/self/fdinfo/{}", dir.as_raw_fd()))?;
    let id = info.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"mnt_id:"));
    Ok(is_fuse(&read("/proc/self/mountinfo")?, id.ok_or(Errno::IO)?.trim_ascii()))
}

/// Whether the mount of this number is of a FUSE file system, or none, by the text of `mountinfo`.
fn is_fuse(mounts: &[u8], id: &[u8]) -> bool {
    let mut lines = mounts.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    // `fuse`, `fuse.sshfs`, `fuseblk`
    let kind = lines.find_map(|mut words| {
        (words.next()? == id).then(|| words.skip_while(|word| *word != b"-").nth(1)).flatten()
    });
    kind.is_none_or(|kind| kind.starts_with(b"fuse"))
}

/// Whether a directory is trusted, and then, whether it is shared.
pub(crate) fn check(stat: &Stat, owner: u32, in_shared: bool, fd: &OwnedFd) -> std::result::Result<bool, ()> {
    if !is_own(stat.st_uid, owner, in_shared) {
        return Err(());
    }
    match stat.st_mode & (OTHERS_WRITE | GROUP_WRITES) {
        0 => Ok(false),
        _ if stat.st_mode & STICKY != 0 => Ok(true),
        GROUP_WRITES if is_private_group(stat, owner) && !has_acl(fd) => Ok(false),
        _ => Err(()),
    }
}

/// Whether it is root's or the owner's.
fn is_own(uid: u32, owner: u32, in_shared: bool) -> bool {
    uid == 0 || uid == owner || (uid == UNMAPPED && !in_shared && in_user_namespace())
}

/// Where everybody has a group of the same number for themselves, umask 002 is usual.
fn is_private_group(stat: &Stat, owner: u32) -> bool {
    stat.st_uid == owner && stat.st_gid == owner && geteuid().as_raw() == owner && getgid().as_raw() == owner
}

/// The group's bits of a mode are those of all whom an ACL names.
fn has_acl(fd: &OwnedFd) -> bool {
    let size = getxattr(proc_path(fd), "system.posix_acl_access", &mut [0u8; 0][..]);
    !matches!(size, Err(Errno::NODATA | Errno::NOTSUP))
}

/// In there the host's root is shown as one who is not mapped. Nobody gains: whoever is root in there is this user.
fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map");
    map.is_ok_and(|map| map.split_whitespace().ne(["0", "0", "4294967295"]))
}

fn untrusted(path: PathBuf, stat: &Stat, owner: u32) -> Error {
    Error::Untrusted { path, uid: stat.st_uid, mode: stat.st_mode, owner }
}

/// For calls that take no descriptor of this kind: the kernel follows this link to the very same inode.
pub(crate) fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Whatever the umask has taken away. What a directory passes on of its group stays: a group's quota may hang by it.
pub(crate) fn set_mode(fd: &OwnedFd, mode: u32) -> rustix::io::Result<()> {
    let found = fstat(fd)?.st_mode;
    if found & 0o1777 == mode {
        return Ok(());
    }
    rustix::fs::chmod(proc_path(fd), Mode::from_raw_mode(mode | (found & 0o2000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_shows_by_the_list_of_mounts_whatever_its_names_are() {
        let mounts = b"20 1 8:1 / / rw shared:1 - ext4 /dev/a rw\n2 20 0:63 / /home/mallory/a\xff rw - fuse x\xff rw\n\
                       21 20 0:2 / /a\\040-\\040fuse rw - tmpfs fuse rw\n22 20 0:3 / /b rw master:1 - fuse.sshfs host rw\n";
        for (id, want) in [("20", false), ("2", true), ("21", false), ("22", true), ("23", true), ("", true)]
        {
            assert_eq!(is_fuse(mounts, id.as_bytes()), want, "{id}");
        }
    }
}
