//! The container on one host: its plan, and its only program, an ssh daemon.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitOptions, pidfd_send_signal, set_parent_process_death_signal, waitpid};
use skiff_cli::HostArgs;
use skiff_plan::PlanOptions;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::{Failed, NetSpace, SpawnAttr, as_me, as_root};
use skiff_sandbox::start::{RunningContainer, StartOptions, start};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::{File as PlanFile, HOSTS, Identity, Mount, Plan, Source, Upper};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, exit_now, fork};
use skiff_sys::signal::SignalMask;
use skiff_user::context::UserContext;

use crate::apart;
use crate::files;
use crate::script::with_stdio;
use crate::wire::{ClusterMember, ContainerSpec};

/// How long the daemon may take to listen.
const LISTENING: Duration = Duration::from_secs(30);

/// What the daemon says then.
const LISTENS: &[u8] = b"Server listening on ";

/// Finds the daemon wherever this root has it, as it must be called by its whole path.
const DAEMON: &str = "PATH=/usr/sbin:/usr/local/sbin:/sbin:/usr/bin:/usr/local/bin:/bin\n\
    command -v ssh >/dev/null || { echo 'there is no ssh in this root'; exit 1; }\n\
    sshd=$(command -v sshd) || { echo 'there is no sshd in this root'; exit 1; }\n\
    exec \"$sshd\" -D -e -f /run/skiff/cluster/sshd_config";

/// What root's daemon wants beyond that: a place for the part of it that has no privilege; and root's home where the user's is, who
/// is root.
const AS_ROOT: &str = "mkdir -p -m 755 /run/sshd\n\
    sed -i \"s,^\\(root:[^:]*:0:0:[^:]*\\):[^:]*:,\\1:$HOME:,\" /etc/passwd\n";

/// A running container, whose ssh daemon runs too.
pub struct SshContainer {
    instance: RunningContainer,
    identity: Identity,
    /// The daemon.
    pub daemon: Child,
    /// What that says.
    pub log: OwnedFd,
}

/// Refuses where there is nobody who could put a process into it as the user.
pub fn needs_helper(context: &UserContext) -> Result<&Path> {
    context.helper.as_deref().ok_or_else(|| {
        Error::new("a cluster's containers cannot be made without Skiff's helper")
            .hint("administrator: install it on all hosts; `skiff doctor` says what is missing")
    })
}

/// In memory, as much as the configuration says.
pub fn memory(context: &UserContext) -> Upper {
    Upper::Memory { size: context.config.run.memory.clone() }
}

/// What a container asks for: these files in the cluster's directory, the names of all its hosts, and how ssh reaches them.
pub fn options(
    wanted: &ContainerSpec,
    upper: Upper,
    net: &Net,
    made: Vec<PlanFile>,
    (members, own_hosts): (&[ClusterMember], &str),
) -> PlanOptions {
    let mount = |target: &str, source, read_only| Mount {
        source,
        target: target.into(),
        read_only,
        optional: false,
        propagation: None,
    };
    let hosts = files::etc_hosts(members, own_hosts);
    let asked = HostArgs { mounts: wanted.mounts.clone(), net: Some(net.clone()), ..HostArgs::default() };
    PlanOptions {
        // Everybody is themselves here: the host's commands run as they are.
        shims: false,
        // Who logs in to an image by ssh gets the shell that every image has.
        shell: Some("/bin/sh"),
        own: vec![
            mount(files::DIR, Source::Files(made), false),
            mount(HOSTS, Source::Text(hosts), true),
            mount(files::DROP_IN, Source::Text(files::ssh_config(members)), true),
        ],
        ..PlanOptions::new(wanted.name.clone(), upper, asked.into())
    }
}

impl SshContainer {
    /// Starts it. When this returns, its daemon listens.
    pub fn start(context: &UserContext, plan: &Plan, identity: Identity) -> Result<Self> {
        let helper = needs_helper(context)?;
        let instance = start(plan, StartOptions { helper: Some(helper), ..StartOptions::default() })?;
        let (log, theirs) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        let spawned = with_stdio(None, Some(theirs.as_fd()), Some(theirs.as_fd()), || {
            start_daemon(context, &instance, identity)
        });
        drop(theirs);
        let daemon = match spawned.and_then(|spawned| spawned.map_err(not_started)) {
            Ok(daemon) => daemon,
            Err(e) => {
                instance.end();
                return Err(e);
            }
        };
        let container = Self { instance, identity, daemon, log };
        match container.await_daemon() {
            Ok(()) => Ok(container),
            Err(e) => {
                container.end(None);
                Err(e)
            }
        }
    }

