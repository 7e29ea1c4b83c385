//! Who may change what of a network on this node. No lock that one user can hold is waited for by another: a process that is stopped, frozen
//! or starved of time while it holds one holds up nobody but its own user.
//!
//! All are parts of one file that only root can open: `flock` on whatever others can open is theirs to take.

use std::fs::DirBuilder;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::network::NetName;
use skiff_sys::lock::{self, Lock};

/// Where the files are, one for each network.
const DIR: &str = "/run/skiff/net-locks";

/// How long anybody waits.
const LIMIT: Duration = Duration::from_secs(5);

/// What can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockScope {
    /// An address: by whoever takes it, frees it or changes its lease. Who looks for a free one passes by those that are locked.
    Address(Ipv4Addr),
    /// How many addresses a user has: by their own processes, one after the other.
    User(u32),
    /// The devices that members share: together by all who use them, alone by root's `skiff sweep`, which removes them.
    Devices,
}

impl LockScope {
    fn bytes(self) -> Range<u64> {
        let (kind, number) = match self {
            Self::Address(address) => (0, u32::from(address)),
            Self::User(uid) => (1, uid),
            Self::Devices => (2, 0),
        };
        let at = (kind << 32) | u64::from(number);
        at..at + 1
    }
}

/// The locks of a network. All that are held end with this.
pub struct Locks {
    file: OwnedFd,
    name: NetName,
    path: PathBuf,
}

impl Locks {
    /// Opens the locks of network `name`. A process opens them once at a time: to close one of two descriptors would end its locks.
    ///
    /// # Errors
    /// That the file cannot be made.
    pub fn open(name: &NetName) -> Result<Self> {
        Self::open_in(Path::new(DIR), name)
    }

    pub(crate) fn open_in(dir: &Path, name: &NetName) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).context(|| dir.display().to_string())?;
        let path = dir.join(name.as_str());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(CWD, &path, flags, mode).context(|| path.display().to_string())?;
        Ok(Self { file, name: name.clone(), path })
    }

    /// Locks a part, if nobody else has.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn try_take(&self, part: LockScope) -> Result<bool> {
        self.set(part, Lock::Exclusive)
    }

    /// Locks a part, as soon as nobody else has.
    ///
    /// # Errors
    /// That somebody still has it after five seconds, and who.
    pub fn take(&self, part: LockScope) -> Result<()> {
        self.wait(part, Lock::Exclusive)
    }

    /// Locks a part together with others.
    ///
    /// # Errors
    /// As [`Locks::take`].
    pub fn share(&self, part: LockScope) -> Result<()> {
        self.wait(part, Lock::Shared)
    }

    /// Gives one back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn release(&self, part: LockScope) -> Result<()> {
        self.set(part, Lock::None).map(drop)
    }

    fn wait(&self, part: LockScope, how: Lock) -> Result<()> {
        let taken = lock::within(LIMIT, || self.set(part, how).map(|taken| taken.then_some(())))?;
        taken.ok_or_else(|| self.busy(part))
    }

    fn set(&self, part: LockScope, how: Lock) -> Result<bool> {
        lock::set(self.file.as_fd(), part.bytes(), how).context(|| self.path.display().to_string())
    }

    fn busy(&self, part: LockScope) -> Fault {
        let what = match part {
            LockScope::Address(address) => format!("address {address}"),
            LockScope::User(uid) => format!("addresses of user {uid}"),
            LockScope::Devices => "devices".into(),
        };
        // Only for the message: who has ended meanwhile is not known.
        let pid = lock::holder(self.file.as_fd(), part.bytes()).ok().flatten();
        let who = pid.map_or_else(
            || "another process".into(),
            |pid| match std::fs::metadata(format!("/proc/{pid}")) {
                Ok(found) => format!("process {pid} of user {}", found.uid()),
                Err(_) => format!("process {pid}"),
            },
        );
        Fault::new(format!(
            "network {}: {what}: still being changed by {who} after {} s",
            self.name,
            LIMIT.as_secs()
        ))
        .hint("let it go on or end it: is it stopped (`fg`), or its control group frozen?")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    const ADDRESS: LockScope = LockScope::Address(Ipv4Addr::new(10, 0, 0, 1));

    /// Not a test of its own: what `nobody_waits_for_another_user` starts, since a process's own locks are never in its way.
    #[test]
    #[ignore = "the other process of a test"]
    fn holds_until_killed() {
        let dir = std::env::var_os("SKIFF_TEST_LOCKS").expect("a directory");
        let locks = Locks::open_in(Path::new(&dir), &"lab".parse().unwrap()).unwrap();
        for part in [ADDRESS, LockScope::User(7)] {
            assert!(locks.try_take(part).unwrap());
        }
        locks.share(LockScope::Devices).unwrap();
        std::fs::write(Path::new(&dir).join("ready"), "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn nobody_waits_for_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "lock::tests::holds_until_killed"])
            .env("SKIFF_TEST_LOCKS", dir.path())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !dir.path().join("ready").exists() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let locks = Locks::open_in(dir.path(), &"lab".parse().unwrap()).unwrap();
        assert!(!locks.try_take(ADDRESS).unwrap());
        for free in [LockScope::User(8), LockScope::Address([10, 0, 0, 2].into())] {
            assert!(locks.try_take(free).unwrap(), "{free:?}");
        }
        locks.share(LockScope::Devices).unwrap();
        assert!(!locks.try_take(LockScope::Devices).unwrap(), "root's sweep has to leave them");
        let begun = Instant::now();
        let refused = locks.take(LockScope::User(7)).unwrap_err();
        assert!((LIMIT..LIMIT * 2).contains(&begun.elapsed()), "the wait is bounded");
        assert!(refused.message.contains(&format!("process {}", holder.id())), "{refused}");
        holder.kill().unwrap();
        holder.wait().unwrap();
        locks.take(ADDRESS).unwrap();
    }
}
