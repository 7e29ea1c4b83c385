//! The root of an environment without any privilege: fuse-overlayfs, a process of the environment itself, stacks it.
//!
//! It serves a file system that we mount: by itself it would mount in the namespace that it reads the host's root from, see
//! its own mount there, and wait for itself. So it gets a mount namespace of its own and an open `/dev/fuse`, and never
//! sees the new root.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmod, mkdirat, open};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsopen};
use rustix::process::{Pid, WaitOptions, waitpid};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::ids::COUNT;
use skiff_spec::locked;
use skiff_spec::plan::Upper;
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exec, exit_now, fork, fork_as, keep_on_exec};

use crate::confine::Confinement;
use crate::mountinfo;
use crate::mounts::{as_root_mount, attach, bind_one, by_number, open_dir, resolve_or_make};
use crate::root;
use crate::rootfs_inputs::{PLACE, RootfsInputs};
use crate::ssh_user;

/// The program.
pub const PROGRAM: &str = "/usr/bin/fuse-overlayfs";
const DEVICE: &str = "/dev/fuse";
/// The number of the server's process inside. Always the same, and none that the kernel gives to one of the first processes: those of an
/// instance get their old numbers back when they are restored, and the server must have none of them.
pub const NUMBER: i32 = 299;
/// In memory: what the program has to say.
const LOG: &str = "fuse-overlayfs.log";

/// What there is besides the root.
pub struct Built {
    /// The process that serves it.
    pub server: Pid,
    /// What will not work.
    pub notes: Vec<String>,
}

/// Stacks with fuse-overlayfs, then mounts the rest and makes it `/`.
pub fn build(inputs: &mut RootfsInputs<'_>, ids: u32) -> Result<Built> {
    let device =
        open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).context(|| DEVICE).map_err(|e| {
            e.hint("administrator: modprobe fuse, chmod 666 /dev/fuse; or have Skiff's helper installed")
        })?;
    inputs.take_images([])?;
    inputs.complete(None)?;
    let options = options(inputs, ids)?;
    let log = inputs.file(LOG)?;
    // Before the server runs: what it read from a device that is not mounted would be an error to it.
    let root = mount(&device)?;
    let server = serve(&device, &log, &options)?;
    // From now on only the server has it open, so that everything that waits for the server is told when it ends.
    drop(device);
    let built = inputs
        .hang(&root, "root")
        .and_then(|()| answers(root.as_fd()))
        .and_then(|()| root::furnish(root.as_fd(), inputs, None));
    built.map_err(|e| explain(e, server, &log))?;
    Ok(Built { server, notes: notes(ids) })
}

/// What is in short supply with so many ids, and how to get more.
pub fn notes(ids: u32) -> Vec<String> {
    if ids >= COUNT {
        return vec![];
    }
    let lack = match ids {
        1 => "you have no subordinate ids: inside there is only root, and programs that become somebody else (apt's downloads, \
              services, su) fail"
            .into(),
        n => format!("you have only {n} ids: programs that become somebody else may fail"),
    };
    vec![format!(
        "{lack}; administrator: install uidmap, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
    )]
}

/// The layers, as paths that the server finds, and whose files they are.
fn options(inputs: &RootfsInputs<'_>, ids: u32) -> Result<String> {
    // Under names of ours: paths of the user's could have colons and commas, or lie where the stage is.
    let mut lower = vec![];
    if !inputs.plan.stored_layers.is_empty() {
        return Err(Fault::new("the plan wants layers of the image store, which only the helper can mount"));
    }
    for (n, layer) in inputs.layers.iter().enumerate() {
        let name = format!("layer.{n}");
        let shown = bind_one(layer.as_fd());
        inputs.hang(&shown.context(|| format!("layer {}", inputs.plan.layers[n].display()))?, &name)?;
        lower.push(format!("{PLACE}/{name}"));
    }
    let layer = inputs.dir("stand-ins", 0o755)?;
    stand_ins(layer.as_fd()).context(|| "stand-ins")?;
    if inputs.plan.ssh_user.is_some() {
        ssh_user::lead(layer.as_fd()).context(|| "stand-ins")?;
    }
    lower.push(format!("{PLACE}/stand-ins"));
    lower.push("/".into());
    let (upper, work) = match &inputs.plan.upper {
        Upper::Memory { .. } => {
            inputs.own("upper", 0o755)?;
            inputs.own("work", 0o700)?;
            ("own.upper", "own.work")
        }
        Upper::Directory(path) | Upper::Scratch(path) => {
            let kept = inputs.kept().ok_or(Errno::NOENT).and_then(bind_one);
            inputs.hang(&kept.context(|| format!("environment {}", path.display()))?, "kept")?;
            ("kept/upper", "kept/work")
        }
    };
    let mut options = format!("lowerdir={},upperdir={PLACE}/{upper},workdir={PLACE}/{work}", lower.join(":"));
    // What belongs to nobody whom we have an id for (the kernel then says 65534) is the host's, and shall look like root's.
    options.push_str(match ids {
        1 => ",squash_to_root",
        // The last entry is asked first.
        _ => ",uidmapping=65534:0:1:65535:65535:1:0:0:65534,gidmapping=65534:0:1:65535:65535:1:0:0:65534",
    });
    if matches!(inputs.plan.upper, Upper::Memory { .. } | Upper::Scratch(_)) {
        options.push_str(",volatile");
    }
    Ok(options)
}

