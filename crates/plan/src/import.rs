//! Images from files: imported by name, by the content that a job was submitted with, or because they are run.

use skiff_oci::platform::Platform;
use skiff_runtime::naming;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_store::ImageSource;
use skiff_store::file::{FileStamp, ImageFile};
use skiff_store::index::{ImageBase, ImageName, Names};
use skiff_store::protocol::{StoreReply, StoreRequest};
use skiff_store::{client, find};
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::image_peers::ImagePeers;
use crate::progress::PullProgress;

/// Imports an image and notes its name, which is the file's if it gets none.
pub fn import_to(
    context: &UserContext,
    file: &ImageFile,
    name: Option<String>,
    platform: &Platform,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    let entry = read_file(context, file, name, platform, progress)?;
    naming::note(context, &entry)?;
    Ok(entry)
}

/// Imports an image that was made just now, and notes its name. No file is behind it that could change, and no registry has it: as of an
/// imported one, its jobs take a copy along. `bases`: what it was made of.
pub fn import_made(
    context: &UserContext,
    source: ImageSource,
    (name, bases): (String, Vec<ImageBase>),
    platform: &Platform,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    let entry = read(context, source, (name, FileStamp::default()), platform, progress)?;
    let entry = ImageName { bases, ..entry };
    naming::note(context, &entry)?;
    Ok(entry)
}

/// The image that a file is known to hold, for a host that does not have it.
pub fn exactly(context: &UserContext, file: &ImageFile, id: ImageId) -> Result<ImageName> {
    let entry = read_file(context, file, None, &Platform::host(), &mut PullProgress::new(None, true))?;
    if entry.id != id {
        return Err(Error::new(format!("image {}: the file holds another image by now", file.name))
            .hint("it has changed since the job was submitted: submit it again"));
    }
    Ok(entry)
}

/// The same by other nodes, where these have its bytes or are reading them; and whether it came so. Whatever is wrong with what they have, the file
/// itself is read then.
pub fn exactly_by(
    context: &UserContext,
    file: &ImageFile,
    id: ImageId,
    peers: Option<&dyn ImagePeers>,
) -> Result<(ImageName, bool)> {
    match peers.and_then(|peers| by_peers(context, file, id, peers)) {
        Some(entry) => Ok((entry, true)),
        None => Ok((exactly(context, file, id)?, false)),
    }
}

/// Of file systems only: archives are called by the digests of their manifests, by which what comes of a file could not be checked.
fn by_peers(
    context: &UserContext,
    file: &ImageFile,
    id: ImageId,
    peers: &dyn ImagePeers,
) -> Option<ImageName> {
    let original = file.open_regular().ok()??;
    let length = original.metadata().ok()?.len();
    if !file.read_from(original).open().ok()?.form().is_file_system() {
        return None;
    }
    let came = peers.file(context, id, length)?;
    exactly(context, &file.read_from(came), id).ok()
}

fn read_file(
    context: &UserContext,
    file: &ImageFile,
    name: Option<String>,
    platform: &Platform,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    // What changes while it is read has another stamp next time.
    let stamp = file.stamp()?;
    let reference = name.unwrap_or_else(|| file.name.clone());
    read(context, file.open()?, (reference, stamp), platform, progress)
}

/// Imports what is open, under a name.
pub(crate) fn read(
    context: &UserContext,
    source: ImageSource,
    (reference, stamp): (String, FileStamp),
    platform: &Platform,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    let shown = source.name();
    let said = client::import(context, source, platform, &mut |word| match word {
        StoreReply::Waiting => progress.waiting(),
        StoreReply::Layers(layers) => progress.layers(&layers),
        _ => {}
    });
    progress.end();
    let StoreReply::Pulled { id, record, .. } = said? else {
        return Err(Error::new(format!("image {shown}: the store's writer answered something else")));
    };
    let origin = Some(stamp);
    Ok(ImageName {
        reference,
        id,
        pulled: now(),
        size: record.size,
        config: record.config,
        origin,
        pulled_as: None,
        bases: vec![],
    })
}

/// The image that the user wants to run: one that they have pulled or imported, or in a file, from where it is imported unless that has
/// been done.
pub fn find_or_import(context: &UserContext, text: &str) -> Result<ImageName> {
    match ImageFile::of(text) {
        Some(file) => imported(context, &file),
        None => Ok(find(context, text)?),
    }
}

/// The image in a file, imported unless that has been done.
pub fn imported(context: &UserContext, file: &ImageFile) -> Result<ImageName> {
    match look_up(context, file)? {
        Some((entry, ListedUnder::Path)) => Ok(entry),
        Some((entry, ListedUnder::OtherName)) => naming::note(context, &entry).map(|()| entry),
        None => import_to(context, file, None, &Platform::host(), &mut PullProgress::new(None, false)),
    }
}

/// The image in a file, if it has been imported as it is now.
pub fn known(context: &UserContext, file: &ImageFile) -> Result<Option<ImageName>> {
    Ok(look_up(context, file)?.map(|(entry, _)| entry))
}

/// Under which name the user's list has the image of a file.
enum ListedUnder {
    Path,
    OtherName,
}

/// The image in a file, if it has been imported as it is now: by its path, or by another name if such a file holds one image only. A file is the
/// same if inode, size and both times are, of which a user cannot set the one of its last change. The device does not count: a network file system
/// has another number on each host.
fn look_up(context: &UserContext, file: &ImageFile) -> Result<Option<(ImageName, ListedUnder)>> {
    let stamp = file.stamp()?;
    let names = Names::of(context)?;
    let is_it = |entry: &ImageName| entry.origin.as_ref() == Some(&stamp);
    let found = match names.find(&file.name)?.filter(is_it) {
        Some(entry) => Some((entry, ListedUnder::Path)),
        None if file.is_one_image() => {
            let reference = file.name.clone();
            // What cannot be read of the list is no image of this file.
            let other = names.all_but(|_| ())?.into_iter().find(is_it);
            other.map(|entry| (ImageName { reference, pulled_as: None, ..entry }, ListedUnder::OtherName))
        }
        None => None,
    };
    let Some((entry, noted)) = found else { return Ok(None) };
    let found = client::ask(context, StoreRequest::Find(entry.id), &mut |_| ())?;
    Ok(matches!(found, StoreReply::Found(Some(_))).then_some((entry, noted)))
}
