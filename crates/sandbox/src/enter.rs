//! Doing something inside a running environment as its root, with all capabilities that its user namespace gives: what CRIU needs.
//! (Programs of the user's never get these: see [`crate::join`].)

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, setsid, waitpid,
};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::{Descriptors, Reporter, ReportingChild};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, fork, fork_as};
use skiff_sys::signal::{SignalMask, restore};
use skiff_sys::{fdpass, socket_option};

use crate::clocks;
use crate::idle::end_with_owner;
use crate::join::NetSpace;
use crate::keyring;
use crate::start::detach_stdio;
use crate::terminal::new_pair_of;

/// The process, in messages.
const NAME: &str = "process in the environment";

/// Where to go.
#[derive(Clone, Copy)]
pub struct EnterTarget<'a> {
    /// A handle of process 1.
    pub init: BorrowedFd<'a>,
    /// Whose network namespace it is in.
    pub net: NetSpace,
    /// The number that the process is to have there.
    pub number: Option<Pid>,
}

/// Runs `act` inside; gives what it gave. `keep` are the descriptors that it needs.
///
/// # Errors
/// Its own, or that the environment is gone.
pub fn run<T: Serialize + DeserializeOwned>(
    inside: EnterTarget<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    begin(inside, keep, act)?.end()
}

/// The container's root as a mount of its own, without what is mounted in it.
///
/// # Errors
/// That the environment is gone.
pub fn open_root(init: BorrowedFd<'_>) -> Result<OwnedFd> {
    let about = "the environment's root";
    let [root] = opened(init, MOUNTS, about, || {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        Ok(vec![open_tree(CWD, "/", flags).context(|| about)?])
    })
    .and_then(|all| all_of(all, about))?;
    Ok(root)
}

/// A new terminal of the container's own: its master and its slave, which has a name inside and belongs to root there.
///
/// # Errors
/// That the environment is gone, or has no terminals any more: root inside can unmount them.
pub fn open_terminal(init: BorrowedFd<'_>) -> Result<[OwnedFd; 2]> {
    let about = "terminals of the environment";
    let both = opened(init, MOUNTS, about, || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let terminals = openat2(CWD, "/dev/pts", flags, Mode::empty(), resolve).context(|| about)?;
        let (master, slave) = new_pair_of(terminals.as_fd()).map_err(|e| e.about(about))?;
        Ok(vec![master, slave])
    })?;
    all_of(both, about)
}

/// A new socket of this kind in the container's network; nothing if the kernel does not give one.
///
/// # Errors
/// That the environment is gone.
pub fn open_socket(inside: EnterTarget<'_>, kind: [i32; 3]) -> Result<Option<OwnedFd>> {
    if !inside.net.is_its() {
        return Ok(socket_option::new_of(kind).ok());
    }
    let spaces = ThreadNameSpaceType::USER | ThreadNameSpaceType::NETWORK;
    let socket = opened(inside.init, spaces, "socket in the environment's network", || {
        Ok(socket_option::new_of(kind).ok().into_iter().collect())
    })?;
    Ok(socket.into_iter().next())
}

/// Where names are those of the container.
const MOUNTS: ThreadNameSpaceType = ThreadNameSpaceType::USER.union(ThreadNameSpaceType::MOUNT);

fn all_of<const N: usize>(opened: Vec<OwnedFd>, about: &str) -> Result<[OwnedFd; N]> {
    opened.try_into().map_err(|_| Fault::new(format!("{about}: no descriptor received")))
}

/// What `open` opens as root in these of the container's namespaces.
fn opened(
    init: BorrowedFd<'_>,
    spaces: ThreadNameSpaceType,
    about: &'static str,
    open: impl FnOnce() -> Result<Vec<OwnedFd>>,
) -> Result<Vec<OwnedFd>> {
    let about = || about;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).context(about)?;
    as_root_unseen(init, spaces, &[theirs.as_fd()], || {
        let opened = open()?;
        let fds: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
        fdpass::send(theirs.as_fd(), b"r", &fds).context(about)
    })?;
    drop(theirs);
    let (_, fds) = fdpass::receive(ours.as_fd(), 1).context(about)?;
    Ok(fds.into_iter().collect())
}

