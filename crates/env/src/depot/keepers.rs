//! What needs the snapshots of a depot: environments, instances, checkpoints, jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::process::getuid;
use skiff_runtime::environments::{self, Environment};
use skiff_runtime::record::InstanceDir;
use skiff_site::TrustedDir;
use skiff_snapshot::{Depot, DepotContents, DepotManifest, SnapshotId, last_snapshot};
use skiff_spec::config::HistoryConfig;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::JobSpec;
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, TagName};
use skiff_user::context::UserContext;

use super::users::{CLOCKS, CheckpointUse, JobList, USERS};
use super::{seconds, uses};
use crate::base_fingerprint;
use crate::history::{self, KeptSnapshots};
use crate::job_records::{AgedRecords, JobRecords};
use crate::latest;
use crate::snapshot_fault::ours;

/// How often environments are listed again that were renamed or removed as they were looked at.
const LISTINGS: u32 = 10;

/// Something that needs a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeper {
    /// The last snapshot of this environment: the next one builds on it.
    Environment(EnvName),
    /// This tag in the history of this environment.
    Tag(EnvName, TagName),
    /// The history of this environment. It goes where there is a budget.
    History(EnvName),
    /// The last snapshot of an environment of this name, on whatever host: jobs ask for it by that.
    Latest(EnvName),
    /// An instance of an environment.
    Instance(EnvName),
    /// A checkpoint of such an instance.
    Checkpoint(String),
    /// A job that has begun to use it.
    Job(u32),
    /// A job has changed its environment to it, and no history has it yet.
    JobChanges(u32),
    /// A job may need it: it was used since the oldest of them was submitted.
    Jobs,
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Tag(name, tag) => write!(f, "tag {name}{AT}{tag}"),
            Self::History(name) => write!(f, "history {name}"),
            Self::Latest(name) => write!(f, "latest {name}"),
            Self::Instance(name) => write!(f, "instance {name}"),
            Self::Checkpoint(name) => write!(f, "checkpoint {name}"),
            Self::Job(id) => write!(f, "job {id}"),
            Self::JobChanges(id) => write!(f, "changes of job {id}"),
            Self::Jobs => f.write_str("jobs"),
        }
    }
}

/// Snapshots that are needed, and what needs each.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    by: BTreeMap<SnapshotId, BTreeSet<Keeper>>,
    /// What was noted of jobs that have ended.
    pub(super) ended_uses: Vec<OsString>,
    /// Records of jobs that nobody will ask for any more.
    pub(super) old_records: Vec<OsString>,
    /// Lists of packages that no snapshot names any more.
    pub(super) old_lists: Vec<OsString>,
}

impl Keepers {
    /// Asks all but the job manager, which has been asked.
    pub(super) fn find(
        context: &UserContext,
        depot: &Depot,
        contents: &DepotContents,
        jobs: &JobList,
    ) -> Result<Self> {
        let mut found = Self::default();
        // Before the histories: what one of them takes in meanwhile is kept by the record, or by the history that is read later.
        found.add_records(depot, contents)?;
        for (id, by) in kept_by_environments(context)? {
            found.by.entry(id).or_default().extend(by);
        }
        for record in InstanceDir::all(context)? {
            // What cannot be read cannot be started again.
            let snapshot = record.started().ok().and_then(|started| started.snapshot?.parse().ok());
            found.add(snapshot, Keeper::Instance(record.name));
        }
        let checkpoints = USERS.get().map_or(Ok(vec![]), |users| (users.checkpoints)(context))?;
        for CheckpointUse { checkpoint, snapshot } in checkpoints {
            found.add(snapshot.parse().ok(), Keeper::Checkpoint(checkpoint));
        }
        for noted in uses::all(depot.path())? {
            let age = contents.age(noted.since).as_secs();
            match jobs.is_live(noted.job, age) {
                true => found.add(Some(noted.snapshot), Keeper::Job(noted.job)),
                // A job may have begun after the job manager was asked.
                false if age >= CLOCKS && *jobs != JobList::Ignored => found.ended_uses.push(noted.name),
                false => {}
            }
        }
        let named = contents.snapshots.values().filter_map(|one| one.sound()).map(|manifest| &manifest.base);
        let age = |used: i64| contents.age(used.saturating_mul(1_000_000_000)).as_secs();
        // What a newer version's manifest names is not known here.
        if contents.snapshots.values().all(|one| !matches!(one.manifest, DepotManifest::Unknown(_))) {
            found.old_lists = base_fingerprint::unused_lists(depot.path(), named, age)?;
        }
        for (id, snapshot) in &contents.snapshots {
            if jobs.may_need(seconds(snapshot.file.used)) {
                found.add(Some(*id), Keeper::Jobs);
            }
        }
        Ok(found)
    }

