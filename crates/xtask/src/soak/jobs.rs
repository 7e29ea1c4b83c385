//! The users' jobs: each kind that a user submits, with environments that change meanwhile.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Counts;
use crate::bench::people::{self, RunAs, TestUser};
use crate::random::Random;
use crate::testbed;

/// Each user's environment.
const ENVIRONMENT: &str = "soak";
/// How long one submission may take, and then all to end. `sbatch --wait` asks up to 32 s after a job's end, and a job that Slurm has lost is
/// cancelled only after a while.
const LIMIT: Duration = Duration::from_secs(100);
const LAST: Duration = Duration::from_secs(120);
/// What is said of a submission that took longer.
pub const STUCK: &str = "did not end in time";
/// Two commands that a job runs, known by these words.
const SHORT: &str = "sleep 0.271828";
const LONG: &str = "sleep 3.14159";

/// Gives each user an environment with something in it, a small image, and each node what a job needs.
pub fn prepare(users: &[TestUser], nodes: usize) -> anyhow::Result<()> {
    for node in names(nodes).into_iter().map(Some).chain([None]) {
        let script =
            "install -d -m 755 /var/lib/skiff && install -d -m 755 -o daemon -g daemon /var/lib/skiff/store";
        let mut command = Command::new(if node.is_some() { "on" } else { "sh" });
        command.args(node.as_deref()).args(node.as_deref().map(|_| "sh")).args(["-c", script]);
        people::output(&mut command, script)?;
    }
    for user in users {
        let user = RunAs::User(user);
        user.bash(&format!(
            "skiff env create {ENVIRONMENT} && skiff env exec {ENVIRONMENT} -- sh -c 'mkdir -p /opt/soak && seq 100000 >/opt/soak/data' && \
             skiff env stop {ENVIRONMENT}"
        ))?;
        user.bash(
            "mkdir -p soak/root/bin soak/root/etc soak/root/proc soak/root/dev soak/root/sys soak/root/tmp && cp /bin/busybox soak/root/bin/ && \
             for name in sh sleep true cat; do ln -s busybox soak/root/bin/$name; done && \
             mksquashfs soak/root soak/image.sqsh -quiet -no-progress >/dev/null",
        )?;
    }
    one_more(users, nodes)
}

/// One whole job of each kind that leaves something, on all nodes.
pub fn one_more(users: &[TestUser], nodes: usize) -> anyhow::Result<()> {
    for user in users {
        let user = RunAs::User(user);
        for what in [format!("--environment={ENVIRONMENT}"), "--container-image=./soak/image.sqsh".into()] {
            user.bash(&format!("srun -Q {what} -N{nodes} --ntasks-per-node=1 true"))?;
        }
    }
    Ok(())
}

/// Submits jobs until `end`; how many of each kind, and how many of them have failed, as those do whose processes are killed.
pub fn until(end: Instant, user: &TestUser, slot: u64, mut random: Random, nodes: usize) -> Counts {
    let mut counts = Counts::new();
    while Instant::now() < end {
        let (kind, script) = job(&mut random, slot, nodes);
        let mut command = user.command("timeout");
        let limit = LIMIT.as_secs().to_string();
        command.args(["--foreground", "-k", "5", &limit, "bash", "-c", &script]);
        let began = Instant::now();
        let ended = command.stdin(Stdio::null()).output();
        *counts.entry(kind.into()).or_default() += 1;
        let how = match ended.as_ref().map(|output| output.status.code()) {
            Ok(Some(0)) => continue,
            _ if began.elapsed() > LIMIT => STUCK,
            _ => "failed",
        };
        if how == STUCK {
            show_queue(user);
        }
        let count = counts.entry(format!("{kind}: {how}")).or_default();
        *count += 1;
        if *count == 1
            && let Ok(output) = ended
        {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!(
                "soak: {}: {kind}: {how}: {}",
                user.name,
                said.lines().last().unwrap_or("nothing said")
            );
        }
    }
    counts
}

/// What Slurm says of a user's jobs, of which one did not end.
fn show_queue(user: &TestUser) {
    let words = ["-h", "-u", &user.name, "-o", "%i %t %M %l %D %R"];
    match people::output(Command::new("squeue").args(words), "squeue") {
        Ok(said) => eprintln!("soak: {}: did not end in time; the queue has\n{}", user.name, said.trim_end()),
        Err(error) => eprintln!("soak: {error:#}"),
    }
}

