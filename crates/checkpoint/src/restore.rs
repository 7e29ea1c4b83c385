//! `skiff checkpoint restore`.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::process::{Pid, Signal};
use serde::Serialize;
use skiff_cli::RestoreArgs;
use skiff_criu::rpc::{Options, RequestType};
use skiff_env::deploy::own_layers;
use skiff_instance::saves;
use skiff_output as output;
use skiff_plan::stop::stop_signal;
use skiff_plan::{self as plan, Relocation, base, get, show};
use skiff_runtime::record::{ENV, InstanceDir};
use skiff_runtime::service::{Approval, Restorer, Service};
use skiff_runtime::supervisor::{self, Lifetime, RuntimeDir};
use skiff_runtime::{enter, network};
use skiff_sandbox::clocks::Clocks;
use skiff_sandbox::enter::EnterTarget;
use skiff_sandbox::first::{self, Process};
use skiff_sandbox::join::Failed;
use skiff_sandbox::start::RunningContainer;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::Started;
use skiff_spec::network::ReservationRequest;
use skiff_spec::plan::inside::OUTPUT;
use skiff_spec::plan::{Plan, Route, Source, Upper};
use skiff_store::index::ImageName;
use skiff_sys::clock::now;
use skiff_sys::process::positive_pid;
use skiff_sys::signal::is_end_wanted;
use skiff_user::checkpoints::dir_of;
use skiff_user::context::UserContext;

use crate::attributes;
use crate::criu::{self, CriuProcess, Installation};
use crate::daemons::Daemons;
use crate::files::{self, FileRules, RecordedFiles};
use crate::locks::{self, LockChange};
use crate::member::SavedInterface;
use crate::notes::RestoreNotes;
use crate::obstacles::{description_locks, expired_timers, lost_processor_time, socket_options};
use crate::place;
use crate::probe;
use crate::read_files::ReadFiles;
use crate::record::{self, Checkpoint, POSIX_QUEUES, SYSV, tidy};
use crate::stored;
use crate::transport_sockets::TransportSockets;
use crate::tries::{CheckpointAction, refuse_interrupted, take_back_at_end};
use crate::whole_images::WholeImages;
use crate::{timers, trees};

/// In a checkpoint: the image below the instance.
pub const IMAGE: &str = "image.json";

/// What is said of one.
#[derive(Serialize)]
pub struct Restored {
    instance: String,
    checkpoint: String,
    processes: usize,
    bytes: u64,
    /// Bytes that its command had written to its output by then.
    pub written: u64,
    total_ms: u128,
    /// What is said of what has not come back.
    #[serde(skip)]
    pub lost: Option<String>,
}

/// Makes an instance again, and says so.
pub fn restore(context: &UserContext, words: &RestoreArgs) -> Result<()> {
    let Some(restored) = carry_out(context, words)? else { return Ok(()) };
    restored.lost.iter().for_each(|lost| output::note(lost));
    if words.output.json {
        return output::json(&restored);
    }
    let Restored { processes, checkpoint, total_ms, .. } = &restored;
    output::note(&format!("{processes} processes of checkpoint {checkpoint} go on ({total_ms} ms)"));
    output::line(&restored.instance)
}

/// How often a restore begins anew because a newer checkpoint has taken the name, and the older one was removed while it was read.
const TRIES: u32 = 3;
/// The hint of an error that came of that.
const REPLACED: &str = "a newer checkpoint has taken its name meanwhile: restore again";

/// Makes an instance again; nothing if that was only to be shown.
pub fn carry_out(context: &UserContext, restore: &RestoreArgs) -> Result<Option<Restored>> {
    with_newer(|| attempt(context, restore))
}

/// Begins anew if what was being read was replaced.
fn with_newer<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match attempt() {
            Err(why) if why.hint == REPLACED => {}
            done => return done,
        }
    }
    attempt()
}

