//! What a root is put together from: everything opened, and a place to work. First what needs no ids, as they take a while
//! to come; then the rest.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, statat, symlinkat};
use rustix::io::Errno;
use skiff_spec::config::Slurm;
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::plan::{Base, File, Mount, Plan, Propagation, Route, Source, Upper};
use skiff_sys::mount::{MountAttr, MountPropagation, set_attributes, set_propagation};

use crate::mounts::{attach, bind, bind_one, bind_without_links, made_up, memory, open_dir, terminals};
use crate::{adopt, owners};

/// A directory that every system has, covered while the new root is put together. (What a plan mounts from below it has been
/// opened before.)
pub const PLACE: &str = "/tmp";
/// Where in it the new root hangs until it is `/`.
pub const ROOT: &str = "/tmp/root";

/// What `/dev` has beside devices, and where that leads.
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// What is mounted in Skiff's own directory inside.
#[derive(Clone, Copy)]
pub struct Extras<'a> {
    /// The running program, which shims point to.
    pub program: &'a Path,
    /// The supervisor's socket.
    pub socket: Option<&'a Path>,
    /// The text of [`Source::Hosts`]; the host's own list without it.
    pub hosts: Option<&'a str>,
}

/// Everything for one root.
pub struct RootfsInputs<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The mounts of the plan that are to be, in order.
    pub sources: Vec<Opened<'a>>,
    /// The shims.
    pub shims: Shims<'a>,
    /// Skiff's own program, as a mount that hangs nowhere yet.
    pub program: OwnedFd,
    /// The supervisor's socket, if there is one, as such a mount.
    pub socket: Option<OwnedFd>,
    /// The text of [`Source::Hosts`].
    hosts: Option<&'a str>,
    /// One file system in memory for all that the environment has there: each more would take 30 microseconds.
    memory: OwnedFd,
    /// The directory that holds `upper`, `work` and what else is kept of the environment.
    kept: Option<OwnedFd>,
    /// The layers of the plan, in its order: opened before [`PLACE`] is covered, as a state directory may lie below it.
    pub(crate) layers: Vec<OwnedFd>,
}

/// A mount of the plan and what it shows, hanging nowhere yet; nothing as long as it cannot be opened.
pub struct Opened<'a> {
    /// The mount.
    pub mount: &'a Mount,
    /// What it shows.
    pub shown: Option<OwnedFd>,
}

/// Where users of an image find Skiff.
const OURSELVES: &str = "/usr/bin/skiff";

/// The commands that shims stand for.
pub enum Shims<'a> {
    /// The shims of the default configuration, as far as the host has them: the helper keeps a layer of these. (To make it for each
    /// start takes 80 microseconds.)
    Usual,
    /// Shims for these commands, which the host has.
    These(Vec<&'a Path>),
}

impl<'a> Shims<'a> {
    /// `is_answered`: whether a supervisor answers commands from inside, Skiff's own among them. An image has no Skiff of its own.
    fn of(plan: &'a Plan, is_answered: bool) -> Self {
        if plan.base == Base::Host && plan.route == Route::Helper && plan.shims == Slurm::default().shims() {
            return Self::Usual;
        }
        let own = (is_answered && plan.base != Base::Host).then_some(Path::new(OURSELVES));
        Self::These(plan.shims.iter().map(AsRef::as_ref).filter(|shim| exists(shim)).chain(own).collect())
    }
}

impl<'a> RootfsInputs<'a> {
    /// Opens and makes what needs no ids.
    pub fn prepare(plan: &'a Plan, extras: Extras<'a>) -> Result<Self> {
        let (kept, size) = match &plan.upper {
            Upper::Directory(path) | Upper::Scratch(path) => {
                (Some(open_dir(CWD, path).context(|| format!("environment {}", path.display()))?), None)
            }
            Upper::Memory { size } => (None, Some(size.as_str())),
        };
        let program = bind(extras.program).context(|| format!("own program {}", extras.program.display()))?;
        let mut sources = vec![];
        for mount in plan.mounts.iter().filter(|mount| has_place(mount)) {
            let shown = match &mount.source {
                // What the helper gives comes later.
                Source::Image(_)
                | Source::Own(_)
                | Source::Memory { .. }
                | Source::Text(_)
                | Source::Hosts(_)
                | Source::Files(_)
                | Source::Program(_)
                | Source::Devices
                | Source::Terminals
                | Source::Volume => None,
                Source::Bind(_) | Source::WorkingDir(_) => match bind_source(&mount.source) {
                    // Where only the root of one's subordinate ids may look, one may not yet.
                    Err(Errno::ACCESS) => None,
                    opened => match unless_missing(mount, opened)? {
                        Some(opened) => Some(opened),
                        None => continue,
                    },
                },
                Source::Proc => Some(made_up("proc").context(|| describe(mount))?),
                Source::Mqueue => Some(made_up("mqueue").context(|| describe(mount))?),
                // Of a network namespace that is the host's only the helper can.
                Source::Sys => made_up("sysfs").ok(),
            };
            sources.push(Opened { mount, shown });
        }
        Ok(Self {
            plan,
            sources,
            shims: Shims::of(plan, extras.socket.is_some()),
            program,
            socket: extras.socket.map(bind).transpose().context(|| "the supervisor's socket")?,
            hosts: extras.hosts,
            memory: memory(0o755, size)
                .context(|| format!("file system in memory of {:?}", size.unwrap_or("its usual size")))
                .map_err(|e| e.hint("run.memory in the configuration is a number with k, m, g or %"))?,
            kept,
            layers: vec![],
        })
    }

