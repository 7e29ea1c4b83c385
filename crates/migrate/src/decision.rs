//! Whether an instance that was offered has been taken, written down on the receiver's side in the instance's directory: `arrival`, with
//! the move's token, once its processes are made; `decision`, once it is said whether they run. That is said only once, by whoever is
//! first: the receiver that was told to go, or one that is asked later, when the connection was lost.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::lock;
use skiff_runtime::record::{InstanceDir, State};
use skiff_spec::fault::{Context as _, Result};
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
pub fn ask(context: &UserContext, instance: &EnvName, token: &str) -> Result<bool> {
    let record = InstanceDir::named(context, instance)?;
    let is_it = || small_file::read_to_string(&record.dir.join(ARRIVAL)).is_ok_and(|there| there == token);
    if !is_it() || decide(&record.dir, REFUSED)? {
        return Ok(false);
    }
    let until = Instant::now() + PATIENCE;
    // It is about to run, or to be removed as it could not; or it has ended.
    while is_it() && Instant::now() < until {
        if Live::connect(&record.dir, ControlRequest::Status)?.is_some()
            || matches!(record.state()?, State::Ended(_))
        {
            return Ok(true);
        }
        if lock::try_lock(&record.dir)?.is_some() {
            // It did run, and this host has lost it.
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
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
}
