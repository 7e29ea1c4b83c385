//! Ends processes of the bed at random moments, each by its number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Counts;
use crate::random::Random;

/// What submits and waits.
const SUBMITTER: &str = "srun, sbatch";

/// A process that may be killed, and which step of a job it is of.
pub struct Victim {
    pub pid: i32,
    pub step: &'static str,
}

/// Which step a process is of, by its command line and name; nothing for those that everything depends on.
pub fn step_of(command: &str, name: &str) -> Option<&'static str> {
    let words: Vec<&str> = command.split('\0').filter(|word| !word.is_empty()).collect();
    let first = *words.first()?;
    let program = first.rsplit('/').next()?;
    let has = |wanted: &str| words.contains(&wanted);
    match program {
        _ if first.starts_with("slurmstepd") => Some("slurmd's child (slurmstepd)"),
        "srun" | "sbatch" => Some(SUBMITTER),
        "skiff-helper" if has("store") || has("writer") => Some("writer of the store"),
        "skiff-helper" => Some("helper"),
        "skiff" if has("slurm") && has("submit") => Some("submitting skiff"),
        "skiff" if has("slurm") && words.iter().any(|word| word.starts_with("step")) => {
            Some("step's process")
        }
        "skiff" if has("slurm") => Some("another skiff slurm"),
        "skiff" => Some("another skiff"),
        _ if program.starts_with("skiff-") => Some("supervisor"),
        _ if name.starts_with("skiff") => Some("another process of skiff's"),
        "sleep" if has("0.271828") || has("3.14159") => Some("command of a job"),
        _ => None,
    }
}

/// PID, command line and name of all processes.
pub fn processes() -> Vec<(i32, String, String)> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return vec![] };
    let process = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((pid, command, name.trim_end().to_owned()))
    };
    processes.flatten().filter_map(process).collect()
}

/// All that may be killed now.
fn victims() -> Vec<Victim> {
    let victim =
        |(pid, command, name): (i32, String, String)| Some(Victim { pid, step: step_of(&command, &name)? });
    processes().into_iter().filter_map(victim).collect()
}

/// Kills until `over`; how many of each step.
pub fn until(over: &AtomicBool, mut random: Random, every: u64, tell: bool) -> Counts {
    let mut killed = Counts::new();
    while !over.load(Ordering::Relaxed) {
        if every == 0 {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        std::thread::sleep(Duration::from_millis(random.below(2 * every)));
        if let Some(step) = kill_one(&mut random, tell) {
            *killed.entry(step.into()).or_default() += 1;
        }
    }
    killed
}

/// Each step is as likely as another, however many processes it has.
fn kill_one(random: &mut Random, tell: bool) -> Option<&'static str> {
    let victims = victims();
    let mut steps: Vec<&'static str> = victims.iter().map(|victim| victim.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let step = *steps.get(random.below(steps.len().max(1) as u64) as usize)?;
    // They are there all the time. A job that they never end is no test of what comes behind.
    if step == SUBMITTER && random.below(8) != 0 {
        return None;
    }
    let of_step: Vec<&Victim> = victims.iter().filter(|victim| victim.step == step).collect();
    let victim = of_step.get(random.below(of_step.len() as u64) as usize)?;
    let handle = pidfd_open(Pid::from_raw(victim.pid)?, PidfdFlags::empty()).ok()?;
    // Its number may be another's by now.
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", victim.pid)).ok()?;
    let name = std::fs::read_to_string(format!("/proc/{}/comm", victim.pid)).ok()?;
    (step_of(&command, name.trim_end()) == Some(step)).then_some(())?;
    pidfd_send_signal(handle, Signal::KILL).ok()?;
    if tell {
        println!("killed {} {step}: {}", victim.pid, command.replace('\0', " "));
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::step_of;

    #[test]
    fn daemons_and_the_bed_itself_are_never_killed() {
        for command in [
            "/usr/sbin/slurmd\0",
            "/usr/sbin/slurmctld\0-i\0",
            "munged\0--key-file=x\0",
            "/target/debug/xtask\0testbed\0node\0",
            "sleep\0infinity\0",
            "bash\0-c\0skiff slurm submit\0",
            "",
            "sshd: alice\0",
        ] {
            assert_eq!(step_of(command, "x"), None, "{command}");
        }
        assert_eq!(step_of("skiff-env dev\0", "skiff-env"), Some("supervisor"));
        assert_eq!(step_of("/usr/bin/skiff\0slurm\0step-begin\0", "skiff"), Some("step's process"));
        assert_eq!(step_of("slurmstepd: [12.0]\0", "slurmstepd"), Some("slurmd's child (slurmstepd)"));
    }
}
