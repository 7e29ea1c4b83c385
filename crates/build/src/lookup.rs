//! What planning a build looks up: the images that the file names, what other servers have, and the sums of files.

use std::path::Path;

use skiff_plan::get::{self, PullWhen};
use skiff_plan::import;
use skiff_spec::fault::{Fault, Result};
use skiff_store::file::ImageFile;
use skiff_store::index::{ImageName, Names};
use skiff_user::context::UserContext;

use crate::git::GitSource;
use crate::inputs::BuildInputs;
use crate::plan::{BaseImage, CopyAction, PlanLookup};
use crate::transfer;

/// Looks things up for a plan on this host, and on others.
pub struct HostLookup<'a> {
    /// The user whose images count.
    pub context: &'a UserContext,
    /// What is built.
    pub inputs: &'a BuildInputs,
    /// Whether nothing is pulled or fetched, as it is only to be shown.
    pub is_dry_run: bool,
}

impl PlanLookup for HostLookup<'_> {
    fn image(&mut self, reference: &str) -> Result<BaseImage> {
        let name = with_tag(reference);
        // Whose Dockerfile it is may be somebody who may not read the user's files.
        if ImageFile::of(&name).is_some() {
            return Err(Fault::new(format!("image {reference}: a file of this host, not an image's name"))
                .hint(format!("import it, and name the image: skiff import {reference}")));
        }
        let entry = match self.is_dry_run {
            true => skiff_store::find(self.context, &name)?,
            false => get::to_run(self.context, &name, PullWhen::Missing)?,
        };
        // Commands are run in it.
        entry.exec()?;
        Ok(BaseImage { id: entry.id, config: entry.config })
    }

    fn local_image(&mut self, name: &str) -> Result<BaseImage> {
        // An image of the user's list counts first.
        if ImageFile::of(name).is_none()
            && let Some(entry) = skiff_store::known(self.context, name)?
        {
            let entry = if self.is_dry_run { entry } else { get::again(self.context, entry)? };
            return Ok(BaseImage { id: entry.id, config: entry.config });
        }
        let entry = match Path::new(name).canonicalize() {
            Ok(path) => {
                let file = ImageFile::opened(path.clone(), self.inputs.open_base(&path)?);
                match self.is_dry_run {
                    true => self.listed(&file.name)?,
                    false => import::imported(self.context, &file)?,
                }
            }
            // As the list has it: where a path leads may be another file than the one that was not there.
            Err(_) if ImageFile::of(name).is_some() => self.listed(name)?,
            Err(_) => get::to_run(self.context, name, PullWhen::Never)?,
        };
        Ok(BaseImage { id: entry.id, config: entry.config })
    }

    fn remote(&mut self, address: &str) -> Result<String> {
        // Nothing is fetched only to be shown: it may be another file by then.
        if self.is_dry_run { Ok(String::new()) } else { self.inputs.remotes.digest(address) }
    }

    fn commit(&mut self, repository: &GitSource) -> Result<String> {
        if self.is_dry_run { Ok(String::new()) } else { self.inputs.remotes.git.commit(repository) }
    }

    fn sum(&mut self, copy: &CopyAction) -> Result<String> {
        let excluded = copy.excluded();
        transfer::sum(self.inputs.tree(copy.options(&excluded)), &copy.sources)
    }
}

impl HostLookup<'_> {
    /// The image that the user has imported of a file.
    fn listed(&self, name: &str) -> Result<ImageName> {
        let found = Names::of(self.context)?.find(name)?;
        Ok(found.ok_or_else(|| skiff_store::Error::NotImported(name.into()))?)
    }
}

/// With the tag that is meant where there is none: so the name is one of an image, and of nothing else that a word could name.
fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains([':', '@']) { reference.into() } else { format!("{reference}:latest") }
}
