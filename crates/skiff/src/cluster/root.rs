//! What lies below the containers of a cluster: as the user names it, and as the plan of one.

use std::fs;
use std::path::PathBuf;

use skiff_cluster::wire::Root;
use skiff_image::manifest::ExecConfig;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::plan::{Base, Plan, Upper};

use crate::cli::PullWhen;
use crate::context::Context;
use crate::images;
use crate::images::index::Entry;
use crate::planner::{self, Wishes};

/// As users write it.
const HOST: &str = "host";
const DIRECTORY: &str = "dir:";

/// A root, found.
pub enum Found {
    /// The host's own.
    Host,
    /// An image of this host's store.
    Image(Box<Entry>),
    /// A directory.
    Directory(PathBuf),
}

impl Found {
    /// What the user has named; an image is pulled if need be, unless nothing is to be done.
    pub fn named(context: &Context, base: &str, dry_run: bool) -> Result<Self> {
        if let Some(path) = base.strip_prefix(DIRECTORY) {
            let path = fs::canonicalize(path).context(|| format!("base dir:{path}"))?;
            if !path.is_dir() {
                return Err(Error::new(format!("base dir:{}: no directory", path.display())));
            }
            return Ok(Self::Directory(path));
        }
        let Some(image) = base.strip_prefix(images::PREFIX) else {
            return if base == HOST { Ok(Self::Host) } else { Err(unknown(base)) };
        };
        let entry = match dry_run {
            true => images::find(context, image)?,
            false => images::get::to_run(context, image, PullWhen::Missing)?,
        };
        Ok(Self::Image(Box::new(entry)))
    }

    /// What has been asked for from another host; an image is pulled if need be.
    pub fn on_node(context: &Context, root: &Root) -> Result<Self> {
        Ok(match root {
            Root::Host => Self::Host,
            Root::Image { id, reference } => {
                Self::Image(Box::new(images::get::on_node(context, *id, reference)?))
            }
            Root::Directory(path) => {
                path.metadata().context(|| format!("base dir:{}", path.display()))?;
                Self::Directory(path.clone())
            }
        })
    }

    /// To ask for it on other hosts.
    pub fn root(&self) -> Root {
        match self {
            Self::Host => Root::Host,
            Self::Image(entry) => Root::Image { id: entry.id, reference: entry.reference.clone() },
            Self::Directory(path) => Root::Directory(path.clone()),
        }
    }

    /// As users write it.
    pub fn text(&self) -> String {
        match self {
            Self::Host => HOST.into(),
            Self::Image(entry) => format!("{}{}", images::PREFIX, entry.reference),
            Self::Directory(path) => format!("{DIRECTORY}{}", path.display()),
        }
    }

    /// The image, if it is one.
    pub fn image(&self) -> Option<&Entry> {
        match self {
            Self::Image(entry) => Some(entry),
            Self::Host | Self::Directory(_) => None,
        }
    }

    /// The plan of a container over it.
    pub fn plan(&self, context: &Context, name: &str, upper: Upper, wishes: Wishes) -> Result<Plan> {
        let (id, exec) = match self {
            Self::Host => return planner::host(context, name, upper, wishes),
            Self::Image(entry) => (entry.id, entry.exec()?),
            // It has no configuration, and its digits are of no concern.
            Self::Directory(_) => (ImageId([0; 32]), ExecConfig::default()),
        };
        let plan = images::plan::image(context, name, (id, &exec), upper, true, wishes)?;
        Ok(match self {
            Self::Directory(path) => Plan { base: Base::Directory, unpacked: Some(path.clone()), ..plan },
            Self::Host | Self::Image(_) => plan,
        })
    }

    /// Has its files made ready where a plan over it cannot have them mounted.
    pub fn make_ready(&self, context: &Context, plan: &mut Plan) -> Result<()> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Host | Self::Image(_) => images::plan::make_ready(context, plan),
        }
    }
}

fn unknown(base: &str) -> Error {
    Error::new(format!("base {base:?}: not known")).hint("a base is `host`, `image:IMAGE` or `dir:PATH`")
}
