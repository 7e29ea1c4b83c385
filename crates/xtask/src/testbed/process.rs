//! Running the system's own tools, and waiting with a limit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, WaitOptions, wait};

/// Programs the bed is made of, and the Debian packages they come from.
const PROGRAMS: [(&str, &str); 12] = [
    ("/usr/sbin/slurmctld", "slurmctld"),
    ("/usr/sbin/slurmd", "slurmd"),
    ("/usr/bin/srun", "slurm-client"),
    ("/usr/sbin/munged", "munge"),
    ("/usr/sbin/sshd", "openssh-server"),
    ("/usr/bin/ssh", "openssh-client"),
    ("/usr/lib/openssh/sftp-server", "openssh-sftp-server"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/bin/unshare", "util-linux"),
    ("/usr/bin/setpriv", "util-linux"),
    ("/usr/sbin/useradd", "passwd"),
    ("/usr/bin/newuidmap", "uidmap"),
];
const SLIRP: (&str, &str) = ("/usr/bin/slirp4netns", "slirp4netns");

/// Fails with the `apt-get` line to type when a program of the bed is missing.
pub fn require_packages(internet: bool) -> anyhow::Result<()> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .chain(internet.then_some(&SLIRP))
        .filter(|(program, _)| !Path::new(program).exists())
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    bail!("the test bed needs programs that are not here\nhint: apt-get install -y {}", packages.join(" "))
}

/// Runs a program to its end; its output becomes part of the error if it fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{command:?} failed ({}): {}", output.status, said.trim())
}

/// Asks until the answer is there; `what` names the thing in the error.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if start.elapsed() > limit {
            bail!("{what} did not come up within {} s", limit.as_secs());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The last lines of a daemon's log, for an error message.
pub fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_else(|error| error.to_string());
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n  ");
    format!("end of {}:\n  {last}", log.display())
}

/// The only child of a process that has just forked, if it is there yet.
pub fn child_of(pid: u32) -> anyhow::Result<Option<u32>> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.split_whitespace().next().and_then(|child| child.parse().ok()))
}

/// Waits for one child of process 1 and forgets it; `None` if there was none.
pub fn reap_one() -> Option<(Pid, i32)> {
    match wait(WaitOptions::empty()) {
        Ok(Some((pid, status))) => Some((pid, status.as_raw())),
        _ => {
            std::thread::sleep(Duration::from_millis(100));
            None
        }
    }
}