/// Runs `act` as root of the container's user namespace, outside of the container: nobody inside sees the process, so root inside can neither
/// stop nor end it. It ends with its caller.
///
/// # Errors
/// As [`run`].
pub fn run_unseen<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    as_root_unseen(init, ThreadNameSpaceType::USER, keep, act)
}

/// Runs `act` as [`run_unseen`] does, in the container's mount and IPC namespaces. It does not end with its caller, nor by a key of the caller's terminal: it
/// has something of the container in hand, and puts it back.
///
/// # Errors
/// As [`run`].
pub fn run_unseen_to_its_end<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let kept = [keep, &[init]].concat();
    let child = ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::Only(&kept), || {
        setsid().context(|| "session")?;
        detach_stdio();
        let theirs = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
        join(init, ThreadNameSpaceType::USER | theirs)?;
        act()
    });
    child?.end()
}

fn as_root_unseen<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    spaces: ThreadNameSpaceType,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let kept = [keep, &[init]].concat();
    let child = ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::Only(&kept), || {
        join(init, spaces)?;
        // Only now: a change of credentials takes this back.
        set_parent_process_death_signal(Some(Signal::KILL)).context(|| "signal at the caller's end")?;
        act()
    });
    child?.end()
}

fn join(init: BorrowedFd<'_>, spaces: ThreadNameSpaceType) -> Result<()> {
    move_into_thread_name_spaces(init, spaces)
        .context(|| "the environment's namespaces")
        .map_err(|e| e.hint("the environment may just have been stopped"))
}

