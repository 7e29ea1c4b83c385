//! In srun, sbatch and salloc, as the user: the environment becomes part of the job.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use skiff_slurm_names::{self as names, HOST_VIEW, Submission};

use crate::child::SkiffCommand;
use crate::ffi::{
    HookContext, Spank, c_string, error, info, own_variable, set_own_variable, unset_own_variable,
};
use crate::job::{job_is_here, switched_off};
use crate::plugin_args::PluginArgs;
use crate::{ffi, guard, multi_prog, option, variables};

/// Our exit status when nothing was submitted.
const FAILURE: i32 = 125;

/// Words for `skiff slurm submit` that nobody has typed: it is for a step of this job, or at the end of a job's script something is
/// to be done.
const STEP: &CStr = c"--step";
const SCRIPT: &CStr = c"--script";
/// The word for [`option::commit`].
const COMMIT: &CStr = c"--environment-commit";

/// What was asked for, as words for `skiff slurm submit`, and what that said: the parts of a heterogeneous job share one snapshot.
static SUBMITTED: Mutex<Option<(Vec<CString>, Submission)>> = Mutex::new(None);

/// The user's own variable that names an environment. What the first part of a heterogeneous job has is put in its place.
static BY_VARIABLE: OnceLock<Option<CString>> = OnceLock::new();

/// What the first part of a heterogeneous job asked for. What a job carries to its nodes is one for all its parts.
static FIRST: Mutex<Option<Vec<CString>>> = Mutex::new(None);

/// In srun, before it looks at its variables: a directory that only the environment has means nothing to slurmstepd, which would
/// complain on every node and go to `/tmp`. So it is sent there at once; the wrapper goes on to where `PWD` says.
pub fn leave_inner_directory() {
    let Ok(cwd) = std::env::current_dir() else { return };
    if own_variable(names::WORKING_DIR).is_none() && is_only_inside(&cwd) {
        set(names::WORKING_DIR, names::REFUGE);
        set("PWD", &cwd);
    }
}

/// In sbatch: warns of the one thing that cannot work there.
fn warn_of_inner_directory(context: HookContext) {
    if context == HookContext::Allocator
        && guard::is_sbatch()
        && let Ok(cwd) = std::env::current_dir()
        && is_only_inside(&cwd)
    {
        let cwd = cwd.display();
        info(&format!("{cwd} is only in the environment, and Slurm cannot write the job's output there"));
        info(
            "hint: sbatch --output=FILE (or --chdir=DIR) with a place that the nodes have, such as your home",
        );
    }
}

/// Whether we are inside, in a directory of the environment's own, not of a file system that is mounted in it.
fn is_only_inside(cwd: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|meta| meta.dev()).ok();
    let there = Path::new(HOST_VIEW).join(cwd.strip_prefix("/").unwrap_or(cwd));
    Path::new(HOST_VIEW).is_dir()
        && !there.exists()
        && device(cwd).is_some_and(|own| device(Path::new("/")) == Some(own))
}

/// Finds out which environment or container is meant, and puts the job spec into the job. Ends the process if that fails: a
/// plug-in listed as `optional` could otherwise not prevent the job from running on the bare nodes.
pub fn after_options(spank: &Spank, context: HookContext, args: &PluginArgs) {
    let mut asked = AskedRoot::of(args);
    if guard::is_sbatch() {
        option::end_part();
    }
    let is_off = is_none(&asked.words);
    // Where containers are switched off, the variables are for Pyxis itself.
    if args.containers && context == HookContext::Allocator && !asked.words.is_empty() && !is_off {
        variables::forget();
    }
    asked.add_commit(is_off);
    refuse_other_parts(&asked.words);
    if asked.words.is_empty() {
        return;
    }
    refuse_contradictions(&asked.words, context, is_off);
    if is_off {
        return switch_off();
    }
    if context == HookContext::Local && asked.is_of_job && is_in_job_with_environment() {
        return refuse_commit_of_step();
    }
    asked.add_context(context);
    match submission(&asked.words, &args.skiff) {
        Ok(submission) => carry(spank, context, &submission),
        Err(reason) => give_up(&format!("{}: {reason}", shown(&asked.words))),
    }
}

