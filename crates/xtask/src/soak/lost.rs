//! Jobs that Slurm takes for running although none of their `slurmstepd`s is left. Slurm looks for those of a killed one after many minutes;
//! until then the job has its processors. An administrator who sees that cancels them, and so does the soak.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::kill::processes;
use crate::bench::people;

/// Between two looks. A job that has no slurmstepd at two of them is lost: it has none for a moment before and after its steps.
const LOOK: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(250);

/// Cancels such jobs until `over`; gives their numbers.
pub fn cancel_until(over: &AtomicBool, mut beside: impl FnMut()) -> BTreeSet<u64> {
    let (mut suspects, mut lost) = (BTreeMap::new(), BTreeSet::new());
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + LOOK;
        beside();
        let found = match without_slurmstepd() {
            Ok(found) => found,
            Err(error) => {
                eprintln!("soak: {error:#}");
                continue;
            }
        };
        for (job, name) in found.iter().filter(|(job, _)| suspects.contains_key(*job)) {
            match people::output(Command::new("scancel").arg(name), "scancel") {
                Ok(_) => drop(lost.insert(*job)),
                Err(error) => eprintln!("soak: {error:#}"),
            }
        }
        suspects = found;
    }
    lost
}

/// By their numbers, with what scancel knows them by: of an array's job that is another number.
fn without_slurmstepd() -> anyhow::Result<BTreeMap<u64, String>> {
    let said = people::output(Command::new("squeue").args(["-h", "-t", "R", "-o", "%A %i"]), "squeue")?;
    let alive: BTreeSet<u64> =
        processes().into_iter().filter_map(|(_, command, _)| job_of(&command)).collect();
    let job = |line: &str| {
        let (number, name) = line.trim().split_once(' ')?;
        Some((number.parse().ok()?, name.to_owned()))
    };
    Ok(said.lines().filter_map(job).filter(|(job, _)| !alive.contains(job)).collect())
}

/// The job of a slurmstepd, which has it in the place of its command line: `slurmstepd: [12.batch]`.
fn job_of(command: &str) -> Option<u64> {
    command.strip_prefix("slurmstepd: [")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::job_of;

    #[test]
    fn a_slurmstepd_says_whose_it_is() {
        for (command, job) in [
            ("slurmstepd: [12.batch]\0", Some(12)),
            ("slurmstepd: [7.0]", Some(7)),
            ("/usr/sbin/slurmstepd\0spank\0epilog\0", None),
            ("slurmstepd: [x", None),
        ] {
            assert_eq!(job_of(command), job, "{command}");
        }
    }
}
