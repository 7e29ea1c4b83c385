//! The words of the command line. Only what they are; what they do is elsewhere.

// The comments on arguments are their help, which writes brackets as the field does.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use skiff_spec::name::EnvName;

/// Your own software environment on a machine you do not own
#[derive(Parser)]
#[command(
    name = "skiff",
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
    pub command: Command,
}

impl Cli {
    /// Reads the words of the command line; ends with a message where they make no sense.
    ///
    /// To describe all commands takes 0.15 ms, a tenth of a whole start. So for those that start something only what they
    /// take themselves is described first; if that does not explain the words, all is.
    pub fn read() -> Self {
        let words: Vec<OsString> = std::env::args_os().skip(1).collect();
        let word = |at: usize| words.get(at).and_then(|w| w.to_str());
        let command = match (word(0), word(1)) {
            (Some("run"), _) => only(&words[1..]).map(Command::Run),
            (Some("env"), Some("exec")) => only(&words[2..]).map(|exec| Command::Env(Env::Exec(exec))),
            _ => None,
        };
        command.map_or_else(Self::parse, |command| Self { command })
    }
}

fn only<A: Args>(words: &[OsString]) -> Option<A> {
    let command = A::augment_args(clap::Command::new("skiff").no_binary_name(true));
    A::from_arg_matches(&command.try_get_matches_from(words).ok()?).ok()
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a command in a throw-away environment over the host's root
    Run(Run),
    /// Environments that stay: make, enter, compare, remove
    #[command(subcommand)]
    Env(Env),
    /// Show the environments that run
    Ps(Output),
    /// End a running environment and everything in it
    Stop {
        /// Its name
        #[arg(default_value_t = EnvName::default_name())]
        name: EnvName,
    },
    /// Enter the default environment as a login does (for sshd's ForceCommand)
    #[command(after_help = "In sshd_config:\n  Match Group skiff\n      ForceCommand /usr/bin/skiff login")]
    Login(Login),
    /// Check what this machine offers and how to mend what is missing
    Doctor(Output),
    /// Show and remove what crashed environments and jobs have left on this machine
    Sweep(Sweep),
    /// Show the configuration in force
    Config(Output),
    /// Print completions for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory
        dir: PathBuf,
    },
    /// The job manager's side
    #[command(subcommand, hide = true)]
    Slurm(Slurm),
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub inside: Inside,
    /// What lies below
    #[arg(long, value_name = "BASE", default_value = "host")]
    pub base: String,
    /// Mount a directory or file of the host: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print it as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Accepted for habit: the environment always goes with its command
    #[arg(long = "rm", hide = true)]
    pub remove: bool,
    /// Accepted for habit: the terminal is always passed on
    #[arg(short = 't', long = "tty", hide = true)]
    pub tty: bool,
    /// Accepted for habit: standard input is always passed on
    #[arg(short = 'i', long = "interactive", hide = true)]
    pub interactive: bool,
    /// The command and its arguments [default: your shell]
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How a command runs inside.
#[derive(Args)]
pub struct Inside {
    /// Be root inside (the default)
    #[arg(long, conflicts_with = "me")]
    pub root: bool,
    /// Be yourself inside, without any privilege
    #[arg(long)]
    pub me: bool,
    /// Set a variable, or pass on one of yours: NAME[=VALUE]
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<OsString>,
    /// Start in this directory [default: where you are]
    #[arg(short = 'w', long = "workdir", visible_alias = "pwd", value_name = "DIR")]
    pub workdir: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Env {
    /// Make an environment
    Create {
        /// Its name
        name: EnvName,
        /// What lies below
        #[arg(long, value_name = "BASE", default_value = "host")]
        base: String,
        /// Mount a directory or file of the host in it: SOURCE[:TARGET[:ro]]
        #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], value_name = "MOUNT")]
        mounts: Vec<String>,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Start your shell in an environment (made on first use if it is the default one)
    Enter {
        #[command(flatten)]
        inside: Inside,
        /// Its name
        #[arg(default_value_t = EnvName::default_name())]
        name: EnvName,
        /// Print the plan, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Print it as JSON
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    /// Run a command in an environment
    Exec(Exec),
    /// List your environments
    #[command(visible_alias = "ls")]
    List(Output),
    /// Show what is added (A), changed (C) and deleted (D) against the base
    Diff {
        /// Its name
        #[arg(default_value_t = EnvName::default_name())]
        name: EnvName,
        #[command(flatten)]
        output: Output,
    },
    /// Make the administrator's changes to the host show in a running environment
    Refresh {
        /// Its name
        #[arg(default_value_t = EnvName::default_name())]
        name: EnvName,
    },
    /// Take a snapshot, as submitting a job does
    Snapshot {
        /// Its name
        #[arg(default_value_t = EnvName::default_name())]
        name: EnvName,
        #[command(flatten)]
        output: Output,
    },
    /// End a running environment and everything in it
    Stop {
        /// Its name
        #[arg(default_value_t = EnvName::default_name())]
        name: EnvName,
    },
    /// Remove an environment and all that was changed in it
    #[command(visible_alias = "remove")]
    Rm {
        /// Its name
        #[arg(required = true)]
        names: Vec<EnvName>,
        /// End it first if it runs
        #[arg(short, long)]
        force: bool,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
pub struct Exec {
    #[command(flatten)]
    pub inside: Inside,
    /// Its name
    pub name: EnvName,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Login {
    /// The environment
    #[arg(long, default_value_t = EnvName::default_name())]
    pub environment: EnvName,
}

#[derive(Args)]
pub struct Sweep {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand)]
pub enum Slurm {
    /// In srun, sbatch, salloc: take the snapshot, print what the job carries
    Submit {
        /// The environment
        #[arg(long)]
        environment: String,
    },
    /// On a node before a job: make its directories
    Prolog,
    /// On a node after a job: leave nothing
    Epilog,
    /// On a node as the job's user: end what is left of it
    StopJob,
    /// On a node before a step: make its namespaces
    StepBegin,
    /// On a node in the place of a task: run it in the step
    Task {
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}
