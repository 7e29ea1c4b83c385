//! The root of a job on a node, and who keeps it: a supervisor as of any environment, but one that stays until it is told to go.

use std::cell::{Cell, RefCell};
use std::fs;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skiff_cli::HostArgs;
use skiff_env::commit::{note_upper, time_limit};
use skiff_env::deploy::{Deployed, deploy};
use skiff_env::fan_out::{self, JobRelay, RelayImage, RelayPlace};
use skiff_env::job_records::{JobFigures, StartRecord};
use skiff_plan::device_words::GRANTED;
use skiff_plan::{self as plan, Facts, GPUS, PlanOptions, RootOptions, base};
use skiff_runtime::control::{self, HeldDirectories, Live};
use skiff_runtime::environments::EnvironmentBase;
use skiff_runtime::supervisor::{self, Lifetime, RuntimeDir};
use skiff_site::TrustedDir;
use skiff_spec::config::NodeLayers;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names::TEMPORARY;
use skiff_spec::job::{JobSpec, Snapshot};
use skiff_spec::plan::{Plan, Upper};
use skiff_store::index::ImageName;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::context::UserContext;
use skiff_user::scratch;

use crate::here::{IMAGE, private_dir, spool, working_dir};
use crate::job::{SlurmJob, temporary};
use crate::start_record::StartTimes;
use crate::{commit, container};

/// In the directory of the job's supervisor: in what this node's base differs from the one the environment was built on.
pub const DIFFERENCE: &str = "base-difference";
/// In the directory of the job's supervisor: why the snapshot's layers were unpacked on this node, and not mounted.
pub const NOT_MOUNTED: &str = "not-mounted";

/// At most this many roots of a job, and parts of each, have figures.
const MOST_ROOTS: usize = 1000;
const MOST_PARTS: usize = 4;

/// How long a job's steps, and what only looks like its roots, may hold up the end of these.
const OF_OTHERS: Duration = Duration::from_secs(5);

/// The job's running root; made if this is the first who needs it.
pub fn running(context: &UserContext, job: &SlurmJob) -> Result<Live> {
    match &job.spec {
        JobSpec::Snapshot(snapshot) => of_snapshot(context, job, snapshot),
        JobSpec::Container(container) => container::running(context, job, container),
    }
}

fn of_snapshot(context: &UserContext, job: &SlurmJob, snapshot: &Snapshot) -> Result<Live> {
    let dir = job.supervisor_dir();
    let own = private_dir(&dir)?;
    let name = snapshot.environment.to_string();
    let runtime = RuntimeDir { dir, environment: Some(name.clone()), name };
    let keep = || commit::at_end(context, &runtime.dir);
    let keep = snapshot.commit.as_ref().map(|_| &keep as &dyn Fn());
    let times = StartTimes::default();
    let (is_mounted, not_mounted) = (Cell::new(false), RefCell::new(String::new()));
    let start = |form| {
        supervisor::session_at(context, &runtime, Lifetime::UntilStopped(keep), || {
            let (depot, image) =
                (Path::new(&snapshot.depot), RelayImage::OfSnapshot(snapshot.snapshot.clone()));
            let place = RelayPlace { job: job.id, dir: &runtime.dir, depot, image };
            let relay = fan_out::begin(context, &place);
            let mut deployed = deploy(context, (snapshot, job.id), form, relay.as_ref())?;
            is_mounted.set(!deployed.stored_layers.is_empty());
            if !deployed.not_mounted.is_empty() {
                not_mounted.replace(take(&mut deployed.not_mounted));
            }
            let parts = deployed.parts.clone();
            let (plan, mut held) = plan_root(context, job, snapshot, (&runtime.dir, &own), deployed)?;
            // Others may begin later; it ends with the job.
            held.extend(relay.map(JobRelay::into_holder_end));
            times.prepared(parts);
            Ok((plan, held))
        })
    };
    let live = match start(NodeLayers::Mounted) {
        // Layers that another job's have taken the room of, or that the kernel does not mount after all.
        Err(why) if is_mounted.get() => {
            // The helper has just had the kernel load what it has.
            let known = fs::read_to_string("/proc/filesystems");
            not_mounted.replace(reason(why.message, known.ok().as_deref()));
            start(NodeLayers::Unpacked)?
        }
        started => started?,
    };
    let why = not_mounted.take();
    if !why.is_empty() {
        fs::write(runtime.dir.join(NOT_MOUNTED), why)
            .ignore_error("the job runs, and is not told why it began later");
    }
    times.note(job);
    Ok(live)
}

