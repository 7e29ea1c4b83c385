//! `skiff checkpoint save`.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::fs::CWD;
use serde::Serialize;
use skiff_cli::SaveArgs;
use skiff_instance::look::not_running;
use skiff_output as output;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::enter;
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::Started;
use skiff_spec::name::EnvName;
use skiff_user::checkpoints::home_of;
use skiff_user::context::UserContext;

use crate::dump::{Saved, Saving};
use crate::obstacles::{Moment, Obstacle, PreflightReport, SavedProcess, look, lost_processor_time};
use crate::place::NewCheckpoint;
use crate::required_criu;
use crate::running::RunningInstance;
use crate::stored;
use crate::target::SaveTarget;
use crate::tries::{CheckpointAction, refuse_interrupted, take_back_at_end, try_again};

/// How long another save may take.
const LONGEST_SAVE: Duration = Duration::from_secs(3600);

/// Saves an instance, and says so; the exit code.
pub fn save(context: &UserContext, words: &SaveArgs) -> Result<i32> {
    take_back_at_end(|| match carry_out(context, words)? {
        SaveOutcome::Saved(saved) => say(words, &saved).map(|()| 0),
        SaveOutcome::Shown(code) => Ok(code),
    })
}

/// What has come of it.
pub enum SaveOutcome {
    /// The instance has been saved.
    Saved(Box<Saved>),
    /// The instance was only looked at; the exit code says whether it can be saved.
    Shown(i32),
}

/// Saves an instance.
pub fn carry_out(context: &UserContext, save: &SaveArgs) -> Result<SaveOutcome> {
    let (record, started, live) = running(context, &save.instance)?;
    let net = enter::net_space(&started.net, started.plan.dumpable).named(started.plan.hostname.is_some());
    let about = |e: Error| e.about(&format!("instance {}", record.name));
    let inside = EnterTarget { init: live.init.as_fd(), net, number: None };
    // Before the look: what somebody else saves is traced.
    let _lock = if save.dry_run { None } else { Some(alone(&record)?) };
    let look = || look(live.pid, (inside, &started.plan), Moment::Running);
    required_criu()?;
    let found = look().map_err(about)?;
    found.tell();
    let name = save.name.as_ref().or(started.saved_as.as_ref()).unwrap_or(&record.name);
    let slot = CheckpointName::newest(name);
    if save.dry_run {
        found.tell_lost_time();
        return show(&slot, &found, save.output.json).map(|()| SaveOutcome::Shown(found.exit_code()));
    }
    if live.sessions > 0 {
        output::note("a session is open in it (`instance exec`): that is not saved");
    }
    let home = home_of(context, &slot)?;
    let (mut found, mut number) = (Some(found), 0);
    let saved = try_again((&record.name, CheckpointAction::Save), || {
        number += 1;
        let found = found.take().map_or_else(look, Ok)?;
        found.refuse(CheckpointAction::Save)?;
        let new = NewCheckpoint::make(&home, &slot.name)?;
        new.check()?;
        let (record, started, found, init) = (&record, &started, &found, live.pid);
        let instance = RunningInstance { context, record, started, init, inside, found };
        let saving = Saving { instance, save };
        let saved = saving.carry_out(&SaveTarget::Own(&new), &slot)?;
        Ok((saved, lost_processor_time(&found.processes)))
    });
    // Together with this goes what it has replaced, and what others had to leave as long as it was being saved.
    stored::tell_uncollected(stored::collect(&home));
    let (saved, lost) = saved.map_err(about)?;
    Ok(SaveOutcome::Saved(Box::new(Saved { tries: number, lost, ..saved })))
}

/// The instance, which must run and be made to be saved.
pub fn running(context: &UserContext, instance: &EnvName) -> Result<(InstanceDir, Started, Live)> {
    let record = InstanceDir::existing(context, instance)?;
    let started = record.started()?;
    refuse_unprepared(&record.name, &started)?;
    let live = Live::connect(&record.dir, ControlRequest::Session)?.ok_or_else(|| not_running(&record))?;
    Ok((record, started, live))
}

