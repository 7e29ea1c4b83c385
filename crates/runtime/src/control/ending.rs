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

/// Ends what runs at `dir`; whether anything did. When this returns, none of its processes is left.
pub fn stop_at(dir: &Path) -> Result<bool> {
    if !end_at(dir)? {
        return Ok(false);
    }
    lock::wait(dir)?;
    Ok(true)
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

/// Ends every process of what runs at `dir`; whether anything did.
pub fn end_at(dir: &Path) -> Result<bool> {
    let live = match Live::ask(dir, ControlRequest::Stop, PATIENCE_OF_STOP)? {
        SupervisorStatus::Running(live) => live,
        // Its socket is gone, as it is about to be; or it has been taken away from inside.
        SupervisorStatus::NotRunning if has_gone(dir) => return Ok(false),
        SupervisorStatus::NotRunning | SupervisorStatus::Silent => return supervisor_process::end(dir),
    };
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&live.init, PollFlags::IN)], Some(&limit))
        .context(|| "waiting for its end")?;
    if ended == 0 {
        return Err(Error::new(format!("{}: a process in it does not end", dir.display()))
            .hint("one that waits for a dead file server cannot be killed before that answers"));
    }
    Ok(true)
}
