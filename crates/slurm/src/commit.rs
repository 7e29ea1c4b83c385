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
use skiff_env::commit::{JobRoot, commit, note_failure};
use skiff_env::deploy::node_name;
use skiff_env::job_records::{CommitRecord, JobFigures, JobPlace};
use skiff_launch::manager::slurm_hosts;
use skiff_output as output;
use skiff_runtime::control::Live;
use skiff_runtime::lock::try_lock;
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{CommitNodes, JobCommit, JobSpec, Snapshot, names};
use skiff_sys::{IgnoreError, lock, small_file};
use skiff_user::context::UserContext;

use crate::job::{self, JobStep, KEPT, SlurmJob, USER};

/// In the directory of a root whose changes are to be kept: where that is, and of which job.
const HERE: &str = "commit-here";
/// There once that is done, or has failed and was told.
const DONE: &str = "commit-done";
/// Longest such note, in bytes.
const LONGEST: u64 = 64 << 10;

/// A root on this node whose changes are to be kept.
struct KeptRoot {
    place: JobPlace,
    of: u32,
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
        Self::parse(&text).map(Some).ok_or_else(|| Error::new(format!("{}: not understood", shown())))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (job, node, root, of) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
        let JobSpec::Snapshot(snapshot) = JobSpec::from_line(lines.next()?).ok()? else { return None };
        let place = JobPlace { job: job.parse().ok()?, node: node.into(), root: root.into() };
        Some(Self { place, of: of.parse().ok()?, commit: snapshot.commit.clone()?, snapshot })
    }

    fn to_text(&self) -> Result<String> {
        let JobPlace { job, node, root } = &self.place;
        let line = JobSpec::Snapshot(self.snapshot.clone()).to_line();
        let line = line.map_err(|e| Error::new(format!("job spec: {e}")))?;
        Ok(format!("{job}\n{node}\n{root}\n{}\n{line}\n", self.of))
    }

    fn root<'a>(&'a self, dir: &'a Path) -> JobRoot<'a> {
        JobRoot { place: self.place.clone(), dir, snapshot: &self.snapshot, of: self.of }
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

/// What came of it, for the node's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitResult {
    Kept(u64),
    Unchanged,
    Failed,
}

