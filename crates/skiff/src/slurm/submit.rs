//! In srun, sbatch and salloc: from the name of an environment to what the job carries.

use std::path::Path;

use skiff_sandbox::{Error, Result};
use skiff_spec::job::Descriptor;
use skiff_spec::name::EnvName;
use skiff_spec::plan::inside;

use crate::context::Context;
use crate::env::{latest, take_snapshot};
use crate::environments::Environment;
use crate::{output, proxy};

/// Prints the descriptor of a job that is to run in an environment; the exit code.
pub fn submit(environment: &str) -> Result<i32> {
    // The helper, which a snapshot needs, is of no use inside.
    if let Some(code) = proxy::ask_outside()? {
        return Ok(code);
    }
    if Path::new(inside::PROGRAM).exists() {
        return of_this_job(environment).map(|()| 0);
    }
    describe(&Context::load()?, environment).map(|()| 0)
}

/// Takes a snapshot and prints what the job carries.
pub fn describe(context: &Context, environment: &str) -> Result<()> {
    let env = Environment::existing(context, parse(environment)?)?;
    let taken = take_snapshot(context, &env)?;
    for path in &taken.skipped {
        output::note(&format!("not in the snapshot for the job: /{path} (a socket or device)"));
    }
    let line = taken.descriptor.to_line().map_err(|e| Error::new(format!("job descriptor: {e}")))?;
    output::line(&line)
}

/// In a job there is the snapshot that it runs in, and for others the last that was taken.
fn of_this_job(environment: &str) -> Result<()> {
    let name = parse(environment)?;
    let outside =
        || Error::new(format!("environment {name}: there are no environments to be had in this one"));
    let line = std::env::var("SKIFF_JOB").map_err(|_| outside().hint("submit from outside"))?;
    let own = Descriptor::from_line(&line).map_err(Error::new)?;
    if own.environment == name {
        return output::line(&line);
    }
    let found = latest::get(Path::new(&own.depot), &name)?.ok_or_else(|| {
        Error::new(format!("environment {name}: no snapshot of it was ever taken, and in a job none can be"))
            .hint(format!("on the login node: skiff env snapshot {name}"))
    })?;
    output::line(&found.to_line().map_err(|e| Error::new(format!("job descriptor: {e}")))?)
}

fn parse(environment: &str) -> Result<EnvName> {
    environment.parse().map_err(|e| Error::new(format!("{e}")))
}