/// Password files in place of those that we may not read: without any, nobody can become anybody, root included.
fn stand_ins(layer: BorrowedFd<'_>) -> rustix::io::Result<()> {
    for (file, of, locked) in [
        ("etc/shadow", "/etc/passwd", locked::shadow as fn(&str) -> String),
        ("etc/gshadow", "/etc/group", locked::gshadow),
    ] {
        let host = Path::new("/").join(file);
        if host.exists() && fs::File::open(&host).is_err() {
            let text = locked(&String::from_utf8_lossy(
                &fs::read(of).default_on_error("without a list of accounts there are none to lock"),
            ));
            let place = resolve_or_make(layer, Path::new(file), false)?;
            chmod(by_number(place.as_fd()), Mode::from_raw_mode(0o640))?;
            fs::write(by_number(place.as_fd()), text)
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        }
    }
    Ok(())
}

/// Starts the server.
fn serve(device: &OwnedFd, log: &OwnedFd, options: &str) -> Result<Pid> {
    // libfuse's way of saying that this descriptor is a device that somebody else mounts.
    let mountpoint = format!("/dev/fd/{}", device.as_raw_fd());
    let argv = ["fuse-overlayfs", "-f", "-o", options, &mountpoint].map(CString::new);
    let argv = argv
        .into_iter()
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|e| Fault::new(format!("{PROGRAM}: {e}")))?;
    match fork_server().context(|| PROGRAM)? {
        Fork::Parent(child) => Ok(child.pid),
        Fork::Child => {
            let e = become_server(device, log, &argv);
            // Standard error is the log by now.
            rustix::io::write(rustix::stdio::stderr(), e.message.as_bytes())
                .ignore_error("without the log, the exit code says that it failed");
            exit_now(127)
        }
    }
}

fn fork_server() -> std::io::Result<Fork> {
    match Pid::from_raw(NUMBER).map(|number| fork_as(number, CloneFlags::MOUNT)) {
        Some(Ok(fork)) => Ok(fork),
        // Before Linux 5.5 numbers cannot be chosen, and then nothing can be restored either.
        _ => fork(CloneFlags::MOUNT),
    }
}

fn become_server(device: &OwnedFd, log: &OwnedFd, argv: &[CString]) -> Fault {
    let ready = || -> Result<()> {
        take_stdio(log).context(|| "log")?;
        cover_other_mounts()?;
        // It would otherwise hold open what others wait for the end of, the maker's report first of all.
        close_all_except(&[device.as_fd()]);
        keep_on_exec(device.as_fd()).context(|| DEVICE)?;
        Confinement::of_this_process().drop_permitted()
    };
    match ready() {
        Ok(()) => Fault::new(exec(OsStr::new(PROGRAM), argv, &[]).to_string()),
        Err(e) => e,
    }
}

