//! What `docker save` writes: `manifest.json` says which files are the configuration and the layers of which image. Of Docker
//! 25 and later the same files are also an OCI layout; `manifest.json` is there all the same.
//! Format: <https://github.com/moby/docker-image-spec/blob/main/spec.md#combined-image-json--filesystem-changeset-format>.

use std::os::fd::AsFd;

use serde::{Deserialize, Deserializer};
use skiff_oci::digest::Digest;
use skiff_oci::hash::{Hasher, sha256};
use skiff_oci::manifest::{ImageConfig, MAX_LAYERS};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_sys::positional::read_exact_at;

use crate::blob::FileBlob;
use crate::error::{Error, Result};
use crate::inflate::{HEAD, LayerCompression};
use skiff_sys::SystemContext;

use super::{
    FilePart, ImageFiles, OciDescriptor, OciManifest, OpenedImage, PLAIN_LAYER_TYPE, need, not_sound,
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default, deserialize_with = "or_empty")]
    repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "or_empty")]
    layers: Vec<String>,
}

/// Go writes `null` for a list without anything in it.
fn or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::<Vec<String>>::deserialize(deserializer).map(Option::unwrap_or_default)
}

pub(super) fn open(files: &dyn ImageFiles, tag: Option<&str>, platform: &Platform) -> Result<OpenedImage> {
    let Some(list) = files.find("manifest.json")? else {
        return Err(Error::Foreign {
            object: files.name().into(),
            why: "there is no manifest.json in it".into(),
            hint: Some(
                "oci-archive: is for OCI layouts; what a Docker before 1.10 saved must be saved again",
            ),
        });
    };
    let items: Vec<SavedImage> = serde_json::from_slice(&list.document()?)
        .map_err(|e| not_sound(files, format!("manifest.json: {e}")))?;
    let item = choose(files, &items, tag)?;
    // Its name is often its digest, but need not be: Docker and Podman do not look at that either. The image's own digest follows from its bytes.
    let config_bytes = need(files, &item.config)?.document()?;
    let config = ImageConfig::parse(files.name(), &config_bytes)?;
    check(files, item, &config, platform)?;
    let layer = |(path, diff_id): (&String, &Digest)| layer(need(files, path)?, *diff_id);
    let layers = item.layers.iter().zip(&config.diff_ids).map(layer).collect::<Result<Vec<_>>>()?;
    let (layers, descriptors) = layers.into_iter().unzip();
    let manifest_bytes = OciManifest::new(&config_bytes, descriptors).to_bytes();
    Ok(OpenedImage { digest: sha256(&manifest_bytes), manifest_bytes, config_bytes, layers })
}

/// By its name, as Docker reads names, or by `@NUMBER`. Without one there must be no choice.
fn choose<'a>(files: &dyn ImageFiles, items: &'a [SavedImage], tag: Option<&str>) -> Result<&'a SavedImage> {
    let full = |name: &str| name.parse::<Named>().map(Named::with_default_tag).ok();
    let what = match (tag, items) {
        (None, [item]) => return Ok(item),
        (None, []) => return Err(not_sound(files, "there is no image in it")),
        (None, several) => format!("{} images", several.len()),
        (Some(tag), _) => {
            let number = tag.strip_prefix('@').and_then(|number| number.parse::<usize>().ok());
            let wanted = full(tag);
            let is_it = |item: &&SavedImage| {
                item.repo_tags.iter().any(|name| name == tag || (wanted.is_some() && full(name) == wanted))
            };
            match number.and_then(|number| items.get(number)).or_else(|| items.iter().find(is_it)) {
                Some(item) => return Ok(item),
                None => format!("no image called {tag:?}"),
            }
        }
    };
    let name = |(number, item): (usize, &SavedImage)| {
        item.repo_tags.first().cloned().unwrap_or(format!("@{number}"))
    };
    let offered: Vec<_> = items.iter().enumerate().map(name).take(20).collect();
    Err(Error::NotInside { object: files.name().into(), what, offered: offered.join(", ") })
}

fn check(files: &dyn ImageFiles, item: &SavedImage, config: &ImageConfig, platform: &Platform) -> Result<()> {
    let (layers, diff_ids) = (item.layers.len(), config.diff_ids.len());
    if layers != diff_ids {
        let why = format!("manifest.json has {layers} layers where the configuration has {diff_ids}");
        return Err(not_sound(files, why));
    }
    if layers > MAX_LAYERS {
        return Err(not_sound(files, format!("it has {layers} layers; {MAX_LAYERS} are the limit")));
    }
    Ok(platform.check(files.name(), config.platform.as_ref())?)
}

/// Docker saves layers as plain tar streams, whose digest the configuration has; some tools, and its newer store, leave them
/// compressed. Then their digest is what they have.
fn layer(part: FilePart, diff_id: Digest) -> Result<(FileBlob, OciDescriptor<'static>)> {
    let mut head = [0; HEAD];
    let head = &mut head[..HEAD.min(part.size as usize)];
    part.read(head, 0)?;
    let (media_type, digest) = match LayerCompression::of(head) {
        LayerCompression::Plain => (PLAIN_LAYER_TYPE, diff_id),
        LayerCompression::Gzip => ("application/vnd.oci.image.layer.v1.tar+gzip", digest_of(&part)?),
        LayerCompression::Zstd => ("application/vnd.oci.image.layer.v1.tar+zstd", digest_of(&part)?),
    };
    let size = part.size;
    Ok((part.blob(digest), OciDescriptor { media_type, digest, size }))
}

pub(super) fn digest_of(part: &FilePart) -> Result<Digest> {
    let mut hasher = Hasher::like(&Digest::Sha256([0; 32]));
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < part.size {
        let piece = &mut buffer[..(part.size - at).min(1 << 20) as usize];
        read_exact_at(part.file.as_fd(), piece, part.offset + at).on("read", &part.name)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    Ok(hasher.finish())
}
