//! Starts an environment: its namespaces, its root, its process 1; and, where it is made for one command, that command.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Signal, kill_process, set_dumpable_behavior, set_parent_process_death_signal,
};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::plan::{Base, Plan, inside};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

use crate::child::read_all;
use crate::clocks::{self, Clocks};
use crate::confine::Confinement;
use crate::exec_request::ExecRequest;
use crate::failed::Failed;
use crate::first::{self, First, Prepared};
use crate::group_node::GroupInputs;
use crate::helper::{Helper, Layers};
use crate::init::{self, Wards};
use crate::keyring;
use crate::mounts::{bind_one, open_dir};
use crate::rootfs_inputs::{Extras, RootfsInputs};
use crate::way_out::WayOut;
use crate::word::Word;
use crate::{map, root, rootless};

pub use crate::child::{reap, reap_all_until};
pub use crate::options::StartOptions;

/// A running environment, as its maker holds it.
pub struct RunningContainer {
    /// Process 1.
    pub init: Child,
    /// The maker's end of the socket to process 1; closing it ends the environment.
    pub control: OwnedFd,
    /// How many ids there are inside.
    pub ids: u32,
    /// What will not work in it, for the user to read.
    pub notes: Vec<String>,
    /// The way out of its own network.
    pub(crate) way_out: Option<WayOut>,
}

/// Carries out `plan`. The environment lives as long as the calling process and the returned control socket.
///
/// # Errors
/// Whatever could not be made, named; nothing of it is left then.
pub fn start(plan: &Plan, options: StartOptions<'_>) -> Result<RunningContainer> {
    launch(plan, options, For::Any).map(|Launched { instance, helper, .. }| {
        helper.into_iter().for_each(Helper::finish);
        instance
    })
}

/// Carries out `plan` for one command, which runs as root inside. The environment ends with it, or with the calling process.
///
/// # Errors
/// As [`start`], and that the command could not be started.
pub fn start_for(
    plan: &Plan,
    options: StartOptions<'_>,
    first: &First<'_>,
) -> std::result::Result<(RunningContainer, first::Process), Failed> {
    let Launched { instance, told, helper } = launch(plan, options, For::Root(first))?;
    if let Some(why) = Failed::reported(&told, first.command) {
        instance.end();
        helper.into_iter().for_each(Helper::finish);
        return Err(why);
    }
    let process = first::receive(instance.control.as_fd(), helper)?;
    Ok((instance, process))
}

/// Carries out `plan` for one command, which runs as the user: the helper that gives the layers makes its process, too, while
/// process 1 makes the root. The environment ends with the calling process, or when it is ended.
///
/// # Errors
/// As [`start_for`].
pub fn start_for_me(
    plan: &Plan,
    options: StartOptions<'_>,
    request: &ExecRequest<'_>,
) -> std::result::Result<(RunningContainer, Child, Helper), Failed> {
    let Launched { instance, helper, .. } = launch(plan, options, For::Me(request))?;
    let Some(helper) = helper else {
        instance.end();
        return Err(Fault::new("running as yourself inside needs the helper").into());
    };
    match helper.joined(&request.command) {
        Ok(child) => {
            helper.dismiss();
            Ok((instance, child, helper))
        }
        Err(why) => {
            // It may have been made, and not told of.
            kill_process(instance.init.pid, Signal::KILL).ignore_error("it may have ended by itself");
            helper.abandon();
            reap_all_until(instance.init.pid);
            Err(why)
        }
    }
}

impl RunningContainer {
    /// Ends it; when this returns, no process of it is left.
    pub fn end(self) {
        kill_process(self.init.pid, Signal::KILL).ignore_error(
            "it may be dead already; and if not, its end takes everything inside along before `reap` returns",
        );
        reap(self.init.pid);
        drop(self.way_out);
    }

    /// Ends it, without waiting for the very end of process 1, in which the kernel takes the mounts down: when this returns, no other process
    /// of it is left.
    pub fn end_inside(self) {
        let mut word = [0];
        let asked = rustix::io::write(&self.control, &[init::END]).is_ok();
        // It may have said before that it was idle.
        while asked && matches!(rustix::io::read(&self.control, &mut word), Ok(1)) {
            if word == [init::OVER] {
                return;
            }
        }
        self.end();
    }

    /// Address on a site network, over which the environment has power.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        match &self.way_out {
            Some(WayOut::Site { address, .. }) => Some(*address),
            _ => None,
        }
    }
}

/// What comes of making process 1.
struct Launched {
    instance: RunningContainer,
    /// What came behind its word: that of a first command that could not be started.
    told: Vec<u8>,
    /// Dismissed, if it has nothing more to do; perhaps not yet gone.
    helper: Option<Helper>,
}

