//! `create`: makes a container up to its program.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, geteuid, pidfd_open, pidfd_send_signal, waitpid,
};
use rustix::thread::{CapabilitySet, capabilities};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_inherited, exit_now, fork};

use crate::config::BundleConfig;
use crate::id_map::IdMaps;
use crate::init::Init;
use crate::log::Log;
use crate::namespaces::Namespaces;
use crate::process::ProcessSetup;
use crate::process_info::InitProcess;
use crate::seccomp::SeccompFilter;
use crate::state::{Container, ContainerId, ContainerRecord, ContainerStatus, START, States};
use crate::state_dir::is_host_root;
use crate::sync::{self, InitStatus};
use crate::{cgroup, check, hooks, terminal};

/// What is to be made.
pub struct Creation<'a> {
    pub id: &'a ContainerId,
    pub bundle: &'a Path,
    pub pid_file: Option<&'a Path>,
    pub console: Console<'a>,
    /// Descriptors from 3 on that the program gets.
    pub kept: u32,
    /// Whether this process waits for the container's end, and deletes it.
    pub is_awaited: bool,
}

/// Who operates the container's terminal.
pub enum Console<'a> {
    Nobody,
    /// Whoever listens here.
    Socket(&'a Path),
    /// Whoever has the other end.
    End(OwnedFd),
}

impl Console<'_> {
    /// The way to whoever operates it.
    ///
    /// # Errors
    /// Nobody listens at the socket.
    pub fn open(self) -> Result<Option<OwnedFd>> {
        match self {
            Self::Nobody => Ok(None),
            Self::Socket(path) => terminal::connect_to(path).map(Some),
            Self::End(end) => Ok(Some(end)),
        }
    }
}

/// A container that waits for its start, still locked.
pub struct Created {
    pub container: Container,
    pub pid: Pid,
    pub config: BundleConfig,
}

