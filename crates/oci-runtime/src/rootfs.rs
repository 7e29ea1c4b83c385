//! A container's root: its mounts and devices, what of it is hidden and what cannot be written to; and the way into it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, major, minor, openat};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags, open_tree, unmount};
use skiff_sandbox::mounts::{attach_to, bind_one, is_dir, resolve, resolve_or_make};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::mount::{MountAttr, MountPropagation, set_attributes, set_propagation, set_propagation_of};

use crate::config::BundleConfig;
use crate::log::Log;
use crate::mounts::{self, Mounted, OpenedMount, made, tree};
use crate::{devices, mount_options};

/// All that a root is made of, opened with the rights that the user has outside.
pub struct RootSources<'a> {
    config: &'a BundleConfig,
    /// Where the root's directory is.
    place: OwnedFd,
    /// What is in it.
    root: OwnedFd,
    mounts: Vec<OpenedMount<'a>>,
    null: OwnedFd,
}

/// A root that is attached.
pub struct Rootfs<'a> {
    config: &'a BundleConfig,
    fd: OwnedFd,
    null: OwnedFd,
    /// What others need of it.
    pub mounted: Mounted,
}

impl<'a> RootSources<'a> {
    /// Opens all. In the container's mount namespace.
    ///
    /// # Errors
    /// What cannot be opened.
    pub fn open(config: &'a BundleConfig, rootfs: &Path, log: &Log) -> Result<Self> {
        let about = || format!("root {}", rootfs.display());
        // What is mounted in the container is not the host's business. The other way round is as the configuration has it.
        let host = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).context(|| "/")?;
        set_propagation(host.as_fd(), MountPropagation::Slave).context(|| "mounts of the host")?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = openat(CWD, rootfs, flags, Mode::empty()).context(about)?;
        let root = tree(rootfs, true).context(about)?;
        let null = devices::open(Path::new("/dev/null")).context(|| "/dev/null")?;
        let stat = fstat(&null).context(|| "/dev/null")?;
        let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if !is_null || (major(stat.st_rdev), minor(stat.st_rdev)) != (1, 3) {
            return Err(Fault::new("/dev/null is another device"));
        }
        Ok(Self { config, place, root, mounts: mounts::open(&config.mounts, log)?, null })
    }

    /// Attaches the root, and mounts everything in it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn build(self, log: &Log) -> Result<Rootfs<'a>> {
        let Self { config, place, root, mounts, null } = self;
        // A mount can only be attached to one that is attached itself.
        attach_to(&root, &place).context(|| "root")?;
        let mut mounted = Mounted::default();
        for mount in &mounts {
            mount.place(root.as_fd(), &mut mounted, log)?;
        }
        devices::make(root.as_fd(), config, log)?;
        Ok(Rootfs { config, fd: root, null, mounted })
    }
}

impl Rootfs<'_> {
    /// Puts a terminal where the console is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put_console(&self, terminal: BorrowedFd<'_>) -> Result<()> {
        let about = || "/dev/console";
        let shown = bind_one(terminal).context(about)?;
        let at = resolve_or_make(self.fd.as_fd(), Path::new("dev/console"), false).context(about)?;
        attach_to(&shown, &at).context(about)
    }

    /// The directory that the process begins in, which is made if it is missing.
    ///
    /// # Errors
    /// The system's.
    pub fn make_working_dir(&self, path: &str) -> Result<()> {
        let about = || format!("process.cwd {path}");
        let Some(below) = path.strip_prefix('/') else {
            return Err(Fault::new(format!("{}: not an absolute path", about())));
        };
        match resolve_or_make(self.fd.as_fd(), Path::new(below), true) {
            // A read-only mount; whether it is there shows when it is entered.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => Ok(()),
            made => made.map(drop).context(about),
        }
    }

    /// Hides what is to be hidden, takes writes away, and makes it `/`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enter(self) -> Result<()> {
        let linux = &self.config.linux;
        for mount in &self.mounted.read_only {
            set_attributes(mount.as_fd(), MountAttr::RDONLY, false).context(|| "a read-only mount")?;
        }
        for path in &linux.readonly_paths {
            self.take_writes(path)
                .map_err(|e| e.about(&format!("linux.readonlyPaths: {}", path.display())))?;
        }
        for path in &linux.masked_paths {
            self.hide(path).map_err(|e| e.about(&format!("linux.maskedPaths: {}", path.display())))?;
        }
        if self.config.root.as_ref().is_some_and(|root| root.readonly) {
            set_attributes(self.fd.as_fd(), MountAttr::RDONLY, false).context(|| "root.readonly")?;
        }
        rustix::process::fchdir(&self.fd).context(|| "root")?;
        // Both at ".": the old root lands on top of the new one and is taken off there.
        rustix::process::pivot_root(".", ".").context(|| "root")?;
        unmount(".", UnmountFlags::DETACH).context(|| "the host's root")?;
        rustix::process::chdir("/").context(|| "root")?;
        match mount_options::propagation(linux.rootfs_propagation.as_deref())? {
            Some((propagation, recursive)) => set_propagation_of(self.fd.as_fd(), propagation, recursive)
                .context(|| "linux.rootfsPropagation"),
            None => Ok(()),
        }
    }

    /// What is at a path of the container; nothing if there is nothing.
    fn find(&self, path: &Path) -> Result<Option<OwnedFd>> {
        match resolve(self.fd.as_fd(), path.strip_prefix("/").unwrap_or(path)) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            found => found.map(Some).context(|| "found"),
        }
    }

    fn take_writes(&self, path: &Path) -> Result<()> {
        let Some(at) = self.find(path)? else { return Ok(()) };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE;
        let shown = open_tree(&at, "", flags).context(|| "shown")?;
        set_attributes(shown.as_fd(), MountAttr::RDONLY, true).context(|| "read-only")?;
        attach_to(&shown, &at).context(|| "attached")
    }

    fn hide(&self, path: &Path) -> Result<()> {
        let Some(at) = self.find(path)? else { return Ok(()) };
        let cover = match is_dir(at.as_fd())? {
            true => {
                let empty = made("tmpfs", None, &["mode=755".into()])?;
                set_attributes(empty.as_fd(), MountAttr::RDONLY, false).context(|| "read-only")?;
                empty
            }
            false => bind_one(self.null.as_fd()).context(|| "/dev/null")?,
        };
        attach_to(&cover, &at).context(|| "attached")
    }
}
