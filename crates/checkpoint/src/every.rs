//! `skiff checkpoint every`: an instance is saved again and again while it runs.

use std::cmp::max;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use skiff_cli::{EveryArgs, OutputArgs, SaveArgs};
use skiff_instance::look::not_running;
use skiff_output as output;
use skiff_runtime::record::{InstanceDir, State};
use skiff_spec::checkpoint::CheckpointInterval;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::dump::Saved;
use crate::save::{self, SaveOutcome};

/// `auto` saves no more often, and begins after that: what saving takes is not known before.
const SHORTEST: Duration = Duration::from_secs(60);
/// Of the time that saving takes, disk and all, `auto` leaves this many times as much between two checkpoints.
const REST: u32 = 10;

/// Saves an instance until it ends; the exit code.
pub fn every(context: &UserContext, words: &EveryArgs) -> Result<i32> {
    let record = InstanceDir::existing(context, &words.instance)?;
    save::refuse_unprepared(&record.name, &record.started()?)?;
    let State::Running(live) = record.state()? else { return Err(not_running(&record)) };
    let (init, mut is_first) = (live.init, true);
    let mut pause = first_pause(words.interval);
    while !ends_within(&init, pause)? {
        let saved = save::carry_out(context, &save_args(words));
        if ends_within(&init, Duration::ZERO)? {
            break;
        }
        match saved {
            Ok(SaveOutcome::Saved(saved)) => {
                pause = next_pause(context, words.interval, 1, (saved.frozen_ms, saved.total_ms));
                say(words, &saved, pause)?;
                saved.lost.iter().filter(|_| is_first).for_each(|lost| output::note(lost));
                is_first = false;
            }
            Ok(SaveOutcome::Shown(_)) => {}
            // It goes on. What is in the way may pass: a connection that waits, a full disk.
            Err(why) => output::complain(&why.about(&output::time(now()))),
        }
    }
    Ok(0)
}

/// How long after its beginning an instance is saved for the first time.
pub fn first_pause(interval: CheckpointInterval) -> Duration {
    match interval {
        CheckpointInterval::Auto => SHORTEST,
        CheckpointInterval::Seconds(seconds) => Duration::from_secs(seconds),
    }
}

/// Pause after a save that stopped the processes on so many nodes for so many milliseconds, and took so many in all. The more nodes, the sooner one
/// of them fails.
pub fn next_pause(
    context: &UserContext,
    interval: CheckpointInterval,
    nodes: usize,
    took: (u128, u128),
) -> Duration {
    let mtbf = Duration::from_secs(3600 * u64::from(context.config.checkpoint.mtbf_hours));
    let mtbf = mtbf / u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
    match interval {
        CheckpointInterval::Auto => best(took, mtbf),
        CheckpointInterval::Seconds(_) => first_pause(interval),
    }
}

fn save_args(words: &EveryArgs) -> SaveArgs {
    SaveArgs {
        name: words.name.clone(),
        leave_running: true,
        keep: words.keep,
        dry_run: false,
        output: OutputArgs { json: false },
        instance: words.instance.clone(),
    }
}

fn say(words: &EveryArgs, saved: &Saved, pause: Duration) -> Result<()> {
    if words.output.json {
        let line = serde_json::to_string(saved).map_err(|e| Fault::new(e.to_string()))?;
        return output::line(&line);
    }
    let (still, all) = (saved.frozen_ms, saved.total_ms);
    output::line(&format!(
        "{} {}: {}, stood still for {still} ms ({all} ms in all); the next in {}",
        output::time(now()),
        saved.checkpoint,
        output::size(saved.bytes),
        CheckpointInterval::Seconds(pause.as_secs()),
    ))
}

/// Waits; whether the process has ended by then.
fn ends_within(process: &OwnedFd, pause: Duration) -> Result<bool> {
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready.context(|| "wait for the instance")? > 0),
        }
    }
}

/// Pause after a save that stopped the processes for `still` ms and took `all` ms: least time is lost to saves and failures together, if
/// something fails every `mtbf`.
fn best((still, all): (u128, u128), mtbf: Duration) -> Duration {
    let milliseconds = |n: u128| Duration::from_millis(n.try_into().unwrap_or(u64::MAX));
    let (still, all) = (milliseconds(still), milliseconds(all));
    max(max(optimum(still, mtbf), SHORTEST), all.saturating_mul(REST)).min(max(mtbf, SHORTEST))
}

/// Daly's estimate of higher order (Future Generation Computer Systems 22, 2006, equation 37): of the time between two checkpoints of which
/// each costs `cost`, where something fails every `mtbf`.
fn optimum(cost: Duration, mtbf: Duration) -> Duration {
    let (c, m) = (cost.as_secs_f64(), mtbf.as_secs_f64());
    if c >= 2.0 * m {
        return mtbf;
    }
    let x = (c / (2.0 * m)).sqrt();
    let best = (2.0 * c * m).sqrt() * (1.0 + x / 3.0 + x * x / 9.0) - c;
    Duration::from_secs_f64(best.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_time_between_two_loses_least() {
        // Simulated: the share of time lost by saving after each `pause` and by what is done again after each failure.
        let lost = |pause: f64, c: f64, m: f64| {
            let whole = m * ((pause + c) / m).exp_m1();
            whole / pause - 1.0
        };
        for (cost, mtbf) in [(0.5, 24.0), (20.0, 24.0), (300.0, 24.0), (3.0, 720.0)] {
            let (c, m) = (cost, mtbf * 3600.0);
            let best = optimum(Duration::from_secs_f64(c), HOUR.mul_f64(mtbf)).as_secs_f64();
            for other in [0.8, 1.25] {
                assert!(lost(best, c, m) < lost(best * other, c, m), "{cost} {mtbf}: {best}");
            }
        }
        assert_eq!(optimum(3 * HOUR, HOUR), HOUR);
        assert_eq!(optimum(Duration::ZERO, HOUR), Duration::ZERO);
    }

    #[test]
    fn it_is_not_saved_all_the_time() {
        let best = |still, all| best((still, all), HOUR);
        assert_eq!(best(0, 0), SHORTEST);
        assert_eq!(best(1, 60_000), Duration::from_secs(600));
        assert_eq!(best(1, 600_000), HOUR);
        assert_eq!(best(u128::MAX, u128::MAX), HOUR);
    }
}
