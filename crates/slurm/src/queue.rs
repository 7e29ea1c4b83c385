//! What `squeue` says: which jobs there are.

use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skiff_env::depot::LiveJob;
use skiff_env::time_limit::until;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::context::UserContext;

/// How long Slurm's controller is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// The states of jobs that have ended and will not begin again by themselves. A revoked one has begun on another cluster.
const ENDED: [&str; 9] = ["BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO"];

/// What squeue prints for each job; nothing where there is no squeue. `words` say which jobs and what of them.
pub fn squeue(words: &[&str]) -> Result<Option<String>> {
    let failed = |why: String| Error::new(format!("squeue: {why}"));
    let mut command = Command::new("squeue");
    // Variables by which its user has it hide some jobs.
    let narrows = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("SQUEUE_");
    for name in std::env::vars_os().map(|(name, _)| name).filter(narrows) {
        command.env_remove(name);
    }
    // Times in seconds since 1970.
    command
        .env("SLURM_TIME_FORMAT", "%s")
        // The cluster that this node belongs to.
        .env_remove("SLURM_CLUSTERS")
        .args(["--noheader", "--all", "--array", "--states=all"])
        .args(words);
    let out = match command.stdin(Stdio::null()).output() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        out => out.map_err(|e| failed(e.to_string()))?,
    };
    match out.status.success() {
        true => Ok(Some(String::from_utf8_lossy(&out.stdout).into_owned())),
        false => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
    }
}

/// The user's jobs that have not ended, held and requeued ones included. Nothing where there is no squeue.
pub fn live_jobs(context: &UserContext) -> Result<Option<Vec<LiveJob>>> {
    let user = format!("--user={}", context.uid);
    let ask = || squeue(&[&user, "--format=%A %t %V"]);
    let unanswered = || Error::new(format!("squeue: no answer within {} s", PATIENCE.as_secs()));
    let said = until("squeue client", Instant::now() + PATIENCE, ask)?.ok_or_else(unanswered)?;
    Ok(said.map(|text| text.lines().filter_map(live).collect()))
}

/// A line of squeue's: the job, if it has not ended. When it was submitted may be unknown: then it was before all else.
fn live(line: &str) -> Option<LiveJob> {
    let mut words = line.split_whitespace();
    let (id, state) = (words.next()?.parse().ok()?, words.next()?);
    let submitted = words.next().and_then(|text| text.parse().ok()).unwrap_or(0);
    (!ENDED.contains(&state)).then_some(LiveJob { id, submitted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_ended_is_live() {
        for (line, want) in [
            ("12 PD 1700000000", Some((12, 1_700_000_000))),
            ("  13 R 1700000001 ", Some((13, 1_700_000_001))),
            ("14 S 1", Some((14, 1))),
            ("15 RQ 1", Some((15, 1))),
            ("16 RH 1", Some((16, 1))),
            ("17 SE 1", Some((17, 1))),
            ("18 CG 1", Some((18, 1))),
            ("19 RV 1", Some((19, 1))),
            // Whose time is not known keeps all.
            ("20 PD 2026-11-25T16:46:10", Some((20, 0))),
            ("21 PD", Some((21, 0))),
            ("22 CD 1", None),
            ("23 CA 1", None),
            ("24 F 1", None),
            ("25 TO 1", None),
            ("", None),
            ("slurm_load_jobs error", None),
        ] {
            assert_eq!(live(line).map(|job| (job.id, job.submitted)), want, "{line}");
        }
    }
}
