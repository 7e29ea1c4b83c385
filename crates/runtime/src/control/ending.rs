//! Ends what runs, whether its supervisor answers or not.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

use super::{ControlRequest, Live, SupervisorStatus};
use crate::{lock, supervisor_process};

/// How long a stop waits for a supervisor before it ends it by force.
const PATIENCE_OF_STOP: Duration = Duration::from_secs(3);

/// How long a supervisor may take that is just ending.
const PATIENCE_AT_END: Duration = Duration::from_secs(2);

/// Ends what runs at `dir`; whether anything did. When this returns, none of its processes is left; the
/// supervisor is waited for for 2 s.
pub fn stop_at(dir: &Path) -> Result<bool> {
    let did = match end(dir)? {
        StopOutcome::NothingRan => false,
        StopOutcome::Stopped => true,
        StopOutcome::AlreadyStopping => supervisor_process::end(dir)?,
    };
    if did {
        lock::wait(dir)?;
    }
    Ok(did)
}

/// Ends the environment at `dir` if it only waits for its next session; otherwise it goes on. Waits for the end.
pub fn end_if_idle(dir: &Path) -> Result<()> {
    // That its last session has ended may just be on the way to the supervisor.
    for _ in 0..ROUNDS {
        let Some(live) = Live::connect(dir, ControlRequest::EndIfIdle)? else { return lock::wait(dir) };
        if live.sessions > 0 {
            return Ok(());
        }
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if poll(&mut [PollFd::new(&live.init, PollFlags::IN)], Some(&moment))
            .context(|| "waiting for its end")?
            > 0
        {
            return lock::wait(dir);
        }
    }
    Ok(())
}

/// How often a supervisor is asked that has no session, and does not know yet that nothing runs.
const ROUNDS: usize = 20;

/// Whether no supervisor holds `dir`, be it that one is just ending.
fn has_gone(dir: &Path) -> bool {
    let end = Instant::now() + PATIENCE_AT_END;
    while supervisor_process::is_there(dir) {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Ends every process of what runs at `dir`, but not the supervisor that then does what is to be done at the end; whether anything did.
pub fn end_at(dir: &Path) -> Result<bool> {
    Ok(!matches!(end(dir)?, StopOutcome::NothingRan))
}

/// What a stop has done.
enum StopOutcome {
    NothingRan,
    /// All processes inside were ended.
    Stopped,
    /// All processes inside had ended before, and the supervisor is still at work.
    AlreadyStopping,
}

fn end(dir: &Path) -> Result<StopOutcome> {
    let live = match Live::ask(dir, ControlRequest::Stop, PATIENCE_OF_STOP)? {
        SupervisorStatus::Running(live) => live,
        SupervisorStatus::NotRunning | SupervisorStatus::Silent if supervisor_process::is_ending(dir) => {
            return Ok(StopOutcome::AlreadyStopping);
        }
        // Its socket is gone, as it is about to be; or it has been taken away from inside.
        SupervisorStatus::NotRunning if has_gone(dir) => return Ok(StopOutcome::NothingRan),
        SupervisorStatus::NotRunning | SupervisorStatus::Silent => {
            return Ok(if supervisor_process::end(dir)? {
                StopOutcome::Stopped
            } else {
                StopOutcome::NothingRan
            });
        }
    };
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&live.init, PollFlags::IN)], Some(&limit))
        .context(|| "waiting for its end")?;
    if ended == 0 {
        return Err(Error::new(format!("{}: a process in it does not end", dir.display()))
            .hint("one that waits for a dead file server cannot be killed before that answers"));
    }
    Ok(StopOutcome::Stopped)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use skiff_sys::lock::within;

    use super::*;

    #[test]
    fn who_asks_again_leaves_the_supervisor_at_work_until_it_is_to_stop() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        std::fs::create_dir(&root).expect("a root");
        // By its name, and as it holds the directory.
        let program = dir.path().join("skiff-end root");
        symlink("/bin/sleep", &program).expect("a program");
        let held = File::open(&root).expect("opened");
        let mut supervisor = Command::new(program).arg("60").stdin(held).spawn().expect("started");
        // It gets its name a moment after it has begun.
        let comm = format!("/proc/{}/comm", supervisor.id());
        let is_named = || std::fs::read(&comm).is_ok_and(|comm| comm.starts_with(b"skiff-end"));
        let named = within(Duration::from_secs(10), || Ok::<_, ()>(is_named().then_some(())));
        assert_eq!(named, Ok(Some(())));
        let ended = end_at(&root);
        let runs_on = supervisor.try_wait().expect("asked").is_none();
        let stopped = stop_at(&root);
        let runs_still = supervisor.try_wait().expect("asked").is_none();
        supervisor.kill().expect("killed");
        supervisor.wait().expect("reaped");
        assert_eq!((ended.ok(), runs_on), (Some(true), true));
        assert_eq!((stopped.ok(), runs_still), (Some(true), false));
        assert_eq!(end_at(&root).ok(), Some(false));
    }
}
