//! Records that nodes write to the depot about their jobs; the environment's host reads them: `jobs/JOB@NODE@ROOT.KIND`, a small file
//! for each job, node and root of the job there. (A step may bring a root of its own.)
//!
//! Whoever can write in the depot is its user: what is there may be anything, and is read as such.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use skiff_site::TrustedDir;
use skiff_snapshot::SnapshotId;
use skiff_spec::array_task::{ArrayTask, JobName};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::CommitNodes;
use skiff_spec::name::EnvName;
use skiff_sys::clock::{DAY, was_within};
use skiff_sys::small_file;

use crate::depot_dir;

mod names;
mod start;

pub use names::{JobPlace, RecordKind};
use names::{name, parse};
pub use start::{JobFigures, StartOrigin, StartPart, StartPartKind, StartRecord};

/// In a depot.
pub const DIR: &str = "jobs";
/// Longest record that is read, in bytes.
const LONGEST: u64 = 64 << 10;
/// Longest reason of a failure that is written, in characters.
const LONGEST_REASON: usize = 2000;

/// For how many days one can ask how a job ran.
const KEPT_DAYS: u64 = 14;
/// Most records kept: one for each node of each job.
const MOST_KEPT: usize = 20_000;
/// For so many days a record keeps the snapshot that no history has taken in.
const AWAITED_DAYS: u64 = 30;
/// Among the records: a file that is written when old ones are removed.
const TRIMMED: &str = "trimmed";

/// What became of the changes that a job has made on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The environment.
    pub environment: EnvName,
    /// The task of an array that the job is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_task: Option<ArrayTask>,
    /// The snapshot that the job ran in.
    pub parent: SnapshotId,
    /// Which nodes' changes are kept.
    pub nodes: CommitNodes,
    /// How many nodes the job has; 0 if that is not known.
    pub of: u32,
    /// When that was, in seconds since 1970.
    pub ended: u64,
    /// The snapshot; nothing if nothing was changed, or there is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// How many paths are added, changed or deleted.
    #[serde(default)]
    pub changes: u64,
    /// Files and directories written to the depot.
    #[serde(default)]
    pub entries: u64,
    /// Bytes written to the depot.
    #[serde(default)]
    pub bytes: u64,
    /// Sockets and devices, which no snapshot holds.
    #[serde(default)]
    pub skipped: u64,
    /// Why there is no snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to do about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl CommitRecord {
    /// The same without a snapshot, and why.
    pub fn failed(self, why: &Error) -> Self {
        let short = |text: &str| text.chars().take(LONGEST_REASON).collect::<String>();
        let hint = Some(short(&why.hint)).filter(|hint| !hint.is_empty());
        Self { snapshot: None, error: Some(short(&why.message)), hint, ..self }
    }
}

/// A record in a depot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFile {
    /// Name of the file.
    pub name: OsString,
    /// Where the job ran.
    pub place: JobPlace,
    /// What it is of.
    pub kind: RecordKind,
    /// When it was written, in seconds since 1970.
    pub written: i64,
}

/// Records by their age.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AgedRecords {
    /// Snapshots that no history has taken in yet, and the jobs that have changed their environment to them.
    pub awaited: Vec<(u32, SnapshotId)>,
    /// What nobody will ask for any more.
    pub old: Vec<OsString>,
}

/// The records of a depot.
pub struct JobRecords {
    dir: TrustedDir,
}

impl JobRecords {
    /// Opens the records of a depot, if there are any. (In a node's epilog only the effective uid is the user's.)
    pub fn find(depot: &Path) -> Result<Option<Self>> {
        let dir = TrustedDir::find(&depot.join(DIR), geteuid().as_raw())?;
        Ok(dir.map(|dir| Self { dir }))
    }

    /// The same to be written to; nothing where there is no depot, as before its file system is mounted.
    pub fn make(depot: &Path) -> Result<Option<Self>> {
        let Some(depot) = depot_dir::find(depot, geteuid())? else { return Ok(None) };
        Ok(Some(Self { dir: depot.make_dir(DIR, 0o700)? }))
    }

    /// All of them. What else lies there is left alone.
    pub fn all(&self) -> Result<Vec<RecordFile>> {
        self.matching(|_, _| true)
    }

    /// What became of changes that no history has yet. (Only these are looked at, of many others.)
    pub fn ends(&self) -> Result<Vec<RecordFile>> {
        self.matching(|_, kind| kind == RecordKind::End)
    }

