//! On the nodes: in the prolog's and epilog's process (root), in slurmstepd, and in each task.

use std::ffi::{CStr, CString, OsStr, OsString, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use skiff_slurm_names as names;

use crate::child::SkiffCommand;
use crate::ffi::{
    STEP_BATCH, STEP_EXTERN, STEP_INTERACTIVE, Spank, SpankItem, c_string, error, info, own_variable,
};
use crate::job::{directory, job_is_here, switched_off};
use crate::plugin_args::PluginArgs;
use crate::{guard, option};

const PROLOG_LIMIT: Duration = Duration::from_secs(60);
/// A first deployment may have to fetch gigabytes. After ten minutes srun gives up.
const STEP_LIMIT: Duration = Duration::from_secs(600);
/// How long squeue may take, meanwhile nothing else is noticed.
const QUEUE_LIMIT: Duration = Duration::from_secs(5);
/// The states of jobs whose processes are to end, as squeue abbreviates them.
const OVER: [&str; 10] = ["BF", "CA", "CD", "CG", "DL", "F", "NF", "OOM", "PR", "TO"];
/// So much of what a command says gets into Slurm's log, in lines and in bytes.
const MOST_LINES: usize = 20;
const MOST_TOLD: usize = 4096;
/// What a job has changed may be kept first (`slurm.commit_seconds`, up to 240).
const EPILOG_LIMIT: Duration = Duration::from_secs(400);

/// The ways in which a PMIx server offers its data, one of them, and the variable by which its clients choose one.
const PMIX_WAYS: &str = "PMIX_GDS_MODULE";
const PMIX_FILES: &[u8] = b"shmem2";
const PMIX_WAY: &str = "PMIX_MCA_gds";

/// Set before the tasks are forked, so each of them knows.
static STEP_HAS_ENVIRONMENT: OnceLock<bool> = OnceLock::new();
/// The job and the step as they are called on this node. A batch script has no variable that says it is one, and all parts of a
/// heterogeneous job find the first one's number in theirs.
static STEP: OnceLock<String> = OnceLock::new();
/// Whether something else stands where srun had put the wrapper: with `--bcast`, srun of newer releases puts the copy's path there afterwards.
static WRAPPER_REPLACED: OnceLock<bool> = OnceLock::new();

/// Why the step could not begin.
static FAILURE: OnceLock<CString> = OnceLock::new();
/// No error is longer; a variable may not be.
const LONGEST_FAILURE: usize = 16 << 10;

/// Before the job's first process on this node.
pub fn prolog(spank: &Spank, args: &PluginArgs) {
    // Only a job submitted with an environment has it: all others cost nothing.
    if let (Some(spec), Some(job)) = (own_variable(names::PROLOG_JOB), Job::of(spank)) {
        run_for_job("prolog", Some(spec), &job, args, PROLOG_LIMIT);
    }
}

/// After the job's last process on this node. Steps may have brought an environment into a job that had none.
pub fn epilog(spank: &Spank, args: &PluginArgs) {
    let Some(job) = Job::of(spank) else { return };
    let spec = own_variable(names::PROLOG_JOB);
    let directory = directory(&job.id.to_string().into());
    if spec.is_some() || directory.is_some() {
        if let Some(Err(e)) = directory.map(|dir| std::fs::write(dir.join(names::JOB_ENDED), "")) {
            error(&format!("job {}: that it is over cannot be noted: {e}", job.id));
        }
        run_for_job("epilog", spec, &job, args, EPILOG_LIMIT);
    }
}

/// In slurmstepd, with the user's effective ids, before any task is forked.
pub fn begin_step(spank: &Spank, args: &PluginArgs) {
    let Some(job) = Job::of(spank) else { return };
    let step = spank.item(SpankItem::StepId).unwrap_or(STEP_EXTERN);
    let wanted = step != STEP_EXTERN && step_has_environment(spank, &job);
    if STEP_HAS_ENVIRONMENT.set(wanted).is_err() || !wanted {
        return;
    }
    // Plug-ins may put words of theirs before a task's command later.
    WRAPPER_REPLACED.get_or_init(|| wrapper_is_replaced(spank, args));
    let name = STEP.get_or_init(|| format!("{}.{}", job.id, step_name(step)));
    let mut variables = job.variables();
    variables.push((names::STEP, name.into()));
    variables.push((names::STEPD_PID, std::process::id().to_string().into()));
    if let Some(tasks) = spank.item(SpankItem::LocalTasks) {
        variables.push((names::STEP_TASKS, tasks.to_string().into()));
    }
    if let Some(node) = spank.item(SpankItem::Node) {
        variables.push((names::STEP_NODE, node.to_string().into()));
    }
    if let Some(name) = option::step_environment() {
        variables.push((names::STEP_ENVIRONMENT, OsString::from_vec(name.into_bytes())));
    }
    let spec = spec(spank);
    if let (Some(spec), None) = (&spec, directory(&job.id.to_string().into())) {
        // The step brings an environment into a job that had none, so its prolog made nothing ready.
        prepare_late(spec.clone(), &job, name, args);
    }
    variables.extend(spec.map(|value| (names::JOB, value)));
    // Not SLURMD_NODENAME: until Slurm has set up the tasks that is the node on which srun was typed.
    for name in ["HOME", "USER", "PWD", names::SUBMIT_DIR, names::JOB_NODES, names::STEP_NODES] {
        variables.extend(spank.variable(name).map(|value| (name, value)));
    }
    for name in names::GPUS.into_iter().chain(names::WANTED_GPUS) {
        variables.extend(spank.variable(name).map(|value| (name, value)));
    }
    let run = SkiffCommand::on_node(&args.skiff, &["slurm", "step-begin"], variables, STEP_LIMIT);
    let (id, configuration) = (job.id, configuration());
    let outcome = run.and_then(|run| {
        run.for_user(job.uid, job.gid).while_wanted(move || !is_over(id, &configuration)).run()
    });
    if let Some(why) = failure(&outcome) {
        // The wrapper of each task finds nothing prepared, and tells the user why.
        FAILURE.get_or_init(|| why);
    }
    report("step-begin", &job, outcome, info);
}

/// (With `--multi-prog` the wrapper is not the first word, and the original one is empty.)
fn wrapper_is_replaced(spank: &Spank, args: &PluginArgs) -> bool {
    let has_original = spank.variable(names::ARGV0_CARRIER).is_some_and(|argv0| !argv0.is_empty());
    let first = spank.command().and_then(|command| command.word(0));
    let put = spank.variable(names::WRAPPER_CARRIER);
    has_original && first.is_some_and(|first| is_other(&first, put.as_deref(), &args.skiff))
}

/// Whether a command's first word is not the one that srun has put there (`put`; an older plug-in there does not say which one).
fn is_other(first: &CStr, put: Option<&OsStr>, skiff: &Path) -> bool {
    first.to_bytes() != put.unwrap_or(skiff.as_os_str()).as_bytes()
}

/// What is said of a failure; nothing if there is none.
fn failure(outcome: &Result<crate::child::CommandResult, std::io::Error>) -> Option<CString> {
    let said = match outcome {
        Ok(outcome) if outcome.status.success() => return None,
        Ok(outcome) => {
            outcome.output.iter().copied().filter(|byte| *byte != 0).take(LONGEST_FAILURE).collect()
        }
        Err(error) => format!("the step's environment was not made: {error}").into_bytes(),
    };
    CString::new(said).ok()
}

fn prepare_late(spec: OsString, job: &Job, step: &str, args: &PluginArgs) {
    let mut variables = job.variables();
    // It is this step's environment, not the job's: `skiff` then does not write it down as such.
    variables.push((names::STEP, step.into()));
    variables.push((names::PROLOG_JOB, spec));
    let run = SkiffCommand::on_node(&args.skiff, &["slurm", "prolog"], variables, PROLOG_LIMIT);
    report("prolog", job, run.and_then(|run| run.for_root().run()), info);
}

/// In a task, as the user, before TaskProlog, limits and exec. Non-zero keeps Slurm from running the command.
pub fn begin_task(spank: &Spank, args: &PluginArgs) -> c_int {
    if guard::disarm(spank).is_none() {
        return refuse("cannot restore BASH_ENV");
    }
    if STEP_HAS_ENVIRONMENT.get() != Some(&true) {
        let told = switched_off(spank.variable(names::JOB_CARRIER));
        return if told && !spank.unset_variable(names::JOB_CARRIER) {
            refuse("cannot unset a variable")
        } else {
            0
        };
    }
    match set_task_variables(spank).and_then(|()| wrap(spank, args)) {
        Some(()) => 0,
        None => refuse("cannot put the environment's wrapper before the command"),
    }
}

fn set_task_variables(spank: &Spank) -> Option<()> {
    if let Some(value) = spec(spank).and_then(c_string) {
        set(spank, names::JOB, &value)?;
    }
    set(spank, names::STEP, &c_string(STEP.get()?)?)?;
    if let Some(why) = FAILURE.get() {
        set(spank, names::STEP_FAILURE, why)?;
    }
    leave_pmix_files(spank)?;
    match option::step_environment() {
        Some(name) => set(spank, names::STEP_ENVIRONMENT, &name),
        None => Some(()),
    }
}

/// PMIx 5 shares its data by files in the node's `/tmp`, where the job has another one. Without them it sends messages.
fn leave_pmix_files(spank: &Spank) -> Option<()> {
    let ways = spank.variable(PMIX_WAYS).map(OsString::into_encoded_bytes).unwrap_or_default();
    let has_files = ways.windows(PMIX_FILES.len()).any(|part| part == PMIX_FILES);
    match has_files && spank.variable(PMIX_WAY).is_none() {
        true => set(spank, PMIX_WAY, c"hash"),
        false => Some(()),
    }
}

fn wrap(spank: &Spank, args: &PluginArgs) -> Option<()> {
    if spank.variable(names::WRAPPER_CARRIER).is_some() {
        spank.unset_variable(names::WRAPPER_CARRIER).then_some(())?;
    }
    if let Some(argv0) = spank.variable(names::ARGV0_CARRIER) {
        spank.unset_variable(names::ARGV0_CARRIER).then_some(())?;
        if WRAPPER_REPLACED.get() != Some(&true) {
            // srun has put the wrapper before the command already.
            return set(spank, names::ARGV0, &c_string(argv0)?);
        }
    }
    let skiff = c_string(&args.skiff)?;
    if let Some(done) = spank.prepend(&[&skiff, c"slurm", c"task", c"--"]) {
        set(spank, names::ARGV0, c"")?;
        return done.then_some(());
    }
    let command = spank.command()?;
    set(spank, names::ARGV0, &command.word(0)?)?;
    command.replace(0, &skiff).then_some(())
}

fn set(spank: &Spank, name: &str, value: &CStr) -> Option<()> {
    spank.set_variable(name, value).then_some(())
}

/// What srun or sbatch said of the environment, if it reached this step.
fn spec(spank: &Spank) -> Option<OsString> {
    let given = |name| spank.variable(name).filter(|value| !value.is_empty());
    given(names::JOB_CARRIER).or_else(|| given(names::JOB))
}

/// `optional` plug-ins cannot make a task fail by their return value: the process ends here.
fn refuse(reason: &str) -> c_int {
    error(reason);
    // SAFETY: ends this task's process at once; nothing of it needs to be cleaned up.
    unsafe { libc::_exit(125) }
}

fn step_has_environment(spank: &Spank, job: &Job) -> bool {
    if [names::JOB_CARRIER, names::ENVIRONMENT].into_iter().any(|name| switched_off(spank.variable(name))) {
        return false;
    }
    match option::step_environment() {
        Some(name) => name.to_bytes() != names::NONE.as_bytes(),
        None => {
            // Asked for one, the step has one, whether what it needs to know of it came through or not.
            !option::container().is_empty()
                || spec(spank).is_some()
                || spank.variable(names::ARGV0_CARRIER).is_some()
                || job_is_here(&job.id.to_string().into())
        }
    }
}

fn step_name(step: u32) -> String {
    match step {
        STEP_BATCH => names::BATCH.into(),
        STEP_INTERACTIVE => names::INTERACTIVE.into(),
        number => number.to_string(),
    }
}

struct Job {
    id: u32,
    uid: u32,
    gid: u32,
}

impl Job {
    fn of(spank: &Spank) -> Option<Self> {
        Some(Self {
            id: spank.item(SpankItem::JobId)?,
            uid: spank.item(SpankItem::JobUid)?,
            gid: spank.item(SpankItem::JobGid)?,
        })
    }

    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let number = |number: u32| OsString::from(number.to_string());
        vec![
            (names::JOB_ID, number(self.id)),
            (names::JOB_UID, number(self.uid)),
            (names::JOB_GID, number(self.gid)),
        ]
    }
}

