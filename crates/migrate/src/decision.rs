//! Whether an instance that was offered has been taken, written down on the receiver's side in the instance's directory: `arrival`, with
//! the move's token, once its processes are made; `decision`, once it is said whether they run. That is said only once, by whoever is
//! first: the receiver that was told to go, or one that is asked later, when the connection was lost.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use skiff_runtime::lock;
use skiff_runtime::record::{InstanceDir, State};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::name::EnvName;
use skiff_sys::small_file;
use skiff_user::context::UserContext;

const ARRIVAL: &str = "arrival";
const DECISION: &str = "decision";
const TAKEN: &str = "taken";
const REFUSED: &str = "refused";

/// How long processes that may run can take until they do.
const PATIENCE: Duration = Duration::from_secs(20);

/// Notes that the instance is here and waits.
pub fn announce(dir: &Path, token: &str) -> Result<()> {
    let path = dir.join(ARRIVAL);
    small_file::write(&path, token.as_bytes()).context(|| path.display().to_string())
}

/// Notes that the instance may run; says whether that is so.
pub fn take(dir: &Path) -> Result<bool> {
    decide(dir, TAKEN)
}

/// Whether the one that was offered with this token has been taken. If nobody has said so yet, it never will be.
///
/// # Errors
/// The answer is not known yet: the instance was taken, and the receiver that makes it has neither let it run nor given up.
pub fn ask(context: &UserContext, instance: &EnvName, token: &str) -> Result<bool> {
    outcome(&InstanceDir::named(context, instance)?, token, PATIENCE)
}

fn outcome(record: &InstanceDir, token: &str, patience: Duration) -> Result<bool> {
    if !is_it(&record.dir, token)? || decide(&record.dir, REFUSED)? {
        return Ok(false);
    }
    let until = Instant::now() + patience;
    // It is about to run, or to be removed as it could not; or it has ended.
    while is_it(&record.dir, token)? {
        // Whoever makes it or runs it has the lock. Looked at first: one that ends says so before it gives the lock back.
        let is_abandoned = lock::try_lock(&record.dir)?.is_some();
        match record.state()? {
            State::Running(_) | State::Ended(_) => return Ok(true),
            // It did run, and this host has lost it.
            State::Lost if is_abandoned => return Ok(false),
            State::Lost if Instant::now() >= until => {
                return Err(Fault::new(format!(
                    "instance {}: it is taken, and does not run yet",
                    record.name
                )));
            }
            State::Lost => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(false)
}

/// Whether the instance in this directory is the one that was offered with this token.
fn is_it(dir: &Path, token: &str) -> Result<bool> {
    let path = dir.join(ARRIVAL);
    match small_file::read_to_string(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        there => Ok(there.context(|| path.display().to_string())? == token),
    }
}

/// Says so, unless something else has been said before; whether it is so now.
fn decide(dir: &Path, what: &str) -> Result<bool> {
    let about = || dir.join(DECISION).display().to_string();
    let new = dir.join(format!(".{DECISION}.{}", std::process::id()));
    small_file::write(&new, what.as_bytes()).context(about)?;
    let linked = fs::hard_link(&new, dir.join(DECISION));
    fs::remove_file(&new).context(about)?;
    match linked {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            Ok(small_file::read_to_string(&dir.join(DECISION)).context(about)? == what)
        }
        other => other.context(about).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decided_first_stays() {
        for (first, then) in [(TAKEN, REFUSED), (REFUSED, TAKEN)] {
            let dir = std::env::temp_dir().join(format!("skiff-decision.{first}.{}", std::process::id()));
            fs::create_dir_all(&dir).expect("made");
            for (what, so) in [(first, true), (then, false), (first, true)] {
                assert_eq!(decide(&dir, what).expect("said"), so, "{first}, then {what}");
            }
            assert_eq!(fs::read_dir(&dir).expect("read").count(), 1, "nothing else stays");
            fs::remove_dir_all(&dir).expect("gone");
        }
    }

    #[test]
    fn what_is_taken_and_still_made_is_not_said_to_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let record = InstanceDir {
            name: "a".parse().expect("a name"),
            dir: dir.path().canonicalize().expect("there"),
        };
        let within = |token, patience| outcome(&record, token, patience);
        // Processes that other tests start have a copy of the lock until they execute their program.
        let ask = |token| within(token, PATIENCE);
        assert_eq!(ask("t"), Ok(false), "nothing has come");
        announce(&record.dir, "t").expect("written");
        assert_eq!(ask("other"), Ok(false), "of another move");
        assert_eq!(take(&record.dir), Ok(true));
        let maker = lock::try_lock(&record.dir).expect("asked").expect("free");
        let e = within("t", Duration::from_millis(20)).expect_err("its maker lives");
        assert!(e.message.contains("does not run yet"), "{e}");
        drop(maker);
        assert_eq!(ask("t"), Ok(false), "its maker is dead");
        record.note_end(None).expect("written");
        assert_eq!(ask("t"), Ok(true), "it did run");
    }
}
