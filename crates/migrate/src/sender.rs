//! The sender: looks whether the instance can be moved, brings the receiver about, and reports.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::fs::{CWD, FlockOperation, Mode as FileMode, OFlags, flock, openat};
use serde::Serialize;
use skiff_checkpoint::look as shown;
use skiff_checkpoint::member::{InstanceInterface, SavedInterface};
use skiff_checkpoint::obstacles::{IN_THE_WAY, Moment, Obstacle, PreflightReport, SavedProcess, look};
use skiff_checkpoint::running::RunningInstance;
use skiff_checkpoint::save;
use skiff_checkpoint::tries::{CheckpointAction, take_back_until_done, try_again};
use skiff_cli::{MigrateArgs, Mode};
use skiff_launch::handshake::SharedSecret;
use skiff_output as output;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::enter;
use skiff_runtime::record::{InstanceDir, State};
use skiff_sandbox::enter::EnterTarget;
use skiff_sandbox::join::NetSpace;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::Started;
use skiff_spec::name::EnvName;
use skiff_sys::signal::is_end_wanted;
use skiff_user::context::UserContext;

use crate::hand_over::{Migration, SwitchoverOutcome, TransferStats};
use crate::leaving::{self, InDoubtRecord};
use crate::lock_hand_over;
use crate::progress::{MigrationPhase, Progress};
use crate::rounds::RoundReport;
use crate::talk::{DestinationMessage, SourceMessage};
use crate::way::{self, ReceiverLink};

/// How long the other side may take to look up what became of a move.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// What is said of a move.
#[derive(Serialize)]
pub struct MigrationReport {
    instance: String,
    node: String,
    mode: Mode,
    processes: usize,
    /// Of memory.
    memory_bytes: u64,
    /// As which so many went by the link.
    sent_bytes: u64,
    /// Of everything else.
    file_bytes: u64,
    /// While they ran.
    rounds: Vec<RoundReport>,
    /// How often it was tried: something was in the way that passes by itself.
    tries: u32,
    /// How long the processes stood still.
    frozen_ms: u128,
    /// How long it took in all.
    total_ms: u128,
    phases: Vec<MigrationPhase>,
}

/// Moves an instance, and says so; the exit code.
pub fn migrate(context: &UserContext, words: &MigrateArgs) -> Result<i32> {
    if words.dry_run {
        return show(words, &MovePreflight::look(context, words)?);
    }
    match carry_out(context, words)? {
        MigrationOutcome::Moved(moved) => say(words, &moved).map(|()| 0),
        MigrationOutcome::Before => output::line(words.instance.as_str()).map(|()| 0),
    }
}

/// What was found of an instance that is to be moved, on both hosts.
pub struct MovePreflight {
    /// What starts the receiver.
    start: Vec<String>,
    found: PreflightReport,
    /// Why the destination would not take it.
    refusal: Option<Error>,
}

impl MovePreflight {
    /// Looks at the instance, asks the destination, and changes nothing.
    pub fn look(context: &UserContext, words: &MigrateArgs) -> Result<Self> {
        let (record, started, live) = save::running(context, &words.instance)?;
        let launch = way::launch(context, &words.node)?;
        let inside = inside(&started, &live);
        let found = look_at(&started, &live).map_err(|e| e.about(&format!("instance {}", record.name)))?;
        let (record, started, init) = (&record, &started, live.pid);
        let instance = RunningInstance { context, record, started, init, inside, found: &found };
        let going = Migration { instance, member: None, words };
        let refusal = going.ask().err();
        let start = launch.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Self { start, found, refusal })
    }

    /// Refuses it if anything is in the way.
    pub fn refuse(self) -> Result<()> {
        self.found.refuse(CheckpointAction::Move)?;
        self.refusal.map_or(Ok(()), Err)
    }
}

fn inside<'a>(started: &Started, live: &'a Live) -> EnterTarget<'a> {
    let net = enter::net_space(&started.net, started.plan.dumpable).named(started.plan.hostname.is_some());
    EnterTarget { init: live.init.as_fd(), net, number: None }
}

fn look_at(started: &Started, live: &Live) -> Result<PreflightReport> {
    let found = look(live.pid, (inside(started, live), &started.plan), Moment::Running)?;
    Ok(found.with_bound_locks(&started.plan))
}

/// What has come of it.
pub enum MigrationOutcome {
    /// The instance has gone.
    Moved(MigrationReport),
    /// The instance had gone before, which was not known.
    Before,
}

