//! The words of commands for images.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use skiff_plan::progress::ProgressKind;
use skiff_spec::name::EnvName;
use skiff_spec::revision::EnvRevision;

use crate::{DryRunArgs, HabitArgs, OutputArgs, RootArgs};

#[derive(Args)]
pub struct PullArgs {
    /// Image: [SERVER/]NAME[:TAG|@DIGEST], or oras://SERVER/NAME:TAG for a SIF file in a registry
    pub image: String,
    #[command(flatten)]
    pub way: TransferArgs,
}

pub const IMPORTED: &str = "\
FILE is an archive of docker save, podman save or skopeo, an OCI layout, a squashfs, SIF or EROFS file, or a root's files alone: in
a directory (DIR/) or a tar file (docker export, mmdebstrap). Archives may be packed with gzip, zstd, xz or bzip2.
The content says which. To choose one of several images in a file, or to name the format:
  docker-archive:FILE[:NAME]  oci-archive:FILE[:TAG]  oci:DIR[:TAG]  dir:DIR  FILE.sqsh  FILE.squashfs  FILE.sif  FILE.erofs
NAME without a server becomes localhost/NAME, which no registry is asked for.
`skiff run` accepts these forms, too, and file names that begin with / or a dot.";

#[derive(Args)]
pub struct ImportArgs {
    /// File or directory to import, or - for standard input
    pub file: String,
    /// Image name: [SERVER/]NAME[:TAG] [default: the file's name]
    pub name: Option<String>,
    #[command(flatten)]
    pub way: TransferArgs,
}

#[derive(Args)]
pub struct CommitArgs {
    /// Change how the image's programs are run: 'ENV A=B', 'WORKDIR /data', 'CMD [\"bash\"]' ...
    #[arg(short, long = "change", value_name = "INSTRUCTION")]
    pub changes: Vec<String>,
    /// Remark that `skiff history` shows
    #[arg(short, long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Author that the image names
    #[arg(short, long, value_name = "TEXT")]
    pub author: Option<String>,
    /// Of an environment over the host's root: the whole root with the changes in it, instead of the changes alone
    #[arg(long)]
    pub full: bool,
    /// Print what the image would hold, and make none
    #[arg(long)]
    pub dry_run: bool,
    /// Hide progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Running instance, or environment; or a snapshot of one
    #[arg(value_name = "NAME[@REF]")]
    pub env: EnvRevision,
    /// Image name: [SERVER/]NAME[:TAG]
    pub image: String,
}

pub const EXPORTED: &str = "\
TARGET is one of
  docker-archive:FILE[:NAME]  for docker load and podman load
  oci-archive:FILE[:TAG]      an OCI layout in a tar file
  oci:DIR[:TAG]               an OCI layout; images already in it stay
  FILE.tar                    the files only, without configuration
  DIR/                        the same, in a new or empty directory
  FILE.erofs                  the file that the kernel mounts
  FILE.sqsh, FILE.squashfs    the same file, also readable as squashfs (Apptainer, Enroot)";

#[derive(Args)]
pub struct ExportArgs {
    /// Image name or digest
    pub image: String,
    /// Target file or directory
    pub target: String,
    #[command(flatten)]
    pub output: OutputArgs,
}

pub const PUSHED: &str = "\
Without DESTINATION the image goes where its own name says. The layers of the image that it was made of stay as they are; \
what was changed is a layer of its own. What the registry has already is not sent again.";

/// How the layers are compressed that a push makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayerPacking {
    /// What all programs read
    Gzip,
    /// Faster and smaller; not read by older programs
    Zstd,
    /// No compression
    None,
}

#[derive(Args)]
pub struct PushArgs {
    #[command(flatten)]
    pub shown: ShownArgs,
    /// Compression of the layers that are made
    #[arg(long, value_enum, value_name = "METHOD", default_value = "gzip")]
    pub compression: LayerPacking,
    /// Image name or digest
    pub image: String,
    /// Name in the registry: SERVER/NAME[:TAG] [default: the image's own]
    pub destination: Option<String>,
}

#[derive(Args)]
pub struct ShellArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Enter an image you do not trust, as in `skiff run`
    #[arg(long)]
    pub untrusted: bool,
    #[command(flatten)]
    pub show: DryRunArgs,
    #[command(flatten)]
    pub habit: HabitArgs,
    /// Image name, digest or file
    pub image: String,
}

/// How the way of an image is shown, and its end.
#[derive(Args)]
pub struct ShownArgs {
    /// Hide progress
    #[arg(short, long)]
    pub quiet: bool,
    /// How to show progress [default: bars on a terminal, else lines]
    #[arg(long, value_enum, value_name = "KIND")]
    pub progress: Option<ProgressKind>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of pulling and importing.
#[derive(Args)]
pub struct TransferArgs {
    /// Platform: amd64, arm64, linux/arm/v7 ... [default: this host's]
    #[arg(long, visible_alias = "platform", value_name = "ARCH")]
    pub arch: Option<String>,
    #[command(flatten)]
    pub shown: ShownArgs,
}

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Show disk usage
    Du(OutputArgs),
    /// Remove unused data; with a budget also what exceeds quotas, then what was not used for longest
    Gc {
        /// Size to shrink the store to: 20G, 500M ...
        #[arg(long, value_name = "SIZE")]
        budget: Option<String>,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Check the files of your images [default: all]; exit code 1 if one is damaged
    Verify {
        /// Image to check
        image: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Args)]
pub struct LoginArgs {
    /// Registry: docker.io, quay.io/team ...
    pub server: Option<String>,
    /// User name at the registry [default: asked for]
    #[arg(short, long, value_name = "NAME", requires = "server")]
    pub username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires_all = ["server", "username"], conflicts_with = "password_file")]
    pub password_stdin: bool,
    /// Read the password from a file
    #[arg(long, value_name = "FILE", requires = "server")]
    pub password_file: Option<PathBuf>,
    /// Print the stored login as JSON, without the password
    #[arg(long, requires = "server")]
    pub json: bool,
    /// Environment to enter
    #[arg(long, default_value_t = EnvName::default_name())]
    pub environment: EnvName,
}
