//! The ids of all snapshots that an environment has had, also of those that its history has forgotten. A job that ends long after its submission has
//! changed one of these. The environment's name does not suffice, since another host may have an environment of the same name.

use std::collections::BTreeSet;

use skiff_site::TrustedDir;
use skiff_snapshot::SnapshotId;
use skiff_spec::fault::Result;
use skiff_sys::IgnoreError;

use super::SnapshotHistory;

/// In the environment's directory: an id on each line, the newest last.
const FILE: &str = "history.snapshots";
/// Of so many snapshots it is known. (Of which most were taken by submissions, and jobs end in some days.)
const MOST: usize = 10_000;

/// The snapshots that the environment in this directory has had. What is not the id of one says nothing.
pub(super) fn all(dir: &TrustedDir) -> Vec<SnapshotId> {
    let read = dir.read(FILE).default_on_error("a program of the user's may have put anything there");
    let bytes = read.unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().filter_map(|line| line.parse().ok()).collect()
}

/// Notes what a history has had before a change, and has after it. Nothing is written where all of that is known.
pub(super) fn note(dir: &TrustedDir, before: &SnapshotHistory, after: &SnapshotHistory) -> Result<()> {
    let mut all = all(dir);
    let mut known: BTreeSet<SnapshotId> = all.iter().copied().collect();
    let count = all.len();
    all.extend(before.ids().chain(after.ids()).filter(|id| known.insert(*id)));
    if all.len() == count {
        return Ok(());
    }
    let text: String = all[all.len().saturating_sub(MOST)..].iter().map(|id| format!("{id}\n")).collect();
    Ok(dir.write(FILE, text.as_bytes(), 0o600)?)
}

#[cfg(test)]
mod tests {
    use skiff_snapshot::SnapshotId;

    use super::super::tests::{history, id};
    use super::*;

    #[test]
    fn what_a_history_has_forgotten_is_known_and_so_it_is_where_the_history_was_removed() {
        let path = tempfile::tempdir().expect("a directory");
        let dir = TrustedDir::open(path.path(), rustix::process::getuid().as_raw()).expect("opened");
        assert!(all(&dir).is_empty());
        let (first, second) = (history(&[(1, 10)], &[("tag", 7)]), history(&[(2, 20)], &[]));
        note(&dir, &first, &second).expect("noted");
        note(&dir, &SnapshotHistory::default(), &history(&[(3, 30)], &[])).expect("noted");
        assert_eq!(all(&dir), [1, 7, 2, 3].map(id));
        let before = dir.stat(FILE).expect("asked").expect("there");
        note(&dir, &second, &first).expect("known");
        assert_eq!(dir.stat(FILE).expect("asked").expect("there").st_ino, before.st_ino);
        std::fs::write(path.path().join(FILE), format!("x\n{}\n\u{1b}[2J\n", id(4))).expect("written");
        assert_eq!(all(&dir), [id(4)]);
        let many = (0..MOST as u64 + 5).map(|number| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            SnapshotId(bytes)
        });
        let text: String = many.map(|id| format!("{id}\n")).collect();
        std::fs::write(path.path().join(FILE), text).expect("written");
        note(&dir, &second, &second).expect("noted");
        let left = all(&dir);
        assert_eq!((left.len(), left.last()), (MOST, Some(&id(2))));
    }
}
