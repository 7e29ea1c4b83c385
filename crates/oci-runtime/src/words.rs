//! The words of `skiff oci`: those of runc and crun, as container engines and Slurm write them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::state::ContainerId;

#[derive(Args)]
pub struct OciArgs {
    #[command(flatten)]
    pub shared: SharedArgs,
    #[command(subcommand)]
    pub command: OciCommand,
}

#[derive(Args, Clone)]
pub struct SharedArgs {
    /// Directory for the state of containers [default: $XDG_RUNTIME_DIR/skiff-oci, or /tmp/skiff-oci.UID]
    #[arg(long, value_name = "DIR", global = true)]
    pub root: Option<PathBuf>,
    /// File for warnings and errors
    #[arg(long, value_name = "FILE", global = true)]
    pub log: Option<PathBuf>,
    /// Format of that file
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"], global = true)]
    pub log_format: String,
    /// Print warnings, too, where there is no log
    #[arg(long, global = true)]
    pub debug: bool,
    /// Accepted for habit: it is rootless in any case
    #[arg(long, value_name = "WHETHER", num_args = 0..=1, require_equals = true, hide = true, global = true)]
    pub rootless: Option<Option<String>>,
    /// Accepted for habit: nobody asks systemd for a control group
    #[arg(long, num_args = 0..=1, require_equals = true, hide = true, global = true)]
    pub systemd_cgroup: Option<Option<String>>,
    /// Accepted for habit: control groups are asked for by files
    #[arg(long, value_name = "MANAGER", hide = true, global = true)]
    pub cgroup_manager: Option<String>,
}

#[derive(Subcommand)]
pub enum OciCommand {
    /// Create a container; start runs its program
    Create(CreateArgs),
    /// Start the program of a created container
    Start {
        /// Container
        id: ContainerId,
    },
    /// Create a container, start it, and wait for its end
    Run(OciRunArgs),
    /// Print the state of a container as JSON
    State {
        /// Container
        id: ContainerId,
    },
    /// Send a signal to a container
    Kill {
        /// Signal all of its processes
        #[arg(short, long)]
        all: bool,
        /// Container
        id: ContainerId,
        /// Signal, by name or number
        #[arg(default_value = "TERM")]
        signal: String,
    },
    /// Delete a container that has stopped
    Delete {
        /// Kill its processes before
        #[arg(short, long)]
        force: bool,
        /// Delete all that have stopped after their `run` was killed
        #[arg(long, conflicts_with_all = ["force", "id"])]
        orphaned: bool,
        /// Container
        #[arg(required_unless_present = "orphaned")]
        id: Option<ContainerId>,
    },
    /// Start a further process in a container
    Exec(OciExecArgs),
    /// List containers
    List {
        /// Print the names only
        #[arg(short, long)]
        quiet: bool,
        /// Output format
        #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
        format: String,
    },
    /// List the processes of a container
    Ps {
        /// Container
        id: ContainerId,
        /// Output format
        #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
        format: String,
    },
    /// Freeze the processes of a container
    Pause {
        /// Container
        id: ContainerId,
    },
    /// Resume the processes of a paused container
    Resume {
        /// Container
        id: ContainerId,
    },
    /// Change the limits of a container that has a control group of its own
    Update(UpdateArgs),
    /// Write a configuration to begin with into a bundle
    Spec {
        /// Bundle directory
        #[arg(short, long, value_name = "DIR", default_value = ".")]
        bundle: PathBuf,
    },
    /// Print what this runtime can do, as JSON
    Features,
}

#[derive(Args, Clone)]
pub struct CreateArgs {
    /// Directory with config.json
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub bundle: PathBuf,
    /// Socket that takes the master of the container's terminal
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// File for the PID of the container's process
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Pass on this many descriptors from 3 on
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub preserve_fds: u32,
    /// Accepted for habit: the root is always changed by pivot_root
    #[arg(long, hide = true)]
    pub no_pivot: bool,
    /// Accepted for habit: the container has no keyring of its own
    #[arg(long, hide = true)]
    pub no_new_keyring: bool,
    /// Container
    pub id: ContainerId,
}

