//! The way out of a network of the environment's own: slirp4netns, a TCP/IP stack in a process of the user's, which makes the
//! connections in their name.

use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::keep_on_exec;

/// The program, a package of its own everywhere.
pub const PROGRAM: &str = "slirp4netns";
/// Where names are asked for, inside.
pub const NAME_SERVER: &str = "10.0.2.3";

/// A running one. It ends with this, or with the process that has it.
pub struct Uplink {
    _lifeline: OwnedFd,
    child: Child,
}

impl Uplink {
    /// Joins the network namespace of process `pid`, where the device is `tap0`, to the world; returns when that works.
    pub fn start(pid: Pid) -> Result<Self> {
        let about = || "the private network";
        let (lifeline, end) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let (ready, told) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let words = memfd_create("words", MemfdFlags::CLOEXEC).context(about)?;
        let words_too = words.try_clone().context(about)?;
        for fd in [&end, &told] {
            keep_on_exec(fd.as_fd()).context(about)?;
        }
        let child = Command::new(PROGRAM)
            .args(["--configure", "--mtu=65520", "--disable-host-loopback"])
            .arg(format!("--exit-fd={}", end.as_raw_fd()))
            .arg(format!("--ready-fd={}", told.as_raw_fd()))
            .arg(pid.as_raw_nonzero().to_string())
            .arg("tap0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words_too)
            .spawn()
            .context(|| PROGRAM)
            .map_err(|e| {
                e.hint(format!("package {PROGRAM} makes private networks; --net none does without"))
            })?;
        drop((end, told));
        let uplink = Self { _lifeline: lifeline, child };
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&limit)).context(about)?;
        if rustix::io::read(&ready, &mut [0]) == Ok(1) {
            return Ok(uplink);
        }
        let mut said = String::new();
        let mut words = std::fs::File::from(words);
        words
            .rewind()
            .and_then(|()| words.read_to_string(&mut said))
            .ignore_error("what it has not said cannot be shown");
        // What went wrong comes first; that it did, after.
        let first = said.lines().next().unwrap_or("it ended without a word");
        Err(Fault::new(format!("{PROGRAM}: {first}"))
            .hint("administrator: users need /dev/net/tun (mode 666, as udev makes it)"))
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.child.kill().ignore_error("it may have gone already");
        self.child.wait().ignore_error("it is gone in any case");
    }
}