impl CommitResult {
    fn to_text(self) -> String {
        match self {
            Self::Kept(bytes) => format!("kept {bytes}\n"),
            Self::Unchanged => "unchanged\n".into(),
            Self::Failed => "failed\n".into(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.trim_end() {
            "unchanged" => Some(Self::Unchanged),
            "failed" => Some(Self::Failed),
            other => other.strip_prefix("kept ")?.parse().ok().map(Self::Kept),
        }
    }
}

fn mark_done(dir: &Path, result: CommitResult) {
    let file = dir.join(DONE);
    small_file::write(&file, result.to_text().as_bytes()).ignore_error("what is kept twice is one snapshot");
}

/// Adds what came of it to the job's figures.
pub fn add_result(dir: &Path, figures: &mut JobFigures) {
    let text = small_file::read_below(CWD, dir.join(DONE), LONGEST).ok();
    match text.and_then(|text| CommitResult::parse(&String::from_utf8_lossy(&text))) {
        Some(CommitResult::Kept(bytes)) => figures.kept.push(bytes),
        Some(CommitResult::Unchanged) => figures.unchanged += 1,
        Some(CommitResult::Failed) => figures.failed += 1,
        None => {}
    }
}

fn is_done(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(DONE)).is_ok_and(|found| found.is_file())
}

/// Where a root of a job is. A job that is requeued comes back with its number, and is another one then: the prolog's link tells them apart.
pub fn place(job: &SlurmJob) -> Result<JobPlace> {
    let link = job::dir(job.id).join(USER);
    let stat = statat(CWD, &link, AtFlags::SYMLINK_NOFOLLOW).context(|| link.display().to_string())?;
    let dir = job.supervisor_dir();
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(JobPlace { job: job.id, node: node_name(), root: format!("{name}.{:x}", stat.st_mtime) })
}

/// Before a task: notes that what is changed here is to be kept, if it is.
pub fn begin(job: &SlurmJob) -> Result<()> {
    let JobSpec::Snapshot(snapshot) = &job.spec else { return Ok(()) };
    let Some(commit) = &snapshot.commit else { return Ok(()) };
    let dir = job.supervisor_dir();
    let file = dir.join(HERE);
    // One that another task of this node has made.
    if file.exists() {
        return Ok(());
    }
    let hosts = std::env::var("SLURM_JOB_NODELIST").ok().and_then(|list| slurm_hosts(&list));
    let hosts = hosts.ok_or_else(|| {
        Error::new("--environment-commit: SLURM_JOB_NODELIST does not say which nodes the job has")
    })?;
    let place = place(job)?;
    if let CommitNodes::Node(node) = &commit.nodes
        && !hosts.contains(node)
    {
        return Err(Error::new(format!("--environment-commit={node}: the job has no such node"))
            .hint(format!("it has {}; sbatch --nodelist={node} asks for that one", few(&hosts))));
    }
    if !is_wanted(&commit.nodes, &place.node, &hosts) {
        return Ok(());
    }
    let of = u32::try_from(hosts.len()).unwrap_or(0);
    let root = KeptRoot { place, of, snapshot: snapshot.clone(), commit: commit.clone() };
    let new = dir.join(format!("{HERE}.{}", getpid().as_raw_nonzero()));
    small_file::write(&new, root.to_text()?.as_bytes()).context(|| new.display().to_string())?;
    fs::rename(&new, &file).context(|| file.display().to_string())
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
    root.commit(context, &dir).map(|record| tell(&root.place, &record))
}

fn tell(JobPlace { job, node, .. }: &JobPlace, record: &CommitRecord) {
    let CommitRecord { environment, snapshot, changes, bytes, skipped, .. } = record;
    output::note(&match snapshot {
        None => format!("job {job}: nothing was changed in {environment} on {node}"),
        Some(_) => format!(
            "job {job}: {changes} changes in {environment} on {node} are a snapshot ({} written): `skiff env history {environment}`",
            output::size(*bytes)
        ),
    });
    if *skipped > 0 {
        output::note(&format!("job {job}: {skipped} sockets and devices are not in it"));
    }
}

/// In the supervisor of a job's root, when nothing runs there any more: keeps the changes, unless a task has done so.
pub fn at_end(context: &UserContext, dir: &Path) {
    if let Ok(Some(root)) = KeptRoot::of(dir)
        && !is_done(dir)
    {
        root.commit(context, dir)
            .ignore_error("nobody hears it here; the depot has the reason, for `skiff env status`");
    }
}

/// In the epilog: waits until the supervisor has done so, or it is too late.
pub fn wait_for(dir: &Path, end: Instant) -> Result<()> {
    lock::within(end.saturating_duration_since(Instant::now()), || try_lock(dir))?;
    Ok(())
}

/// In the epilog: notes in the depot that changes were to be kept and nobody has done so.
pub fn note_if_lost(dir: &Path) -> Result<()> {
    let Some(root) = KeptRoot::of(dir)? else { return Ok(()) };
    if is_done(dir) {
        return Ok(());
    }
    let why = Error::new("the job's environment was gone before they could be kept, or it took too long")
        .hint("out of memory, or `slurm.commit_seconds` too short? slurmd's log on that node may tell");
    mark_done(dir, CommitResult::Failed);
    note_failure(&root.root(dir), &root.commit, why)
}

#[cfg(test)]
mod tests {
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
    fn results_come_back() {
        for result in [CommitResult::Kept(7), CommitResult::Unchanged, CommitResult::Failed] {
            assert_eq!(CommitResult::parse(&result.to_text()), Some(result));
        }
        assert_eq!(["", "kept", "kept x", "kept -1"].map(CommitResult::parse), [None; 4]);
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
        assert_eq!((root.place.job, root.of, root.commit.nodes), (7, 2, CommitNodes::All));
        let without = spec.replace(r#","commit":{"nodes":"all"}"#, "");
        for bad in ["", "7\nn1\nr\n2\n", "x\nn1\nr\n2\n{}\n", &format!("7\nn1\nr\n2\n{without}\n")] {
            assert!(KeptRoot::parse(bad).is_none(), "{bad:?}");
        }
    }
}
