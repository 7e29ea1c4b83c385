//! The words of `skiff build`.

use std::path::PathBuf;

use clap::Args;

pub const BUILT: &str = "\
A Dockerfile's steps are run as root inside, over the image that FROM names, which is pulled if it is missing. Each step's changes \
are kept by what it depends on, and are not made again as long as that stays. Definition files of Apptainer's (FILE.def) are built \
the same way. docs/build.md lists what is supported; all else is refused with its line.";

#[derive(Args)]
pub struct BuildArgs {
    /// Image name: [SERVER/]NAME[:TAG] [default: the name of the context's directory]
    #[arg(short = 't', long = "tag", value_name = "NAME")]
    pub tags: Vec<String>,
    /// Dockerfile or definition file, or - for standard input [default: Dockerfile, dockerfile, Containerfile, Apptainer or Singularity in the context]
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Value of an argument (ARG, %arguments); without =VALUE, that of your variable
    #[arg(long = "build-arg", value_name = "NAME=VALUE")]
    pub build_args: Vec<String>,
    /// Secret for RUN --mount=type=secret: id=NAME,src=FILE or id=NAME,env=VARIABLE
    #[arg(long = "secret", value_name = "SECRET")]
    pub secrets: Vec<String>,
    /// Ssh agent for RUN --mount=type=ssh and for ADD of repositories by ssh: default, or ID=SOCKET
    #[arg(long = "ssh", value_name = "AGENT")]
    pub agents: Vec<String>,
    /// Label of the image
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Stage to build [default: the last]
    #[arg(long, value_name = "STAGE")]
    pub target: Option<String>,
    /// Platform to build for, which must be this host's
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    pub platform: Option<String>,
    /// Do not run %test of a definition file
    #[arg(long = "notest")]
    pub no_test: bool,
    /// Run all steps again, and put none of their results into the cache
    #[arg(long)]
    pub no_cache: bool,
    /// Remove what is kept of all steps, and build nothing
    #[arg(long, conflicts_with_all = ["context", "tags", "dry_run", "json"])]
    pub prune: bool,
    /// Show the steps, and whether they are cached; run and pull nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Hide progress, and what commands print unless one fails
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Directory with the files that are copied; or a definition file, for the files of this directory
    #[arg(required_unless_present = "prune")]
    pub context: Option<PathBuf>,
}