/// Makes a container. What has been made is removed again where that fails.
///
/// # Errors
/// What cannot be obeyed or had, of the configuration and of this host.
pub fn create(states: &States, creation: Creation<'_>, log: &Log) -> Result<Created> {
    let bundle =
        std::fs::canonicalize(creation.bundle).context(|| format!("bundle {}", creation.bundle.display()))?;
    // What the engine has named is relative to where it is, what the configuration names to the bundle.
    let pid_file = creation.pid_file.map(std::path::absolute).transpose().context(|| "file of the PID")?;
    let console = creation.console.open()?;
    rustix::process::chdir(&bundle).context(|| format!("bundle {}", bundle.display()))?;
    let dir = openat(CWD, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let (config, unknown) = BundleConfig::read(dir.context(|| format!("bundle {}", bundle.display()))?)?;
    check::check(&config, &unknown, log)?;
    let waiter = creation.is_awaited.then(|| InitProcess::of(rustix::process::getpid())).transpose()?;
    let container = states.create(creation.id)?;
    let mut maker = Maker::new(&container, &config, bundle);
    maker.record.waiter = waiter;
    let made = maker.make(console.as_ref(), creation.kept, pid_file.as_deref(), log);
    match made {
        Ok(pid) => Ok(Created { container, pid, config }),
        Err(fault) => {
            maker.undo();
            states.remove(container).ignore_error("`delete --force` removes what is left");
            Err(fault)
        }
    }
}

/// Root of the host would get containers without the guards that root needs: control groups that deny devices, for one.
///
/// # Errors
/// That it is root.
pub fn refuse_host_root() -> Result<()> {
    match is_host_root()? {
        true => {
            Err(Fault::new("the host's root cannot create containers: this runtime works without privilege")
                .hint("call it as an ordinary user; runc and crun are for root"))
        }
        false => Ok(()),
    }
}

/// Whether this process may mount, and all else that a container needs, without a further user namespace.
fn is_root_here() -> Result<bool> {
    let sets = capabilities(None).context(|| "capabilities")?;
    Ok(geteuid().is_root() && sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

struct Maker<'a> {
    container: &'a Container,
    config: &'a BundleConfig,
    record: ContainerRecord,
}

impl<'a> Maker<'a> {
    fn new(container: &'a Container, config: &'a BundleConfig, bundle: PathBuf) -> Self {
        let rootfs = config.root.as_ref().map_or_else(PathBuf::new, |root| bundle.join(&root.path));
        let record = ContainerRecord {
            oci_version: config.oci_version.clone(),
            annotations: config.annotations.clone(),
            hooks: config.hooks.clone().unwrap_or_default(),
            ..ContainerRecord::new(rootfs, bundle)
        };
        Self { container, config, record }
    }

    fn state(&self, status: ContainerStatus) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.record.state(&self.container.id, status))
            .map_err(|e| Fault::new(format!("state: {e}")))
    }

    fn make(
        &mut self,
        console: Option<&OwnedFd>,
        kept: u32,
        pid_file: Option<&Path>,
        log: &Log,
    ) -> Result<Pid> {
        let adds_user = !is_root_here()? && self.config.namespace("user").is_none();
        let namespaces = Namespaces::open(self.config, adds_user)?;
        let maps = namespaces.has_new_user.then(|| IdMaps::of(self.config)).transpose()?;
        let filter = self.config.linux.seccomp.as_ref().map(SeccompFilter::new).transpose()?;
        filter.iter().flat_map(|filter| &filter.warnings).for_each(|text| log.warn(text));
        self.record.is_single = maps.as_ref().is_some_and(IdMaps::is_single);
        let setup =
            ProcessSetup::new(self.config.process()?, filter.as_ref(), kept, self.record.is_single, log)?;
        self.container.keep_config(self.config)?;
        let listener = self.listen()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir =
            openat(self.container, ".", flags, Mode::empty()).context(|| "directory of the container")?;
        let (call, sync) = sync::pair()?;
        let states = [self.state(ContainerStatus::Creating)?, self.state(ContainerStatus::Created)?];
        let init = Init {
            config: self.config,
            rootfs: &self.record.rootfs,
            maps: maps.as_ref(),
            has_new_cgroup: self.config.has_new("cgroup"),
            has_new_network: self.config.has_new("network"),
            dir: &dir,
            sync: &sync,
            listener: &listener,
            console,
            setup: &setup,
            states: [&states[0], &states[1]],
            log,
        };
        // What the container's process keeps open would keep the container locked, and the call's end of the socket from closing.
        let run = || {
            close_inherited(&[self.container.as_fd(), call.as_fd()]);
            init.run()
        };
        let pid = begin(&namespaces, &sync, &call, run)?;
        drop(sync);
        self.record.process = Some(InitProcess::of(pid)?);
        self.container.note(&self.record)?;
        self.record.cgroups_above = cgroup::enter(self.config, &self.container.id.to_string(), pid, log);
        self.record.cgroup = self.record.cgroups_above.pop();
        if self.record.cgroup.is_some() {
            self.container.note(&self.record)?;
        }
        if let Some(maps) = &maps {
            maps.write(pid)?;
        }
        self.finish(&call, pid, pid_file)?;
        Ok(pid)
    }

    /// Goes along with the container's process until it waits for its program.
    fn finish(&mut self, call: &OwnedFd, pid: Pid, pid_file: Option<&Path>) -> Result<()> {
        sync::release(call)?;
        loop {
            match sync::receive(call)? {
                InitStatus::Mounted => {
                    let state = self.state(ContainerStatus::Creating)?;
                    hooks::run("prestart", &self.record.hooks.prestart, &state)?;
                    hooks::run("createRuntime", &self.record.hooks.create_runtime, &state)?;
                    sync::release(call)?;
                }
                InitStatus::Created => break,
                InitStatus::Failed(fault) => return Err(fault),
                InitStatus::Process(_) | InitStatus::Closed => {
                    return Err(Fault::new("the process of the container has ended while it was made"));
                }
            }
        }
        self.record.is_created = true;
        self.container.note(&self.record)?;
        pid_file.map_or(Ok(()), |path| write_pid(path, pid))
    }

    /// Where the container's process waits for its start.
    fn listen(&self) -> Result<OwnedFd> {
        let about = || "socket for the start";
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.context(about)?;
        bind(&socket, &start_address(self.container)?).context(about)?;
        listen(&socket, 1).context(about)?;
        Ok(socket)
    }

    fn undo(&self) {
        if let Some(pid) = self.record.process.and_then(|process| process.alive()) {
            pidfd_open(pid, PidfdFlags::empty())
                .and_then(|pidfd| pidfd_send_signal(pidfd, Signal::KILL))
                .ignore_error("it has ended by itself");
            waitpid(Some(pid), WaitOptions::empty())
                .map(drop)
                .ignore_error("it is no child of this call's any more");
        }
        if let Some(cgroup) = &self.record.cgroup {
            cgroup::end(cgroup, &self.record.cgroups_above)
                .ignore_error("it is empty, or what is in it cannot be ended now");
        }
    }
}

