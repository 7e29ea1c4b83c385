//! A job on this node: its number, its owner, its spec, its directory.

use std::path::{Path, PathBuf};

use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names::{self, JOB_SPEC_FILE, JOBS, TEMPORARY};
use skiff_spec::job::{JobContainer, JobSpec};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;

/// In a job's directory: a link to what belongs to the job's user. That lies on the disk of the cache: `/run` is memory, which
/// users must not be able to fill.
pub const USER: &str = "user";
/// The end of a name of a root's directory whose changes become a snapshot.
pub const KEPT: &str = ".kept";
/// In a job's directory: why the prolog failed, for the job's steps to tell.
pub const FAILED: &str = "failed";

/// One job.
pub struct SlurmJob {
    /// Id of the job.
    pub id: u32,
    /// What it runs in.
    pub spec: JobSpec,
    /// The step that has asked for that; nothing if the job was submitted with it.
    pub step: Option<String>,
}

impl SlurmJob {
    /// From the variables that the plug-in sets; nothing if the job has no environment.
    pub fn from_variables() -> Result<Option<Self>> {
        let step = JobStep::from_variable()?;
        let id = step.as_ref().map_or_else(|| number(names::JOB_ID), |step| Ok(step.job))?;
        let line = [names::PROLOG_JOB, names::JOB].iter().find_map(|name| std::env::var(name).ok());
        // `--export=NONE` keeps variables from the job; the prolog has written it down.
        let line = match line.filter(|l| !l.is_empty()) {
            Some(line) => line,
            None => match std::fs::read_to_string(dir(id).join(JOB_SPEC_FILE)) {
                Ok(line) => line,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e).context(|| format!("job {id}: its spec")),
            },
        };
        let spec = JobSpec::from_line(line.trim()).map_err(|e| Error::new(format!("job {id}: {e}")))?;
        let is_steps = matches!(&spec, JobSpec::Container(container) if container.step);
        Ok(Some(Self { id, spec, step: step.filter(|_| is_steps).map(|step| step.name) }))
    }

    /// The part of its directory that belongs to the user.
    pub fn user_dir(&self) -> PathBuf {
        dir(self.id).join(USER)
    }

    /// The step whose container without a name is meant by this one, as in Pyxis: `JOB.STEP`.
    pub fn unnamed<'a>(&self, name: &'a EnvName) -> Option<&'a str> {
        let (job, step) = name.as_str().split_once('.')?;
        let is_number = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && job == self.id.to_string()).then_some(step)
    }

    /// Whether a name means the container that the job was submitted with, by the name of its script or shell as a step: `JOB.batch`.
    pub fn is_own_container(&self, name: &EnvName) -> bool {
        let own = |step| format!("{}.{step}", self.id);
        [names::BATCH, names::INTERACTIVE].into_iter().any(|step| name.as_str() == own(step))
    }

    /// Where the supervisor of its root has its sockets.
    pub fn supervisor_dir(&self) -> PathBuf {
        let name = match (&self.spec, &self.step) {
            // What is kept of its changes lies elsewhere than what is not.
            (JobSpec::Snapshot(snapshot), _) => match &snapshot.commit {
                None => snapshot.snapshot[..16].to_owned(),
                Some(_) => format!("{}{KEPT}", &snapshot.snapshot[..16]),
            },
            (JobSpec::Container(JobContainer { name: Some(name), .. }), _) => match self.unnamed(name) {
                Some(step) => format!("container.{step}"),
                None => format!("named.{name}"),
            },
            (JobSpec::Container(_), Some(step)) => format!("container.{step}"),
            (JobSpec::Container(_), None) => {
                let line = self
                    .spec
                    .to_line()
                    .default_on_error("all text; and what could not become a line has not come here by one");
                blake3::hash(line.as_bytes()).to_hex()[..16].to_owned()
            }
        };
        self.user_dir().join(name)
    }
}

/// A step of a job, as both are called on this node.
pub struct JobStep {
    /// The job.
    pub job: u32,
    /// A number, `batch` or `interactive`.
    pub name: String,
}

impl JobStep {
    /// From the plug-in's `JOB.STEP`; nothing where there is no step.
    pub fn from_variable() -> Result<Option<Self>> {
        let Ok(text) = std::env::var(names::STEP) else { return Ok(None) };
        let step = text.split_once('.').and_then(|(job, name)| {
            let harmless = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
            harmless.then_some(Self { job: job.parse().ok()?, name: name.to_owned() })
        });
        step.map(Some).ok_or_else(|| Error::new(format!("{}: {text:?} is not a step", names::STEP)))
    }
}

/// A job's directory.
pub fn dir(id: u32) -> PathBuf {
    Path::new(JOBS).join(id.to_string())
}

/// The directories for temporary files that the prolog has made for a job; nothing where they are memory, or an earlier release has begun the job.
pub fn temporary(id: u32) -> Option<[PathBuf; 2]> {
    let paths = TEMPORARY.map(|(part, _)| dir(id).join(part));
    paths.iter().all(|path| path.is_symlink()).then_some(paths)
}

/// A variable that is a number.
pub fn number(name: &str) -> Result<u32> {
    let text = std::env::var(name).map_err(|_| Error::new(format!("{name} is not set")))?;
    text.parse().map_err(|_| Error::new(format!("{name}: {text:?} is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_without_a_name_are_called_by_their_steps() {
        let line = r#"{"environment":"container:x","home":true,"root":false,"writable":true,"entrypoint":false,"depot":"/d"}"#;
        let spec = JobSpec::from_line(line).expect("a spec");
        let job = SlurmJob { id: 12, spec, step: None };
        for (name, step, is_own) in [
            ("12.0", Some("0"), false),
            ("12.batch", None, true),
            ("12.interactive", None, true),
            ("13.batch", None, false),
            ("13.0", None, false),
            ("12.x", None, false),
            ("batch", None, false),
        ] {
            let name: EnvName = name.parse().expect("a name");
            assert_eq!((job.unnamed(&name), job.is_own_container(&name)), (step, is_own), "{name}");
        }
    }
}
