//! The variables in which the plug-in's parts and the `skiff` program talk to each other.
//!
//! What srun and sbatch hand over to the nodes goes under a name with `SLURM_` in front, because `--export=NONE` takes
//! all others away. On the node the plug-in puts the plain names into each task's environment.

use std::ffi::CStr;

/// The environment's descriptor: one line that `skiff slurm submit` printed. Seen by tasks and by srun in a job.
pub const JOB: &CStr = c"SKIFF_JOB";
/// The same on its way to a node, or `none`.
pub const JOB_CARRIER: &CStr = c"SLURM_SKIFF_JOB";
/// In a task that is `skiff` in the place of a command: the command's own first word; empty if the words after
/// `skiff` say it all (`skiff slurm task -- COMMAND...`).
pub const ARGV0: &CStr = c"SKIFF_TASK_ARGV0";
/// The same on its way to a node.
pub const ARGV0_CARRIER: &CStr = c"SLURM_SKIFF_TASK_ARGV0";
/// The environment that submissions use when no option says otherwise.
pub const ENVIRONMENT: &CStr = c"SKIFF_ENVIRONMENT";
/// On a node: the value of the step's `--environment`, if it was given.
pub const STEP_ENVIRONMENT: &CStr = c"SKIFF_STEP_ENVIRONMENT";
/// In a task: `JOB.STEP` as they are called on this node; the step is a number, `batch` or `interactive`.
pub const STEP: &CStr = c"SKIFF_STEP";
/// In a task whose step could not begin: what `skiff slurm step-begin` said.
pub const FAILURE: &CStr = c"SKIFF_STEP_FAILURE";
