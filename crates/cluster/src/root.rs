//! What lies below the containers of a cluster: as the user names it, and as the plan of one.

use std::fs;
use std::path::PathBuf;

use skiff_plan::get::{self, PullWhen};
use skiff_plan::{Facts, base};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_store::index::ImageName;
use skiff_user::context::UserContext;

use crate::wire::Root;

/// As users write it.
const HOST: &str = "host";
const DIRECTORY: &str = "dir:";

/// A root, found.
pub enum ResolvedBase {
    /// The host's own.
    Host,
    /// An image of this host's store.
    Image(Box<ImageName>),
    /// A directory.
    Directory(PathBuf),
}

impl ResolvedBase {
    /// What the user has named; an image is pulled if need be, unless nothing is to be done.
    pub fn named(context: &UserContext, base: &str, dry_run: bool) -> Result<Self> {
        if let Some(path) = base.strip_prefix(DIRECTORY) {
            let path = fs::canonicalize(path).context(|| format!("base dir:{path}"))?;
            if !path.is_dir() {
                return Err(Error::new(format!("base dir:{}: no directory", path.display())));
            }
            return Ok(Self::Directory(path));
        }
        let Some(image) = base.strip_prefix(skiff_store::PREFIX) else {
            return if base == HOST { Ok(Self::Host) } else { Err(unknown(base)) };
        };
        let entry = match dry_run {
            true => skiff_store::find(context, image)?,
            false => get::to_run(context, image, PullWhen::Missing)?,
        };
        Ok(Self::Image(Box::new(entry)))
    }

    /// What has been asked for from another host; an image is pulled if need be.
    pub fn on_node(context: &UserContext, root: &Root) -> Result<Self> {
        Ok(match root {
            Root::Host => Self::Host,
            Root::Image { id, reference } => {
                Self::Image(Box::new(get::on_node(context, &context.depot()?, *id, reference)?))
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
            Self::Image(entry) => format!("{}{}", skiff_store::PREFIX, entry.reference),
            Self::Directory(path) => format!("{DIRECTORY}{}", path.display()),
        }
    }

    /// The image, if it is one.
    pub fn image(&self) -> Option<&ImageName> {
        match self {
            Self::Image(entry) => Some(entry),
            Self::Host | Self::Directory(_) => None,
        }
    }

    /// What the plan of a container over it depends on.
    pub fn facts<'a>(&self, context: &'a UserContext) -> Result<Facts<'a>> {
        match self {
            Self::Host => Facts::of_host(context),
            Self::Image(entry) => base::facts(context, entry.id, entry.exec()?.volumes),
            Self::Directory(path) => Facts::of_directory(context, path),
        }
    }
}

fn unknown(base: &str) -> Error {
    Error::new(format!("base {base:?}: not known")).hint("a base is `host`, `image:IMAGE` or `dir:PATH`")
}