    fn await_daemon(&self) -> Result<()> {
        let mut said: Vec<u8> = vec![];
        let until = Instant::now() + LISTENING;
        let mut log = File::from(self.log.try_clone().context(|| "pipe")?);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let limit =
                Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            if poll(&mut [PollFd::new(&log, PollFlags::IN)], Some(&limit)).context(|| "ssh daemon")? == 0 {
                return Err(daemon_failed(&said, "it does not listen after 30 s"));
            }
            let mut buffer = [0; 1024];
            match log.read(&mut buffer).context(|| "ssh daemon")? {
                0 => return Err(daemon_failed(&said, "")),
                n => said.extend(&buffer[..n]),
            }
            if said.windows(LISTENS.len()).any(|part| part == LISTENS) {
                return Ok(());
            }
        }
    }

    /// Puts a program into it; as root once, as this process moves with that.
    pub fn enter(
        &self,
        context: &UserContext,
        command: &CommandSpec,
        attr: SpawnAttr,
    ) -> std::result::Result<Child, Failed> {
        let (init, mask) = (&self.instance.init, SignalMask::from_bits(0));
        match self.identity {
            Identity::Me => as_me(needs_helper(context)?, (init.pid, false), command, attr, mask),
            Identity::Root => as_root(init.pidfd.as_fd(), NetSpace::Ours, command, attr, mask),
        }
    }

    /// What is worth knowing of it.
    pub fn notes(&self) -> &[String] {
        &self.instance.notes
    }

    /// Ends it with `script`, if that still runs: when this returns, no process of it is left, and nothing that it has mounted or kept.
    pub fn end(self, script: Option<&Child>) {
        pidfd_send_signal(&self.instance.init.pidfd, Signal::KILL).ignore_error("it may be dead already");
        // They die with it, but are children of ours: as long as nobody has taken their exit statuses, it cannot go.
        for child in [Some(&self.daemon), script].into_iter().flatten() {
            while matches!(waitpid(Some(child.pid), WaitOptions::empty()), Err(Errno::INTR)) {}
        }
        self.instance.end();
    }
}

/// Starts the daemon, at our standard files.
fn start_daemon(
    context: &UserContext,
    instance: &RunningContainer,
    identity: Identity,
) -> std::result::Result<Child, Failed> {
    let script = match identity {
        Identity::Me => DAEMON.into(),
        Identity::Root => [AS_ROOT, DAEMON].concat(),
    };
    let command = CommandSpec {
        argv: ["/bin/sh", "-c", &script].map(Into::into).to_vec(),
        env: vec![("LANG".into(), "C".into()), ("HOME".into(), context.home.clone().into())],
        cwd: "/".into(),
        ..CommandSpec::default()
    };
    let attr = SpawnAttr { own_session: true, death_signal: Signal::KILL.as_raw(), ..SpawnAttr::default() };
    if identity == Identity::Me {
        return as_me(
            needs_helper(context)?,
            (instance.init.pid, false),
            &command,
            attr,
            SignalMask::from_bits(0),
        );
    }
    match fork(CloneFlags::NONE).context(|| "process for the ssh daemon")? {
        Fork::Parent(child) => Ok(child),
        Fork::Child => {
            set_parent_process_death_signal(Some(Signal::KILL))
                .ignore_error("if we are gone already, so is the container");
            exit_now(apart::run(instance.init.pidfd.as_fd(), NetSpace::Ours, &command, attr))
        }
    }
}

/// What the daemon said when it failed, so that the user can mend it.
pub fn daemon_failed(said: &[u8], why: &str) -> Error {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join("; ");
    let both =
        [last.as_str(), why].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    let hint = if last.contains("there is no ssh") {
        "the base must have OpenSSH's server and client (Debian: openssh-server, openssh-client)"
    } else if last.contains("already in use") {
        "somebody has just taken its port; run it again"
    } else {
        ""
    };
    let why = if both.is_empty() { "it ended without a word" } else { &both };
    Error::new(format!("its ssh daemon: {why}")).hint(hint)
}

fn not_started(why: Failed) -> Error {
    match why {
        Failed::Skiff(e) => e,
        Failed::Command(program, errno) => {
            let why = std::io::Error::from_raw_os_error(errno);
            Error::new(format!("{}: {why}", program.display()))
                .hint("the base must have a shell, and OpenSSH's server and client")
        }
    }
}
