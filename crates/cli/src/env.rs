//! The words of `skiff env`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Args, Subcommand};
use skiff_plan::inside::ProcessArgs;
use skiff_spec::array_task::JobName;
use skiff_spec::caller::CALLED_FROM;
use skiff_spec::name::EnvName;
use skiff_spec::revision::{EnvRevision, SnapshotRef, TagName};

use crate::image::CommitArgs;
use crate::root::{BASE, HostArgs};
use crate::show::{DryRunArgs, ListArgs, OutputArgs};

/// In an environment one is root over an image, too.
const ROOT: &str = "Run as root inside (the default)";
const ME: &str = "Run as yourself, unprivileged";

/// What commands mean that name no environment and are not called in one; as `EnvName::default_name`.
const DEFAULT: &str = "default";

const REFERENCES: &str = "A snapshot is NAME@REF, or @REF where NAME is clear. REF is a tag, ~N for N before the newest (~0; jobs' \
changes do not count), or the first digits of the ID (6 or more).";

/// Has the options of a list be refused where no tags are listed.
fn of_tag_list(arg: Arg) -> Arg {
    match ["json", "format", "quiet"].contains(&arg.get_id().as_str()) {
        true => arg.conflicts_with_all(["tag", "message", "remove"]),
        false => arg,
    }
}

/// What stands behind `skiff env`.
#[derive(Subcommand)]
pub enum EnvSubcommand {
    #[command(flatten)]
    Environment(EnvCommand),
    /// Create an image from an environment
    Commit(CommitArgs),
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
    #[command(mut_arg("root", |arg| arg.help(ROOT)), mut_arg("me", |arg| arg.help(ME)))]
    Enter {
        #[command(flatten)]
        inside: ProcessArgs,
        #[command(flatten)]
        env: EnvNameArg,
        /// Print the plan, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    /// Run a command in an environment
    #[command(mut_arg("root", |arg| arg.help(ROOT)), mut_arg("me", |arg| arg.help(ME)))]
    Exec(ExecArgs),
    /// List your environments
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show the settings of an environment: base, mounts, network, and whether it is running
    Show {
        #[command(flatten)]
        env: EnvNameArg,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Copy an environment with all changes made in it, or as it was in a snapshot
    #[command(visible_alias = "copy", after_help = REFERENCES)]
    Clone {
        /// Environment to copy, in which nothing may run; or one of its snapshots
        #[arg(value_name = "NAME[@REF]")]
        env: EnvRevision,
        /// Name of the copy
        new: EnvName,
    },
    /// Give an environment another name
    #[command(visible_alias = "mv")]
    Rename {
        /// Environment name; nothing may run in it
        name: EnvName,
        /// New name
        new: EnvName,
    },
    /// Show files added (A), changed (C) and deleted (D): since the base, or since or between snapshots
    Diff {
        /// Environment; or one of its snapshots, for what changed since
        #[arg(value_name = "NAME[@REF]", env = CALLED_FROM, hide_env = true, default_value = DEFAULT)]
        env: EnvRevision,
        /// Snapshots: A for what changed since, A B for what changed between the two
        #[arg(value_name = "REF", num_args = 0..=2)]
        snapshots: Vec<SnapshotRef>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show the host's latest changes in a running environment; print what changed
    Refresh {
        #[command(flatten)]
        env: EnvNameArg,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show what of yours hides something newer of the host; or how a job got its environment, and what it changed
    Status {
        #[command(flatten)]
        env: EnvNameArg,
        /// Job ID, or 46_1 for a task of an array; a NAME of that form that no environment has is one, too
        #[arg(long, value_name = "ID")]
        job: Option<JobName>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Take a snapshot, as job submission does
    Snapshot {
        #[command(flatten)]
        env: EnvNameArg,
        /// Tag for the snapshot: NAME@TAG then means it
        #[arg(short, long)]
        tag: Option<TagName>,
        /// Message for the history; one that the snapshot has stays (`skiff env tag -m` changes it)
        #[arg(short, long, value_name = "TEXT")]
        message: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Write an environment's changes to one file, for another site
    #[command(after_help = REFERENCES)]
    Export {
        /// Environment; or one of its snapshots
        #[arg(value_name = "NAME[@REF]")]
        env: EnvRevision,
        /// File to write; it must not exist. - for standard output
        file: PathBuf,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Create an environment from an exported file, or from an image of another one's changes
    Import {
        /// File that `skiff env export` wrote, - for standard input, or image:IMAGE for one that `skiff commit` made
        #[arg(value_name = "FILE|image:IMAGE")]
        file: PathBuf,
        /// Environment name [default: the name it was exported by]
        name: Option<EnvName>,
    },
    /// List the snapshots taken of an environment, newest first
    #[command(after_help = REFERENCES)]
    History {
        /// Environment; or one of its snapshots, for that one and those before
        #[arg(value_name = "NAME[@REF]", env = CALLED_FROM, hide_env = true, default_value = DEFAULT)]
        env: EnvRevision,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Give a snapshot a tag or a message, or take a tag away; list tags. Snapshots with tags are kept
    #[command(after_help = REFERENCES, mut_args(of_tag_list))]
    Tag {
        /// Snapshot; without @REF the newest that is not a job's changes
        #[arg(value_name = "NAME[@REF]")]
        env: EnvRevision,
        /// Tag: letters, digits, '.', '_' and '-' [default: list the tags]
        tag: Option<TagName>,
        /// Message of the snapshot, in place of the one that it has
        #[arg(short, long, value_name = "TEXT")]
        message: Option<String>,
        /// Remove the tag that NAME@TAG names
        #[arg(long, conflicts_with_all = ["tag", "message"])]
        remove: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Make an environment as it was in a snapshot; the present state becomes one, too
    #[command(after_help = REFERENCES)]
    Rollback {
        /// Environment; nothing may run in it
        #[arg(value_name = "NAME[@REF]")]
        env: EnvRevision,
        /// Snapshot to go back to
        #[arg(value_name = "REF")]
        to: Option<SnapshotRef>,
        #[command(flatten)]
        dry_run: DryRunArgs,
    },
    /// Stop a running environment and every process in it
    Stop(EnvNameArg),
    /// Remove an environment and all changes made in it
    #[command(visible_alias = "remove")]
    Rm {
        /// Environment name
        #[arg(required = true)]
        names: Vec<EnvName>,
        /// Stop it first if it is running; lose what running jobs keep of it (--environment-commit)
        #[arg(short, long)]
        force: bool,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// The environment that a command is about; the one that its caller is in, if none is named.
#[derive(Args, Debug)]
pub struct EnvNameArg {
    /// Environment name
    #[arg(env = CALLED_FROM, hide_env = true, default_value_t = EnvName::default_name())]
    pub name: EnvName,
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
