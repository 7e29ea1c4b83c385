//! What a plan over an image needs to know of that, and its files made ready where they cannot be mounted.

use std::collections::BTreeSet;
use std::path::PathBuf;

use skiff_runtime::environments::EnvironmentBase;
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_spec::plan::{Base, Plan, Route};
use skiff_store::unpacked;
use skiff_user::context::UserContext;

use crate::Facts;

/// Facts for the plan of an environment over an image that names these volumes.
pub fn facts(context: &UserContext, id: ImageId, volumes: BTreeSet<String>) -> Result<Facts<'_>> {
    Facts::of_image(context, id, volumes, unpacked_path(context, Base::Image(id)))
}

/// Facts for the plan of an environment over this.
pub fn of_environment<'a>(context: &'a UserContext, base: &EnvironmentBase) -> Result<Facts<'a>> {
    match base {
        EnvironmentBase::Host => Facts::of_host(context),
        EnvironmentBase::Image(entry) => facts(context, entry.id, entry.exec()?.volumes),
    }
}

/// The directory that stands for an image's mount without the helper, whether it is there yet or not.
pub fn unpacked_path(context: &UserContext, base: Base) -> Option<PathBuf> {
    match (base, context.route()) {
        (Base::Image(id), Route::Rootless) => Some(unpacked::path(context, id)),
        _ => None,
    }
}

/// Has the image's files unpacked where the plan cannot have them mounted.
pub fn make_ready(context: &UserContext, plan: &Plan) -> Result<()> {
    unpacked(context, plan.base).map(drop)
}

/// The directory of an image's unpacked files, where its file is not mounted; unpacks them if need be.
pub fn unpacked(context: &UserContext, base: Base) -> Result<Option<PathBuf>> {
    match (base, context.route()) {
        (Base::Image(id), Route::Rootless) => Ok(Some(unpacked::tree(context, id, skiff_output::note)?)),
        _ => Ok(None),
    }
}
