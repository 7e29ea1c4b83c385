//! Flags that ask something of an environment's root or of the command in it. Each is declared here once, and each command that takes it
//! has the group that it is in.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use skiff_plan::device_words::{AMD, MODULE, MPI, NVIDIA};
use skiff_plan::get::{self, PullWhen};
use skiff_plan::inside::ProcessArgs;
use skiff_plan::{DEVICE, GPUS, absolute};
use skiff_spec::limit::ResourceLimit;
use skiff_spec::name::HostName;
use skiff_spec::network::Net;

/// The base where none is named.
pub const BASE: &str = "host";

/// What can be asked of every environment that is made for what runs in it.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct RootArgs {
    #[command(flatten)]
    pub inside: ProcessArgs,
    /// Make the image writable; changes are discarded
    #[arg(long, visible_alias = "writable-tmpfs")]
    pub writable: bool,
    /// Mount an empty directory in memory: DIR[:size=64M,mode=755,ro]
    #[arg(long, value_name = "DIR")]
    pub tmpfs: Vec<String>,
    /// Size of /dev/shm, where POSIX shared memory is: 2G, 512M ...
    #[arg(long, value_name = "SIZE")]
    pub shm_size: Option<String>,
    /// Host name that programs see inside [default: the host's]
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<HostName>,
    /// Resource limit of the command, as for setrlimit(2): NAME=SOFT[:HARD], such as nofile=4096; -1 means unlimited
    #[arg(long = "ulimit", value_name = "LIMIT")]
    pub ulimits: Vec<ResourceLimit>,
    /// Run as this user of the image, by name or number, mapped to your subordinate ids [default with --root: the image's user, or root]
    #[arg(short, long, value_name = "USER[:GROUP]", conflicts_with = "me")]
    pub user: Option<String>,
    /// When to pull the image
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub pull: PullWhen,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub contain: ContainArgs,
}

/// What of the host an environment is connected to.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct HostArgs {
    /// Mount a host directory or file: SOURCE[:TARGET[:ro]], or type=bind,source=DIR,target=DIR
    #[arg(short = 'v', long = "mount", visible_aliases = ["bind", "volume"], short_alias = 'B', value_name = "MOUNT",
        value_parser = mount())]
    pub mounts: Vec<String>,
    /// Network: host, none, private (outgoing connections only), or a site network (`skiff net list`) [default: host]
    #[arg(long, visible_alias = "network", value_name = "NET")]
    pub net: Option<Net>,
    /// Add a device that a vendor describes (`skiff cdi list`): VENDOR/CLASS=NAME; or mount one: PATH[:TARGET[:rwm]] (without --contain all are there)
    #[arg(long, value_name = "DEVICE")]
    pub device: Vec<String>,
    /// Add GPUs and their driver's libraries: all, a number of them, or which: 0,2 or device=UUID; in a job, of those that it has
    #[arg(long, value_name = "GPUS")]
    pub gpus: Vec<String>,
    /// Add all GPUs of NVIDIA's, as --gpus all
    #[arg(long)]
    pub nv: bool,
    /// Add all GPUs of AMD's, as --gpus all
    #[arg(long)]
    pub rocm: bool,
    /// Add a module of this site's, as of its fabric or its MPI (`skiff module list`)
    #[arg(long, value_name = "MODULE", value_delimiter = ',')]
    pub module: Vec<String>,
    /// MPI to use: `image`, or the host's, if it fits the image's (`host`: or else nothing runs; `auto`: or else the image's) [default: image].
    /// Behind `host` or `auto`, how the versions must match: `:full`, the host's is not older; `:strict`, one minor number; `:major`, one name [default: the module's]
    #[arg(long, value_name = "WHOSE", value_parser = mpi_choice())]
    pub mpi: Option<MpiChoice>,
}

/// For `--mpi`: `host`, `auto` or `image`, the first two also with how the versions must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiChoice(String);

/// The image's MPI.
const OF_IMAGE: &str = "image";

pub(crate) fn mpi_choice() -> impl TypedValueParser<Value = MpiChoice> {
    let whose = [("host", "The host's"), (OF_IMAGE, "The image's"), ("auto", "The host's if it fits")];
    let whose = whose.map(|(name, help)| PossibleValue::new(name).help(help));
    let rules = ["host:major", "host:full", "host:strict", "auto:major", "auto:full", "auto:strict"];
    // A shell completes words without a colon.
    let hidden = rules.map(|rule| PossibleValue::new(rule).hide(true));
    PossibleValuesParser::new(whose.into_iter().chain(hidden)).map(MpiChoice)
}

impl HostArgs {
    /// Mounts and devices as the planner has them.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let Self { mounts, net: _, device, gpus, nv, rocm, module, mpi } = self;
        let of_vendor = [(nv, NVIDIA), (rocm, AMD)].into_iter().filter(|(is_asked, _)| **is_asked);
        let mut words = mounts.clone();
        words.extend(device.iter().map(|device| format!("{DEVICE}{device}")));
        words.extend(gpus.iter().map(|gpus| format!("{GPUS}{gpus}")));
        words.extend(of_vendor.map(|(_, vendor)| format!("{GPUS}{vendor}")));
        words.extend(module_words(module, mpi.as_ref()));
        words
    }
}

/// Modules and whose MPI is wanted, as the planner has them.
#[must_use]
pub fn module_words(modules: &[String], mpi: Option<&MpiChoice>) -> Vec<String> {
    let modules = modules.iter().map(|module| format!("{MODULE}{module}"));
    let of_host = mpi.filter(|choice| choice.0 != OF_IMAGE);
    modules.chain(of_host.map(|choice| format!("{MPI}{}", choice.0))).collect()
}

/// A mount, or several, with the source as an absolute path: what is written down is read elsewhere.
fn mount() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().map(|text| absolute(&text, std::env::current_dir))
}

/// What is accepted for habit and is so in any case, and what would change something that cannot be changed.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct HabitArgs {
    /// The environment goes with its command
    #[arg(long = "rm", hide = true)]
    pub remove: bool,
    /// The terminal is always passed on
    #[arg(short = 't', long = "tty", hide = true)]
    pub tty: bool,
    /// Standard input is always passed on
    #[arg(short = 'i', long = "interactive", hide = true)]
    pub interactive: bool,
    /// Process 1 reaps what its children leave
    #[arg(long, hide = true)]
    pub init: bool,
    /// An image is read-only
    #[arg(long, hide = true, conflicts_with = "writable")]
    pub read_only: bool,
    /// Platform; must be this host's
    #[arg(long, hide = true, value_name = "PLATFORM", value_parser = host_platform())]
    pub platform: Option<String>,
}

fn host_platform() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|text| get::check_platform(&text).map(|()| text))
}

/// What of the host is left out; the words and their meaning are Apptainer's.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainArgs {
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
