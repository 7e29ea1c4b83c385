//! A receiver's part in the save or restore of a whole job: one instance, led by the coordinator.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use skiff_checkpoint::joint::{self, JointMember};
use skiff_checkpoint::locks::{self, LockChange};
use skiff_checkpoint::member::InstanceInterface;
use skiff_checkpoint::obstacles::description_locks;
use skiff_checkpoint::record::{Checkpoint, CheckpointDir};
use skiff_checkpoint::restore::Gate;
use skiff_checkpoint::set::{self, JobCheckpoint};
use skiff_checkpoint::target::JointSave;
use skiff_cli::GrownFiles;
use skiff_ipc::ReportingChild;
use skiff_output as output;
use skiff_runtime::record::{InstanceDir, State};
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::{End, Ended};
use skiff_sys::IgnoreError;
use skiff_user::checkpoints::dir_of;
use skiff_user::context::UserContext;

use super::links::PATIENCE;
use crate::in_step;
use crate::peer::ControlChannel;
use crate::talk::{
    DestinationMessage, JointPart, JointRestoreOrder, JointSaveOrder, SourceMessage, refuse_other_version,
};

/// Who leads us.
const COORDINATOR: &str = "the coordinator";
/// How long processes stand still when the connection is lost after they were saved, if the checkpoint has not appeared by then.
const IN_DOUBT: Duration = Duration::from_secs(30);
/// How long a supervisor may take to note how its instance has ended.
const NOTING: Duration = Duration::from_secs(5);
/// How often that is looked at.
const LOOKING: Duration = Duration::from_millis(200);

/// Saves an instance with others.
pub fn save(context: &UserContext, peer: &mut ControlChannel, order: &JointSaveOrder) -> Result<()> {
    refuse_other_version(&order.version)?;
    let Some(member) = JointMember::find(context, &order.instance)? else {
        return peer.tell(&DestinationMessage::Absent);
    };
    let found = member.look()?;
    let obstacles = found.obstacles.iter();
    let obstacles = obstacles.map(|one| format!("process {} ({}): {}", one.pid, one.name, one.why)).collect();
    peer.tell(&DestinationMessage::Found(found.processes.len(), obstacles))?;
    let Some(dir) = &order.dir else { return Ok(()) };
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
        may_end(context, peer, order)
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

fn expect(peer: &mut ControlChannel, is_it: impl Fn(&SourceMessage) -> bool) -> Result<()> {
    match peer.hear(Instant::now() + PATIENCE)? {
        message if is_it(&message) => Ok(()),
        SourceMessage::Abort => Err(Error::new("another instance of the job cannot be saved")),
        other => Err(Error::new(format!("unexpected message: {other:?}"))),
    }
}

/// Waits until all are saved. If the connection is lost, the checkpoint itself says so: it is there, whole, or it will not be.
fn may_end(context: &UserContext, peer: &mut ControlChannel, order: &JointSaveOrder) -> Result<()> {
    let lost = match peer.hear(Instant::now() + PATIENCE) {
        Ok(SourceMessage::End) => return Ok(()),
        Ok(SourceMessage::Abort) => return Err(Error::new("another instance of the job cannot be saved")),
        Ok(other) => return Err(Error::new(format!("unexpected message: {other:?}"))),
        Err(lost) => lost,
    };
    let (slot, until) = (CheckpointName::newest(&order.checkpoint), Instant::now() + IN_DOUBT);
    while Instant::now() < until {
        if let Ok(Some(job)) = JobCheckpoint::read(&dir_of(context, &slot)?)
            && job.token == order.token
        {
            return Ok(());
        }
        std::thread::sleep(LOOKING);
    }
    Err(lost)
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
    let held = CheckpointDir::open(&order.dir)?;
    let dir = held.path();
    let checkpoint = Checkpoint::read(&dir)?;
    if set::digest(&dir)? != order.record {
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
    match peer.hear(Instant::now() + PATIENCE)? {
        SourceMessage::Go => Ok(()),
        SourceMessage::Abort => Err(Error::new("another instance of the job cannot be restored")),
        other => Err(Error::new(format!("unexpected message: {other:?}"))),
    }
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