fn run_for_job(what: &'static str, spec: Option<OsString>, job: &Job, args: &PluginArgs, limit: Duration) {
    let mut variables = job.variables();
    variables.extend(spec.map(|value| (names::PROLOG_JOB, value)));
    variables.extend(configuration());
    let outcome =
        SkiffCommand::on_node(&args.skiff, &["slurm", what], variables, limit).and_then(SkiffCommand::run);
    report(what, job, outcome, error);
}

/// Without the latter, squeue would ask another cluster's controller where slurmd was told its configuration.
fn configuration() -> Vec<(&'static str, OsString)> {
    let value = |name| own_variable(name).map(|value| (name, value));
    ["SLURMD_NODENAME", "SLURM_CONF"].into_iter().filter_map(value).collect()
}

/// Whether Slurm says that a job has ended, or is about to. Nothing tells slurmstepd while a step has no process of its own. Root asks: what the user
/// runs could be stopped by them.
fn is_over(id: u32, configuration: &[(&'static str, OsString)]) -> bool {
    is_over_by((Path::new("squeue"), QUEUE_LIMIT), id, configuration)
}

/// The same by this program, which has so long to answer.
fn is_over_by(
    (program, limit): (&Path, Duration),
    id: u32,
    configuration: &[(&'static str, OsString)],
) -> bool {
    let words = ["--noheader", "--all", "--states=all", "--format=%A %t", &format!("--jobs={id}")];
    let run = SkiffCommand::on_node(program, &words, configuration.to_vec(), limit);
    // Where there is no answer, the limit of the step's begin remains.
    let said = run.and_then(SkiffCommand::with_answer).and_then(|run| run.for_root().run());
    said.is_ok_and(|said| says_over(&String::from_utf8_lossy(&said.output), id))
}

/// The same by squeue's lines. The number of an array's first job stands for all of the array.
fn says_over(said: &str, id: u32) -> bool {
    said.lines().any(|line| {
        let (number, state) = line.trim().split_once(' ').unwrap_or_default();
        number.parse() == Ok(id) && OVER.contains(&state)
    })
}

fn report(
    what: &str,
    job: &Job,
    outcome: Result<crate::child::CommandResult, std::io::Error>,
    say: fn(&str),
) {
    match outcome {
        Ok(outcome) => {
            for line in told(&outcome.output) {
                say(&format!("{what} of job {}: {line}", job.id));
            }
            if !outcome.status.success() {
                say(&format!("{what} of job {} failed ({})", job.id, outcome.status));
            }
        }
        Err(error) => say(&format!("{what} of job {} failed: {error}", job.id)),
    }
}

/// What of a command's output gets into Slurm's log: the command may be a process of the job's user, who writes whatever they like.
fn told(output: &[u8]) -> Vec<String> {
    let first = String::from_utf8_lossy(output.get(..MOST_TOLD).unwrap_or(output)).into_owned();
    let mut lines: Vec<String> = first.lines().take(MOST_LINES).map(String::from).collect();
    let length: usize = lines.iter().map(|line| line.len() + 1).sum();
    if output.len() > length {
        lines.push(format!("... ({} bytes in all)", output.len()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_is_what_srun_has_put_there_whatever_the_node_calls_it() {
        let here = Path::new("/usr/bin/skiff");
        for (first, put, want) in [
            (c"/usr/bin/skiff", None, false),
            (c"/tmp/slurm_bcast_7.0_skiff", None, true),
            (c"/opt/skiff/bin/skiff", Some("/opt/skiff/bin/skiff"), false),
            (c"/tmp/slurm_bcast_7.0_skiff", Some("/opt/skiff/bin/skiff"), true),
            (c"/usr/bin/skiff", Some("/usr/bin/skiff"), false),
        ] {
            assert_eq!(is_other(first, put.map(OsStr::new), here), want, "{first:?} of {put:?}");
        }
    }

    #[test]
    fn a_job_of_which_nobody_says_anything_goes_on() {
        let dir = std::env::temp_dir().join(format!("skiff-squeue-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let is_over = |script: &str, limit| {
            let program = dir.join("squeue");
            // By another process: what this one writes to nobody can execute while a child of another test still has it open.
            let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
            let mut shell = std::process::Command::new("sh");
            let written = shell.args(["-c", write]).arg(&program).arg(script).status().expect("a shell");
            assert!(written.success());
            is_over_by((&program, Duration::from_millis(limit)), 7, &[])
        };
        // Only root asks.
        // SAFETY: nothing is passed.
        let is_root = unsafe { libc::getuid() } == 0;
        assert_eq!(is_over("echo 7 CG", 60_000), is_root);
        assert!(!is_over("exit 1", 60_000));
        assert!(!is_over("echo 7 CG >&2; exit 1", 60_000));
        assert!(!is_over("exec sleep 60", 100));
        assert!(!is_over_by((&dir.join("missing"), Duration::from_secs(60)), 7, &[]));
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_job_is_over_that_ends_or_has_ended() {
        for (said, over) in [
            ("7 R\n", false),
            ("7 CG\n", true),
            ("  7 CA \n", true),
            ("8 CG\n7 R\n", false),
            ("7 S", false),
            ("7 CF", false),
            ("", false),
            ("slurm_load_jobs error: Invalid job id specified", false),
        ] {
            assert_eq!(says_over(said, 7), over, "{said:?}");
        }
    }

    #[test]
    fn the_log_gets_no_more_than_a_few_lines() {
        assert_eq!(told(b"one\ntwo\n"), ["one", "two"]);
        assert!(told(b"").is_empty());
        let lines = told("a\n".repeat(1000).as_bytes());
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (21, Some("... (2000 bytes in all)")));
        let long = told(&[b'a'; 1 << 20]);
        assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [4096, 26]);
    }
}
