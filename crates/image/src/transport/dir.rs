//! skopeo's `dir:`: `manifest.json`, and every blob under the hex digits of its digest.

use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;

use crate::error::Result;

use super::{ImageFiles, OpenedImage, need, resolve};

pub(super) fn open(files: &dyn ImageFiles, platform: &Platform) -> Result<OpenedImage> {
    let bytes = need(files, "manifest.json")?.document()?;
    let manifest = |digest: &Digest| format!("{}.manifest.json", digest.hex());
    resolve(files, bytes, String::new(), platform, &manifest, &Digest::hex)
}