/// The plan of a job's root in `dir`, over what was brought to this node; and what has to stay open as long as the root is there.
fn plan_root(
    context: &UserContext,
    job: &SlurmJob,
    snapshot: &Snapshot,
    (dir, own): (&Path, &TrustedDir),
    deployed: Deployed,
) -> Result<(Plan, Vec<OwnedFd>)> {
    commit::keep_earlier(context, dir)?;
    let record = dir.join(DIFFERENCE);
    fs::write(&record, &deployed.difference).context(|| record.display().to_string())?;
    let layers = deployed.layers.into_iter().rev();
    let (paths, held): (Vec<_>, Vec<_>) = layers.map(|(path, lease)| (path, OwnedFd::from(lease))).unzip();
    let keeps_changes = snapshot.commit.is_some();
    let upper = match keeps_changes {
        true => scratch::on_disk(own)?,
        false => scratch::not_kept(context, own)?,
    };
    if let Some(entry) = &deployed.image {
        entry.write(&dir.join(IMAGE))?;
    }
    let below = deployed.image.map_or(EnvironmentBase::Host, EnvironmentBase::Image);
    let facts = Facts { working_dir: working_dir(), ..base::of_environment(context, &below)? };
    let asked = options(snapshot, upper, paths, vec![spool(context)], temporary(job.id));
    let gpus = snapshot.devices.iter().any(|word| word.starts_with(GPUS)).then(|| format!("{GPUS}{GRANTED}"));
    let (facts, asked) = container::with_devices(facts, asked, gpus, dir)?;
    let stored_layers = deployed.stored_layers.into_iter().rev().collect();
    let plan = plan::build(PlanOptions { stored_layers, ..asked }, facts)?;
    if keeps_changes {
        note_upper(dir, &plan)?;
    }
    Ok((plan, held))
}

/// Why layers were not mounted, by the helper's message and the file systems that the kernel knows.
fn reason(message: String, known: Option<&str>) -> String {
    let has_erofs = |known: &str| known.lines().any(|line| line.split_whitespace().last() == Some("erofs"));
    match known {
        Some(known) if !has_erofs(known) => format!("the kernel has no EROFS (modprobe erofs): {message}"),
        _ => message,
    }
}

/// What a job in an environment asks for: these layers, the place of its scripts, and its directories for temporary files.
pub fn options(
    snapshot: &Snapshot,
    upper: Upper,
    layers: Vec<PathBuf>,
    services: Vec<PathBuf>,
    temporary: Option<[PathBuf; 2]>,
) -> PlanOptions {
    let name = snapshot.environment.to_string();
    // The environment's own mounts and network are those of the machine where it is. Which GPUs there are Slurm decides.
    let mut asked: RootOptions = HostArgs::default().into();
    asked.mounts = snapshot.devices.iter().filter(|word| !word.starts_with(GPUS)).cloned().collect();
    PlanOptions { layers, services, temporary, ..PlanOptions::new(name, upper, asked) }
}

/// The image that a job's root is over; nothing for the host's. For a job whose root runs.
pub fn image(job: &SlurmJob) -> Result<Option<ImageName>> {
    Ok(ImageName::read(&job.supervisor_dir().join(IMAGE))?)
}

