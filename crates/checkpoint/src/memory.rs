//! A directory in memory that nobody else can find: for images that are on their way. It goes with the last process that has it open,
//! however that ends.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, mkdirat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use skiff_sandbox::mounts;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::Base;
use skiff_sys::{fdpass, ns};

use crate::record::{IMAGES, TREES};

/// Makes one with the directories of a checkpoint in it, which takes at most so many bytes.
///
/// # Errors
/// When the user may have no user namespace.
pub fn make(bytes: u64) -> Result<OwnedFd> {
    let about = || "directory in memory";
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).context(about)?;
    // To mount is the right of root of a user namespace; the mount is nowhere but in its descriptor.
    as_root_of_ids(None, Base::Host, |_| {
        ns::unshare_mounts().context(about)?;
        let made = mounts::memory(0o700, Some(&bytes.to_string())).context(about)?;
        for part in [IMAGES, TREES] {
            mkdirat(&made, part, Mode::from_raw_mode(0o700)).context(about)?;
        }
        fdpass::send(theirs.as_fd(), b"m", &[made.as_fd()]).context(about)?;
        Ok(())
    })?;
    let (_, mut fds) = fdpass::receive(ours.as_fd(), 1).context(about)?;
    fds.pop().ok_or_else(|| Fault::new("directory in memory: it has not been handed over"))
}

/// How many bytes can be had at once without taking any from what runs.
///
/// # Errors
/// When the kernel does not say.
pub fn available() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).context(|| path)?;
    available_in(&text).ok_or_else(|| Fault::new(format!("{path}: it does not say how much is available")))
}

fn available_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert!(available().expect("the kernel says it") > 0);
    }
}
