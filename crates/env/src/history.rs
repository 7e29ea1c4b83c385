//! An environment's history: which snapshots were taken of it, in a file of its directory, so that it goes where the environment goes.
//!
//! The file is read whole and replaced whole, under a lock of its own. Nothing else depends on it: with a damaged one, jobs run and
//! the environment can be used, but nothing can be said of its snapshots, and none of the depot's may be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;

use serde::{Deserialize, Serialize};
use skiff_runtime::environments::Environment;
use skiff_site::TrustedDir;
use skiff_snapshot::{Depot, SnapshotId};
use skiff_spec::config;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, FEWEST_DIGITS, Revision, TagName};
use skiff_sys::clock::{DAY, now};
use skiff_sys::{IgnoreError, small_file};
use skiff_user::context::UserContext;
use skiff_user::dirs;

mod commands;
mod file;
mod find;
mod from_jobs;
mod past;
#[cfg(test)]
mod tests;

pub use commands::{list, remove_tag, tag};
pub use file::{catch_up, change, copy, copy_until};
pub use find::{find, find_whole, open_depot_of};

/// In the environment's directory.
pub const FILE: &str = "history.json";
/// The version of the format written here, the only one read.
const FORMAT: u32 = 1;
/// Longest file that is read, in bytes.
const LONGEST: u64 = 16 << 20;
/// Longest message, in bytes.
const LONGEST_MESSAGE: usize = 4096;

/// On what occasion a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotOrigin {
    /// The user asked for it.
    Manual,
    /// A job was submitted.
    Job,
    /// An instance was started.
    Instance,
    /// The environment was about to be rolled back.
    BeforeRollback,
    /// The environment was rolled back to it.
    Rollback,
    /// The environment was made of it, as a copy of another one.
    Clone,
    /// A job has changed its environment on a node. It was never the environment's own state.
    JobChanges,
}

impl SnapshotOrigin {
    /// For people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "by hand",
            Self::Job => "job",
            Self::Instance => "instance",
            Self::BeforeRollback => "before rollback",
            Self::Rollback => "rollback",
            Self::Clone => "clone",
            Self::JobChanges => "job's changes",
        }
    }

    /// Whether it was then that the snapshot was taken: its message is of that moment.
    pub fn is_taking(self) -> bool {
        !matches!(self, Self::Rollback | Self::Clone)
    }
}

/// A snapshot that was taken, and what is remembered of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryEntry {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// When, in seconds since 1970.
    pub created: u64,
    /// On what occasion.
    pub origin: SnapshotOrigin,
    /// What the user said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Files and directories written to the depot.
    pub entries: u64,
    /// Bytes written to the depot.
    pub bytes: u64,
}

impl HistoryEntry {
    /// Whether the environment itself was so: what a job has changed in it was never there at home.
    fn is_own(&self) -> bool {
        self.origin != SnapshotOrigin::JobChanges
    }
}

/// All that is known of an environment's snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHistory {
    format: u32,
    /// Newest first. One snapshot may be there several times: after a rollback.
    pub entries: Vec<HistoryEntry>,
    /// Snapshots by their tags.
    pub tags: BTreeMap<TagName, SnapshotId>,
}

impl SnapshotHistory {
    /// The history of the environment in `dir`; an empty one if no snapshot was taken yet.
    pub fn of(dir: &Path) -> Result<Self> {
        Self::read(rustix::fs::CWD, &dir.join(FILE), &dir.join(FILE))
    }

