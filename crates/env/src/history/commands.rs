//! `skiff env history` and `skiff env tag`.

use serde::Serialize;
use skiff_output::{self as output, ListFormat};
use skiff_runtime::environments::Environment;
use skiff_snapshot::{Depot, SnapshotId};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, EnvRevision, Revision, TagName};
use skiff_user::context::UserContext;

use super::{HistoryEntry, SnapshotHistory, SnapshotOrigin, catch_up, change, short};
use crate::calling;
use crate::snapshot_fault::ours;

/// A snapshot, for people and programs.
#[derive(Serialize)]
struct ListedSnapshot<'a> {
    environment: &'a EnvName,
    /// How many are newer: `NAME@~NUMBER`.
    number: usize,
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
}

/// Prints the snapshots of an environment, newest first.
pub fn list(context: &UserContext, name: &EnvName, format: &ListFormat<'_>) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    catch_up(context, &env);
    let history = SnapshotHistory::of(&env.dir)?;
    let present = match history.entries.is_empty() {
        true => Default::default(),
        false => {
            Depot::open(&context.depot()?).and_then(|depot| skiff_snapshot::present(&depot)).map_err(ours)?
        }
    };
    let listed = |(number, entry): (usize, &'_ HistoryEntry)| {
        let HistoryEntry { snapshot, created, origin, entries, bytes, .. } = *entry;
        let removed = !present.contains(&snapshot);
        let entry = &history.entries[number];
        let tags = history.tags_of(snapshot).collect();
        let message = entry.message.as_deref();
        ListedSnapshot {
            environment: name,
            number,
            id: snapshot,
            created,
            origin,
            entries,
            bytes,
            tags,
            message,
            removed,
        }
    };
    let all: Vec<ListedSnapshot<'_>> = history.entries.iter().enumerate().map(listed).collect();
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    output::list(
        format,
        &all,
        |one| one.id.to_string(),
        || output::table(&["REF", "ID", "CREATED", "HOW", "FILES", "WRITTEN", "TAGS", "MESSAGE"], &rows),
    )
}

fn row(one: &ListedSnapshot<'_>) -> Vec<String> {
    let tags: Vec<&str> = one.tags.iter().map(|tag| tag.as_str()).collect();
    let how = one.origin.as_str();
    vec![
        format!("{AT}~{}", one.number),
        short(one.id),
        output::time(one.created),
        if one.removed { format!("{how}, removed") } else { how.into() },
        one.entries.to_string(),
        output::size(one.bytes),
        if tags.is_empty() { "-".into() } else { tags.join(",") },
        one.message.unwrap_or_default().into(),
    ]
}

/// Gives a snapshot a tag, the newest one of the environment's own if none is named; or takes a tag away.
pub fn tag(context: &UserContext, of: &EnvRevision, tag: Option<&TagName>) -> Result<()> {
    let name = calling::named_or_own(of.name.as_ref())?;
    let env = Environment::existing(context, name.clone())?;
    let depot = Depot::open(&context.depot()?).map_err(ours)?;
    change(context, &env, &depot, |history| match (tag, &of.revision) {
        (Some(tag), revision) => {
            let id = match revision {
                Some(revision) => history.find(&name, revision)?,
                None => history.find_newest_own(&name)?,
            };
            if !skiff_snapshot::present(&depot).map_err(ours)?.contains(&id) {
                return Err(Error::new(format!("environment {name}: snapshot {} was removed", short(id)))
                    .hint(format!("`skiff env history {name}` shows those that are there")));
            }
            history.set_tag(&name, tag, id)
        }
        (None, Some(revision @ Revision::Tag(tag))) => {
            history.find(&name, revision)?;
            history.tags.remove(tag);
            Ok(())
        }
        (None, _) => {
            let example = history.tags.keys().next().map_or("TAG", TagName::as_str);
            Err(Error::new(format!("{of} does not name a tag"))
                .hint(format!("type the tag that is to go: `skiff env tag --remove {name}{AT}{example}`")))
        }
    })
}
