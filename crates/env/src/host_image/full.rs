//! All that an environment over the host's root shows, as an image that needs no host.
//!
//! It is read by a process that has no more rights than root inside, to whom what the host denies to others is not shown. Where the environment was
//! started without the helper, that is not so of what the user may read as themselves, and fuse-overlayfs does not tell what it shows: there the upper
//! and the host's root are read and put together here, and the modes of the host's files decide ([`merged`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat2, syncfs};
use rustix::io::Errno;
use skiff_image::export::changes::UpperMarks;
use skiff_image::export::merged::{self, MergedRoot};
use skiff_image::export::root::{self, OtherContent, RootFilter, RootSize};
use skiff_runtime::control::Live;
use skiff_runtime::environments::Environment;
use skiff_sandbox::enter::{open_root, run_unseen};
use skiff_sandbox::{mountinfo, ssh_user};
use skiff_snapshot::marks;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::locked;
use skiff_spec::plan::inside;
use skiff_store::ours;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use super::{ImageContents, ImageTarget, ReadProgress, watched};
use crate::base_view::open_dir;

/// Directories whose content is of a running system, or somebody's own, and no part of an image. They are empty in it.
const EMPTY: [&str; 8] = ["/boot", "/dev", "/home", "/proc", "/run", "/sys", "/tmp", "/var/tmp"];
/// Of these, such as everybody needs to write to. Inside, other directories are mounted there.
const MODES: [(&str, u16); 2] = [("/tmp", 0o1777), ("/var/tmp", 0o1777)];
/// Files that a file system has for itself.
const LEFT_OUT: [&str; 1] = ["/lost+found"];
/// The host's own logs say who has been on it; what the environment has there are its own.
const LOGS: &str = "/var/log";
/// What tells one system from another, empty until the system begins (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
/// Without the helper the root is fuse-overlayfs's (statfs(2)).
const FUSE: u32 = 0x6573_5546;
/// Builds a shadow file, with each account's password locked, from a list of accounts.
type LockAccounts = fn(&str) -> String;
/// Lists of passwords, each with the list of its accounts.
const PASSWORDS: [(&str, &str, LockAccounts); 2] =
    [("/etc/shadow", "/etc/passwd", locked::shadow), ("/etc/gshadow", "/etc/group", locked::gshadow)];
/// A longer list of accounts is not read, in bytes.
const LONGEST_LIST: u64 = 8 << 20;

/// An environment of which an image is made.
pub struct HostRoot<'a> {
    live: &'a Live,
    name: &'a str,
    upper: PathBuf,
    /// Of the user's own, beside what others may not read anyway.
    own: Vec<PathBuf>,
    /// Commands of the host's in whose place the environment has others.
    shims: Vec<PathBuf>,
}

impl<'a> HostRoot<'a> {
    /// The root of an environment that is running.
    ///
    /// # Errors
    /// It is not known where the user's state is.
    pub fn of(context: &UserContext, env: &'a Environment, live: &'a Live) -> Result<Self> {
        let home = context.home.clone();
        let mut own = vec![home.canonicalize().unwrap_or_else(|_| home.clone()), home];
        own.extend([context.state()?, context.depot()?, context.data()]);
        // Of a user whose home is the root, all would be theirs.
        own.retain(|dir| dir.parent().is_some());
        let (name, upper) = (env.name.as_str(), env.dir.join("upper"));
        Ok(Self { live, name, upper, own, shims: context.config.slurm.shims() })
    }

    /// What an image of it would have.
    ///
    /// # Errors
    /// The root cannot be looked at, or the environment is gone.
    pub fn survey(&self) -> Result<ImageContents> {
        let mounts = std::fs::read(format!("/proc/{}/mountinfo", self.live.pid.as_raw_nonzero()))
            .default_on_error("without the list of mounts they are left out without being named");
        self.with_judge(&[], |judge, filter| {
            let size = match judge.is_merged {
                true => judge.merged(filter, self.name, merged::survey),
                false => root::survey((judge.root, self.name), filter),
            };
            let RootSize { files, bytes } = size.map_err(ours)?;
            let unreadable = judge.count_closed();
            let file_systems = judge.other_file_systems(&mounts);
            Ok(ImageContents { files, bytes, unreadable, file_systems, ..ImageContents::default() })
        })
    }

    /// Writes it as an image file.
    ///
    /// # Errors
    /// The root cannot be read, the image not be written, or the environment is gone.
    pub fn write(&self, target: ImageTarget<'_>, progress: &mut dyn ReadProgress) -> Result<()> {
        self.with_judge(&[target.image, target.room.0], |judge, filter| {
            let (root, ImageTarget { image, room }) = ((judge.root, self.name), target);
            watched(progress, |watch| {
                let written = match judge.is_merged {
                    true => judge.merged(filter, self.name, |merged| {
                        merged::of_merged_root(merged, image, room, watch)
                    }),
                    false => root::of_filtered_root(root, filter, image, room, watch),
                };
                written.map_err(ours)
            })
        })
    }