/// Moves an instance.
pub fn carry_out(context: &UserContext, words: &MigrateArgs) -> Result<MigrationOutcome> {
    let begun = Instant::now();
    if settle_ended(context, &words.instance)? {
        return Ok(MigrationOutcome::Before);
    }
    let (record, started, live) = save::running(context, &words.instance)?;
    let about = |e: Error| e.about(&format!("instance {}", record.name));
    let (record, started, init, inside) = (&record, &started, live.pid, inside(&started, &live));
    let _lock = lock(record)?;
    if settle(context, record)? {
        return Ok(MigrationOutcome::Before);
    }
    let _saving = save::alone(record)?;
    if live.sessions > 0 {
        output::note("a session is open in it (`instance exec`): that does not go along");
    }
    let mut number = 0;
    let attempt = || {
        number += 1;
        let found = look_at(started, &live)?;
        found.refuse(CheckpointAction::Move)?;
        if number == 1 {
            found.tell();
            found.tell_lost_time();
        }
        let member = SavedInterface::leaving(context, record, started)?;
        let instance = RunningInstance { context, record, started, init, inside, found: &found };
        let going = Migration { instance, member, words };
        move_once(&going, (begun, number))
    };
    match try_again((&record.name, CheckpointAction::Move), attempt).map_err(about)? {
        Ok(moved) => Ok(MigrationOutcome::Moved(moved)),
        Err(why) => {
            // Whoever asks now gets an answer that stays true.
            let (name, node) = (&record.name, &words.node);
            output::note(&format!("instance {name}: {why}; asking {node} what has become of it"));
            match settle(context, record)? {
                true => Ok(MigrationOutcome::Before),
                false => Err(about(why).hint("it goes on here, as it was")),
            }
        }
    }
}

/// Moves it, or says why that is not known. If the user asks this process to end, all is taken back, as long as it has not been given away.
fn move_once(
    going: &Migration<'_>,
    (begun, number): (Instant, u32),
) -> Result<std::result::Result<MigrationReport, Error>> {
    let mut progress =
        Progress::begin(going.instance.found.processes.iter().map(|process| process.memory).sum());
    let way = ReceiverLink::open(going.instance.context, &going.words.node)?;
    progress.done("connect");
    let token = SharedSecret::generate()?.to_hex();
    // Who is asked to end says why, and nobody after that.
    let about = |e: Error| match is_end_wanted() {
        true => e.about(&format!("instance {}", going.instance.record.name)),
        false => e,
    };
    let done = take_back_until_done(|| going.carry_out(way, token, &mut progress).map_err(about))?;
    Ok(match done {
        SwitchoverOutcome::Gone(gone) => Ok(MigrationReport::of(going, &gone, (begun, number), &progress)),
        SwitchoverOutcome::Unknown(why) => Err(why),
    })
}

impl MigrationReport {
    fn of(
        going: &Migration<'_>,
        gone: &TransferStats,
        (begun, tries): (Instant, u32),
        progress: &Progress,
    ) -> Self {
        Self {
            instance: going.instance.record.name.to_string(),
            node: going.words.node.clone(),
            mode: going.words.mode,
            processes: going.instance.found.processes.len(),
            memory_bytes: gone.memory,
            sent_bytes: gone.sent,
            file_bytes: gone.files,
            rounds: gone.rounds.clone(),
            tries,
            frozen_ms: gone.frozen.as_millis(),
            total_ms: begun.elapsed().as_millis(),
            phases: progress.phases().to_vec(),
        }
    }
}

/// One move at a time.
fn lock(record: &InstanceDir) -> Result<std::os::fd::OwnedFd> {
    let path = record.dir.join("moving");
    let about = || path.display().to_string();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(CWD, &path, flags, FileMode::from_raw_mode(0o600)).context(about)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::AGAIN) => {
            Err(Error::new(format!("instance {}: it is being moved already", record.name)))
        }
        Err(e) => Err(e).context(about),
    }
}

/// If a move of it has lost its connection when it was given away: finds out whether it has gone, and makes that so here.
fn settle(context: &UserContext, record: &InstanceDir) -> Result<bool> {
    let Some(left) = InDoubtRecord::left(record)? else { return Ok(false) };
    let taken = ask(context, record, &left).map_err(|e| {
        let (name, node) = (&record.name, &left.node);
        let why =
            format!("instance {name}: it stands still, and whether {node} has taken it is not known: {e}");
        Error::new(why).hint(format!("once {node} can be reached, `skiff migrate {name} {node}` finds out"))
    })?;
    if taken {
        leaving::end(record)?;
        output::note(&format!("instance {}: it goes on on {}", record.name, left.node));
    } else {
        listen_again(record)?;
        let locked = lock_again(record, &left);
        left.stay(record)?;
        output::note(&format!("instance {}: {} has not taken it", record.name, left.node));
        locked.map_err(|e| e.about(&format!("instance {}: it goes on here without a lock", record.name)))?;
    }
    Ok(taken)
}