    /// The same of the file that is called so in `dir`; `path` is for messages.
    fn read(dir: impl AsFd, name: &Path, path: &Path) -> Result<Self> {
        // What is there may be anything that a program of the user's has put there.
        match small_file::read_below(dir, name, LONGEST) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Self { format: FORMAT, ..Self::default() }),
            read => Self::parse(&read.context(|| path.display().to_string()).map_err(|e| damaged(e, path))?)
                .map_err(|why| damaged(Error::new(format!("{}: {why}", path.display())), path)),
        }
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let history: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        match history.format {
            FORMAT => Ok(history),
            other => Err(format!("format {other} is unknown here")),
        }
    }

    /// The tags of a snapshot.
    pub fn tags_of(&self, snapshot: SnapshotId) -> impl Iterator<Item = &TagName> {
        self.tags.iter().filter(move |(_, id)| **id == snapshot).map(|(tag, _)| tag)
    }

    /// Notes a snapshot, unless it is the newest of the environment's states already; then only what is said of it, if that is the first word.
    fn add(&mut self, entry: HistoryEntry) {
        let newest = self.entries.iter_mut().find(|newest| newest.is_own());
        match newest.filter(|newest| newest.snapshot == entry.snapshot) {
            Some(newest) => newest.message = newest.message.take().or(entry.message),
            None => self.entries.insert(0, entry),
        }
    }

    /// Refuses a message for a snapshot that is the newest already and has another one: that was said of it when it was taken.
    fn refuse_second_message(&self, name: &EnvName, snapshot: SnapshotId, message: &str) -> Result<()> {
        let newest = self.newest_own().filter(|newest| newest.snapshot == snapshot);
        match newest.and_then(|newest| newest.message.as_deref()).filter(|known| *known != message) {
            None => Ok(()),
            Some(known) => Err(Error::new(format!(
                "environment {name}: nothing has changed since snapshot {}, which has a message already: {known}",
                short(snapshot)
            ))
            .hint(format!("`skiff env tag -m TEXT {name}{AT}{}` gives it another message", short(snapshot)))),
        }
    }

    /// Has a snapshot's message be another one, or none if that is empty. Where the environment came back to it, the message is of when it was taken.
    fn set_message(&mut self, snapshot: SnapshotId, message: &str) {
        let is_taken = |entry: &HistoryEntry| entry.snapshot == snapshot && entry.origin.is_taking();
        let at = self.entries.iter().position(is_taken);
        let at = at.or_else(|| self.entries.iter().position(|entry| entry.snapshot == snapshot));
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            entry.message = Some(message.to_owned()).filter(|message| !message.is_empty());
        }
    }

    /// The environment's own states, newest first: these are what `~0`, `~1` ... count.
    fn own(&self) -> impl Iterator<Item = &HistoryEntry> {
        self.entries.iter().filter(|entry| entry.is_own())
    }

    /// The newest of the environment's own states.
    pub(crate) fn newest_own(&self) -> Option<&HistoryEntry> {
        self.own().next()
    }

    /// The snapshot that is meant where none is named.
    fn find_newest_own(&self, name: &EnvName) -> Result<SnapshotId> {
        match (self.newest_own(), self.entries.is_empty()) {
            (Some(entry), _) => Ok(entry.snapshot),
            (None, true) => Err(self.no_such(name, &Revision::Back(0))),
            (None, false) => {
                Err(Error::new(format!("environment {name}: only jobs' changes are in its history"))
                    .hint(format!("name one: `skiff env tag {name}{AT}REF TAG`")))
            }
        }
    }

    /// Has a tag name a snapshot; one that names another already stays as it is.
    fn set_tag(&mut self, name: &EnvName, tag: &TagName, snapshot: SnapshotId) -> Result<()> {
        match self.tags.get(tag).filter(|known| **known != snapshot) {
            Some(known) => Err(Error::new(format!(
                "environment {name}: tag {tag} already names another snapshot ({})",
                short(*known)
            ))
            .hint(format!("`skiff env tag --remove {name}{AT}{tag}` takes it away; or choose another"))),
            None => {
                self.tags.insert(tag.clone(), snapshot);
                Ok(())
            }
        }
    }

    /// Forgets what came after a snapshot, and notes that an environment that is made of it begins so.
    fn end_with(&mut self, name: &EnvName, revision: &Revision) -> Result<()> {
        let snapshot = self.find(name, revision)?;
        // What a tag alone has kept is older than all else.
        let before = self.find_entry(name, revision).unwrap_or(self.entries.len());
        self.entries.drain(..before);
        let left: BTreeSet<SnapshotId> = self.entries.iter().map(|entry| entry.snapshot).collect();
        self.tags.retain(|_, id| *id == snapshot || left.contains(id));
        let (origin, lasting) = (SnapshotOrigin::Clone, lasting(revision, snapshot));
        let message = Some(format!("copy of {name}{AT}{lasting}"));
        let begin = HistoryEntry { snapshot, created: now(), origin, message, entries: 0, bytes: 0 };
        self.entries.insert(0, begin);
        Ok(())
    }

    /// Forgets untagged snapshots: those of which there are too many, and old ones that have left the depot (`present` has those that are there).
    /// Tags stay in any case: no collection takes their snapshots, so if these are missing, another depot may have taken the place of theirs for a
    /// while. The untagged ones that are young come back with it.
    fn forget(&mut self, keep: &config::HistoryConfig, present: &BTreeSet<SnapshotId>, now: u64) {
        let tagged: BTreeSet<SnapshotId> = self.tags.values().copied().collect();
        let mut untagged = 0;
        self.entries.retain(|entry| {
            let is_tagged = tagged.contains(&entry.snapshot);
            untagged += u32::from(!is_tagged);
            let may_stay = present.contains(&entry.snapshot) || is_young(entry, keep, now);
            is_tagged || (may_stay && untagged <= keep.snapshots.max(1))
        });
    }

    /// Whether none of the snapshots is in the depot: it is another one, or an empty one.
    fn is_all_away(&self, present: &BTreeSet<SnapshotId>) -> bool {
        let mut ids = self.ids().peekable();
        ids.peek().is_some() && ids.all(|id| !present.contains(&id))
    }

    /// The snapshots that are to stay in the depot.
    fn kept(&self, keep: &config::HistoryConfig, now: u64) -> KeptSnapshots {
        let tags = self.tags.clone();
        let tagged: BTreeSet<SnapshotId> = tags.values().copied().collect();
        let untagged = self.entries.iter().filter(|entry| !tagged.contains(&entry.snapshot));
        let recent = untagged.take(keep.snapshots.max(1) as usize).filter(|entry| is_young(entry, keep, now));
        // Of the environment's own states, and of all.
        let newest = self.entries.first().into_iter().chain(self.newest_own());
        let recent = recent.chain(newest).map(|entry| entry.snapshot).collect();
        KeptSnapshots { tags, recent }
    }

    /// Where in the list that of a snapshot is which a user means: of one that was come back to, the newest.
    fn find_entry(&self, name: &EnvName, revision: &Revision) -> Result<usize> {
        let id = self.find(name, revision)?;
        let own = |back: u32| {
            self.entries.iter().enumerate().filter(|(_, entry)| entry.is_own()).nth(back as usize)
        };
        let at = match revision {
            Revision::Back(back) => own(*back).map(|(at, _)| at),
            _ => self.entries.iter().position(|entry| entry.snapshot == id),
        };
        at.ok_or_else(|| self.no_such(name, revision))
    }

    /// The snapshot that a user means.
    pub fn find(&self, name: &EnvName, revision: &Revision) -> Result<SnapshotId> {
        match revision {
            Revision::Tag(tag) => self.tags.get(tag).copied().ok_or_else(|| self.no_such(name, revision)),
            Revision::Back(back) => {
                let entry = self.own().nth(*back as usize);
                entry.map(|entry| entry.snapshot).ok_or_else(|| self.no_such(name, revision))
            }
            Revision::Digits(digits) => {
                let all: BTreeSet<SnapshotId> = self.ids().collect();
                let found: Vec<SnapshotId> =
                    all.into_iter().filter(|id| id.to_string().starts_with(digits)).collect();
                match found[..] {
                    [one] => Ok(one),
                    [] => Err(self.no_such(name, revision)),
                    _ => {
                        let ids: Vec<String> = found.iter().map(|id| long(*id, digits.len())).collect();
                        Err(Error::new(format!("environment {name}: {digits} is an ambiguous prefix"))
                            .hint(format!("use a longer one: {}", ids.join(", "))))
                    }
                }
            }
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SnapshotId> {
        self.entries.iter().map(|entry| entry.snapshot).chain(self.tags.values().copied())
    }

    fn no_such(&self, name: &EnvName, revision: &Revision) -> Error {
        let error = Error::new(format!("environment {name}: there is no snapshot {revision} in its history"));
        if self.entries.is_empty() && self.tags.is_empty() {
            return error.hint(format!("there are none yet; `skiff env snapshot {name}` takes one"));
        }
        let tags = self.tags.keys().map(ToString::to_string);
        let steps = self.own().count().checked_sub(1).map(|last| match last {
            0 => format!("{AT}~0"),
            last => format!("{AT}~0 to {AT}~{last}"),
        });
        let mut ids: Vec<String> = vec![];
        for id in self.entries.iter().map(|entry| short(entry.snapshot)) {
            if ids.len() < 5 && !ids.contains(&id) {
                ids.push(id);
            }
        }
        let all: Vec<String> = tags.chain(steps).chain(ids).collect();
        let short = match revision {
            Revision::Tag(tag) if tag.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                format!("; an ID needs {FEWEST_DIGITS} digits at least")
            }
            _ => String::new(),
        };
        error.hint(format!("there are: {}; `skiff env history {name}` lists all{short}", all.join(", ")))
    }
}

