//! An environment's changes as one file, for another site, and an environment of such a file.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, rename, unlink};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_output as output;
use skiff_plan::get;
use skiff_runtime::environments::{Environment, EnvironmentBase};
use skiff_runtime::package_database;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Bundle, BundleInfo, bundle};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::plan::Base;
use skiff_sys::IgnoreError;
use skiff_sys::error::show;
use skiff_user::context::UserContext;
use skiff_user::dirs;

use crate::base_fingerprint;
use crate::contents::{open_dir, ours, own_view, view_of_base};

/// The name of the list of the host's packages; those of `package_database` have others.
const HOST_PACKAGES: &str = "host-packages";

#[derive(Serialize, Deserialize)]
struct Exported {
    entries: u64,
    bytes: u64,
    skipped: Vec<String>,
}

/// Writes an environment's changes to a file that is not there yet.
pub fn export(context: &UserContext, name: &EnvName, file: &Path, json: bool) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    refuse_taken(file)?;
    let temp = beside(file);
    let exported = create(&temp).and_then(|open| write(context, &env, &open, &temp));
    let exported = exported.and_then(|exported| {
        publish(&temp, file).context(|| file.display().to_string())?;
        Ok(exported)
    });
    if exported.is_err() {
        unlink(&temp).ignore_error("the first error is the one to tell");
    }
    let exported = exported?;
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

fn refuse_taken(file: &Path) -> Result<()> {
    match file.symlink_metadata() {
        Ok(_) => Err(Error::new(format!("{}: file exists", file.display()))
            .hint("remove it first, or name another file")),
        Err(_) => Ok(()),
    }
}

/// Gives the file its name, unless another file has got that meanwhile. (On NFS no rename refuses to replace one.)
fn publish(temp: &Path, file: &Path) -> rustix::io::Result<()> {
    match linkat(CWD, temp, CWD, file, AtFlags::empty()) {
        Ok(()) => unlink(temp),
        Err(Errno::EXIST) => Err(Errno::EXIST),
        // A file system without links: that nothing was there has to do.
        Err(_) => rename(temp, file),
    }
}

/// The name that the file has until it is whole.
fn beside(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", std::process::id()))
}

fn create(file: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, file, flags, Mode::from_raw_mode(0o666)).context(|| file.display().to_string())
}

fn write(context: &UserContext, env: &Environment, file: &OwnedFd, path: &Path) -> Result<Exported> {
    let ground = env.ground()?;
    let mut texts = package_database::ancestor_texts(&env.dir);
    let base = match ground.image() {
        Some(entry) => base_fingerprint::of_image(entry.id, &entry.reference),
        None => {
            let here = base_fingerprint::here(&base_fingerprint::kept_in_home(context))?;
            texts.insert(HOST_PACKAGES.into(), here.list());
            here.described()
        }
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let info = BundleInfo { environment: env.name.to_string(), base, created, texts };
    let own = own_view(context, ground.base())?;
    let (upper, name) = (env.dir.join("upper"), path.display().to_string());
    as_root_of_ids(context.helper.as_deref(), ground.base(), |view| {
        let (upper, base) = (open_dir(&upper)?, view_of_base(view, &own)?);
        let done = bundle(upper.as_fd(), base.as_fd(), (file.as_fd(), &name), &info).map_err(ours)?;
        let skipped = done.skipped.iter().map(|path| show(path)).collect();
        Ok(Exported { entries: done.entries, bytes: done.bytes, skipped })
    })
}

/// Makes an environment of an exported one.
pub fn import(context: &UserContext, file: &Path, name: Option<&EnvName>) -> Result<()> {
    let said = file.display().to_string();
    // A pipe in its place must not make us wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = File::from(openat(CWD, file, flags, Mode::empty()).context(|| said.clone())?);
    if !open.metadata().context(|| said.clone())?.is_file() {
        return Err(Error::new(format!("{said}: not a regular file")));
    }
    let bundle = Bundle::open(open.into(), &said).map_err(damaged)?;
    let info = bundle.info();
    let name = match name {
        Some(name) => name.clone(),
        None => info.environment.parse().map_err(|e| {
            Error::new(format!("{said}: {e}")).hint("name the new environment: skiff env import FILE NAME")
        })?,
    };
    let environment = Environment::named(context, name)?;
    environment.refuse_taken().map_err(|e| {
        let removal = format!("`skiff env rm {}` removes the one that is there", environment.name);
        e.hint(format!("`skiff env import {said} NEW` gives it another name; {removal}"))
    })?;
    let base = base_here(context, info)?;
    environment.create_with(&base, vec![], Default::default(), |dir| {
        let target = dir.join("upper");
        let filled = as_root_of_ids(context.helper.as_deref(), Base::Host, |_| {
            bundle.unpack(open_dir(&target)?.as_fd()).map_err(damaged)
        });
        if filled.is_err() {
            // Of root's files inside none are the user's to remove outside.
            dirs::delete(context, dir.to_owned())
                .ignore_error("the first error is the one to tell; what stays, `skiff sweep` removes");
        }
        filled.and_then(|()| package_database::put_ancestor_texts(dir, &info.texts))
    })
}

/// What the environment is to stand on here. Another host's root is said, another architecture refused.
fn base_here(context: &UserContext, info: &BundleInfo) -> Result<EnvironmentBase> {
    if let Some((id, reference)) = base_fingerprint::image_of(&info.base)? {
        return Ok(EnvironmentBase::Image(get::on_node(context, &context.depot()?, id, reference)?));
    }
    let here = base_fingerprint::here(&base_fingerprint::kept_in_home(context))?;
    if let Some(difference) = here.difference_from(&info.base, || info.texts.get(HOST_PACKAGES).cloned()) {
        if here.is_another_architecture(&info.base) {
            return Err(Error::new(format!("environment {}: {difference}", info.environment)));
        }
        output::note(&format!("the host here is not the one that it was exported on: {difference}"));
    }
    Ok(EnvironmentBase::Host)
}

/// Of a file that nobody submits.
fn damaged(e: skiff_snapshot::Error) -> Error {
    match e {
        skiff_snapshot::Error::BadLayer { layer, why } => Error::new(format!("{layer}: {why}")).hint(
            "the file is damaged or another kind of file: export the environment again, and copy it whole",
        ),
        e => ours(e),
    }
}
