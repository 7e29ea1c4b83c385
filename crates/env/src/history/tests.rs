use super::*;

pub(super) fn id(byte: u8) -> SnapshotId {
    SnapshotId([byte; 32])
}

fn entry(snapshot: SnapshotId, created: u64) -> HistoryEntry {
    HistoryEntry { snapshot, created, origin: SnapshotOrigin::Job, message: None, entries: 1, bytes: 2 }
}

fn tag(name: &str) -> TagName {
    name.parse().expect("a tag")
}

/// Newest first.
pub(super) fn history(entries: &[(u8, u64)], tags: &[(&str, u8)]) -> SnapshotHistory {
    SnapshotHistory {
        format: FORMAT,
        entries: entries.iter().map(|(byte, created)| entry(id(*byte), *created)).collect(),
        tags: tags.iter().map(|(name, byte)| (tag(name), id(*byte))).collect(),
    }
}

fn bytes_of(ids: &BTreeSet<SnapshotId>) -> Vec<u8> {
    ids.iter().map(|id| id.0[0]).collect()
}

#[test]
fn an_unchanged_snapshot_adds_nothing_but_what_is_said_of_it() {
    let mut known = history(&[(2, 20), (1, 10)], &[]);
    known.add(entry(id(2), 30));
    assert_eq!(known, history(&[(2, 20), (1, 10)], &[]));
    known.add(HistoryEntry { message: Some("good".into()), ..entry(id(2), 30) });
    known.add(entry(id(2), 40));
    assert_eq!((known.entries.len(), known.entries[0].message.as_deref()), (2, Some("good")));
    // A second message is no accident's to write over the first.
    let name: EnvName = "dev".parse().expect("a name");
    known.refuse_second_message(&name, id(2), "good").expect("the same");
    known.refuse_second_message(&name, id(3), "oops").expect("of another snapshot");
    let refused = known.refuse_second_message(&name, id(2), "oops").expect_err("there is one");
    assert!(refused.message.ends_with("which has a message already: good"), "{refused:?}");
    assert!(refused.hint.contains("`skiff env tag -m TEXT dev@0202020202"), "{refused:?}");
    known.add(HistoryEntry { message: Some("oops".into()), ..entry(id(2), 45) });
    assert_eq!(known.entries[0].message.as_deref(), Some("good"));
    // One that is there, but not the newest: as after a rollback.
    known.add(entry(id(1), 50));
    assert_eq!(known.entries.iter().map(|entry| entry.created).collect::<Vec<_>>(), [50, 20, 10]);
}

