//! What is asked of an environment's root and of the command in it: one type, whether flags, a job or an environment's settings ask. All
//! conversions to it are here, and each names every field of what it converts, so that a new flag does not compile until it is carried on.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use skiff_output as output;
use skiff_sandbox::command::own_variable;
use skiff_sandbox::limits::refuse_above_own;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::job::{JobContainer, UnsharedNamespace};
use skiff_spec::limit::ResourceLimit;
use skiff_spec::name::HostName;
use skiff_spec::network::Net;
use skiff_spec::settings::Settings;

use super::absolute;
use super::get::PullWhen;
use super::inside::ProcessArgs;

/// In front of an image's name, where other bases could be named.
const IMAGE: &str = "image:";

/// The variable with mounts for every command that makes an environment, several with commas between.
pub const BIND: &str = "SKIFF_BIND";

/// What is asked of an environment's root and of the command in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootOptions {
    /// What lies below.
    pub source: RootSource,
    /// The command and its arguments; without any, what the image's maker meant, or the user's shell.
    pub argv: Vec<OsString>,
    /// Program in the place of the image's entry point; an empty one stands for none.
    pub entrypoint: Option<OsString>,
    /// How the command runs.
    pub inside: ProcessArgs,
    /// The user of the image that it runs as, if one was named.
    pub user: Option<String>,
    /// When the image is pulled.
    pub pull: PullWhen,
    /// `SOURCE[:TARGET[:ro]]` with absolute paths, lists of them, or with [`TMPFS`](crate::TMPFS), [`DEVICE`](crate::DEVICE) or
    /// [`GPUS`](crate::GPUS) in front; the later the stronger.
    pub mounts: Vec<String>,
    /// The network, if one was named.
    pub net: Option<Net>,
    /// The host name that programs see, if it is not to be the host's.
    pub hostname: Option<HostName>,
    /// The resource limits that the command gets; of several of a kind the last counts.
    pub ulimits: Vec<ResourceLimit>,
    /// Whether the user's home is left out; what an image has in its place stays.
    pub no_home: bool,
    /// Whether all of the host is left out that programs can do without: see [`Plan::contain`](skiff_spec::plan::Plan::contain).
    pub contain: bool,
    /// Whether nobody trusts the programs: see [`Plan::untrusted`](skiff_spec::plan::Plan::untrusted).
    pub untrusted: bool,
    /// Whether the root of an image takes changes; the host's always does.
    pub writable: bool,
    /// Whether it takes none, whatever a definition says.
    pub read_only: bool,
    /// Whether the user can dump the processes: see [`Plan::dumpable`](skiff_spec::plan::Plan::dumpable).
    pub dumpable: bool,
}

/// What lies below an environment, as its user names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RootSource {
    /// The host's root.
    #[default]
    Host,
    /// An image, by name, digest or file.
    Image(String),
}

impl RootSource {
    /// Reads `host` or `image:IMAGE`.
    pub fn of_base(base: &str) -> Result<Self> {
        match base.strip_prefix(IMAGE) {
            Some(image) => Ok(Self::Image(image.into())),
            None if base == "host" => Ok(Self::Host),
            None => Err(Fault::new(format!("base {base:?}: not known")).hint(format!(
                "a base is `host` or `image:IMAGE`; if an image is meant: --base image:{base}"
            ))),
        }
    }
}

impl RootOptions {
    /// The same for programs that nobody trusts.
    pub fn untrusted(self) -> Self {
        let inside = ProcessArgs {
            untrusted: true,
            // Without the helper, too: it needs no privilege to be seen so.
            me: self.inside.me || !self.inside.root,
            cleanenv: true,
            ..self.inside
        };
        Self { inside, untrusted: true, contain: true, ..self }
    }

    /// With the mounts of the variable `SKIFF_BIND`, which are weaker than those of the command line. Set in a profile for the daily work, it
    /// must not open what `--untrusted` closes.
    #[must_use]
    pub fn with_bind_variable(self) -> Self {
        let said = own_variable(OsStr::new(BIND)).and_then(|text| text.into_string().ok());
        let Some(text) = said.filter(|text| !text.is_empty()) else { return self };
        if self.untrusted {
            output::note(&format!("{BIND} is not heard with --untrusted; -v mounts something"));
            return self;
        }
        let mounts = [vec![absolute(&text, std::env::current_dir)], self.mounts].concat();
        Self { mounts, ..self }
    }

    /// The resource limits, one of each kind.
    ///
    /// # Errors
    /// One that is above the hard limit of this process.
    pub fn limits(&self) -> Result<Vec<ResourceLimit>> {
        let limits = ResourceLimit::last_of_each(&self.ulimits);
        refuse_above_own(&limits)?;
        Ok(limits)
    }

    /// The network. One that was named counts, whatever is untrusted.
    pub fn net(&self) -> Net {
        self.net.clone().unwrap_or(if self.untrusted { Net::None } else { Net::Host })
    }
}

/// Environments take changes.
impl From<Settings> for RootOptions {
    fn from(settings: Settings) -> Self {
        // What lies below has been looked up when it was made.
        let Settings { name: _, base: _, image: _, created: _, mounts, net } = settings;
        Self { mounts, net: Some(net), writable: true, ..Self::default() }
    }
}

/// What `--container-...` of Slurm's commands ask for.
impl From<&JobContainer> for RootOptions {
    fn from(container: &JobContainer) -> Self {
        let JobContainer {
            image,
            mounts,
            workdir,
            home,
            root,
            writable,
            entrypoint,
            unshare,
            // The store has to read them first.
            data: _,
            // The name and what is saved at the end are the job's affair; which variables stay is settled for each task.
            environment: _,
            step: _,
            name: _,
            attach: _,
            kept_variables: _,
            definition_variables: _,
            save: _,
            script: _,
            depot: _,
        } = container;
        Self {
            source: image
                .as_ref()
                .map_or(RootSource::Host, |image| RootSource::Image(image.reference.clone())),
            entrypoint: (!entrypoint).then(OsString::new),
            inside: ProcessArgs {
                root: *root,
                me: !root,
                workdir: workdir.as_ref().map(PathBuf::from),
                ..ProcessArgs::default()
            },
            mounts: mounts.clone(),
            net: unshare.contains(&UnsharedNamespace::Net).then_some(Net::None),
            no_home: !home,
            writable: *writable,
            ..Self::default()
        }
    }
}
