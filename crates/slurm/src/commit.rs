//! `--environment-commit`: on the nodes that it names, what was changed in a job's root becomes a snapshot.
//!
//! Only tasks know which node is the job's first. So the first one notes in the root's directory that its changes are to be kept ([`begin`]).
//! The last task of the job's script, or of the srun that the job is, sees to it ([`at_end_of_step`]) and can tell the user. Of all other
//! jobs, and where tasks were killed, the supervisor of the root does so when the epilog ends it ([`at_end`]): by then nothing runs in there
//! any more, and what fails is noted in the depot.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, statat};
use rustix::process::getpid;
use skiff_env::commit::{JobRoot, commit, forget_upper, has_upper, note_failure};
use skiff_env::deploy::node_name;
use skiff_env::history::short;
use skiff_env::job_records::{CommitRecord, JobPlace};
use skiff_env::latest;
use skiff_launch::manager::slurm_hosts;
use skiff_output as output;
use skiff_runtime::control::Live;
use skiff_runtime::lock::try_lock;
use skiff_sandbox::session::CommandExit;
use skiff_spec::array_task::ArrayTask;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{CommitNodes, JobCommit, JobSpec, Snapshot, names};
use skiff_sys::{IgnoreError, lock, small_file};
use skiff_user::context::UserContext;

use crate::job::{self, JobStep, KEPT, SlurmJob, USER};

mod result;

pub use result::add_result;
use result::{CommitResult, is_done, mark_done, next_earlier, set_aside};

/// In the directory of a root whose changes are to be kept: where that is, and of which job.
const HERE: &str = "commit-here";
/// In the same directory: what is to be told to the user of roots of the job that have ended by themselves.
const UNTOLD: &str = "commit-untold";
/// Longest such note, in bytes.
const LONGEST: u64 = 64 << 10;

/// A root on this node whose changes are to be kept.
struct KeptRoot {
    place: JobPlace,
    /// How many nodes the job has; 0 if that is not known.
    node_count: u32,
    array_task: Option<ArrayTask>,
    snapshot: Snapshot,
    commit: JobCommit,
}

/// Whether the root in this directory is one whose changes may have to be kept.
pub fn is_kept(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name.as_bytes().ends_with(KEPT.as_bytes()))
}

impl KeptRoot {
    /// Reads what a task has noted in a root's directory, if one has.
    fn of(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(HERE);
        let shown = || file.display().to_string();
        let bytes = match small_file::read_below(CWD, &file, LONGEST) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.context(shown)?,
        };
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(&text).map(Some).ok_or_else(|| Error::new(format!("{}: invalid record", shown())))
    }

    /// The same, unless its changes were kept, or that has failed and was told.
    fn awaited(dir: &Path) -> Result<Option<Self>> {
        Ok(Self::of(dir)?.filter(|_| !is_done(dir)))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (job, node, root, count) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
        let JobSpec::Snapshot(snapshot) = JobSpec::from_line(lines.next()?).ok()? else { return None };
        let place = JobPlace { job: job.parse().ok()?, node: node.into(), root: root.into() };
        let commit = snapshot.commit.clone()?;
        // A job that an older Skiff has begun does not say.
        let array_task = lines.next().and_then(|text| String::from(text).try_into().ok());
        Some(Self { place, node_count: count.parse().ok()?, array_task, commit, snapshot })
    }

    fn to_text(&self) -> Result<String> {
        let JobPlace { job, node, root } = &self.place;
        let line = JobSpec::Snapshot(self.snapshot.clone()).to_line();
        let line = line.map_err(|e| Error::new(format!("job spec: {e}")))?;
        let array_task = self.array_task.map(|task| format!("{task}\n")).unwrap_or_default();
        Ok(format!("{job}\n{node}\n{root}\n{}\n{line}\n{array_task}", self.node_count))
    }

    fn root<'a>(&'a self, dir: &'a Path) -> JobRoot<'a> {
        let Self { array_task, node_count: of, .. } = *self;
        JobRoot { place: self.place.clone(), dir, array_task, snapshot: &self.snapshot, of }
    }

    /// Whether the depot knows an environment of this name. It is at home, perhaps on another file system: so a depot that cannot be read
    /// is no reason to doubt it.
    fn is_known(&self) -> bool {
        let Snapshot { environment, depot, .. } = &self.snapshot;
        latest::get(Path::new(depot), environment).map_or(true, |found| found.is_some())
    }

    /// Keeps the changes; they are not looked at again, whatever comes of it.
    fn commit(&self, context: &UserContext, dir: &Path) -> Result<CommitRecord> {
        let done = commit(context, &self.root(dir), &self.commit);
        mark_done(
            dir,
            match &done {
                Ok(CommitRecord { snapshot: Some(_), bytes, .. }) => CommitResult::Kept(*bytes),
                Ok(_) => CommitResult::Unchanged,
                Err(_) => CommitResult::Failed,
            },
        );
        done
    }
}

