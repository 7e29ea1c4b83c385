//! Several nodes in one user namespace: environments with a host name and a network of their own each, that share their ids and what
//! lies below their changes. One request to the helper serves all of them, also those that come later.
//!
//! Process 1 of the group makes them, so it keeps what it needs for that: every capability over a namespace that is its user's, and the
//! host's mounts. Nothing in a node sees it: they have PID namespaces further down.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, mkdirat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, kill_process};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::plan::{Base, Plan};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

use crate::child::{read_all, reap};
use crate::failed::Failed;
use crate::first::{self, First, Process};
use crate::group_node::GroupInputs;
use crate::helper::{Helper, Layers};
use crate::map;
use crate::mounts::{attach, bind, bind_one, memory, open_dir};
use crate::rootfs_inputs::{Extras, PLACE};
use crate::start::{For, Making, RunningContainer, become_init, detach_stdio, die_with_maker, hear};
use crate::word::Word;

pub use crate::group_node::{GroupNode, NetworkSetup};

/// A group, as its maker holds it. It ends with the maker.
pub struct UsernsGroup {
    /// Process 1 of the group; when it ends, so does every node.
    pub init: Child,
    /// A socket to it that keeps messages apart.
    pub control: OwnedFd,
    /// How many ids there are inside.
    pub ids: u32,
}

/// What all nodes of a group have in common, as its process 1 holds it.
pub struct GroupResources {
    /// Nothing where each node's root is stacked by a program of its own.
    layers: Option<Layers>,
    ids: u32,
    network: GroupNetwork,
}

/// What network the nodes of a group are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupNetwork {
    /// The one that the group's maker is in.
    Makers,
    /// One of its own each, and so has process 1 of the group.
    Own,
}

impl GroupNetwork {
    fn namespace(self, flags: CloneFlags) -> CloneFlags {
        match self {
            Self::Makers => flags,
            Self::Own => flags.and(CloneFlags::NETWORK),
        }
    }
}