fn attempt(context: &UserContext, restore: &RestoreArgs) -> Result<Option<Restored>> {
    let begun = std::time::Instant::now();
    let slot = &restore.checkpoint;
    let (held, checkpoint) = place::existing(context, slot)?;
    let dir = held.path();
    let about = |e: Error| e.about(&format!("checkpoint {slot}"));
    let name = restore.instance.as_ref().unwrap_or(&checkpoint.instance.name);
    let record = InstanceDir::named(context, name)?;
    record.refuse_taken()?;
    let folder = super::required_criu()?;
    fits(context, &checkpoint).map_err(about)?;
    if restore.dry_run {
        checkpoint.verify(&dir)?;
        stored::verify(&dir, &checkpoint)?;
        return show((&checkpoint, &dir), &record, restore.output.json).map(|()| None);
    }
    network::join(context, checkpoint.instance.plan.network_to_join())?;
    let opened = held.another()?;
    let place = dir_of(context, slot)?;
    let replaced = |e: Error| if opened.is_at(&place) || !place.exists() { e } else { e.hint(REPLACED) };
    let read = ReadFiles::of(&dir, &checkpoint);
    let whole = whole_images(&dir, slot, &checkpoint).map_err(replaced)?;
    let (read, (images, mut kept)) = (Some(read.map_err(replaced)?), whole.kept()?);
    let member = SavedInterface::read(&dir)?;
    let files = Some(FileRules::of(context, restore.files)?);
    let revived = CriuRestorer {
        folder,
        checkpoint: &checkpoint,
        member,
        dir: &dir,
        images: &images,
        read,
        files,
        notes: RestoreNotes::of(&record.dir),
        used_up: whole.used_up(),
        gate: None,
    };
    kept.push(held.into_fd());
    take_back_at_end(|| {
        make_again(context, &record, &revived, kept).map_err(|e| replaced(about(e)))?;
        if is_end_wanted() {
            output::note(&format!(
                "instance {}: it was restored before the interruption, and goes on",
                record.name
            ));
        }
        Ok(())
    })?;
    Ok(Some(Restored {
        instance: record.name.to_string(),
        checkpoint: slot.to_string(),
        processes: checkpoint.processes.len(),
        bytes: checkpoint.size(),
        written: checkpoint.written,
        total_ms: begun.elapsed().as_millis(),
        lost: lost_processor_time(&checkpoint.processes),
    }))
}

/// Checks the checkpoint in `dir`, and puts its images together.
fn whole_images(dir: &Path, slot: &CheckpointName, checkpoint: &Checkpoint) -> Result<WholeImages> {
    checkpoint.verify(dir)?;
    // Checked as they are put together.
    WholeImages::of(dir, &slot.name, checkpoint)
}

/// Makes the instance, and all of it; nothing is left of it if anything fails. `kept` is what has to stay open for that.
pub fn make_again(
    context: &UserContext,
    record: &InstanceDir,
    revived: &CriuRestorer<'_>,
    kept: Vec<OwnedFd>,
) -> Result<()> {
    let CriuRestorer { checkpoint, dir, .. } = revived;
    let entry = match ImageName::read(&dir.join(IMAGE))? {
        Some(entry) => Some(get::again(context, entry)?),
        None => None,
    };
    let (plan, mut held) = plan(context, checkpoint, record)?;
    held.extend(kept);
    let started = Started { name: record.name.clone(), started: now(), plan, ..checkpoint.instance.clone() };
    let lock = record.make(context, &started, entry.as_ref())?;
    let made = trees::put_back_own(context, checkpoint, dir, record)
        .and_then(|()| refuse_interrupted(CheckpointAction::Restore))
        .map_err(Failed::from)
        .and_then(|()| launch(context, record, (&started, entry.as_ref()), revived, &held, &lock));
    made.or_else(|why| {
        record.remove(context, lock)?;
        Err(why.into_error())
    })?;
    revived.notes.tell();
    saves::begin(context, record, &started);
    Ok(())
}

fn show((checkpoint, dir): (&Checkpoint, &Path), record: &InstanceDir, json: bool) -> Result<()> {
    let plan = &checkpoint.instance.plan;
    if json {
        return output::json(&checkpoint);
    }
    output::line(&format!("instance     {}", record.name))?;
    for process in &checkpoint.processes {
        output::line(&super::look::process(process))?;
    }
    super::look::show_written(dir, &checkpoint.written_files)?;
    show::show(plan, false)
}

/// Whether it can go on here.
pub fn fits(context: &UserContext, checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.made_with.fit()?;
    if checkpoint.instance.plan.route == Route::Helper && context.helper.is_none() {
        return Err(Error::new("its root was made with Skiff's helper, and here there is none")
            .hint("restore it on a host where `skiff doctor` finds the helper"));
    }
    refuse_missing_mounts(&checkpoint.instance.plan)
}

/// Refuses a plan that shows a file or directory of the host that is not on this host. (Where its output goes is made anew.)
fn refuse_missing_mounts(plan: &Plan) -> Result<()> {
    let missing = plan.mounts.iter().filter(|mount| !mount.optional && mount.target != Path::new(OUTPUT));
    let missing: Vec<String> = missing
        .filter_map(|mount| match &mount.source {
            Source::Bind(path) if is_missing(path) => {
                Some(format!("{}, mounted at {}", path.display(), mount.target.display()))
            }
            _ => None,
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!("not on this host: {}", missing.join("; ")))
        .hint("bring it here, or restore the instance on a host that has it"))
}

