//! `skiff import`, `export`, and what is run from a file.

use std::str::FromStr;

use skiff_image::export::{Exported, Target, export as write};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_sandbox::{Error, Result};
use skiff_spec::image::ImageId;

use super::commands::{Listed, digest, now, platform};
use super::file::{ImageFile, name_for};
use super::index::{Entry, Names};
use super::progress::Progress;
use super::wire::{Ask, Say};
use super::{get, ours, store};
use crate::cli::{Export, Import};
use crate::context::Context;
use crate::output;

/// `skiff import`: prints the image's id.
pub fn import(import: &Import) -> Result<()> {
    let context = Context::load()?;
    let way = &import.way;
    let platform = platform(way.arch.as_deref())?;
    let name = import.name.as_deref().map(name_for).transpose()?;
    let file = ImageFile::meant(&import.file)?;
    let mut progress = Progress::new(way.progress, way.quiet);
    let entry = import_to(&context, &file, name, &platform, &mut progress)?;
    store::mount(&context, entry.id);
    match way.json {
        true => output::json(&Listed::of(&entry)),
        false => output::line(&digest(entry.id)),
    }
}

/// Imports an image and notes its name, which is the file's if it gets none.
fn import_to(
    context: &Context,
    file: &ImageFile,
    name: Option<String>,
    platform: &Platform,
    progress: &mut Progress,
) -> Result<Entry> {
    let entry = read(context, file, name, platform, progress)?;
    get::note(context, &entry)?;
    Ok(entry)
}

/// The image that a file is known to hold, for a machine that does not have it.
pub fn exactly(context: &Context, file: &ImageFile, id: ImageId) -> Result<Entry> {
    let entry = read(context, file, None, &Platform::host(), &mut Progress::new(None, true))?;
    if entry.id != id {
        return Err(Error::new(format!("image {}: the file holds another image by now", file.name))
            .hint("it has changed since the job was submitted: submit it again"));
    }
    Ok(entry)
}

fn read(
    context: &Context,
    file: &ImageFile,
    name: Option<String>,
    platform: &Platform,
    progress: &mut Progress,
) -> Result<Entry> {
    // What changes while it is read has another stamp next time.
    let origin = Some(file.stamp()?);
    let said = store::import(context, file.open()?, platform, &mut |word| match word {
        Say::Waiting => progress.waiting(),
        Say::Layers(layers) => progress.layers(&layers),
        _ => {}
    });
    progress.end();
    let Say::Pulled { id, record, .. } = said? else {
        return Err(Error::new(format!("image {}: the store's writer answered something else", file.name)));
    };
    let reference = name.unwrap_or_else(|| file.name.clone());
    Ok(Entry { reference, id, pulled: now(), size: record.size, config: record.config, origin })
}

/// The image that the user wants to run: one that he has pulled or imported, or in a file, from where it is imported unless that has
/// been done.
pub fn find_or_import(context: &Context, text: &str) -> Result<Entry> {
    let Some(file) = ImageFile::of(text) else { return super::find(context, text) };
    if let Some(entry) = Names::of(context)?.find(&file.name)?
        && entry.origin == Some(file.stamp()?)
        && let Say::Found(Some(_)) = store::ask(context, Ask::Find(entry.id), &mut |_| ())?
    {
        return Ok(entry);
    }
    import_to(context, &file, None, &Platform::host(), &mut Progress::new(None, false))
}

/// `skiff export`: prints the digest of what was written, where it has one.
pub fn export(export: &Export) -> Result<()> {
    let context = Context::load()?;
    let mut target = Target::from_str(&export.target).map_err(ours)?;
    let entry = super::find(&context, &export.image)?;
    if let Target::DockerArchive { name: name @ None, .. } = &mut target {
        // As `docker save` does; an image that came from a file has no name that Docker would take.
        *name = Named::from_str(&entry.reference).ok().filter(|named| named.digest().is_none());
    }
    let image = store::open_image(&context, &entry)?;
    let Exported { digest, sockets } = write(&image, &target).map_err(ours)?;
    let digest = digest.map(|digest| digest.to_string());
    if sockets > 0 {
        output::note(&format!("{sockets} sockets are left out: tar archives have none"));
    }
    match (export.output.json, digest) {
        (true, digest) => {
            let Export { image, target, .. } = export;
            output::json(
                &serde_json::json!({"image": image, "target": target, "digest": digest, "sockets_left_out": sockets}),
            )
        }
        (false, Some(digest)) => output::line(&digest),
        (false, None) => Ok(()),
    }
}
