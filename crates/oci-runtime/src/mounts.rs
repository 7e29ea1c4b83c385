//! The mounts of a configuration.
//!
//! What is mounted is opened first, by the rights that the user has outside. Each place is resolved below the container's root, so that no link
//! there leads a mount, or a directory made for it, out of it; and mounts are attached to what was opened, not to paths.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, open_tree,
};
use skiff_sandbox::mounts::{attach_to, is_dir, resolve_or_make};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::mount::{MountAttr, change_attributes, set_propagation_of};

use crate::config::OciMount;
use crate::copy_up;
use crate::log::Log;
use crate::mount_options::MountOptions;

/// Where the host has its control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A mount whose source is open.
pub struct OpenedMount<'a> {
    mount: &'a OciMount,
    options: MountOptions,
    /// What exists and is mounted; else a file system is made.
    source: Option<OwnedFd>,
}

/// What others need of what has been mounted.
#[derive(Default)]
pub struct Mounted {
    /// `/proc`.
    pub processes: Option<OwnedFd>,
    /// `/dev/pts`.
    pub terminals: Option<OwnedFd>,
    /// New file systems that take no more changes once everything in them is in its place.
    pub read_only: Vec<OwnedFd>,
}

/// Opens the sources of all mounts.
///
/// # Errors
/// A source that cannot be opened, options that cannot be had.
pub fn open<'a>(mounts: &'a [OciMount], log: &Log) -> Result<Vec<OpenedMount<'a>>> {
    mounts.iter().map(|mount| OpenedMount::new(mount, log).map_err(|e| e.about(&name(mount)))).collect()
}

fn name(mount: &OciMount) -> String {
    format!("mount {}", mount.destination.display())
}

impl<'a> OpenedMount<'a> {
    fn new(mount: &'a OciMount, log: &Log) -> Result<Self> {
        let options = MountOptions::of(mount)?;
        let ineffective = options.ineffective(mount.kind.as_deref());
        if !ineffective.is_empty() {
            log.warn(&format!(
                "{}: options {}: they have no effect on it",
                name(mount),
                ineffective.join(",")
            ));
        }
        let source = match options.bind {
            Some(recursive) => {
                let source = mount.source.as_deref().ok_or_else(|| Fault::new("no source to bind"))?;
                Some(
                    shown_source(source, recursive, log)
                        .context(|| format!("source {}", source.display()))?,
                )
            }
            None => None,
        };
        Ok(Self { mount, options, source })
    }

    /// Mounts it below the root.
    ///
    /// # Errors
    /// The kernel's.
    pub fn place(&self, root: BorrowedFd<'_>, mounted: &mut Mounted, log: &Log) -> Result<()> {
        let name = name(self.mount);
        self.place_at(root, mounted, log).map_err(|e| e.about(&name))
    }

    fn place_at(&self, root: BorrowedFd<'_>, mounted: &mut Mounted, log: &Log) -> Result<()> {
        let what = match &self.source {
            Some(source) => source.try_clone().context(|| "its source")?,
            None => self.file_system(log)?,
        };
        // The specification has it absolute; older ones had it below the root.
        let target = self.mount.destination.strip_prefix("/").unwrap_or(&self.mount.destination);
        let at = resolve_or_make(root, target, is_dir(what.as_fd())?).context(|| "its place")?;
        if self.options.copies_up(self.mount.kind.as_deref()) {
            copy_up::copy(at.as_fd(), what.as_fd(), log)?;
        }
        let is_read_only = self.set_attributes(what.as_fd(), log)?;
        attach_to(&what, &at).context(|| "attached")?;
        for (propagation, recursive) in &self.options.propagation {
            set_propagation_of(what.as_fd(), *propagation, *recursive).context(|| "its propagation")?;
        }
        if is_read_only {
            mounted.read_only.push(what.try_clone().context(|| "attached")?);
        }
        match self.mount.kind.as_deref() {
            Some("proc") => mounted.processes = Some(what),
            Some("devpts") => mounted.terminals = Some(what),
            _ => {}
        }
        Ok(())
    }

