//! Keeps strangers from the sockets over which processes that CRIU restores hand each other descriptors. Such a socket has an abstract name, which every
//! process of its network namespace sees, can take before CRIU does, and can send to: on the host's network all users of the host. So these sockets
//! are moved into a network namespace of their own.

use std::fs;
use std::io::ErrorKind::Unsupported;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname,
    recvfrom, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior};
use skiff_criu::core_image::has_shadow_stack;
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::traced::TracedDescendants;
use skiff_sys::{ns, written};

use crate::record::Checkpoint;

/// In messages.
const NAME: &str = "the sockets of processes that are restored";
/// How the names of these sockets begin, and that of the one in which CRIU keeps descriptors.
const OF_PROCESSES: &[u8] = b"/crtools-fd-";
const OF_STORE: &[u8] = b"/criu-fdstore-";
/// How long the process that moves them may take to end when CRIU has made all.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process inside that moves the sockets.
pub struct TransportSockets {
    moving: ReportingChild<bool>,
    /// When this closes, it ends.
    end: OwnedFd,
}

impl TransportSockets {
    /// Whether the sockets can be moved when this checkpoint is restored from `images`. `criu` is CRIU's PID here. CRIU traces a process with a shadow stack
    /// as soon as it makes it, and nobody else can trace it then.
    #[must_use]
    pub fn can_move(criu: Pid, images: &Path, checkpoint: &Checkpoint) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", criu.as_raw_nonzero()));
        let has_one = |status: String| status.lines().any(is_shadowed);
        if status.is_ok_and(has_one) {
            return false;
        }
        !checkpoint.processes.iter().any(|process| {
            let image = fs::read(images.join(format!("core-{}.img", process.pid)));
            image.is_ok_and(|image| has_shadow_stack(&image) == Some(true))
        })
    }

    /// Begins at CRIU's stage `pre-restore`. `criu` is its number inside; `first` that of the first process that it makes, if orphans are to be this one's.
    ///
    /// # Errors
    /// When CRIU cannot be traced, or somebody else has sent a descriptor to CRIU.
    pub fn begin(inside: EnterTarget<'_>, criu: Pid, first: Option<Pid>) -> Result<Self> {
        let about = || NAME;
        let (ready, told) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let (ended, end) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let inside = EnterTarget { number: None, ..inside };
        let moving = enter::begin(inside, &[told.as_fd(), ended.as_fd()], || {
            refuse_strangers_descriptors(criu)?;
            // The processes take the sockets from this one.
            set_dumpable_behavior(DumpableBehavior::Dumpable).context(about)?;
            let traced = TracedDescendants::trace(criu).context(about)?;
            rustix::io::write(&told, b"t").context(about)?;
            let apart = ns::unshare_network();
            let followed = traced.follow(ended.as_fd(), first, |name| {
                // A host may allow no such namespace: then the sockets stay where they are.
                let socket = || apart.as_ref().map_or(Err(Unsupported.into()), |()| socket_named(name));
                name.starts_with(OF_PROCESSES).then(socket).transpose()
            });
            Ok(followed.context(about)?.is_adopting)
        })?;
        drop((told, ended));
        match rustix::io::read(&ready, &mut [0]) {
            Ok(1) => Ok(Self { moving, end }),
            _ => Err(moving.end().err().unwrap_or_else(|| Fault::new(format!("{NAME}: CRIU is not traced")))),
        }
    }

    /// Lets all go on, at CRIU's stage `post-restore`; whether the first process takes over orphans.
    ///
    /// # Errors
    /// Only some sockets could be moved.
    pub fn end(self) -> Result<bool> {
        let Self { moving, end } = self;
        drop(end);
        let late = || Fault::new(format!("{NAME}: who moves them has not ended"));
        moving.end_by(Instant::now() + PATIENCE)?.ok_or_else(late)
    }
}

/// Whether a line of `/proc/PID/status` says that the process has a shadow stack.
fn is_shadowed(line: &str) -> bool {
    let features = line.strip_prefix("x86_Thread_features:");
    features.is_some_and(|features| features.split_whitespace().any(|one| one == "shstk"))
}

fn socket_named(name: &[u8]) -> std::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// CRIU keeps descriptors in a socket that is connected to itself, and takes them by their places. Between `bind` and `connect` others could send one to it:
/// then that is the first, and each process gets another one than its own.
fn refuse_strangers_descriptors(criu: Pid) -> Result<()> {
    let about = || "CRIU's own descriptors";
    let pidfd = pidfd_open(criu, PidfdFlags::empty()).context(about)?;
    let number = criu.as_raw_nonzero();
    for entry in fs::read_dir(format!("/proc/{number}/fd")).context(about)? {
        let name = entry.context(about)?.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(socket) = written::copy_of(pidfd.as_fd(), fd) else { continue };
        let own = getsockname(&socket).ok().filter(is_store);
        let Some(own) = own else { continue };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let first = recvfrom(&socket, &mut [0_u8; 1][..], flags);
        if first.is_ok_and(|(_, _, sender)| sender.as_ref() != Some(&own)) {
            return Err(Fault::new("another user of this host sent a descriptor to CRIU").hint(
                "restore it again. An instance with a network of its own (--net) is out of their reach",
            ));
        }
    }
    Ok(())
}

fn is_store(address: &SocketAddrAny) -> bool {
    let address = SocketAddrUnix::try_from(address.clone()).ok();
    address.is_some_and(|address| address.abstract_name().is_some_and(|name| name.starts_with(OF_STORE)))
}

#[cfg(test)]
mod tests {
    use rustix::net::{SendFlags, connect, sendto};
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_strangers_descriptor_before_crius_own_is_refused() {
        let name = [OF_STORE, format!("test-{}", std::process::id()).as_bytes()].concat();
        let address = SocketAddrUnix::new_abstract_name(&name).expect("a name");
        let store = socket_named(&name).expect("bound");
        let stranger = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        let own = |content: &[u8]| sendto(&store, content, SendFlags::empty(), &address).expect("sent");
        // Whoever comes before the store is connected to itself is heard.
        sendto(&stranger, &[], SendFlags::empty(), &address).expect("sent");
        connect(&store, &address).expect("connected");
        sendto(&stranger, &[], SendFlags::empty(), &address).expect_err("it takes its own only");
        own(&[0]);
        refuse_strangers_descriptors(getpid()).expect_err("a stranger's is the first");
        recvfrom(&store, &mut [0_u8; 1][..], RecvFlags::DONTWAIT).expect("the stranger's");
        refuse_strangers_descriptors(getpid()).expect("its own is the first");
        recvfrom(&store, &mut [0_u8; 1][..], RecvFlags::DONTWAIT).expect("its own");
        refuse_strangers_descriptors(getpid()).expect("none is there");
    }

    #[test]
    fn shadow_stacks_are_seen() {
        assert!(is_shadowed("x86_Thread_features:\tshstk wrss "));
        for line in ["x86_Thread_features:\t", "x86_Thread_features_locked:\tshstk wrss ", "Name:\tshstk"] {
            assert!(!is_shadowed(line), "{line}");
        }
    }
}