    /// Does something as root of the environment, where nobody inside sees it.
    fn with_judge<T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        keep: &[BorrowedFd<'_>],
        act: impl FnOnce(&Judge<'_>, RootFilter<'_>) -> Result<T>,
    ) -> Result<T> {
        let init = self.live.init.as_fd();
        let root = open_root(init)?;
        let is_merged = fstatfs(&root).context(|| self.name)?.f_type as u32 == FUSE;
        let kept = [keep, &[root.as_fd()]].concat();
        let done = run_unseen(init, &kept, || {
            let (upper, host) = (open_dir(&self.upper)?, open_dir(Path::new("/"))?);
            let judge = Judge::new(root.as_fd(), (upper.as_fd(), host.as_fd()), &self.own);
            let judge = Judge { is_merged, shims: &self.shims, ..judge };
            if is_merged {
                // What programs have written, and the kernel not yet handed on to the upper. (Of a file that is open for writing yet, kernels before
                // about 6.15 do not wait for all.)
                open(judge.root, b"").and_then(syncfs).context(|| self.name)?;
            }
            let replaced = judge.replaced()?;
            let leave_out = |path: &[u8], target: Option<&[u8]>| judge.leaves_out(path, target);
            let unreadable = |path: &[u8]| judge.unreadable.borrow_mut().push(path.to_vec());
            let filter = RootFilter {
                unreadable: Some(&unreadable),
                modes: &MODES,
                ..RootFilter::plain(&leave_out, &replaced)
            };
            let done = act(&judge, filter)?;
            judge.refuse_incomplete(self.name).map(|()| done)
        })?;
        self.live.still_runs(self.name).map(|()| done)
    }
}

/// Decides what of a root is in an image.
struct Judge<'a> {
    root: BorrowedFd<'a>,
    upper: BorrowedFd<'a>,
    host: BorrowedFd<'a>,
    own: &'a [PathBuf],
    /// Whether upper and host are put together here.
    is_merged: bool,
    shims: &'a [PathBuf],
    /// What root inside may not read.
    unreadable: RefCell<Vec<Vec<u8>>>,
}

impl<'a> Judge<'a> {
    fn new(
        root: BorrowedFd<'a>,
        (upper, host): (BorrowedFd<'a>, BorrowedFd<'a>),
        own: &'a [PathBuf],
    ) -> Self {
        Judge { root, upper, host, own, is_merged: false, shims: &[], unreadable: RefCell::default() }
    }

