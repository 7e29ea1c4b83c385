//! An OCI layout in a directory, in which other images may be: the index changes last, and at once.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256;

use super::layer;
use super::replace::Replacement;
use super::{BUFFER, Documents, Exported, OpenImage};
use crate::error::{Error, Result};
use crate::transport::MANIFEST_TYPE;
use skiff_sys::{SystemContext, SystemError};

pub(super) const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
const NAME: &str = "org.opencontainers.image.ref.name";

/// Where a blob lies in the layout.
pub(super) fn blob_path(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

pub(super) fn oci(image: &OpenImage, dir: &Path, tag: Option<&str>) -> Result<Exported> {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).on("write", blobs.display().to_string())?;
    // Two that add images at once must not lose each other's.
    let lock = File::open(dir).on("write", dir.display().to_string())?;
    rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))
        .on("lock", dir.display().to_string())?;
    let layout = dir.join("oci-layout");
    if !layout.exists() {
        put(&layout, LAYOUT.as_bytes())?;
    }
    let index_path = dir.join("index.json");
    let before = read_index(&index_path)?;
    let mut blob = Replacement::new(&blobs.join("layer"))?;
    let mut out = BufWriter::with_capacity(BUFFER, &mut blob.file);
    let written = layer::write(&image.reader()?, &mut out, &blobs, image.is_of_changes())?;
    out.flush().on("write to", blobs.display().to_string())?;
    drop(out);
    blob.publish_as(&dir.join(blob_path(&written.digest)))?;
    let documents = image.documents(&written);
    put(&dir.join(blob_path(&sha256(&documents.config))), &documents.config)?;
    put(&dir.join(blob_path(&documents.digest)), &documents.manifest)?;
    put(&index_path, &index(before, &documents, tag))?;
    Ok(Exported { digest: Some(documents.digest), left_out: written.left_out() })
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut new = Replacement::new(path)?;
    new.file.write_all(bytes).on("write to", path.display().to_string())?;
    new.publish()
}

/// The index that is there, if one is.
fn read_index(path: &Path) -> Result<Option<Value>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(SystemError::new("read", path.display().to_string(), e).into()),
    };
    let bad = |why: String| Error::unsound(path.display().to_string(), why);
    let index: Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    if index["manifests"].is_array() {
        Ok(Some(index))
    } else {
        Err(bad("it has no list of manifests".into()))
    }
}

/// `before` with the image in it; another one of that name, or without one if this has none, makes way.
pub(super) fn index(before: Option<Value>, documents: &Documents, tag: Option<&str>) -> Vec<u8> {
    let mut index = before.unwrap_or_else(|| json!({"schemaVersion": 2, "manifests": []}));
    let mut image = json!({
        "mediaType": MANIFEST_TYPE, "digest": documents.digest, "size": documents.manifest.len()
    });
    if let Some(tag) = tag {
        image["annotations"] = json!({NAME: tag});
    }
    if let Some(images) = index["manifests"].as_array_mut() {
        images.retain(|other| other["annotations"][NAME].as_str() != tag);
        images.push(image);
    }
    index.to_string().into_bytes()
}
