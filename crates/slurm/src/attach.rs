//! How a step enters a container that may be running: what it requires of it, which mounts and namespaces it shares with it, and which of its
//! options have no effect then.

use std::cell::Cell;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use skiff_env::deploy::node_name;
use skiff_output as output;
use skiff_plan::device_words::is_of_modules;
use skiff_plan::own_network;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_sandbox::join::NetSpace;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{AttachMode, JobContainer, JobSpec, UnsharedNamespace};
use skiff_spec::name::EnvName;
use skiff_store::PREFIX;
use skiff_sys::{IgnoreError, small_file};

use crate::here::IMAGE;
use crate::job::SlurmJob;

/// In the directory of a container's supervisor: the step whose mounts others get that enter the container.
const STEP: &str = "step";
/// In the same directory: with what the container was started.
const STARTED_WITH: &str = "started-with";

/// In the same directory, once a container has been made there.
const MADE: &str = "made";

/// As what a container was started; nothing of a root that is no container.
fn started_with(dir: &Path) -> Result<Option<JobContainer>> {
    let file = dir.join(STARTED_WITH);
    let line = match small_file::read_to_string(&file) {
        Ok(line) => line,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).context(|| file.display().to_string()),
    };
    match JobSpec::from_line(&line) {
        Ok(JobSpec::Container(container)) => Ok(Some(container)),
        Ok(JobSpec::Snapshot(_)) => Ok(None),
        Err(why) => Err(Error::new(format!("{}: {why}", file.display()))),
    }
}

/// Replaces a file that other steps may read at this moment.
pub fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let (file, new) = (dir.join(name), dir.join(format!("{name}.{}", std::process::id())));
    fs::write(&new, text).and_then(|()| fs::rename(&new, &file)).context(|| file.display().to_string())
}

/// Notes with what a container is being started.
pub fn note_start(dir: &Path, container: &JobContainer) -> Result<()> {
    let line = JobSpec::Container(container.clone()).to_line();
    write(dir, STARTED_WITH, &line.map_err(|e| Error::new(format!("job spec: {e}")))?)
}

/// The running container, where it must be running; nothing where it may be started. Refuses one that must not be there.
pub fn running(job: &SlurmJob, container: &JobContainer) -> Result<Option<Live>> {
    // A job's own container is begun with the job, and its steps' words are the job's.
    let Some(name) = container.name.as_ref().filter(|_| job.step.is_some()) else { return Ok(None) };
    if job.is_own_container(name) {
        return Err(Error::new(format!(
            "container {name}: the job's own container is not entered by a name"
        ))
        .hint("a step without options of containers runs in it: srun --overlap COMMAND"));
    }
    let dir = job.supervisor_dir();
    let mode = if job.unnamed(name).is_some() { AttachMode::Exec } else { container.attach };
    let node = node_name();
    match mode {
        AttachMode::Exec => Live::connect(&dir, ControlRequest::Session)?.map(Some).ok_or_else(|| {
            Error::new(format!("container {name}: it is not running on node {node}"))
                .hint("without :exec a container that has ended is started with the files that it had")
        }),
        AttachMode::Create if dir.join(MADE).exists() => Err(is_there(name)),
        AttachMode::Create | AttachMode::Auto | AttachMode::NoExec => Ok(None),
    }
}

fn is_there(name: &EnvName) -> Error {
    Error::new(format!("container {name}: this job has one of that name on node {}", node_name()))
        .hint("without :create that one is used; or give the new one another name")
}

/// A container that is being made for a step, by who holds the lock of its supervisor's directory.
pub struct NewContainer<'a> {
    dir: &'a Path,
    /// The name, if there must not be one that is called so.
    to_create: Option<&'a EnvName>,
    /// Whether there was one before; nothing as long as none is being made.
    was_there: Cell<Option<bool>>,
}

impl<'a> NewContainer<'a> {
    /// For what a step asks for. Nothing is made yet.
    pub fn new(dir: &'a Path, job: &SlurmJob, container: &'a JobContainer) -> Self {
        let is_create = container.attach == AttachMode::Create && job.step.is_some();
        let to_create = container.name.as_ref().filter(|_| is_create);
        Self { dir, to_create, was_there: Cell::new(None) }
    }