#[derive(Args)]
pub struct OciRunArgs {
    /// Return once it has started
    #[arg(short, long)]
    pub detach: bool,
    /// Leave its state when it has ended
    #[arg(long)]
    pub keep: bool,
    /// Accepted for habit: who takes the container's orphans is not changed
    #[arg(long, hide = true)]
    pub no_subreaper: bool,
    #[command(flatten)]
    pub create: CreateArgs,
}

#[derive(Args)]
pub struct UpdateArgs {
    /// File with the limits as JSON, as linux.resources has them; - reads standard input. Other options are not taken then
    #[arg(short, long, value_name = "FILE")]
    pub resources: Option<PathBuf>,
    /// Memory: 512M, bytes, or -1 for no limit
    #[arg(long, value_name = "SIZE", value_parser = memory_size, allow_hyphen_values = true)]
    pub memory: Option<i64>,
    /// Memory that is reclaimed last
    #[arg(long, value_name = "SIZE", value_parser = memory_size, allow_hyphen_values = true)]
    pub memory_reservation: Option<i64>,
    /// Memory and swap together; with --memory
    #[arg(long, value_name = "SIZE", value_parser = memory_size, allow_hyphen_values = true, requires = "memory")]
    pub memory_swap: Option<i64>,
    /// Processor time in each period, in microseconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub cpu_quota: Option<i64>,
    /// Length of the period, in microseconds
    #[arg(long, value_name = "TIME")]
    pub cpu_period: Option<u64>,
    /// Weight against others, 2 to 262144
    #[arg(long, value_name = "WEIGHT", visible_alias = "cpu-shares")]
    pub cpu_share: Option<u64>,
    /// Processors, as 0-3,7
    #[arg(long, value_name = "LIST")]
    pub cpuset_cpus: Option<String>,
    /// Memory nodes, as 0-1
    #[arg(long, value_name = "LIST")]
    pub cpuset_mems: Option<String>,
    /// Processes and threads; -1 for no limit
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub pids_limit: Option<i64>,
    /// Container
    pub id: ContainerId,
}

/// As runc has it: a size, or -1.
fn memory_size(text: &str) -> Result<i64, String> {
    let size = skiff_spec::size::parse(text).and_then(|size| i64::try_from(size).ok());
    size.or((text == "-1").then_some(-1)).ok_or_else(|| "not a size such as 512M, nor -1".into())
}

#[derive(Args)]
pub struct OciExecArgs {
    /// File with the process as JSON
    #[arg(short, long, value_name = "FILE")]
    pub process: Option<PathBuf>,
    /// Socket that takes the master of the process's terminal
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// Give it a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Return once it has started
    #[arg(short, long)]
    pub detach: bool,
    /// File for its PID
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Pass on this many descriptors from 3 on
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub preserve_fds: u32,
    /// Directory to begin in
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Set a variable
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// User and group, by number
    #[arg(short, long, value_name = "UID[:GID]")]
    pub user: Option<String>,
    /// Further groups, by number
    #[arg(short = 'g', long, value_name = "GID")]
    pub additional_gids: Vec<u32>,
    /// Add a capability
    #[arg(short, long, value_name = "NAME")]
    pub cap: Vec<String>,
    /// Let no program gain privileges
    #[arg(long)]
    pub no_new_privs: bool,
    /// Accepted for habit: profiles of security modules are not set
    #[arg(long, value_name = "PROFILE", hide = true)]
    pub apparmor: Option<String>,
    /// Accepted for habit: labels are not set
    #[arg(long, value_name = "LABEL", hide = true)]
    pub process_label: Option<String>,
    /// Container
    pub id: ContainerId,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}
