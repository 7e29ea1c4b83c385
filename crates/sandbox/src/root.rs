//! Builds the root of an environment and moves into it. Runs in the new namespaces, as root of them.
//!
//! Every source is opened before anything is mounted, so that what a mount covers can still be the source of another, and
//! every target is resolved inside the new root, so that no symbolic link there leads a mount out of it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, statat, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};
use skiff_spec::plan::{Mount, Plan, Source, Upper, inside};
use skiff_sys::mount::{MountAttr, set_attributes};

use crate::helper::Layers;
use crate::{Context, Error, Result};

/// Directories that every system has, covered while the new root is put together. (What a plan mounts from below them has been
/// opened before.)
pub const STAGE: &str = "/tmp";
/// Another one.
pub const SECOND_STAGE: &str = "/run";

/// The directory that holds `upper`, `work` and what else belongs to the environment alone.
pub struct Own {
    dir: OwnedFd,
}

/// What is mounted in Skiff's own directory inside.
pub struct Extras<'a> {
    /// The running program, which shims point to.
    pub program: &'a Path,
    /// The supervisor's socket.
    pub socket: Option<&'a Path>,
}

/// A mount of the plan with what it shows, opened.
pub type Opened<'a> = (&'a Mount, OwnedFd);

/// Stacks the layers, mounts the rest, makes it `/`.
pub fn build(plan: &Plan, layers: Layers, extras: Extras<'_>) -> Result<()> {
    let own = Own::open(&plan.upper)?;
    let sources = open_sources(plan, &own)?;
    let extras = extras.open()?;
    // The kernel takes as layers only mounts that hang in a namespace of ours.
    attach(layers.mask.as_fd(), STAGE)?;
    attach(layers.view.as_fd(), SECOND_STAGE)?;
    let root = stack(plan, &layers, &own)?;
    attach(root.as_fd(), STAGE)?;
    furnish(root.as_fd(), sources, Some(layers.view), extras)
}

/// Mounts everything on the new root, which is attached somewhere, and makes it `/`.
pub fn furnish(
    root: BorrowedFd<'_>,
    sources: Vec<Opened<'_>>,
    view: Option<OwnedFd>,
    extras: OpenExtras,
) -> Result<()> {
    for (mount, fd) in sources {
        place(root, &fd, &mount.target, is_dir(fd.as_fd())?)
            .map_err(|e| Error { message: format!("mount on {}", e.message), ..e })?;
    }
    let own = [
        (view, inside::HOST, true),
        (extras.program, inside::PROGRAM, false),
        (extras.socket, inside::SOCKET, false),
    ];
    for (fd, target, dir) in own {
        if let Some(fd) = fd {
            place(root, &fd, Path::new(target), dir)?;
        }
    }
    enter(root)
}

/// Opens what every mount of the plan shows; those that may be missing and are, are left out.
pub fn open_sources<'a>(plan: &'a Plan, own: &Own) -> Result<Vec<Opened<'a>>> {
    let mut sources = vec![];
    for mount in &plan.mounts {
        if let Some(fd) = open_source(mount, own)? {
            sources.push((mount, fd));
        }
    }
    Ok(sources)
}

/// [`Extras`] as mounts that hang nowhere yet.
pub struct OpenExtras {
    program: Option<OwnedFd>,
    socket: Option<OwnedFd>,
}

impl Extras<'_> {
    /// Opens them.
    pub fn open(self) -> Result<OpenExtras> {
        let program = open_bind(self.program).context(|| format!("own program {}", self.program.display()));
        let program = Some(program?);
        let socket = self.socket.map(open_bind).transpose().context(|| "the supervisor's socket")?;
        Ok(OpenExtras { program, socket })
    }
}

impl Own {
    /// Opens it, or makes it in memory.
    pub fn open(upper: &Upper) -> Result<Self> {
        match upper {
            Upper::Directory(path) => {
                let dir = open_dir(CWD, path).context(|| format!("environment {}", path.display()))?;
                Ok(Self { dir })
            }
            Upper::Memory { size } => {
                let dir = memory(0o755, Some(size))
                    .context(|| format!("file system in memory of {size:?} for changes"))
                    .map_err(|e| e.hint("run.memory in the configuration is a number with k, m, g or %"))?;
                for (name, mode) in [("upper", 0o755), ("work", 0o700), ("tmp", 0o777), ("vartmp", 0o777)] {
                    let mode = Mode::from_raw_mode(mode);
                    mkdirat(&dir, name, mode).context(|| format!("directory {name} for changes"))?;
                    if mode.as_raw_mode() == 0o777 {
                        let sticky = Mode::from_raw_mode(0o1777);
                        rustix::fs::chmodat(&dir, name, sticky, AtFlags::empty()).context(|| name)?;
                    }
                }
                Ok(Self { dir })
            }
        }
    }

