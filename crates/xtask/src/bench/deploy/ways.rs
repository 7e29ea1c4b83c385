//! The ways to copy a directory to all nodes, each ending with the smallest job there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::bench::Setting;
use crate::bench::people::{self, RunAs, TestUser};

pub const SKIFF: &str = "Skiff";
/// The same job without an environment.
pub const BARE: &str = "srun alone";
pub const RSYNC: &str = "rsync";
pub const TAR: &str = "tar over ssh";
pub const SBCAST: &str = "sbcast of a tar";
pub const COPY: &str = "cp -a on each node";
pub const PEERS: [&str; 4] = [RSYNC, TAR, SBCAST, COPY];

/// On each node, on its disk.
const TARGET: &str = "/var/cache/skiff/bench-deploy";

/// Nodes that can be copied to.
pub struct Peers {
    user: TestUser,
    /// A file with options of ssh.
    ssh: PathBuf,
}

impl Peers {
    /// Starts sshd on so many nodes, with the key of the test bed's own. They end with the bed.
    pub fn prepare(setting: &Setting, nodes: usize, home: &Path) -> anyhow::Result<Self> {
        let bed = std::env::var_os("SKIFF_TESTBED_DIR").map(PathBuf::from);
        let keys = bed.context("SKIFF_TESTBED_DIR is not set")?.join("ssh");
        let ssh = home.join("ssh-config");
        let (key, user) = (keys.join("user_key"), setting.user.clone());
        let options = format!(
            "Host n*\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n    BatchMode yes\n    LogLevel ERROR\n    \
             UserKnownHostsFile /dev/null\n    StrictHostKeyChecking no\n    ConnectTimeout 5\n",
            user.name,
            key.display()
        );
        std::fs::write(&ssh, options).with_context(|| format!("writing {}", ssh.display()))?;
        let public = std::fs::read_to_string(keys.join("user_key.pub")).context("reading the bed's key")?;
        for node in names(nodes) {
            let script = format!(
                "mkdir -p /run/sshd && echo '{}' >/run/sshd-authorized-keys && \
                 /usr/sbin/sshd -f {} -E /run/sshd.log && install -d -o {} {TARGET}",
                public.trim(),
                keys.join("sshd_config").display(),
                user.name
            );
            on(&node, &script)?;
        }
        Ok(Self { user, ssh })
    }

    /// Removes the copies.
    pub fn clear(&self, nodes: usize) -> anyhow::Result<()> {
        names(nodes).iter().try_for_each(|node| on(node, &format!("rm -rf {TARGET}/*")))
    }

    /// Gives the nodes what rsync finds there when it brings what has changed.
    pub fn bring_before(&self, nodes: usize, source: &Path) -> anyhow::Result<()> {
        self.at_once(nodes, |node| self.rsync(node, source))
    }

    /// Copies `source` to so many nodes, and runs a job there.
    pub fn bring(&self, way: &str, nodes: usize, source: &Path) -> anyhow::Result<()> {
        let user = RunAs::User(&self.user);
        let on = option(nodes);
        let job = |script: &str| format!("srun --environment=none {on} --ntasks-per-node=1 sh -c '{script}'");
        let (shown, way_name) = (source.display(), way.replace(' ', "-"));
        match way {
            RSYNC => self.at_once(nodes, |node| self.rsync(node, source))?,
            TAR => {
                let target = format!("{TARGET}/{way_name}");
                self.at_once(nodes, |node| {
                    format!(
                        "tar -C {shown} -cf - . | ssh -F {} {node} 'mkdir {target} && tar -C {target} -xf -'",
                        self.ssh.display()
                    )
                })?;
            }
            SBCAST => {
                let unpack =
                    format!("mkdir {TARGET}/{way_name} && tar -C {TARGET}/{way_name} -xf {TARGET}/tar");
                let script = format!(
                    "tar -C {shown} -cf {shown}.tar . && sbcast {shown}.tar {TARGET}/tar && {} && rm {shown}.tar",
                    job(&unpack).replace('\'', "\"")
                );
                user.bash(&format!(
                    "salloc -Q --environment=none {on} --ntasks-per-node=1 bash -c '{script}'"
                ))?;
                return Ok(());
            }
            _ => {
                let copy = format!("cp -a {shown} {TARGET}/copy");
                user.bash(&job(&copy))?;
                return Ok(());
            }
        }
        user.bash(&job("true")).map(drop)
    }

    fn rsync(&self, node: &str, source: &Path) -> String {
        let (ssh, source) = (self.ssh.display(), source.display());
        format!("rsync -a --delete -e 'ssh -F {ssh}' {source}/ {node}:{TARGET}/rsync/")
    }

    /// Runs a command for each node, all at once, as root: the bed's key is root's.
    fn at_once(&self, nodes: usize, command: impl Fn(&str) -> String) -> anyhow::Result<()> {
        let mut running = vec![];
        for node in names(nodes) {
            let script = format!("set -o pipefail; {}", command(&node));
            let mut bash = Command::new("bash");
            bash.args(["-c", &script]).stdin(Stdio::null());
            running.push((bash.spawn().context("running bash")?, script));
        }
        // All are waited for, also where one of them fails.
        let ended: Vec<_> = running.into_iter().map(|(mut bash, script)| (bash.wait(), script)).collect();
        for (status, script) in ended {
            let status = status.context("waiting for bash")?;
            ensure!(status.success(), "{script}: {status}");
        }
        Ok(())
    }
}

/// What tells Slurm to use the first so many nodes: those that copies are brought to, and that have what was there before.
pub fn option(nodes: usize) -> String {
    format!("-N{nodes} -w {}", names(nodes).join(","))
}

pub fn names(nodes: usize) -> Vec<String> {
    (1..=nodes).map(|index| format!("n{index}")).collect()
}

fn on(node: &str, script: &str) -> anyhow::Result<()> {
    people::output(Command::new("on").args([node, "sh", "-c", script]), script).map(drop)
}