/// A job that is requeued comes back with its number, and on the same node Slurm may run no prolog. Where the epilog of the earlier run was
/// killed, that one's root is there still: it ends, and the script begins without it.
pub fn end_earlier_run(context: &UserContext, job: &SlurmJob) -> Result<()> {
    let dir = job.supervisor_dir();
    let shown = || dir.display().to_string();
    if fs::symlink_metadata(&dir).is_err() {
        return Ok(());
    }
    if commit::is_kept(&dir) {
        control::end_at(&dir)?;
        commit::wait_for(&dir, Instant::now() + time_limit(context))?;
    }
    control::stop_at(&dir)?;
    if commit::is_kept(&dir) {
        commit::note_if_lost(&dir)?;
    }
    // It goes with the job's directory.
    fs::rename(&dir, job.user_dir().join(format!("earlier.{}.{}", now(), std::process::id()))).context(shown)
}

/// Whether something that was changed in a root of the job must still be kept. (As in [`stop_job`], this process is in the job's directory.)
pub fn keeps_changes() -> Result<bool> {
    let dir = Path::new(".");
    let mut entries = fs::read_dir(dir).context(|| dir.display().to_string())?.flatten().take(MOST_ROOTS);
    Ok(entries.any(|entry| commit::is_awaited(&entry.path())))
}

/// Ends all steps that still run of the job in whose user's directory this process is, and all its roots (there may be several, for steps with
/// an environment of their own). `kept`: until when what was changed in one may be kept. Commits that are unfinished then are left running by
/// `leaves_keeping`, and else ended. Gives the job's figures, also when something does not end.
pub fn stop_job(kept: Instant, leaves_keeping: bool) -> Result<(JobFigures, Option<String>)> {
    let dir = Path::new(".");
    let stopped = stop_all(dir, kept, leaves_keeping);
    let mut figures = JobFigures::default();
    for entry in fs::read_dir(dir).context(|| dir.display().to_string())?.flatten().take(MOST_ROOTS) {
        let path = entry.path();
        if let Some(started) = StartRecord::beside(&path) {
            figures.parts.extend(started.parts.into_iter().take(MOST_PARTS));
        }
        commit::add_result(&path, &mut figures);
    }
    Ok((figures, stopped.err().map(|e| e.message)))
}

/// The directories in that of a job's user, who makes there what they like: no number of them, and nothing that does not answer, keeps a root from
/// ending. So first is asked what a supervisor is seen to hold, and what only looks like it for a bounded time.
struct JobDirs {
    roots: Vec<PathBuf>,
    steps: Vec<PathBuf>,
    held: HeldDirectories,
    /// Whether there are more than these.
    are_more: bool,
}

impl JobDirs {
    /// Directories in which something may run; of what only looks like it no more than [`MOST_ROOTS`], and what is found by then.
    fn list(dir: &Path, by: Instant) -> Result<Self> {
        let mut dirs = Self { roots: vec![], steps: vec![], held: HeldDirectories::now()?, are_more: false };
        let mut others = 0;
        for entry in fs::read_dir(dir).context(|| dir.display().to_string())? {
            let entry = entry.context(|| dir.display().to_string())?;
            if Instant::now() >= by {
                dirs.are_more = true;
                break;
            }
            let path = entry.path();
            // A link could lead to a file server that does not answer.
            if !entry.file_type().is_ok_and(|found| found.is_dir()) {
                continue;
            }
            if !dirs.held.has(&path) {
                if !may_run(&path) {
                    continue;
                }
                if others == MOST_ROOTS {
                    dirs.are_more = true;
                    continue;
                }
                others += 1;
            }
            let is_step = entry.file_name().as_bytes().starts_with(b"step.");
            if is_step { dirs.steps.push(path) } else { dirs.roots.push(path) }
        }
        let Self { roots, steps, held, .. } = &mut dirs;
        [roots, steps].into_iter().for_each(|paths| paths.sort_by_cached_key(|path| !held.has(path)));
        Ok(dirs)
    }

