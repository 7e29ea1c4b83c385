//! What a developer may ask of the bed; stored as it is in the bed's directory for the processes inside.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The options of `cargo xtask testbed up`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct BedOptions {
    /// How many compute nodes (n1, n2, ...)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub nodes: u8,
    /// CPUs that each node claims to have, whatever the machine has
    #[arg(long, default_value_t = 4)]
    pub cpus: u16,
    /// A tree as `make install DESTDIR=DIR PREFIX=/usr` makes it; its files really are on the machine while the bed is up
    #[arg(long, value_name = "DIR")]
    pub install: Option<PathBuf>,
    /// A Slurm plug-in to load on the login node and the nodes (copied into the bed)
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// An argument for that plug-in, for example skiff=/usr/bin/skiff
    #[arg(long, value_name = "ARG", requires = "plugin")]
    pub plugin_arg: Vec<String>,
    /// A further line of plugstack.conf
    #[arg(long, value_name = "LINE")]
    pub plugstack: Vec<String>,
    /// A node without Skiff: its plugstack.conf is empty and the files of --install are hidden
    #[arg(long, value_name = "NODE")]
    pub without_skiff: Vec<String>,
    /// A further line of slurm.conf, for example KillWait=2
    #[arg(long, value_name = "LINE")]
    pub slurm_conf: Vec<String>,
    /// A further setting of every node in slurm.conf, for example Gres=gpu:2
    #[arg(long, value_name = "SETTING")]
    pub node_conf: Vec<String>,
    /// A line of gres.conf, for example Name=gpu File=/dev/nvidia[0-1]
    #[arg(long, value_name = "LINE")]
    pub gres_conf: Vec<String>,
    /// How slurmd follows the processes of a job: linuxproc, cgroup or pgid
    #[arg(long, default_value = "linuxproc")]
    pub proctrack: String,
    /// A line of cgroup.conf, for example ConstrainRAMSpace=yes; with --proctrack cgroup
    #[arg(long, value_name = "LINE")]
    pub cgroup_conf: Vec<String>,
    /// The ForceCommand that sshd sets for the members of group skiff (all users of the bed)
    #[arg(long, value_name = "CMD")]
    pub ssh_force_command: Option<String>,
    /// Let the login node reach the outside through slirp4netns (apt, pip)
    #[arg(long)]
    pub internet: bool,
    /// Copy the daemons' logs into DIR before the bed is removed
    #[arg(long, value_name = "DIR")]
    pub keep_logs: Option<PathBuf>,
    /// Report how long each part took to come up
    #[arg(long)]
    pub timing: bool,
    /// What to run on the login node
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

impl BedOptions {
    /// Whether slurmd makes control groups, which outlive processes and namespaces.
    pub fn uses_cgroups(&self) -> bool {
        self.proctrack == "cgroup"
    }

    /// The nodes' host names, in order.
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|index| format!("n{index}")).collect()
    }
}
