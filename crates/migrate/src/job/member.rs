//! A receiver's part in the save or restore of a whole job: one instance, led by the coordinator.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use skiff_checkpoint::joint::{self, JointMember};
use skiff_checkpoint::locks::{self, LockChange};
use skiff_checkpoint::member::InstanceInterface;
use skiff_checkpoint::obstacles::{Obstacle, PreflightReport, description_locks};
use skiff_checkpoint::place;
use skiff_checkpoint::record::{Checkpoint, CheckpointDir};
use skiff_checkpoint::restore::Gate;
use skiff_checkpoint::set::{self, JobCheckpoint};
use skiff_checkpoint::target::JointSave;
use skiff_cli::{GrownFiles, Mode};
use skiff_ipc::ReportingChild;
use skiff_output as output;
use skiff_runtime::record::{InstanceDir, State};
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::{End, Ended};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_user::checkpoints::dir_of;
use skiff_user::context::UserContext;

use super::beats::{self, BeatSender};
use crate::in_step;
use crate::peer::{ControlChannel, wait};
use crate::talk::{
    DestinationMessage, FoundInstance, JointPart, JointRestoreOrder, JointSaveOrder, Offer, SourceMessage,
    refuse_other_version,
};

/// Who leads us.
const COORDINATOR: &str = "the coordinator";
/// How long processes stand still when the coordinator is lost after they were saved, if nobody can tell whether the checkpoint is there.
const IN_DOUBT: Duration = Duration::from_secs(30);
/// How long a supervisor may take to note how its instance has ended.
const NOTING: Duration = Duration::from_secs(5);
/// How often that is looked at.
const LOOKING: Duration = Duration::from_millis(200);

/// Saves an instance with others.
pub fn save(context: &UserContext, peer: &mut ControlChannel, order: &JointSaveOrder) -> Result<()> {
    refuse_other_version(&order.version)?;
    let _beats = BeatSender::start(peer)?;
    let Some(member) = JointMember::find(context, &order.instance)? else {
        return peer.tell(&DestinationMessage::Absent);
    };
    let Some(dir) = &order.dir else { return look_only(context, peer, &member) };
    peer.tell(&DestinationMessage::Present)?;
    // Before the look: what somebody else saves is traced.
    let _lock = claim(peer, &member)?;
    look(peer, &member)?;
    let (peer, shut) = (RefCell::new(peer), RefCell::new(None));
    let before_stop = |interface: Option<InstanceInterface>, inside: EnterTarget<'_>| -> Result<()> {
        let peer = &mut **peer.borrow_mut();
        peer.tell(&DestinationMessage::Poised)?;
        expect(peer, |message| matches!(message, SourceMessage::Shut))?;
        if let Some(interface) = interface {
            shut.replace(Some(ShutNetwork::shut(interface, inside)?));
        }
        peer.tell(&DestinationMessage::Silent)?;
        expect(peer, |message| matches!(message, SourceMessage::Stop))
    };
    let written = |checkpoint: &Checkpoint| -> Result<()> {
        let peer = &mut **peer.borrow_mut();
        let (processes, bytes, record) = (checkpoint.processes.len(), checkpoint.size(), set::digest(dir)?);
        peer.tell(&DestinationMessage::Written(JointPart { processes, bytes, record }))?;
        may_end(context, peer, (order, dir))
    };
    let joint = JointSave { dir, before_stop: &before_stop, written: &written };
    let slot = CheckpointName::newest(&order.checkpoint);
    let saved = member.save(context, (&slot, order.leave_running), &joint);
    if let Some(shut) = shut.take() {
        shut.end(member.inside(), saved.is_err() || order.leave_running);
    }
    let frozen = u64::try_from(saved?.frozen_ms).unwrap_or(u64::MAX);
    peer.into_inner().tell(&DestinationMessage::Over(frozen))
}