/// Where a root of a job is. A job that is requeued comes back with its number, and is another one then: the prolog's link tells them apart.
pub fn place(job: &SlurmJob) -> Result<JobPlace> {
    let link = job::dir(job.id).join(USER);
    let stat = statat(CWD, &link, AtFlags::SYMLINK_NOFOLLOW).context(|| link.display().to_string())?;
    let dir = job.supervisor_dir();
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(JobPlace { job: job.id, node: node_name(), root: format!("{name}.{:x}", stat.st_mtime) })
}

/// Before a root is made, with its lock held. Where the one before has ended by itself, what was changed in that is kept now: the new root
/// begins without it. That has a record of its own in the depot, and the next task tells the user. Where it fails, the job runs all the same.
pub fn keep_earlier(context: &UserContext, dir: &Path) -> Result<()> {
    if !has_upper(dir) {
        return Ok(());
    }
    if let Some(mut root) = KeptRoot::of(dir)? {
        let number = next_earlier(dir);
        let (job, node) = (root.place.job_name(root.array_task), root.place.node.clone());
        root.place.root = format!("{}.{number}", root.place.root);
        if !is_done(dir) {
            let told = match root.commit(context, dir) {
                Ok(record) => told_of(&root.place, &record, root.is_known()).join("\n"),
                Err(e) => e.to_string(),
            };
            let all =
                format!("job {job}: its environment on {node} ended by itself and began anew\n{told}\n");
            small_file::write(&dir.join(UNTOLD), all.as_bytes())
                .ignore_error("the depot has it, for `skiff env status`");
        }
        // What the new root changes is to be kept as well.
        set_aside(dir, number)?;
    }
    forget_upper(dir)
}

/// Tells the user what became of earlier roots, once.
fn tell_earlier(dir: &Path) {
    let own = dir.join(format!("{UNTOLD}.{}", getpid().as_raw_nonzero()));
    if fs::rename(dir.join(UNTOLD), &own).is_err() {
        return;
    }
    if let Ok(text) = small_file::read_below(CWD, &own, LONGEST) {
        String::from_utf8_lossy(&text).lines().for_each(output::note);
    }
    fs::remove_file(&own).ignore_error("it goes with the job's directory");
}

/// Before a task: notes that what is changed here is to be kept, if it is.
pub fn begin(job: &SlurmJob) -> Result<()> {
    let JobSpec::Snapshot(snapshot) = &job.spec else { return Ok(()) };
    let Some(commit) = &snapshot.commit else { return Ok(()) };
    let dir = job.supervisor_dir();
    tell_earlier(&dir);
    let hosts = hosts(commit, |name| std::env::var(name).ok())?;
    let file = dir.join(HERE);
    // One that another task of this node has made.
    if file.exists() {
        return Ok(());
    }
    let place = place(job)?;
    if !is_wanted(&commit.nodes, &place.node, &hosts) {
        return Ok(());
    }
    let node_count = u32::try_from(hosts.len()).unwrap_or(0);
    let array_task = ArrayTask::from_variables(|name| std::env::var(name).ok());
    let root = KeptRoot { place, node_count, array_task, snapshot: snapshot.clone(), commit: commit.clone() };
    let new = dir.join(format!("{HERE}.{}", getpid().as_raw_nonzero()));
    small_file::write(&new, root.to_text()?.as_bytes()).context(|| new.display().to_string())?;
    fs::rename(&new, &file).context(|| file.display().to_string())
}

/// The nodes of the job, or of the step that has asked for it: a step may have only some of the job's. Refuses a node that is none of them.
fn hosts(commit: &JobCommit, variable: impl Fn(&str) -> Option<String>) -> Result<Vec<String>> {
    let (name, of, command) = match commit.step {
        true => (names::STEP_NODES, "step", "srun"),
        false => (names::JOB_NODES, "job", "sbatch"),
    };
    let hosts = variable(name).and_then(|list| slurm_hosts(&list)).ok_or_else(|| {
        Error::new(format!("--environment-commit: {name} does not say which nodes the {of} has"))
    })?;
    match &commit.nodes {
        CommitNodes::Node(node) if !hosts.contains(node) => {
            let have = few(&hosts);
            Err(Error::new(format!("--environment-commit={node}: the {of} has no such node"))
                .hint(format!(
                    "--environment-commit takes rank0, all or a node: the {of} has {have}; {command} --nodelist={node} asks for {node}"
                )))
        }
        _ => Ok(hosts),
    }
}

