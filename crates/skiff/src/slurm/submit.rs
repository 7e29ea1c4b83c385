//! In srun, sbatch and salloc: from the name of an environment to what the job carries.

use skiff_sandbox::{Error, Result};
use skiff_spec::job::Descriptor;
use skiff_spec::name::EnvName;

use crate::context::Context;
use crate::env::take_snapshot;
use crate::environments::Environment;
use crate::output;

/// Prints the descriptor of a job that is to run in an environment.
pub fn submit(environment: &str) -> Result<()> {
    let name: EnvName = environment.parse().map_err(|e| Error::new(format!("{e}")))?;
    // Called from inside, the supervisor has taken the snapshot before this command began.
    if let Ok(line) = std::env::var("SKIFF_JOB")
        && let Ok(descriptor) = Descriptor::from_line(&line)
        && descriptor.environment == name
    {
        return output::line(&line);
    }
    let context = Context::load()?;
    let env = Environment::existing(&context, name)?;
    let taken = take_snapshot(&context, &env)?;
    for path in &taken.skipped {
        output::note(&format!("not in the snapshot for the job: /{path} (a socket or device)"));
    }
    let line = taken.descriptor.to_line().map_err(|e| Error::new(format!("job descriptor: {e}")))?;
    output::line(&line)
}