/// What was asked for, as words for `skiff slurm submit`.
struct AskedRoot {
    words: Vec<CString>,
    /// Whether it can only be the environment that the job has.
    is_of_job: bool,
    /// Whether it is an environment, or nothing.
    is_environment: bool,
}

impl AskedRoot {
    fn of(args: &PluginArgs) -> Self {
        let by_variable =
            BY_VARIABLE.get_or_init(|| own_variable(names::ENVIRONMENT).and_then(c_string)).clone();
        let typed = option::container();
        let mut words = match option::own_environment() {
            None if args.containers => variables::with_variables(typed),
            _ => typed,
        };
        let is_environment = words.is_empty();
        let is_of_job =
            is_environment && option::own_environment().is_none_or(|name| Some(name) == by_variable);
        let name = match is_environment {
            true => option::own_environment().or(by_variable).or_else(option::environment),
            // Whoever asks for both is told by `skiff`.
            false => option::own_environment(),
        };
        if let Some(name) = name {
            words.extend([c"--environment".to_owned(), name]);
        }
        Self { words, is_of_job, is_environment }
    }

    /// Adds the words that say whose changes are kept.
    fn add_commit(&mut self, is_off: bool) {
        self.words.extend(commit(self.is_environment && !self.words.is_empty() && !is_off));
    }

    /// Adds what follows from the command that it was typed for.
    fn add_context(&mut self, context: HookContext) {
        if context == HookContext::Local && (own_variable(names::JOB_ID).is_some() || option::names_job()) {
            self.words.push(STEP.to_owned());
        }
        let at_end = saves(&self.words) || self.words.iter().any(|word| word.as_c_str() == COMMIT);
        if at_end && context == HookContext::Allocator {
            self.words.push(SCRIPT.to_owned());
        }
    }
}

/// Refuses options that cannot be meant together, or not here.
fn refuse_contradictions(words: &[CString], context: HookContext, is_off: bool) {
    if option::has_slurms_container() && words.iter().any(is_of_container) {
        error(
            "--container is Slurm's own option, for an OCI bundle, and is given beside --container-image or another of Skiff's",
        );
        give_up("hint: leave out --container, or the --container-... options");
    }
    if saves(words) && context == HookContext::Allocator && !guard::is_sbatch() {
        give_up("--container-save is for srun and sbatch: salloc runs nothing in the job's container");
    }
    if is_off && words.len() > 2 {
        give_up(
            "--environment-commit keeps what a job changes in an environment, and --environment=none is given",
        );
    }
}

/// The job or step has no environment: the job's own, if there is one, must not come in its place.
fn switch_off() {
    unset_own_variable(names::JOB);
    set(names::JOB_CARRIER, names::NONE);
    set(names::ENVIRONMENT, names::NONE);
}

fn is_in_job_with_environment() -> bool {
    own_variable(names::JOB_ID).is_some() && job_has_environment()
}

/// A step of the job's own environment uses the job's snapshot, and keeps nothing by itself.
fn refuse_commit_of_step() {
    if option::commit().is_some() {
        give_up(
            "--environment-commit applies to the whole job: pass it to sbatch or salloc, or name another --environment",
        );
    }
}

/// Puts the job spec into the job.
fn carry(spank: &Spank, context: HookContext, Submission { spec, environment, depot }: &Submission) {
    warn_of_inner_directory(context);
    set(names::JOB, spec);
    set(names::JOB_CARRIER, spec);
    if !environment.is_empty() {
        set(names::ENVIRONMENT, environment);
    }
    if let Err(error) = guard::arm(depot) {
        give_up(&format!("cannot guard the script against nodes without Skiff: {error}"));
    }
    let taken = c_string(spec).is_some_and(|value| spank.set_job_control_variable(names::JOB, &value));
    if !taken {
        give_up("Slurm does not take the job spec for the job's prolog");
    }
}

