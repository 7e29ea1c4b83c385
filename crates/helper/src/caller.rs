//! Who calls: what the kernel says, nothing else.

use std::path::Path;

use rustix::fs::Mode;
use rustix::process::{Gid, Signal, Uid, getegid, geteuid, getgid, getgroups, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::plan::inside;
use skiff_sys::{caps, signal};

use crate::limits::LiftedLimits;
use crate::quota::Slot;
use crate::site::HelperConfig;

/// Seconds after which a helper ends, whatever it is doing: a file system or a server may never answer. (What it leaves half-made is not
/// under its name yet.)
const MOST_SECONDS: u32 = 60;

/// The user behind this call.
pub struct Caller {
    /// The caller's uid.
    pub uid: u32,
    /// The caller's gid.
    pub gid: u32,
    /// The caller's other groups.
    pub groups: Vec<u32>,
    /// The caller's umask, which is for their programs, not for the helper.
    pub umask: Mode,
    /// The signal mask that the caller came with.
    mask: signal::SignalMask,
    /// The alarm that ends this process in any case.
    deadline: signal::Deadline,
    /// The limits that the caller came with.
    pub limits: LiftedLimits,
    /// The lock by which this process counts as one of the caller's helpers.
    pub slot: Slot,
    /// What the administrator has decided.
    pub config: HelperConfig,
}

/// Why the helper is not root. In environments and containers it never is, and nothing is wrong with the installation.
fn not_root(is_inside: bool) -> Error {
    match is_inside {
        true => Error::new("the helper cannot be used inside an environment or container").hint(
            "run this on the login node, or in a job by `srun --overlap --environment=none skiff ...`, and name the environment if there is one",
        ),
        false => Error::new("the helper does not run as root")
            .hint("it must belong to root and have mode 4755, on a file system that is mounted without nosuid"),
    }
}

impl Caller {
    /// Notes who calls and becomes root wholly, so that the caller can neither trace nor signal us any more: being killed half-way
    /// is then only up to root. Nor do the keys of their terminal stop us, as whoever is stopped may hold what others wait for.
    pub fn take_over() -> Result<Self> {
        let mask = signal::block_all(&[Signal::ALARM.as_raw()]);
        let deadline = signal::Deadline::begin(MOST_SECONDS);
        if !geteuid().is_root() {
            return Err(not_root(Path::new(inside::PROGRAM).exists()));
        }
        let limits = LiftedLimits::lift();
        let uid = getuid().as_raw();
        let config = HelperConfig::read()?;
        config.refuse_subordinate(uid)?;
        let caller = Self {
            uid,
            gid: getgid().as_raw(),
            groups: getgroups().context(|| "groups of the caller")?.into_iter().map(|g| g.as_raw()).collect(),
            umask: rustix::process::umask(Mode::from_raw_mode(0o022)),
            mask,
            deadline,
            limits,
            slot: Slot::take(uid, config.site.helpers_each)?,
            config,
        };
        set_thread_groups(&[]).context(|| "groups")?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).context(|| "becoming root")?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).context(|| "becoming root")?;
        rustix::process::chdir("/").context(|| "/")?;
        Ok(caller)
    }

    /// Gives what is going to be another program the signals that the caller came with.
    pub fn restore_signals(&self) {
        self.deadline.end();
        signal::restore(self.mask);
    }

    /// The same for a child, which has its own mask and no alarm.
    pub fn restore_alarm_action(&self) {
        self.deadline.restore_action();
    }

    /// Becomes the caller again, with no more than they came with; then makes sure.
    pub fn come_back(&self) -> std::io::Result<()> {
        // Before: the kernel compares with the limit of processes as the user changes.
        self.limits.restore()?;
        let groups: Vec<Gid> = self.groups.iter().map(|g| Gid::from_raw(*g)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        // Unless they are root themselves, all capabilities go with this.
        set_thread_res_uid(uid, uid, uid)?;
        // What is in memory still was root's: not for the user to trace, whatever fs.suid_dumpable says, until exec.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        let ids = (getuid(), geteuid(), getgid(), getegid());
        let still_root = !uid.is_root()
            && (!caps::none_left()? || set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok());
        if ids != (uid, uid, gid, gid) || still_root {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        }
        rustix::process::umask(self.umask);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_not_told_to_mend_the_installation() {
        for (is_inside, wanted) in [(true, "srun --overlap --environment=none skiff"), (false, "mode 4755")] {
            let hint = not_root(is_inside).hint;
            assert!(hint.contains(wanted), "{hint}");
            assert_eq!(hint.contains("belong to root"), !is_inside, "{hint}");
        }
    }
}