    /// Hangs it on a place of the namespace; gives the place.
    pub fn attach(&self, place: &str) -> Result<PathBuf> {
        attach(self.dir.as_fd(), place).map(|()| place.into())
    }

    /// One of its directories.
    pub fn sub(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        open_dir(self.dir.as_fd(), Path::new(name))
    }
}

/// The overlay: upper, snapshots, shims, stand-ins, the host's view; one mount.
fn stack(plan: &Plan, layers: &Layers, own: &Own) -> Result<OwnedFd> {
    let (upper, work) = (own.sub("upper").context(|| "upper")?, own.sub("work").context(|| "work")?);
    let mut below: Vec<OwnedFd> = vec![];
    for layer in &plan.layers {
        below.push(open_dir(CWD, layer).context(|| format!("layer {}", layer.display()))?);
    }
    if let Some(shims) = shim_layer(&plan.shims, layers.view.as_fd())? {
        below.push(shims);
    }
    let lower: Vec<String> = below
        .iter()
        .map(AsFd::as_fd)
        .chain([layers.mask.as_fd(), layers.view.as_fd()])
        .map(by_number)
        .collect();
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context(|| "overlay")?;
    let make = || -> rustix::io::Result<OwnedFd> {
        fsconfig_set_flag(&fs, "userxattr")?;
        fsconfig_set_string(&fs, "source", "skiff")?;
        fsconfig_set_string(&fs, "lowerdir", lower.join(":"))?;
        fsconfig_set_string(&fs, "upperdir", by_number(upper.as_fd()))?;
        fsconfig_set_string(&fs, "workdir", by_number(work.as_fd()))?;
        if matches!(plan.upper, Upper::Memory { .. }) {
            fsconfig_set_flag(&fs, "volatile")?;
        }
        fsconfig_create(&fs)?;
        let attr = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)
    };
    let root = make().map_err(|e| {
        let said = kernel_words(fs.as_fd());
        Error::new(format!("overlay of environment {}: {e}{said}", plan.name))
            .hint("`skiff doctor` checks the kernel and the file system that holds the environment")
    })?;
    let read_only = rustix::fs::fstatvfs(&root).context(|| "overlay")?.f_flag;
    if read_only.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(Error::new(format!(
            "overlay of environment {}: the kernel made it read-only",
            plan.name
        ))
        .hint("its upper directory's file system lacks user extended attributes or belongs to other ids"));
    }
    Ok(root)
}

/// Links at the places of the commands that the host must run, on a file system of their own.
fn shim_layer(shims: &[PathBuf], view: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let mut layer = None;
    for shim in shims {
        let Ok(relative) = shim.strip_prefix("/") else { continue };
        if statat(view, relative, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            continue;
        }
        let root = match &layer {
            Some(root) => root,
            None => layer.insert(memory(0o755, None).context(|| "file system for shims")?),
        };
        let name = relative.file_name().unwrap_or(OsStr::new("shim"));
        let parent = make_dirs(root.as_fd(), relative.parent().unwrap_or(Path::new("")))
            .context(|| format!("shim {}", shim.display()))?;
        symlinkat(inside::PROGRAM, &parent, name).context(|| format!("shim {}", shim.display()))?;
    }
    Ok(layer)
}

/// Opens what a mount shows, as a mount of its own that hangs nowhere yet.
fn open_source(mount: &Mount, own: &Own) -> Result<Option<OwnedFd>> {
    let opened = match &mount.source {
        Source::Bind(path) => open_bind(path),
        Source::Own(name) => own.sub(name).and_then(|dir| clone_tree(dir.as_fd(), false)),
        Source::Memory { mode } => memory(*mode, None),
        Source::Proc => simple("proc"),
        Source::Mqueue => simple("mqueue"),
    };
    let what = || match &mount.source {
        Source::Bind(path) => format!("mount of {}", path.display()),
        other => format!("mount of {other:?}"),
    };
    let fd = match opened {
        Err(Errno::NOENT | Errno::ACCESS | Errno::NODEV | Errno::NOTDIR) if mount.optional => {
            return Ok(None);
        }
        other => {
            other.context(what).map_err(|e| e.hint("the source must exist and be open to you on the host"))?
        }
    };
    if mount.read_only {
        set_attributes(fd.as_fd(), MountAttr::RDONLY, true).context(what)?;
    }
    Ok(Some(fd))
}

