//! Which jobs have steps on this node, by the processes of Slurm's that run them: each slurmstepd writes its step over its command line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, StatxFlags, statx};

/// The jobs of which a step runs on this node.
pub fn jobs_with_steps() -> BTreeSet<u32> {
    // Without a list all others are asked for.
    let Ok(processes) = fs::read_dir("/proc") else { return BTreeSet::new() };
    processes.flatten().filter_map(|process| job_of(&process)).collect()
}

/// The job of a process that is a slurmstepd. Anybody can call any program by that name, so the kernel says who has started it. That comes first:
/// to look at a program of a user's, or to read its words, may take for ever.
fn job_of(process: &fs::DirEntry) -> Option<u32> {
    process.file_name().to_str()?.parse::<u32>().ok()?;
    let dir = process.path();
    let status = fs::read(dir.join("status")).ok()?;
    if !is_from_root(&String::from_utf8_lossy(&status)) || is_lent(&dir.join("exe")) {
        return None;
    }
    let command = fs::read(dir.join("cmdline")).ok()?;
    job_of_step(&String::from_utf8_lossy(&command))
}

/// Whether root has started a process, by its `/proc/PID/status`. Of a slurmstepd the effective uid is its user's at times. (Who owns `/proc/PID`
/// does not say: root owns that of each process that does not let itself be dumped.)
fn is_from_root(status: &str) -> bool {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let mut uids = uids.unwrap_or_default().split_whitespace();
    let (real, _, saved) = (uids.next(), uids.next(), uids.next());
    (real, saved) == (Some("0"), Some("0"))
}

/// Whether a program is one that everybody runs as another user: some, as sudo, take all uids of root's. Slurm's own would be told by its path only
/// until it is upgraded while steps run. Where the kernel does not show a process's program, as in some containers, its uids alone count.
fn is_lent(program: &Path) -> bool {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, program, flags, StatxFlags::MODE);
    found.is_ok_and(|found| Mode::from_raw_mode(found.stx_mode.into()).intersects(Mode::SUID | Mode::SGID))
}

/// The job of a slurmstepd, by its command line: `slurmstepd: [12.batch]`.
fn job_of_step(command: &str) -> Option<u32> {
    let job = command.strip_prefix("slurmstepd: [")?;
    job.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn jobs_of_which_a_step_runs() {
        for (command, job) in [
            ("slurmstepd: [12.batch]\0", Some(12)),
            ("slurmstepd: [7.0]\0\0\0", Some(7)),
            ("slurmstepd: [8+1.0]", Some(8)),
            ("/usr/sbin/slurmstepd\0spank\0epilog\0", None),
            ("slurmstepd: [x", None),
            ("", None),
        ] {
            assert_eq!(job_of_step(command), job, "{command:?}");
        }
    }

    #[test]
    fn a_setuid_program_that_a_user_has_called_is_not_from_root() {
        for (uids, is) in [
            ("Name:\tslurmstepd\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n", true),
            ("Name:\tslurmstepd\nUid:\t0\t1001\t0\t1001\n", true),
            ("Name:\tsu\nUid:\t1001\t0\t0\t0\n", false),
            ("Name:\tsu\nUid:\t1001\t1001\t1001\t1001\n", false),
            ("Name:\tx\nUid:\t0\t0\t1001\t0\n", false),
            ("Name:\tUid:\t0\t0\t0\t0\nUid:\t1001\t0\t0\t0\n", false),
            ("Name:\tx\nUid:\n", false),
            ("", false),
        ] {
            assert_eq!(is_from_root(uids), is, "{uids:?}");
        }
    }

    #[test]
    fn a_setuid_program_is_lent_by_whatever_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let (program, link) = (dir.path().join("program"), dir.path().join("exe"));
        fs::write(&program, "").expect("a file");
        symlink(&program, &link).expect("a link");
        for (mode, is) in [(0o755, false), (0o4755, true), (0o2755, true), (0o1755, false)] {
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("set");
            assert_eq!(is_lent(&link), is, "{mode:o}");
        }
        assert!(!is_lent(&dir.path().join("none")));
    }
}
