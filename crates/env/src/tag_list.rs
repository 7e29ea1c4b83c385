//! `skiff env tag NAME`: the tags of an environment's snapshots, for people and programs.

use serde::Serialize;
use skiff_output::{self as output, ListFormat};
use skiff_runtime::environments::Environment;
use skiff_snapshot::SnapshotId;
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_spec::revision::{Revision, TagName};
use skiff_user::context::UserContext;

use crate::history::{HistoryEntry, SnapshotHistory, catch_up, short};

/// A tag and its snapshot, for programs.
#[derive(Serialize)]
struct ListedTag<'a> {
    environment: &'a EnvName,
    tag: &'a TagName,
    id: SnapshotId,
    /// When the snapshot was taken, if the history still has it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "output::as_time_if_any")]
    created: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Prints the tags of an environment's snapshots, or of the one that is named.
pub fn print(
    context: &UserContext,
    env: &Environment,
    revision: Option<&Revision>,
    format: &ListFormat<'_>,
) -> Result<()> {
    catch_up(context, env);
    let history = SnapshotHistory::of(&env.dir)?;
    let only = revision.map(|revision| history.find(&env.name, revision)).transpose()?;
    let mut tags = listed(&env.name, &history);
    tags.retain(|tag| only.is_none_or(|only| only == tag.id));
    let row = |tag: &ListedTag<'_>| {
        let created = tag.created.map_or_else(|| "?".into(), output::time);
        vec![tag.tag.to_string(), short(tag.id), created, tag.message.unwrap_or_default().to_owned()]
    };
    let as_table =
        || output::table(&["TAG", "ID", "CREATED", "MESSAGE"], &tags.iter().map(row).collect::<Vec<_>>());
    output::list(format, &tags, |tag| tag.tag.to_string(), as_table)
}

fn listed<'a>(environment: &'a EnvName, history: &'a SnapshotHistory) -> Vec<ListedTag<'a>> {
    let tag = |(tag, id): (&'a TagName, &SnapshotId)| {
        let entry = taken(history, *id);
        let (created, message) = (entry.map(|entry| entry.created), entry.and_then(|e| e.message.as_deref()));
        ListedTag { environment, tag, id: *id, created, message }
    };
    history.tags.iter().map(tag).collect()
}

/// The entry of a snapshot's taking. Rollbacks to that snapshot and copies are entries, too, with messages of their own.
fn taken(history: &SnapshotHistory, id: SnapshotId) -> Option<&HistoryEntry> {
    let of_it = || history.entries.iter().filter(|entry| entry.snapshot == id);
    of_it().find(|entry| entry.origin.is_taking()).or_else(|| of_it().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SnapshotOrigin;

    #[test]
    fn a_rollback_is_not_the_snapshots_taking() {
        let entry = |origin, created, message: &str| HistoryEntry {
            snapshot: SnapshotId([1; 32]),
            created,
            origin,
            message: Some(message.into()),
            entries: 1,
            bytes: 1,
        };
        let mut history = SnapshotHistory::default();
        history.entries = [
            (SnapshotOrigin::Clone, 3, "copy of a@v1"),
            (SnapshotOrigin::Rollback, 2, "to v1"),
            (SnapshotOrigin::Manual, 1, "good"),
        ]
        .map(|(origin, created, message)| entry(origin, created, message))
        .into();
        history.tags.insert("v1".parse().expect("a tag"), SnapshotId([1; 32]));
        history.tags.insert("old".parse().expect("a tag"), SnapshotId([2; 32]));
        let name = "dev".parse().expect("a name");
        let said: Vec<_> = listed(&name, &history).iter().map(|tag| (tag.created, tag.message)).collect();
        assert_eq!(said, [(None, None), (Some(1), Some("good"))]);
    }
}