/// Hangs a mount into the root at `target`, making the place if there is none.
fn place(root: BorrowedFd<'_>, mount: &OwnedFd, target: &Path, dir: bool) -> Result<()> {
    let shown = || target.display().to_string();
    let relative =
        target.strip_prefix("/").map_err(|_| Error::new(format!("{}: not an absolute path", shown())))?;
    let at = match resolve(root, relative) {
        Err(Errno::NOENT) => make_place(root, relative, dir),
        other => other,
    };
    let at = match at {
        // A place that cannot be made (in /sys, /dev) for something the host has there and we want anew.
        Err(Errno::ROFS | Errno::PERM | Errno::ACCESS) if target.starts_with("/dev") => return Ok(()),
        other => other.context(shown)?,
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &at, "", flags).context(shown).map_err(|e| {
        if is_dir(at.as_fd()).unwrap_or(dir) == dir {
            e
        } else {
            e.hint("a file mounts on a file, a directory on a directory")
        }
    })
}

fn make_place(root: BorrowedFd<'_>, relative: &Path, dir: bool) -> rustix::io::Result<OwnedFd> {
    if dir {
        return make_dirs(root, relative);
    }
    let parent = make_dirs(root, relative.parent().unwrap_or(Path::new("")))?;
    let name = relative.file_name().ok_or(Errno::INVAL)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(&parent, name, flags, Mode::from_raw_mode(0o644)) {
        Ok(_) | Err(Errno::EXIST) => resolve(root, relative),
        Err(e) => Err(e),
    }
}

/// Makes directories one by one, never leaving `root`.
fn make_dirs(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut sofar = PathBuf::from(".");
    for part in relative.components() {
        sofar.push(part);
        if matches!(resolve(root, &sofar), Err(Errno::NOENT)) {
            let parent = resolve(root, sofar.parent().unwrap_or(Path::new(".")))?;
            match mkdirat(&parent, sofar.file_name().ok_or(Errno::INVAL)?, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
    }
    resolve(root, &sofar)
}

/// Makes the new root `/` and lets go of the host's.
fn enter(root: BorrowedFd<'_>) -> Result<()> {
    rustix::process::fchdir(root).context(|| "new root")?;
    // Both at ".": the old root lands on top of the new one and is taken off there.
    rustix::process::pivot_root(".", ".").context(|| "pivot into the new root")?;
    unmount(".", UnmountFlags::DETACH).context(|| "old root")?;
    rustix::process::chdir("/").context(|| "/")
}

/// Hangs a mount on a place of the namespace.
pub fn attach(mount: BorrowedFd<'_>, place: &str) -> Result<()> {
    move_mount(mount, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .context(|| format!("mount on {place}"))
}

fn resolve(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

fn open_dir(at: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn open_bind(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

fn clone_tree(fd: BorrowedFd<'_>, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(fd, "", flags)
}

/// A new tmpfs.
pub fn memory(mode: u32, size: Option<&str>) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", "skiff")?;
    fsconfig_set_string(&fs, "mode", format!("{mode:o}"))?;
    if let Some(size) = size {
        fsconfig_set_string(&fs, "size", size)?;
    }
    fsconfig_create(&fs)?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)
}

fn simple(kind: &str) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)
}

/// Mounts a new `/proc` over the one of another PID namespace.
pub fn own_processes() -> Result<()> {
    let proc = simple("proc").context(|| "/proc of the step")?;
    attach(proc.as_fd(), "/proc")
}

fn is_dir(fd: BorrowedFd<'_>) -> Result<bool> {
    let stat = rustix::fs::fstat(fd).context(|| "mount")?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// A descriptor as a path: file system options take paths, and this one cannot be redirected or need escaping.
fn by_number(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// What the kernel adds to an error of the new mount interface.
fn kernel_words(fs: BorrowedFd<'_>) -> String {
    let mut text = String::new();
    let mut buffer = [0; 512];
    while let Ok(n) = rustix::io::read(fs, &mut buffer) {
        if n == 0 {
            break;
        }
        text.push_str("; ");
        text.push_str(String::from_utf8_lossy(&buffer[..n]).trim_end().trim_start_matches("e "));
    }
    text
}
