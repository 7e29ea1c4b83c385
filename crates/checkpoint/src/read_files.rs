//! The files of a checkpoint that are read where they lie, after they have been checked: as images may be as large as the memory, no copy is made of them.
//! If one has changed by the time when all are read, nobody runs by it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use skiff_spec::fault::{Context as _, Fault, Result};

use crate::record::{self, Checkpoint, FileDigest};

/// Files as they were before they were checked.
pub struct ReadFiles {
    files: Vec<(String, FileState)>,
    /// Where their directory was.
    place: PathBuf,
}

/// By what a file that was written to, or has taken another's place, differs: its number and size, and when it and what is said of it have changed.
type FileState = (u64, u64, [i64; 4]);

impl ReadFiles {
    /// Notes the state of the files of the checkpoint in `dir`.
    ///
    /// # Errors
    /// One is not there.
    pub fn of(dir: &Path, checkpoint: &Checkpoint) -> Result<Self> {
        let state = |file: &FileDigest| Ok((file.path.clone(), state(dir, &file.path)?));
        let files = checkpoint.files.iter().map(state).collect::<Result<_>>()?;
        Ok(Self { files, place: record::place_of(dir) })
    }

    /// Refuses them if one has changed while it was read.
    ///
    /// # Errors
    /// One has, or it is gone, and its directory is not.
    pub fn refuse_changed(&self, dir: &Path) -> Result<()> {
        let place = record::place_of(dir);
        let has_changed = |(path, before): &&(String, FileState)| match state(dir, path) {
            // A newer checkpoint may have taken the place of all, and these are being removed.
            Err(_) => place == self.place || dir.join(path).exists(),
            Ok(now) => now != *before,
        };
        self.files.iter().find(has_changed).map_or(Ok(()), |(path, _)| {
            let place = place.display();
            Err(Fault::new(format!("checkpoint {place}: {path} has changed while it was read"))
                .hint("nothing is restored, as it would come back wrong"))
        })
    }
}

fn state(dir: &Path, path: &str) -> Result<FileState> {
    let file = record::open(dir, path)?.metadata().context(|| path.to_owned())?;
    let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
    Ok((file.ino(), file.len(), times))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes, rename, write};

    use super::*;
    use crate::record::{CheckpointDir, IMAGES};

    #[test]
    fn files_that_change_while_they_are_read_are_refused() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = format!("{IMAGES}/core-2.img");
        let at = temp.path().join("work").join(&path);
        std::fs::create_dir_all(at.parent().expect("a directory")).expect("made");
        write(&at, "one").expect("written");
        let held = CheckpointDir::open(&temp.path().join("work")).expect("opened");
        let dir = held.path();
        let files = vec![FileDigest::of(&dir, &path).expect("summed")];
        let checkpoint = Checkpoint { files, ..record::tests::example() };
        let refused = |read: &ReadFiles| {
            let why = read.refuse_changed(&dir).expect_err("it has changed");
            assert!(why.message.contains("core-2.img has changed"), "{why}");
        };
        let read = ReadFiles::of(&dir, &checkpoint).expect("read");
        assert_eq!(read.refuse_changed(&dir), Ok(()));
        // Who writes may set the time of that back.
        let modified = at.metadata().and_then(|found| found.modified()).expect("known");
        write(&at, "two").expect("written");
        let times = FileTimes::new().set_modified(modified);
        File::options().write(true).open(&at).and_then(|file| file.set_times(times)).expect("set");
        // A file system may count time in ticks.
        if at.metadata().expect("there").ctime_nsec() != read.files[0].1.2[3] {
            refused(&read);
        }
        let read = ReadFiles::of(&dir, &checkpoint).expect("read");
        rename(&at, temp.path().join("old")).expect("renamed");
        refused(&read);
        rename(temp.path().join("work"), temp.path().join(".trash")).expect("renamed");
        assert_eq!(read.refuse_changed(&dir), Ok(()), "all of it is being removed");
        write(dir.join(&path), "one").expect("written");
        refused(&read);
    }
}