fn saves(words: &[CString]) -> bool {
    words.iter().any(|word| word.to_bytes().starts_with(b"--container-save="))
}

fn is_of_container(word: &CString) -> bool {
    [&b"--container-"[..], b"--no-container-"].iter().any(|start| word.to_bytes().starts_with(start))
}

/// Refuses a part of a heterogeneous job that asks for something else than the first. One that asks for nothing gets what that one has.
fn refuse_other_parts(words: &[CString]) {
    let Ok(mut first) = FIRST.lock() else { return };
    let first = first.get_or_insert_with(|| words.to_vec());
    if words.is_empty() || first == words {
        return;
    }
    match first.is_empty() {
        true => {
            error("the first part of a heterogeneous job has no environment or image, and another part has")
        }
        false => error(&format!(
            "the parts of a heterogeneous job must have the same {}",
            differing(first, words).join(", ")
        )),
    }
    give_up(
        "hint: give each part a step of its own: srun --het-group=N --container-image=IMAGE (or --environment=NAME)",
    )
}

/// In what two parts differ, as a message names it.
fn differing(first: &[CString], other: &[CString]) -> Vec<String> {
    let names: Vec<String> = [(first, other), (other, first)]
        .into_iter()
        .flat_map(|(words, others)| words.iter().filter(|word| !others.contains(word)))
        .filter_map(|word| Some(word.to_str().ok()?.split('=').next()?.to_owned()))
        .filter(|word| word.starts_with("--"))
        .collect();
    let is_root = |name: &String| ["--environment", "--container-image"].contains(&&**name);
    match names.is_empty() || names.iter().any(is_root) {
        true => vec!["environment or image".into()],
        false => BTreeSet::from_iter(names).into_iter().collect(),
    }
}

/// The words that say whose changes are kept. What the variable says is for jobs in environments only.
fn commit(by_variable: bool) -> impl Iterator<Item = CString> {
    let variable = || own_variable(names::ENVIRONMENT_COMMIT).and_then(c_string).filter(|v| !v.is_empty());
    let nodes = option::commit().or_else(|| by_variable.then(variable).flatten());
    nodes.into_iter().flat_map(|nodes| [COMMIT.to_owned(), nodes])
}

/// Whether the words switch environments off.
fn is_none(words: &[CString]) -> bool {
    matches!(words, [_, name] if name.to_bytes() == names::NONE.as_bytes())
}

/// The words as an error message shows them.
fn shown(words: &[CString]) -> String {
    match words {
        [option, name, ..] if option.as_c_str() == c"--environment" => {
            format!("environment '{}'", name.to_string_lossy())
        }
        words => {
            let given = words.iter().filter(|word| ![STEP, SCRIPT].contains(&word.as_c_str()));
            given.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        }
    }
}

/// In srun, before the step starts: puts skiff in the command's place, so that on a node without the plug-in the
/// command fails ("/usr/bin/skiff: No such file or directory") instead of running on the bare node.
pub fn wrap_command(spank: &Spank, args: &PluginArgs) {
    // Never inherited from the task this srun may have been started in.
    unset_own_variable(names::ARGV0);
    unset_own_variable(names::ARGV0_CARRIER);
    unset_own_variable(names::WRAPPER_CARRIER);
    if !step_has_environment() {
        return;
    }
    let wrapped = match (spank.command(), c_string(&args.skiff)) {
        (Some(command), Some(skiff)) => wrap(&command, &skiff),
        _ => None,
    };
    if wrapped.is_none() {
        give_up("cannot put the environment's wrapper before the command");
    }
}

fn step_has_environment() -> bool {
    !switched_off(own_variable(names::JOB_CARRIER))
        && (option::environment().is_some() || job_has_environment())
}