#[test]
fn a_message_is_changed_where_the_snapshot_was_taken() {
    let mut known = history(&[(1, 30), (2, 20), (1, 10)], &[]);
    known.entries[0].origin = SnapshotOrigin::Rollback;
    known.set_message(id(1), "first");
    known.set_message(id(2), "second");
    let messages = |known: &SnapshotHistory| {
        known.entries.iter().map(|entry| entry.message.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(messages(&known), ["", "second", "first"]);
    known.set_message(id(2), "");
    known.entries.truncate(1);
    known.set_message(id(1), "only here");
    assert_eq!(messages(&known), ["only here"]);
}

#[test]
fn a_copy_of_a_snapshot_has_the_history_until_then() {
    let name: EnvName = "dev".parse().expect("a name");
    let known = history(&[(4, 40), (3, 30), (2, 20), (1, 10)], &[("new", 4), ("mid", 2), ("old", 1)]);
    let ended = |revision: &str| {
        let mut ended = known.clone();
        ended.end_with(&name, &revision.parse().expect("a reference")).expect("it is there");
        let ids: Vec<u8> = ended.entries.iter().map(|entry| entry.snapshot.0[0]).collect();
        (ids, ended.tags.keys().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(ended("mid"), (vec![2, 2, 1], vec!["mid".into(), "old".into()]));
    assert_eq!(ended("~0").0, [4, 4, 3, 2, 1]);
    let mut of_tag = history(&[(2, 20)], &[("gone", 7)]);
    of_tag.end_with(&name, &Revision::Tag(tag("gone"))).expect("a tag is enough");
    assert_eq!((of_tag.entries.len(), of_tag.entries[0].snapshot), (1, id(7)));
    assert_eq!(of_tag.entries[0].message.as_deref(), Some("copy of dev@gone"));
    assert_eq!(of_tag.entries[0].origin, SnapshotOrigin::Clone, "nothing was rolled back");
    let mut of_place = history(&[(3, 30), (2, 20)], &[]);
    of_place.end_with(&name, &Revision::Back(1)).expect("it is there");
    assert_eq!(
        of_place.entries[0].message,
        Some(format!("copy of dev@{}", short(id(2)))),
        "a place in the list moves"
    );
}

#[test]
fn what_is_kept_is_the_newest_what_has_tags_and_what_is_neither_too_old_nor_too_many() {
    let day = |days: u64| 1000 * DAY - days * DAY;
    let keep = |snapshots, days| config::HistoryConfig { snapshots, days };
    let all = [(5, day(1)), (4, day(2)), (3, day(3)), (2, day(50)), (1, day(100))];
    for (entries, tags, settings, want) in [
        (&all[..], &[][..], keep(100, 90), &[2, 3, 4, 5][..]),
        (&all, &[("old", 1)], keep(100, 90), &[1, 2, 3, 4, 5]),
        (&all, &[], keep(100, 0), &[1, 2, 3, 4, 5]),
        (&all, &[], keep(2, 90), &[4, 5]),
        // Those with tags do not count.
        (&all, &[("a", 5), ("b", 4)], keep(2, 90), &[2, 3, 4, 5]),
        (&all, &[], keep(0, 90), &[5]),
        (&all[3..], &[], keep(100, 7), &[2]),
        // A tag alone is enough, and a clock that went back no reason to remove anything.
        (&[], &[("only", 9)], keep(1, 1), &[9]),
        (&[(7, day(0) + DAY)], &[], keep(1, 1), &[7]),
    ] {
        let KeptSnapshots { tags: kept, mut recent } = history(entries, tags).kept(&settings, day(0));
        recent.extend(kept.into_values());
        assert_eq!(bytes_of(&recent), want, "{entries:?} {tags:?}");
    }
}

#[test]
fn what_has_left_the_depot_is_forgotten_when_it_is_old_and_what_has_a_tag_never() {
    let present = |bytes: &[u8]| bytes.iter().map(|byte| id(*byte)).collect::<BTreeSet<_>>();
    let entries = [(4, 4), (3, 3), (2, 2), (1, 1)];
    let (soon, later) = (5, 100 * DAY);
    for (keep, now, there, want) in [
        (100, later, &[1, 2, 3, 4][..], &[4, 3, 2, 1][..]),
        (100, later, &[2, 4], &[4, 2, 1]),
        // The depot may come back.
        (100, soon, &[], &[4, 3, 2, 1]),
        (2, soon, &[], &[4, 3, 1]),
        (2, soon, &[1, 2, 3, 4], &[4, 3, 1]),
        (0, soon, &[1, 2, 3, 4], &[4, 1]),
    ] {
        let mut known = history(&entries, &[("first", 1)]);
        known.forget(&config::HistoryConfig { snapshots: keep, days: 90 }, &present(there), now);
        let left: Vec<u8> = known.entries.iter().map(|entry| entry.snapshot.0[0]).collect();
        assert_eq!((&left[..], known.tags.len()), (want, 1), "{keep} {there:?}");
    }
    let known = history(&entries[..2], &[("first", 1)]);
    for (there, is_away) in [(&[][..], true), (&[7], true), (&[1], false), (&[3], false)] {
        assert_eq!(known.is_all_away(&present(there)), is_away, "{there:?}");
    }
    assert!(!history(&[], &[]).is_all_away(&present(&[])), "there was nothing");
}

#[test]
fn references_find_one_snapshot_or_say_which_there_are() {
    let name: EnvName = "dev".parse().expect("a name");
    let mut known = history(&[(0xab, 3), (0xcd, 2)], &[("v1", 0xcd)]);
    let mut twin = [0xab; 32];
    twin[10] = 0;
    known.entries.push(entry(SnapshotId(twin), 1));
    let find = |text: &str| known.find(&name, &text.parse().expect("a reference"));
    for (text, want) in [
        ("v1", id(0xcd)),
        ("~0", id(0xab)),
        ("~1", id(0xcd)),
        ("cdcdcd", id(0xcd)),
        ("abababababababababab00", SnapshotId(twin)),
    ] {
        assert_eq!(find(text).expect(text), want, "{text}");
    }
    for (text, message, hint) in [
        ("v2", "there is no snapshot v2", "there are: v1, @~0 to @~2, abababababab, cdcdcdcdcdcd;"),
        ("~3", "there is no snapshot ~3", "@~0 to @~2"),
        ("476e3", "there is no snapshot 476e3", "; an ID needs 6 digits at least"),
        ("012345", "there is no snapshot 012345", "`skiff env history dev`"),
        ("ababab", "ababab is an ambiguous prefix", "use a longer one: ab"),
    ] {
        let refused = find(text).expect_err(text);
        assert!(refused.message.contains(message) && refused.hint.contains(hint), "{refused:?}");
    }
    let refused = SnapshotHistory::default().find(&name, &Revision::Back(0)).expect_err("there is none");
    assert!(refused.hint.contains("`skiff env snapshot dev`"), "{refused:?}");
}

#[test]
fn a_tag_never_moves_by_itself() {
    let name: EnvName = "dev".parse().expect("a name");
    let mut known = history(&[(2, 2), (1, 1)], &[("v1", 1)]);
    known.set_tag(&name, &tag("v1"), id(1)).expect("it is so");
    known.set_tag(&name, &tag("v2"), id(1)).expect("another for the same");
    let refused = known.set_tag(&name, &tag("v1"), id(2)).expect_err("it names another");
    assert!(refused.hint.contains("skiff env tag --remove dev@v1"), "{refused:?}");
    assert_eq!(known.tags[&tag("v1")], id(1));
}

#[test]
fn a_history_comes_back_as_it_was_and_nothing_else_is_taken_for_one() {
    let known = history(&[(2, 2), (1, 1)], &[("v1", 1)]);
    let text = serde_json::to_string(&known).expect("plain");
    assert_eq!(SnapshotHistory::parse(text.as_bytes()), Ok(known));
    for (from, to, why) in [
        ("\"format\":1", "\"format\":2", "format 2 is unknown here"),
        ("\"created\"", "\"made\"", "unknown field"),
        ("0202", "zz02", "not a digest"),
        ("\"v1\"", "\"../v1\"", "must begin with"),
        ("}", "", "EOF"),
    ] {
        let broken =
            if to.is_empty() { text[..text.len() / 2].to_owned() } else { text.replacen(from, to, 1) };
        let refused = SnapshotHistory::parse(broken.as_bytes()).expect_err(to);
        assert!(refused.contains(why), "{from} -> {to}: {refused}");
    }
}

#[test]
fn what_is_meant_without_a_name_is_never_what_a_job_has_changed() {
    let name: EnvName = "dev".parse().expect("a name");
    let mut known = history(&[(3, 30), (2, 20), (1, 10)], &[]);
    known.entries[0].origin = SnapshotOrigin::JobChanges;
    assert_eq!(known.find_newest_own(&name).ok(), Some(id(2)));
    known.entries.truncate(1);
    let why = known.find_newest_own(&name).expect_err("none of its own");
    assert_eq!(why.message, "environment dev: only jobs' changes are in its history");
    assert!(history(&[], &[]).find_newest_own(&name).is_err());
}

#[test]
fn places_count_what_the_environment_was_so_that_the_first_takes_a_rollback_back() {
    let name: EnvName = "dev".parse().expect("a name");
    // A; then B, which a job's submission has taken; and what that job has changed.
    let mut known = history(&[(3, 30), (2, 20), (1, 10)], &[("a", 1)]);
    known.entries[0].origin = SnapshotOrigin::JobChanges;
    let find = |known: &SnapshotHistory, back| known.find(&name, &Revision::Back(back)).map_err(|e| e.hint);
    assert_eq!((find(&known, 0), find(&known, 1)), (Ok(id(2)), Ok(id(1))));
    let refused = find(&known, 2).expect_err("only two of its own");
    assert!(refused.contains("@~0 to @~1"), "{refused}");
    let rollback = |known: &mut SnapshotHistory, from, to, at| {
        known.add(HistoryEntry { origin: SnapshotOrigin::BeforeRollback, ..entry(id(from), at) });
        known.add(HistoryEntry { origin: SnapshotOrigin::Rollback, ..entry(id(to), at) });
    };
    rollback(&mut known, 2, 1, 40);
    assert_eq!((find(&known, 0), find(&known, 1)), (Ok(id(1)), Ok(id(2))), "B was a snapshot already");
    // Another one, of what no snapshot had.
    rollback(&mut known, 4, 1, 60);
    assert_eq!((find(&known, 0), find(&known, 1)), (Ok(id(1)), Ok(id(4))));
    // A job's changes that come in only now move nothing.
    known.entries.insert(0, HistoryEntry { origin: SnapshotOrigin::JobChanges, ..entry(id(5), 70) });
    assert_eq!(find(&known, 1), Ok(id(4)));
    known.entries.retain(|entry| !entry.is_own());
    assert!(find(&known, 0).is_err());
}
