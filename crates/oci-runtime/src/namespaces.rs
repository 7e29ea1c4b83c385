//! Which namespaces a container gets, and those of others that it is put into.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::process::CloneFlags;

use crate::config::BundleConfig;

/// A kind of namespace.
pub struct NamespaceKind {
    /// The specification's name.
    name: &'static str,
    /// The file in `/proc/PID/ns`.
    pub file: &'static str,
    /// What makes a new one; nothing if it cannot be had.
    new: Option<CloneFlags>,
    /// The kind, to enter one by its file.
    link: LinkNameSpaceType,
    /// The kind, to enter one by a process in it.
    pub thread: ThreadNameSpaceType,
}

impl NamespaceKind {
    const fn of(
        name: &'static str,
        file: &'static str,
        new: Option<CloneFlags>,
        link: LinkNameSpaceType,
        thread: ThreadNameSpaceType,
    ) -> Self {
        Self { name, file, new, link, thread }
    }
}

/// All kinds, in the order in which a process has to enter them: its rights in the others come from the user namespace, and paths mean what
/// they did until it is in another mount namespace.
pub static KINDS: [NamespaceKind; 8] = {
    use {
        CloneFlags as New, LinkNameSpaceType as Link, NamespaceKind as Kind, ThreadNameSpaceType as Thread,
    };
    [
        Kind::of("user", "user", Some(New::USER), Link::User, Thread::USER),
        Kind::of(
            "ipc",
            "ipc",
            Some(New::IPC),
            Link::InterProcessCommunication,
            Thread::INTER_PROCESS_COMMUNICATION,
        ),
        Kind::of(
            "uts",
            "uts",
            Some(New::UTS),
            Link::HostNameAndNISDomainName,
            Thread::HOST_NAME_AND_NIS_DOMAIN_NAME,
        ),
        Kind::of("network", "net", Some(New::NETWORK), Link::Network, Thread::NETWORK),
        Kind::of("pid", "pid", Some(New::PID), Link::ProcessID, Thread::PROCESS_ID),
        // The container's process makes a new one itself when it is in its group.
        Kind::of("cgroup", "cgroup", Some(New::NONE), Link::ControlGroup, Thread::CONTROL_GROUP),
        Kind::of("time", "time", None, Link::Time, Thread::TIME),
        Kind::of("mount", "mnt", Some(New::MOUNT), Link::Mount, Thread::MOUNT),
    ]
};

/// The namespaces of a configuration.
pub struct Namespaces {
    /// New ones.
    pub new: CloneFlags,
    /// Namespaces of others, with their kinds, in order.
    joined: Vec<(&'static NamespaceKind, OwnedFd)>,
    /// Whether `user` is among the new ones.
    pub has_new_user: bool,
}

impl Namespaces {
    /// Looks at them; opens those that have a path.
    ///
    /// # Errors
    /// A kind that is unknown or named twice, a path that is no namespace of its kind, no mount namespace.
    pub fn open(config: &BundleConfig, adds_user: bool) -> Result<Self> {
        let mut found = Self { new: CloneFlags::NONE, joined: vec![], has_new_user: adds_user };
        if adds_user {
            found.new = CloneFlags::USER;
        }
        for namespace in &config.linux.namespaces {
            let kind = &*namespace.kind;
            let name = || format!("linux.namespaces: {kind}");
            if !KINDS.iter().any(|known| known.name == kind) {
                return Err(Fault::new(format!("{}: no such kind", name())));
            }
            if config.linux.namespaces.iter().filter(|other| other.kind == kind).count() > 1 {
                return Err(Fault::new(format!("{}: twice", name())));
            }
        }
        for kind in &KINDS {
            let Some(namespace) = config.namespace(kind.name) else { continue };
            let name = || format!("linux.namespaces: {}", kind.name);
            match (&namespace.path, kind.new) {
                (Some(path), _) => {
                    let name = || format!("{} {}", name(), path.display());
                    let fd =
                        openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
                    found.joined.push((kind, fd.context(name)?));
                }
                (None, Some(flag)) => found.new = found.new.and(flag),
                (None, None) => {
                    return Err(Fault::new(format!("{}: a new one cannot be had", name()))
                        .hint("leave it out; clocks are the host's"));
                }
            }
        }
        found.has_new_user |= config.has_new("user");
        match config.namespace("mount") {
            Some(_) => Ok(found),
            None => Err(Fault::new(
                "linux.namespaces: no mount namespace: nothing can be mounted without privilege",
            )
            .hint("add {\"type\": \"mount\"}")),
        }
    }

    /// Whether a process has to be made that enters those of others before it makes the container's.
    pub fn joins_any(&self) -> bool {
        !self.joined.is_empty()
    }

    /// Enters those of others. As for PID namespaces, that means the children of this process.
    ///
    /// # Errors
    /// When one cannot be entered: it belongs to a user namespace in which this process has no rights.
    pub fn join(&self) -> Result<()> {
        for (kind, fd) in &self.joined {
            enter(kind, fd)?;
        }
        Ok(())
    }
}

fn enter(kind: &NamespaceKind, fd: &OwnedFd) -> Result<()> {
    // Nobody can enter the user namespace that they are in, and need not.
    if kind.name == "user" && is_own_user_namespace(fd)? {
        return Ok(());
    }
    move_into_link_name_space(fd.as_fd(), Some(kind.link))
        .context(|| format!("linux.namespaces: enter {}", kind.name))
        .map_err(|e| {
            e.hint(
                "it must belong to the container's user namespace, or to yours; share that, too, by its path",
            )
        })
}

fn is_own_user_namespace(fd: &OwnedFd) -> Result<bool> {
    let about = || "linux.namespaces: user";
    let own =
        openat(CWD, "/proc/self/ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).context(about)?;
    skiff_sys::ns::same(fd.as_fd(), own.as_fd()).context(about)
}