/// Whether this srun runs in a job with an environment; a script may have cleared the variables.
fn job_has_environment() -> bool {
    let given = |name| own_variable(name).is_some_and(|value| value != names::NONE);
    [names::JOB, names::JOB_CARRIER].into_iter().any(given)
        || own_variable(names::JOB_ID).is_some_and(|id| job_is_here(&id))
}

fn wrap(command: &ffi::TaskCommand, skiff: &CStr) -> Option<()> {
    let first = command.word(0)?;
    let rules = multi_prog_rules(command, &first);
    let argv0 = if rules.is_some() { c"" } else { first.as_c_str() };
    set_own_variable(names::ARGV0, argv0);
    set_own_variable(names::ARGV0_CARRIER, argv0);
    set_own_variable(names::WRAPPER_CARRIER, skiff);
    if let Some(rules) = rules {
        let wrapped = CString::new(multi_prog::wrap(rules.as_bytes(), skiff.to_bytes())).ok()?;
        return command.replace(1, &wrapped).then_some(());
    }
    command.replace(0, skiff).then_some(())
}

/// With `--multi-prog`, srun has put the text of the file that is the first word into the second. There is no other
/// sign of that option.
fn multi_prog_rules(command: &ffi::TaskCommand, first: &CStr) -> Option<CString> {
    let second = (command.len() >= 2).then(|| command.word(1)).flatten()?;
    let file = std::fs::read(Path::new(std::ffi::OsStr::from_bytes(first.to_bytes()))).ok()?;
    (!file.is_empty() && file == second.to_bytes()).then_some(second)
}

fn submission(words: &[CString], skiff: &Path) -> Result<Submission, String> {
    let mut submitted = SUBMITTED.lock().map_err(|_| "the plug-in's state is damaged".to_owned())?;
    if let Some((_, submission)) = submitted.as_ref().filter(|(known, _)| known == words) {
        return Ok(submission.clone());
    }
    let texts: Result<Vec<&str>, _> = words.iter().map(|word| word.to_str()).collect();
    let texts = texts.map_err(|_| "it is not valid text".to_owned())?;
    let failed = |reason: &dyn std::fmt::Display| format!("cannot run {}: {reason}", skiff.display());
    let run = SkiffCommand::as_caller(skiff, &[&["slurm", "submit"], &texts[..]].concat())
        .map_err(|error| failed(&error))?;
    let outcome = run.run().map_err(|error| failed(&error))?;
    if !outcome.status.success() {
        return Err(format!("it could not be made part of the job ({})", outcome.status));
    }
    let answer = String::from_utf8(outcome.output).map_err(|error| failed(&error))?;
    let submission = Submission::from_lines(&answer).ok_or_else(|| {
        failed(
            &"its answer is not the one this plug-in expects (skiff and the plug-in must be of one version)",
        )
    })?;
    *submitted = Some((words.to_owned(), submission.clone()));
    Ok(submission)
}

/// Sets a variable that Slurm copies into the job. The values are paths and lines that came as text, so none has a zero inside.
fn set(name: &str, value: impl AsRef<OsStr>) {
    match c_string(value) {
        Some(value) => set_own_variable(name, &value),
        None => give_up(&format!("{name}: its value has a zero byte inside")),
    }
}

fn give_up(reason: &str) -> ! {
    error(reason);
    error("nothing was submitted");
    std::process::exit(FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_between_two_parts_is_named() {
        let parts = |line: &str| -> Vec<CString> { line.split(' ').filter_map(c_string).collect() };
        for (one, other, want) in [
            ("--container-image=a", "--container-image=b", "environment or image"),
            ("--environment dev", "--environment new", "environment or image"),
            (
                "--container-image=a --container-mounts=/a:/b",
                "--container-image=a --container-mounts=/a:/c",
                "--container-mounts",
            ),
            (
                "--container-image=a --container-readonly",
                "--container-image=a --container-workdir=/",
                "--container-readonly, --container-workdir",
            ),
        ] {
            assert_eq!(differing(&parts(one), &parts(other)).join(", "), want, "{one} : {other}");
        }
    }
}