    /// Begins to make it.
    pub fn begin(&self) -> Result<()> {
        let was_there = self.dir.join(MADE).exists();
        match self.to_create {
            // Another step has been quicker.
            Some(name) if was_there => return Err(is_there(name)),
            // One that could not be started has left it, and this one may be of another image.
            Some(_) => fs::remove_file(self.dir.join(IMAGE)).ignore_error("there need not be one"),
            None => {}
        }
        self.was_there.set(Some(was_there));
        write(self.dir, MADE, "")
    }

    /// Whoever is to have made it has; or it could not be made.
    pub fn end<T>(&self, started: Result<T>) -> Result<T> {
        match (&started, self.was_there.get(), self.to_create) {
            (Err(_), Some(false), _) => {
                fs::remove_file(self.dir.join(MADE)).ignore_error("a later step finds that nothing runs")
            }
            // It was there when this step came to it.
            (Ok(_), None, Some(name)) => return Err(is_there(name)),
            _ => {}
        }
        started
    }
}

/// Refuses a running container that has not the namespaces that the step wants it to have.
pub fn check_namespaces(job: &SlurmJob, container: &JobContainer) -> Result<()> {
    let has = started_with(&job.supervisor_dir())?.map(|with| with.unshare).unwrap_or_default();
    // Each has its own of this kind.
    let is_lacking =
        |wanted: &&UnsharedNamespace| **wanted != UnsharedNamespace::Ipc && !has.contains(wanted);
    let Some(lacking) = container.unshare.iter().find(is_lacking) else { return Ok(()) };
    let name = container.name.as_ref().map_or(container.environment.as_str(), |name| name.as_str());
    Err(Error::new(format!(
        "container {name}: it is running on node {}, and not in a separate {lacking} namespace",
        node_name()
    ))
    .hint("--container-unshare is for the step that starts a container"))
}

/// Which network and host name the tasks of a job's root have.
pub fn net_space(job: &SlurmJob) -> Result<NetSpace> {
    let with = started_with(&job.supervisor_dir())?;
    let has = |kind| with.as_ref().is_some_and(|with| with.unshare.contains(&kind));
    let net = if has(UnsharedNamespace::Net) { NetSpace::Its } else { NetSpace::Ours };
    Ok(net.named(has(UnsharedNamespace::Uts)))
}

/// Says in the first rank of an MPI job that its launcher or other nodes are out of reach, if the container's network is its own.
pub fn tell_own_network(job: &SlurmJob) -> Result<()> {
    if let Some(with) = started_with(&job.supervisor_dir())?.filter(has_own_network) {
        let container = with.environment.strip_prefix(PREFIX).unwrap_or(&with.environment);
        let hint = "srun without --container-unshare=net: MPI needs the host's network";
        own_network::tell_mpi(&format!("image {container}"), hint);
    }
    Ok(())
}

fn has_own_network(with: &JobContainer) -> bool {
    with.unshare.contains(&UnsharedNamespace::Net)
}

/// The step whose mounts this one is to see: the first that is in the container, unless this one wants none of it.
pub fn step_to_enter(job: &SlurmJob, container: &JobContainer) -> Result<Option<Live>> {
    let is_wanted = container.name.is_some() && job.step.is_some() && container.attach != AttachMode::NoExec;
    if !is_wanted {
        return Ok(None);
    }
    noted_step(job)
}

/// The noted step, if it is running.
fn noted_step(job: &SlurmJob) -> Result<Option<Live>> {
    let dir = job.supervisor_dir();
    let noted = match small_file::read_to_string(&dir.join(STEP)) {
        Ok(noted) => noted,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).context(|| dir.join(STEP).display().to_string()),
    };
    Live::connect(&job.user_dir().join(noted), ControlRequest::Status)
}

/// Notes that the others get this step's mounts, unless they get those of a running one. A step that wants nothing of the others gives them
/// nothing.
pub fn note_step(job: &SlurmJob, container: &JobContainer, step: &Path) -> Result<()> {
    let is_wanted = container.name.is_some() && container.attach != AttachMode::NoExec;
    if !is_wanted || noted_step(job)?.is_some() {
        return Ok(());
    }
    let name = step.file_name().unwrap_or_default().to_string_lossy();
    write(&job.supervisor_dir(), STEP, &name)
}