    /// Opens the rest, now that there are ids. `devices`: what the helper has given for [`Source::Sys`].
    pub fn complete(&mut self, devices: Option<&OwnedFd>) -> Result<()> {
        // What goes with the environment was made for it, by the same ids.
        if let (Some(kept), Upper::Directory(_)) = (&self.kept, &self.plan.upper) {
            let fit = owners::fit(kept.as_fd()).and_then(|()| match self.plan.route {
                Route::Helper => adopt::adopt(kept.as_fd()),
                Route::Rootless => adopt::mark(kept.as_fd()),
            });
            fit.map_err(|e| e.about(&format!("environment {}", self.plan.name)))?;
        }
        for at in 0..self.sources.len() {
            let mount = self.sources[at].mount;
            if let (Source::Bind(_) | Source::WorkingDir(_), None) = (&mount.source, &self.sources[at].shown)
            {
                self.sources[at].shown = unless_missing(mount, bind_source(&mount.source))?;
            }
            if let (Source::Sys, None) = (&mount.source, &self.sources[at].shown) {
                // Where the kernel has none to give, as /sys is covered in parts, there is what the host shows.
                self.sources[at].shown = match devices {
                    Some(devices) => Some(devices.try_clone().context(|| describe(mount))?),
                    None => unless_missing(mount, bind(&mount.target))?,
                };
            }
        }
        for layer in &self.plan.layers {
            self.layers.push(open_dir(CWD, layer).context(|| format!("layer {}", layer.display()))?);
        }
        // Before Linux 6.15 only what hangs in a namespace can be mounted once more.
        attach(self.memory.as_fd(), CWD, PLACE)?;
        for at in 0..self.sources.len() {
            let mount = self.sources[at].mount;
            let dir = match &mount.source {
                Source::Own(name) => self.own(name, 0o1777)?,
                Source::Memory { mode, size: None } => self.dir(&format!("memory.{at}"), *mode)?,
                Source::Memory { mode, size: Some(size) } => {
                    let own = memory(*mode, Some(&size.to_string())).context(|| describe(mount))?;
                    self.sources[at].shown = Some(own);
                    continue;
                }
                Source::Text(text) => self.text(&format!("text.{at}"), text)?,
                Source::Hosts(_) => match self.hosts {
                    Some(text) => self.text(&format!("text.{at}"), text)?,
                    None => {
                        self.sources[at].shown = Some(bind(&mount.target).context(|| describe(mount))?);
                        continue;
                    }
                },
                Source::Files(files) => self.files(&format!("files.{at}"), files)?,
                Source::Program(digits) => self.program_of(&format!("program.{at}"), digits)?,
                Source::Devices => self.devices(&format!("devices.{at}"))?,
                Source::Terminals => {
                    self.sources[at].shown = Some(terminals().context(|| describe(mount))?);
                    continue;
                }
                _ => continue,
            };
            self.sources[at].shown = Some(bind_one(dir.as_fd()).context(|| describe(mount))?);
        }
        for Opened { mount, shown } in &self.sources {
            if let (true, Some(shown)) = (mount.read_only, shown) {
                set_attributes(shown.as_fd(), MountAttr::RDONLY, true).context(|| describe(mount))?;
            }
            if let (Some(propagation), Some(shown)) = (mount.propagation, shown) {
                set_propagation(shown.as_fd(), kernels(propagation)).context(|| describe(mount))?;
            }
        }
        Ok(())
    }

    /// Takes the images that hold data, as the helper has given them, in the plan's order.
    pub fn take_images(&mut self, images: impl IntoIterator<Item = OwnedFd>) -> Result<()> {
        let mut images = images.into_iter();
        for Opened { mount, shown } in &mut self.sources {
            if let Source::Image(id) = mount.source {
                let lacks =
                    || Fault::new(format!("the plan wants image {id}, which only the helper can mount"));
                *shown = Some(images.next().ok_or_else(lacks)?);
            }
        }
        Ok(())
    }