    /// What nodes have noted of jobs: as long as no history has what a job has changed, the note keeps it.
    fn add_records(&mut self, depot: &Depot, contents: &DepotContents) -> Result<()> {
        let Some(records) = JobRecords::find(depot.path())? else { return Ok(()) };
        let age = |written: i64| contents.age(written.saturating_mul(1_000_000_000)).as_secs();
        let AgedRecords { awaited, old } = records.by_age(age)?;
        for (job, snapshot) in awaited {
            self.add(Some(snapshot), Keeper::JobChanges(job));
        }
        self.old_records = old;
        Ok(())
    }

    fn add(&mut self, snapshot: Option<SnapshotId>, keeper: Keeper) {
        if let Some(id) = snapshot {
            self.by.entry(id).or_default().insert(keeper);
        }
    }

    /// The snapshots that something needs, whatever room they take up.
    pub(super) fn needed(&self) -> BTreeSet<SnapshotId> {
        self.by.iter().filter(|(_, by)| is_needed(by)).map(|(id, _)| *id).collect()
    }

    /// Whether anything needs it, or keeps it as long as there is room.
    pub(super) fn is_kept(&self, id: &SnapshotId) -> bool {
        self.by.contains_key(id)
    }

    /// Snapshots that are kept as long as there is room.
    pub(super) fn within_budget(&self) -> BTreeSet<SnapshotId> {
        self.by.iter().filter(|(_, by)| !is_needed(by)).map(|(id, _)| *id).collect()
    }

    /// What needs a snapshot, for people: a job that is known stands for all that may.
    pub(super) fn of(&self, id: &SnapshotId) -> Vec<&Keeper> {
        let Some(all) = self.by.get(id) else { return vec![] };
        let has_job = all.iter().any(|keeper| matches!(keeper, Keeper::Job(_)));
        let is_said = |keeper: &&Keeper| match keeper {
            Keeper::Latest(name) | Keeper::History(name) => !all.contains(&Keeper::Environment(name.clone())),
            Keeper::Jobs => !has_job,
            _ => true,
        };
        all.iter().filter(is_said).collect()
    }

    /// Whether a job needs or may need it.
    pub(super) fn is_for_jobs(&self, id: &SnapshotId) -> bool {
        let is_job = |keeper: &Keeper| matches!(keeper, Keeper::Job(_) | Keeper::Jobs);
        self.by.get(id).is_some_and(|all| all.iter().any(is_job))
    }
}

fn is_needed(by: &BTreeSet<Keeper>) -> bool {
    by.iter().any(|keeper| !matches!(keeper, Keeper::History(_)))
}

/// What keeps each snapshot.
type KeptBy = BTreeMap<SnapshotId, BTreeSet<Keeper>>;

/// The snapshots that environments need: of those on this host the last one of each and what its history has, and of others what they have noted in the depot.
pub fn kept_by_environments(context: &UserContext) -> Result<KeptBy> {
    let mut found = kept_here(&context.config.history, || environments::list(context))?;
    for (name, id) in all_latest(&context.depot()?)? {
        found.entry(id).or_default().insert(Keeper::Latest(name));
    }
    Ok(found)
}

