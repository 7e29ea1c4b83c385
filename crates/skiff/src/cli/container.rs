//! What srun, sbatch and salloc say a job is to run in. The words are those of Pyxis; the plug-in hands them over as they are.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser};
use skiff_spec::name::EnvName;

use super::{Cli, Command, Slurm};

#[derive(Args)]
pub struct Submit {
    /// The environment, or image:IMAGE
    #[arg(long)]
    pub environment: Option<String>,
    /// It is for a step of a job that there is already
    #[arg(long)]
    pub step: bool,
    #[command(flatten)]
    pub container: Container,
}

#[derive(Args, Default)]
pub struct Container {
    /// It is for a job that has a script
    #[arg(long, conflicts_with = "step")]
    pub script: bool,
    /// [USER@][SERVER#]IMAGE[:TAG], or a file
    #[arg(long = "container-image", value_name = "IMAGE")]
    pub image: Option<String>,
    /// SOURCE[:TARGET[:FLAGS]]
    #[arg(long = "container-mounts", value_name = "MOUNT", value_delimiter = ',')]
    pub mounts: Vec<String>,
    /// Where tasks start
    #[arg(long = "container-workdir", value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Keep its changes for later steps of the job under this name
    #[arg(long = "container-name", value_name = "NAME")]
    pub name: Option<EnvName>,
    /// Variables whose value outside counts
    #[arg(long = "container-env", value_name = "NAME", value_delimiter = ',')]
    pub variables: Vec<String>,
    /// Mount the user's home
    #[arg(long = "container-mount-home", conflicts_with = "no_home")]
    pub home: bool,
    /// Do not
    #[arg(long = "no-container-mount-home")]
    pub no_home: bool,
    /// Be root inside
    #[arg(long = "container-remap-root", conflicts_with = "no_root")]
    pub root: bool,
    /// Do not
    #[arg(long = "no-container-remap-root")]
    pub no_root: bool,
    /// Run the image's entry point
    #[arg(long = "container-entrypoint", conflicts_with = "no_entrypoint")]
    pub entrypoint: bool,
    /// Do not
    #[arg(long = "no-container-entrypoint")]
    pub no_entrypoint: bool,
    /// Let its files be changed
    #[arg(long = "container-writable", conflicts_with = "readonly")]
    pub writable: bool,
    /// Do not
    #[arg(long = "container-readonly")]
    pub readonly: bool,
    /// Write its files there at the end
    #[arg(long = "container-save", value_name = "FILE")]
    pub save: Option<String>,
}

impl Submit {
    /// Reads `skiff slurm submit ...`; nothing if the words are no such command.
    pub fn read(words: &[OsString]) -> Option<Self> {
        match Cli::try_parse_from(words).ok()?.command {
            Command::Slurm(Slurm::Submit(submit)) => Some(submit),
            _ => None,
        }
    }
}

impl Container {
    /// Whether anything was said.
    pub fn is_asked_for(&self) -> bool {
        self.image.is_some()
            || self.name.is_some()
            || self.workdir.is_some()
            || !self.mounts.is_empty()
            || !self.variables.is_empty()
            || [self.home, self.no_home, self.root, self.no_root, self.entrypoint, self.no_entrypoint]
                .contains(&true)
            || self.writable
            || self.readonly
            || self.save.is_some()
    }
}
