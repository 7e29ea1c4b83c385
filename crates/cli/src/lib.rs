//! The command line: its words, and from them to options; man pages and examples. What commands do is elsewhere, and nothing is looked up.

#![expect(missing_docs, reason = "a comment on an argument is what its help says")]
// The comments on arguments are their help, which writes brackets as the field does.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use skiff_output as output;
use skiff_spec::caller::CALLED_FROM;
use skiff_spec::job::JobSpec;
use skiff_spec::job::names::JOB;
use skiff_spec::name::EnvName;

mod app;
mod build;
pub mod called_as;
mod cdi;
mod checkpoint;
mod cluster;
pub mod complete;
mod container;
mod copy;
mod depot;
mod edf;
mod elsewhere;
mod env;
mod examples;
mod files;
mod image;
mod instance;
mod job;
mod machines;
pub mod manual;
mod migrate;
mod module;
mod net;
mod options;
mod quick;
mod retention;
mod root;
mod run;
mod short;
mod show;
mod slurm;
mod suggest;

pub use app::{AppCommand, AppRunArgs};
use build::BUILT;
pub use build::BuildArgs;
pub use cdi::CdiCommand;
pub use checkpoint::{CheckpointCommand, EveryArgs, GrownFiles, RestoreArgs, SaveArgs};
pub use cluster::{AgentArgs, ClusterCommand, ClusterRunArgs};
pub use container::{ContainerArgs, SubmitArgs};
pub use copy::{CopyArgs, CopyEnd};
pub use depot::DepotCommand;
pub use edf::EdfCommand;
pub use env::{EnvCommand, EnvNameArg, EnvSubcommand, ExecArgs};
pub use files::{may_name, named_files};
pub use image::{
    CommitArgs, ExportArgs, ImportArgs, LayerPacking, LoginArgs, PullArgs, PushArgs, ShellArgs, ShownArgs,
    StoreCommand,
};
use image::{EXPORTED, IMPORTED, PUSHED};
pub use instance::{InstanceCommand, StartArgs};
pub use job::{JobCommand, JobMoveArgs, JobRestoreArgs, JobSaveArgs, OnSignalArgs};
pub use machines::{DaemonCommand, NodesCommand, UpArgs};
pub use migrate::{Compress, DrainArgs, MigrateArgs, Mode};
pub use module::ModuleCommand;
pub use net::NetCommand;
pub use retention::Retention;
pub use root::{HabitArgs, HostArgs, MpiChoice, RootArgs, module_words};
pub use run::RunArgs;
pub use short::{KillArgs, Lines, LogsArgs, NamedExecArgs, NamedRmArgs, StopArgs};
pub use show::{DryRunArgs, ListArgs, OutputArgs};
pub use skiff_oci_runtime::OciArgs;
pub use slurm::SlurmCommand;

/// Your own software environment on a machine you do not own
#[derive(Parser)]
#[command(
    name = "skiff",
    bin_name = "skiff",
    version,
    max_term_width = 100,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: the command's own; 125 if Skiff itself fails, 126 if the command cannot be executed, \
127 if it is not found, 128+N if signal N ended it."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
}

impl Cli {
    /// Reads the words of the command line; ends with a message where they make no sense.
    pub fn read(words: &[OsString]) -> Self {
        let said = words.get(1..).unwrap_or_default();
        match quick::plain(said).or_else(|| quick::run_alone(said)).or_else(|| quick::oci_alone(said)) {
            Some(command) => Self { command },
            None => Self::described(words),
        }
    }