/// Where a container's process waits for its start: by the directory's number, as the path may be longer than a socket's can be.
pub fn start_address(container: &Container) -> Result<SocketAddrUnix> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}/{START}", container.as_fd().as_raw_fd());
    SocketAddrUnix::new(path).context(|| "socket for the start")
}

/// Makes a child with the namespaces, of which those of others are entered by a process between.
fn begin(namespaces: &Namespaces, sync: &OwnedFd, call: &OwnedFd, run: impl FnOnce() -> i32) -> Result<Pid> {
    let about = || "process of the container";
    let hint = |e: Fault| e.hint("the kernel must let you make user namespaces: `skiff doctor` checks that");
    if !namespaces.joins_any() {
        return match fork(namespaces.new).context(about).map_err(hint)? {
            Fork::Child => exit_now(run()),
            Fork::Parent(child) => Ok(child.pid),
        };
    }
    let forked = || {
        namespaces
            .join()
            .and_then(|()| fork(namespaces.new.and(CloneFlags::SIBLING)).context(about).map_err(hint))
    };
    fork_through(forked, (sync, call), run)
}

/// Makes a child by a process between, which enters namespaces and makes it in `forked`: only a child of one that has entered a PID namespace
/// is in it. The child is a sibling of that process, so this call's, and runs `run`.
///
/// # Errors
/// Those of `forked`.
pub fn fork_through(
    forked: impl FnOnce() -> Result<Fork>,
    (sync, call): (&OwnedFd, &OwnedFd),
    run: impl FnOnce() -> i32,
) -> Result<Pid> {
    let about = || "process between";
    let between = match fork(CloneFlags::NONE).context(about)? {
        Fork::Parent(child) => child,
        Fork::Child => {
            let said = match forked() {
                Ok(Fork::Child) => exit_now(run()),
                Ok(Fork::Parent(child)) => InitStatus::Process(child.pid),
                Err(fault) => InitStatus::Failed(fault),
            };
            exit_now(i32::from(sync::send(sync, &said).is_err()))
        }
    };
    let heard = sync::receive(call);
    waitpid(Some(between.pid), WaitOptions::empty()).context(about)?;
    match heard? {
        InitStatus::Process(pid) => Ok(pid),
        InitStatus::Failed(fault) => Err(fault),
        _ => Err(Fault::new("the process between has ended")),
    }
}

/// Writes a PID for whoever waits for the whole file.
///
/// # Errors
/// The system's.
pub fn write_pid(path: &Path, pid: Pid) -> Result<()> {
    let about = || format!("file of the PID {}", path.display());
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or_else(|| Fault::new(format!("{}: no file's name", about())))?);
    let new = path.with_file_name(name);
    skiff_sys::small_file::write(&new, pid.as_raw_nonzero().to_string().as_bytes()).context(about)?;
    std::fs::rename(&new, path).context(about)
}
