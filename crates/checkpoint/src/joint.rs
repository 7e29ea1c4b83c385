//! One instance's part in the checkpoint of a whole job: saved together with the others, and restored together with them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use skiff_cli::{GrownFiles, OutputArgs, Retention, SaveArgs};
use skiff_instance::look::not_running;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::record::{InstanceDir, State};
use skiff_runtime::{enter, network};
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::instance::Started;
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;

use crate::dump::{Saved, Saving};
use crate::files::FileRules;
use crate::member::SavedInterface;
use crate::notes::RestoreNotes;
use crate::obstacles::{Moment, PreflightReport, look};
use crate::record::{self, Checkpoint, CheckpointDir, FileDigest, IMAGES};
use crate::restore::{CriuRestorer, Gate, fits, make_again};
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
        look(self.live.pid, self.inside(), Moment::Running)
    }

    /// Where its processes are.
    pub fn inside(&self) -> EnterTarget<'_> {
        let Started { net, plan, .. } = &self.started;
        let net = enter::net_space(net, plan.dumpable).named(plan.hostname.is_some());
        EnterTarget { init: self.live.init.as_fd(), net, number: None }
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
        let Self { record, started, live } = self;
        let (init, inside) = (live.pid, self.inside());
        let saving = Saving { context, record, started, init, inside, found: &found, save: &save };
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
    let read = ReadFiles::of(dir, checkpoint)?;
    checkpoint.verify(dir)?;
    // Nobody runs by what was not checked.
    let ask = |inside: EnterTarget<'_>| read.refuse_changed(dir).and_then(|()| (gate.ask)(inside));
    let (member, notes) = (SavedInterface::read(dir)?, RestoreNotes::of(&record.dir));
    let (files, gate) = (Some(FileRules::of(context, files)?), Some(Gate { ask: &ask, ..gate }));
    let images = &dir.join(IMAGES);
    let revived =
        CriuRestorer { folder, checkpoint, member, dir, images, files, notes, used_up: false, gate };
    make_again(context, &record, &revived, vec![held.into_fd()])?;
    Ok(record)
}

/// A part's files as they were before they were checked. CRIU reads them where they are, as they may be as large as the memory.
struct ReadFiles(Vec<(String, FileState)>);

/// By what a file that was written to, or has taken another's place, differs.
type FileState = (u64, u64, i64, i64);

impl ReadFiles {
    fn of(dir: &Path, checkpoint: &Checkpoint) -> Result<Self> {
        let state = |file: &FileDigest| Ok((file.path.clone(), state(dir, &file.path)?));
        checkpoint.files.iter().map(state).collect::<Result<Vec<_>>>().map(Self)
    }

    /// Refuses them if one has changed while it was read.
    fn refuse_changed(&self, dir: &Path) -> Result<()> {
        let has_changed = |(path, before): &&(String, FileState)| match state(dir, path) {
            // A newer checkpoint may have taken the place of all.
            Err(_) => dir.join(path).exists(),
            Ok(now) => now != *before,
        };
        match self.0.iter().find(has_changed) {
            None => Ok(()),
            Some((path, _)) => {
                let place = record::place_of(dir);
                Err(Fault::new(format!(
                    "checkpoint {}: {path} has changed while it was read",
                    place.display()
                ))
                .hint("nothing is restored, as it would come back wrong"))
            }
        }
    }
}

fn state(dir: &Path, path: &str) -> Result<FileState> {
    let file = record::open(dir, path)?.metadata().context(|| path.to_owned())?;
    Ok((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_change_while_they_are_read_are_refused() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = format!("{IMAGES}/core-2.img");
        let at = temp.path().join(&path);
        std::fs::create_dir(temp.path().join(IMAGES)).expect("made");
        std::fs::write(&at, "one").expect("written");
        let files = vec![FileDigest::of(temp.path(), &path).expect("summed")];
        let checkpoint = Checkpoint { files, ..record::tests::example() };
        let read = ReadFiles::of(temp.path(), &checkpoint).expect("read");
        assert_eq!(read.refuse_changed(temp.path()), Ok(()));
        std::fs::rename(&at, temp.path().join("old")).expect("renamed");
        assert_eq!(read.refuse_changed(temp.path()), Ok(()), "it is gone");
        std::fs::write(&at, "one").expect("written");
        let why = read.refuse_changed(temp.path()).expect_err("another file");
        assert!(why.message.contains("core-2.img has changed"), "{why}");
    }
}
