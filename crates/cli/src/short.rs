//! The short forms that users of Docker, Podman and Apptainer type: commands for whatever has a name.

use std::ffi::OsString;

use clap::Args;
use clap::builder::{StringValueParser, TypedValueParser};
use skiff_plan::inside::ProcessArgs;
use skiff_spec::caller::CALLED_FROM;
use skiff_spec::name::EnvName;

#[derive(Args)]
pub struct NamedExecArgs {
    #[command(flatten)]
    pub inside: ProcessArgs,
    /// Run as root, as yourself, or as another user of the instance or environment, by name or number
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with_all = ["root", "me"])]
    pub user: Option<String>,
    /// Accepted for habit: the terminal is always passed on
    #[arg(short = 't', long = "tty", hide = true)]
    pub tty: bool,
    /// Accepted for habit: standard input is always passed on
    #[arg(short = 'i', long = "interactive", hide = true)]
    pub interactive: bool,
    /// Instance, environment or cluster
    pub name: EnvName,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct LogsArgs {
    /// Follow the output until the command ends
    #[arg(short, long)]
    pub follow: bool,
    /// Print only this many lines from the end
    #[arg(short = 'n', long, value_name = "LINES", value_parser = lines())]
    pub tail: Option<Lines>,
    /// Instance name
    pub instance: EnvName,
}

/// How many lines from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// As many as there are.
    All,
    /// No more than this.
    Last(u64),
}

fn lines() -> impl TypedValueParser<Value = Lines> {
    StringValueParser::new().try_map(|text| match &*text {
        "all" => Ok(Lines::All),
        number => number.parse().map(Lines::Last).map_err(|_| "not a number of lines, or `all`"),
    })
}

#[derive(Args)]
pub struct NamedRmArgs {
    /// Ended instances, or environments with all changes made in them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<EnvName>,
    /// Stop them first if they are running
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Args)]
pub struct KillArgs {
    /// Signal for the command of an instance, by name or number: HUP, USR1 ... [default: KILL, which ends every process]
    #[arg(short, long, value_name = "SIGNAL")]
    pub signal: Option<String>,
    /// Instances or environments
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<EnvName>,
}

#[derive(Args)]
pub struct StopArgs {
    /// How long an instance may take before it is killed
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    pub time: u64,
    /// Environments or instances
    #[arg(value_name = "NAME", env = CALLED_FROM, hide_env = true, default_values_t = [EnvName::default_name()])]
    pub names: Vec<EnvName>,
}
