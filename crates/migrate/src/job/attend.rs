//! `skiff job save --every`, `--on-signal` and `--drain-on-signal`: stays with a job's instances until all have ended. Saves them again and
//! again, or when the job has to make room, and moves those of a node that fails.

use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use skiff_checkpoint::every::{first_pause, next_pause};
use skiff_checkpoint::{job, place};
use skiff_cli::{DrainArgs, JobSaveArgs, Mode, OutputArgs};
use skiff_output as output;
use skiff_spec::checkpoint::{CheckpointInterval, CheckpointName};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::clock::now;
use skiff_sys::signal::Signals;
use skiff_user::checkpoints::all;
use skiff_user::context::UserContext;

use super::links::{self, MemberLink, MemberPlace, hear_all, strange};
use super::save::{self, JobSaved};
use crate::drain::drain;
use crate::peer::wait;
use crate::talk::{DestinationMessage, SourceMessage, VERSION};

/// Signals have numbers up to this one.
const LAST_SIGNAL: i32 = 64;

/// Does it; the exit code.
pub fn attend(context: &UserContext, words: &JobSaveArgs) -> Result<i32> {
    let to_save = words.on_signal.as_deref().map(|name| number("--on-signal", name)).transpose()?;
    let to_drain =
        words.drain_on_signal.as_deref().map(|name| number("--drain-on-signal", name)).transpose()?;
    let signals = only(&[to_save, to_drain].into_iter().flatten().collect::<Vec<_>>())?;
    let requeued = (words.on_signal.is_some() && !words.no_requeue).then(job::job_of_script).transpose()?;
    let slot = CheckpointName::newest(&words.checkpoint);
    let mut watched = WatchedJob::find(context, words)?;
    let mut pause = words.every.map(first_pause);
    loop {
        match watched.wait(&signals, pause.map(|pause| Instant::now() + pause))? {
            JobEvent::Ended(code) => return end(context, words, code),
            JobEvent::Signal(number) if Some(number) == to_drain => {
                leave(context, words, &mut watched).unwrap_or_else(|why| output::complain(&why));
            }
            // A checkpoint without an instance that has failed would take the place of one with it.
            JobEvent::Time | JobEvent::Signal(_) if watched.failed().is_some() => {
                let code = watched.failed().unwrap_or(output::FAILURE);
                output::note(&format!(
                    "checkpoint {slot}: an instance has ended with {code}: nothing more is saved"
                ));
                pause = None;
            }
            JobEvent::Time => {
                // What is in the way may pass: it is tried again.
                match watched.save(context, words, true) {
                    Ok(saved) => pause = said(context, words, &saved)?,
                    Err(why) => output::complain(&why),
                }
            }
            JobEvent::Signal(_) => match watched.save(context, words, false) {
                Ok(_) => {
                    output::note(&format!("checkpoint {slot}: all instances are saved"));
                    links::end(watched.members);
                    return requeued.map_or(Ok(0), |job| job::requeue(&job, &slot));
                }
                // The instances go on as they were, for as long as the job does.
                Err(why) => output::complain(&why),
            },
        }
    }
}

fn number(option: &str, name: &str) -> Result<i32> {
    job::signal_number(name).map_err(|e| e.about(option))
}

/// A queue of these signals alone. Whatever else comes does what it does elsewhere.
fn only(numbers: &[i32]) -> Result<Signals> {
    let others: Vec<i32> = (1..=LAST_SIGNAL).filter(|other| !numbers.contains(other)).collect();
    Signals::block(&others).context(|| "signals")
}

/// Says that all have been saved; the pause after that.
fn said(context: &UserContext, words: &JobSaveArgs, saved: &JobSaved) -> Result<Option<Duration>> {
    let took = (u128::from(saved.frozen_ms), saved.total_ms);
    let pause = words.every.map(|every| next_pause(context, every, saved.nodes().len(), took));
    if words.output.json {
        let line = serde_json::to_string(saved).map_err(|e| Error::new(e.to_string()))?;
        return output::line(&line).map(|()| pause);
    }
    let next = CheckpointInterval::Seconds(pause.unwrap_or_default().as_secs());
    output::line(&format!(
        "{} {}: {}, stood still for {} ms ({} ms in all); the next in {next}",
        output::time(now()),
        saved.checkpoint,
        output::size(saved.bytes),
        saved.frozen_ms,
        saved.total_ms,
    ))?;
    Ok(pause)
}