    /// Sets what the options say; whether the mount is to be read-only later.
    fn set_attributes(&self, what: BorrowedFd<'_>, log: &Log) -> Result<bool> {
        let MountOptions { mut set, clear, set_below, clear_below, .. } = self.options;
        // Others are mounted in a new one, which has no places for them yet.
        let is_read_only = self.source.is_none() && set.contains(MountAttr::RDONLY);
        if is_read_only {
            set = set.without(MountAttr::RDONLY);
        }
        for (set, clear, recursive) in [(set, clear, false), (set_below, clear_below, true)] {
            if set.is_empty() && clear.is_empty() {
                continue;
            }
            match change_attributes(what, set, clear, recursive) {
                // What the host has locked stays: nobody without privilege may take nosuid away, or note times where the host does not.
                Err(e) if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) && !clear.is_empty() => {
                    log.warn(&format!("{}: keeps attributes that the host has set", name(self.mount)));
                    let times = MountAttr::NOATIME.and(MountAttr::STRICTATIME);
                    change_attributes(what, set.without(times), MountAttr::NONE, recursive)
                }
                changed => changed,
            }
            .context(|| "its attributes")?;
        }
        Ok(is_read_only)
    }

    fn file_system(&self, log: &Log) -> Result<OwnedFd> {
        let kind = self.mount.kind.as_deref().unwrap_or("none");
        match kind {
            "none" | "" => Err(Fault::new("no type, and no option bind")),
            "cgroup" | "cgroup2" => match made("cgroup2", None, &[]) {
                Err(_) => {
                    log.warn(&format!("{}: shows the host's control groups, read-only", name(self.mount)));
                    shown(CGROUPS)
                }
                made => made,
            },
            "sysfs" => match made("sysfs", self.mount.source.as_deref(), &self.options.data) {
                // It belongs to the network's namespace, which may be the host's.
                Err(_) => {
                    log.warn(&format!(
                        "{}: shows the host's, read-only: the network is not its own",
                        name(self.mount)
                    ));
                    shown("/sys")
                }
                made => made,
            },
            "devpts" => self.terminals(log),
            _ => made(kind, self.mount.source.as_deref(), &self.options.data),
        }
    }

    /// Terminals whose group has no id in the container belong to none.
    fn terminals(&self, log: &Log) -> Result<OwnedFd> {
        let source = self.mount.source.as_deref();
        let is_group = |word: &&String| word.starts_with("gid=");
        match made("devpts", source, &self.options.data) {
            Err(_) if self.options.data.iter().any(|word| is_group(&word)) => {
                let others: Vec<String> =
                    self.options.data.iter().filter(|word| !is_group(word)).cloned().collect();
                let made = made("devpts", source, &others)?;
                log.warn(&format!("{}: its gid is no group of the container", name(self.mount)));
                Ok(made)
            }
            made => made,
        }
    }
}

/// The source of a bind mount. What the host has mounted below it cannot be left out without privilege, as it may hide something.
fn shown_source(source: &Path, recursive: bool, log: &Log) -> rustix::io::Result<OwnedFd> {
    match tree(source, recursive) {
        Err(Errno::INVAL) if !recursive => {
            log.warn(&format!("mount of {}: with what the host has mounted below it", source.display()));
            tree(source, true)
        }
        opened => opened,
    }
}

/// A copy of what is mounted at a path of the host's.
///
/// # Errors
/// The kernel's.
pub fn tree(path: &Path, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let below = if recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | below)
}

/// What the host has at a path, which takes no changes.
fn shown(path: &str) -> Result<OwnedFd> {
    let shown = tree(Path::new(path), true).context(|| path.to_owned())?;
    change_attributes(shown.as_fd(), MountAttr::RDONLY, MountAttr::NONE, true).context(|| path.to_owned())?;
    Ok(shown)
}

/// A new file system.
///
/// # Errors
/// The kernel's, with its own words where it has some.
pub fn made(kind: &str, source: Option<&Path>, data: &[String]) -> Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).context(|| format!("file system {kind}"))?;
    let make = || -> rustix::io::Result<OwnedFd> {
        if let Some(source) = source {
            fsconfig_set_string(&fs, "source", source)?;
        }
        for word in data {
            match word.split_once('=') {
                Some((key, value)) => fsconfig_set_string(&fs, key, value)?,
                None => fsconfig_set_flag(&fs, &**word)?,
            }
        }
        fsconfig_create(&fs)?;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    make().map_err(|e| {
        let (said, data) = (kernel_words(fs.as_fd()), data.join(","));
        let fault = Fault::new(format!("file system {kind} {data}: {e}{said}"));
        match (e, kind) {
            (Errno::PERM, "proc") => fault.hint("a PID namespace of its own is needed, and a /proc of the host's with nothing mounted over it"),
            (Errno::PERM, "mqueue") => fault.hint("an IPC namespace of its own is needed"),
            (Errno::PERM, _) => fault.hint("without privilege there are bind, tmpfs, proc, devpts, mqueue, sysfs, cgroup and overlay"),
            _ => fault,
        }
    })
}

/// What the kernel says of a file system that it did not make.
fn kernel_words(fs: BorrowedFd<'_>) -> String {
    let mut buffer = [0; 512];
    let mut said = String::new();
    while let Ok(count @ 1..) = rustix::io::read(fs, &mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..count]).into_owned();
        said.push_str(&format!("; {}", line.get(2..).unwrap_or(&line).trim()));
    }
    said
}