    /// Does something with upper and host put together.
    fn merged<T>(&self, filter: RootFilter<'_>, name: &str, act: impl FnOnce(&MergedRoot<'_>) -> T) -> T {
        let marks = UpperMarks { is_opaque: &marks::is_opaque, names: &marks::FUSE_MARKS };
        let (upper, host) = (self.upper, self.host);
        let leave_out = |path: &[u8], target: Option<&[u8]>| Ok(self.is_no_part(path, target));
        let filter = RootFilter { leave_out: &leave_out, ..filter };
        let is_shim = |path: &[u8]| self.shims.iter().any(|shim| shim.as_os_str().as_bytes() == path);
        let leave_out_of_host = &|path: &[u8], _: Option<&[u8]>| Ok(is_below(path, LOGS) || is_shim(path));
        act(&MergedRoot { upper, host, name, marks, filter, leave_out_of_host })
    }

    /// Whether a file is left out whatever it is.
    fn is_no_part(&self, path: &[u8], target: Option<&[u8]>) -> bool {
        is_no_part(path, self.own) || inside::is_own(path, target) || ssh_user::is_own(path, target)
    }

    /// Whether a file is left out, by its path and, of a link, where it leads. A directory is asked for before what is in it.
    fn leaves_out(&self, path: &[u8], target: Option<&[u8]>) -> rustix::io::Result<bool> {
        if self.is_no_part(path, target) {
            return Ok(true);
        }
        let kind = match look(self.root, path) {
            // What goes meanwhile, or is closed meanwhile, is left out.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(true),
            found => FileType::from_raw_mode(found?.st_mode),
        };
        let is_log = is_below(path, LOGS) && kind != FileType::Directory;
        Ok(kind == FileType::Socket || (is_log && !self.is_changed(path)?))
    }

    /// Whether the environment has a file of its own there.
    fn is_changed(&self, path: &[u8]) -> rustix::io::Result<bool> {
        match look(self.upper, path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Files that are in the image as on a system that nobody has used yet, unless they are the environment's own.
    fn replaced(&self) -> Result<BTreeMap<Vec<u8>, OtherContent>> {
        let mut replaced = BTreeMap::new();
        let mut put = |path: &str, content: &dyn Fn() -> Result<String>| {
            if !self.is_changed(path.as_bytes()).context(|| path)? {
                let content = content()?.into_bytes();
                replaced.insert(path.as_bytes().to_vec(), OtherContent { content, mtime: None });
            }
            Ok::<_, Fault>(())
        };
        put(MACHINE_ID, &|| Ok(String::new()))?;
        // The helper has put such lists there.
        for (list, accounts, lock) in PASSWORDS.into_iter().filter(|_| self.is_merged) {
            put(list, &|| Ok(lock(&text(self.root, accounts)?)))?;
        }
        Ok(replaced)
    }

    /// Makes sure that no file of the environment's own was left out, as root inside may not read it.
    fn refuse_incomplete(&self, name: &str) -> Result<()> {
        for path in self.unreadable.borrow().iter() {
            let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if look(self.upper, path).is_ok_and(|stat| is_file(&stat)) {
                let shown = path.escape_ascii();
                return Err(Fault::new(format!("environment {name}: {shown}: root inside may not read it"))
                    .hint("chmod it inside, or remove it"));
            }
        }
        Ok(())
    }

    /// How many files and directories of the host's others may not read, and the environment has not of its own.
    fn count_closed(&self) -> u64 {
        let mut count = 0;
        let mut ahead = vec![vec![]];
        while let Some(directory) = ahead.pop() {
            let Ok(entries) = open(self.host, &directory).and_then(|dir| Dir::read_from(&dir)) else {
                count += 1;
                continue;
            };
            for entry in entries {
                // One that was removed, or cannot be read on, is none of the image's either.
                let Ok(entry) = entry else { break };
                let name = entry.file_name().to_bytes();
                let path = [&directory, &b"/"[..], name].concat();
                if matches!(name, b"." | b"..") || is_no_part(&path, self.own) || is_below(&path, LOGS) {
                    continue;
                }
                match look(self.host, &path) {
                    Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                        if root::is_for_others(&stat) {
                            ahead.push(path)
                        } else {
                            count += 1
                        }
                    }
                    Ok(stat)
                        if root::is_for_others(&stat)
                            || stat.st_size == 0
                            || self.is_changed(&path).unwrap_or(false) => {}
                    // What is mounted there is another file system.
                    Err(Errno::XDEV | Errno::NOENT) => {}
                    Ok(_) | Err(_) => count += 1,
                }
            }
        }
        count
    }

    /// Other file systems that are mounted in the root, by the text of `mountinfo`: their places and types.
    fn other_file_systems(&self, mounts: &[u8]) -> Vec<(String, String)> {
        let is_dir = |place: &Path| {
            let found = look(self.root, place.as_os_str().as_bytes());
            // Under a mount within a mount there is nothing.
            !found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory)
        };
        let is_told = |place: &Path| {
            let path = place.as_os_str().as_bytes();
            path != b"/" && !EMPTY.iter().any(|dir| path == dir.as_bytes()) && !is_no_part(path, self.own)
        };
        let other = mountinfo::parse(mounts).into_iter();
        let other = other.filter(|mount| is_told(&mount.place) && is_dir(&mount.place));
        // Of several at one place the last is seen.
        let seen: BTreeMap<PathBuf, String> = other.map(|mount| (mount.place, mount.kind)).collect();
        seen.into_iter().map(|(place, kind)| (place.display().to_string(), kind)).collect()
    }
}

/// Whether a path is of a running system, or somebody's own.
fn is_no_part(path: &[u8], own: &[PathBuf]) -> bool {
    let as_path = Path::new(OsStr::from_bytes(path));
    EMPTY.iter().any(|dir| is_below(path, dir))
        || LEFT_OUT.iter().any(|file| path == file.as_bytes())
        || own.iter().any(|dir| as_path.starts_with(dir))
}

fn is_below(path: &[u8], dir: &str) -> bool {
    path.strip_prefix(dir.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

/// The text of a list of accounts; nothing if there is none that can be read.
fn text(root: BorrowedFd<'_>, path: &str) -> Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat2(root, path.trim_start_matches('/'), flags, Mode::empty(), WITHIN) {
        Ok(file) => std::fs::File::from(file),
        Err(_) => return Ok(String::new()),
    };
    let mut bytes = vec![];
    file.take(LONGEST_LIST).read_to_end(&mut bytes).context(|| path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whoever made the root chose what is in it: nothing is followed, nothing waited for, and no other file system asked.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What is at a path.
fn look(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<Stat> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fstat(openat2(root, path, flags, Mode::empty(), WITHIN)?)
}

fn open(root: BorrowedFd<'_>, directory: &[u8]) -> rustix::io::Result<OwnedFd> {
    let path = directory.strip_prefix(b"/").unwrap_or(b".");
    openat2(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), WITHIN)
}

#[cfg(test)]
mod tests;