/// Makes a group over `base` (of which `tree` has the files, if it is not the helper who gives them); its process 1 then does what
/// `serve` says, and ends. Of our descriptors it has `kept`.
///
/// # Errors
/// As a single environment's start.
pub fn start(
    base: Base,
    tree: Option<&Path>,
    helper: Option<&Path>,
    network: GroupNetwork,
    kept: &[BorrowedFd<'_>],
    serve: impl FnOnce(&GroupResources, &OwnedFd),
) -> Result<UsernsGroup> {
    let helper = helper.map(|program| Helper::spawn_for(program, base)).transpose()?;
    let (control, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .context(|| "control socket")?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let flags = CloneFlags::USER.and(CloneFlags::MOUNT).and(CloneFlags::PID);
    let made = fork(network.namespace(flags.and(CloneFlags::IPC))).context(|| "new namespaces");
    let Fork::Parent(init) = made.map_err(|e| e.hint("`skiff doctor` says whether users may have them"))?
    else {
        drop((control, report));
        let resources = GroupResources::make(tree, helper.as_ref(), network, &theirs);
        let word = match &resources {
            Ok(resources) => [b"+", &resources.ids.to_le_bytes()[..]].concat(),
            Err(e) => [b"-", &e.to_bytes()[..]].concat(),
        };
        let told = rustix::io::write(&reporter, &word).is_ok();
        drop(reporter);
        if let (Ok(resources), true) = (resources, told) {
            close_all_except(&[&resources.kept(&theirs), kept].concat());
            detach_stdio();
            serve(&resources, &theirs);
        }
        exit_now(0)
    };
    drop((theirs, reporter));
    let asked = match &helper {
        Some(helper) => helper.ask_for(base, init.pid),
        None => map::write(init.pid).and_then(|ids| {
            rustix::io::write(&control, &ids.to_le_bytes()).map(drop).context(|| "control socket")
        }),
    };
    if asked.is_err() {
        // It waits for that.
        kill_process(init.pid, Signal::KILL).ignore_error("it may have ended by itself");
    }
    let told = read_all(report.as_fd());
    helper.into_iter().for_each(Helper::finish);
    match (told.split_first(), asked) {
        (Some((b'+', ids)), Ok(())) => {
            let ids = ids.try_into().map_or(0, u32::from_le_bytes);
            Ok(UsernsGroup { init, control, ids })
        }
        (told, asked) => {
            kill_process(init.pid, Signal::KILL)
                .ignore_error("it may have ended, which is why nothing was told");
            reap(init.pid);
            asked?;
            Err(match told {
                Some((_, why)) => Fault::from_bytes(why),
                None => Fault::new("process 1 of the group ended without a word"),
            })
        }
    }
}

impl UsernsGroup {
    /// Ends it; when this returns, no process of it is left.
    pub fn end(self) {
        kill_process(self.init.pid, Signal::KILL).ignore_error("it may be dead already");
        reap(self.init.pid);
    }
}

impl GroupResources {
    fn make(
        tree: Option<&Path>,
        helper: Option<&Helper>,
        network: GroupNetwork,
        control: &OwnedFd,
    ) -> Result<Self> {
        die_with_maker(control.as_fd())?;
        let (ids, given) = match helper {
            Some(helper) => {
                let layers = helper.layers()?;
                (layers.ids, Some(layers))
            }
            None => {
                let mut ids = [0; 4];
                if rustix::io::read(control, &mut ids).context(|| "control socket")? != ids.len() {
                    return Err(Fault::new("no ids"));
                }
                (u32::from_le_bytes(ids), None)
            }
        };
        let layers = match tree {
            Some(tree) => {
                let about = || format!("root's files in {}", tree.display());
                let view = open_dir(CWD, tree).and_then(|dir| bind_one(dir.as_fd())).context(about)?;
                Some(Layers { stored: vec![], mask: None, view, ids, devices: None })
            }
            None => given,
        };
        if let Some(layers) = &layers {
            hang(layers)?;
        }
        if network == GroupNetwork::Own {
            skiff_sys::net::loopback_up().context(|| "loopback device")?;
        }
        Ok(Self { layers, ids, network })
    }

    /// What network its nodes are in.
    #[must_use]
    pub fn network(&self) -> GroupNetwork {
        self.network
    }

    fn kept<'a>(&'a self, control: &'a OwnedFd) -> Vec<BorrowedFd<'a>> {
        let layers = self.layers.iter();
        let mounts = layers.flat_map(|layers| layers.mask.iter().chain([&layers.view]));
        mounts.map(AsFd::as_fd).chain([control.as_fd()]).collect()
    }

    /// The layers once more, for one node.
    fn layers(&self) -> Result<Option<Layers>> {
        let again = |mount: &OwnedFd| bind_one(mount.as_fd()).context(|| "layers of the group");
        let Some(layers) = &self.layers else { return Ok(None) };
        let mask = layers.mask.as_ref().map(again).transpose()?;
        Ok(Some(Layers { stored: vec![], mask, view: again(&layers.view)?, ids: self.ids, devices: None }))
    }

    /// Makes a node, which ends with its first command, or with us.
    ///
    /// # Errors
    /// As the start of an environment for a command; nothing is left then.
    pub fn start_node(
        &self,
        plan: &Plan,
        node: &GroupNode<'_>,
        first: &First<'_>,
    ) -> std::result::Result<(RunningContainer, Process), Failed> {
        let program = std::env::current_exe().context(|| "own program")?;
        // Before the fork: in its own mount namespace it could not mount ours once more.
        let part = GroupInputs { layers: self.layers()?, ids: self.ids, node };
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .context(|| "control socket")?;
        let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        let flags = CloneFlags::MOUNT.and(CloneFlags::PID).and(CloneFlags::IPC);
        let Fork::Parent(init) = fork(self.network.namespace(flags.and(CloneFlags::UTS)))
            .context(|| format!("namespaces of node {}", node.name))?
        else {
            drop((control, report));
            let extras = Extras { program: &program, socket: None, hosts: None };
            let (part, purpose) = (Some(part), For::Root(first));
            let (helper, clocks) = (None, None);
            become_init(Making { plan, helper, part, extras, clocks, reporter, control: theirs, purpose })
        };
        drop((theirs, reporter, part));
        let connected = node
            .network
            .as_ref()
            .map_or(Ok(()), |network| (network.wire)(init.pid))
            .and_then(|()| rustix::io::write(&control, &[1]).map(drop).context(|| "control socket"));
        if connected.is_err() {
            // It waits for that.
            kill_process(init.pid, Signal::KILL).ignore_error("it may have ended by itself");
        }
        let told = hear(report.as_fd());
        let instance = RunningContainer { init, control, ids: self.ids, notes: vec![], way_out: None };
        let failed = match (Word::decode(&told), connected) {
            (Some((Word::Made { .. }, rest)), Ok(())) => match Failed::reported(rest, first.command) {
                None => {
                    let process = first::receive(instance.control.as_fd(), None)?;
                    return Ok((instance, process));
                }
                Some(why) => why,
            },
            (_, Err(e)) | (Some((Word::Failed(e), _)), _) => e.into(),
            _ => Fault::new(format!("node {}: it ended without a word", node.name)).into(),
        };
        instance.end();
        Err(failed)
    }
}

/// Hangs the layers into the namespace, from where they can be mounted again and again (before Linux 6.15 nothing else can): below what
/// they are hung over, so that every path leads where it did.
fn hang(layers: &Layers) -> Result<()> {
    let users = rustix::process::umask(Mode::empty());
    let hung = hang_below(layers);
    // The nodes' programs are to have it.
    rustix::process::umask(users);
    hung
}

fn hang_below(layers: &Layers) -> Result<()> {
    let covered = bind(Path::new(PLACE)).context(|| PLACE)?;
    let closet = memory(0o755, None).context(|| "file system in memory")?;
    attach(closet.as_fd(), CWD, PLACE)?;
    for (mount, name) in [(layers.mask.as_ref(), "mask"), (Some(&layers.view), "view")] {
        if let Some(mount) = mount {
            mkdirat(&closet, name, Mode::from_raw_mode(0o755)).context(|| name)?;
            attach(mount.as_fd(), closet.as_fd(), name)?;
        }
    }
    attach(covered.as_fd(), CWD, PLACE)
}