/// Moves the instances of nodes that Slurm drains to nodes of the job that have none. The others wait for their answers meanwhile.
fn leave(context: &UserContext, words: &JobSaveArgs, watched: &mut WatchedJob) -> Result<()> {
    let nodes = save::nodes(words)?;
    let (left, busy) = (drained(&nodes)?, watched.nodes());
    let spare: Vec<String> =
        nodes.into_iter().filter(|node| !left.contains(node) && !busy.contains(node)).collect();
    let mut leaving: Vec<String> = busy.into_iter().filter(|node| left.contains(node)).collect();
    leaving.sort();
    leaving.dedup();
    if leaving.is_empty() {
        output::note("no instance is on a node that Slurm drains");
    }
    for node in leaving {
        if spare.is_empty() {
            return Err(Error::new(format!(
                "node {node} is being drained, and the job has no node without instances"
            ))
            .hint("`#SBATCH --nodes` with one more lets the instances of one node move"));
        }
        let (output, to) = (OutputArgs { json: false }, spare.clone());
        // If an instance stays, why has been said.
        let mode = Mode::default();
        drain(context, &DrainArgs { to, mode, dry_run: false, output, node: node.clone() })?;
        watched.look_again(context, &node, &spare)?;
    }
    Ok(())
}

/// Finds the nodes of these that Slurm gives no more work.
fn drained(nodes: &[String]) -> Result<Vec<String>> {
    let about = || "sinfo".to_owned();
    let said = Command::new("sinfo")
        .args(["-h", "-N", "-o", "%N %T", "-n", &nodes.join(",")])
        .output()
        .context(about)?;
    if !said.status.success() {
        return Err(Error::new(format!("{}: {}", about(), String::from_utf8_lossy(&said.stderr).trim())));
    }
    let mut left = drained_by(&String::from_utf8_lossy(&said.stdout));
    left.dedup();
    Ok(left)
}

/// The same, by what `sinfo` says: a node and its state a line.
fn drained_by(sinfo: &str) -> Vec<String> {
    let lines = sinfo.lines().filter_map(|line| line.split_once(' '));
    let left = lines.filter(|(_, state)| ["drain", "fail", "down"].iter().any(|word| state.contains(word)));
    left.map(|(node, _)| node.to_owned()).collect()
}

/// All have ended. The next job of a batch script would go on from before that, unless something has failed.
fn end(context: &UserContext, words: &JobSaveArgs, code: i32) -> Result<i32> {
    let slot = CheckpointName::newest(&words.checkpoint);
    if words.on_signal.is_some() {
        if code == 0 {
            place::remove_all(context, &slot.name)?;
        } else if all(context)?.contains(&slot) {
            output::note(&format!("checkpoint {slot} stays: an instance has ended with {code}"));
        }
    }
    Ok(code)
}

/// What happens to a job.
enum JobEvent {
    /// All instances have ended; the largest exit code.
    Ended(i32),
    /// A signal has come: its number.
    Signal(i32),
    /// The next checkpoint is due.
    Time,
}

/// A job's instances, and who says when each has ended.
struct WatchedJob {
    members: Vec<MemberLink>,
    codes: Vec<Option<i32>>,
    /// What stands for the exit codes that nobody has seen, if there are any.
    unseen: Option<i32>,
}

/// Instances that run, each with a receiver that tells of its end.
fn running(context: &UserContext, places: &[MemberPlace]) -> Result<Vec<MemberLink>> {
    let mut members = MemberLink::open_all(context, places)?;
    for member in &mut members {
        member.tell(&SourceMessage::Watch(member.place.instance.clone(), VERSION.into()))?;
    }
    let is_here = hear_all(&mut members, |message| match message {
        DestinationMessage::Absent => Ok(false),
        DestinationMessage::Present => Ok(true),
        other => Err(strange(&other)),
    })?;
    let mut is_here = is_here.into_iter();
    let (members, absent): (Vec<_>, _) = members.into_iter().partition(|_| is_here.next() == Some(true));
    links::end(absent);
    Ok(members)
}

impl WatchedJob {
    fn find(context: &UserContext, words: &JobSaveArgs) -> Result<Self> {
        let members = running(context, &save::places(words)?)?;
        save::refuse_missing(words, members.iter().map(|member| &member.place.instance))?;
        Ok(Self { codes: vec![None; members.len()], members, unseen: None })
    }

