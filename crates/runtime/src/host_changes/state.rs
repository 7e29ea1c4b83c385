//! What a running environment has seen of the host, as a file in its directory: lines of text.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use skiff_spec::fault::Result;
use skiff_sys::small_file;
use skiff_user::dirs;

use super::full::FullLook;
use super::walk::{ChangeTime, DirStamp};

/// Name of the file.
const FILE: &str = "host-state";
/// The first line; another one was written by another version.
const HEAD: &str = "skiff-host-state 1";
/// The file is the user's, and no reason to take up all memory.
const LONGEST: u64 = 1 << 20;

/// Directories of the host, with the time of their last change when the environment last forgot what it had looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostState {
    /// Directories of the quick look, the likeliest first.
    pub(super) dirs: Vec<(PathBuf, DirStamp)>,
    /// All of them; nothing until the first full look has ended.
    pub(super) full: Option<FullLook>,
}

impl HostState {
    /// The state of the environment in `dir`; nothing if there is none, or none that can be read.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        let text = small_file::read_below(CWD, dir.join(FILE), LONGEST).ok()?;
        Self::from_text(std::str::from_utf8(&text).ok()?)
    }

    /// Puts it in place of the one there.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        Ok(dirs::open(dir)?.write(FILE, self.to_text().as_bytes(), 0o600)?)
    }

    fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        let mut line = |words: std::fmt::Arguments<'_>| writeln!(text, "{words}").unwrap_or(());
        if let Some(FullLook { sum, newest: ChangeTime(seconds, nanoseconds) }) = self.full {
            line(format_args!("{} {seconds} {nanoseconds}", sum.map_or("-".into(), |sum| sum.to_string())));
        } else {
            line(format_args!("none"));
        }
        for (path, DirStamp { inode, changed: ChangeTime(seconds, nanoseconds) }) in &self.dirs {
            // A name that is no text or has a line break in it is left to the full look.
            if let Some(path) = path.to_str().filter(|path| !path.contains('\n')) {
                line(format_args!("{inode} {seconds} {nanoseconds} {path}"));
            }
        }
        text
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let full = match lines.next()? {
            "none" => None,
            line => Some(full(line)?),
        };
        Some(Self { dirs: lines.map(directory).collect::<Option<_>>()?, full })
    }
}

fn full(line: &str) -> Option<FullLook> {
    let (sum, newest) = line.split_once(' ')?;
    let sum = if sum == "-" { None } else { Some(sum.parse().ok()?) };
    let (seconds, nanoseconds) = newest.split_once(' ')?;
    Some(FullLook { sum, newest: ChangeTime(seconds.parse().ok()?, nanoseconds.parse().ok()?) })
}

fn directory(line: &str) -> Option<(PathBuf, DirStamp)> {
    let mut words = line.splitn(4, ' ');
    let inode = words.next()?.parse().ok()?;
    let changed = ChangeTime(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((words.next()?.into(), DirStamp { inode, changed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let stamp = |inode| DirStamp { inode, changed: ChangeTime(-1, 999_999_999) };
        let dirs = vec![(PathBuf::from("/"), stamp(2)), (PathBuf::from("/etc/a b"), stamp(u64::MAX))];
        let looks = [None, Some(Some(u64::MAX)), Some(None)];
        for sum in looks {
            let full = sum.map(|sum| FullLook { sum, newest: ChangeTime(5, 6) });
            let state = HostState { dirs: dirs.clone(), full };
            assert_eq!(HostState::from_text(&state.to_text()), Some(state));
        }
    }

    #[test]
    fn a_line_break_in_a_name_makes_no_line() {
        let dirs = vec![(PathBuf::from("/a\n1 2 3 /b"), DirStamp::default())];
        let text = HostState { dirs, full: None }.to_text();
        assert_eq!(HostState::from_text(&text), Some(HostState::default()));
    }

    #[test]
    fn what_is_no_state_is_none() {
        for text in
            ["", "skiff-host-state 2\nnone\n", "skiff-host-state 1\n", "skiff-host-state 1\nnone\n1 2 /etc\n"]
        {
            assert_eq!(HostState::from_text(text), None, "{text:?}");
        }
    }
}
