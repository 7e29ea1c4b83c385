//! A directory in memory that nobody else can find: for images that are on their way. It goes with the last process that has it open,
//! however that ends.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, mkdirat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use skiff_sandbox::mounts;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::Base;
use skiff_sys::{fdpass, ns};

use crate::record::{IMAGES, TREES};

/// Where control groups are: of version 2, and the controller of memory of version 1.
const CGROUPS: [(&str, &str, [&str; 4]); 2] = [
    ("", "/sys/fs/cgroup", ["memory.max", "memory.current", "memory.stat", "inactive_file"]),
    (
        "memory",
        "/sys/fs/cgroup/memory",
        ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"],
    ),
];

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

/// How many bytes may be used for a while: half of what the host has available, and of what the limits of our control groups leave.
///
/// # Errors
/// When the kernel does not say.
pub fn spare() -> Result<u64> {
    let path = "/proc/self/cgroup";
    let groups = fs::read_to_string(path).context(|| path)?;
    let left = CGROUPS.iter().filter_map(|(controller, root, files)| {
        left_in(Path::new(root), own_group(&groups, controller)?, files)
    });
    Ok(left.fold(available()?, u64::min) / 2)
}

/// Our own group in what the kernel says of all, from the root on.
fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, (controllers, group)) =
            line.split_once(':').and_then(|(n, rest)| Some((n, rest.split_once(':')?)))?;
        controllers.split(',').any(|one| one == controller).then(|| group.trim_start_matches('/'))
    })
}

/// The least that the limits of a group and those above it leave; nothing where there are none. Pages of files that nobody reads can be had back.
fn left_in(root: &Path, group: &str, [limit, used, stat, idle]: &[&str; 4]) -> Option<u64> {
    let groups: Vec<PathBuf> = Path::new(group).ancestors().map(|group| root.join(group)).collect();
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = groups.iter().filter_map(|group| {
        let (limit, used) = (number(group.join(limit))?, number(group.join(used))?);
        let stat = fs::read_to_string(group.join(stat)).ok();
        let idle = stat.as_deref().and_then(|stat| {
            stat.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse::<u64>().ok())
        });
        Some(limit.saturating_sub(used.saturating_sub(idle.unwrap_or(0))))
    });
    left.min()
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
    fn what_limits_leave() {
        let groups = "4:cpu,memory:/job/step\n1:name=systemd:/\n0::/all\n";
        assert_eq!((own_group(groups, "memory"), own_group(groups, "")), (Some("job/step"), Some("all")));
        assert_eq!(own_group("0::/\n", "memory"), None);
        let temp = tempfile::tempdir().expect("a directory");
        let files = &CGROUPS[0].2;
        let left = || left_in(temp.path(), "job/step", files);
        fs::create_dir_all(temp.path().join("job/step")).expect("made");
        let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).expect("written");
        assert_eq!(left(), None);
        write("job/memory.max", "1000\n");
        write("job/memory.current", "900\n");
        assert_eq!(left(), Some(100));
        write("job/memory.stat", "anon 7\ninactive_file 300\n");
        assert_eq!(left(), Some(400));
        write("job/step/memory.max", "max\n");
        write("job/step/memory.current", "900\n");
        assert_eq!(left(), Some(400));
        write("job/step/memory.max", "950\n");
        assert_eq!(left(), Some(50));
        assert!(spare().expect("known") > 0);
    }

    #[test]
    fn what_is_available() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert!(available().expect("the kernel says it") > 0);
    }
}
