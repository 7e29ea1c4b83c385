//! Registries asked by this process.

use std::cmp::Reverse;
use std::sync::Arc;

use skiff_image::blob::Blob;
use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256;
use skiff_oci::manifest::{Descriptor, Layer};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_registry::policy::Signature;
use skiff_registry::{BlobDir, Client, Fetch, Growing, Origin, Resolved};

use super::blob::FetchedBlob;
use super::{Fetcher, Fetching};
use crate::error::Result;

impl Fetcher for Client {
    fn digest(&self, image: &Named) -> Result<Digest> {
        Ok(Client::digest(self, image)?)
    }

    fn resolve(&self, image: &Named, platform: &Platform) -> Result<Resolved> {
        Ok(Client::resolve(self, image, platform)?)
    }

    fn signatures(&self, found: &Resolved) -> Result<Vec<Signature>> {
        Ok(Client::signatures(self, found)?)
    }

    fn origin(&self, found: &Resolved) -> Option<Origin> {
        Client::origin(self, &found.source)
    }

    fn claimed_origins(&self, found: &Resolved) -> Vec<Origin> {
        Client::claimed_origins(self, &found.source)
    }

    fn ask_origin(&self, found: &Resolved, origin: &Origin, layers: &[&Descriptor]) -> Result<()> {
        Ok(Client::ask_origin(self, origin, &sha256(&found.manifest_bytes), layers)?)
    }

    fn fetch(&self, found: &Resolved, dir: BlobDir) -> Result<Box<dyn Fetching>> {
        let fetch = Client::fetch(self, &found.source, dir)?;
        let growing = ask_for(&fetch, &found.manifest.layers);
        let blobs = growing.iter().map(FetchedBlob::new).collect();
        Ok(Box::new(Local { growing, blobs, _fetch: fetch }))
    }
}

struct Local {
    growing: Vec<Arc<Growing>>,
    blobs: Vec<FetchedBlob>,
    /// Ended with this.
    _fetch: Fetch,
}

impl Fetching for Local {
    fn blobs(&self) -> Vec<&dyn Blob> {
        self.blobs.iter().map(|blob| blob as &dyn Blob).collect()
    }

    fn arrived(&self, layer: usize) -> u64 {
        self.growing[layer].progress().0
    }
}

/// Asks for the longest layers first, which are unpacked first too; gives all, the lowest first.
pub(super) fn ask_for(fetch: &Fetch, layers: &[Layer]) -> Vec<Arc<Growing>> {
    let mut longest_first: Vec<&Layer> = layers.iter().collect();
    longest_first.sort_by_key(|layer| Reverse(layer.blob.size));
    longest_first.iter().for_each(|layer| drop(fetch.blob(&layer.blob)));
    layers.iter().map(|layer| fetch.blob(&layer.blob)).collect()
}
