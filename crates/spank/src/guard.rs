//! Keeps a batch script from running on a bare node.
//!
//! Slurm starts a job's script on a node whose plugstack.conf lacks this plug-in, and tells nobody. srun puts the
//! wrapper before the commands of steps, but nothing in sbatch can do so for a script. One thing does reach the node:
//! the job's environment. On a node with the plug-in it is put right before the script starts; on another one
//!
//! - the dynamic loader of whatever runs the script finds a C library that is none, in a directory whose name says why;
//! - bash, should that directory not be there, expands `BASH_ENV`, in which a command substitution ends it.
//!
//! Not guarded are scripts submitted with `--export=NONE` or a list, and where the depot is not visible those for other
//! interpreters.

use std::ffi::CStr;
use std::fs;
use std::io::Error;
use std::path::Path;

use crate::ffi::{Spank, c_string, own_variable, set_own_variable};

/// In the depot; what it is called is what the user gets to read.
const TRAP: &str = "this-node-has-no-skiff-plug-in";

/// A variable that keeps a script from running.
struct Guard {
    name: &'static str,
    /// What it was before; always set together with the guard.
    saved: &'static str,
}

const LIBRARIES: Guard = Guard { name: "LD_LIBRARY_PATH", saved: "SLURM_SKIFF_LD_LIBRARY_PATH" };
const BASH: Guard = Guard { name: "BASH_ENV", saved: "SLURM_SKIFF_BASH_ENV" };
const BASH_VALUE: &CStr = c"$(echo \"skiff: error: node ${SLURMD_NODENAME} has no Skiff plug-in, and this job asked for environment '${SKIFF_ENVIRONMENT}'; its script was not run\" >&2; kill -KILL $$)";

/// In sbatch: arms the guards of a job whose user has this depot. salloc, whose own shell stays on this node, is left alone.
pub fn arm(depot: &str) -> Result<(), Error> {
    if !is_sbatch() {
        return Ok(());
    }
    if let Some(trap) = usable(depot).map(|depot| depot.join(TRAP)) {
        let library = trap.join("libc.so.6");
        if !library.exists() {
            fs::create_dir_all(&trap)?;
            fs::write(&library, "")?;
        }
        LIBRARIES.arm(&c_string(&trap).unwrap_or_default());
    }
    BASH.arm(BASH_VALUE);
    Ok(())
}

impl Guard {
    fn arm(&self, value: &CStr) {
        let before = own_variable(self.name).and_then(c_string).unwrap_or_default();
        // A second component of a heterogeneous job finds the guard in place already.
        if before.as_c_str() != value {
            set_own_variable(self.saved, &before);
            set_own_variable(self.name, value);
        }
    }

    fn disarm(&self, spank: &Spank) -> Option<()> {
        let Some(before) = spank.variable(self.saved) else { return Some(()) };
        // With `--export=NONE` the guard has not come here, nor shall what was before it.
        let here = spank.variable(self.name).is_some();
        let restored = match c_string(before)? {
            _ if !here => true,
            before if before.is_empty() => spank.unset_variable(self.name),
            before => spank.set_variable(self.name, &before),
        };
        (restored && spank.unset_variable(self.saved)).then_some(())
    }
}

/// Whether this process is sbatch; Slurm tells it from salloc nowhere else.
pub fn is_sbatch() -> bool {
    let program = std::env::current_exe();
    program.is_ok_and(|program| program.file_name() == Some(Path::new("sbatch").as_os_str()))
}

/// On a node with the plug-in: puts the task's environment right.
pub fn disarm(spank: &Spank) -> Option<()> {
    LIBRARIES.disarm(spank).and_then(|()| BASH.disarm(spank))
}

/// A depot that the loader can be told of: it would divide the path at a colon.
fn usable(depot: &str) -> Option<&Path> {
    (depot.starts_with('/') && !depot.contains([':', ';'])).then(|| Path::new(depot))
}

#[cfg(test)]
mod tests {
    use super::usable;

    #[test]
    fn the_depot_is_used_where_the_loader_can_be_told_of_it() {
        for (depot, is_usable) in
            [("/d e", true), ("/d\"e", true), ("/d:e", false), ("d", false), ("", false)]
        {
            assert_eq!(usable(depot).is_some(), is_usable, "{depot:?}");
        }
    }
}
