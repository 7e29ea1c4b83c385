//! A tar file of a root's files, as `docker export`, mmdebstrap and `tar -C ROOT -c .` write it: one layer, of which nothing is said.

use serde_json::json;
use skiff_oci::hash::sha256;
use skiff_oci::platform::Platform;

use super::docker::digest_of;
use super::{ImageFiles, OciDescriptor, OciManifest, OpenedImage, PLAIN_LAYER_TYPE, not_sound};
use crate::error::Result;

pub(super) fn open(files: &dyn ImageFiles, platform: &Platform) -> Result<OpenedImage> {
    let part = files.root().ok_or_else(|| not_sound(files, "it holds no root file system"))?;
    let digest = digest_of(&part)?;
    let Platform { os, architecture, variant } = platform;
    let mut config = json!({
        "architecture": architecture, "os": os, "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest]}
    });
    if let Some(variant) = variant {
        config["variant"] = json!(variant);
    }
    let config_bytes = config.to_string().into_bytes();
    let layer = OciDescriptor { media_type: PLAIN_LAYER_TYPE, digest, size: part.size };
    let manifest_bytes = OciManifest::new(&config_bytes, vec![layer]).to_bytes();
    let digest_of_all = sha256(&manifest_bytes);
    Ok(OpenedImage { digest: digest_of_all, manifest_bytes, config_bytes, layers: vec![part.blob(digest)] })
}