fn is_wanted(nodes: &CommitNodes, node: &str, hosts: &[String]) -> bool {
    match nodes {
        CommitNodes::Rank0 => hosts.first().is_some_and(|first| first == node),
        CommitNodes::All => true,
        CommitNodes::Node(name) => name == node,
    }
}

fn few(hosts: &[String]) -> String {
    let more = if hosts.len() > 4 { ", ..." } else { "" };
    format!("{}{more}", hosts.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", "))
}

/// After a task: keeps the changes, if it is the one that is the job's end on this node.
pub fn at_end_of_step(context: &UserContext, job: &SlurmJob, step: &Live, ended: CommandExit) -> Result<()> {
    let dir = job.supervisor_dir();
    let Some(root) = KeptRoot::of(&dir)? else { return Ok(()) };
    let is_first = std::env::var("SLURM_LOCALID").is_ok_and(|id| id == "0");
    let name = JobStep::from_variable()?.map(|step| step.name).unwrap_or_default();
    let main = if root.commit.script { names::BATCH } else { "0" };
    // Who was killed has no time; and where one of several has failed, Slurm ends the others only when it hears of that. The epilog comes.
    let is_last = match ended {
        CommandExit::Code(0) => true,
        CommandExit::Code(_) => name == names::BATCH,
        CommandExit::Signal(_) => false,
    };
    if root.commit.step || name != main || !is_first || !is_last || is_done(&dir) {
        return Ok(());
    }
    if name != names::BATCH {
        step.wait_for_others()?;
    }
    root.commit(context, &dir).map(|record| tell(&root, &record))
}

fn tell(root: &KeptRoot, record: &CommitRecord) {
    told_of(&root.place, record, root.is_known()).iter().for_each(|line| output::note(line));
}

/// What the user hears of it; `is_known` says whether the depot knows an environment of this name.
fn told_of(place: &JobPlace, record: &CommitRecord, is_known: bool) -> Vec<String> {
    let (job, node) = (place.job_name(record.array_task), &place.node);
    let CommitRecord { environment, snapshot, changes, bytes, skipped, .. } = record;
    let mut told = vec![match snapshot {
        None => format!("job {job}: nothing was changed in {environment} on {node}"),
        Some(id) => {
            let changes = output::count(*changes, "change", "changes");
            let written = output::size(*bytes);
            match is_known {
                true => format!(
                    "job {job}: {changes} in {environment} on {node} saved as a snapshot ({written} written): `skiff env history {environment}`"
                ),
                false => format!(
                    "job {job}: {changes} on {node} saved as snapshot {} ({written} written), but environment {environment} is gone: if it \
                     was renamed, the snapshot is in its history; else `skiff depot gc` removes it",
                    short(*id)
                ),
            }
        }
    }];
    if *skipped > 0 {
        let skipped = output::count(*skipped, "socket or device is", "sockets and devices are");
        told.push(format!("job {job}: {skipped} not in it"));
    }
    told
}

/// In the supervisor of a job's root, when nothing runs there any more: keeps the changes, unless a task has done so.
pub fn at_end(context: &UserContext, dir: &Path) {
    if let Ok(Some(root)) = KeptRoot::awaited(dir) {
        root.commit(context, dir)
            .ignore_error("nobody hears it here; the depot has the reason, for `skiff env status`");
    }
}

/// Whether the changes of a root are to be kept yet. Invalid notes are not waited for.
pub fn is_awaited(dir: &Path) -> bool {
    is_kept(dir) && matches!(KeptRoot::awaited(dir), Ok(Some(_)))
}

/// In the epilog: waits until the supervisor has done so, or it is too late.
pub fn wait_for(dir: &Path, end: Instant) -> Result<()> {
    if !is_awaited(dir) {
        return Ok(());
    }
    lock::within(end.saturating_duration_since(Instant::now()), || try_lock(dir))?;
    Ok(())
}

/// In the epilog: notes in the depot that changes were to be kept and nobody has done so.
pub fn note_if_lost(dir: &Path) -> Result<()> {
    let Some(root) = KeptRoot::awaited(dir)? else { return Ok(()) };
    let why = Error::new("the job's environment was gone before they could be kept, or it took too long")
        .hint("out of memory, or `slurm.commit_seconds` too short? slurmd's log on that node may tell");
    mark_done(dir, CommitResult::Failed);
    note_failure(&root.root(dir), &root.commit, why)
}

#[cfg(test)]
mod tests {
    use skiff_env::job_records::JobFigures;

    use super::*;