/// Says when an instance has ended, and how.
pub fn watch(
    context: &UserContext,
    peer: &mut ControlChannel,
    (name, version): (&EnvName, &str),
) -> Result<()> {
    refuse_other_version(version)?;
    let ours = InstanceDir::all(context)?.into_iter().find(|record| record.name == *name);
    let Some((record, State::Running(live))) =
        ours.map(|record| record.state().map(|state| (record, state))).transpose()?
    else {
        return peer.tell(&DestinationMessage::Absent);
    };
    peer.tell(&DestinationMessage::Present)?;
    loop {
        let ready = wait(&[(live.init.as_fd(), PollFlags::IN), (peer.as_fd(), PollFlags::IN)], None)?;
        if !ready[0].is_empty() {
            return peer.tell(&DestinationMessage::Ended(exit_code(&record)));
        }
        if !ready[1].is_empty() {
            peer.read()?;
        }
    }
}

/// Says what an instance is, and what is in the way of saving it.
fn look(peer: &mut ControlChannel, member: &JointMember) -> Result<()> {
    let found = member.look()?;
    let (processes, obstacles, offer) = (found.processes.len(), lines(&found), None);
    peer.tell(&DestinationMessage::Found(Box::new(FoundInstance { processes, obstacles, offer })))
}

/// The same of an instance that is not to be saved at once, with what other nodes are to know of it.
fn look_only(context: &UserContext, peer: &mut ControlChannel, member: &JointMember) -> Result<()> {
    let found = member.look()?;
    let mut obstacles = lines(&found);
    let offer = member
        .outline(context, &found)
        .and_then(|outline| Offer::of(&member.record, outline, Mode::Disk))
        .inspect_err(|why| obstacles.push(why.message.clone()));
    let (processes, offer) = (found.processes.len(), offer.ok());
    peer.tell(&DestinationMessage::Found(Box::new(FoundInstance { processes, obstacles, offer })))
}

fn lines(found: &PreflightReport) -> Vec<String> {
    let line = |one: &Obstacle| format!("process {} ({}): {}", one.pid, one.name, one.why);
    found.obstacles.iter().map(line).collect()
}

/// Keeps others from saving or moving the instance, and waits for the end of that if somebody does; not longer than the coordinator waits.
fn claim(peer: &mut ControlChannel, member: &JointMember) -> Result<OwnedFd> {
    expect(peer, |message| matches!(message, SourceMessage::Claim))?;
    let mut told = false;
    loop {
        if let Some(lock) = member.try_claim()? {
            peer.tell(&DestinationMessage::Claimed)?;
            return Ok(lock);
        }
        if !std::mem::replace(&mut told, true) {
            peer.tell(&DestinationMessage::Busy)?;
        }
        if !wait(&[(peer.as_fd(), PollFlags::IN)], Some(LOOKING))?[0].is_empty() {
            peer.read()?;
        }
        while let Some(message) = peer.heard()? {
            match message {
                SourceMessage::Beat => {}
                SourceMessage::Abort => return Err(given_up()),
                other => return Err(strange(&other)),
            }
        }
    }
}

fn given_up() -> Error {
    Error::new("another instance of the job has failed")
}

fn strange(message: &SourceMessage) -> Error {
    Error::new(format!("unexpected message: {message:?}"))
}

fn expect(peer: &mut ControlChannel, is_it: impl Fn(&SourceMessage) -> bool) -> Result<()> {
    match beats::hear(peer)? {
        message if is_it(&message) => Ok(()),
        SourceMessage::Abort => Err(given_up()),
        other => Err(strange(&other)),
    }
}

/// Waits until all are saved. If the coordinator is lost, either the checkpoint is there, or it is made sure that it will not be.
fn may_end(
    context: &UserContext,
    peer: &mut ControlChannel,
    (order, dir): (&JointSaveOrder, &Path),
) -> Result<()> {
    let lost = match beats::hear(peer) {
        Ok(SourceMessage::End) => return Ok(()),
        Ok(SourceMessage::Abort) => return Err(given_up()),
        Ok(other) => return Err(strange(&other)),
        Err(lost) => lost,
    };
    let slot = CheckpointName::newest(&order.checkpoint);
    let until = Instant::now() + IN_DOUBT;
    let appeared = || {
        let job = JobCheckpoint::read(&dir_of(context, &slot)?)?;
        Ok(job.is_some_and(|job| job.token == order.token))
    };
    loop {
        match place::appeared_or_prevented((set::whole(dir), &slot.name), appeared) {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(lost),
            Err(_) if Instant::now() < until => std::thread::sleep(LOOKING),
            // Nobody can tell.
            Err(why) => return Err(why),
        }
    }
}

