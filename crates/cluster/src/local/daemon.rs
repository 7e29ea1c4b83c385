//! On a node: what it is there for. The node ends with this program, or with the daemon that this program becomes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skiff_cli::DaemonCommand;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::members::Member;
use skiff_sys::IgnoreError;
use skiff_user::context::is_inside;

use crate::slurm;

/// How long to wait for the controller.
const PATIENCE: Duration = Duration::from_secs(120);

/// Does what the node is there for; returns only if that fails, or is done.
pub fn run(what: &DaemonCommand) -> Result<i32> {
    if !is_inside() {
        return Err(Error::new("cluster daemon: this host is not a cluster node"));
    }
    match what {
        DaemonCommand::Controller { alone } => controller(*alone),
        DaemonCommand::Worker { name, alone } => worker(*name, *alone),
        DaemonCommand::Ready { workers } => ready(workers).map(|()| 0),
    }
}

fn refuse_missing(needless: Option<&str>) -> Result<()> {
    match slurm::missing(
        &std::env::var("PATH").default_on_error("without PATH nothing is found, which is then said"),
        needless,
    ) {
        Some((message, hint)) => Err(Error::new(message).hint(hint)),
        None => Ok(()),
    }
}

fn controller(alone: bool) -> Result<i32> {
    refuse_missing(alone.then_some(slurm::ONLY_WORKERS))?;
    fs::create_dir_all("/var/spool/slurmctld").context(|| "/var/spool/slurmctld")?;
    begin("slurmctld")?;
    become_it(Command::new("slurmctld").args(["-D", "-i"]))
}

/// What this daemon needs: its release's configuration, and authentication.
fn begin(daemon: &str) -> Result<()> {
    let release = Command::new(daemon).arg("-V").output().context(|| format!("{daemon} -V"))?;
    let release = String::from_utf8_lossy(&release.stdout).into_owned();
    fs::write("/etc/slurm/cgroup.conf", slurm::cgroup_conf(&release)).context(|| "cgroup.conf")?;
    let path = std::env::var("PATH").default_on_error("without PATH there is no plug-in");
    let plugstack = slurm::plugstack(&path, |file| file.exists());
    fs::write("/etc/slurm/plugstack.conf", plugstack).context(|| "plugstack.conf")?;
    // It returns when its socket is there.
    let mut munged = Command::new("munged");
    munged.args(["key-file=key", "log-file=log", "seed-file=seed", "pid-file=pid"].map(|option| {
        let (name, file) = option.split_once('=').unwrap_or_default();
        format!("--{name}=/run/munge/{file}")
    }));
    let status = munged.stdin(Stdio::null()).status().context(|| "munged")?;
    if !status.success() {
        return Err(
            Error::new(format!("munged: {status}")).hint("it must take root as its user: MUNGE 0.5.11 does")
        );
    }
    Ok(())
}

fn worker(name: Member, alone: bool) -> Result<i32> {
    if alone {
        refuse_missing(Some(slurm::ONLY_CONTROLLERS))?;
        begin("slurmd")?;
    }
    fs::create_dir_all("/var/spool/slurmd").context(|| "/var/spool/slurmd")?;
    // A slurmd that finds no controller waits for seconds before it asks again.
    wait_for_controller()?;
    become_it(Command::new("slurmd").args(["-D", "-N"]).arg(name.to_string()))
}

fn become_it(command: &mut Command) -> Result<i32> {
    let program = command.get_program().to_owned();
    Err(command.stdin(Stdio::null()).exec()).context(|| program.display())
}

fn wait_for_controller() -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        // Whoever only connects leaves a complaint in the controller's log.
        let said = Command::new("scontrol").arg("ping").output().context(|| "scontrol ping")?;
        if String::from_utf8_lossy(&said.stdout).contains(" is UP") {
            return Ok(());
        }
        if Instant::now() > end {
            let said = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            return Err(Error::new(format!("the controller does not answer: {said}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until Slurm has work for these workers. Whoever called sees to it that this does not take for ever.
fn ready(workers: &[Member]) -> Result<()> {
    wait_for_controller()?;
    loop {
        let output = Command::new("sinfo").args(["-h", "-N", "-o", "%N %t"]).output().context(|| "sinfo")?;
        if all_take_jobs(workers, &String::from_utf8_lossy(&output.stdout)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether all these workers take jobs, by what `sinfo` says of all nodes: one with its state a line.
fn all_take_jobs(workers: &[Member], sinfo: &str) -> bool {
    let states = sinfo.lines().filter_map(|line| line.split_once(' '));
    let ready: BTreeSet<&str> = states.filter(|(_, state)| takes_jobs(state)).map(|(name, _)| name).collect();
    workers.iter().all(|worker| ready.contains(worker.to_string().as_str()))
}

/// Whether a node in this state, as sinfo shortens it, has work or would take it: a star says that it does not answer.
fn takes_jobs(state: &str) -> bool {
    ["idle", "alloc", "mix", "comp"].contains(&state.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_ready_when_all_its_new_workers_take_jobs() {
        let workers = [Member::Worker(1), Member::Worker(12)];
        for (sinfo, ready) in [
            ("n1 idle\nn12 idle\n", true),
            ("n1 alloc\nn2 down\nn12 mix", true),
            // What has just ended there is being completed.
            ("n1 comp\nn12 idle", true),
            ("n1 idle", false),
            ("n1 idle\nn12 down", false),
            // A star: the node does not answer. A tilde: it is switched off.
            ("n1 idle*\nn12 idle", false),
            ("n1 idle~\nn12 idle", false),
            ("n1 futr\nn12 idle", false),
            ("", false),
        ] {
            assert_eq!(all_take_jobs(&workers, sinfo), ready, "{sinfo:?}");
        }
    }
}
