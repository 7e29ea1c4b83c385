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
use std::path::{Path, PathBuf};

use crate::ffi::{Spank, c_string, own_variable, set_own_variable};
use crate::job::text_of;

/// In the depot; what it is called is what the user gets to read.
const TRAP: &str = "this-node-has-no-skiff-plug-in";

/// A variable that keeps a script from running.
struct Guard {
    name: &'static CStr,
    /// What it was before; always set together with the guard.
    saved: &'static CStr,
}

const LIBRARIES: Guard = Guard { name: c"LD_LIBRARY_PATH", saved: c"SLURM_SKIFF_LD_LIBRARY_PATH" };
const BASH: Guard = Guard { name: c"BASH_ENV", saved: c"SLURM_SKIFF_BASH_ENV" };
const BASH_VALUE: &CStr = c"$(echo \"skiff: error: node ${SLURMD_NODENAME} has no Skiff plug-in, and this job asked for environment '${SKIFF_ENVIRONMENT}'; its script was not run\" >&2; kill -KILL $$)";

/// In sbatch: arms the guards of a job with this descriptor. salloc, whose own shell stays on this node, is left alone.
pub fn arm(descriptor: &CStr) -> Result<(), Error> {
    if !is_sbatch() {
        return Ok(());
    }
    if let Some(trap) = depot(descriptor).map(|depot| depot.join(TRAP)) {
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
    let program = std::env::current_exe().unwrap_or_default();
    program.file_name() == Some(Path::new("sbatch").as_os_str())
}

/// On a node with the plug-in: puts the task's environment right.
pub fn disarm(spank: &Spank) -> Option<()> {
    LIBRARIES.disarm(spank).and_then(|()| BASH.disarm(spank))
}

/// The depot that a descriptor names; a colon would divide it for the loader.
fn depot(descriptor: &CStr) -> Option<PathBuf> {
    let path = text_of("depot", descriptor)?;
    (path.starts_with('/') && !path.contains([':', ';'])).then(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::depot;

    #[test]
    fn the_depot_is_found_where_it_can_be_used() {
        let cases = [
            (c"{\"environment\":\"a\",\"snapshot\":\"b\",\"depot\":\"/d e\"}", Some("/d e")),
            (c"{\"depot\":\"/d:e\"}", None),
            (c"{\"depot\":\"/d\\\"e\"}", None),
            (c"{\"depot\":\"d\"}", None),
            (c"{}", None),
        ];
        for (descriptor, path) in cases {
            assert_eq!(depot(descriptor).as_deref(), path.map(std::path::Path::new), "{descriptor:?}");
        }
    }
}
