//! One instance's part in the checkpoint of a whole job: saved together with the others, and restored together with them.

use std::os::fd::{AsFd as _, OwnedFd};

use skiff_cli::{GrownFiles, OutputArgs, Retention, SaveArgs};
use skiff_instance::look::not_running;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::record::{InstanceDir, State};
use skiff_runtime::{enter, network};
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::Result;
use skiff_spec::instance::Started;
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;

use crate::dump::{Saved, Saving};
use crate::files::FileRules;
use crate::member::SavedInterface;
use crate::notes::RestoreNotes;
use crate::obstacles::{Moment, PreflightReport, look};
use crate::read_files::ReadFiles;
use crate::record::{Checkpoint, CheckpointDir, IMAGES};
use crate::restore::{CriuRestorer, Gate, fits, make_again};
use crate::running::RunningInstance;
use crate::save::{refuse_unprepared, try_alone};
use crate::target::{JointSave, SaveTarget};

/// A running instance that is to be saved with others.
pub struct JointMember {
    /// The instance.
    pub record: InstanceDir,
    started: Started,
    live: Live,
}

impl JointMember {
    /// The instance of this name on this host; nothing if none of that name runs here.
    pub fn find(context: &UserContext, name: &EnvName) -> Result<Option<Self>> {
        let Some(record) = InstanceDir::all(context)?.into_iter().find(|record| record.name == *name) else {
            return Ok(None);
        };
        if !matches!(record.state()?, State::Running(_)) {
            return Ok(None);
        }
        let started = record.started()?;
        refuse_unprepared(name, &started)?;
        let live =
            Live::connect(&record.dir, ControlRequest::Session)?.ok_or_else(|| not_running(&record))?;
        Ok(Some(Self { record, started, live }))
    }

    /// Keeps others from saving or moving it; nothing if somebody does.
    pub fn try_claim(&self) -> Result<Option<OwnedFd>> {
        let lock = try_alone(&self.record)?;
        // Whoever had it before may have ended it, and another may run under its name.
        match Live::connect(&self.record.dir, ControlRequest::Session)? {
            _ if lock.is_none() => Ok(None),
            Some(live) if live.pid == self.live.pid => Ok(lock),
            _ => Err(not_running(&self.record)),
        }
    }

    /// Looks at its processes.
    pub fn look(&self) -> Result<PreflightReport> {
        look(self.live.pid, (self.inside(), &self.started.plan), Moment::Running)
    }

    /// Where its processes are.
    pub fn inside(&self) -> EnterTarget<'_> {
        let Started { net, plan, .. } = &self.started;
        let net = enter::net_space(net, plan.dumpable).named(plan.hostname.is_some());
        EnterTarget { init: self.live.init.as_fd(), net, number: None }
    }

    /// Describes it as it is now, before anything is stopped.
    pub fn outline(&self, context: &UserContext, found: &PreflightReport) -> Result<Checkpoint> {
        self.running(context, found).outline_now()
    }

    fn running<'a>(&'a self, context: &'a UserContext, found: &'a PreflightReport) -> RunningInstance<'a> {
        let Self { record, started, live } = self;
        RunningInstance { context, record, started, init: live.pid, inside: self.inside(), found }
    }

    /// Saves it as a part of the checkpoint `slot`. Nobody else may do so meanwhile.
    pub fn save(
        &self,
        context: &UserContext,
        (slot, leave_running): (&CheckpointName, bool),
        joint: &JointSave<'_>,
    ) -> Result<Saved> {
        let found = self.look()?;
        let save = SaveArgs {
            name: Some(slot.name.clone()),
            leave_running,
            keep: Retention::default(),
            dry_run: false,
            output: OutputArgs { json: false },
            instance: self.record.name.clone(),
        };
        let saving = Saving { instance: self.running(context, &found), save: &save };
        saving.carry_out(&SaveTarget::Joint(joint), slot)
    }
}

/// Restores an instance from its part in `held`. The gate lets it run when all others are there, too.
pub fn restore(
    context: &UserContext,
    (held, checkpoint): (CheckpointDir, &Checkpoint),
    (name, files): (&EnvName, Option<GrownFiles>),
    gate: Gate<'_>,
) -> Result<InstanceDir> {
    let record = InstanceDir::named(context, name)?;
    let dir = &held.path();
    record.refuse_taken()?;
    let folder = super::required_criu()?;
    fits(context, checkpoint)?;
    network::join(context, checkpoint.instance.plan.network_to_join())?;
    let read = Some(ReadFiles::of(dir, checkpoint)?);
    checkpoint.verify(dir)?;
    let (member, notes) = (SavedInterface::read(dir)?, RestoreNotes::of(&record.dir));
    let (files, gate) = (Some(FileRules::of(context, files)?), Some(gate));
    let images = &dir.join(IMAGES);
    let revived =
        CriuRestorer { folder, checkpoint, member, dir, images, read, files, notes, used_up: false, gate };
    make_again(context, &record, &revived, vec![held.into_fd()])?;
    Ok(record)
}
