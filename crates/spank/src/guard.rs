//! Keeps a batch script from running on a bare node.
//!
//! Slurm starts a job's script on a node whose plugstack.conf lacks this plug-in, and tells nobody. srun puts the
//! wrapper before the commands of steps, but nothing in sbatch can do so for a script. One thing does reach the node:
//! the job's environment. bash expands `BASH_ENV` before it runs a script, and a command substitution in it is run;
//! on a node with the plug-in, the value is put right before the script starts. Scripts for other interpreters, and
//! those submitted with `--export=NONE`, are not guarded.

use std::ffi::CStr;
use std::path::Path;

use crate::ffi::{Spank, c_string, own_variable, set_own_variable};

const BASH_ENV: &CStr = c"BASH_ENV";
/// What `BASH_ENV` was before; always set together with the guard.
const SAVED: &CStr = c"SLURM_SKIFF_BASH_ENV";
const GUARD: &CStr = c"$(echo \"skiff: error: node ${SLURMD_NODENAME} has no Skiff plug-in, and this job asked for environment '${SKIFF_ENVIRONMENT}'; its script was not run\" >&2; kill -KILL $$)";

/// In sbatch: arms the guard. salloc, whose own shell stays on this node, is left alone.
pub fn arm() {
    if !is_sbatch() {
        return;
    }
    let before = own_variable(BASH_ENV).and_then(c_string).unwrap_or_default();
    // A second component of a heterogeneous job finds the guard in place already.
    if before.as_c_str() != GUARD {
        set_own_variable(SAVED, &before);
        set_own_variable(BASH_ENV, GUARD);
    }
}

/// Whether this process is sbatch; Slurm tells it from salloc nowhere else.
pub fn is_sbatch() -> bool {
    let program = std::env::current_exe().unwrap_or_default();
    program.file_name() == Some(Path::new("sbatch").as_os_str())
}

/// On a node with the plug-in: puts the task's environment right.
pub fn disarm(spank: &Spank) -> Option<()> {
    let Some(before) = spank.variable(SAVED) else { return Some(()) };
    let restored = if before.is_empty() {
        spank.unset_variable(BASH_ENV)
    } else {
        spank.set_variable(BASH_ENV, &c_string(before)?)
    };
    (restored && spank.unset_variable(SAVED)).then_some(())
}
