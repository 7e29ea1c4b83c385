//! The command line: its words, and from them to options; man pages and examples. What commands do is elsewhere, and nothing is looked up.

#![expect(missing_docs, reason = "a comment on an argument is what its help says")]
// The comments on arguments are their help, which writes brackets as the field does.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use skiff_output as output;
use skiff_plan::inside::ProcessArgs;
use skiff_spec::caller::CALLED_FROM;
use skiff_spec::name::EnvName;
use skiff_spec::network::NetName;

mod app;
pub mod called_as;
mod checkpoint;
mod cluster;
pub mod complete;
mod container;
mod elsewhere;
mod examples;
mod image;
mod instance;
mod job;
mod machines;
pub mod manual;
mod migrate;
mod options;
mod retention;
mod root;
mod short;
mod suggest;

pub use app::{AppCommand, AppRunArgs};
pub use checkpoint::{CheckpointCommand, RestoreArgs, SaveArgs};
pub use cluster::{AgentArgs, ClusterCommand, ClusterRunArgs};
pub use container::{ContainerArgs, SubmitArgs};
use image::{EXPORTED, IMPORTED};
pub use image::{ExportArgs, ImportArgs, LoginArgs, PullArgs, ShellArgs, StoreCommand};
pub use instance::{InstanceCommand, StartArgs};
pub use job::{JobCommand, OnSignalArgs};
pub use machines::{DaemonCommand, NodesCommand, UpArgs};
pub use migrate::{Compress, DrainArgs, MigrateArgs, Mode};
pub use retention::Retention;
pub use root::{DryRunArgs, HabitArgs, HostArgs, RootArgs};
pub use short::{KillArgs, ListArgs, NamedExecArgs, NamedRmArgs, StopArgs};

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
        match plain(said).or_else(|| run_alone(said)) {
            Some(command) => Self { command },
            None => Self::described(words),
        }
    }

    fn described(words: &[OsString]) -> Self {
        Self::of(words).unwrap_or_else(|e| {
            if let Some(why) = suggest::foreign(&e) {
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
        let mut cli = Self::from_arg_matches(&described.try_get_matches_from(words)?)?;
        if let CliCommand::Run(run) = &mut cli.command {
            run.look_for_dashes(words);
        }
        Ok(cli)
    }
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

impl RunArgs {
    /// What stands before the words that were left over; the parser itself does not tell.
    fn look_for_dashes(&mut self, words: &[OsString]) {
        let before = words.len().checked_sub(self.command.len() + 1).and_then(|at| words.get(at));
        self.over_host = self.command.is_empty() || before.is_some_and(|word| word == "--");
    }
}

/// Reads what needs no description to be read: a program's words behind `--` or an image, and no option before. Programs that start
/// others write it so, a hundred times a second, and to describe all commands takes 0.2 ms, a tenth of a start.
fn plain(words: &[OsString]) -> Option<CliCommand> {
    let is_word = |word: &OsString| !word.as_bytes().starts_with(b"-");
    match words {
        [run, dashes, command @ ..] if run == "run" && dashes == "--" => {
            Some(CliCommand::Run(RunArgs { over_host: true, command: command.into(), ..RunArgs::default() }))
        }
        [run, command @ ..] if run == "run" && command.first().is_some_and(is_word) => {
            Some(CliCommand::Run(RunArgs { command: command.into(), ..RunArgs::default() }))
        }
        [env, exec, name, dashes, command @ ..]
            if env == "env" && exec == "exec" && dashes == "--" && !command.is_empty() =>
        {
            let name = name.to_str()?.parse().ok()?;
            Some(CliCommand::Env(EnvCommand::Exec(ExecArgs {
                inside: ProcessArgs::default(),
                name,
                command: command.into(),
            })))
        }
        _ => None,
    }
}

/// Reads `run` with options by the description of that alone; what it cannot read is told by the whole.
fn run_alone(words: &[OsString]) -> Option<CliCommand> {
    if words.first()? != "run" {
        return None;
    }
    let alone = RunArgs::augment_args(clap::Command::new("run"));
    let mut run = RunArgs::from_arg_matches(&alone.try_get_matches_from(words).ok()?).ok()?;
    run.look_for_dashes(words);
    Some(CliCommand::Run(run))
}

/// What lies below if nothing is said.
const BASE: &str = "host";

#[derive(Subcommand)]
pub enum CliCommand {
    /// Run a command in a throw-away environment over the host's root
    Run(RunArgs),
    /// Start a shell in an image
    Shell(ShellArgs),
    /// Manage persistent environments
    #[command(subcommand)]
    Env(EnvCommand),
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
        /// Also those that are not running
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Run a command in an instance, an environment or a cluster
    Exec(NamedExecArgs),
    /// Print the output of an instance's command
    Logs {
        /// Follow the output until the command ends
        #[arg(short, long)]
        follow: bool,
        /// Instance name
        instance: EnvName,
    },
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
    /// List your images
    Images(ListArgs),
    /// Give an image one more name
    Tag {
        /// Image name or digest
        image: String,
        /// New name: [SERVER/]NAME[:TAG]
        name: String,
    },
    /// Show the steps that an image was built by
    History {
        /// Image name or digest
        image: String,
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

/// A plan says all of this itself.
#[rustfmt::skip]
const BESIDE_PLAN: [&str; 24] = [
    "root", "me", "env", "env_files", "cleanenv", "workdir", "writable", "tmpfs", "shm_size", "device", "user", "pull", "mounts", "net",
    "contain", "containall", "no_home", "base", "entrypoint", "untrusted", "checkpoint", "detach", "name", "command",
];

#[derive(Args, Debug, Default)]
#[command(mut_arg("net", |net| net.help(
    "Network: host, none, private (outgoing connections only), or a site network (`skiff net list`) [default: host, or none \
     with --untrusted]"
)))]
pub struct RunArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Base to run over: host, or image:IMAGE (then all other words are the command)
    #[arg(long, value_name = "BASE")]
    pub base: Option<String>,
    /// Run this program instead of the image's entry point
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<OsString>,
    /// Run an image you do not trust: --containall, no network, no capabilities, fewer system calls
    #[arg(long, conflicts_with = "checkpoint")]
    pub untrusted: bool,
    #[command(flatten)]
    pub show: DryRunArgs,
    /// Run as an instance of this name, which can be checkpointed and migrated
    #[arg(long, value_name = "INSTANCE", conflicts_with = "me")]
    pub checkpoint: Option<EnvName>,
    /// Run what `skiff run --dry-run --json` printed to this file, or to standard input (-)
    #[arg(long, value_name = "FILE", conflicts_with_all = BESIDE_PLAN)]
    pub plan: Option<PathBuf>,
    /// Run in the background, as an instance; print its name
    #[arg(short, long, conflicts_with = "untrusted")]
    pub detach: bool,
    /// Name of the instance, with --detach [default: after the image]
    #[arg(long, value_name = "INSTANCE", conflicts_with = "checkpoint")]
    pub name: Option<EnvName>,
    #[command(flatten)]
    pub habit: HabitArgs,
    /// Whether `--` stands before the first word, so that it is no image.
    #[arg(skip)]
    pub over_host: bool,
    /// Image, and a command in it [default: the image's own]; or, after --, a command over the host's root [default: your
    /// shell]
    #[arg(trailing_var_arg = true, value_names = ["IMAGE", "COMMAND"])]
    pub command: Vec<OsString>,
}