    fn described(words: &[OsString]) -> Self {
        Self::of(words).unwrap_or_else(|e| {
            let said: Vec<&str> = words.iter().skip(1).filter_map(|word| word.to_str()).collect();
            if let Some(why) = suggest::foreign(&e, &said) {
                output::complain(&why);
                std::process::exit(output::FAILURE)
            }
            // If nobody reads it, the exit code still says it: ours, as 2 might be that of the command that was to run.
            let (Ok(()) | Err(_)) = e.print();
            if let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) =
                (e.kind(), e.get(ContextKind::InvalidSubcommand))
            {
                let after = words.get(1).map_or_else(Default::default, |first| first.to_string_lossy());
                output::hint_at(&suggest::commands(&after, word, &Self::command()));
            }
            std::process::exit(if e.use_stderr() { output::FAILURE } else { 0 })
        })
    }

    fn of(words: &[OsString]) -> Result<Self, clap::Error> {
        let asks = words.iter().any(|word| word == "--help");
        let described = if asks { with_examples(Self::command(), "") } else { Self::command() };
        // Not where the job is being made, which nobody is to wait for.
        let is_users = words.get(1).is_none_or(|first| first != "slurm");
        let spec = std::env::var(JOB).ok().filter(|_| is_users);
        let described = match spec.and_then(|spec| JobSpec::environment_of(&spec)) {
            Some(name) => with_default_environment(described, name),
            None => described,
        };
        let mut cli = Self::from_arg_matches(&described.try_get_matches_from(words)?)?;
        if let CliCommand::Run(run) = &mut cli.command {
            run.look_for_dashes(words);
        }
        Ok(cli)
    }
}

/// In a job, commands mean its environment where none is named.
fn with_default_environment(command: clap::Command, name: EnvName) -> clap::Command {
    // As long as the process, as all texts of a command line are.
    let name: &'static str = name.to_string().leak();
    let meant = |sub: clap::Command| {
        sub.mut_args(|arg| match arg.get_env().is_some_and(|variable| variable == CALLED_FROM) {
            true => arg.default_value(name),
            false => arg,
        })
    };
    command.mut_subcommands(meant).mut_subcommand("env", |env| env.mut_subcommands(meant))
}

/// Adds each command's examples to the end of its help: for `--help`, while `-h` stays short.
fn with_examples(command: clap::Command, path: &str) -> clap::Command {
    let lines: String = examples::of(path)
        .iter()
        .map(
            |(what, line)| {
                if what.is_empty() { format!("    {line}\n") } else { format!("  {what}\n    {line}\n") }
            },
        )
        .collect();
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    let command = command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        with_examples(sub, path.trim())
    });
    if lines.is_empty() {
        command
    } else {
        command.after_help(format!("{before}Examples:\n{}", lines.trim_end()))
    }
}

