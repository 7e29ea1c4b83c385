//! The root of an environment without any privilege: fuse-overlayfs stacks it.
//!
//! The server must not see what it serves, or it waits for itself: its layer is `/`, so it lives in a mount namespace of its own
//! from before the new root hangs anywhere, and it does not mount; it gets the connection, and we mount.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{FsOpenFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsopen, unmount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use skiff_spec::plan::Upper;
use skiff_sys::process::{CloneFlags, Fork, exec, exit_now, fork, keep_on_exec};

use crate::mounts::as_mount;
use crate::root;
use crate::stage::{PLACE, Stage};
use crate::start::read_all;
use crate::{Context, Error, Result};

/// The program.
pub const PROGRAM: &str = "/usr/bin/fuse-overlayfs";

/// Stacks with fuse-overlayfs, then mounts the rest and makes it `/`. Gives the server, which must live as long as the root.
pub fn build(mut stage: Stage<'_>) -> Result<Pid> {
    stage.complete()?;
    stage.own("upper", 0o755)?;
    stage.own("work", 0o700)?;
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context(|| "/dev/fuse")
        .map_err(|e| {
            e.hint("administrator: load the module fuse and chmod 666 /dev/fuse; or install Skiff's helper")
        })?;
    let (said, saying) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let server = match fork(CloneFlags::MOUNT).context(|| PROGRAM)? {
        Fork::Parent(server) => server,
        Fork::Child => exit_now(become_server(&stage, &device, saying)),
    };
    drop(saying);
    let root = mount(&device).and_then(|root| {
        // From here on only the server holds the connection: if it dies, we are told so instead of waiting.
        drop(device);
        stage.hang(&root, "root")?;
        root::furnish(root.as_fd(), stage, None)
    });
    match root {
        Ok(()) => Ok(server.pid),
        Err(e) => {
            // It may have ended by itself; either way its words end now.
            rustix::process::kill_process(server.pid, Signal::KILL).unwrap_or_default();
            let words = String::from_utf8_lossy(&read_all(said.as_fd())).trim().replace('\n', "; ");
            let words = if words.is_empty() { String::new() } else { format!(" ({PROGRAM}: {words})") };
            Err(Error { message: format!("{}{words}", e.message), ..e }
                .hint("is the package fuse-overlayfs installed?"))
        }
    }
}

fn mount(device: &OwnedFd) -> Result<OwnedFd> {
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).context(|| "fuse")?;
    let make = || -> rustix::io::Result<OwnedFd> {
        fsconfig_set_string(&fs, "source", "skiff")?;
        fsconfig_set_string(&fs, "fd", device.as_raw_fd().to_string())?;
        fsconfig_set_string(&fs, "rootmode", "40000")?;
        fsconfig_set_string(&fs, "user_id", "0")?;
        fsconfig_set_string(&fs, "group_id", "0")?;
        rustix::mount::fsconfig_set_flag(&fs, "default_permissions")?;
        rustix::mount::fsconfig_set_flag(&fs, "allow_other")?;
        fsconfig_create(&fs)?;
        as_mount(&fs)
    };
    make().context(|| "mount of fuse-overlayfs")
}

/// Becomes the server. Returns only the exit code of a failure; its words go through the pipe.
fn become_server(stage: &Stage<'_>, device: &OwnedFd, saying: OwnedFd) -> i32 {
    let ready = (|| {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::stdio::dup2_stderr(&saying)?;
        rustix::stdio::dup2_stdout(&saying)?;
        // Its upper may be where our stage hangs.
        if let Upper::Directory(_) = stage.plan.upper {
            unmount(PLACE, UnmountFlags::DETACH)?;
        }
        rustix::io::Result::Ok(())
    })();
    if ready.is_err() || keep_on_exec(device.as_fd()).is_err() {
        return 125;
    }
    let (upper, work) = match &stage.plan.upper {
        Upper::Directory(dir) => (dir.join("upper"), dir.join("work")),
        Upper::Memory { .. } => (Path::new(PLACE).join("own.upper"), Path::new(PLACE).join("own.work")),
    };
    let lower: Vec<String> =
        stage.plan.layers.iter().map(|l| l.display().to_string()).chain(["/".into()]).collect();
    let options = format!(
        "squash_to_root,lowerdir={},upperdir={},workdir={}",
        lower.join(":"),
        upper.display(),
        work.display()
    );
    let words = ["fuse-overlayfs", "-f", "-o", &options, &format!("/dev/fd/{}", device.as_raw_fd())];
    let argv: Vec<CString> = words.iter().filter_map(|w| CString::new(*w).ok()).collect();
    let e = exec(OsStr::new(PROGRAM), &argv, &[]);
    let said = format!("{PROGRAM}: {e}");
    // If this fails too, the maker sees an end without a word.
    rustix::io::write(&saying, said.as_bytes()).unwrap_or_default();
    125
}