/// Whether a snapshot is not too old to be kept without a tag.
fn is_young(entry: &HistoryEntry, keep: &config::HistoryConfig, now: u64) -> bool {
    keep.days == 0 || now.saturating_sub(entry.created) <= u64::from(keep.days) * DAY
}

/// What names a snapshot later as well. A place in the list would not do: the next snapshot moves it.
pub fn lasting(revision: &Revision, snapshot: SnapshotId) -> String {
    match revision {
        Revision::Tag(tag) => tag.to_string(),
        Revision::Back(_) | Revision::Digits(_) => short(snapshot),
    }
}

/// The first digits of an id, as lists show them.
pub fn short(id: SnapshotId) -> String {
    long(id, FEWEST_DIGITS)
}

/// The first digits of an id, six more than `digits`.
fn long(id: SnapshotId, digits: usize) -> String {
    id.to_string().chars().take(digits + 6).collect()
}

fn damaged(e: Error, path: &Path) -> Error {
    e.hint(format!(
        "the environment itself is whole; `rm -rf {}` forgets its history, and the next snapshot begins a new one",
        path.display()
    ))
}

/// What an environment's history keeps in the depot.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeptSnapshots {
    /// What has a tag, whatever its age.
    pub tags: BTreeMap<TagName, SnapshotId>,
    /// The newest, and what is not too old.
    pub recent: BTreeSet<SnapshotId>,
}