    /// The directory of the environment, if it is kept. Its path may lead nowhere by now: the place may cover it.
    pub fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.kept.as_ref().map(AsFd::as_fd)
    }

    /// A directory of the environment's own: of those that are kept, or made in memory.
    pub fn own(&self, name: &str, mode: u32) -> Result<OwnedFd> {
        match &self.kept {
            Some(kept) => {
                open_dir(kept.as_fd(), Path::new(name)).context(|| format!("the environment's {name}"))
            }
            None => self.dir(&format!("own.{name}"), mode),
        }
    }

    /// The file system in memory that is the environment's own.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// A new directory in memory.
    pub fn dir(&self, name: &str, mode: u32) -> Result<OwnedFd> {
        mkdirat(&self.memory, name, Mode::from_raw_mode(mode))
            .and_then(|()| open_dir(self.memory.as_fd(), Path::new(name)))
            .context(|| format!("directory {name} in memory"))
    }

    /// A new file in memory.
    pub fn file(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(&self.memory, name, flags, Mode::from_raw_mode(0o600))
            .context(|| format!("file {name} in memory"))
    }

    /// A new file in memory that all may read.
    fn text(&self, name: &str, text: &str) -> Result<OwnedFd> {
        self.text_with(name, text, 0o644)
    }

    fn text_with(&self, name: &str, text: &str, mode: u32) -> Result<OwnedFd> {
        self.bytes_with(name, text.as_bytes(), mode)
    }

    /// A new file in memory with this content.
    pub(crate) fn bytes_with(&self, name: &str, bytes: &[u8], mode: u32) -> Result<OwnedFd> {
        use std::io::Write;
        let about = || format!("file {name} in memory");
        let mut file = std::fs::File::from(self.file(name)?);
        file.write_all(bytes).context(about)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).context(about)?;
        Ok(file.into())
    }

    /// A new file in memory that all may execute, with the bytes that these hexadecimal digits say.
    fn program_of(&self, name: &str, digits: &str) -> Result<OwnedFd> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        let bytes =
            bytes.ok_or_else(|| Fault::new(format!("file {name} in memory: not hexadecimal digits")))?;
        self.bytes_with(name, &bytes, 0o755)
    }

    /// A new directory in memory with these files.
    fn files(&self, name: &str, files: &[File]) -> Result<OwnedFd> {
        let dir = self.dir(name, 0o755)?;
        for file in files {
            if let Some((parent, _)) = file.name.rsplit_once('/') {
                match mkdirat(&dir, parent, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e).context(|| format!("directory {parent} in memory")),
                }
            }
            self.text_with(&format!("{name}/{}", file.name), &file.text, file.mode)?;
        }
        Ok(dir)
    }

    /// A new directory in memory with the links that programs expect in `/dev`.
    fn devices(&self, name: &str) -> Result<OwnedFd> {
        let dir = self.dir(name, 0o755)?;
        for (link, to) in DEVICE_LINKS {
            symlinkat(to, &dir, link).context(|| format!("/dev/{link}"))?;
        }
        Ok(dir)
    }

    /// Hangs a mount on a new directory in memory.
    pub fn hang(&self, mount: &OwnedFd, name: &str) -> Result<()> {
        mkdirat(&self.memory, name, Mode::from_raw_mode(0o755))
            .context(|| format!("directory {name} in memory"))?;
        attach(mount.as_fd(), self.memory.as_fd(), name)
    }
}

/// Whether a mount can be made at all: in `/dev` there is no making of places, it is the host's.
fn has_place(mount: &Mount) -> bool {
    !(mount.optional && mount.target.starts_with("/dev")) || exists(&mount.target)
}

fn exists(path: &Path) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// What was opened; nothing if there is nothing and that is no matter.
/// Opens what a mount shows of the host.
fn bind_source(source: &Source) -> rustix::io::Result<OwnedFd> {
    match source {
        Source::WorkingDir(path) => bind_without_links(path),
        Source::Bind(path) => bind(path),
        _ => Err(Errno::INVAL),
    }
}

fn kernels(propagation: Propagation) -> MountPropagation {
    match propagation {
        Propagation::Private => MountPropagation::Private,
        Propagation::Slave => MountPropagation::Slave,
        Propagation::Unbindable => MountPropagation::Unbindable,
    }
}

fn unless_missing(mount: &Mount, opened: rustix::io::Result<OwnedFd>) -> Result<Option<OwnedFd>> {
    match opened {
        Err(Errno::NOENT | Errno::ACCESS | Errno::NODEV | Errno::NOTDIR) if mount.optional => Ok(None),
        other => {
            let opened: Result<OwnedFd> = other.context(|| describe(mount));
            opened
                .map(Some)
                .map_err(|e: Fault| e.hint("the source must exist and be open to you on the host"))
        }
    }
}

fn describe(mount: &Mount) -> String {
    match &mount.source {
        Source::Bind(path) | Source::WorkingDir(path) => format!("mount of {}", path.display()),
        Source::Image(id) => format!("mount of image {id}"),
        Source::Own(name) => format!("mount of the environment's {name}"),
        Source::Volume => format!("volume {}", mount.target.display()),
        Source::Memory { .. }
        | Source::Text(_)
        | Source::Hosts(_)
        | Source::Files(_)
        | Source::Program(_) => {
            format!("memory for {}", mount.target.display())
        }
        Source::Proc => "/proc".into(),
        Source::Mqueue => "message queues".into(),
        Source::Devices => "/dev".into(),
        Source::Sys => "/sys".into(),
        Source::Terminals => "pseudo terminals".into(),
    }
}