    /// Does something to all in which something may run; while there is time, to what no supervisor is seen to hold as well.
    fn each<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a PathBuf>,
        has_time: impl Fn() -> bool,
        act: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        let act = |path: &PathBuf| match (has_time(), self.held.has(path)) {
            (_, true) => act(path),
            (true, false) => act(path),
            (false, false) => Err(too_many(path)),
        };
        paths.into_iter().map(act).fold(Ok(()), Result::and)
    }
}

fn stop_all(dir: &Path, kept_by: Instant, leaves_keeping: bool) -> Result<()> {
    let dirs = JobDirs::list(dir, Instant::now() + OF_OTHERS)?;
    dirs.roots.iter().for_each(|root| fan_out::end(root));
    let (kept, others): (Vec<_>, Vec<_>) = dirs.roots.iter().partition(|path| commit::is_kept(path));
    let by = Instant::now() + OF_OTHERS;
    let has_time = || Instant::now() < by;
    let end = |path: &Path| control::end_at(path).map(drop);
    // Its watcher may be removing a step's directory at this moment; so there is no lock to take.
    let end_step = |path: &Path| if has_time() { end(path) } else { Err(too_many(path)) };
    // Steps write into a root whose changes are kept: they end before it.
    let ended = dirs.each(others.iter().copied(), has_time, end);
    let ended = ended.and(dirs.each(&dirs.steps, has_time, end_step));
    let ended = ended.and(dirs.each(kept.iter().copied(), has_time, end));
    let stop = |path: &Path| control::stop_at(path).map(drop);
    let stop_kept = |path: &&PathBuf| {
        commit::wait_for(path, kept_by)?;
        if leaves_keeping && commit::is_awaited(path) {
            return Err(Error::new(format!("{}: its changes are still being kept", path.display())));
        }
        stop(path).and(commit::note_if_lost(path))
    };
    // What one has left keeps no other from being removed.
    let ended = kept.iter().map(stop_kept).fold(ended, Result::and);
    let others = others.into_iter().filter(|path| dirs.held.has(path));
    let ended = ended.and(dirs.each(others, has_time, stop));
    if dirs.are_more { ended.and(Err(too_many(dir))) } else { ended }
}

/// Whether something may run in a directory that no supervisor holds, or its changes may have to be kept: nothing runs without a socket.
fn may_run(path: &Path) -> bool {
    let is_temporary = TEMPORARY.iter().any(|(part, _)| path.ends_with(part));
    !is_temporary && (commit::is_kept(path) || fs::symlink_metadata(path.join(control::CONTROL)).is_ok())
}

