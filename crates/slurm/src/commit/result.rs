//! What came of commits, as files in the directory of a job's root.

use std::fs;
use std::path::Path;

use rustix::fs::CWD;
use skiff_env::job_records::JobFigures;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::{IgnoreError, small_file};

use super::LONGEST;

/// In the directory of a root: there once its changes are kept, or that has failed and was told.
const DONE: &str = "commit-done";
/// At most this many roots that have ended by themselves are counted in the node's figures.
const MOST_COUNTED: u32 = 16;
/// A job on a node has no more roots: each was started.
const MOST_EARLIER: u32 = 100_000;

/// What came of a commit, for the node's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitResult {
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

/// Notes what came of it.
pub(super) fn mark_done(dir: &Path, result: CommitResult) {
    let file = dir.join(DONE);
    small_file::write(&file, result.to_text().as_bytes()).ignore_error("what is kept twice is one snapshot");
}

/// Adds the results of the commits in a root's directory to the job's figures.
pub fn add_result(dir: &Path, figures: &mut JobFigures) {
    let earlier = (1..=MOST_COUNTED).map(|number| format!("{DONE}.{number}"));
    for name in earlier.chain([DONE.to_owned()]) {
        let text = small_file::read_below(CWD, dir.join(name), LONGEST).ok();
        match text.and_then(|text| CommitResult::parse(&String::from_utf8_lossy(&text))) {
            Some(CommitResult::Kept(bytes)) => figures.kept.push(bytes),
            Some(CommitResult::Unchanged) => figures.unchanged += 1,
            Some(CommitResult::Failed) => figures.failed += 1,
            None => {}
        }
    }
}

/// Whether a root's changes are not to be looked at again.
pub(super) fn is_done(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(DONE)).is_ok_and(|found| found.is_file())
}

/// The number of a root that has ended by itself, which no other of this directory has: its record in the depot is called by it.
pub(super) fn next_earlier(dir: &Path) -> u32 {
    let is_free = |number: &u32| fs::symlink_metadata(dir.join(format!("{DONE}.{number}"))).is_err();
    (1..MOST_EARLIER).find(is_free).unwrap_or(MOST_EARLIER)
}

/// Has the result of a root that has ended be that of an earlier one.
pub(super) fn set_aside(dir: &Path, number: u32) -> Result<()> {
    let (from, to) = (dir.join(DONE), dir.join(format!("{DONE}.{number}")));
    match fs::rename(&from, to) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.context(|| from.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_root_that_has_ended_by_itself_has_a_number_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        for number in 1..=MOST_COUNTED + 4 {
            assert_eq!(next_earlier(dir.path()), number);
            mark_done(dir.path(), CommitResult::Kept(number.into()));
            set_aside(dir.path(), number).expect("set aside");
        }
        let mut figures = JobFigures::default();
        add_result(dir.path(), &mut figures);
        assert_eq!(figures.kept, (1..=u64::from(MOST_COUNTED)).collect::<Vec<_>>());
    }

    #[test]
    fn results_come_back() {
        for result in [CommitResult::Kept(7), CommitResult::Unchanged, CommitResult::Failed] {
            assert_eq!(CommitResult::parse(&result.to_text()), Some(result));
        }
        assert_eq!(["", "kept", "kept x", "kept -1"].map(CommitResult::parse), [None; 4]);
    }
}
