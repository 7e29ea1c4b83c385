//! Who gives and takes names in the directory of checkpoints: one process at a time, on all hosts that see it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::FlockOperation;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault, Result};
use skiff_sys::lock;

/// The lock's file in the directory.
pub const LOCK: &str = ".lock";
/// How long somebody else may have it; changing names takes milliseconds.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Keeps others from giving and taking names in `home`; `name` is that of the checkpoint that needs it, for messages.
///
/// # Errors
/// Somebody else has it for too long.
pub fn take(home: &TrustedDir, name: &str) -> Result<OwnedFd> {
    let locked = lock::within(LONGEST_WAIT, || home.lock(LOCK, FlockOperation::NonBlockingLockExclusive))?;
    locked.ok_or_else(|| {
        let home = home.path().display();
        Fault::new(format!("checkpoint {name}: another save in {home} does not end"))
            .hint("end the other `skiff checkpoint save`")
    })
}
