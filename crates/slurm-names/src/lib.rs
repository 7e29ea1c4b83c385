//! What Slurm's plug-in and `skiff slurm` call the things that they hand to each other: variables, files, words, and the answer of
//! `skiff slurm submit`.
//!
//! A crate of its own, as Slurm loads the plug-in into its daemons as root: it must hold no parser of documents, which `spec` brings along.
//! So what the plug-in has to know stands on a line of its own.

/// In a task, and in a submission from one: the spec of the job. The prolog and the epilog see it as [`PROLOG_JOB`].
pub const JOB: &str = "SKIFF_JOB";
/// The same on its way from srun and sbatch to a node, or [`NONE`]. `--export=NONE` leaves only variables that begin with `SLURM_`.
pub const JOB_CARRIER: &str = "SLURM_SKIFF_JOB";
/// The same in the prolog and the epilog: Slurm puts `SPANK_` before names that are meant for these.
pub const PROLOG_JOB: &str = "SPANK_SKIFF_JOB";
/// In a task that is `skiff` in the place of a command: the command's own first word. Empty where the words after
/// `skiff` name the command (`skiff slurm task -- COMMAND...`).
pub const ARGV0: &str = "SKIFF_TASK_ARGV0";
/// The same on its way to a node; where the plug-in has run, it is gone.
pub const ARGV0_CARRIER: &str = "SLURM_SKIFF_TASK_ARGV0";
/// On its way to a node: the word that srun has put before the command, or in its place. Login hosts and nodes may call `skiff` by different paths.
pub const WRAPPER_CARRIER: &str = "SLURM_SKIFF_TASK_WRAPPER";
/// The environment that submissions use when no option names one.
pub const ENVIRONMENT: &str = "SKIFF_ENVIRONMENT";
/// Whose changes in the environment are kept when no option says so: `rank0`, `all` or a node's name.
pub const ENVIRONMENT_COMMIT: &str = "SKIFF_ENVIRONMENT_COMMIT";
/// On a node: the value of the step's `--environment`, if it was given.
pub const STEP_ENVIRONMENT: &str = "SKIFF_STEP_ENVIRONMENT";
/// In a step: `JOB.STEP` as they are called on this node; the step is a number, [`BATCH`] or [`INTERACTIVE`].
pub const STEP: &str = "SKIFF_STEP";
/// For the beginning of a step: PID of its slurmstepd.
pub const STEPD_PID: &str = "SKIFF_STEPD_PID";
/// For the beginning of a step: how many tasks it has on this node.
pub const STEP_TASKS: &str = "SKIFF_STEP_TASKS";
/// In a task whose step could not begin: the error of `skiff slurm step-begin`.
pub const STEP_FAILURE: &str = "SKIFF_STEP_FAILURE";
/// Slurm's variables of a job: its number, user and group.
pub const JOB_ID: &str = "SLURM_JOB_ID";
/// See [`JOB_ID`].
pub const JOB_UID: &str = "SLURM_JOB_UID";
/// See [`JOB_ID`].
pub const JOB_GID: &str = "SLURM_JOB_GID";
/// Slurm's variable with the nodes of a job.
pub const JOB_NODES: &str = "SLURM_JOB_NODELIST";
/// For the beginning of a step: which of its nodes this one is.
pub const STEP_NODE: &str = "SKIFF_STEP_NODE";
/// Slurm's variable with the nodes of a step.
pub const STEP_NODES: &str = "SLURM_STEP_NODELIST";
/// Slurm's variable with the directory that a job was submitted from.
pub const SUBMIT_DIR: &str = "SLURM_SUBMIT_DIR";
/// What says of a job or a step that it has GPUs, as far as that is known before its tasks begin.
pub const GPUS: [&str; 8] = [
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
];
/// What users and the makers of images say of the GPUs that they want inside.
pub const WANTED_GPUS: [&str; 2] = ["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"];
/// Slurm's variable that tells srun in which directory its tasks start.
pub const WORKING_DIR: &str = "SLURM_WORKING_DIR";

/// The value that switches environments off.
pub const NONE: &str = "none";
/// A batch script as a step.
pub const BATCH: &str = "batch";
/// The shell of `salloc` as a step.
pub const INTERACTIVE: &str = "interactive";

/// Where an environment over the host's root shows what the host has, without the user's changes.
pub const HOST_VIEW: &str = "/run/skiff/host";

/// The directory in which each job with an environment has one on its node; root's.
pub const JOBS: &str = "/run/skiff/jobs";
/// In a job's directory: the job spec, if the job was submitted with an environment; root's.
pub const JOB_SPEC_FILE: &str = "descriptor";
/// In a job's directory: that its epilog has begun. Where that is killed or fails, others know by this that a run of the job is over; root's.
pub const JOB_ENDED: &str = "ended";
/// The directories of a job for temporary files, unless these are memory: the names of root's links to them in the job's directory (and of
/// themselves, where they lie), and where the job sees them.
pub const TEMPORARY: [(&str, &str); 2] = [("tmp", "/tmp"), ("vartmp", "/var/tmp")];
/// The directory in which a job's first tasks begin, where only its environment has that one.
pub const INNER_DIR: &str = "SLURM_SKIFF_INNER_DIR";
/// Where slurmstepd goes if it cannot go to the job's directory.
pub const REFUGE: &str = "/tmp";

/// Answer of `skiff slurm submit`: each field on a line of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// What the job carries: one line of JSON, which the plug-in hands on unread.
    pub spec: String,
    /// Name of the environment, or what stands in its place.
    pub environment: String,
    /// The user's directory on a file system that all nodes share.
    pub depot: String,
}

impl Submission {
    /// As three lines. A name or path that does not fit on one line becomes an empty line: the job can do without either.
    #[must_use]
    pub fn to_lines(&self) -> String {
        // JSON has none of these characters.
        let line = |text: &str| match text.contains(|c| c < ' ') {
            true => "\n".to_owned(),
            false => format!("{text}\n"),
        };
        [&self.spec, &self.environment, &self.depot].map(|text| line(text)).concat()
    }

    /// From exactly three lines, of which the first is not empty.
    #[must_use]
    pub fn from_lines(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n').map(str::to_owned);
        let (spec, environment, depot) = (lines.next()?, lines.next()?, lines.next()?);
        let is_whole = lines.next().is_none() && !spec.is_empty() && !text.contains('\0');
        is_whole.then_some(Self { spec, environment, depot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(environment: &str, depot: &str) -> Submission {
        Submission { spec: "{}".into(), environment: environment.into(), depot: depot.into() }
    }

    #[test]
    fn carriers_are_the_names_with_what_slurm_wants_before_them() {
        assert_eq!(JOB_CARRIER, format!("SLURM_{JOB}"));
        assert_eq!(PROLOG_JOB, format!("SPANK_{JOB}"));
        assert_eq!(ARGV0_CARRIER, format!("SLURM_{ARGV0}"));
    }

    #[test]
    fn answers_come_back_as_they_went() {
        for (given, come) in [
            (submission("dev", "/d e"), submission("dev", "/d e")),
            (submission("image:/a\\\"b", "/d"), submission("image:/a\\\"b", "/d")),
            (submission("image:/a\nb", "/d\n/e"), submission("", "")),
        ] {
            assert_eq!(Submission::from_lines(&given.to_lines()), Some(come), "{given:?}");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in ["", "{}\n", "{}\na\n/d", "{}\na\n/d\n\n", "\na\n/d\n", "{}\na\n/\0\n"] {
            assert_eq!(Submission::from_lines(text), None, "{text:?}");
        }
    }
}
