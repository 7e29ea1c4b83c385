//! `store`: starts our own program as the owner of the trusted store, to fill it at the caller's wish.
//!
//! All that is foreign (answers of registries, layers, archives) is read there, by processes that are neither root nor the caller: the
//! caller cannot trace, stop or signal them. Which program that is follows from where this one is installed; for whom it works it learns
//! from us. They are two: this one becomes the fetcher, which has the network; its child becomes the writer, which has the store, and
//! neither the network nor any other file, process or message queue of the host.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, mount_remount,
    move_mount, unmount,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, chdir, fchdir, getrlimit, pivot_root, setrlimit};
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::wire::{Reply, STORE_FETCHER, STORE_WRITER};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exec_open, fork, keep_on_exec};
use skiff_sys::{caps, fdpass, signal};

use crate::caller::Caller;
use crate::image::StoreDir;
use crate::quota::Slot;
use crate::{files, state};

/// What a writer may have of the caller's machine, if the caller's own limits are not lower: address space in bytes (an image of eight million
/// files takes 3 GB), descriptors, seconds of processor time.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::As, 16 << 30), (Resource::Nofile, 4096), (Resource::Cpu, 4 * 60 * 60)];
/// What the writer has to itself. Whoever takes it over sees no other process, and reaches nobody by a network.
const NAMESPACES: CloneFlags =
    CloneFlags::PID.and(CloneFlags::IPC).and(CloneFlags::MOUNT).and(CloneFlags::NETWORK);
/// The group of files whose group does not matter.
const NO_GROUP: u32 = 65534;
/// Variables of the caller's that say how to reach servers. Nothing else of their environment goes along.
const VARIABLES: [&str; 7] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "ALL_PROXY"];

/// Becomes the fetcher, and starts the writer, which talks to the caller by the socket that came along. Returns only if that fails.
pub fn start(caller: &Caller, fds: Vec<OwnedFd>, socket: &OwnedFd) -> Result<()> {
    let what = || "the store's writer";
    let [talk] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Error::new("store: one socket is needed"))?;
    // Above the standard ones, which it gets new.
    let talk = fcntl_dupfd_cloexec(&talk, 3).context(what)?;
    let store = StoreDir::open(caller)?;
    let (uid, gid) = store.owner();
    if uid == 0 {
        return Err(Error::new(format!("store {}: belongs to root", store.path())).hint(
            "it must belong to a system user of its own: root is to read nothing that comes from outside",
        ));
    }
    // A store whose group nobody thought of has root's: that is none for whoever reads what is foreign.
    let gid = if gid == 0 { NO_GROUP } else { gid };
    let owner = (Uid::from_raw(uid), Gid::from_raw(gid));
    // All writers are processes of the store's owner: counted as that user's, those of one caller would leave none to the others.
    let Some(slot) = Slot::of_writer(caller.uid)? else {
        return fdpass::send(socket.as_fd(), &Reply::Busy.encode(), &[]).context(|| "answer");
    };
    let path = program()?;
    let program = openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
        .context(|| path.display().to_string())?;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .and_then(|(near, far)| Ok((fcntl_dupfd_cloexec(near, 3)?, fcntl_dupfd_cloexec(far, 3)?)))
        .context(what)?;
    let format = store.format().name();
    let tree = store.tree().context(what)?;
    outlive_callers_limits(caller).context(what)?;
    limit_resources().context(what)?;
    let caller_uid = caller.uid.to_string();
    let number = |fd: &OwnedFd| fd.as_raw_fd().to_string();
    match fork(NAMESPACES).context(what)? {
        Fork::Child => {
            take_stdio().and_then(|()| enter_alone(&tree, store.path())).context(what)?;
            become_owner(owner).context(what)?;
            fdpass::send(socket.as_fd(), &Reply::Done.encode(), &[]).context(|| "answer")?;
            let quota = caller.config.site.store_user_quota.map_or(String::new(), |bytes| bytes.to_string());
            let words = [STORE_WRITER, store.path(), &caller_uid, format, &quota];
            run(
                &program,
                &words,
                &[number(&talk), number(&far)],
                &[],
                &[talk.as_fd(), far.as_fd(), slot.as_fd()],
            )
        }
        Fork::Parent(_) => {
            take_stdio().context(what)?;
            become_owner(owner).context(what)?;
            let words = [STORE_FETCHER, store.path(), &caller_uid];
            run(&program, &words, &[number(&near)], &VARIABLES, &[near.as_fd(), slot.as_fd()])
        }
    }
}

