//! In srun, sbatch and salloc: from the name of an environment or an image to what the job carries.

use std::path::Path;

use skiff_cli::{ContainerArgs, SubmitArgs};
use skiff_env::depot::trim_records_daily;
use skiff_env::history::SnapshotOrigin;
use skiff_env::take_snapshot::take_snapshot;
use skiff_env::{fan_out, job_snapshot, latest, root};
use skiff_output as output;
use skiff_plan::definition::with_context;
use skiff_runtime::environments::Environment;
use skiff_runtime::proxy;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{JOB, Submission};
use skiff_spec::job::{CommitNodes, JobCommit, JobSpec, Snapshot};
use skiff_spec::name::EnvName;
use skiff_spec::plan::inside;
use skiff_spec::revision::{AT, EnvRevision, Revision};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::{container_options, definition};

/// Prints what the plug-in needs for a job that is to run in an environment or a container; the exit code.
pub fn submit(submit: &SubmitArgs) -> Result<i32> {
    // The helper, which a snapshot needs, is of no use inside.
    if let Some(code) = proxy::call_outside(false)? {
        return Ok(code);
    }
    let commit = commit(submit)?;
    let load = || UserContext::load().map(UserContext::for_a_throw_away);
    let context = definition::word(submit).map(|_| load()).transpose()?;
    if let Some(context) = &context
        && let Some(container) = definition::container(context, submit)?
    {
        return describe(context, RequestedRoot::Container(&container, submit.step), commit).map(|()| 0);
    }
    match asked(submit)? {
        RequestedRoot::Environment(name) if Path::new(inside::PROGRAM).exists() => {
            of_this_job(&name, commit)?;
        }
        // The history may be on a file system that this node lacks, or be that of another environment with this name.
        RequestedRoot::Snapshot(name, revision) if Path::new(inside::PROGRAM).exists() => {
            return Err(Error::new(format!(
                "environment {name}{AT}{revision}: a snapshot cannot be named in a job"
            ))
            .hint("steps that name no environment run in the job's own snapshot; for another one submit from outside"));
        }
        asked => match &context {
            Some(context) => describe(context, asked, commit)?,
            None => describe(&load()?, asked, commit)?,
        },
    }
    Ok(0)
}

/// No more goes into one variable (MAX_ARG_STRLEN is 128 KiB), with its name.
const LONGEST: usize = (128 << 10) - 64;

/// What a job is to run in.
pub enum RequestedRoot<'a> {
    /// An environment of the user's.
    Environment(EnvName),
    /// A snapshot of one.
    Snapshot(EnvName, Revision),
    /// A container; whether it is for a step.
    Container(&'a ContainerArgs, bool),
    /// A container of an image about which nothing else is said; likewise.
    Image(&'a str, bool),
    /// What the job runs in that we are in.
    Same(Box<JobSpec>),
}

/// What the words say.
pub fn asked(submit: &SubmitArgs) -> Result<RequestedRoot<'_>> {
    match (submit.environment.as_deref(), submit.container.is_asked_for()) {
        (None, true) => Ok(RequestedRoot::Container(&submit.container, submit.step)),
        (Some(environment), true) => {
            Err(Error::new(format!("--environment={environment} and --container-... exclude each other"))
                .hint("an environment over an image is made by: skiff env create NAME --base image:IMAGE"))
        }
        (None, false) => Err(Error::new("neither --environment nor --container-image is given")),
        (Some(environment), false) => match environment.strip_prefix(skiff_store::PREFIX) {
            _ if !environment.contains(':') => parse(environment),
            // A job that is submitted from one in a container gets the same, with its mounts and all else.
            image => match (own(submit.step).filter(|own| own.environment() == environment), image) {
                (Some(own), _) => Ok(RequestedRoot::Same(Box::new(own))),
                (None, Some(image)) => Ok(RequestedRoot::Image(image, submit.step)),
                (None, None) => parse(environment),
            },
        },
    }
}

/// What the job runs in that we are in, for another one or for one of its steps.
fn own(step: bool) -> Option<JobSpec> {
    let mut own = JobSpec::from_line(&std::env::var(JOB).ok()?).ok()?;
    if let JobSpec::Container(container) = &mut own {
        container.step = step;
        // It is that one's end that was meant.
        container.save = None;
    }
    Some(own)
}