/// A kind of job, and the script that submits it and waits for it.
fn job(random: &mut Random, slot: u64, nodes: usize) -> (&'static str, String) {
    let on = 1 + random.below(nodes as u64);
    let sleep = if random.below(5) == 0 { LONG } else { SHORT };
    let (environment, number) = (format!("--environment={ENVIRONMENT}"), random.next());
    match random.below(6) {
        0 => ("srun in an environment", format!("srun -Q {environment} -N{on} --ntasks-per-node=1 {sleep}")),
        1 => (
            "a change, then srun",
            format!(
                "skiff env exec {ENVIRONMENT} -- sh -c 'echo {number} >/opt/soak/{slot}; seq {} >/opt/soak/more' && \
                 srun -Q {environment} -N{on} --ntasks-per-node=1 {sleep}",
                number % 50_000
            ),
        ),
        2 => (
            "sbatch with two steps",
            format!(
                "sbatch -Q --wait {environment} -N1 -n2 -o /dev/null --wrap 'srun -Q -n1 --exact {sleep} & srun -Q -n1 --exact {SHORT}; wait; \
                 echo x >/usr/soak'"
            ),
        ),
        3 => (
            "an array of jobs",
            format!("sbatch -Q --wait {environment} --array=1-3 -n1 -o /dev/null --wrap '{sleep}'"),
        ),
        4 => (
            "srun in a container",
            format!("srun -Q --container-image=./soak/image.sqsh -N{on} --ntasks-per-node=1 {sleep}"),
        ),
        _ => (
            "cancelled while it runs",
            format!(
                "job=$(sbatch --parsable {environment} -N{on} -o /dev/null --wrap '{LONG}'); sleep 0.{:03}; scancel $job",
                random.below(1000)
            ),
        ),
    }
}

/// Ends what is left of the jobs, and waits until none is.
pub fn end_all(nodes: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let jobs = people::output(Command::new("squeue").args(["-h", "-o", "%i"]), "squeue")?;
        let jobs: Vec<&str> = jobs.split_whitespace().collect();
        if jobs.is_empty() {
            break;
        }
        if begun.elapsed() > LAST {
            let states = people::output(Command::new("squeue").args(["-h", "-o", "%i %T %r %N"]), "squeue")?;
            let processes =
                people::output(Command::new("ps").args(["-eo", "pid,ppid,stat,etime,wchan:20,args"]), "ps")?;
            anyhow::bail!("jobs that do not end:\n{states}\n{processes}\n{}", testbed::node_logs(nodes));
        }
        people::output(Command::new("scancel").args(&jobs), "scancel")
            .map_or_else(|e| eprintln!("soak: {e:#}"), drop);
        std::thread::sleep(Duration::from_millis(500));
    }
    resume(nodes)
}

/// Lets Slurm use all nodes. It drains those whose steps were killed.
fn resume(nodes: usize) -> anyhow::Result<()> {
    for node in names(nodes) {
        let mut command = Command::new("scontrol");
        command.args(["update", &format!("nodename={node}"), "state=resume"]);
        // It refuses a node that is not drained.
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().context("running scontrol")?;
    }
    Ok(())
}

/// The same while jobs run.
pub fn keep_resumed(nodes: usize) {
    if let Err(error) = resume(nodes) {
        eprintln!("soak: {error:#}");
    }
}

/// Lets ten minutes go by for what killed submitters were writing into depots: younger files may still be written, by a host that nobody here
/// can ask.
pub fn age_unfinished() -> anyhow::Result<()> {
    let script =
        "find /home/*/.local/share/skiff/depot -type f -name '.new*' -exec touch -d '11 minutes ago' {} +";
    people::output(Command::new("sh").args(["-c", script]), script).map(drop)
}

/// What an administrator does for nodes that have crashed, and a user for what they have killed.
pub fn sweep(users: &[TestUser], nodes: usize) -> anyhow::Result<()> {
    for node in names(nodes) {
        people::output(Command::new("on").args([&node, "skiff", "sweep"]), "skiff sweep")?;
    }
    people::output(Command::new("skiff").arg("sweep"), "skiff sweep")?;
    users.iter().try_for_each(|user| RunAs::User(user).bash("skiff sweep").map(drop))
}

/// Removes the users' environments and images.
pub fn remove(users: &[TestUser]) -> anyhow::Result<()> {
    users.iter().try_for_each(|user| {
        RunAs::User(user).bash(&format!("skiff env rm --force {ENVIRONMENT}; rm -rf soak")).map(drop)
    })
}

/// The nodes' names.
pub fn names(nodes: usize) -> Vec<String> {
    (1..=nodes).map(|index| format!("n{index}")).collect()
}