/// Says which words of a step count for nothing, as its container was running already.
pub fn tell_ignored(job: &SlurmJob, container: &JobContainer) -> Result<()> {
    let (Some(name), Some(with)) = (&container.name, started_with(&job.supervisor_dir())?) else {
        return Ok(());
    };
    let ignored = ignored(container, &with);
    if !ignored.is_empty() {
        output::note(&format!(
            "container {name}: it is running already on node {}; ignoring {}",
            node_name(),
            ignored.join(", ")
        ));
    }
    Ok(())
}

/// Whether mounts are asked for that a running container does not have just so.
fn are_ignored<T: PartialEq>(asked: &[T], has: &[T]) -> bool {
    !asked.is_empty() && asked != has
}

/// The words for mounts, and those for modules among them.
fn split(words: &[String]) -> (Vec<&String>, Vec<&String>) {
    words.iter().partition(|word| !is_of_modules(word))
}

fn ignored(asked: &JobContainer, has: &JobContainer) -> Vec<&'static str> {
    let [asked_mounts, has_mounts] = [asked, has].map(|with| split(&with.mounts));
    // What is so without a word is not compared: nobody has asked for a container that can be written to.
    let options = [
        (
            "--container-mounts",
            are_ignored(&asked_mounts.0, &has_mounts.0) || are_ignored(&asked.data, &has.data),
        ),
        ("--container-module, --container-mpi", are_ignored(&asked_mounts.1, &has_mounts.1)),
        ("--no-container-mount-home", !asked.home && has.home),
        ("--container-readonly", !asked.writable && has.writable),
    ];
    options.into_iter().filter(|(_, is_ignored)| *is_ignored).map(|(option, _)| option).collect()
}

#[cfg(test)]
mod tests {
    use skiff_spec::image::ImageId;
    use skiff_spec::job::{JobData, JobImage};

    use super::*;

    fn container(mounts: &[&str], home: bool, writable: bool) -> JobContainer {
        let line = r#"{"environment":"container:x","home":true,"root":false,"writable":true,"entrypoint":false,"depot":"/d"}"#;
        let Ok(JobSpec::Container(container)) = JobSpec::from_line(line) else { panic!("{line}") };
        let mounts = mounts.iter().map(|text| (*text).to_owned()).collect();
        JobContainer { mounts, home, writable, ..container }
    }

    #[test]
    fn what_a_running_container_has_counts() {
        let has = container(&["/a:/b"], true, true);
        for (asked, want) in [
            (container(&["/a:/b"], true, true), ""),
            (container(&[], true, true), ""),
            (container(&["/a:/c"], true, true), "--container-mounts"),
            (container(&[], false, false), "--no-container-mount-home --container-readonly"),
            (container(&["/a:/b", "module:cxi"], true, true), "--container-module, --container-mpi"),
        ] {
            assert_eq!(ignored(&asked, &has).join(" "), want);
        }
        let read_only = container(&["/a:/b"], true, false);
        assert_eq!(
            ignored(&container(&[], true, true), &read_only),
            [""; 0],
            "who says nothing is told nothing"
        );
    }

    #[test]
    fn a_squashfs_that_a_running_container_lacks_is_told() {
        let with = |target: &str| {
            let image = JobImage { id: ImageId([0; 32]), reference: "/a.sqsh".to_owned() };
            let data = vec![JobData { image, target: target.to_owned() }];
            JobContainer { data, ..container(&[], true, true) }
        };
        let without = container(&[], true, true);
        assert_eq!(ignored(&with("/b"), &without), ["--container-mounts"]);
        assert_eq!(ignored(&with("/b"), &with("/c")), ["--container-mounts"]);
        assert!(ignored(&with("/b"), &with("/b")).is_empty());
        assert!(ignored(&without, &with("/b")).is_empty());
    }

    #[test]
    fn what_a_container_was_started_with_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(started_with(dir.path()).ok(), Some(None));
        let asked = container(&["/a:/b:ro"], false, true);
        note_start(dir.path(), &asked).expect("a note");
        assert_eq!(started_with(dir.path()).ok(), Some(Some(asked)));
        fs::write(dir.path().join(STARTED_WITH), "{").expect("a file");
        assert!(started_with(dir.path()).is_err());
    }
}
