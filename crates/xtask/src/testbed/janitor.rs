//! The process that outlives the bed: makes the machine's changes, and undoes them however the bed ended.
//!
//! It is in a process group of its own (Ctrl-C does not reach it) and notices the end of `up` by the end of file on
//! its standard input, which even `kill -9` of `up` cannot suppress.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use super::bed::{Bed, PARENT, PREFIX};
use super::journal::STATE;
use super::process::wait_for;
use super::{cgroup, install, machine};

/// Serves one bed from before its start until after its end.
pub fn run(dir: &Path) -> anyhow::Result<()> {
    let bed = Bed::load(dir)?;
    let _mine = lock(dir, FlockOperation::NonBlockingLockShared)?;
    remove_stale_beds()?;
    let machine = machine::journal()?;
    let installed = install::journal()?;
    let prepared = machine::prepare(&machine).and_then(|()| put_files(&bed, &installed));
    if prepared.is_ok() {
        println!("ready");
        std::io::stdout().flush()?;
        // Nothing is ever written: reading returns when the other end is closed.
        std::io::stdin().read_to_end(&mut Vec::new()).context("cannot watch the bed")?;
        wait_for_end(&bed)?;
        keep_logs(&bed);
    }
    if bed.args.install.is_some() && installed.try_exclusive() {
        installed.undo()?;
        installed.unlock()?;
    }
    machine::release(&machine)?;
    remove_bed(dir)?;
    remove_state()?;
    prepared
}

/// Removes what beds have left whose janitor was killed, too.
pub fn clean_stale() -> anyhow::Result<()> {
    remove_stale_beds()?;
    for journal in [install::journal()?, machine::journal()?] {
        if journal.try_exclusive() {
            journal.undo()?;
            journal.unlock()?;
        }
    }
    remove_state()
}

fn put_files(bed: &Bed, journal: &super::journal::Journal) -> anyhow::Result<()> {
    let Some(tree) = &bed.args.install else { return Ok(()) };
    let holder = format!("the test bed {} (process {})", bed.dir.display(), std::process::id());
    // Its users' limits begin when it is up (tests/run), so it may wait for a bed that runs every test.
    journal.exclusive(
        "its files installed on this machine",
        &holder,
        Duration::from_secs(5400),
        maker_lives,
    )?;
    journal.undo()?;
    install::install(tree, Path::new("/"), journal)
}

/// Whether the process that wants the bed still has its end of our standard input.
fn maker_lives() -> bool {
    let stdin = std::io::stdin();
    let mut ends = [PollFd::new(&stdin, PollFlags::empty())];
    // A poll that fails tells nothing: the wait has a limit.
    let (Ok(_) | Err(_)) = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    !ends[0].revents().contains(PollFlags::HUP)
}

fn lock(path: &Path, operation: FlockOperation) -> anyhow::Result<File> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    flock(&file, operation).with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// The login node's process 1 holds the lock; the kernel kills everything in the bed right after it.
fn wait_for_end(bed: &Bed) -> anyhow::Result<()> {
    let path = bed.path("lock");
    wait_for("the end of the bed", Duration::from_secs(20), || {
        Ok(lock(&path, FlockOperation::NonBlockingLockExclusive).ok())
    })?;
    Ok(())
}

fn keep_logs(bed: &Bed) {
    let Some(target) = &bed.args.keep_logs else { return };
    let copy = std::process::Command::new("cp").arg("-rT").arg(bed.path("logs")).arg(target).status();
    if !copy.is_ok_and(|status| status.success()) {
        eprintln!("testbed: warning: cannot copy the logs to {}", target.display());
    }
}

fn remove_stale_beds() -> anyhow::Result<()> {
    for entry in fs::read_dir(PARENT).with_context(|| format!("cannot read {PARENT}"))? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // A directory that is being made right now is not locked yet.
        let settled = Duration::from_secs(5);
        let old = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > settled));
        if ours && old && lock(&entry.path(), FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_bed(&entry.path())?;
        }
    }
    Ok(())
}

/// Dying daemons may still write into the directory for a moment, so one failure is not the end.
fn remove_bed(dir: &Path) -> anyhow::Result<()> {
    cgroup::remove(dir)?;
    let mut last = String::new();
    wait_for("an empty bed", Duration::from_secs(10), || match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            last = error.to_string();
            Ok(None)
        }
        _ => Ok(Some(())),
    })
    .with_context(|| format!("cannot remove {}: {last}", dir.display()))
}

/// The directory of the journals goes when no bed has a change in it.
fn remove_state() -> anyhow::Result<()> {
    use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
    match fs::remove_dir(STATE) {
        Err(error) if !matches!(error.kind(), DirectoryNotEmpty | NotFound) => {
            Err(error).with_context(|| format!("cannot remove {STATE}"))
        }
        _ => Ok(()),
    }
}
