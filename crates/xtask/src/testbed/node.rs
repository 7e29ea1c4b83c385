//! A compute node: namespaces of its own, its own disk and memory, a slurmd.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;

use super::bed::Bed;
use super::process::{child_of, log_tail, reap_one, wait_for};
use super::{mounts, network, slurm};

/// On the login node: starts a node; returns when it has its network, not when Slurm knows it.
pub fn boot(bed: &Bed, node: &str) -> anyhow::Result<()> {
    anyhow::ensure!(bed.args.node_names().iter().any(|name| name == node), "there is no node {node}");
    let log_path = bed.path(&format!("logs/{node}.log"));
    let log = File::options().create(true).append(true).open(&log_path);
    let log = log.with_context(|| format!("cannot open {}", log_path.display()))?;
    let outer = Command::new("unshare")
        .args(["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--propagation", "private"])
        .arg(std::env::current_exe()?)
        .args(["testbed", "node"])
        .arg(&bed.dir)
        .arg(node)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot run unshare")?;
    let pid = wait_for(node, Duration::from_secs(5), || child_of(outer.id()))
        .with_context(|| log_tail(&log_path))?;
    network::connect(node, pid).with_context(|| log_tail(&log_path))?;
    let file = bed.node_pid_file(node);
    fs::write(&file, format!("{pid}\n")).with_context(|| format!("cannot write {}", file.display()))
}

/// Process 1 of a node: sets it up, starts slurmd, then collects the dead for ever. How slurmd ends it says in the node's log.
pub fn run(bed: &Bed, node: &str) -> anyhow::Result<()> {
    rustix::system::sethostname(node.as_bytes()).context("cannot set the host name")?;
    mount(bed, node)?;
    network::set_up_node(node)?;
    slurm::start_slurmd(bed, node)?;
    let mut slurmd = None;
    loop {
        // A test may have started another one; and one that ends in peace removes the file first.
        slurmd = fs::read_to_string(slurm::SLURMD_PID_FILE).ok().or(slurmd);
        if let Some((pid, status)) = reap_one()
            && slurmd.as_deref().is_some_and(|slurmd| slurmd.trim() == pid.as_raw_pid().to_string())
        {
            eprintln!("slurmd ({pid}) has ended: {}", ExitStatus::from_raw(status));
        }
    }
}

fn mount(bed: &Bed, node: &str) -> anyhow::Result<()> {
    let disk = bed.path("nodes").join(node);
    mounts::fresh_run(&["munge"])?;
    mounts::devices()?;
    mounts::bind(&disk.join("spool"), Path::new("/var/spool"))?;
    mounts::bind(&disk.join("state"), Path::new("/var/lib/skiff"))?;
    mounts::bind(&disk.join("cache"), Path::new("/var/cache/skiff"))?;
    // Last, because the program that does this may itself lie in /tmp.
    if bed.args.without_skiff.iter().any(|name| name == node) {
        slurm::hide_skiff(bed)?;
    }
    mounts::tmpfs("/tmp", c"mode=1777")
}