/// The same of this host's environments. One that is gone when it is looked at may have another name now, which `list` has not given: all are
/// looked at again.
fn kept_here(settings: &HistoryConfig, list: impl Fn() -> Result<Vec<Environment>>) -> Result<KeptBy> {
    for _ in 0..LISTINGS {
        if let Some(found) = kept_by_all(settings, list()?)? {
            return Ok(found);
        }
    }
    Err(Error::new("environments: they are renamed or removed again and again").hint("try again later"))
}

/// Nothing if one of these is gone.
fn kept_by_all(settings: &HistoryConfig, all: Vec<Environment>) -> Result<Option<KeptBy>> {
    let mut found = KeptBy::new();
    for env in all {
        let Some(dir) = TrustedDir::find(&env.dir, getuid().as_raw())? else { return Ok(None) };
        // By the directory itself, whatever its name is by now.
        let readable = dir.readable()?;
        if let Some(id) = last_snapshot(readable.as_fd()).map_err(ours)? {
            found.entry(id).or_default().insert(Keeper::Environment(env.name.clone()));
        }
        let KeptSnapshots { tags, recent } = history::kept(settings, &dir)?;
        for (tag, id) in tags {
            found.entry(id).or_default().insert(Keeper::Tag(env.name.clone(), tag));
        }
        for id in recent {
            found.entry(id).or_default().insert(Keeper::History(env.name.clone()));
        }
    }
    Ok(Some(found))
}