/// What an environment is made for.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// Whatever comes.
    Any,
    /// A command as root inside.
    Root(&'a First<'a>),
    /// One as the user.
    Me(&'a ExecRequest<'a>),
}

/// Makes process 1 and waits for its word.
fn launch(plan: &Plan, mut options: StartOptions<'_>, purpose: For<'_>) -> Result<Launched> {
    let program = std::env::current_exe().context(|| "own program")?;
    options.load(plan)?;
    let helper = options.started.take();
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context(|| "control socket")?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let mut flags = CloneFlags::USER.and(CloneFlags::MOUNT).and(CloneFlags::PID).and(CloneFlags::IPC);
    if plan.net.is_own(plan.dumpable) {
        flags = flags.and(CloneFlags::NETWORK);
    }
    if plan.hostname.is_some() {
        flags = flags.and(CloneFlags::UTS);
    }
    let made = fork(flags);
    let is_refused = matches!(&made, Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()));
    if is_refused && Path::new(inside::PROGRAM).exists() {
        return Err(nested());
    }
    let made = made.context(|| "new namespaces").map_err(|e| {
        e.hint("user namespaces may be closed to users here (sysctl user.max_user_namespaces, AppArmor): `skiff doctor`")
    })?;
    let Fork::Parent(init) = made else {
        drop((control, report));
        let extras = Extras { program: &program, socket: options.socket, hosts: options.hosts };
        let helper = helper.as_ref();
        let (part, clocks) = (None, options.clocks);
        become_init(Making { plan, helper, part, extras, clocks, reporter, control: theirs, purpose })
    };
    drop((theirs, reporter));
    let asked = give_ids(init.pid, plan.base, helper.as_ref(), control.as_fd());
    let asked = asked.and_then(|()| match (purpose, &helper) {
        (For::Me(request), Some(helper)) => helper.ask_to_run(request, init.pid),
        _ => Ok(()),
    });
    let asked = asked.and_then(|()| give_way_out(init.pid, plan, &options, control.as_fd()));
    if asked.is_err() && WayOut::is_wanted(plan) {
        // It waits for the way out.
        kill_process(init.pid, Signal::KILL).ignore_error("it may have ended by itself");
    }
    let told = hear(report.as_fd());
    if !matches!(purpose, For::Me(_)) {
        // By now it has nothing more to do: its answer came before those words.
        helper.iter().for_each(Helper::dismiss);
    }
    match (Word::decode(&told), asked) {
        (Some((Word::Made { ids, notes }, rest)), Ok(way_out)) => Ok(Launched {
            instance: RunningContainer { init, control, ids, notes, way_out },
            told: rest.to_vec(),
            helper,
        }),
        // The child's own words come first: it saw what the helper answered.
        (word, asked) => {
            kill_process(init.pid, Signal::KILL)
                .ignore_error("it may have ended by itself; then there is nobody to kill");
            helper.into_iter().for_each(Helper::abandon);
            match purpose {
                For::Me(_) => reap_all_until(init.pid),
                _ => reap(init.pid),
            }
            match (word, asked) {
                (Some((Word::Failed(why), _)), _) | (_, Err(why)) => Err(why),
                _ => Err(Fault::new("process 1 of the environment ended without a word")),
            }
        }
    }
}

/// Who is themselves inside has left the user namespace that owns the container's processes, and the kernel (EINVAL) makes no PID namespace
/// below theirs then.
fn nested() -> Fault {
    Fault::new("this is the inside of a container, where you can start no other as yourself").hint(
        "start it from outside; or start this one with --root; in a job: srun --overlap --container-image=IMAGE COMMAND",
    )
}

/// What process 1 would say if it could.
const SILENCE: &[u8] = b"-process 1 of the environment has not said a word for a minute\na file system that hangs? `skiff doctor`";

/// All that process 1 says before it serves.
pub(crate) fn hear(report: BorrowedFd<'_>) -> Vec<u8> {
    if says_all(report) { read_all(report) } else { SILENCE.to_vec() }
}

/// Waits until all is said: to be woken by the first word and again by the end takes longer. Says whether there is a word at
/// all. (Some file systems never answer, and then nobody could end us but by force.)
fn says_all(report: BorrowedFd<'_>) -> bool {
    let wait = |what, seconds| {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(report, what)], Some(&limit)) != Ok(0)
    };
    // Of the end, poll tells without being asked.
    wait(PollFlags::empty(), 60) || wait(PollFlags::IN, 0)
}

