//! Jobs that Slurm takes for running although none of their `slurmstepd`s is left, and those that it holds since one was killed before the
//! job began. It looks for a killed one after many minutes, and until then the job has its processors; the others wait for ever. An
//! administrator who sees that cancels them, and so does the soak.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::kill::processes;
use crate::bench::people;

/// What Slurm gives as the reason why a job waits whose launch has failed.
const HELD: &str = "launch failed requeued held";
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

/// Jobs that have none, by their numbers, each with the name that scancel knows. Of an array's job that is another number.
fn without_slurmstepd() -> anyhow::Result<BTreeMap<u64, String>> {
    let words = ["-h", "-t", "R,PD", "-o", "%A %i %t %r"];
    let said = people::output(Command::new("squeue").args(words), "squeue")?;
    let alive: BTreeSet<u64> =
        processes().into_iter().filter_map(|(_, command, _)| job_of(&command)).collect();
    Ok(said.lines().filter_map(goes_on_for_ever).filter(|(job, _)| !alive.contains(job)).collect())
}

/// A line of squeue's: the job's number and name, if the job runs as it seems, or is held.
fn goes_on_for_ever(line: &str) -> Option<(u64, String)> {
    let mut words = line.trim().splitn(4, ' ');
    let (number, name, state, reason) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_one = state == "R" || reason == HELD;
    is_one.then_some((number.parse().ok()?, name.to_owned()))
}

/// The job of a slurmstepd, which has it in the place of its command line: `slurmstepd: [12.batch]`.
fn job_of(command: &str) -> Option<u64> {
    command.strip_prefix("slurmstepd: [")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{goes_on_for_ever, job_of};

    #[test]
    fn a_job_that_seems_to_run_or_is_held() {
        for (line, job) in [
            ("112 109_2 R None", Some((112, "109_2"))),
            ("7 7 PD launch failed requeued held", Some((7, "7"))),
            ("7 7 PD Resources", None),
            ("", None),
        ] {
            assert_eq!(goes_on_for_ever(line), job.map(|(number, name)| (number, name.to_owned())), "{line}");
        }
    }

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