    /// Looks where the instances of a node are that has been left.
    fn look_again(&mut self, context: &UserContext, left: &str, spare: &[String]) -> Result<()> {
        let watched = std::mem::take(&mut self.members).into_iter().zip(std::mem::take(&mut self.codes));
        let (of_node, others): (Vec<_>, Vec<_>) =
            watched.partition(|(member, code)| member.place.node == left && code.is_none());
        (self.members, self.codes) = others.into_iter().unzip();
        let of_node: Vec<MemberLink> = of_node.into_iter().map(|(member, _)| member).collect();
        let names: Vec<EnvName> = of_node.iter().map(|member| member.place.instance.clone()).collect();
        links::end(of_node);
        let nodes = std::iter::once(left).chain(spare.iter().map(String::as_str));
        let on = |node: &str| {
            let place =
                |instance: &EnvName| MemberPlace { instance: instance.clone(), node: node.into(), part: 0 };
            names.iter().map(place).collect::<Vec<_>>()
        };
        let found = running(context, &nodes.flat_map(on).collect::<Vec<_>>())?;
        for name in names.iter().filter(|name| !found.iter().any(|member| member.place.instance == **name)) {
            output::note(&format!("instance {name}: it has ended while it was moved, and how is not known"));
            self.unseen = Some(output::FAILURE);
        }
        self.codes.extend(found.iter().map(|_| None));
        self.members.extend(found);
        Ok(())
    }

    /// The exit code of an instance that has failed, if one has.
    fn failed(&self) -> Option<i32> {
        self.codes.iter().chain([&self.unseen]).flatten().copied().find(|code| *code != 0)
    }

    /// Waits for what happens next, until then.
    fn wait(&mut self, signals: &Signals, until: Option<Instant>) -> Result<JobEvent> {
        loop {
            for (member, code) in
                self.members.iter_mut().zip(&mut self.codes).filter(|(_, code)| code.is_none())
            {
                *code = member.answer(&mut |message| match message {
                    DestinationMessage::Ended(code) => Ok(code),
                    other => Err(strange(&other)),
                })?;
            }
            if self.codes.iter().all(Option::is_some) {
                let codes = self.codes.iter().chain([&self.unseen]).flatten();
                return Ok(JobEvent::Ended(codes.copied().max().unwrap_or(0)));
            }
            if let Some(signal) = signals.next().context(|| "signals")? {
                return Ok(JobEvent::Signal(signal.number));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(JobEvent::Time);
            }
            self.listen(signals, left)?;
        }
    }

    /// Reads what those say that have not ended, if any of them says something by then, or a signal comes.
    fn listen(&mut self, signals: &Signals, limit: Option<Duration>) -> Result<()> {
        let mut running: Vec<_> = self
            .members
            .iter_mut()
            .zip(&self.codes)
            .filter(|(_, code)| code.is_none())
            .map(|(m, _)| m)
            .collect();
        let fds = running.iter().map(|member| member.as_fd()).chain([signals.as_fd()]);
        let ready = wait(&fds.map(|fd| (fd, PollFlags::IN)).collect::<Vec<_>>(), limit)?;
        let ready = running.iter_mut().zip(ready).filter(|(_, ready)| !ready.is_empty());
        ready.map(|(member, _)| member.read()).fold(Ok(()), Result::and)
    }

    /// The nodes of those that still run.
    fn nodes(&self) -> Vec<String> {
        let running = self.members.iter().zip(&self.codes).filter(|(_, code)| code.is_none());
        running.map(|(member, _)| member.place.node.clone()).collect()
    }

    /// Saves those that still run.
    fn save(&self, context: &UserContext, words: &JobSaveArgs, leave_running: bool) -> Result<JobSaved> {
        let runs = |name: &&EnvName| {
            let mut all = self.members.iter().zip(&self.codes);
            all.any(|(member, code)| code.is_none() && member.place.instance == **name)
        };
        let instances = words.instances.iter().filter(runs).cloned().collect();
        let saving = JobSaveArgs {
            on: words.on.clone(),
            leave_running,
            every: None,
            on_signal: None,
            no_requeue: false,
            drain_on_signal: None,
            keep: words.keep,
            dry_run: false,
            output: OutputArgs { json: false },
            checkpoint: words.checkpoint.clone(),
            instances,
        };
        save::carry_out(context, &saving)?.refuse_unknown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_gets_no_more_work_is_left() {
        let sinfo = "n1 mixed\nn2 draining\nn3 idle\nn4 drained*\nn5 failing\nn6 down*\nn7 allocated@\n";
        assert_eq!(drained_by(sinfo), ["n2", "n4", "n5", "n6"]);
        assert_eq!(drained_by(""), Vec::<String>::new());
    }
}
