//! Tar files with an image in them. The layer comes first, while its length and digest are still unknown: its header is
//! written into the place kept for it when they are.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;

use serde_json::json;
use skiff_oci::digest::Digest;
use skiff_oci::reference::Named;
use skiff_sys::positional::write_all_at;
use skiff_tar::{HEADER, TarEntry, Writer, plain_header};

use super::directory::{LAYOUT, blob_path, index};
use super::layer::{self, WrittenLayer};
use super::replace::Replacement;
use super::{BUFFER, Documents, Exported, OpenImage};
use crate::error::Result;
use skiff_sys::{SystemContext, SystemError};

/// What `docker load` reads.
pub(super) fn docker(image: &OpenImage, path: &Path, name: Option<&Named>) -> Result<Exported> {
    let config_path = |digest: &Digest| format!("{}.json", digest.hex());
    let layer_path = |digest: &Digest| format!("{}/layer.tar", digest.hex());
    write(image, path, &layer_path, &|layer, documents| {
        let config = config_path(&skiff_oci::hash::sha256(&documents.config));
        let tags: Vec<String> = name.iter().map(ToString::to_string).collect();
        let item = json!([{"Config": config, "RepoTags": tags, "Layers": [layer_path(&layer.digest)]}]);
        vec![(config, documents.config.clone()), ("manifest.json".into(), item.to_string().into_bytes())]
    })
}

/// An OCI layout.
pub(super) fn oci(image: &OpenImage, path: &Path, tag: Option<&str>) -> Result<Exported> {
    write(image, path, &blob_path, &|_, documents| {
        let config = blob_path(&skiff_oci::hash::sha256(&documents.config));
        vec![
            (config, documents.config.clone()),
            (blob_path(&documents.digest), documents.manifest.clone()),
            ("index.json".into(), index(None, documents, tag)),
            ("oci-layout".into(), LAYOUT.into()),
        ]
    })
}

/// What stands beside the layer: paths and contents.
type Beside<'a> = dyn Fn(&WrittenLayer, &Documents) -> Vec<(String, Vec<u8>)> + 'a;

fn write(
    image: &OpenImage,
    path: &Path,
    layer_path: &dyn Fn(&Digest) -> String,
    beside: &Beside<'_>,
) -> Result<Exported> {
    let failed = |e: std::io::Error| SystemError::new("write to", path.display().to_string(), e);
    let mut new = Replacement::new(path)?;
    new.file.seek(SeekFrom::Start(HEADER as u64)).map_err(failed)?;
    let mut out = BufWriter::with_capacity(BUFFER, &mut new.file);
    let written = layer::write(&image.reader()?, &mut out, path, image.is_of_changes())?;
    let documents = image.documents(&written);
    // A tar stream is a whole number of records already.
    let mut tar = Writer::new(&mut out);
    for (name, bytes) in beside(&written, &documents) {
        tar.entry(&entry(name, bytes.len() as u64)).and_then(|()| tar.data(&bytes)).map_err(failed)?;
    }
    tar.end().map_err(failed)?;
    out.flush().map_err(failed)?;
    drop(out);
    put_header(&new.file, path, &entry(layer_path(&written.digest), written.size))?;
    new.publish()?;
    Ok(Exported { digest: Some(documents.digest), left_out: written.left_out() })
}

fn entry(path: String, size: u64) -> TarEntry {
    TarEntry::plain_file(path.into_bytes(), size)
}

fn put_header(file: &File, path: &Path, entry: &TarEntry) -> Result<()> {
    Ok(write_all_at(file.as_fd(), &plain_header(entry), 0).on("write to", path.display().to_string())?)
}