    fn matching(&self, is_wanted: impl Fn(&JobPlace, RecordKind) -> bool) -> Result<Vec<RecordFile>> {
        let mut all = vec![];
        for name in self.dir.names()? {
            let Some((place, kind)) = name.to_str().and_then(parse) else { continue };
            if is_wanted(&place, kind)
                && let Some(stat) = self.dir.stat(&name)?
            {
                all.push(RecordFile { name, place, kind, written: stat.st_mtime });
            }
        }
        all.sort_by(|a, b| (&a.place, a.kind).cmp(&(&b.place, b.kind)));
        Ok(all)
    }

    /// The number of a job; nothing if no node has noted any of this name.
    pub fn number_of(&self, job: JobName) -> Result<Option<u32>> {
        let task = match job {
            JobName::Id(id) => return Ok(Some(id)),
            JobName::Task(task) => task,
        };
        let is_it = |file: &RecordFile| match file.kind {
            RecordKind::Start => {
                self.read::<StartRecord>(file).is_ok_and(|start| start.array_task == Some(task))
            }
            _ => self.read::<CommitRecord>(file).is_ok_and(|end| end.array_task == Some(task)),
        };
        // The array has the number of one of its tasks, and the others have later ones.
        let files = self.matching(|place, _| place.job >= task.array)?;
        Ok(files.iter().find(|file| is_it(file)).map(|file| file.place.job))
    }

    /// The starts of which nothing is noted at the end.
    pub fn starts_without_end(&self) -> Result<Vec<RecordFile>> {
        let mut all = self.all()?;
        let ended = all.iter().filter(|file| file.kind != RecordKind::Start);
        let ended: BTreeSet<JobPlace> = ended.map(|file| file.place.clone()).collect();
        all.retain(|file| file.kind == RecordKind::Start && !ended.contains(&file.place));
        Ok(all)
    }

    /// Whether that is the start of a job in this environment that is to keep what it changes.
    pub fn is_to_keep_changes(&self, start: &RecordFile, name: &EnvName) -> bool {
        let start = self.read::<StartRecord>(start);
        start.is_ok_and(|start| start.commit.is_some() && start.environment == name.as_str())
    }

