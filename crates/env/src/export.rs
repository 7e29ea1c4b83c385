//! An environment's changes as one file, for another site.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use skiff_output as output;
use skiff_runtime::environments::Environment;
use skiff_runtime::package_database;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{BundleInfo, bundle};
use skiff_spec::fault::Result;
use skiff_spec::revision::EnvRevision;
use skiff_sys::error::show;
use skiff_user::context::UserContext;
use skiff_user::new_file::NewFile;

use crate::base_fingerprint;
use crate::contents::{open_dir, ours, own_view, view_of_base};
use crate::unnamed::with_state_of;

/// The name of the list of the host's packages; those of `package_database` have others.
pub(crate) const HOST_PACKAGES: &str = "host-packages";

#[derive(Serialize, Deserialize)]
struct Exported {
    entries: u64,
    bytes: u64,
    skipped: Vec<String>,
}

/// What the host's root is that an environment stands on, and texts by which its changes are understood elsewhere.
pub(crate) fn about_host(
    context: &UserContext,
    env: &Environment,
) -> Result<(BTreeMap<String, String>, BTreeMap<String, String>)> {
    let mut texts = package_database::ancestor_texts(&env.dir);
    let here = base_fingerprint::here(&base_fingerprint::kept_in_home(context))?;
    texts.insert(HOST_PACKAGES.into(), here.list());
    Ok((here.described(), texts))
}

/// Writes an environment's changes to a file that is not there yet: those that it has, or had in a snapshot.
pub fn export(context: &UserContext, of: &EnvRevision, file: &Path, json: bool) -> Result<()> {
    let new = NewFile::create(file)?;
    let exported = with_state_of(context, of, |env| write(context, env, &new))?;
    new.publish()?;
    if json {
        return output::json(&exported);
    }
    for path in &exported.skipped {
        output::note(&format!("left out: /{path} (a socket or device)"));
    }
    let entries = output::count(exported.entries, "entry", "entries");
    output::note(&format!("{entries}, {}", output::size(exported.bytes)));
    Ok(())
}

fn write(context: &UserContext, env: &Environment, file: &NewFile) -> Result<Exported> {
    let ground = env.ground()?;
    let (base, texts) = match ground.image() {
        Some(entry) => {
            let base = base_fingerprint::of_image(entry.id, &entry.reference);
            (base, package_database::ancestor_texts(&env.dir))
        }
        None => about_host(context, env)?,
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let info = BundleInfo { environment: env.name.to_string(), base, created, texts };
    let own = own_view(context, ground.base())?;
    let (upper, name) = (env.dir.join("upper"), file.path().display().to_string());
    as_root_of_ids(context.helper.as_deref(), ground.base(), |view| {
        let (upper, base) = (open_dir(&upper)?, view_of_base(view, &own)?);
        let done = bundle(upper.as_fd(), base.as_fd(), (file.as_fd(), &name), &info).map_err(ours)?;
        let skipped = done.skipped.iter().map(|path| show(path)).collect();
        Ok(Exported { entries: done.entries, bytes: done.bytes, skipped })
    })
}
