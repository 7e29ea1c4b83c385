//! The words of commands for images.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use skiff_spec::name::EnvName;

use super::{Contain, Inside, Output};

#[derive(Args)]
pub struct Pull {
    /// [SERVER/]NAME[:TAG|@DIGEST]
    pub image: String,
    #[command(flatten)]
    pub way: Way,
}

pub const IMPORTED: &str = "\
FILE is what docker save, podman save or skopeo write, packed with gzip or zstd or not, an OCI layout, or a squashfs, SIF or EROFS
file; what is in it says which. Of several images in one file, or to be exact:
  docker-archive:FILE[:NAME]  oci-archive:FILE[:TAG]  oci:DIR[:TAG]  dir:DIR  FILE.sqsh  FILE.squashfs  FILE.sif  FILE.erofs
`skiff run` takes such files, too, if they have one of these forms or begin with / or a dot.";

#[derive(Args)]
pub struct Import {
    /// A file or directory
    pub file: String,
    /// What the image is to be called: [SERVER/]NAME[:TAG] [default: as the file]
    pub name: Option<String>,
    #[command(flatten)]
    pub way: Way,
}

pub const EXPORTED: &str = "\
TARGET is one of
  docker-archive:FILE[:NAME]  for docker load and podman load
  oci-archive:FILE[:TAG]      an OCI layout in a tar file
  oci:DIR[:TAG]               an OCI layout, beside the images that are there
  FILE.tar                    the files alone
  FILE.erofs                  the file that the kernel mounts
  FILE.sqsh, FILE.squashfs    the same, and a squashfs as well, for Apptainer, Enroot, unsquashfs";

#[derive(Args)]
pub struct Export {
    /// The image's name or digest
    pub image: String,
    /// Where to
    pub target: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args)]
pub struct Shell {
    #[command(flatten)]
    pub inside: Inside,
    /// Let the image's root take changes, which go with the shell
    #[arg(long)]
    pub writable: bool,
    /// Mount a directory or file of the host: SOURCE[:TARGET[:ro]]
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT")]
    pub mounts: Vec<String>,
    /// Be this user inside [default with --root: whom the image names, or root]
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with = "me")]
    pub user: Option<String>,
    #[command(flatten)]
    pub contain: Contain,
    /// Enter an image that you do not trust, as in `skiff run`
    #[arg(long)]
    pub untrusted: bool,
    /// Its name, digest or file
    pub image: String,
}

/// How an image is got.
#[derive(Args)]
pub struct Way {
    /// The machine it is for: amd64, arm64, linux/arm/v7 ... [default: this one]
    #[arg(long, visible_alias = "platform", value_name = "ARCH")]
    pub arch: Option<String>,
    /// Say nothing on the way
    #[arg(short, long)]
    pub quiet: bool,
    /// How to show the way [default: bars on a terminal, else lines]
    #[arg(long, value_enum, value_name = "KIND")]
    pub progress: Option<ProgressKind>,
    /// Print what was got as JSON
    #[arg(long)]
    pub json: bool,
}

/// How the way is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProgressKind {
    /// A line every few seconds
    Plain,
    /// A JSON object several times a second, on stderr
    Json,
}

#[derive(Subcommand)]
pub enum Store {
    /// How much room it takes
    Du(Output),
    /// Remove unused data; with a budget also what exceeds quotas, then what was not used for longest
    Gc {
        /// What may stay: 20G, 500M ...
        #[arg(long, value_name = "SIZE")]
        budget: Option<String>,
        /// Print what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Check the files of your images [default: all]; exit code 1 if one is damaged
    Verify {
        /// Only this one
        image: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Args)]
pub struct Login {
    /// A registry: docker.io, quay.io/team ...
    pub server: Option<String>,
    /// Your name there [default: is asked for]
    #[arg(short, long, value_name = "NAME", requires = "server")]
    pub username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires_all = ["server", "username"], conflicts_with = "password_file")]
    pub password_stdin: bool,
    /// Read the password from a file
    #[arg(long, value_name = "FILE", requires = "server")]
    pub password_file: Option<PathBuf>,
    /// Print what is remembered as JSON
    #[arg(long, requires = "server")]
    pub json: bool,
    /// The environment
    #[arg(long, default_value_t = EnvName::default_name())]
    pub environment: EnvName,
}
