//! What names keep: a name that comes to mean another image, and images that have lost their last name.

use std::path::Path;

use skiff_output as output;
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_spec::name::EnvName;
use skiff_spec::plan::{Plan, Source};
use skiff_store::index::{ImageName, Names};
use skiff_store::protocol::StoreRequest;
use skiff_store::{client, unpacked};
use skiff_user::context::UserContext;

use crate::environments::{self, Environment};
use crate::record::{InstanceDir, State};

/// Notes the name of an image. What that meant before is given up.
pub fn note(context: &UserContext, entry: &ImageName) -> Result<()> {
    let names = Names::of(context)?;
    let before = names.find(&entry.reference).ok().flatten();
    names.put(entry)?;
    if let Some(before) = before.filter(|before| before.id != entry.id)
        && let Err(e) = give_up(context, before.id).and_then(|_| Ok(client::release(context)?))
    {
        // The new one is here all the same.
        output::note(&format!(
            "the image that {} meant before is not removed: {}",
            entry.reference, e.message
        ));
    }
    Ok(())
}

/// Gives up an image that has no name any more and no environment or running instance over it; gives the one that keeps it.
pub fn give_up(context: &UserContext, id: ImageId) -> Result<Option<String>> {
    if Names::of(context)?.all()?.iter().any(|entry| entry.id == id) {
        return Ok(None);
    }
    let over = what_is_over(context, id)?;
    if over.is_none() {
        client::ask(context, StoreRequest::Forget(id), &mut |_| ())?;
        unpacked::forget(context, id)?;
    }
    Ok(over)
}

/// An environment that has this image below it, or an instance that runs on it.
fn what_is_over(context: &UserContext, id: ImageId) -> Result<Option<String>> {
    // One that cannot be read is said elsewhere; it may not keep images from being removed.
    let over = |env: &Environment| env.settings().is_ok_and(|settings| settings.image == Some(id));
    let env = environments::list(context)?.into_iter().find(over).map(|env| env.name);
    match env {
        Some(name) => Ok(Some(format!("environment {name}"))),
        None => Ok(running_over(context, id)?.map(|name| format!("instance {name}"))),
    }
}

/// Whether a plan mounts an image as data: from the store, or from where it is unpacked.
fn has_mounted(plan: &Plan, tree: &Path, id: ImageId) -> bool {
    plan.mounts.iter().any(|mount| match &mount.source {
        Source::Image(mounted) => *mounted == id,
        Source::Bind(path) => path == tree,
        _ => false,
    })
}

/// The instance that runs on an image, or has it mounted.
fn running_over(context: &UserContext, id: ImageId) -> Result<Option<EnvName>> {
    let tree = unpacked::path(context, id);
    // What cannot be read is said elsewhere; it may not keep images from being removed.
    let over = |record: &InstanceDir| {
        record
            .started()
            .is_ok_and(|started| started.image == Some(id) || has_mounted(&started.plan, &tree, id))
            && matches!(record.state(), Ok(State::Running(_)))
    };
    Ok(InstanceDir::all(context)?.into_iter().find(over).map(|record| record.name))
}
