//! Options of srun, sbatch and salloc, under the names that Pyxis uses. The plug-in passes them on unchanged.

use std::path::PathBuf;

use clap::Args;
use skiff_spec::job::{ContainerName, UnsharedNamespace};

use crate::root::{MpiChoice, mpi_choice};

#[derive(Args)]
pub struct SubmitArgs {
    /// Environment, image:IMAGE, or an environment definition file: FILE.toml, or its name
    #[arg(long)]
    pub environment: Option<String>,
    /// Nodes whose changes become a snapshot: rank0, all, or a node's name
    #[arg(long, value_name = "NODES")]
    pub environment_commit: Option<String>,
    /// Prepare a step of a job that exists already
    #[arg(long)]
    pub step: bool,
    #[command(flatten)]
    pub container: ContainerArgs,
}

#[derive(Args, Clone, Default, PartialEq, Eq)]
pub struct ContainerArgs {
    /// Prepare a job that has a script
    #[arg(long, conflicts_with = "step")]
    pub script: bool,
    /// Image: [USER@][SERVER#]IMAGE[:TAG], or a file
    #[arg(long = "container-image", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Mounts: SOURCE[:TARGET[:FLAGS]]
    #[arg(long = "container-mounts", value_name = "MOUNT", value_delimiter = ',')]
    pub mounts: Vec<String>,
    /// Working directory of tasks
    #[arg(long = "container-workdir", value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Keep the changes under this name, for later steps of the job: NAME[:auto|create|exec|no_exec]
    #[arg(long = "container-name", value_name = "NAME")]
    pub name: Option<ContainerName>,
    /// Namespaces of the container's own: net, ipc, uts
    #[arg(long = "container-unshare", value_name = "NAMESPACE", value_delimiter = ',')]
    pub unshare: Vec<UnsharedNamespace>,
    /// Variables that keep the job's value where the image sets another
    #[arg(long = "container-env", value_name = "NAME", value_delimiter = ',')]
    pub kept_variables: Vec<String>,
    /// Variables of an environment definition file, with their values.
    #[arg(skip)]
    pub definition_variables: Vec<(String, String)>,
    /// Devices of such a file, by their names in CDI.
    #[arg(skip)]
    pub devices: Vec<String>,
    /// Modules of this site's, as of its fabric or its MPI
    #[arg(long = "container-module", value_name = "MODULE", value_delimiter = ',')]
    pub modules: Vec<String>,
    /// MPI to use: host, image or auto; host:full, strict or major says how the versions must match
    #[arg(long = "container-mpi", value_name = "WHOSE", value_parser = mpi_choice())]
    pub mpi: Option<MpiChoice>,
    /// Mount the user's home
    #[arg(long = "container-mount-home", conflicts_with = "no_home")]
    pub home: bool,
    /// Do not mount the user's home
    #[arg(long = "no-container-mount-home")]
    pub no_home: bool,
    /// Run as root inside
    #[arg(long = "container-remap-root", conflicts_with = "no_root")]
    pub root: bool,
    /// Run as yourself inside
    #[arg(long = "no-container-remap-root")]
    pub no_root: bool,
    /// Run the image's entry point
    #[arg(long = "container-entrypoint", conflicts_with = "no_entrypoint")]
    pub entrypoint: bool,
    /// Do not run the image's entry point
    #[arg(long = "no-container-entrypoint")]
    pub no_entrypoint: bool,
    /// Show the output of the entry point (always shown)
    #[arg(long = "container-entrypoint-log")]
    pub entrypoint_log: bool,
    /// Make the image writable; changes are discarded
    #[arg(long = "container-writable", conflicts_with = "readonly")]
    pub writable: bool,
    /// Keep the image read-only
    #[arg(long = "container-readonly")]
    pub readonly: bool,
    /// Write the container to this file at the end
    #[arg(long = "container-save", value_name = "FILE")]
    pub save: Option<String>,
}

impl ContainerArgs {
    /// Whether anything was said.
    pub fn is_asked_for(&self) -> bool {
        // The plug-in says by itself whether there is a script.
        *self != Self { script: self.script, ..Self::default() }
    }
}