/// Refuses one that was not made to be saved.
pub fn refuse_unprepared(name: &EnvName, started: &Started) -> Result<()> {
    match started.checkpoint {
        true => Ok(()),
        false => Err(Error::new(format!("instance {name}: it was not started so that it can be saved"))
            .hint("skiff instance start --checkpoint ...")),
    }
}

/// Keeps others from saving or moving it: only one can trace its processes. Nothing if somebody does.
pub fn try_alone(record: &InstanceDir) -> Result<Option<OwnedFd>> {
    let path = record.dir.join("saving");
    skiff_sys::lock::try_file(CWD, &*path).context(|| path.display().to_string())
}

/// The same, after waiting until nobody else does.
pub fn alone(record: &InstanceDir) -> Result<OwnedFd> {
    if let Some(lock) = try_alone(record)? {
        return Ok(lock);
    }
    output::note(&format!("instance {}: it is being saved; waiting for the end of that", record.name));
    let attempt = || {
        refuse_interrupted(CheckpointAction::Save)?;
        try_alone(record)
    };
    skiff_sys::lock::within(LONGEST_SAVE, attempt)?.ok_or_else(|| {
        Error::new(format!("instance {}: somebody else has been saving it for an hour", record.name))
            .hint("`ps -u $USER` shows the other `skiff checkpoint`; end that")
    })
}

fn say(save: &SaveArgs, saved: &Saved) -> Result<()> {
    saved.lost.iter().for_each(|lost| output::note(lost));
    if save.output.json {
        return output::json(saved);
    }
    let Saved { processes, instance, total_ms, .. } = saved;
    let goes_on = if saved.left_running { ", and it goes on" } else { ", and it has ended" };
    let size = match saved.bytes == saved.written_bytes {
        true => output::size(saved.bytes),
        false => format!("{} ({} written)", output::size(saved.bytes), output::size(saved.written_bytes)),
    };
    output::note(&format!(
        "{processes} processes of instance {instance} saved, {size}{goes_on} ({total_ms} ms)"
    ));
    output::line(&saved.checkpoint)
}

fn show(slot: &CheckpointName, found: &PreflightReport, json: bool) -> Result<()> {
    #[derive(Serialize)]
    struct Shown<'a> {
        checkpoint: String,
        processes: &'a [SavedProcess],
        obstacles: &'a [Obstacle],
    }
    if json {
        let (processes, obstacles) = (&found.processes[..], &found.obstacles[..]);
        return output::json(&Shown { checkpoint: slot.to_string(), processes, obstacles });
    }
    output::line(&format!("checkpoint   {slot}"))?;
    for process in &found.processes {
        output::line(&super::look::process(process))?;
    }
    for obstacle in &found.obstacles {
        output::line(&super::look::obstacle(obstacle))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tries::{TRIES, pause_after};

    #[test]
    fn only_what_passes_by_itself_is_tried_again() {
        let obstacle = |why: &str| Obstacle { pid: 2, name: "a".into(), why: why.into() };
        let waits = obstacle("a TCP connection that waits to be accepted; try again once it has been");
        let lease = obstacle("a lease on /a against readers (F_SETLEASE); try again once it has none");
        let name = "sim".parse().unwrap();
        let tried = |found: &[Obstacle], until: u32| {
            let mut tries = 0;
            let done = try_again((&name, CheckpointAction::Save), || {
                tries += 1;
                let obstacles = if tries < until { found.to_vec() } else { vec![] };
                PreflightReport { obstacles, ..PreflightReport::default() }.refuse(CheckpointAction::Save)
            });
            (done.is_ok(), tries)
        };
        assert_eq!(tried(std::slice::from_ref(&waits), 3), (true, 3));
        assert_eq!(tried(std::slice::from_ref(&waits), 99), (false, TRIES));
        assert_eq!(tried(&[waits, lease], 3), (false, 1));
        assert!((1..TRIES).map(pause_after).sum::<Duration>() < Duration::from_secs(3));
    }
}