/// What cannot be read is written anew by the next submission.
fn all_latest(depot: &Path) -> Result<Vec<(EnvName, SnapshotId)>> {
    let of = |name: EnvName| match latest::get(depot, &name) {
        Ok(Some(JobSpec::Snapshot(snapshot))) => Some((name, snapshot.snapshot.parse().ok()?)),
        _ => None,
    };
    Ok(latest::names(depot)?.into_iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::depot::users::{SnapshotUsers, ask_by};
    use crate::job_records::{JobPlace, RecordKind};

    #[test]
    fn people_are_told_each_reason_once() {
        let (id, name) = (SnapshotId([1; 32]), |text: &str| text.parse::<EnvName>().unwrap());
        let mut keepers = Keepers::default();
        for keeper in [
            Keeper::Latest(name("dev")),
            Keeper::Environment(name("dev")),
            Keeper::Latest(name("other")),
            Keeper::Jobs,
            Keeper::Job(12),
            Keeper::Instance(name("web")),
            Keeper::Checkpoint("sim@2".into()),
        ] {
            keepers.add(Some(id), keeper);
        }
        let told: Vec<_> = keepers.of(&id).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["environment dev", "latest other", "instance web", "checkpoint sim@2", "job 12"]);
        assert!(keepers.is_for_jobs(&id) && keepers.of(&SnapshotId([2; 32])).is_empty());
    }

    fn environment(all: &std::path::Path, name: &str) -> Environment {
        let env = Environment::in_dir(all, name.parse().expect("a name"));
        std::fs::create_dir_all(&env.dir).expect("a directory");
        env
    }

    fn write_history(dir: &std::path::Path, byte: u8) {
        let entry = format!(
            r#"{{"snapshot":"{}","created":10,"origin":"job","entries":1,"bytes":1}}"#,
            SnapshotId([byte; 32])
        );
        let text = format!(
            r#"{{"format":1,"entries":[{entry}],"tags":{{"v{byte}":"{}"}}}}"#,
            SnapshotId([byte; 32])
        );
        std::fs::write(dir.join("history.json"), text).expect("a history");
    }

    #[test]
    fn an_environment_that_is_renamed_as_all_are_looked_at_keeps_its_snapshots() {
        let all = tempfile::tempdir().expect("a directory");
        let list =
            || ["new", "old"].map(|name| Environment::in_dir(all.path(), name.parse().expect("a name")));
        write_history(&environment(all.path(), "old").dir, 7);
        let listed = std::cell::Cell::new(0);
        let list_and_rename = || {
            listed.set(listed.get() + 1);
            let found = list().into_iter().filter(|env| env.dir.exists()).collect();
            if listed.get() == 1 {
                std::fs::rename(all.path().join("old"), all.path().join("new")).expect("renamed");
            }
            Ok(found)
        };
        let settings = HistoryConfig { snapshots: 1, days: 1 };
        let found = kept_here(&settings, list_and_rename).map_err(|e| e.message).expect("found");
        let kept = &found[&SnapshotId([7; 32])];
        let said: Vec<String> = kept.iter().map(ToString::to_string).collect();
        assert!(said.contains(&"tag new@v7".to_owned()), "{said:?}");
        assert_eq!(listed.get(), 2);
        let gone = || Ok(vec![Environment::in_dir(all.path(), "old".parse().expect("a name"))]);
        assert!(kept_here(&settings, gone).is_err_and(|e| e.message.contains("again and again")));
    }

    /// In a process of its own, as variables say where the depot is.
    #[test]
    fn what_a_history_takes_in_as_keepers_are_looked_for_is_kept() {
        const CHILD: &str = "SKIFF_KEEPERS_TEST";
        if std::env::var_os(CHILD).is_none() {
            let dir = tempfile::tempdir().expect("a directory");
            let own = std::env::current_exe().expect("this program");
            let name = "depot::keepers::tests::what_a_history_takes_in_as_keepers_are_looked_for_is_kept";
            let mut child = std::process::Command::new(own);
            child.args(["--quiet", "--exact", name]).env(CHILD, "1");
            child.env("SKIFF_STATE", dir.path().join("state")).env("SKIFF_DEPOT", dir.path().join("depot"));
            let child = child.output().expect("started");
            assert!(child.status.success(), "{child:?}");
            return;
        }
        let context = UserContext::load_silently().expect("a context");
        let path = context.depot().expect("a depot");
        let depot = Depot::open(&path).map_err(ours).expect("a depot");
        let home = environments::home(&context).expect("a directory");
        let env = environment(&home, "dev");
        std::fs::write(env.dir.join("env.toml"), "name = \"dev\"\n").expect("settings");
        // The job has run in snapshot 1, which the history has forgotten since.
        write_history(&env.dir, 2);
        std::fs::write(env.dir.join("history.snapshots"), format!("{}\n", SnapshotId([1; 32]))).expect("ids");
        for byte in [2, 3, 4] {
            let name = format!("snapshots/{}.json", SnapshotId([byte; 32]));
            std::fs::write(path.join(name), "").expect("a snapshot");
        }
        let records = JobRecords::make(&path).expect("made").expect("a depot");
        for (job, parent, snapshot) in [(7, 1, 3), (8, 9, 4)] {
            let record = format!(
                r#"{{"environment":"dev","parent":"{}","nodes":"all","of":1,"ended":15,"snapshot":"{}"}}"#,
                SnapshotId([parent; 32]),
                SnapshotId([snapshot; 32])
            );
            let record: serde_json::Value = serde_json::from_str(&record).expect("a record");
            let place = JobPlace { job, node: "n1".into(), root: "r".into() };
            records.write(&place, RecordKind::End, &record).expect("written");
        }
        ask_by(SnapshotUsers {
            jobs: |_| Ok(None),
            // Another process looks at the history at this moment.
            checkpoints: |context| {
                history::catch_up(context, &Environment::named(context, "dev".parse().expect("a name"))?);
                Ok(vec![])
            },
        });
        let contents = depot.contents().map_err(ours).expect("contents");
        let found = Keepers::find(&context, &depot, &contents, &JobList::None).expect("found");
        let kinds = |files: Vec<crate::job_records::RecordFile>| {
            files.into_iter().map(|file| (file.place.job, file.kind)).collect::<Vec<_>>()
        };
        // Job 8 ran in a snapshot of another host's environment.
        let all = kinds(records.all().expect("listed"));
        assert_eq!(all, [(7, RecordKind::Noted), (8, RecordKind::End)]);
        let needed: Vec<u8> = found.needed().into_iter().map(|id| id.0[0]).collect();
        assert_eq!(needed, [2, 3, 4]);
        let history = history::SnapshotHistory::of(&env.dir).expect("a history");
        assert_eq!(history.tags.get(&"job-7-n1".parse().expect("a tag")), Some(&SnapshotId([3; 32])));
    }
}
