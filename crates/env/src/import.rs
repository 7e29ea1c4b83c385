//! An environment of an exported one: of the file, or of an image of changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_image::changes::ChangesLabels;
use skiff_image::source::temporary;
use skiff_image::unpack::LeftOut;
use skiff_output as output;
use skiff_plan::get::{self, PullWhen};
use skiff_runtime::environments::{Environment, EnvironmentBase};
use skiff_runtime::package_database;
use skiff_snapshot::{Bundle, is_bundle};
use skiff_spec::config::Mismatch;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::plan::Base;
use skiff_store::client;
use skiff_user::context::UserContext;

use crate::base_fingerprint;
use crate::base_view::open_dir;
use crate::elapsed::as_root_of_ids_shown;
use crate::export::{DASH, HOST_PACKAGES};
use crate::snapshot_copy::delete_if_failed;
use crate::snapshot_fault::ours;

/// What to do for an image that only its maker has: who exported the environment may be somebody else, whose depot is of no use here.
const NO_REGISTRY: &str = "no registry has that image: `skiff import` here what it was made of, if that was a file; or have the environment as an image, by `skiff commit --full NAME IMAGE` and `skiff export IMAGE FILE` where it was exported";

/// What is to become an environment.
struct Imported<'a> {
    /// How the user named it.
    said: &'a str,
    /// The name that the environment had.
    name: &'a str,
    /// What its base was.
    base: &'a BTreeMap<String, String>,
}

/// Makes an environment of an exported one: a file, or `image:IMAGE`.
pub fn import(context: &UserContext, from: &Path, name: Option<&EnvName>) -> Result<()> {
    let said = from.display().to_string();
    match said.strip_prefix(skiff_store::PREFIX) {
        Some(image) => import_image(context, &said, image, name),
        None => import_file(context, from, &said, name),
    }
}

fn import_file(context: &UserContext, file: &Path, said: &str, name: Option<&EnvName>) -> Result<()> {
    let open = match file.as_os_str() == DASH {
        true => standard_input()?,
        false => open_regular(file, said)?,
    };
    if !is_bundle(&open) {
        return Err(not_exported(said));
    }
    let bundle = Bundle::open(open.into(), said).map_err(damaged)?;
    let info = bundle.info();
    let imported = Imported { said, name: &info.environment, base: &info.base };
    let environment = free_environment(context, &imported, name)?;
    let base = match base_fingerprint::image_of(&info.base)? {
        Some((id, reference)) => {
            let image = get::on_node(context, &context.depot()?, id, reference);
            EnvironmentBase::Image(
                image.map_err(|e| if get::is_local(reference) { e.hint(NO_REGISTRY) } else { e })?,
            )
        }
        None => host_here(context, &imported, info.texts.get(HOST_PACKAGES))?,
    };
    environment.create_with(&base, vec![], Default::default(), |dir| {
        package_database::put_ancestor_texts(dir, &info.texts)?;
        fill(context, dir, |upper| bundle.unpack(upper).map_err(damaged))
    })
}

/// What comes from standard input. It is read from several places, so it goes into a file first.
fn standard_input() -> Result<File> {
    let mut input = std::io::stdin().lock();
    if input.is_terminal() {
        return Err(Error::new(
            "env import: standard input is a terminal, and no exported environment comes from it",
        )
        .hint("`skiff env import FILE`, or `skiff env import - <FILE`"));
    }
    let (mut file, ..) = temporary().map_err(skiff_store::ours)?;
    std::io::copy(&mut input, &mut file).context(|| "standard input")?;
    Ok(file)
}

fn open_regular(file: &Path, said: &str) -> Result<File> {
    // A pipe in its place must not make us wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open =
        File::from(openat(CWD, file, flags, Mode::empty()).context(|| said.to_owned()).map_err(|e| {
            let image = said.strip_prefix("docker://").unwrap_or(said);
            match file.exists() || !image.contains(':') {
                true => e,
                false => e.hint(format!("if an image is meant: `skiff env import image:{image}`")),
            }
        })?);
    if !open.metadata().context(|| said.to_owned())?.is_file() {
        return Err(Error::new(format!("{said}: not a regular file")));
    }
    Ok(open)
}