/// What a snapshot is taken for.
#[derive(Clone, Debug)]
pub struct Occasion {
    /// See [`SnapshotOrigin`].
    pub origin: SnapshotOrigin,
    /// What the user says of it.
    pub message: Option<String>,
    /// The tag that the user gives it.
    pub tag: Option<TagName>,
}

impl From<SnapshotOrigin> for Occasion {
    fn from(origin: SnapshotOrigin) -> Self {
        Self { origin, message: None, tag: None }
    }
}

impl Occasion {
    /// Refuses what no history takes.
    pub fn check(&self) -> Result<()> {
        self.message.as_deref().map_or(Ok(()), check_message)
    }
}

/// Refuses a message that no history takes.
fn check_message(message: &str) -> Result<()> {
    match message.len() > LONGEST_MESSAGE {
        true => Err(Error::new(format!("message: longer than {LONGEST_MESSAGE} bytes"))),
        false => Ok(()),
    }
}

/// Notes a snapshot that was just taken. What was asked for beside it has to be written; without that, a history that cannot be
/// written is no reason not to run a job.
pub fn note(
    context: &UserContext,
    env: &Environment,
    depot: &Depot,
    taken: (SnapshotId, u64, u64),
    occasion: &Occasion,
) -> Result<()> {
    let (snapshot, entries, bytes) = taken;
    let Occasion { origin, message, tag } = occasion;
    let entry =
        HistoryEntry { snapshot, created: now(), origin: *origin, message: message.clone(), entries, bytes };
    let noted = change(context, env, depot, |history| {
        if let (SnapshotOrigin::Manual, Some(message)) = (origin, message) {
            history.refuse_second_message(&env.name, snapshot, message)?;
        }
        // Where the tag is taken, nothing is noted.
        tag.iter().try_for_each(|tag| history.set_tag(&env.name, tag, snapshot))?;
        history.add(entry);
        Ok(())
    });
    match noted {
        Err(e) if message.is_none() && tag.is_none() && *origin != SnapshotOrigin::BeforeRollback => {
            skiff_output::complain(&e);
            Ok(())
        }
        noted => noted,
    }
}

/// All snapshots that the environment in `dir` has had, as far as is known: also those taken under another name.
pub fn all_snapshots(dir: &Path) -> BTreeSet<SnapshotId> {
    let ids = |history: SnapshotHistory| history.ids().collect::<BTreeSet<_>>();
    let mut all = SnapshotHistory::of(dir)
        .map(ids)
        .default_on_error("with a damaged history the others are known by name");
    let had = dirs::open(dir).map(|dir| past::all(&dir));
    all.extend(had.default_on_error("those are in the history, or `skiff depot gc` removes them"));
    all
}

/// The snapshots that are to stay in the depot because of the history and the tags of the environment in `dir`.
///
/// # Errors
/// When the history cannot be read: then nothing can be said of any.
pub fn kept(settings: &config::HistoryConfig, dir: &TrustedDir) -> Result<KeptSnapshots> {
    let history = SnapshotHistory::read(dir, Path::new(FILE), &dir.path_of(FILE))?;
    Ok(history.kept(settings, now()))
}
