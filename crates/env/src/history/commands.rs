//! `skiff env history` and `skiff env tag`.

use std::collections::BTreeMap;

use serde::Serialize;
use skiff_output::{self as output, ListFormat};
use skiff_runtime::environments::Environment;
use skiff_snapshot::{Depot, SnapshotId};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, EnvRevision, Revision, TagName};
use skiff_user::context::UserContext;

use super::{HistoryEntry, SnapshotHistory, SnapshotOrigin, catch_up, change, check_message, short};
use crate::calling;
use crate::snapshot_fault::ours;

/// A snapshot, for people and programs.
#[derive(Serialize)]
struct ListedSnapshot<'a> {
    environment: &'a EnvName,
    /// How many of the environment's own states are newer: `NAME@~NUMBER`. A job's changes have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<usize>,
    id: SnapshotId,
    #[serde(serialize_with = "output::as_time")]
    created: u64,
    origin: SnapshotOrigin,
    entries: u64,
    bytes: u64,
    tags: Vec<&'a TagName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    /// Whether it is no longer in the depot.
    removed: bool,
    /// Whether a part of it is no longer in the depot.
    damaged: bool,
}

/// Prints the snapshots of an environment, newest first: all, or one that is named and those before.
pub fn list(context: &UserContext, of: &EnvRevision, format: &ListFormat<'_>) -> Result<()> {
    let name = &calling::named_or_own(of.name.as_ref())?;
    let env = Environment::existing(context, name.clone())?;
    catch_up(context, &env);
    let history = SnapshotHistory::of(&env.dir)?;
    let newest = of.revision.as_ref().map(|revision| history.find_entry(name, revision)).transpose()?;
    let present = match history.entries.is_empty() {
        true => Default::default(),
        false => {
            let contents = Depot::open(&context.depot()?).and_then(|depot| depot.contents()).map_err(ours)?;
            contents.snapshots.iter().map(|(id, one)| (*id, contents.is_whole(one))).collect()
        }
    };
    let mut all = listed(name, &history, &present);
    all.drain(..newest.unwrap_or(0));
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    output::list(
        format,
        &all,
        |one| one.id.to_string(),
        || output::table(&["REF", "ID", "CREATED", "HOW", "FILES", "WRITTEN", "TAGS", "MESSAGE"], &rows),
    )
}

/// `present`: the depot's snapshots, and whether each is whole.
fn listed<'a>(
    environment: &'a EnvName,
    history: &'a SnapshotHistory,
    present: &BTreeMap<SnapshotId, bool>,
) -> Vec<ListedSnapshot<'a>> {
    let mut numbers = 0..;
    let listed = |entry: &'a HistoryEntry| ListedSnapshot {
        environment,
        number: entry.is_own().then(|| numbers.next()).flatten(),
        id: entry.snapshot,
        created: entry.created,
        origin: entry.origin,
        entries: entry.entries,
        bytes: entry.bytes,
        tags: history.tags_of(entry.snapshot).collect(),
        message: entry.message.as_deref(),
        removed: !present.contains_key(&entry.snapshot),
        damaged: present.get(&entry.snapshot).is_some_and(|is_whole| !is_whole),
    };
    history.entries.iter().map(listed).collect()
}

fn row(one: &ListedSnapshot<'_>) -> Vec<String> {
    let tags: Vec<&str> = one.tags.iter().map(|tag| tag.as_str()).collect();
    let how = one.origin.as_str();
    vec![
        one.number.map_or_else(|| "-".into(), |number| format!("{AT}~{number}")),
        short(one.id),
        output::time(one.created),
        match (one.removed, one.damaged) {
            (true, _) => format!("{how}, removed"),
            (_, true) => format!("{how}, damaged"),
            _ => how.into(),
        },
        one.entries.to_string(),
        output::size(one.bytes),
        if tags.is_empty() { "-".into() } else { tags.join(",") },
        one.message.unwrap_or_default().into(),
    ]
}

/// Gives a snapshot a tag, a message or both, the newest one of the environment's own if none is named. Gives that newest one.
pub fn tag(
    context: &UserContext,
    env: &Environment,
    revision: Option<&Revision>,
    (tag, message): (Option<&TagName>, Option<&str>),
) -> Result<Option<SnapshotId>> {
    message.map_or(Ok(()), check_message)?;
    let name = &env.name;
    let depot = Depot::open(&context.depot()?).map_err(ours)?;
    change(context, env, &depot, |history| {
        let id = match revision {
            Some(revision) => history.find(name, revision)?,
            None => history.find_newest_own(name)?,
        };
        if !depot.snapshot_ids().map_err(ours)?.contains(&id) {
            return Err(Error::new(format!("environment {name}: snapshot {} was removed", short(id)))
                .hint(format!("`skiff env history {name}` shows those that are there")));
        }
        tag.map_or(Ok(()), |tag| history.set_tag(name, tag, id))?;
        if let Some(message) = message {
            history.set_message(id, message);
        }
        Ok(revision.is_none().then_some(id))
    })
}

/// Takes a tag away.
pub fn remove_tag(context: &UserContext, env: &Environment, of: &EnvRevision) -> Result<()> {
    let name = &env.name;
    let depot = Depot::open(&context.depot()?).map_err(ours)?;
    change(context, env, &depot, |history| match &of.revision {
        Some(revision @ Revision::Tag(tag)) => {
            history.find(name, revision)?;
            history.tags.remove(tag);
            Ok(())
        }
        _ => {
            let example = history.tags.keys().next().map_or("TAG", TagName::as_str);
            Err(Error::new(format!("{of} does not name a tag"))
                .hint(format!("type the tag that is to go: `skiff env tag --remove {name}{AT}{example}`")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_changes_have_no_number() {
        let entry = |byte: u8, origin| HistoryEntry {
            snapshot: SnapshotId([byte; 32]),
            created: 1,
            origin,
            message: None,
            entries: 1,
            bytes: 1,
        };
        let entries = vec![
            entry(3, SnapshotOrigin::JobChanges),
            entry(2, SnapshotOrigin::Job),
            entry(4, SnapshotOrigin::JobChanges),
            entry(1, SnapshotOrigin::Manual),
        ];
        let history = SnapshotHistory { entries, ..SnapshotHistory::default() };
        let name = "dev".parse().expect("a name");
        let all = listed(
            &name,
            &history,
            &BTreeMap::from([(SnapshotId([2; 32]), true), (SnapshotId([1; 32]), false)]),
        );
        assert_eq!(all.iter().map(|one| row(one)[0].clone()).collect::<Vec<_>>(), ["-", "@~0", "-", "@~1"]);
        let states = ["job's changes, removed", "job", "job's changes, removed", "by hand, damaged"];
        assert_eq!(all.iter().map(|one| row(one)[3].clone()).collect::<Vec<_>>(), states);
        let json = serde_json::to_value(&all).expect("plain");
        assert_eq!((json[0].get("number"), json[3]["number"].as_u64()), (None, Some(1)));
    }
}
