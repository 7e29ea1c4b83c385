//! A batch job whose environment could not be made on its node begins anew, where the configuration says so: a depot that does not answer, or a disk
//! that is full, may be this node's or this minute's trouble.

use std::process::{Command, Stdio};

use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names;
use skiff_user::context::UserContext;

use crate::job::JobStep;

/// How often Slurm has begun the job anew (sbatch(1)); not set at first.
const RESTARTS: &str = "SLURM_RESTART_COUNT";

/// Puts the job of a batch script back into the queue, if it may begin so often; says so in the fault of which this is the end.
pub fn after(context: &UserContext, fault: Error) -> Error {
    let step = JobStep::from_variable().ok().flatten().filter(|step| step.name == names::BATCH);
    let Some(JobStep { job, .. }) = step else { return fault };
    let restarts = std::env::var(RESTARTS).ok();
    let Some(number) = next(restarts.as_deref(), context.config.slurm.requeue) else { return fault };
    match requeue(job) {
        Ok(()) => {
            let (Error { message, .. }, most) = (&fault, context.config.slurm.requeue);
            let told = format!("{message}; job {job} goes back into the queue ({number} of {most} times)");
            Error { message: told, ..fault }
        }
        Err(e) => {
            output::complain(&e);
            fault
        }
    }
}

/// Which time it would be, if it may be.
fn next(restarts: Option<&str>, most: u32) -> Option<u32> {
    // What is not understood is no reason to go on for ever.
    let restarts: u32 = restarts.map_or(Some(0), |text| text.trim().parse().ok())?;
    (restarts < most).then(|| restarts + 1)
}

fn requeue(job: u32) -> Result<()> {
    let failed = |why: &str| Error::new(format!("job {job}: not put back into the queue: {why}"));
    let mut command = Command::new("scontrol");
    // The cluster that this node belongs to.
    command.env_remove("SLURM_CLUSTERS").args(["requeue", &job.to_string()]);
    let out = command.stdin(Stdio::null()).output().map_err(|e| failed(&format!("scontrol: {e}")))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&out.stderr).trim())
            .hint("`slurm.requeue` in the configuration asks for it; Slurm allows it for jobs submitted with --requeue, or where JobRequeue=1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_begins_anew_as_often_as_is_said() {
        for (restarts, most, number) in [
            (None, 0, None),
            (None, 1, Some(1)),
            (Some("1"), 1, None),
            (Some("1"), 3, Some(2)),
            (Some("3"), 3, None),
            (Some("many"), 3, None),
            (Some("4294967295"), u32::MAX, None),
        ] {
            assert_eq!(next(restarts, most), number, "{restarts:?} of {most}");
        }
    }
}
