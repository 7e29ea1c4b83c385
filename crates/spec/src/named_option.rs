//! The options that messages name. Users of Slurm's commands type other words than those of `skiff run`, some of which mean something else to
//! srun (`-v`, `-w`). Whoever reports a fault names the option, and the process knows whose words its user types.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user of this process has typed the options of srun, sbatch or salloc.
static IS_SLURM: AtomicBool = AtomicBool::new(false);

/// Has the messages of this process, and of those that it forks, name the options of Slurm's commands.
pub fn name_options_of_slurm() {
    IS_SLURM.store(true, Ordering::Relaxed);
}

/// An option that a message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedOption {
    /// The MPI that is used: of the host or the image.
    Mpi,
    /// A mount.
    Mount,
    /// Leaves out the home.
    NoHome,
    /// Where the command begins.
    WorkingDir,
}

impl NamedOption {
    /// The option with its value.
    #[must_use]
    pub fn with(self, value: &str) -> String {
        self.spelled(Some(value), IS_SLURM.load(Ordering::Relaxed))
    }

    fn spelled(self, value: Option<&str>, is_slurm: bool) -> String {
        let (of_skiff, of_slurm) = match self {
            Self::Mpi => ("--mpi", "--container-mpi"),
            Self::Mount => ("-v", "--container-mounts"),
            Self::NoHome => ("--no-home", "--no-container-mount-home"),
            Self::WorkingDir => ("-w", "--container-workdir"),
        };
        // An option of a plug-in's takes its value behind `=` only.
        let (name, between) = if is_slurm { (of_slurm, "=") } else { (of_skiff, " ") };
        value.map_or_else(|| name.to_owned(), |value| [name, between, value].concat())
    }
}

impl fmt::Display for NamedOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelled(None, IS_SLURM.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_that_the_user_types() {
        for (option, value, of_skiff, of_slurm) in [
            (NamedOption::Mpi, Some("host:full"), "--mpi host:full", "--container-mpi=host:full"),
            (NamedOption::Mount, Some("DIR"), "-v DIR", "--container-mounts=DIR"),
            (NamedOption::NoHome, None, "--no-home", "--no-container-mount-home"),
            (NamedOption::WorkingDir, Some("DIR"), "-w DIR", "--container-workdir=DIR"),
        ] {
            assert_eq!(option.spelled(value, false), of_skiff);
            assert_eq!(option.spelled(value, true), of_slurm);
        }
        assert_eq!(NamedOption::Mpi.with("host"), "--mpi host", "without a word it is the user of skiff");
    }
}
