//! That an instance is being given away, written down on the sender's side: where it goes, and which CRIU, itself stopped, holds its
//! processes. Of a sender that comes to its end in that moment this stays, and the next one finds out what has become of it.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use skiff_runtime::control;
use skiff_runtime::record::InstanceDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::process::positive_pid;
use skiff_sys::{IgnoreError, small_file};

use crate::lock_hand_over::HeldLocks;

const FILE: &str = "leaving";

/// How long a process may take to be stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// One that is being given away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InDoubtRecord {
    /// The other host.
    pub node: String,
    /// By which the move is known there.
    pub token: String,
    /// The number of CRIU's process.
    criu: i32,
    /// When that was started, as the kernel counts it: numbers come again.
    started: u64,
    /// The locks on files that its processes had, and share with those there.
    #[serde(default)]
    pub locks: HeldLocks,
}

impl InDoubtRecord {
    /// Writes it down, and stops CRIU, so that nobody but us can make the processes run again.
    pub fn begin(
        record: &InstanceDir,
        criu: Pid,
        node: &str,
        token: String,
        locks: HeldLocks,
    ) -> Result<Self> {
        let number = criu.as_raw_nonzero().get();
        let (_, started) = look(number).ok_or_else(|| Error::new("CRIU has ended"))?;
        let leaving = Self { node: node.into(), token, criu: number, started, locks };
        leaving.write(&path(record))?;
        leaving.hold(criu).inspect_err(|_| leaving.stay(record).ignore_error("the next command asks the other host, which has not taken the instance, and removes the note"))?;
        Ok(leaving)
    }

    fn hold(&self, criu: Pid) -> Result<()> {
        kill_process(criu, Signal::STOP).context(|| "CRIU")?;
        let until = Instant::now() + PATIENCE;
        loop {
            match look(self.criu) {
                Some(('T', _)) => return Ok(()),
                Some(_) if Instant::now() < until => std::thread::sleep(Duration::from_micros(200)),
                _ => return Err(Error::new("CRIU cannot be stopped")),
            }
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let about = || path.display().to_string();
        let text = serde_json::to_vec(self).map_err(|e| Error::new(format!("{}: {e}", about())))?;
        let new = path.with_extension("new");
        let mut file = small_file::create(&new).context(about)?;
        file.write_all(&text)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, path))
            .context(about)
    }

    /// The one that was left, if one was.
    pub fn left(record: &InstanceDir) -> Result<Option<Self>> {
        let path = path(record);
        match small_file::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            text => serde_json::from_slice(&text.context(|| path.display().to_string())?)
                .map(Some)
                .map_err(|e| Error::new(format!("{}: {e}", path.display()))),
        }
    }

    /// Notes that the instance stays: CRIU goes on, and if nobody tells it otherwise it lets the processes go on.
    pub fn stay(&self, record: &InstanceDir) -> Result<()> {
        let path = path(record);
        fs::remove_file(&path).context(|| path.display().to_string())?;
        self.release();
        Ok(())
    }

    fn release(&self) {
        // If it is gone, so is what it held.
        if let (Some((_, started)), Some(criu)) = (look(self.criu), positive_pid(self.criu))
            && started == self.started
        {
            kill_process(criu, Signal::CONT).ignore_error("it may have ended this moment");
        }
    }
}

/// Notes that the instance has gone: what is here ends, CRIU with it.
pub fn end(record: &InstanceDir) -> Result<()> {
    record.note_end(Some(skiff_spec::instance::End::Moved))?;
    control::stop_at(&record.dir)?;
    match fs::remove_file(path(record)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context(|| path(record).display().to_string()),
        _ => Ok(()),
    }
}

fn path(record: &InstanceDir) -> PathBuf {
    record.dir.join(FILE)
}

/// The state of a process, and when it was started.
fn look(number: i32) -> Option<(char, u64)> {
    parse(&small_file::read_to_string(Path::new(&format!("/proc/{number}/stat"))).ok()?)
}

/// From the text of `/proc/PID/stat`, whose second field may hold anything.
fn parse(stat: &str) -> Option<(char, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.first()?.chars().next()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let stat = "7 (a) b (c) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse(stat), Some(('T', 4711)));
        assert_eq!(parse("7 (a"), None);
        let own = i32::try_from(std::process::id()).expect("a number");
        assert!(look(own).is_some_and(|(_, started)| started > 0));
    }
}
