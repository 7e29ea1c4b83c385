//! Mounts whose flags stay. A user gets their mounts into a namespace of their own, where they may take `nosuid`, `nodev` and `ro` off again,
//! unless the kernel has locked them: which it does when it copies all mounts for a mount namespace of a new user namespace.
//! Copies of such a mount are locked as it is.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork};

use crate::state;

/// A copy of a detached mount, detached too, with its flags locked. The mount itself is used up.
pub fn lock_flags(mount: &OwnedFd) -> std::io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let child = match fork(CloneFlags::MOUNT)? {
        Fork::Parent(child) => child,
        Fork::Child => exit_now(i32::from(hang_and_copy(mount, &theirs).is_err())),
    };
    drop(theirs);
    let received = fdpass::receive(ours.as_fd(), 1);
    end_of(child.pid);
    // Nothing comes where the new user namespace was not to be had: then nobody could use the mount either.
    received?.1.into_iter().next().ok_or_else(|| std::io::ErrorKind::PermissionDenied.into())
}

/// In a mount namespace of this process' own: hangs the mount somewhere, so that the next process has a copy of it.
fn hang_and_copy(mount: &OwnedFd, to: &OwnedFd) -> std::io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    move_mount(mount, "", CWD, state::DIR, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    match fork(CloneFlags::USER.and(CloneFlags::MOUNT))? {
        Fork::Parent(child) => {
            end_of(child.pid);
            Ok(())
        }
        Fork::Child => exit_now(i32::from(copy(to).is_err())),
    }
}

fn copy(to: &OwnedFd) -> std::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(CWD, state::DIR, flags)?;
    fdpass::send(to.as_fd(), &[0], &[copy.as_fd()])
}

fn end_of(child: Pid) {
    rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))
        .ignore_error("a caller that ignores SIGCHLD makes the kernel bury it; either way it has ended");
}