/// The maker's part in the map: ask the helper, whose answer process 1 takes, or do without and tell process 1.
fn give_ids(pid: Pid, base: Base, helper: Option<&Helper>, control: BorrowedFd<'_>) -> Result<()> {
    match helper {
        Some(helper) => helper.ask_for(base, pid),
        None => {
            let ids = map::write(pid)?;
            rustix::io::write(control, &ids.to_le_bytes()).map(drop).context(|| "control socket")
        }
    }
}

/// The way out of its network, of which process 1 is told when it is there.
fn give_way_out(
    pid: Pid,
    plan: &Plan,
    options: &StartOptions<'_>,
    control: BorrowedFd<'_>,
) -> Result<Option<WayOut>> {
    let way_out = WayOut::make(pid, plan, options)?;
    if way_out.is_some() {
        rustix::io::write(control, &[1]).context(|| "control socket")?;
    }
    Ok(way_out)
}

/// In process 1: waits until it is there.
fn await_way_out(making: &Making<'_>) -> Result<()> {
    if WayOut::is_wanted(making.plan) && rustix::io::read(&making.control, &mut [0]) != Ok(1) {
        return Err(Fault::new(format!("network {}: its maker is gone", making.plan.net)));
    }
    Ok(())
}

/// What process 1 is given to work with.
pub(crate) struct Making<'a> {
    pub plan: &'a Plan,
    pub helper: Option<&'a Helper>,
    /// What it has of a group, if it is made in one.
    pub part: Option<GroupInputs<'a>>,
    pub extras: Extras<'a>,
    /// From where its clocks go on.
    pub clocks: Option<Clocks>,
    pub reporter: OwnedFd,
    pub control: OwnedFd,
    pub purpose: For<'a>,
}

impl Making<'_> {
    /// Closes what the command could find in `/proc/1/fd`: it runs before process 1 has come to the end of its work.
    fn close_what_is_done_with(&self, prepared: Option<&Prepared>) {
        let mut kept = vec![self.control.as_fd(), self.reporter.as_fd()];
        kept.extend(self.helper.map(Helper::socket));
        kept.extend(prepared.into_iter().flat_map(Prepared::descriptors));
        close_all_except(&kept);
        detach_stdio();
    }
}

/// What process 1 knows after its work, and what it worked with.
struct Made<'a> {
    ids: u32,
    notes: Vec<String>,
    _inputs: RootfsInputs<'a>,
    _layers: Option<Layers>,
}

pub(crate) fn become_init(making: Making<'_>) -> ! {
    let report = |word: &Word| rustix::io::write(&making.reporter, &word.encode()).map_or((), drop);
    let fail = |e: Fault| -> ! {
        // If even this fails, the maker sees an end without a word.
        report(&Word::Failed(e));
        exit_now(125)
    };
    if making.plan.dumpable {
        // Whatever runs inside is to be in it.
        clocks::become_own(making.clocks).unwrap_or_else(|e| fail(e));
        keyring::become_own();
    }
    // What nothing inside may have goes first, once for all that is forked; what process 1 has itself, it needs to mount.
    let confinement = Confinement::of(making.plan);
    confinement.drop_bounding().unwrap_or_else(|e| fail(e));
    let prepared = match making.purpose {
        For::Root(first) => Some(first.prepare(confinement, &making.reporter).unwrap_or_else(|e| fail(e))),
        For::Any | For::Me(_) => None,
    };
    let mut wards = Wards { first: prepared.as_ref().map(|p| p.child.pid), server: None };
    // Never dropped: to close a hundred descriptors one by one takes longer than all at once, below.
    let hung = || prepared.as_ref().map_or((), Prepared::look_ahead);
    let mut made = make_root(&making, &mut wards, hung).unwrap_or_else(|e| fail(e));
    if making.plan.dumpable {
        keyring::link_users();
    }
    await_way_out(&making).unwrap_or_else(|e| fail(e));
    init::hide_maker();
    if making.plan.untrusted {
        // We have no filter of system calls: through our memory a program would be rid of its own. What we have of capabilities keeps us out of
        // its reach already; this does even if it got them.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context(|| "process 1 of the environment")
            .unwrap_or_else(|e| fail(e));
    }
    if making.plan.closes_descriptors() {
        making.close_what_is_done_with(prepared.as_ref());
    }
    let word = Word::Made { ids: made.ids, notes: std::mem::take(&mut made.notes) };
    let control = &making.control;
    match prepared {
        // It is waiting, and it cannot reach us: what has more capabilities than oneself one cannot trace.
        Some(prepared) => {
            // Before anybody knows that it is there: who joins reads from it what there is to be had inside.
            confinement.drop_permitted().unwrap_or_else(|e| fail(e));
            report(&word);
            prepared.go(control.as_fd());
        }
        None => {
            if let (For::Me(_), Some(helper)) = (making.purpose, making.helper) {
                helper.go().unwrap_or_else(|e| fail(e));
            }
            confinement.drop_permitted().unwrap_or_else(|e| fail(e));
            report(&word);
        }
    }
    close_all_except(&[control.as_fd()]);
    detach_stdio();
    init::serve(control, wards)
}