    #[test]
    fn the_nodes_that_are_meant() {
        let hosts = ["n1".to_owned(), "n2".to_owned()];
        for (nodes, on) in
            [("rank0", [true, false]), ("all", [true, true]), ("n2", [false, true]), ("n3", [false, false])]
        {
            let nodes: CommitNodes = nodes.parse().expect("nodes");
            assert_eq!(["n1", "n2"].map(|node| is_wanted(&nodes, node, &hosts)), on, "{nodes:?}");
        }
        assert!(!is_wanted(&CommitNodes::Rank0, "n1", &[]));
    }

    #[test]
    fn an_environment_that_is_gone_is_not_said_to_have_the_changes() {
        let place = JobPlace { job: 7, node: "n1".into(), root: "r".into() };
        let record = CommitRecord {
            environment: "dev".parse().expect("a name"),
            array_task: None,
            parent: "01".repeat(32).parse().expect("an id"),
            nodes: CommitNodes::Rank0,
            of: 1,
            ended: 5,
            snapshot: "02".repeat(32).parse().ok(),
            changes: 1,
            entries: 1,
            bytes: 1,
            skipped: 1,
            error: None,
            hint: None,
        };
        let known = told_of(&place, &record, true);
        let want = "job 7: 1 change in dev on n1 saved as a snapshot (1 B written): `skiff env history dev`";
        assert_eq!(known, [want, "job 7: 1 socket or device is not in it"]);
        let task = CommitRecord { array_task: "46_1".to_owned().try_into().ok(), ..record.clone() };
        assert!(told_of(&place, &task, true)[0].starts_with("job 46_1: 1 change in dev"), "{task:?}");
        let gone = told_of(&place, &record, false);
        assert!(gone[0].contains("snapshot 020202020202 ") && !gone[0].contains("env history"), "{gone:?}");
    }

    #[test]
    fn a_step_looks_at_its_own_nodes() {
        let variable = |name: &str| match name {
            "SLURM_JOB_NODELIST" => Some("n[1-2]".to_owned()),
            "SLURM_STEP_NODELIST" => Some("n2".to_owned()),
            _ => None,
        };
        let asked = |nodes: &str, step| {
            let commit = JobCommit { nodes: nodes.parse().expect("nodes"), step, script: false };
            hosts(&commit, variable).map_err(|e| e.message)
        };
        assert_eq!(asked("rank0", false), Ok(vec!["n1".into(), "n2".into()]));
        assert_eq!(asked("n1", false), asked("rank0", false));
        assert_eq!(asked("rank0", true), Ok(vec!["n2".into()]));
        assert_eq!(asked("n1", true), Err("--environment-commit=n1: the step has no such node".into()));
        let commit = JobCommit { nodes: CommitNodes::All, step: true, script: false };
        assert!(hosts(&commit, |_| None).is_err());
    }

    #[test]
    fn only_a_root_with_a_note_is_waited_for_and_a_new_one_again() {
        let dir = std::env::temp_dir().join(format!("skiff-commit.{}.kept", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let is_awaited = || is_awaited(&dir);
        assert!(!is_awaited());
        fs::write(dir.join(HERE), "anything").expect("a note");
        assert!(!is_awaited());
        let spec = format!(
            r#"{{"environment":"dev","snapshot":"{}","depot":"/d","commit":{{"nodes":"all"}}}}"#,
            "a1".repeat(32)
        );
        fs::write(dir.join(HERE), format!("7\nn1\na1a1.kept.67\n2\n{spec}\n")).expect("a note");
        assert!(is_awaited());
        for number in 1..3 {
            mark_done(&dir, CommitResult::Kept(number));
            assert!(!is_awaited());
            set_aside(&dir, next_earlier(&dir)).expect("set aside");
            assert!(is_awaited());
        }
        mark_done(&dir, CommitResult::Failed);
        let mut figures = JobFigures::default();
        add_result(&dir, &mut figures);
        assert_eq!((figures.kept, figures.failed), (vec![1, 2], 1));
        fs::remove_dir_all(&dir).expect("gone");
    }

    #[test]
    fn a_note_comes_back_and_what_is_none_is_refused() {
        let spec = format!(
            r#"{{"environment":"dev","snapshot":"{}","depot":"/d","commit":{{"nodes":"all"}}}}"#,
            "a1".repeat(32)
        );
        let text = format!("7\nn1\na1a1.kept.67\n2\n{spec}\n");
        let root = KeptRoot::parse(&text).expect("a note");
        assert_eq!(root.to_text().expect("text"), text);
        assert_eq!((root.place.job, root.node_count, root.commit.nodes), (7, 2, CommitNodes::All));
        let without = spec.replace(r#","commit":{"nodes":"all"}"#, "");
        for bad in ["", "7\nn1\nr\n2\n", "x\nn1\nr\n2\n{}\n", &format!("7\nn1\nr\n2\n{without}\n")] {
            assert!(KeptRoot::parse(bad).is_none(), "{bad:?}");
        }
    }
}
