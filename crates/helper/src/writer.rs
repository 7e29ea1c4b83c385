//! `store`: starts our own program as the owner of the trusted store, to fill it at the caller's wish.
//!
//! All that is foreign (answers of registries, layers, archives) is read there, by a process that is neither root nor the caller: he
//! cannot trace, stop or signal it, and it has nothing but the store. Which program that is follows from where this one is
//! installed; for whom it works it learns from us.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::wire::{Reply, STORE_WRITER};
use skiff_sys::process::{close_all_except, exec, keep_on_exec};
use skiff_sys::{caps, fdpass, signal};

use crate::caller::Caller;
use crate::image::Store;
use crate::quota::Slot;
use crate::site;

/// What a writer may have of the caller's machine, if the caller's own limits are not lower: address space in bytes (an image of eight million
/// files takes 3 GB), descriptors, seconds of processor time.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::As, 16 << 30), (Resource::Nofile, 4096), (Resource::Cpu, 4 * 60 * 60)];
/// The group of files whose group does not matter.
const NO_GROUP: u32 = 65534;
/// Variables of the caller's that say how to reach servers. Nothing else of his environment goes along.
const VARIABLES: [&str; 7] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "ALL_PROXY"];

/// Becomes the writer, which talks to the caller by the socket that came along. Returns only if that fails.
pub fn start(caller: &Caller, fds: Vec<OwnedFd>, socket: &OwnedFd) -> Result<()> {
    let what = || "the store's writer";
    let [talk] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Error::new("store: one socket is needed"))?;
    // Above the standard ones, which it gets new.
    let talk = fcntl_dupfd_cloexec(&talk, 3).context(what)?;
    let store = Store::open(caller)?;
    let (uid, gid) = store.owner();
    if uid == 0 {
        return Err(Error::new(format!("store {}: belongs to root", store.path())).hint(
            "it must belong to a system user of its own: root is to read nothing that comes from outside",
        ));
    }
    // A store whose group nobody thought of has root's: that is none for whoever reads what is foreign.
    let gid = if gid == 0 { NO_GROUP } else { gid };
    // All writers are processes of the store's owner: counted as that user's, those of one caller would leave none to the others.
    let Some(place) = Slot::of_writer(caller.uid)? else {
        return fdpass::send(socket.as_fd(), &Reply::Busy.encode(), &[]).context(|| "answer");
    };
    let program = program()?;
    let (uid_of_caller, socket_number) = (caller.uid.to_string(), talk.as_raw_fd().to_string());
    let format = store.format().name();
    let quota = caller.config.site.store_user_quota.map_or(String::new(), |bytes| bytes.to_string());
    let words = ["skiff", STORE_WRITER, store.path(), &uid_of_caller, format, &quota, &socket_number];
    let c = |word: &[u8]| CString::new(word).map_err(|_| Error::new("store: a zero byte"));
    let argv = words.iter().map(|word| c(word.as_bytes())).collect::<Result<Vec<_>>>()?;
    let env = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let envp = env
        .map(|(name, value)| c(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<Vec<_>>>()?;
    outlive_callers_limits(caller);
    limit_resources().context(what)?;
    become_owner(Uid::from_raw(uid), Gid::from_raw(gid)).context(what)?;
    fdpass::send(socket.as_fd(), &Reply::Done(0).encode(), &[]).context(|| "answer")?;
    close_all_except(&[talk.as_fd(), place.as_fd()]);
    take_stdio().context(what)?;
    keep_on_exec(talk.as_fd()).context(what)?;
    keep_on_exec(place.as_fd()).context(what)?;
    Err(exec(program.as_os_str(), &argv, &envp)).context(|| program.display().to_string())
}

/// `bin/skiff` beside our own `libexec/skiff`, if nobody but root can have put it there: somebody who had made a second name of this
/// program in a directory of his could otherwise name another.
pub fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context(|| "own program")?;
    let prefix = own.ancestors().nth(3).unwrap_or(Path::new("/usr"));
    let program = prefix.join("bin/skiff");
    let shown = program.display().to_string();
    site::check_file(&shown)?;
    Ok(program)
}

/// From root to the store's owner, for good.
fn become_owner(uid: Uid, gid: Gid) -> std::io::Result<()> {
    // Out of reach of the keys of the caller's terminal: whoever is stopped holds locks that others wait for.
    rustix::process::setsid()?;
    // Nor does it stay in a directory of his, which could then not be unmounted.
    rustix::process::chdir("/")?;
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

/// What a caller has set to end programs of his must not end this one half-way: what it was making would stay.
fn outlive_callers_limits(caller: &Caller) {
    caller.restore_signals();
    // The number of processes is that of the store's owner: how many of hers there are for others must not keep this caller out.
    for limit in [Resource::Cpu, Resource::Fsize, Resource::Nproc] {
        // Root in a container may have no right to: then a pull under such a limit fails, and others do not.
        setrlimit(limit, Rlimit { current: None, maximum: None }).unwrap_or_default();
    }
    let timers = [Signal::ALARM, Signal::VTALARM, Signal::PROF];
    let bits = timers.iter().fold(0, |bits, signal| bits | 1 << (signal.as_raw() - 1));
    signal::restore(signal::Mask::from_bits(bits));
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
