//! The lock of what runs: whoever runs or removes an environment holds it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::lock;
use skiff_user::dirs::with_umask;

use crate::supervisor_process;

/// A lock that whoever runs or removes an environment holds; nothing if somebody else does.
pub fn try_lock(dir: &Path) -> Result<Option<OwnedFd>> {
    let path = dir.join("lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = with_umask(|| open(&path, flags, Mode::from_raw_mode(0o600)))
        .context(|| path.display().to_string())?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(e) => Err(e).context(|| path.display().to_string()),
    }
}

/// Why that lock cannot be had: the environment is running, or another command copies it, rolls it back or removes it. `alternative` ends
/// the hint to stop it.
pub fn is_held(name: &str, dir: &Path, alternative: &str) -> Error {
    match supervisor_process::is_there(dir) {
        true => Error::new(format!("environment {name} is running"))
            .hint(format!("`skiff env stop {name}` first{alternative}")),
        false => is_busy(name, dir),
    }
}

/// The same, where the environment is known not to be running.
pub fn is_busy(name: &str, dir: &Path) -> Error {
    let by = holder(dir).map_or_else(String::new, |holder| format!(": {holder}"));
    Error::new(format!("environment {name}: another command is busy with it{by}"))
        .hint("try again when that command has ended; end the process if it hangs")
}

/// Who holds that lock, in words; nothing where the kernel does not tell.
fn holder(dir: &Path) -> Option<String> {
    let file =
        open(dir.join("lock"), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (pid, name) = lock::file_holder(file.as_fd())?;
    Some(format!("process {pid} ({name})"))
}

/// Waits until a supervisor that is about to end has: its lock goes last.
pub fn wait(dir: &Path) -> Result<()> {
    lock::within(Duration::from_secs(2), || try_lock(dir))?;
    Ok(())
}
