//! Flags that ask something of an environment's root or of the command in it. Each is declared here once, and each command that takes it
//! has the group that it is in.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use skiff_spec::network::Net;

/// What can be asked of every environment that is made for what runs in it.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct RootArgs {
    #[command(flatten)]
    pub inside: Inside,
    /// Make the image writable; changes are discarded
    #[arg(long)]
    pub writable: bool,
    /// Run as this user of the image, by name or number, mapped to your subordinate ids [default with --root: the image's user, or root]
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with = "me")]
    pub user: Option<String>,
    /// When to pull the image
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub pull: PullWhen,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub contain: Contain,
}

/// What of the host an environment is connected to.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct HostArgs {
    /// Mount a host directory or file: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Network: host, none, private (outgoing connections only), or a site network (`skiff net list`) [default: host]
    #[arg(long, visible_alias = "network", value_name = "NET")]
    pub net: Option<Net>,
}

/// When an image is pulled that is to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PullWhen {
    /// If it is not in the store
    #[default]
    Missing,
    /// Each time, as the tag may have moved
    Always,
    /// Not at all; fail if it is missing
    Never,
}

/// What of the host is left out; the words and their meaning are Apptainer's.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Contain {
    /// Hide the host's files, devices and commands: empty home, minimal /dev, no mounts but your own
    #[arg(long)]
    pub contain: bool,
    /// Same as --contain --cleanenv
    #[arg(short = 'C', long)]
    pub containall: bool,
    /// Do not mount your home
    #[arg(long)]
    pub no_home: bool,
}

/// How a command runs inside.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Run as root inside (the default)
    #[arg(long, conflicts_with = "me")]
    pub root: bool,
    /// Run as yourself, unprivileged
    #[arg(long)]
    pub me: bool,
    /// Set a variable, or pass on your own: NAME[=VALUE]
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = setting())]
    pub env: Vec<OsString>,
    /// Pass on no variables except TERM, the proxy variables and those named by --env
    #[arg(long)]
    pub cleanenv: bool,
    /// Whether nobody trusts what runs there.
    #[arg(skip)]
    pub untrusted: bool,
    /// Working directory inside [default: the current one]
    #[arg(short = 'w', long = "workdir", visible_alias = "pwd", value_name = "DIR")]
    pub workdir: Option<PathBuf>,
}

/// Whether something is only shown.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}

/// Reads `NAME[=VALUE]`: any bytes, but a name there must be.
fn setting() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|word| match word.as_bytes().first() {
        None | Some(b'=') => Err("a variable without a name"),
        _ => Ok(word),
    })
}
