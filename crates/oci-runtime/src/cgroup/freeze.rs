//! A container's processes stopped by its control group, as `pause` wants them, and let go on.

use std::path::Path;
use std::time::Duration;

use skiff_spec::fault::{Context as _, Fault, Result};

use super::end::DYING;
use super::open_group::OpenGroup;

/// Whether all of its processes are frozen.
pub fn is_frozen(path: &Path) -> bool {
    OpenGroup::open(path).is_ok_and(|group| group.is_frozen())
}

/// Whether the group's processes are to be frozen, be they so already or not.
pub fn is_freezing(path: &Path) -> bool {
    OpenGroup::open(path).is_ok_and(|group| group.says("cgroup.freeze", "1"))
}

/// Freezes the group's processes, or lets them go on, and waits until that is so. Where not all can be frozen in time, all go on.
///
/// # Errors
/// When the container has no group, the kernel's, or processes wait in the kernel for too long.
pub fn freeze(path: Option<&Path>, frozen: bool) -> Result<()> {
    freeze_within(DYING, path, frozen)
}

fn freeze_within(limit: Duration, path: Option<&Path>, frozen: bool) -> Result<()> {
    let path = path.ok_or_else(|| {
        Fault::new("it has no control group of its own: its processes cannot be frozen")
            .hint("set linux.cgroupsPath, in a session that systemd has delegated a control group to")
    })?;
    let name = || format!("control group {}", path.display());
    let group = OpenGroup::open(path).context(name)?;
    let write = |value: &str| group.write("cgroup.freeze", value).context(name);
    write(if frozen { "1" } else { "0" })?;
    let done =
        skiff_sys::lock::within(limit, || Ok::<_, Fault>((group.is_frozen() == frozen).then_some(())))?;
    match (done, frozen) {
        (Some(()), _) => Ok(()),
        (None, false) => Err(Fault::new(format!("{}: its processes are still frozen", name()))
            .hint("a group above it may be frozen")),
        (None, true) => {
            // Those that could be frozen must not stay so: the container counts as running.
            write("0")?;
            Err(Fault::new(format!("{}: not all processes could be frozen in time; all go on", name()))
                .hint("they wait in the kernel, perhaps for a file server: try again later"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_frozen_in_time_goes_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name);
        std::fs::write(file("cgroup.freeze"), "0").expect("written");
        std::fs::write(file("cgroup.events"), "populated 1\nfrozen 0\n").expect("written");
        let e = freeze_within(Duration::ZERO, Some(dir.path()), true).expect_err("not frozen");
        assert!(e.to_string().contains("not all processes could be frozen"), "{e}");
        assert!(!is_freezing(dir.path()));
        std::fs::write(file("cgroup.events"), "populated 1\nfrozen 1\n").expect("written");
        assert_eq!(freeze(Some(dir.path()), true), Ok(()));
        assert!(is_freezing(dir.path()));
    }
}