/// Becomes our own program with these words, variables of the caller's, and descriptors.
fn run(
    program: &OwnedFd,
    words: &[&str],
    more: &[String],
    variables: &[&str],
    keep: &[BorrowedFd<'_>],
) -> Result<()> {
    let c = |word: &[u8]| CString::new(word).map_err(|_| Error::new("store: a zero byte"));
    let words = ["skiff"].iter().chain(words).copied().chain(more.iter().map(String::as_str));
    let argv = words.map(|word| c(word.as_bytes())).collect::<Result<Vec<_>>>()?;
    let env = variables.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let envp = env
        .map(|(name, value)| c(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<Vec<_>>>()?;
    close_all_except(&[keep, &[program.as_fd()]].concat());
    keep.iter().try_for_each(|fd| keep_on_exec(*fd)).context(|| "the store's writer")?;
    Err(exec_open(program.as_fd(), &argv, &envp)).context(|| "the store's program")
}

/// Leaves the host's files for a root that holds the store at its path and nothing else.
fn enter_alone(store: &OwnedFd, path: &str) -> rustix::io::Result<()> {
    // What is unmounted here shall not be on the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "mode", "0711")?;
    fsconfig_create(&fs)?;
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)?;
    // A directory that is there in any case.
    move_mount(&root, "", CWD, state::DIR, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    fchdir(&root)?;
    let mut dir = openat(&root, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        mkdirat(&dir, part, Mode::from_raw_mode(0o711))?;
        dir = openat(&dir, part, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    }
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(store, "", &dir, "", both)?;
    // Both at ".": the old root lands on top of the new one and is taken off there.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    mount_remount(
        "/",
        MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        "",
    )?;
    chdir("/")
}

/// `bin/skiff` beside our own `libexec/skiff`, if nobody but root can have put it there: somebody who had made a second name of this
/// program in a directory of theirs could otherwise name another.
pub fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context(|| "own program")?;
    let prefix = own.ancestors().nth(3).unwrap_or(Path::new("/usr"));
    let program = prefix.join("bin/skiff");
    let shown = program.display().to_string();
    files::check_file(&shown)?;
    Ok(program)
}

/// From root to the store's owner, for good.
fn become_owner((uid, gid): (Uid, Gid)) -> std::io::Result<()> {
    // Out of reach of the keys of the caller's terminal: whoever is stopped holds locks that others wait for.
    rustix::process::setsid()?;
    // Nor does it stay in a directory of theirs, which could then not be unmounted.
    chdir("/")?;
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    caps::drop_from_bounding(CapabilitySet::empty())?;
    set_thread_res_uid(uid, uid, uid)?;
    caps::set_to(CapabilitySet::empty())?;
    rustix::thread::set_no_new_privs(true)?;
    if rustix::process::getuid() != uid
        || !caps::none_left()?
        || set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok()
    {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// What a caller has set to end programs of theirs must not end this one half-way: what it was making would stay.
fn outlive_callers_limits(caller: &Caller) -> std::io::Result<()> {
    caller.limits.restore()?;
    caller.restore_signals();
    // The number of processes is that of the store's owner: how many of hers there are for others must not keep this caller out.
    for limit in [Resource::Cpu, Resource::Rttime, Resource::Fsize, Resource::Nproc] {
        setrlimit(limit, Rlimit { current: None, maximum: None }).ignore_error("root in a container may have no right to: then a pull under such a limit fails, and others do not");
    }
    let timers = [Signal::ALARM, Signal::VTALARM, Signal::PROF];
    let bits = timers.iter().fold(0, |bits, signal| bits | 1 << (signal.as_raw() - 1));
    signal::restore(signal::SignalMask::from_bits(bits));
    Ok(())
}

/// What is foreign shall not use up the machine.
fn limit_resources() -> rustix::io::Result<()> {
    for (limit, most) in LIMITS {
        let own = getrlimit(limit);
        let most = Some(own.maximum.unwrap_or(most).min(most));
        let current = own.current.map_or(most, |current| most.map(|most| current.min(most)));
        setrlimit(limit, Rlimit { current, maximum: most })?;
    }
    Ok(())
}

/// All three are closed by now, or the caller's.
fn take_stdio() -> rustix::io::Result<()> {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    let null = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let null = fcntl_dupfd_cloexec(null, 3)?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)
}
