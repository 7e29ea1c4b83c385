//! The few things of the machine itself that every bed needs: accounts and mount points.
//!
//! They cannot be bind-mounted over in the bed, because Skiff's environments stand on a non-recursive clone of `/`,
//! which would show the file below. So they are really made where they are missing, shared by all beds that are up,
//! and removed by the last one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::bed::USERS;
use super::journal::{HostChange, Journal, has_line, is_member};
use super::process::{run, wait_for};

/// The group whose members sshd sends into an environment.
pub const GROUP: &str = "skiff";
const MOUNT_POINTS: [&str; 5] = ["/shared", "/var/lib/skiff", "/var/cache/skiff", "/etc/slurm", "/home"];

/// Opens the journal of the machine's changes.
pub fn journal() -> anyhow::Result<Journal> {
    Journal::open("machine")
}

/// Makes what is missing and keeps a share of the lock, so that it stays while this bed lives.
pub fn prepare(journal: &Journal) -> anyhow::Result<()> {
    let state = "the machine's accounts for the test bed (another bed is changing them)";
    wait_for(state, Duration::from_secs(60), || {
        if journal.try_exclusive() {
            journal.undo()?;
            for change in missing()? {
                journal.note(&change)?;
                make(&change)?;
            }
        }
        // A bed that was just leaving may have undone everything between our two looks: then once more.
        Ok((journal.try_shared() && missing()?.is_empty()).then_some(()))
    })
}

/// Undoes the changes if this was the last bed.
pub fn release(journal: &Journal) -> anyhow::Result<()> {
    if journal.try_exclusive() {
        journal.undo()?;
    }
    journal.unlock()
}

fn missing() -> anyhow::Result<Vec<HostChange>> {
    let mut changes: Vec<HostChange> = MOUNT_POINTS
        .iter()
        .filter(|path| !Path::new(path).is_dir())
        .map(|path| HostChange::Dir(PathBuf::from(path)))
        .collect();
    if !has_line("/etc/group", GROUP)? {
        changes.push(HostChange::Group(GROUP.into()));
    }
    for user in USERS {
        if !has_line("/etc/passwd", user)? {
            changes.push(HostChange::User(user.into()));
        }
        if !is_member(user, GROUP)? {
            changes.push(HostChange::Member(user.into(), GROUP.into()));
        }
    }
    Ok(changes)
}

fn make(change: &HostChange) -> anyhow::Result<()> {
    match change {
        HostChange::Dir(path) => fs::create_dir(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot make {}", path.display())),
        HostChange::Group(name) => run(Command::new("groupadd").args(["--system", name])),
        // useradd also gives the subordinate ids that SUB_UID_COUNT of /etc/login.defs says.
        HostChange::User(name) => {
            let keys = ["-K", "SUB_UID_COUNT=65536", "-K", "SUB_GID_COUNT=65536"];
            run(Command::new("useradd")
                .args(["--no-create-home", "--shell", "/bin/bash"])
                .args(keys)
                .arg(name))
        }
        HostChange::Member(user, group) => run(Command::new("gpasswd").args(["-a", user, group])),
        HostChange::File(_) | HostChange::Replaced(..) => Ok(()),
    }
}
