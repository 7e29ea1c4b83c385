//! The container's first process, from its namespaces to its program.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat2, unlinkat};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use rustix::thread::{Gid, Uid, UnshareFlags, set_thread_res_gid, set_thread_res_uid};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::close_on_exec_from;

use crate::config::BundleConfig;
use crate::hooks;
use crate::id_map::IdMaps;
use crate::log::Log;
use crate::process::ProcessSetup;
use crate::rootfs::{RootSources, Rootfs};
use crate::state::START;
use crate::sync::{InitStatus, send, wait};
use crate::terminal::Terminal;

/// What it needs of the call that makes it.
pub struct Init<'a> {
    pub config: &'a BundleConfig,
    pub rootfs: &'a Path,
    /// The ids of a new user namespace.
    pub maps: Option<&'a IdMaps>,
    pub has_new_cgroup: bool,
    pub has_new_network: bool,
    /// The container's directory, not locked by this descriptor.
    pub dir: &'a OwnedFd,
    pub sync: &'a OwnedFd,
    /// Where it waits for its start.
    pub listener: &'a OwnedFd,
    /// Who gets the master of its terminal.
    pub console: Option<&'a OwnedFd>,
    pub setup: &'a ProcessSetup<'a>,
    /// The container's state as hooks get to read it, while it is made and when it starts.
    pub states: [&'a [u8]; 2],
    pub log: &'a Log,
}

impl Init<'_> {
    /// Makes the container, waits, and becomes its program; the exit code where that fails. No hook gets a descriptor of the engine's.
    pub fn run(&self) -> i32 {
        let closed = close_on_exec_from(3).context(|| "descriptors");
        let made = closed
            .and_then(|()| self.make())
            .and_then(|program| send(self.sync, &InitStatus::Created).map(|()| program));
        let program = match made {
            Ok(program) => program,
            Err(fault) => {
                send(self.sync, &InitStatus::Failed(fault)).ignore_error("the call has ended");
                return 1;
            }
        };
        let fault = match self.wait_for_start() {
            Err(fault) => fault,
            Ok(caller) => {
                let hooks = self.config.hooks.clone().unwrap_or_default();
                let Err(fault) = hooks::run("startContainer", &hooks.start_container, self.states[1])
                    .and_then(|()| self.setup.exec_program(&program, self.log));
                send(&caller, &InitStatus::Failed(fault.clone())).ignore_error("the log has it, too");
                fault
            }
        };
        self.log.error(&fault);
        1
    }

    fn make(&self) -> Result<std::ffi::CString> {
        // Until then nobody has ids here.
        wait(self.sync)?;
        if self.has_new_cgroup {
            // Now this process is in its group, which is to be the top of the namespace.
            unshare_cgroup().context(|| "linux.namespaces: cgroup")?;
        }
        self.set_oom_score();
        self.setup.limit()?;
        setsid().context(|| "session")?;
        let sources = RootSources::open(self.config, self.rootfs, self.log)?;
        self.become_root()?;
        // Others of a PID namespace that is shared must not look into this process, which still has descriptors of the host's.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).context(|| "process")?;
        self.name_itself()?;
        if self.has_new_network {
            skiff_sys::net::loopback_up().context(|| "loopback device")?;
        }
        let rootfs = sources.build(self.log)?;
        self.set_sysctls(&rootfs)?;
        send(self.sync, &InitStatus::Mounted)?;
        wait(self.sync)?;
        let hooks = self.config.hooks.as_ref().map_or(&[][..], |hooks| &hooks.create_container);
        hooks::run("createContainer", hooks, self.states[0])?;
        let process = self.config.process()?;
        rootfs.make_working_dir(&process.cwd)?;
        let terminal = process.terminal.then(|| self.make_terminal(&rootfs)).transpose()?;
        rootfs.enter()?;
        if let Some(terminal) = terminal {
            terminal.take()?;
        }
        self.setup.find()
    }

    /// A new user namespace has its maker as root, if it has a root.
    fn become_root(&self) -> Result<()> {
        if self.maps.is_some_and(|maps| !maps.has(0, 0)) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
        set_thread_res_gid(gid, gid, gid).context(|| "root of the container")?;
        set_thread_res_uid(uid, uid, uid).context(|| "root of the container")
    }

    fn set_oom_score(&self) {
        let score = self.config.process.as_ref().and_then(|process| process.oom_score_adj);
        let Some(score) = score else { return };
        if let Err(e) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
            self.log.warn(&format!("process.oomScoreAdj {score}: {e}"));
        }
    }

    fn name_itself(&self) -> Result<()> {
        let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
        if let Some(name) = given(&self.config.hostname) {
            rustix::system::sethostname(name.as_bytes()).context(|| format!("hostname {name}"))?;
        }
        if let Some(name) = given(&self.config.domainname) {
            rustix::system::setdomainname(name.as_bytes()).context(|| format!("domainname {name}"))?;
        }
        Ok(())
    }

    fn set_sysctls(&self, rootfs: &Rootfs<'_>) -> Result<()> {
        for (name, value) in &self.config.linux.sysctl {
            let about = || format!("linux.sysctl: {name}");
            let processes = rootfs.mounted.processes.as_ref();
            let processes = processes.ok_or_else(|| Fault::new(format!("{}: no mount of proc", about())))?;
            let path = if name.contains('/') { name.clone() } else { name.replace('.', "/") };
            let (flags, beneath) =
                (OFlags::WRONLY | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
            let file =
                openat2(processes, format!("sys/{path}"), flags, Mode::empty(), beneath).context(about)?;
            rustix::io::write(&file, value.as_bytes()).context(about)?;
        }
        Ok(())
    }

    fn make_terminal(&self, rootfs: &Rootfs<'_>) -> Result<Terminal> {
        let console = self.console.ok_or_else(|| {
            Fault::new("process.terminal: nobody operates the terminal")
                .hint("create needs --console-socket for it")
        })?;
        let size = self.config.process.as_ref().and_then(|process| process.console_size);
        let terminal = Terminal::new(rootfs.mounted.terminals.as_ref().map(AsFd::as_fd), size)?;
        rootfs.put_console(terminal.slave.as_fd())?;
        terminal.send(console.as_fd())?;
        Ok(terminal)
    }

    /// Whoever starts it listens until it is its program, or has failed.
    fn wait_for_start(&self) -> Result<OwnedFd> {
        let accepted = rustix::io::retry_on_intr(|| accept_with(self.listener, SocketFlags::CLOEXEC));
        let caller = accepted.context(|| "waiting for its start")?;
        unlinkat(self.dir, START, AtFlags::empty()).ignore_error("whoever starts it does the same");
        Ok(caller)
    }
}

#[expect(deprecated, reason = "what makes it unsafe is CLONE_FILES, which is not asked for")]
fn unshare_cgroup() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWCGROUP)
}