    /// The records that keep snapshots, and those that are too old to be asked for. `age` gives the seconds since a file's time.
    pub fn by_age(&self, age: impl Fn(i64) -> u64) -> Result<AgedRecords> {
        let mut all = self.all()?;
        // The newest first: of too many the others go.
        all.sort_by_key(|file| std::cmp::Reverse(file.written));
        let mut found = AgedRecords::default();
        for (number, file) in all.into_iter().enumerate() {
            let age = age(file.written);
            let snapshot = match file.kind {
                RecordKind::End => self.read::<CommitRecord>(&file).ok().and_then(|record| record.snapshot),
                RecordKind::Start | RecordKind::Noted => None,
            };
            match snapshot {
                Some(snapshot) if age < AWAITED_DAYS * DAY => {
                    found.awaited.push((file.place.job, snapshot));
                }
                _ if age >= KEPT_DAYS * DAY || number >= MOST_KEPT => found.old.push(file.name),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Claims the daily removal of old records: true at most once a day.
    pub fn begin_to_trim(&self) -> Result<bool> {
        let last = self.dir.stat(TRIMMED)?.map(|stat| stat.st_mtime.cast_unsigned());
        if last.is_some_and(|last| was_within(DAY, last)) {
            return Ok(false);
        }
        self.dir.write(TRIMMED, b"", 0o600)?;
        Ok(true)
    }

    /// Removes old records; their age is by the clock of their file system, as [`JobRecords::begin_to_trim`] has found it.
    pub fn trim(&self) -> Result<()> {
        let Some(stat) = self.dir.stat(TRIMMED)? else { return Ok(()) };
        let age = |written: i64| stat.st_mtime.saturating_sub(written).try_into().unwrap_or(0);
        self.forget(&self.by_age(age)?.old)
    }

    /// What a record says.
    pub fn read<T: DeserializeOwned>(&self, file: &RecordFile) -> Result<T> {
        let about = || self.dir.path_of(&file.name).display().to_string();
        let bytes = small_file::read_below(self.dir.as_fd(), &*file.name, LONGEST).context(about)?;
        serde_json::from_slice(&bytes).map_err(|e| Error::new(format!("{}: {e}", about())))
    }

    /// Writes a record, whole or not at all.
    pub fn write<T: Serialize>(&self, place: &JobPlace, kind: RecordKind, record: &T) -> Result<()> {
        let name = name(place, kind);
        let bytes = serde_json::to_vec(record).map_err(|e| Error::new(format!("{name}: {e}")))?;
        Ok(self.dir.write(name, &bytes, 0o600)?)
    }

    /// Marks what a history has now.
    pub fn mark_noted(&self, file: &RecordFile) -> Result<()> {
        let noted = name(&file.place, RecordKind::Noted);
        Ok(self.dir.rename(&file.name, &self.dir, noted)?)
    }

    /// Removes records.
    pub fn forget(&self, names: &[OsString]) -> Result<()> {
        Ok(names.iter().try_for_each(|name| self.dir.remove_file(name))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CommitRecord {
        CommitRecord {
            environment: "dev".parse().expect("a name"),
            array_task: None,
            parent: SnapshotId([1; 32]),
            nodes: CommitNodes::All,
            of: 2,
            ended: 5,
            snapshot: Some(SnapshotId([2; 32])),
            changes: 1,
            entries: 1,
            bytes: 1,
            skipped: 0,
            error: None,
            hint: None,
        }
    }

    fn place(job: u32, node: &str, root: &str) -> JobPlace {
        JobPlace { job, node: node.into(), root: root.into() }
    }

    #[test]
    fn records_are_written_read_marked_and_removed() {
        let path = std::env::temp_dir().join(format!("skiff-job-records.{}", std::process::id()));
        let depot = TrustedDir::make(&path, geteuid().as_raw(), 0o700).expect("a directory");
        assert!(JobRecords::make(&path).expect("asked").is_none(), "no depot yet");
        depot.new_dir(depot_dir::SNAPSHOTS, 0o700).expect("a depot");
        assert!(JobRecords::find(&path).expect("asked").is_none(), "nothing was noted yet");
        let records = JobRecords::make(&path).expect("made").expect("a depot");
        records.write(&place(7, "n1", "r"), RecordKind::Start, &1).expect("written");
        records.write(&place(7, "n1", "r"), RecordKind::End, &2).expect("written");
        records.write(&place(7, "n1", "r"), RecordKind::End, &3).expect("written again");
        let at = |name: &str| path.join(DIR).join(name);
        std::fs::write(at("other"), "").expect("a file");
        std::os::unix::fs::symlink("/etc/passwd", at("8@n1@r.end")).expect("a link");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("9@n1@r.end"), rustix::fs::Mode::RUSR).expect("a pipe");
        let all = records.all().expect("listed");
        let jobs: Vec<_> = all.iter().map(|file| (file.place.job, file.kind)).collect();
        let [start, end] = [RecordKind::Start, RecordKind::End];
        assert_eq!(jobs, [(7, start), (7, end), (8, end), (9, end)]);
        assert_eq!(records.read::<u32>(&all[1]).ok(), Some(3));
        for file in &all[2..] {
            assert!(records.read::<u32>(file).is_err(), "{file:?}");
        }
        records.mark_noted(&all[1]).expect("marked");
        let kinds: Vec<_> = records.all().expect("listed").into_iter().map(|file| file.kind).collect();
        assert_eq!(kinds, [start, RecordKind::Noted, end, end]);
        records.forget(&[all[0].name.clone(), all[2].name.clone()]).expect("removed");
        assert!(Path::new("/etc/passwd").exists() && at("other").exists());
        std::fs::remove_dir_all(path).expect("gone");
    }

    #[test]
    fn jobs_whose_changes_are_still_to_come_are_known_by_their_starts() {
        let path = std::env::temp_dir().join(format!("skiff-job-starts.{}", std::process::id()));
        let depot = TrustedDir::make(&path, geteuid().as_raw(), 0o700).expect("a directory");
        depot.new_dir(depot_dir::SNAPSHOTS, 0o700).expect("a depot");
        let records = JobRecords::make(&path).expect("made").expect("a depot");
        let start = |environment: &str, commit| StartRecord {
            environment: environment.into(),
            array_task: None,
            snapshot: None,
            commit,
            started: 1,
            parts: vec![],
        };
        let all = Some(CommitNodes::All);
        for (job, node, record) in [
            (7, "n1", start("dev", all.clone())),
            (7, "n2", start("dev", all.clone())),
            (8, "n1", start("dev", all.clone())),
            (9, "n1", start("dev", None)),
            (10, "n1", start("other", all.clone())),
            (11, "n1", start("dev", all)),
        ] {
            records.write(&place(job, node, "r"), RecordKind::Start, &record).expect("written");
        }
        records.write(&place(7, "n1", "r"), RecordKind::End, &1).expect("written");
        records.write(&place(8, "n1", "r"), RecordKind::Noted, &1).expect("written");
        let dev = "dev".parse().expect("a name");
        let mut starts = records.starts_without_end().expect("listed");
        starts.retain(|start| records.is_to_keep_changes(start, &dev));
        // Of job 7 the other node has not ended.
        assert_eq!(starts.iter().map(|start| start.place.job).collect::<Vec<_>>(), [7, 11]);
        std::fs::remove_dir_all(path).expect("gone");
    }

    #[test]
    fn old_records_are_removed_once_a_day_and_what_no_history_has_stays_longer() {
        let path = tempfile::tempdir().expect("a directory");
        let depot = TrustedDir::open(path.path(), geteuid().as_raw()).expect("opened");
        depot.new_dir(depot_dir::SNAPSHOTS, 0o700).expect("a depot");
        let records = JobRecords::make(path.path()).expect("made").expect("a depot");
        let end = |snapshot| CommitRecord { snapshot, ..record() };
        let kept = Some(SnapshotId([2; 32]));
        for job in [1, 2] {
            records.write(&place(job, "n1", "start"), RecordKind::Start, &1).expect("written");
            records.write(&place(job, "n1", "kept"), RecordKind::End, &end(kept)).expect("written");
            records.write(&place(job, "n1", "none"), RecordKind::End, &end(None)).expect("written");
            records.write(&place(job, "n1", "noted"), RecordKind::Noted, &end(kept)).expect("written");
        }
        let set_age = |job: u32, days: u64| {
            for file in records.all().expect("listed").iter().filter(|file| file.place.job == job) {
                let file = std::fs::File::open(path.path().join(DIR).join(&file.name)).expect("opened");
                let then = std::time::SystemTime::now() - std::time::Duration::from_secs(days * DAY);
                file.set_modified(then).expect("set");
            }
        };
        let left = || {
            let all = records.all().expect("listed");
            all.into_iter().map(|file| (file.place.job, file.place.root)).collect::<Vec<_>>()
        };
        set_age(1, KEPT_DAYS + 1);
        set_age(2, KEPT_DAYS - 1);
        assert_eq!([(); 2].map(|()| records.begin_to_trim().expect("asked")), [true, false]);
        records.trim().expect("trimmed");
        let of_2 = ["kept", "none", "noted", "start"].map(|root| (2, root.to_owned()));
        assert_eq!(left(), [&[(1, "kept".to_owned())][..], &of_2].concat());
        set_age(1, AWAITED_DAYS + 1);
        records.trim().expect("trimmed");
        assert_eq!(left(), of_2);
    }

    #[test]
    fn a_task_of_an_array_is_found_by_what_its_user_calls_it() {
        let path = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(path.path().join(depot_dir::SNAPSHOTS)).expect("a depot");
        let records = JobRecords::make(path.path()).expect("made").expect("a depot");
        for (job, number) in [(46, 2), (47, 1)] {
            let array_task = Some(ArrayTask { array: 46, task: number });
            let end = CommitRecord { array_task, ..record() };
            records.write(&place(job, "n1", "r"), RecordKind::End, &end).expect("written");
        }
        let number = |name: &str| records.number_of(name.parse().expect("a job")).expect("looked for");
        assert_eq!(
            ["46_1", "46_2", "46_3", "46", "12"].map(number),
            [Some(47), Some(46), None, Some(46), Some(12)]
        );
        assert_eq!(place(47, "n1", "r").job_name(Some(ArrayTask { array: 46, task: 1 })).to_string(), "46_1");
    }

    #[test]
    fn a_reason_is_cut_where_it_is_too_long() {
        let failed = record().failed(&Error::new("x".repeat(1 << 20)));
        assert!(serde_json::to_vec(&failed).expect("text").len() < 4096);
        assert_eq!((failed.snapshot, failed.hint), (None, None));
    }
}
