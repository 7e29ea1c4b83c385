//! Ends, as a job's user, what is left of the job on this node. The user decides what is found there, so a process of that user looks at it.
//!
//! That process comes from root and cannot be traced: it is never dumpable as the user's, and starts no program, since `execve` would make it
//! dumpable again. Whoever could trace it would run code outside of every job, in slurmd's cgroup, with descriptors of root's.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Stat, Uid};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, fchdir, getpid, getppid, pidfd_send_signal,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit, waitpid,
};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use skiff_sandbox::start::detach_stdio;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

use super::keeper;

/// How long it may take.
const LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// How long it may take to be gone once it is killed: a FUSE server can hold up even that.
const DYING: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Most memory of the process, in bytes: names that the user has made count as root's.
const MEMORY: u64 = 256 << 20;
/// No reason for a failure is longer, in bytes.
const LONGEST: u64 = 4 << 10;

/// Ends, within a bounded time, all that runs of a job; its sockets are in the user's part of the job's directory, `room`.
pub fn stop_job(job: u32, room: &OwnedFd, owner: &Stat) -> Result<()> {
    let what = || format!("job {job}: ending what is left of it as user {}", owner.st_uid);
    let failed = |why: String| Error::new(format!("{}: {why}", what()));
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).context(what)?;
    let root = getpid();
    let child = match fork(CloneFlags::NONE).context(what)? {
        Fork::Parent(child) => child,
        Fork::Child => {
            close_all_except(&[room.as_fd(), reporter.as_fd()]);
            detach_stdio();
            let done = as_user(root, room.as_fd(), owner);
            if let Err(e) = &done {
                // If root has gone there is nobody to tell.
                rustix::io::write(&reporter, &e.to_bytes()).unwrap_or_default();
            }
            exit_now(done.is_err().into());
        }
    };
    drop(reporter);
    if !has_ended(&child, &LIMIT).context(what)? {
        pidfd_send_signal(&child.pidfd, Signal::KILL).context(what)?;
        has_ended(&child, &DYING).context(what)?;
        return Err(failed(format!("not done after {} s", LIMIT.tv_sec)));
    }
    let status = retry_on_intr(|| waitpid(Some(child.pid), WaitOptions::empty())).context(what)?;
    if status.is_some_and(|(_, status)| status.exit_status() == Some(0)) {
        return Ok(());
    }
    let mut said = vec![];
    // What cannot be read says no more than nothing does.
    File::from(report).take(LONGEST).read_to_end(&mut said).unwrap_or_default();
    Err(match said.is_empty() {
        true => failed("its process was ended by a signal".into()),
        false => failed(plain(&Error::from_bytes(&said).message)),
    })
}

/// In the new process, which goes with root's.
fn as_user(root: Pid, room: BorrowedFd<'_>, owner: &Stat) -> Result<()> {
    let what = || format!("becoming user {}", owner.st_uid);
    let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
    let memory = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    let become_user = || {
        setrlimit(Resource::As, memory)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        set_no_new_privs(true)?;
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        // The kernel resets both as the uid changes: the one to `fs.suid_dumpable`, which may be 1, and the other to none.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        match getppid() == Some(root) {
            true => fchdir(room),
            false => Err(Errno::SRCH),
        }
    };
    become_user().context(what)?;
    keeper::stop_job()
}

fn has_ended(child: &Child, limit: &Timespec) -> rustix::io::Result<bool> {
    let ended = retry_on_intr(|| poll(&mut [PollFd::new(&child.pidfd, PollFlags::IN)], Some(limit)))?;
    Ok(ended > 0)
}

/// Names that the user has chosen are not to steer the terminal on which somebody reads root's log.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
