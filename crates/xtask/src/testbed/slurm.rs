//! The bed's Slurm: its configuration and its daemons.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::bed::{Bed, LOGIN};
use super::network::{LOGIN_ADDRESS, node_address};
use super::process::{log_tail, run, wait_for};
use super::{install, mounts};

/// Where the daemons look for their configuration.
pub const CONFIG: &str = "/etc/slurm";
/// What `skiff cluster up --slurm` tells its Slurm, too. It is a file, as we share no code with what we test.
const COMMON: &str = include_str!("../../../cluster/src/slurm.conf");
/// The file in which slurmd writes its process id; private to each node.
pub const SLURMD_PID_FILE: &str = "/var/spool/slurmd.pid";

/// Writes what will be /etc/slurm on the login node and the nodes.
pub fn write_config(bed: &Bed) -> anyhow::Result<()> {
    bed.make_dir("etc/slurm/plugstack.conf.d", 0o755)?;
    bed.write("etc/slurm/slurm.conf", &slurm_conf(bed)?)?;
    // Where the machine has version 2 only, slurmd looks for systemd's control groups even where no plug-in needs any. Releases before 23.11
    // cannot be told to use none; for version 1 they look for nothing before it is needed.
    let unused = !bed.args.uses_cgroups() && release()? >= (23, 11);
    let plugin =
        if unused { "CgroupPlugin=disabled\n" } else { "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" };
    let further: String = bed.args.cgroup_conf.iter().map(|line| format!("{line}\n")).collect();
    bed.write("etc/slurm/cgroup.conf", &format!("{plugin}{further}"))?;
    if !bed.args.gres_conf.is_empty() {
        bed.write("etc/slurm/gres.conf", &(bed.args.gres_conf.join("\n") + "\n"))?;
    }
    if let Some(plugin) = &bed.args.plugin {
        let target = bed.path("plugin.so");
        fs::copy(plugin, &target).with_context(|| format!("cannot copy {}", plugin.display()))?;
    }
    bed.write("etc/slurm/plugstack.conf", &plugstack(bed))?;
    bed.write("etc/plugstack.empty", "")?;
    match &bed.args.install {
        Some(tree) => install::install_slurm_config(tree, &bed.path("etc/slurm")),
        None => Ok(()),
    }
}

/// Year and month of the Slurm that is installed, from a line like `slurm-wlm 22.05.8`.
fn release() -> anyhow::Result<(u32, u32)> {
    let output = Command::new("slurmd").arg("-V").output().context("cannot run slurmd -V")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text.split_whitespace().nth(1).unwrap_or_default().split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(year)), Some(Ok(month))) => Ok((year, month)),
        _ => anyhow::bail!("slurmd -V says {text:?}, which is no version"),
    }
}

fn plugstack(bed: &Bed) -> String {
    let mut lines = vec![format!("include {CONFIG}/plugstack.conf.d/*.conf")];
    if bed.args.plugin.is_some() {
        let arguments = bed.args.plugin_arg.join(" ");
        lines.push(format!("required {} {arguments}", bed.path("plugin.so").display()));
    }
    lines.extend(bed.args.plugstack.iter().cloned());
    lines.join("\n") + "\n"
}

fn slurm_conf(bed: &Bed) -> anyhow::Result<String> {
    let logs = bed.path("logs");
    let mut lines = vec![
        COMMON.trim_end().to_owned(),
        "ClusterName=testbed".into(),
        format!("SlurmctldHost={LOGIN}({LOGIN_ADDRESS})"),
        format!("ProctrackType=proctrack/{}", bed.args.proctrack),
        format!("SlurmdPidFile={SLURMD_PID_FILE}"),
        format!("SlurmctldLogFile={}/slurmctld.log", logs.display()),
        format!("SlurmdLogFile={}/slurmd.%n.log", logs.display()),
        // 'sacct -c' reads it; plain sacct needs slurmdbd and a database server.
        "JobCompType=jobcomp/filetxt".into(),
        format!("JobCompLoc={}/jobcomp.log", logs.display()),
    ];
    for node in bed.args.node_names() {
        let address = node_address(&node)?;
        let cpus = bed.args.cpus;
        let further = bed.args.node_conf.join(" ");
        lines.push(format!(
            "NodeName={node} NodeAddr={address} CPUs={cpus} RealMemory=2000 State=UNKNOWN {further}"
        ));
    }
    lines.push("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP".into());
    lines.extend(bed.args.slurm_conf.iter().cloned());
    Ok(lines.join("\n") + "\n")
}