fn import_image(context: &UserContext, said: &str, image: &str, name: Option<&EnvName>) -> Result<()> {
    let entry = get::to_run(context, image, PullWhen::Missing)?;
    let labels = ChangesLabels::of(&entry.config).ok_or_else(|| {
        Error::new(format!("image {image}: it is not an image of changes, but has a root of its own"))
            .hint(format!("an environment over it: skiff env create NAME --base image:{image}"))
    })?;
    let imported = Imported { said, name: &labels.environment, base: &labels.base };
    let environment = free_environment(context, &imported, name)?;
    let open = client::open_image(context, &entry)?;
    let texts = open.change_texts().map_err(skiff_store::ours)?;
    // Whoever made the image chose its labels: they have no other image fetched.
    if base_fingerprint::image_of(imported.base)?.is_some() {
        return Err(Error::new(format!(
            "image {image}: its labels name another image as the base, and not a host"
        )));
    }
    let base = host_here(context, &imported, texts.get(HOST_PACKAGES))?;
    let mut left_out = [0; 4];
    environment.create_with(&base, vec![], Default::default(), |dir| {
        package_database::put_ancestor_texts(dir, &texts)?;
        left_out = fill(context, dir, |upper| {
            let unpacked = open.unpack_changes(upper).map_err(skiff_store::ours)?;
            let LeftOut { devices, sockets, owners, xattrs } = unpacked;
            Ok([devices, sockets, owners, xattrs])
        })?;
        Ok(())
    })?;
    let [devices, sockets, owners, xattrs] = left_out;
    tell(LeftOut { devices, sockets, owners, xattrs });
    Ok(())
}

fn tell(left_out: LeftOut) {
    left_out.notes().iter().for_each(|text| output::note(text));
    if left_out.owners > 0 {
        let count = left_out.owners;
        output::note(&format!("{count} files belong to root inside, as you have no id for their owners"));
    }
}

/// The environment that is to be made, whose name is free.
fn free_environment(
    context: &UserContext,
    imported: &Imported<'_>,
    name: Option<&EnvName>,
) -> Result<Environment> {
    let said = imported.said;
    let name = match name {
        Some(name) => name.clone(),
        None => imported.name.parse().map_err(|e| {
            Error::new(format!("{said}: {e}"))
                .hint(format!("name the new environment: skiff env import {said} NAME"))
        })?,
    };
    let environment = Environment::named(context, name)?;
    environment.refuse_taken().map_err(|e| {
        let removal = format!("`skiff env rm {}` removes the one that is there", environment.name);
        e.hint(format!("`skiff env import {said} NEW` gives it another name; {removal}"))
    })?;
    Ok(environment)
}

/// Has `unpack` fill the upper of the environment that is being made in `dir`.
fn fill<T: serde::Serialize + serde::de::DeserializeOwned>(
    context: &UserContext,
    dir: &Path,
    unpack: impl FnOnce(BorrowedFd<'_>) -> Result<T>,
) -> Result<T> {
    let target = dir.join("upper");
    let unpack = |_| unpack(open_dir(&target)?.as_fd());
    let filled = as_root_of_ids_shown(context, Base::Host, "unpacking the environment", unpack);
    delete_if_failed(context, filled, dir)
}

/// The host's root as the base. Another host's is judged as a job's node is; by default it is said, and another architecture refused.
fn host_here(
    context: &UserContext,
    imported: &Imported<'_>,
    packages: Option<&String>,
) -> Result<EnvironmentBase> {
    let mismatch = context.config.base.mismatch;
    let here = base_fingerprint::here(&base_fingerprint::kept_in_home(context))?;
    let Some(difference) = here.difference_from(imported.base, || packages.cloned()) else {
        return Ok(EnvironmentBase::Host);
    };
    if here.refusal(imported.base, &difference, mismatch).is_some() {
        let lets = if here.is_another_architecture(imported.base) { "ignore" } else { "warn" };
        let name = imported.name;
        return Err(Error::new(format!("environment {name}: the host here is another one: {difference}"))
            .hint(format!("import it on a host like the one that it is from; base.mismatch = \"{lets}\" in the configuration lets it be imported here")));
    }
    if mismatch != Mismatch::Ignore {
        output::note(&format!(
            "environment {}: the host here is not the one that it is from: {difference}",
            imported.name
        ));
    }
    Ok(EnvironmentBase::Host)
}

/// Of a file that is none of ours, or has lost its end.
fn not_exported(said: &str) -> Error {
    let over = "`skiff env create ENV --base image:NAME` makes an environment over it";
    Error::new(format!("{said}: not an exported environment, or cut off")).hint(format!(
        "`skiff env export` writes such a file; of an image's file: `skiff import {said} NAME`, and {over}"
    ))
}

/// An error of a file that nobody submits: what the depot's errors say does not help here.
fn damaged(e: skiff_snapshot::Error) -> Error {
    match e {
        skiff_snapshot::Error::BadLayer { layer, why } => Error::new(format!("{layer}: {why}"))
            .hint("the file is damaged: export the environment again, and copy it whole"),
        skiff_snapshot::Error::OtherVersion { layer, version } => Error::new(format!(
            "{layer}: an exported environment of version {version}, which is unknown here"
        ))
        .hint("export it again by the version of Skiff that is here, or install that other one"),
        e => ours(e),
    }
}