fn too_many(path: &Path) -> Error {
    Error::new(format!("{}: too many steps and roots do not answer", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Child, Command};
    use std::thread;

    use skiff_sys::lock::within;

    use super::*;

    #[test]
    fn what_keeps_changes_goes_on_in_the_epilog_of_anothers_job() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("a1a1.kept");
        fs::create_dir(&root).expect("a root");
        let id = "a1".repeat(32);
        let spec = format!(
            r#"{{"environment":"dev","snapshot":"{id}","depot":"/nowhere","commit":{{"nodes":"all"}}}}"#
        );
        fs::write(root.join("commit-here"), format!("7\nn1\na1a1.kept.67\n1\n{spec}\n")).expect("a note");
        // It was asked before, and is at work.
        let mut supervisor = holds(&root, "skiff-end dev");
        let left = stop_all(dir.path(), Instant::now(), true).map_err(|e| e.message);
        let runs_on = supervisor.try_wait().expect("asked").is_none();
        let is_awaited = commit::is_awaited(&root);
        let stopped = stop_all(dir.path(), Instant::now(), false);
        let runs_still = is_running(supervisor);
        assert!(left.as_ref().is_err_and(|why| why.ends_with("still being kept")), "{left:?}");
        assert!(runs_on && is_awaited && !runs_still, "{runs_on} {is_awaited} {runs_still} {stopped:?}");
    }

    #[test]
    fn what_a_user_calls_a_step_keeps_no_root_from_ending() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("step.x"), "").expect("a file");
        for number in 0..2000 {
            for name in ["step", "root"] {
                let path = dir.path().join(format!("{name}.{number}"));
                fs::create_dir(&path)
                    .and_then(|()| fs::write(path.join(control::CONTROL), ""))
                    .expect("made");
            }
        }
        let root = dir.path().join("a1a1");
        fs::create_dir(&root).expect("a root");
        let mut supervisor = holds(&root, "skiff-env dev");
        let begun = Instant::now();
        let ended = thread::spawn(move || supervisor.wait().map(|status| (status.code(), begun.elapsed())));
        let stopped = stop_all(dir.path(), Instant::now(), false).map_err(|e| e.message);
        let (code, after) = ended.join().expect("joined").expect("reaped");
        assert_eq!(code, None, "killed: {stopped:?}");
        // It does not wait for what others are asked.
        assert!(after < OF_OTHERS, "{after:?} {stopped:?}");
    }

    #[test]
    fn names_that_a_user_has_made_take_no_memory() {
        let dir = tempfile::tempdir().expect("a directory");
        for number in 0..2 * MOST_ROOTS {
            let path = dir.path().join(format!("root.{number}"));
            fs::write(dir.path().join(format!("step.{number}")), "").expect("a file");
            fs::create_dir(&path)
                .and_then(|()| fs::write(path.join(control::CONTROL), ""))
                .and_then(|()| symlink(&path, dir.path().join(format!("link.{number}"))))
                .expect("made");
        }
        let root = dir.path().join("tmp");
        fs::create_dir(&root).expect("a root");
        let supervisor = holds(&root, "skiff-env dev");
        let dirs = JobDirs::list(dir.path(), Instant::now() + Duration::from_secs(600)).expect("listed");
        assert!(is_running(supervisor));
        assert_eq!((dirs.roots.len(), dirs.steps.len(), dirs.are_more), (MOST_ROOTS + 1, 0, true));
        assert_eq!(dirs.roots.first(), Some(&root));
        let dirs = JobDirs::list(dir.path(), Instant::now()).expect("listed");
        assert_eq!((dirs.roots.len(), dirs.are_more), (0, true));
    }

    /// A process that is like a root's supervisor: by its name, and as it holds the directory.
    fn holds(root: &Path, name: &str) -> Child {
        let programs = tempfile::tempdir().expect("a directory");
        let program = programs.path().join(name);
        symlink("/bin/sleep", &program).expect("a program");
        let held = fs::File::open(root).expect("opened");
        let process = Command::new(&program).arg("60").stdin(held).spawn().expect("started");
        // It gets its name a moment after it has begun.
        let comm = format!("/proc/{}/comm", process.id());
        let is_named = || fs::read(&comm).is_ok_and(|comm| comm.starts_with(b"skiff-"));
        let named = within(Duration::from_secs(10), || Ok::<_, ()>(is_named().then_some(())));
        assert_eq!(named, Ok(Some(())), "{name}");
        process
    }

    /// Whether it was still running; it is not any more.
    fn is_running(mut process: Child) -> bool {
        let is_running = process.try_wait().expect("asked").is_none();
        process.kill().expect("killed");
        process.wait().expect("reaped");
        is_running
    }

    #[test]
    fn a_kernel_without_erofs_is_the_reason() {
        for (known, is_it) in [
            (Some("nodev\tproc\n\text4\n\terofs\n"), false),
            (Some("nodev\tproc\n\text4\n\tsquashfs\n"), true),
            (None, false),
        ] {
            let said = reason("image: no such file".into(), known);
            assert!(said.ends_with("image: no such file"), "{said}");
            assert_eq!(said.contains("EROFS"), is_it, "{said}");
        }
    }
}
