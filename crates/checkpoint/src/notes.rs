//! What is noted while processes are made again. Whoever makes them has no standard error any more: the command that waits for it says it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use skiff_output as output;
use skiff_sys::IgnoreError;
use skiff_sys::small_file;

/// A file in an instance's directory, a note in each line.
pub struct RestoreNotes(PathBuf);

impl RestoreNotes {
    /// Notes on the instance with this directory.
    #[must_use]
    pub fn of(instance: &Path) -> Self {
        Self(instance.join("notes"))
    }

    /// Adds one.
    pub fn add(&self, note: &str) {
        File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.0)
            .and_then(|mut file| writeln!(file, "{}", note.replace('\n', " ")))
            .ignore_error("what it tells of is done");
    }

    /// Says them, once.
    pub fn tell(&self) {
        let Ok(notes) = small_file::read(&self.0) else { return };
        String::from_utf8_lossy(&notes).lines().for_each(output::note);
        fs::remove_file(&self.0).ignore_error("it goes with the instance");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_line_and_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let notes = RestoreNotes::of(dir.path());
        notes.tell();
        notes.add("one\ntwo");
        notes.add("three");
        assert_eq!(fs::read_to_string(dir.path().join("notes")).unwrap(), "one two\nthree\n");
        notes.tell();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