/// An instance's network that is shut, with a process that opens it if this one is killed.
struct ShutNetwork {
    interface: InstanceInterface,
    guard: ReportingChild<()>,
    release: OwnedFd,
}

impl ShutNetwork {
    fn shut(interface: InstanceInterface, inside: EnterTarget<'_>) -> Result<Self> {
        let (abandoned, release) = pipe_with(PipeFlags::CLOEXEC).context(|| "a pipe")?;
        let guard = interface.open_when_abandoned(inside, abandoned.as_fd())?;
        let shut = Self { interface, guard, release };
        match interface.shut(inside) {
            Ok(()) => Ok(shut),
            Err(why) => {
                shut.end(inside, true);
                Err(why)
            }
        }
    }

    fn end(self, inside: EnterTarget<'_>, open: bool) {
        if open {
            self.interface.open(inside).ignore_error("an instance that has ended has no network any more");
        }
        rustix::io::write(&self.release, b"!").ignore_error("the guard ends with the instance");
        self.guard.end().ignore_error("the guard ends with the instance");
    }
}

/// Restores an instance, and lets it run when all others are there.
pub fn restore(
    context: &UserContext,
    peer: &mut ControlChannel,
    order: &JointRestoreOrder,
) -> Result<InstanceDir> {
    refuse_other_version(&order.version)?;
    let _beats = BeatSender::start(peer)?;
    let held = CheckpointDir::open(&order.dir)?;
    let dir = held.path();
    let (checkpoint, digest) = Checkpoint::read_with_digest(&dir)?;
    if digest != order.record {
        return Err(Error::new("another checkpoint has taken this name meanwhile").hint("restore again"));
    }
    let control = peer.as_fd();
    let kept = [control];
    // In the supervisor, which has a copy of the connection.
    let ask = |inside: EnterTarget<'_>| {
        may_run(control)?;
        let held = description_locks(&checkpoint.processes);
        locks::change(inside, &held, LockChange::Take, locks::PATIENCE)
    };
    let gate = Gate { kept: &kept, ask: &ask, bound: in_step(), moves: false };
    let unknown = |word: &String| Error::new(format!("unexpected message: files {word:?}"));
    let files = order.files.as_ref().map(|word| GrownFiles::named(word).ok_or_else(|| unknown(word)));
    let files = files.transpose()?;
    let record = joint::restore(context, (held, &checkpoint), (&order.instance, files), gate)?;
    peer.tell(&DestinationMessage::Running)?;
    Ok(record)
}

fn may_run(control: BorrowedFd<'_>) -> Result<()> {
    let control = control.try_clone_to_owned().context(|| COORDINATOR)?;
    let mut peer = ControlChannel::over(control, COORDINATOR)?;
    peer.tell(&DestinationMessage::Held)?;
    expect(&mut peer, |message| matches!(message, SourceMessage::Go))
}

/// The exit code of an instance that has ended; its supervisor notes it after its processes have gone.
pub fn exit_code(record: &InstanceDir) -> i32 {
    let until = Instant::now() + NOTING;
    loop {
        match record.state() {
            Ok(State::Ended(Ended { end: Some(End::Exited(code)), .. })) => return code,
            Ok(State::Ended(Ended { end: Some(End::Killed(number)), .. })) => return 128 + number,
            // It has been saved or moved: its result is none of this job's.
            Ok(State::Ended(Ended { end: Some(end @ (End::Saved | End::Moved)), .. })) => {
                output::note(&format!("instance {}: it has not come to its end here: {end:?}", record.name));
                return output::FAILURE;
            }
            _ if Instant::now() < until => std::thread::sleep(LOOKING),
            _ => return output::FAILURE,
        }
    }
}