fn make_root<'a>(making: &Making<'a>, wards: &mut Wards, hung: impl FnOnce()) -> Result<Made<'a>> {
    die_with_maker(making.control.as_fd())?;
    rustix::process::umask(Mode::empty());
    if making.plan.net.is_own(making.plan.dumpable) {
        skiff_sys::net::loopback_up().context(|| "loopback device")?;
    }
    if let Some(part) = &making.part {
        return make_root_in(making, part, wards, hung);
    }
    if let Some(name) = &making.plan.hostname {
        rustix::system::sethostname(name.as_str().as_bytes()).context(|| format!("host name {name}"))?;
    }
    let mut inputs = RootfsInputs::prepare(making.plan, making.extras)?;
    match making.helper {
        Some(helper) => {
            let mut layers = helper.layers()?;
            if making.plan.base == Base::Directory {
                layers = Layers { mask: None, view: directory(making.plan)?, ..layers };
            }
            root::build(&mut inputs, &layers, hung)?;
            Ok(Made { ids: layers.ids, notes: vec![], _inputs: inputs, _layers: Some(layers) })
        }
        None => {
            let mut ids = [0; 4];
            let n = rustix::io::read(&making.control, &mut ids).context(|| "control socket")?;
            if n != ids.len() {
                return Err(Fault::new("no ids"));
            }
            let ids = u32::from_le_bytes(ids);
            if making.plan.unpacked.is_some() {
                let view = directory(making.plan)?;
                let layers = Layers { stored: vec![], mask: None, view, ids, devices: None };
                root::build(&mut inputs, &layers, hung)?;
                return Ok(Made { ids, notes: rootless::notes(ids), _inputs: inputs, _layers: Some(layers) });
            }
            let rootless::Built { server, notes } = rootless::build(&mut inputs, ids)?;
            wards.server = Some(server);
            Ok(Made { ids, notes, _inputs: inputs, _layers: None })
        }
    }
}

/// The directory with the root's files, as a mount.
fn directory(plan: &Plan) -> Result<OwnedFd> {
    let tree = plan.unpacked.as_deref().unwrap_or(Path::new("/nowhere"));
    let about = || format!("root's files in {}", tree.display());
    open_dir(CWD, tree).and_then(|dir| bind_one(dir.as_fd())).context(about)
}

/// As [`make_root`], for a node of a group: its ids and layers are the group's. Begins when the group says that the node has all it needs.
fn make_root_in<'a>(
    making: &Making<'a>,
    part: &GroupInputs<'a>,
    wards: &mut Wards,
    hung: impl FnOnce(),
) -> Result<Made<'a>> {
    if rustix::io::read(&making.control, &mut [0]) != Ok(1) {
        return Err(Fault::new(format!("node {}: its maker is gone", part.node.name)));
    }
    rustix::system::sethostname(part.node.name.as_bytes()).context(|| "host name")?;
    part.node.network.as_ref().map_or(Ok(()), |network| (network.settle)())?;
    let mut inputs = RootfsInputs::prepare(making.plan, making.extras)?;
    if let Some(layers) = &part.layers {
        root::build(&mut inputs, layers, hung)?;
    } else {
        wards.server = Some(rootless::build(&mut inputs, part.ids)?.server);
    }
    Ok(Made { ids: part.ids, notes: vec![], _inputs: inputs, _layers: None })
}

/// Makes this process die when its maker does. `lifeline` ends then: only the maker has its other end.
pub(crate) fn die_with_maker(lifeline: BorrowedFd<'_>) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context(|| "parent's death signal")?;
    // It may be dead already, and of that there is no signal any more.
    let mut fds = [PollFd::from_borrowed_fd(lifeline, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).context(|| "parent")?;
    if fds[0].revents().contains(PollFlags::HUP) {
        exit_now(125);
    }
    Ok(())
}

/// A process that stays must not keep its maker's terminal or pipes open.
pub fn detach_stdio() {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    if let Ok(null) = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for dup in [dup2_stdin, dup2_stdout, dup2_stderr] {
            dup(&null).ignore_error("what stays open is closed when this process ends");
        }
    }
}
