//! The login node: process 1 of the bed.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

use super::bed::{Bed, LOGIN, USERS};
use super::process::{reap_one, run as run_tool};
use super::{cgroup, journal, mounts, network, node, slurm, sshd, tools};

/// Brings everything up, runs the command, and returns its exit status in the shell's way.
pub fn run(dir: &Path) -> anyhow::Result<i32> {
    let bed = Bed::load(dir)?;
    let lock = File::open(bed.path("lock")).context("cannot open the bed's lock")?;
    flock(&lock, FlockOperation::LockShared).context("cannot lock the bed")?;
    let start = Instant::now();
    let lap = |what: &str| {
        if bed.args.timing {
            eprintln!("testbed: {:4} ms {what}", start.elapsed().as_millis());
        }
    };
    rustix::system::sethostname(LOGIN.as_bytes()).context("cannot set the host name")?;
    slurm::write_config(&bed)?;
    tools::write(&bed)?;
    bed.write("etc/hosts", &network::hosts(&bed)?)?;
    bed.write("etc/resolv.conf", "# no name servers\noptions timeout:1 attempts:1\n")?;
    make_homes(&bed)?;
    mount(&bed)?;
    network::set_up_login()?;
    lap("namespaces, homes, bridge");
    slurm::start_munge(&bed)?;
    slurm::start_controller(&bed)?;
    lap("munge, slurmctld");
    for name in bed.args.node_names() {
        node::boot(&bed, &name)?;
    }
    lap("nodes booted");
    sshd::start(&bed)?;
    lap("sshd");
    slurm::wait_until_idle(&bed)?;
    slurm::open_job_records(&bed)?;
    lap("nodes idle");
    run_command(&bed)
}

fn run_command(bed: &Bed) -> anyhow::Result<i32> {
    let [program, arguments @ ..] = bed.args.command.as_slice() else { anyhow::bail!("no command") };
    let path = std::env::var("PATH").unwrap_or_else(|_| String::new());
    let child = Command::new(program)
        .args(arguments)
        .env("PATH", format!("{}:{path}:/usr/local/sbin:/usr/sbin:/sbin", bed.path("bin").display()))
        .env("SKIFF_TESTBED", "1")
        .env("SKIFF_TESTBED_DIR", &bed.dir)
        .env("SKIFF_TESTBED_NODES", bed.args.node_names().join(" "))
        .env("SKIFF_TESTBED_SSH_CONFIG", bed.path("ssh/config"))
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    loop {
        if let Some((pid, status)) = reap_one()
            && u32::try_from(pid.as_raw_nonzero().get()) == Ok(child.id())
        {
            let status = ExitStatus::from_raw(status);
            return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
    }
}

fn make_homes(bed: &Bed) -> anyhow::Result<()> {
    for user in USERS {
        let home = bed.path("home").join(user);
        let fields =
            journal::fields("/etc/passwd", user)?.with_context(|| format!("there is no user {user}"))?;
        let [_, _, uid, gid, ..] = fields.as_slice() else {
            anyhow::bail!("/etc/passwd: bad line for {user}")
        };
        for file in ["/etc/subuid", "/etc/subgid"] {
            let range = journal::fields(file, user)?.and_then(|fields| fields.get(2)?.parse::<u32>().ok());
            anyhow::ensure!(
                range.is_some_and(|count| count >= 65536),
                "{user} has no range of 65536 ids in {file}\nhint: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
            );
        }
        run_tool(Command::new("cp").arg("-rT").arg("/etc/skel").arg(&home))?;
        run_tool(Command::new("chown").arg("-R").arg(format!("{uid}:{gid}")).arg(&home))?;
        run_tool(Command::new("chmod").arg("0700").arg(&home))?;
    }
    Ok(())
}

fn mount(bed: &Bed) -> anyhow::Result<()> {
    mounts::make_private()?;
    mounts::devices()?;
    if bed.args.uses_cgroups() {
        cgroup::enter(bed)?;
    }
    mounts::tmpfs("/run", c"mode=755")?;
    std::fs::create_dir("/run/lock").context("cannot make /run/lock")?;
    mounts::bind(&bed.path("etc/hosts"), Path::new("/etc/hosts"))?;
    // Where there is no way out, the machine's name servers only cost time: five seconds for each name that nobody has.
    let resolver = Path::new("/etc/resolv.conf");
    if !bed.args.internet && resolver.exists() {
        mounts::bind(&bed.path("etc/resolv.conf"), resolver)?;
    }
    mounts::bind(&bed.path("etc/slurm"), Path::new(slurm::CONFIG))?;
    mounts::bind(&bed.path("home"), Path::new("/home"))?;
    mounts::bind(&bed.path("shared"), Path::new("/shared"))?;
    mounts::bind(&bed.path(LOGIN).join("state"), Path::new("/var/lib/skiff"))?;
    mounts::bind(&bed.path(LOGIN).join("cache"), Path::new("/var/cache/skiff"))?;
    mounts::bind(&bed.path(LOGIN).join("spool"), Path::new("/var/spool"))
}