/// Of one that the user may not look at, the start says more.
fn is_missing(path: &Path) -> bool {
    matches!(path.metadata(), Err(e) if e.kind() == ErrorKind::NotFound)
}

/// The plan that it had, with what is another's now.
fn plan(
    context: &UserContext,
    checkpoint: &Checkpoint,
    record: &InstanceDir,
) -> Result<(Plan, Vec<OwnedFd>)> {
    let saved = &checkpoint.instance.plan;
    let found =
        checkpoint.instance.snapshot.as_ref().map(|snapshot| own_layers(context, snapshot)).transpose()?;
    // Topmost first.
    let layers = found.into_iter().flatten().rev();
    let (paths, held) = layers.map(|(path, lease)| (path, OwnedFd::from(lease))).unzip();
    let place = Relocation {
        name: record.name.to_string(),
        upper: Upper::Directory(record.dir.clone()),
        layers: checkpoint.instance.snapshot.as_ref().map(|_| paths),
        unpacked: base::unpacked_path(context, saved.base),
        output: record.output(),
    };
    let plan = plan::relocate(saved.clone(), place)?;
    base::make_ready(context, &plan)?;
    Ok((plan, held))
}

fn launch(
    context: &UserContext,
    record: &InstanceDir,
    (started, entry): (&Started, Option<&ImageName>),
    revived: &CriuRestorer<'_>,
    held: &[OwnedFd],
    lock: &OwnedFd,
) -> std::result::Result<(), Failed> {
    let runtime = RuntimeDir {
        dir: record.dir.clone(),
        name: record.name.to_string(),
        environment: started.of.strip_prefix(ENV).map(str::to_owned),
    };
    let stop = match entry {
        Some(entry) => stop_signal(
            entry.config().map_err(skiff_store::ours)?.exec.stop_signal.as_deref().filter(|s| !s.is_empty()),
        ),
        None => Signal::TERM.as_raw(),
    };
    let service = Service {
        command: None,
        restorer: Some(revived),
        identity: started.identity,
        stop,
        checkpoint: true,
        record,
    };
    supervisor::launch(context, &runtime, Lifetime::Instance(&service), &started.plan, held, lock)
}

/// Processes that are to be made again, in an instance that is started for them.
pub struct CriuRestorer<'a> {
    /// What makes them.
    pub folder: Installation,
    /// What they were.
    pub checkpoint: &'a Checkpoint,
    /// What they were on a network of the site's.
    pub member: Option<SavedInterface>,
    /// Where its files are.
    pub dir: &'a Path,
    /// Where CRIU's images are, all of them.
    pub images: &'a Path,
    /// What may not change until all of it has been read; nothing where nobody else can change it.
    pub read: Option<ReadFiles>,
    /// What becomes of files outside the instance that have changed since; nothing where nobody could have written them.
    pub files: Option<FileRules>,
    /// What is noted meanwhile.
    pub notes: RestoreNotes,
    /// What has been read of those may go.
    pub used_up: bool,
    /// Who has a say in whether they run.
    pub gate: Option<Gate<'a>>,
}

/// Somebody who is asked when all processes are there and stand still. If they do not want them to run, they never do.
pub struct Gate<'a> {
    /// Descriptors that are needed until then.
    pub kept: &'a [BorrowedFd<'a>],
    /// The question, to somebody who may still change the processes inside.
    pub ask: &'a dyn Fn(EnterTarget<'_>) -> Result<()>,
    /// Whether the instance ends with the process that starts it.
    pub bound: bool,
    /// Whether it comes from another host, where it still has its address.
    pub moves: bool,
}