/// Takes a snapshot or finds the image, and prints what the job carries.
pub fn describe(context: &UserContext, asked: RequestedRoot<'_>, commit: Option<JobCommit>) -> Result<()> {
    let of = |asked: &ContainerArgs, step| {
        container_options::container(context, asked, step).map(JobSpec::Container)
    };
    // Before any registry is asked.
    match &asked {
        RequestedRoot::Container(..) if commit.is_some() => return Err(not_of_containers("a container")),
        RequestedRoot::Image(image, _) if commit.is_some() => return Err(not_of_containers(image)),
        _ => {}
    }
    let spec = match asked {
        RequestedRoot::Environment(name) => {
            let environment = Environment::existing(context, name.clone()).map_err(|e| {
                let nearest = with_context(context, |all| all.nearest(name.as_str()));
                let meant =
                    nearest.map_or_else(String::new, |near| format!("the definition {near} may be meant; "));
                let hint = format!(
                    "{meant}{}; or write a definition {name}.toml (EDF_PATH, ~/.edf): skiff edf list",
                    e.hint
                );
                Error { hint, ..e }
            })?;
            root::catch_up(context, &environment)?;
            let taken = take_snapshot(context, &environment, &SnapshotOrigin::Job.into())?;
            for path in &taken.skipped {
                output::note(&format!("not in the snapshot for the job: /{path} (a socket or device)"));
            }
            JobSpec::Snapshot(taken.descriptor)
        }
        RequestedRoot::Snapshot(name, revision) => {
            JobSpec::Snapshot(job_snapshot::for_job(context, name, &revision)?)
        }
        RequestedRoot::Container(asked, step) => of(asked, step)?,
        RequestedRoot::Image(image, step) => {
            of(&ContainerArgs { image: Some(image.into()), ..ContainerArgs::default() }, step)?
        }
        RequestedRoot::Same(own) => *own,
    };
    let depot = match &spec {
        JobSpec::Snapshot(snapshot) => Some(&snapshot.depot),
        JobSpec::Container(container) => container.image.as_ref().map(|_| &container.depot),
    };
    if let Some(depot) = depot {
        fan_out::make_secret(Path::new(depot)).ignore_error("without it each node asks for itself");
        trim_records_daily(Path::new(depot));
    }
    print(with_commit(spec, commit)?)
}

/// Whose changes are kept, if any are.
fn commit(submit: &SubmitArgs) -> Result<Option<JobCommit>> {
    let Some(text) = &submit.environment_commit else { return Ok(None) };
    let nodes = text.parse::<CommitNodes>().map_err(|e| {
        Error::new(format!("--environment-commit: {e}")).hint(
            "rank0 keeps the changes of the job's first node, all those of each, a name those of that node",
        )
    })?;
    let (step, script) = (submit.step, submit.container.script);
    if submit.environment.is_none() && !submit.container.is_asked_for() {
        return Err(Error::new("--environment-commit: the job has no environment")
            .hint("name one with --environment=NAME, or submit from inside one"));
    }
    Ok(Some(JobCommit { nodes, step, script }))
}

fn not_of_containers(what: &str) -> Error {
    Error::new(format!("--environment-commit: {what} is not an environment")).hint(
        "--container-save=FILE keeps a container's files; or make an environment over the image: skiff env create NAME --base image:IMAGE",
    )
}

/// The spec of a job or step about which this is said: what its own job was told is not for it.
fn with_commit(spec: JobSpec, commit: Option<JobCommit>) -> Result<JobSpec> {
    match spec {
        JobSpec::Snapshot(snapshot) => Ok(JobSpec::Snapshot(Snapshot { commit, ..snapshot })),
        JobSpec::Container(container) if commit.is_some() => Err(not_of_containers(&container.environment)),
        container => Ok(container),
    }
}

/// In a job there is the snapshot that it runs in, and for others the last that was taken.
fn of_this_job(name: &EnvName, commit: Option<JobCommit>) -> Result<()> {
    let outside = || Error::new(format!("environment {name}: environments cannot be used from inside one"));
    let line = std::env::var(JOB).map_err(|_| outside().hint("submit from outside"))?;
    let own = match JobSpec::from_line(&line).map_err(Error::new)? {
        JobSpec::Snapshot(own) => own,
        // Its commands run on the host, where all are to be had.
        JobSpec::Container(_) => return Err(outside()),
    };
    if own.environment == *name {
        return print(with_commit(JobSpec::Snapshot(own), commit)?);
    }
    let found = latest::get(Path::new(&own.depot), name)?.ok_or_else(|| {
        Error::new(format!("environment {name}: no snapshot of it was ever taken, and in a job none can be"))
            .hint(format!("on the login node: skiff env snapshot {name}"))
    })?;
    print(with_commit(found, commit)?)
}

fn print(spec: JobSpec) -> Result<()> {
    let line = spec.to_line().map_err(|e| Error::new(format!("job spec: {e}")))?;
    if line.len() > LONGEST {
        return Err(Error::new(format!(
            "what the job has to carry is {} bytes long, and a variable of a program has {LONGEST} at most",
            line.len()
        ))
        .hint("fewer or shorter variables in [env] of its definition, or fewer mounts"));
    }
    let (environment, depot) = (spec.environment().to_owned(), spec.depot().to_owned());
    output::bytes(Submission { spec: line, environment, depot }.to_lines().as_bytes())
}

fn parse<'a>(environment: &str) -> Result<RequestedRoot<'a>> {
    let EnvRevision { name, revision } = environment.parse().map_err(|e| Error::new(format!("{e}")))?;
    let name = name.ok_or_else(|| {
        Error::new(format!("{environment:?} does not name an environment"))
            .hint(format!("name it in front: --environment=NAME{environment}"))
    })?;
    Ok(match revision {
        None => RequestedRoot::Environment(name),
        Some(revision) => RequestedRoot::Snapshot(name, revision),
    })
}