/// Lets users run `sacct -c`. It opens the file for writing even where it only reads, and slurmctld has taken every
/// right away from others when it came up.
pub fn open_job_records(bed: &Bed) -> anyhow::Result<()> {
    run(Command::new("chmod").arg("0666").arg(bed.path("logs/jobcomp.log")))
}

/// Starts munged with a key of this bed's own; it returns when the socket is there.
pub fn start_munge(bed: &Bed) -> anyhow::Result<()> {
    let (dir, key) = (bed.path("munge"), bed.path("munge/key"));
    let log = bed.path("munge/munged.log");
    run(Command::new("dd").args(["if=/dev/urandom", "bs=1024", "count=1", "status=none"]).arg(of(&key)))?;
    fs::create_dir_all("/run/munge").context("cannot make /run/munge")?;
    run(Command::new("chown").arg("-R").arg("munge:munge").arg(&dir).arg("/run/munge"))?;
    run(Command::new("chmod").arg("0400").arg(&key))?;
    let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
    run(Command::new("setpriv")
        .args(["--reuid", "munge", "--regid", "munge", "--clear-groups", "munged"])
        .arg(option("key-file", &key))
        .arg(option("log-file", &log))
        .arg(option("seed-file", &dir.join("seed")))
        .arg("--pid-file=/run/munge/munged.pid"))
    .with_context(|| log_tail(&log))
}

fn of(path: &Path) -> String {
    format!("of={}", path.display())
}

/// Starts the controller in the background.
pub fn start_controller(bed: &Bed) -> anyhow::Result<()> {
    fs::create_dir_all("/var/spool/slurmctld").context("cannot make /var/spool/slurmctld")?;
    start_daemon(Command::new("slurmctld").arg("-i"), &bed.path("logs/slurmctld.err"))
        .with_context(|| log_tail(&bed.path("logs/slurmctld.log")))
}

/// On a node: starts slurmd in the background.
pub fn start_slurmd(bed: &Bed, node: &str) -> anyhow::Result<()> {
    fs::create_dir_all("/var/spool/slurmd").context("cannot make /var/spool/slurmd")?;
    start_daemon(&mut Command::new("slurmd"), &bed.path(&format!("logs/slurmd.{node}.err")))
        .with_context(|| log_tail(&bed.path(&format!("logs/slurmd.{node}.log"))))
}

/// Runs a program that puts itself into the background; what it says before is kept in a file.
fn start_daemon(command: &mut Command, said: &Path) -> anyhow::Result<()> {
    let file = File::create(said).with_context(|| format!("cannot write {}", said.display()))?;
    let status = command.stdin(std::process::Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("cannot run {command:?}"))?;
    anyhow::ensure!(status.success(), "{command:?} failed ({status}); {}", log_tail(said));
    Ok(())
}

/// On the login node: waits until every node is idle.
pub fn wait_until_idle(bed: &Bed) -> anyhow::Result<()> {
    let wanted = usize::from(bed.args.nodes);
    let mut last = String::new();
    wait_for("the nodes", Duration::from_secs(20), || {
        let answer =
            Command::new("sinfo").args(["-h", "-N", "-o", "%N %t"]).output().context("cannot run sinfo")?;
        last =
            String::from_utf8_lossy(&answer.stdout).into_owned() + &String::from_utf8_lossy(&answer.stderr);
        Ok((last.lines().filter(|line| line.ends_with(" idle")).count() == wanted).then_some(()))
    })
    .with_context(|| {
        let logs = ["slurmctld.log", "slurmd.n1.log"].map(|log| log_tail(&bed.path("logs").join(log)));
        format!("not all nodes are idle; sinfo says:\n{last}{}", logs.join("\n"))
    })
}

/// On a node that shall be without Skiff: no plug-in is configured, and nothing installed can be used.
pub fn hide_skiff(bed: &Bed) -> anyhow::Result<()> {
    mounts::bind(&bed.path("etc/plugstack.empty"), &Path::new(CONFIG).join("plugstack.conf"))?;
    let Some(tree) = &bed.args.install else { return Ok(()) };
    for name in install::list(tree)? {
        let path = Path::new("/").join(&name);
        if path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            mounts::bind(Path::new("/dev/null"), &path)?;
        }
    }
    Ok(())
}