impl Restorer for CriuRestorer<'_> {
    fn reserved(&self) -> Option<ReservationRequest> {
        let reservation = self.member.as_ref()?.claim.clone();
        Some(ReservationRequest { reservation, moves: self.gate.as_ref().is_some_and(|gate| gate.moves) })
    }

    fn clocks(&self) -> Option<Clocks> {
        self.checkpoint.clocks
    }

    fn approval(&self) -> Option<Approval<'_>> {
        self.gate.as_ref().map(|gate| Approval { kept: gate.kept, bound: gate.bound })
    }

    fn restore(&self, instance: &RunningContainer) -> Result<Process> {
        let checkpoint = self.checkpoint;
        let Plan { net, dumpable, hostname, .. } = &checkpoint.instance.plan;
        let net = enter::net_space(net, *dumpable).named(hostname.is_some());
        let inside = EnterTarget { init: instance.init.pidfd.as_fd(), net, number: None };
        trees::put_back_memory(inside, checkpoint, self.dir)?;
        locks::refuse_taken(inside, checkpoint.processes.iter().flat_map(|process| &process.locks))?;
        let images = File::open(self.images).context(|| self.images.display().to_string())?;
        // Their numbers must be free, so CRIU itself takes one that none of them has.
        let inside = EnterTarget { number: Pid::from_raw(checkpoint.free_number()), ..inside };
        if let Some(sysv) = &checkpoint.sysv {
            sysv.make_again(inside, &checkpoint.instance.plan, &record::open(self.dir, SYSV)?)?;
        }
        if let Some(queues) = &checkpoint.posix_queues {
            queues.make_again(inside, &record::open(self.dir, POSIX_QUEUES)?)?;
        }
        let criu = CriuProcess::start(&self.folder, inside, Some(images.as_fd()))?;
        probe::version(&criu).and_then(|version| checkpoint.made_with.fit_criu(&version))?;
        let main =
            positive_pid(checkpoint.main()?.pid).ok_or_else(|| Error::new("a process without a number"))?;
        let moves_sockets =
            !net.is_its() && TransportSockets::can_move(criu.number()?, self.images, checkpoint);
        let (mut process, mut daemons) = (None, Daemons::of(checkpoint, inside, moves_sockets)?);
        // Last: what has been cut stays so if the restore fails after that.
        let own_places = trees::own_places(&checkpoint.instance.plan);
        let expected = self.files.as_ref().map(|rules| {
            let (inside, place) = (EnterTarget { number: None, ..inside }, (self.dir, images.as_fd()));
            let recorded = RecordedFiles { written: &checkpoint.written_files, read: &checkpoint.read_files };
            files::make_fit(inside, place, recorded, &own_places, (rules, &self.notes))
        });
        let expected = expected.transpose()?;
        let options = Options { auto_dedup: Some(self.used_up), ..criu::options(net) };
        criu.carry_out(RequestType::Restore, options, |stage| {
            refuse_interrupted(CheckpointAction::Restore)?;
            daemons.at(stage)?;
            // They are all there, and do not run yet: whenever the first of them ends, process 1 knows whose end that is.
            if stage == "post-restore" {
                process = Some(first::adopt(instance.control.as_fd(), main)?);
                let inside = EnterTarget { number: None, ..inside };
                let pids: Vec<i32> = checkpoint.processes.iter().map(|process| process.pid).collect();
                expected.as_ref().map_or(Ok(()), |expected| expected.check(inside, &pids, &own_places))?;
                let kept: Vec<_> =
                    checkpoint.processes.iter().flat_map(|process| &process.attributes).collect();
                attributes::set_again(inside, &kept, &self.notes)?;
                let plan = &checkpoint.instance.plan;
                checkpoint.sysv.as_ref().map_or(Ok(()), |sysv| sysv.attach_again(inside, plan))?;
                timers::set_again(inside, &expired_timers(&checkpoint.processes))?;
                let options = socket_options(&checkpoint.processes);
                crate::socket_options::set_again(inside, &options, &self.notes)?;
                self.read.as_ref().map_or(Ok(()), |read| read.refuse_changed(self.dir))?;
                match &self.gate {
                    Some(gate) => (gate.ask)(inside)?,
                    None => {
                        let held = description_locks(&checkpoint.processes);
                        locks::change(inside, &held, LockChange::Take, locks::PATIENCE)?;
                    }
                }
                // Their connections are asleep, but known to the kernel.
                self.member.as_ref().map_or(Ok(()), |member| member.port().open(inside))?;
            }
            Ok(())
        })?;
        criu.end();
        tidy(images.as_fd())?;
        process.ok_or_else(|| Error::new("CRIU says that it has made all processes, but not when"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_begins_anew_only_when_its_checkpoint_was_replaced() {
        let tried = |hint: &str, until: u32| {
            let mut tries = 0;
            let done = with_newer(|| {
                tries += 1;
                if tries < until { Err(Error::new("gone").hint(hint)) } else { Ok(()) }
            });
            (done.is_ok(), tries)
        };
        assert_eq!(tried(REPLACED, 2), (true, 2));
        assert_eq!(tried(REPLACED, 9), (false, TRIES));
        assert_eq!(tried("", 2), (false, 1));
    }
}
