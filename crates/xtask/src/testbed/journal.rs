//! Changes of the machine, written down before they are made, so that they can be undone after any crash.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::process::run;

/// Where journals and saved originals lie: they must outlive a reboot.
pub const STATE: &str = "/var/lib/skiff-testbed";
/// Where the locks lie. They are never removed: two beds could otherwise lock two files of one name.
const LOCKS: &str = "/run";

/// One thing that was not so before.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum HostChange {
    /// A file or symbolic link that was not there.
    File(PathBuf),
    /// A file that stood there already and was moved to the second path.
    Replaced(PathBuf, PathBuf),
    /// A directory that was not there.
    Dir(PathBuf),
    /// An account that was not there.
    User(String),
    /// A group that was not there.
    Group(String),
    /// A user (first) who was not in the group (second).
    Member(String, String),
}

/// An append-only list of changes with a lock beside it.
pub struct Journal {
    path: PathBuf,
    state: PathBuf,
    lock_path: PathBuf,
    lock: File,
}

impl Journal {
    /// Opens the journal of this name; nothing is locked yet.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        Self::open_in(Path::new(STATE), Path::new(LOCKS), name)
    }

    fn open_in(state: &Path, locks: &Path, name: &str) -> anyhow::Result<Self> {
        let lock_path = locks.join(format!("skiff-testbed-{name}"));
        let file = OpenOptions::new().create(true).append(true).open(&lock_path);
        let lock = file.with_context(|| format!("cannot open {}", lock_path.display()))?;
        Ok(Self { path: state.join(format!("{name}.journal")), state: state.into(), lock_path, lock })
    }

    /// Where a file that is about to be replaced can be kept.
    pub fn saved(&self, index: usize) -> PathBuf {
        self.state.join(format!("saved-{index}"))
    }

    /// Takes the lock alone, if nobody has it.
    pub fn try_exclusive(&self) -> bool {
        flock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Takes the lock together with others, if nobody has it alone.
    pub fn try_shared(&self) -> bool {
        flock(&self.lock, FlockOperation::NonBlockingLockShared).is_ok()
    }

    /// Lets the lock go.
    pub fn unlock(&self) -> anyhow::Result<()> {
        Ok(flock(&self.lock, FlockOperation::Unlock)?)
    }

    /// Waits for the lock alone, no longer than `limit`, and then writes into it who `holder` is. Says at once and then every minute
    /// which holder it waits for. `wanted` is asked whether there is still anybody to wait for.
    ///
    /// # Errors
    /// The holder did not let go in time, or `wanted` said no.
    pub fn exclusive(
        &self,
        what: &str,
        holder: &str,
        limit: Duration,
        wanted: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut next_word = Duration::ZERO;
        while !self.try_exclusive() {
            let waited = start.elapsed();
            if waited > limit {
                bail!("{} has {what} and did not end within {} s", self.holder(), limit.as_secs());
            }
            anyhow::ensure!(
                wanted(),
                "gave up waiting for {}: the command that wanted the bed has ended",
                self.holder()
            );
            if waited >= next_word {
                eprintln!(
                    "testbed: waiting for {}, which has {what} ({} s)",
                    self.holder(),
                    waited.as_secs()
                );
                next_word = waited + Duration::from_secs(60);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.lock
            .set_len(0)
            .and_then(|()| (&self.lock).write_all(holder.as_bytes()))
            .context("cannot name the lock's holder")
    }

    /// Who has the lock alone, as it wrote itself down.
    fn holder(&self) -> String {
        let text = fs::read_to_string(&self.lock_path).ok().filter(|text| !text.is_empty());
        text.unwrap_or_else(|| "another test bed".into())
    }

    /// Writes down what is about to be done.
    pub fn note(&self, change: &HostChange) -> anyhow::Result<()> {
        fs::create_dir_all(&self.state).with_context(|| format!("cannot make {}", self.state.display()))?;
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .with_context(|| format!("cannot open {}", self.path.display()))?;
        writeln!(file, "{}", serde_json::to_string(change)?)?;
        file.sync_data().with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Undoes everything, latest first. What is gone already is no error; what cannot be undone is reported and kept.
    pub fn undo(&self) -> anyhow::Result<()> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            text => text.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        let mut first_error = None;
        for line in text.lines().rev() {
            // The last line of a machine that lost power may be cut short: that change was not made yet.
            let Ok(change) = serde_json::from_str::<HostChange>(line) else { continue };
            if let Err(error) = undo(&change) {
                first_error.get_or_insert(error.context(format!("cannot undo {change:?}")));
            }
        }
        if let Some(error) = first_error {
            return Err(error.context(format!("{} is kept", self.path.display())));
        }
        fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

fn undo(change: &HostChange) -> anyhow::Result<()> {
    match change {
        HostChange::File(path) => gone(fs::remove_file(path)),
        HostChange::Replaced(path, saved) => gone(fs::rename(saved, path)),
        HostChange::Dir(path) => match fs::remove_dir(path) {
            // Somebody else put something in it meanwhile: then it is no longer ours to remove.
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            result => gone(result),
        },
        HostChange::User(name) if has_line("/etc/passwd", name)? => {
            run(Command::new("userdel").args(["-f", name]))
        }
        HostChange::Group(name) if has_line("/etc/group", name)? => run(Command::new("groupdel").arg(name)),
        HostChange::Member(user, group) if is_member(user, group)? => {
            run(Command::new("gpasswd").args(["-d", user, group]))
        }
        HostChange::User(_) | HostChange::Group(_) | HostChange::Member(..) => Ok(()),
    }
}

fn gone(result: std::io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => Ok(result?),
    }
}

/// Whether a file like /etc/passwd has a line for `name`.
pub fn has_line(file: &str, name: &str) -> anyhow::Result<bool> {
    Ok(fields(file, name)?.is_some())
}

/// Whether /etc/group names `user` as a further member of `group`.
pub fn is_member(user: &str, group: &str) -> anyhow::Result<bool> {
    let fields = fields("/etc/group", group)?;
    Ok(fields
        .is_some_and(|fields| fields.get(3).is_some_and(|list| list.split(',').any(|name| name == user))))
}

/// The colon-separated fields of the line that begins with `name`.
pub fn fields(file: &str, name: &str) -> anyhow::Result<Option<Vec<String>>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name));
    Ok(line.map(|line| line.split(':').map(String::from).collect()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A journal that has nothing to do with the machine's.
    pub fn journal_in(dir: &Path) -> Journal {
        Journal::open_in(&dir.join("state"), dir, "test").expect("journal")
    }

    #[test]
    fn a_line_cut_short_and_things_gone_already_do_not_stop_the_undoing() {
        let dir = tempfile::tempdir().expect("directory");
        let journal = journal_in(dir.path());
        let file = dir.path().join("made");
        fs::write(&file, "").expect("file");
        journal.note(&HostChange::File(file.clone())).expect("note");
        journal.note(&HostChange::File(dir.path().join("never made"))).expect("note");
        let text = fs::read_to_string(&journal.path).expect("journal") + "{\"Fi";
        fs::write(&journal.path, text).expect("journal");
        journal.undo().expect("undo");
        assert!(!file.exists() && !journal.path.exists());
    }

    #[test]
    fn only_one_can_have_the_lock_alone() {
        let dir = tempfile::tempdir().expect("directory");
        let (first, second) = (journal_in(dir.path()), journal_in(dir.path()));
        assert!(first.try_shared() && second.try_shared());
        assert!(!first.try_exclusive());
        second.unlock().expect("unlock");
        assert!(first.try_exclusive() && !second.try_shared());
    }

    #[test]
    fn who_waits_is_told_for_whom_and_gives_up_when_nobody_wants_the_bed_any_more() {
        let dir = tempfile::tempdir().expect("directory");
        let (first, second) = (journal_in(dir.path()), journal_in(dir.path()));
        let long = Duration::from_secs(60);
        first.exclusive("files installed", "bed one", long, || true).expect("nobody has it");
        let late =
            second.exclusive("files installed", "bed two", Duration::ZERO, || true).expect_err("in use");
        assert!(late.to_string().contains("bed one has files installed"), "{late}");
        let unwanted = second.exclusive("files installed", "bed two", long, || false).expect_err("in use");
        assert!(unwanted.to_string().contains("gave up waiting for bed one"), "{unwanted}");
        first.unlock().expect("unlock");
        second.exclusive("files installed", "bed two", long, || true).expect("free again");
        assert_eq!(first.holder(), "bed two");
    }
}