#[derive(Subcommand)]
pub enum NetCommand {
    /// List networks
    #[command(visible_alias = "ls")]
    List(OutputArgs),
    /// Show a network and who holds its addresses on this node
    Show {
        /// Network name
        name: NetName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Free an address reserved for one of your saved instances (root: for anyone's)
    Release {
        /// Network name
        name: NetName,
        /// Address to free on this node
        address: std::net::Ipv4Addr,
    },
    /// Check whether a network, or all, can work on this node
    Check {
        /// Network name [default: all]
        name: Option<NetName>,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Subcommand)]
pub enum EnvCommand {
    /// Create an environment
    #[command(mut_arg("net", |net| net.help(
        "Network: host, none, private, or a site network; jobs always use the host's [default: host]"
    )))]
    Create {
        /// Environment name
        name: EnvName,
        /// Base: host, or image:IMAGE
        #[arg(long, value_name = "BASE", default_value = BASE)]
        base: String,
        #[command(flatten)]
        host: HostArgs,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Start your shell in an environment (the default one is created on first use)
    Enter {
        #[command(flatten)]
        inside: ProcessArgs,
        /// Environment name
        #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
        name: EnvName,
        /// Print the plan, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    /// Run a command in an environment
    Exec(ExecArgs),
    /// List your environments
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show the settings of an environment: base, mounts, network, and whether it is running
    Show {
        /// Environment name
        #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
        name: EnvName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Copy an environment with all changes made in it
    #[command(visible_alias = "copy")]
    Clone {
        /// Environment to copy; it must not be running
        name: EnvName,
        /// Name of the copy
        new: EnvName,
    },
    /// Give an environment another name
    #[command(visible_alias = "mv")]
    Rename {
        /// Environment name; it must not be running
        name: EnvName,
        /// New name
        new: EnvName,
    },
    /// Show files added (A), changed (C) and deleted (D) since the base
    Diff {
        /// Environment name
        #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
        name: EnvName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show the host's latest changes in a running environment
    Refresh {
        /// Environment name
        #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
        name: EnvName,
    },
    /// Take a snapshot, as job submission does
    Snapshot {
        /// Environment name
        #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
        name: EnvName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Stop a running environment and every process in it
    Stop {
        /// Environment name
        #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
        name: EnvName,
    },
    /// Remove an environment and all changes made in it
    #[command(visible_alias = "remove")]
    Rm {
        /// Environment name
        #[arg(required = true)]
        names: Vec<EnvName>,
        /// Stop it first if it is running
        #[arg(short, long)]
        force: bool,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args, Debug)]
pub struct ExecArgs {
    #[command(flatten)]
    pub inside: ProcessArgs,
    /// Environment name
    pub name: EnvName,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct SweepArgs {
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Subcommand)]
pub enum SlurmCommand {
    /// At submission: take the snapshot or find the image, print the job spec
    Submit(SubmitArgs),
    /// On a node before a job: create its directories
    Prolog,
    /// On a node after a job: remove everything of it
    Epilog,
    /// On a node before a step: create its namespaces
    StepBegin,
    /// On a node: run a task in its step
    Task {
        /// Command of the task
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_stands_alone() {
        let run = RunArgs::augment_args(clap::Command::new("run"));
        // Whether it is shown, and what is accepted for habit.
        let others =
            ["dry_run", "json", "plan", "remove", "tty", "interactive", "init", "read_only", "platform"];
        let ids = run.get_arguments().map(|arg| arg.get_id().as_str());
        let mut rest: Vec<_> = ids.filter(|id| !others.contains(id)).collect();
        let mut excluded = BESIDE_PLAN.to_vec();
        rest.sort_unstable();
        excluded.sort_unstable();
        assert_eq!(rest, excluded);
    }

    /// Each command with its help as `--help` prints it on a terminal of 80 columns.
    fn helps(command: clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        let mut command = command.term_width(80);
        found.push((path.into(), command.render_help().to_string()));
        for sub in command.get_subcommands() {
            helps(sub.clone(), &format!("{path} {}", sub.get_name()), found);
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

    #[test]
    fn words_read_quickly_are_read_as_described() {
        let plain_ones = [
            "run -- true",
            "run --",
            "run -- --help",
            "run -- a -- b",
            "run a",
            "run a b --me -- c",
            "run a -- b",
            "run a:1 -x --help",
            "env exec dev -- a -- -b --",
            "env exec dev -- a",
        ];
        let runs = [
            "run -e A=1 -- a",
            "run --me a b",
            "run -it --rm a -- --me",
            "run",
            "run --net none -v /a:/b a",
            "run -C --untrusted a",
        ];
        let others = [
            "env exec dev --",
            "env exec ../x -- a",
            "env list",
            "run --help",
            "run --mee a",
            "run --me --root a",
        ];
        let shown = |command: CliCommand| match command {
            CliCommand::Run(run) => format!("{run:?}"),
            CliCommand::Env(EnvCommand::Exec(exec)) => format!("{exec:?}"),
            _ => String::new(),
        };
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let check = |line: &str, read: fn(&[OsString]) -> Option<CliCommand>| {
            let command = read(&words(line)).unwrap_or_else(|| panic!("{line}: not read"));
            let described = Cli::of(&words(&format!("skiff {line}"))).ok();
            assert_eq!(Some(shown(command)), described.map(|cli| shown(cli.command)), "{line}");
        };
        plain_ones.iter().for_each(|line| check(line, plain));
        plain_ones[..8].iter().chain(&runs).for_each(|line| check(line, run_alone));
        for line in others {
            let read = plain(&words(line)).or_else(|| run_alone(&words(line)));
            assert!(read.is_none(), "{line}");
        }
    }
}
