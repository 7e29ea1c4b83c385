//! OCI's image layout: <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>.

use skiff_oci::digest::Digest;
use skiff_oci::manifest::{self, Descriptor, Document, Index};
use skiff_oci::platform::Platform;

use crate::error::{Error, Result};

use super::{ImageFiles, OpenedImage, document, need, not_sound, resolve};

/// What an image of an index is called there: by OCI, and in full by containerd and Docker.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

pub(super) fn open(files: &dyn ImageFiles, tag: Option<&str>, platform: &Platform) -> Result<OpenedImage> {
    let bytes = need(files, "index.json")?.document()?;
    let Document::Index(index) = manifest::parse(files.name(), &bytes, None)? else {
        return Err(not_sound(files, "its index.json is not an index"));
    };
    let chosen = choose(files, &index, tag, platform)?;
    let blob = |digest: &Digest| format!("blobs/{}/{}", digest.algorithm(), digest.hex());
    let bytes = document(files, &blob(&chosen.digest), chosen)?;
    resolve(files, bytes, chosen.media_type.clone(), platform, &blob, &blob)
}

/// By its name. Without one there must be no choice but that of the platform.
fn choose<'a>(
    files: &dyn ImageFiles,
    index: &'a Index,
    tag: Option<&str>,
    platform: &Platform,
) -> Result<&'a Descriptor> {
    let names = |image: &'a Descriptor| NAMES.iter().filter_map(|key| image.annotations.get(*key));
    let all = || index.entries.iter().map(|entry| &entry.manifest);
    let what = match tag {
        Some(tag) => match all().find(|image| names(image).any(|name| name == tag)) {
            Some(image) => return Ok(image),
            None => format!("no image called {tag:?}"),
        },
        None if index.entries.is_empty() => return Err(not_sound(files, "there is no image in it")),
        None => match &index.entries[..] {
            [one] => return Ok(&one.manifest),
            _ if all().all(|image| names(image).next().is_none()) => {
                return Ok(index.choose(files.name(), platform)?);
            }
            several => format!("{} images", several.len()),
        },
    };
    let offered: Vec<_> = all().filter_map(|image| names(image).next().cloned()).take(20).collect();
    Err(Error::NotInside { object: files.name().into(), what, offered: offered.join(", ") })
}