fn take_stdio(log: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    dup2_stdin(open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?;
    dup2_stdout(log)?;
    dup2_stderr(log)
}

/// Hides other file systems than the host's root, as the helper's view does: what is written to one of them would land in the
/// environment, and nobody expects that of a scratch disk.
fn cover_other_mounts() -> Result<()> {
    let mounts = fs::read("/proc/self/mountinfo").context(|| "mounts")?;
    let empty = open_dir(CWD, Path::new(PLACE)).and_then(|place| {
        mkdirat(&place, "empty", Mode::from_raw_mode(0o755))?;
        open_dir(place.as_fd(), Path::new("empty"))
    });
    let empty = empty.context(|| "empty directory")?;
    for place in below_root(&mounts) {
        // Not by its attributes: for these the kernel asks a FUSE file system's server, which may be any user's, and never answer.
        let is_dir = open_dir(CWD, &place).is_ok();
        // The server itself uses /proc. Both are covered in the new root.
        if is_dir && place != Path::new("/proc") && place != Path::new(PLACE) {
            let cover = bind_one(empty.as_fd()).context(|| place.display().to_string())?;
            attach(cover.as_fd(), CWD, &place)?;
        }
    }
    Ok(())
}

/// The places of what is mounted on the root itself, in the text of `mountinfo`.
fn below_root(mounts: &[u8]) -> Vec<PathBuf> {
    let all = mountinfo::parse(mounts);
    // Of several on top of each other the last is seen.
    let root = all.iter().rev().find(|mount| mount.place == Path::new("/"));
    let Some(root) = root.map(|mount| mount.id.clone()) else { return vec![] };
    let places = all.into_iter().filter(|mount| mount.parent == root && mount.place != Path::new("/"));
    places.map(|mount| mount.place).collect()
}

/// Mounts what whoever has `device` open serves.
fn mount(device: &OwnedFd) -> Result<OwnedFd> {
    let make = || -> rustix::io::Result<OwnedFd> {
        let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "source", "skiff")?;
        fsconfig_set_string(&fs, "fd", device.as_raw_fd().to_string())?;
        for (key, value) in [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
            fsconfig_set_string(&fs, key, value)?;
        }
        for flag in ["allow_other", "default_permissions"] {
            fsconfig_set_flag(&fs, flag)?;
        }
        fsconfig_create(&fs)?;
        as_root_mount(&fs)
    };
    make()
        .context(|| "mount of fuse-overlayfs")
        .map_err(|e| e.hint("the kernel must allow FUSE in user namespaces (4.18 or newer)"))
}

/// Waits until the server answers.
fn answers(root: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::statat(root, "", AtFlags::EMPTY_PATH).map(drop).context(|| "root served by fuse-overlayfs")
}

/// If the server has ended, what it said is the reason.
fn explain(e: Fault, server: Pid, log: &OwnedFd) -> Fault {
    for _ in 0..50 {
        if matches!(waitpid(Some(server), WaitOptions::NOHANG), Ok(Some(_)) | Err(Errno::CHILD)) {
            let mut said = vec![0; 4096];
            let n = rustix::io::pread(log, &mut said, 0).unwrap_or(0);
            let said = String::from_utf8_lossy(&said[..n]).trim().replace('\n', "; ");
            return Fault::new(format!(
                "{PROGRAM}: {}",
                if said.is_empty() { "ended without a word" } else { &said }
            ))
            .hint("install fuse-overlayfs 1.7 or newer, or have Skiff's helper installed");
        }
        // The connection breaks a moment before the process is gone.
        std::thread::sleep(Duration::from_millis(2));
    }
    e
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn only_what_lies_on_the_root_itself() {
        let text = "20 1 8:1 / / rw - ext4 a rw\n21 20 0:1 / /proc rw - proc p rw\n22 20 0:2 / /a\\040b rw - tmpfs t rw\n\
                    23 22 0:3 / /a\\040b/c rw - tmpfs t rw\n";
        assert_eq!(below_root(text.as_bytes()), [PathBuf::from("/proc"), PathBuf::from("/a b")]);
        let stacked = format!("{text}30 20 0:9 / / rw - overlay o rw\n31 30 0:5 / /x rw - tmpfs t rw\n");
        assert_eq!(below_root(stacked.as_bytes()), [PathBuf::from("/x")]);
        let odd = [stacked.as_bytes(), b"32 30 0:6 / /\xff rw - fuse f rw\n"].concat();
        assert_eq!(below_root(&odd), [PathBuf::from("/x"), PathBuf::from(OsStr::from_bytes(b"/\xff"))]);
    }
}
