//! Files that registries keep as the layers of artifacts: what Apptainer pushes by `oras://`.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Seek, Write};

use serde::Deserialize;
use skiff_oci::hash::Hasher;
use skiff_oci::manifest::Descriptor;
use skiff_oci::reference::Named;
use skiff_sys::SystemError;
use ureq::http::Method;

use crate::http::{authority, io_failure};
use crate::repository::Repository;
use crate::{Client, Failure, Repositories, Result, Wish};

/// What is read at once.
const PIECE: usize = 256 << 10;

#[derive(Deserialize)]
struct Artifact {
    #[serde(default)]
    layers: Vec<Descriptor>,
}

impl Client {
    /// Writes the layer of this media type into an empty file; its digest is checked.
    ///
    /// # Errors
    /// The artifact cannot be had or has no such layer, or the file cannot be written to.
    pub fn artifact(&self, image: &Named, media_type: &str, to: &File) -> Result<()> {
        let image = image.clone().with_default_tag();
        let unsound = |why: String| skiff_oci::Error::BadManifest { object: image.to_string(), why };
        let (source, bytes) = self.manifest_bytes(&image)?;
        let artifact: Artifact = serde_json::from_slice(&bytes).map_err(|e| unsound(e.to_string()))?;
        let layer = artifact.layers.into_iter().find(|layer| layer.media_type == media_type);
        let layer = layer.ok_or_else(|| unsound(format!("it has no layer of media type {media_type}")))?;
        self.fetch_to(&source, &image, &layer, to)
    }

    /// Writes a layer of an image into an empty file; its digest is checked.
    ///
    /// # Errors
    /// The layer cannot be had, or the file cannot be written to.
    pub fn layer(&self, image: &Named, layer: &Descriptor, to: &File) -> Result<()> {
        let source = Repositories { repositories: self.repositories(image)?.into() };
        self.fetch_to(&source, image, layer, to)
    }

    fn fetch_to(&self, source: &Repositories, image: &Named, layer: &Descriptor, to: &File) -> Result<()> {
        let full = RefCell::new(None);
        let fetched = self.ask_source(source, &format!("{} of {image}", layer.digest), |repository| {
            let mut to = to;
            to.rewind().and_then(|()| to.set_len(0)).map_err(|e| Failure::Nonsense(e.to_string()))?;
            self.receive_blob(repository, layer, &mut |bytes| match to.write_all(bytes) {
                Ok(()) => true,
                Err(e) => {
                    full.replace(Some(e));
                    false
                }
            })
        });
        match full.into_inner() {
            Some(e) => Err(SystemError::new("write to", "a temporary file", e).into()),
            None => fetched,
        }
    }

    fn receive_blob(
        &self,
        repository: &Repository,
        layer: &Descriptor,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), Failure> {
        let path = format!("blobs/{}", layer.digest);
        let wish = Wish { method: &Method::GET, path: &path, accept: None, range: None };
        let (response, from) = repository.ask(&self.http, wish)?;
        let mut body = response.into_body().into_reader();
        let (mut hasher, mut buffer, mut got) = (Hasher::like(&layer.digest), vec![0; PIECE], 0);
        loop {
            let count = body.read(&mut buffer).map_err(|e| io_failure(e, authority(&from)))?;
            got += count as u64;
            if count == 0 {
                break;
            }
            if got > layer.size || !take(&buffer[..count]) {
                return Err(Failure::Nonsense(format!("it has more than {} bytes", layer.size)));
            }
            hasher.update(&buffer[..count]);
        }
        match hasher.finish() {
            _ if got < layer.size => Err(Failure::Short { got, expected: layer.size }),
            digest if digest == layer.digest => Ok(()),
            other => Err(Failure::WrongDigest { got: other.to_string() }),
        }
    }
}