/// Begins what [`run`] does.
///
/// # Errors
/// When there are no processes to be had.
pub fn begin<T: Serialize + DeserializeOwned>(
    inside: EnterTarget<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<ReportingChild<T>> {
    begin_with(inside, keep, wait_for, act)
}

/// Begins the same; the process inside does not outlive its use: it is killed as soon as something comes through the pipe `owner`, and once nobody has that
/// pipe's other end any more and it does no work.
///
/// # Errors
/// As [`begin`].
pub fn begin_owned<T: Serialize + DeserializeOwned>(
    inside: EnterTarget<'_>,
    keep: &[BorrowedFd<'_>],
    owner: BorrowedFd<'_>,
    act: impl FnOnce() -> Result<T>,
) -> Result<ReportingChild<T>> {
    let wait = |child: &Child| {
        end_with_owner(child, owner);
        wait_for(child)
    };
    let keep: Vec<BorrowedFd<'_>> = keep.iter().copied().chain([owner]).collect();
    begin_with(inside, &keep, wait, act)
}

/// Begins what [`run`] does, by a process that goes on if it is stopped.
///
/// # Errors
/// As [`begin`].
pub fn begin_continued<T: Serialize + DeserializeOwned>(
    inside: EnterTarget<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<ReportingChild<T>> {
    begin_with(inside, keep, |child| wait_and_continue(child.pid), act)
}

fn begin_with<T: Serialize + DeserializeOwned>(
    inside: EnterTarget<'_>,
    keep: &[BorrowedFd<'_>],
    wait: impl FnOnce(&Child) -> bool,
    act: impl FnOnce() -> Result<T>,
) -> Result<ReportingChild<T>> {
    ReportingChild::fork(NAME, CloneFlags::NONE, |reporter| {
        let own = [inside.init, reporter.as_fd()];
        let kept: Vec<BorrowedFd<'_>> = keep.iter().copied().chain(own).collect();
        close_all_except(&kept);
        detach_stdio();
        // Neither our end nor a key of the terminal ends what goes on inside: processes that CRIU has stopped it must be able to let go.
        // It sees by its socket that nobody is there any more.
        setsid().ignore_error("it fails only in who leads a group already");
        // Whoever starts it may hear of their signals in another way; CRIU wants them as they come.
        restore(SignalMask::from_bits(0));
        between(inside, reporter, wait, act)
    })
}

/// Starts a program inside: `become_it` does not return unless that fails. What is given is a process outside that ends when the
/// program does, and whose end is the program's.
///
/// # Errors
/// That of `become_it`, or that the environment is gone.
pub fn start(
    inside: EnterTarget<'_>,
    keep: &[BorrowedFd<'_>],
    become_it: impl FnOnce() -> Fault,
) -> Result<Child> {
    begin::<()>(inside, keep, || Err(become_it()))?.started()
}

/// Starts a process inside that does nothing in a session of its own, to be dumped.
///
/// # Errors
/// As [`start`].
pub fn start_patient(inside: EnterTarget<'_>) -> Result<Child> {
    let ready = || {
        setsid().context(|| "session")?;
        // The ones that it has were opened outside.
        detach_stdio();
        Ok(())
    };
    start(inside, &[], || match ready() {
        Ok(()) => {
            let (argv, env) = ([c"sleep".to_owned(), c"1000".to_owned()], []);
            let e = skiff_sys::process::exec("/bin/sleep".as_ref(), &argv, &env);
            Fault::new(format!("/bin/sleep: {e}"))
        }
        Err(why) => why,
    })
}

/// Waits for the end of a process that [`start`] gave; whether it ended well.
pub fn wait_for(child: &Child) -> bool {
    loop {
        match waitpid(Some(child.pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(ended) => return ended.is_some_and(|(_, status)| status.exit_status() == Some(0)),
            Err(_) => return false,
        }
    }
}

/// Waits for the end of a child; whether it ended well. If root inside stops it, as `kill -STOP -1` does, it goes on at once: others wait for it, maybe
/// while all other processes inside stand still.
fn wait_and_continue(child: Pid) -> bool {
    loop {
        match waitpid(Some(child), WaitOptions::UNTRACED) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some((_, status))) if status.stopped() => {
                kill_process(child, Signal::CONT).ignore_error("it has ended meanwhile");
            }
            Ok(ended) => return ended.is_some_and(|(_, status)| status.exit_status() == Some(0)),
            Err(_) => return false,
        }
    }
}

/// The process in between: only the children of one that has joined a PID namespace are in it.
fn between<T: Serialize>(
    inside: EnterTarget<'_>,
    reporter: Reporter<T>,
    wait: impl FnOnce(&Child) -> bool,
    act: impl FnOnce() -> Result<T>,
) -> i32 {
    match join_then_fork(inside) {
        Ok(Fork::Child) => {
            // If nobody is there any more, nobody wants to know.
            i32::from(!reporter.tell(&join_the_rest(inside).and_then(|()| act())))
        }
        Ok(Fork::Parent(child)) => {
            drop(reporter);
            i32::from(!wait(&child))
        }
        Err(why) => {
            reporter.tell(&Err(why));
            1
        }
    }
}

fn join_then_fork(inside: EnterTarget<'_>) -> Result<Fork> {
    let mut ours = ThreadNameSpaceType::USER | ThreadNameSpaceType::PROCESS_ID | clocks::space(inside.init)?;
    if inside.net.is_its() {
        ours |= ThreadNameSpaceType::NETWORK;
    }
    join(inside.init, ours)?;
    match inside.number {
        None => fork(CloneFlags::NONE).context(|| "process inside"),
        Some(number) => fork_as(number, CloneFlags::NONE).context(|| format!("process {number} inside")),
    }
}

fn join_the_rest(EnterTarget { init, net, number }: EnterTarget<'_>) -> Result<()> {
    let mut theirs = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    if net.has_own_name() {
        theirs |= ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    }
    move_into_thread_name_spaces(init, theirs).context(|| "the environment's namespaces")?;
    keyring::join();
    if let Some(number) = number {
        // Its own children, too, get numbers beyond those that are to be free.
        std::fs::write("/proc/sys/kernel/ns_last_pid", number.to_string())
            .context(|| "the next process's number")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for by its number")]
    fn who_is_stopped_while_others_wait_for_it_goes_on() {
        for (ending, is_well) in [("exit 0", true), ("exit 3", false), ("kill -STOP $$; exit 0", true)] {
            let text = format!("kill -STOP $$; {ending}");
            let child = std::process::Command::new("/bin/sh").args(["-c", &text]).spawn().expect("started");
            let pid = Pid::from_raw(child.id().try_into().expect("a number")).expect("not 0");
            assert_eq!(wait_and_continue(pid), is_well, "{text}");
        }
    }
}