/// The same where nothing of it runs here any more: a sender that was killed may have ended what had gone, and not have said so.
fn settle_ended(context: &UserContext, instance: &EnvName) -> Result<bool> {
    let record = InstanceDir::existing(context, instance)?;
    if InDoubtRecord::left(&record)?.is_none() || matches!(record.state()?, State::Running(_)) {
        return Ok(false);
    }
    let _lock = lock(&record)?;
    settle(context, &record)
}

/// Opens the instance's network again, out of which it was shut when it was given away.
fn listen_again(record: &InstanceDir) -> Result<()> {
    let started = record.started()?;
    if let (Some(port), Some(live)) =
        (InstanceInterface::of(record, &started)?, Live::connect(&record.dir, ControlRequest::Status)?)
    {
        port.open(EnterTarget { init: live.init.as_fd(), net: NetSpace::Its, number: None })?;
    }
    Ok(())
}

/// The locks on files that its processes had are theirs again.
fn lock_again(record: &InstanceDir, left: &InDoubtRecord) -> Result<()> {
    let Some(live) = Live::connect(&record.dir, ControlRequest::Status)? else { return Ok(()) };
    lock_hand_over::take_back(inside(&record.started()?, &live), &left.locks)
}

fn ask(context: &UserContext, record: &InstanceDir, left: &InDoubtRecord) -> Result<bool> {
    let mut way = ReceiverLink::open(context, &left.node)?;
    way.peer.tell(&SourceMessage::Ask(record.name.clone(), left.token.clone()))?;
    match way.peer.hear(Instant::now() + PATIENCE)? {
        DestinationMessage::Taken(taken) => Ok(taken),
        DestinationMessage::Failed(message, hint) => Err(Error::new(message).hint(hint)),
        other => Err(Error::new(format!("{}: it says {other:?}", left.node))),
    }
}

fn say(words: &MigrateArgs, moved: &MigrationReport) -> Result<()> {
    if words.output.json {
        return output::json(moved);
    }
    let MigrationReport { processes, instance, node, frozen_ms, total_ms, .. } = moved;
    // By way of the disk memory is in files.
    let size = output::size(if moved.mode.is_diskless() { moved.memory_bytes } else { moved.file_bytes });
    output::note(&format!(
        "{processes} processes of instance {instance} go on on {node}: {size} in {total_ms} ms, of which they stood still {frozen_ms} ms"
    ));
    output::line(instance)
}

/// Shows what would be moved; the exit code says whether it can be.
fn show(words: &MigrateArgs, preflight: &MovePreflight) -> Result<i32> {
    #[derive(Serialize)]
    struct Refusal<'a> {
        why: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        hint: &'a str,
    }
    #[derive(Serialize)]
    struct Shown<'a> {
        instance: &'a str,
        node: &'a str,
        mode: Mode,
        start: &'a [String],
        processes: &'a [SavedProcess],
        obstacles: &'a [Obstacle],
        #[serde(skip_serializing_if = "Option::is_none")]
        refusal: Option<Refusal<'a>>,
    }
    let MovePreflight { start, found, refusal } = preflight;
    found.tell();
    found.tell_lost_time();
    let code = if refusal.is_some() { IN_THE_WAY } else { found.exit_code() };
    let (processes, obstacles) = (&found.processes[..], &found.obstacles[..]);
    if words.output.json {
        let (instance, node, mode) = (words.instance.as_str(), &*words.node, words.mode);
        let refusal = refusal.as_ref().map(|Error { message, hint, .. }| Refusal { why: message, hint });
        let shown = Shown { instance, node, mode, start, processes, obstacles, refusal };
        return output::json(&shown).map(|()| code);
    }
    output::line(&format!("instance     {}", words.instance))?;
    output::line(&format!("to           {}", words.node))?;
    output::line(&format!("start        {}", start.join(" ")))?;
    for process in processes {
        output::line(&shown::process(process))?;
    }
    for obstacle in obstacles {
        output::line(&shown::obstacle(obstacle))?;
    }
    if let Some(Error { message, hint, .. }) = refusal {
        output::line(&format!("in the way   {message}"))?;
        if !hint.is_empty() {
            output::line(&format!("hint         {hint}"))?;
        }
    }
    Ok(code)
}
