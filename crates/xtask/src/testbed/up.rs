//! The process that the developer started.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

use super::args::BedOptions;
use super::bed::Bed;
use super::network;
use super::process::{child_of, require_packages, wait_for};

/// Runs the whole bed; gives the command's exit status (128+n if a signal ended it).
pub fn run(mut args: BedOptions) -> anyhow::Result<i32> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the test bed makes namespaces and mounts and must be started by root\nhint: sudo cargo xtask testbed up ..."
        );
    }
    require_packages(args.internet)?;
    make_absolute(&mut args)?;
    let bed = Bed::create(args)?;
    let dir = File::open(&bed.dir).context("cannot open the bed's directory")?;
    flock(&dir, FlockOperation::LockShared).context("cannot lock the bed's directory")?;
    let janitor = Janitor::start(&bed)?;
    drop(dir);
    let status = run_inside(&bed);
    let cleaned = janitor.finish();
    let status = status?;
    cleaned.map(|()| status)
}

/// The bed's processes have other working directories.
fn make_absolute(args: &mut BedOptions) -> anyhow::Result<()> {
    for path in [&mut args.install, &mut args.plugin].into_iter().flatten() {
        *path = path.canonicalize().with_context(|| format!("cannot use {}", path.display()))?;
    }
    if let Some(path) = &mut args.keep_logs {
        *path = std::path::absolute(&path)?;
    }
    Ok(())
}

fn run_inside(bed: &Bed) -> anyhow::Result<i32> {
    // PDEATHSIG and --kill-child: whatever happens to this process, the kernel ends everything in the bed.
    let mut outer = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork"])
        .args(["--kill-child", "--mount-proc"])
        .arg(std::env::current_exe()?)
        .args(["testbed", "login"])
        .arg(&bed.dir)
        .spawn()
        .context("cannot run unshare")?;
    let mut way_out = None;
    if bed.args.internet {
        let login = wait_for("the login node", Duration::from_secs(5), || child_of(outer.id()))?;
        way_out = Some(network::connect_outside(login, File::create(bed.path("logs/slirp4netns.log"))?)?);
    }
    let status = outer.wait()?;
    if let Some(mut process) = way_out {
        process.kill()?;
        process.wait()?;
    }
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

struct Janitor {
    child: Child,
    alive: ChildStdin,
}

impl Janitor {
    /// Starts it and waits until the machine is ready for the bed.
    fn start(bed: &Bed) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["testbed", "janitor"])
            .arg(&bed.dir)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the janitor")?;
        let (Some(alive), Some(answer)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the janitor has no pipes");
        };
        let mut line = String::new();
        BufReader::new(answer).read_line(&mut line).context("cannot hear the janitor")?;
        if line.trim() != "ready" {
            child.wait()?;
            bail!("the machine could not be made ready for a test bed (see above)");
        }
        Ok(Self { child, alive })
    }

    fn finish(mut self) -> anyhow::Result<()> {
        drop(self.alive);
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the test bed was not removed completely ({status})");
        Ok(())
    }
}