#[derive(Subcommand)]
pub enum CliCommand {
    /// Run a command in a throw-away environment over the host's root
    Run(RunArgs),
    /// Start a shell in an image
    Shell(ShellArgs),
    /// Manage persistent environments
    #[command(subcommand)]
    Env(EnvSubcommand),
    /// Manage background containers
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// Checkpoint and restore instances
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Checkpoint and requeue batch jobs
    #[command(subcommand)]
    Job(JobCommand),
    /// Move a running instance to another host
    #[command(after_help = migrate::HELP)]
    Migrate(MigrateArgs),
    /// Move all movable instances from a host to others
    Drain(DrainArgs),
    /// Receive an instance (started on the destination)
    #[command(hide = true)]
    MigrateReceive,
    /// Serve migrations to this host, for users without ssh (as root; see docs/migration.md)
    Agent,
    /// Ask another host's agent to receive an instance
    #[command(hide = true)]
    AgentCall {
        /// Destination host
        node: String,
        /// Port of the agent
        port: u16,
    },
    /// Show running environments, instances and clusters
    Ps {
        /// Include those that are not running
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Run a command in an instance, an environment or a cluster
    Exec(NamedExecArgs),
    /// Copy files between the host and an instance or environment
    Cp(CopyArgs),
    /// Create an image from an instance or environment
    Commit(CommitArgs),
    /// Build an image from a Dockerfile
    #[command(after_help = BUILT)]
    Build(BuildArgs),
    /// Print the output of an instance's command
    Logs(LogsArgs),
    /// Stop an instance or an environment and every process in it
    Stop(StopArgs),
    /// End instances or environments at once, or send a signal to an instance's command
    Kill(KillArgs),
    /// Remove ended instances, or environments and all changes made in them
    Rm(NamedRmArgs),
    /// Run Jupyter or a desktop for the browser on your own computer
    #[command(subcommand)]
    App(AppCommand),
    /// Manage virtual clusters: containers on the hosts of a job, or on this host
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List and check the devices that vendors describe (CDI): GPUs and others
    #[command(subcommand)]
    Cdi(CdiCommand),
    /// List and check this site's modules: what of its fabric, MPI and software containers can have
    #[command(subcommand)]
    Module(ModuleCommand),
    /// Show and check the site's networks
    #[command(subcommand)]
    Net(NetCommand),
    /// Pull an image from a registry
    Pull(PullArgs),
    /// Import an image from a file or directory
    #[command(after_help = IMPORTED)]
    Import(ImportArgs),
    /// Export an image to a file or directory
    #[command(after_help = EXPORTED)]
    Export(ExportArgs),
    /// Push an image to a registry
    #[command(after_help = PUSHED)]
    Push(PushArgs),
    /// List your images
    Images(ListArgs),
    /// Add a name to an image
    Tag {
        /// Image name or digest
        image: String,
        /// New name: [SERVER/]NAME[:TAG]
        name: String,
    },
    /// Show how an image was built
    History {
        /// Image name or digest
        image: String,
        /// Cut nothing on a terminal
        #[arg(long)]
        no_trunc: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Remove images from your list; delete unused data
    Rmi {
        /// Image names or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show image metadata as JSON
    Inspect {
        /// Image name or digest
        image: String,
        /// List the files in the image instead
        #[arg(long)]
        files: bool,
        /// Print by a template: '{{.Config.config.Cmd}}' ...
        #[arg(long, value_name = "TEMPLATE", conflicts_with = "files")]
        format: Option<String>,
        /// Accepted for habit: it is JSON in any case
        #[arg(long, hide = true)]
        json: bool,
    },
    /// Log in to a registry; or, without SERVER, enter the default environment (for sshd's ForceCommand)
    #[command(after_help = "In sshd_config:\n  Match Group skiff\n      ForceCommand /usr/bin/skiff login")]
    Login(LoginArgs),
    /// Remove the stored login for a registry
    Logout {
        /// Registry host, as given to `skiff login`
        server: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Inspect, prune and verify the image store
    #[command(subcommand)]
    Store(StoreCommand),
    /// Inspect, prune and verify the depot, where snapshots for jobs are
    #[command(subcommand)]
    Depot(DepotCommand),
    /// Show and check environment definition files (EDF)
    #[command(subcommand)]
    Edf(EdfCommand),
    /// Run containers of OCI bundles, as Slurm and Podman ask a runtime to
    Oci(OciArgs),
    /// Check this host and suggest fixes
    Doctor(OutputArgs),
    /// Remove leftovers of crashed environments and jobs on this host
    Sweep(SweepArgs),
    /// Show the configuration in force
    Config(OutputArgs),
    /// Print the version
    Version,
    /// Show the help of a command
    Help {
        /// Command
        command: Vec<String>,
    },
    /// Print completions for a shell
    Completion {
        /// Shell to complete in
        shell: clap_complete::Shell,
    },
    /// Print the names that may follow these words, for completion
    #[command(hide = true)]
    Complete {
        /// Words behind `skiff`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man {
        /// Directory to write to
        dir: PathBuf,
    },
    /// Commands for the Slurm plug-in
    #[command(subcommand, hide = true)]
    Slurm(SlurmCommand),
}

#[derive(Args)]
pub struct SweepArgs {
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command with its help as `--help` prints it on a terminal of 80 columns.
    fn helps(command: clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        let mut command = command.term_width(80);
        found.push((path.into(), command.render_help().to_string()));
        for sub in command.get_subcommands() {
            helps(sub.clone(), &format!("{path} {}", sub.get_name()), found);
        }
    }

    #[test]
    fn in_a_job_its_environment_is_meant_where_none_is_named() {
        for command in ["history", "diff", "show", "status", "snapshot"] {
            let argument = if ["history", "diff"].contains(&command) { "env" } else { "name" };
            let words = ["skiff", "env", command];
            let described = with_default_environment(Cli::command(), "dev".parse().expect("a name"));
            let matches = described.try_get_matches_from(words).expect("parsed");
            let command = matches.subcommand().and_then(|(_, env)| env.subcommand()).expect("a command").1;
            let given: Vec<_> = command.get_raw(argument).expect("a name").collect();
            assert_eq!(given, ["dev"], "{words:?}");
        }
    }

    #[test]
    fn help_fits_80_columns() {
        let mut found = vec![];
        let mut whole = with_examples(Cli::command(), "");
        whole.build();
        helps(whole, "skiff", &mut found);
        assert!(found.len() > 60);
        for (path, text) in found {
            for line in text.lines() {
                let fits = line.chars().count() <= 80;
                assert!(fits, "{path} --help: {line}");
            }
        }
    }
}
