//! What an image is made of, piece by piece, for who passes it on to others. Whoever uses it compares digests.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use skiff_oci::digest::Digest;
use skiff_oci::reference::Named;
use ureq::http::{StatusCode, header};

use super::failure::Failure;
use super::http::header_text;
use super::location::{BlobLocation, Redirect};
use super::repository::Repository;
use super::transfer::content_range;
use super::{Client, Repositories};
use crate::error::Result;

/// How often in a row a range is asked for. Others wait for it, and may ask the registry themselves.
const TRIES: u32 = 2;
/// An image has fewer blobs.
const MOST_BLOBS: usize = 256;

/// An image in a registry, and whoever may ask for it.
pub struct ImageParts {
    client: Client,
    image: Named,
    source: Repositories,
    redirects: HashMap<Digest, Redirect>,
}

/// Bytes of a blob as they come.
pub struct BlobRange(Box<dyn Read + Send>);

impl Read for BlobRange {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Client {
    /// What the image of this name is made of. Nobody is asked yet.
    ///
    /// # Errors
    /// The configuration forbids it.
    pub fn parts(self, image: Named) -> Result<ImageParts> {
        let endpoints = self.conf.endpoints(&image)?;
        let last = endpoints.len().saturating_sub(1);
        let repository =
            |(at, endpoint)| Arc::new(Repository::new(endpoint, Arc::clone(&self.credentials), at < last));
        let repositories = endpoints.into_iter().enumerate().map(repository).collect();
        Ok(ImageParts {
            client: self,
            image,
            source: Repositories { repositories },
            redirects: HashMap::new(),
        })
    }
}

impl ImageParts {
    /// A manifest, or an index of such.
    ///
    /// # Errors
    /// No registry has it, or none answers.
    pub fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        let object = format!("the manifest {digest} of {}", self.image);
        self.client.ask_source(&self.source, &object, |repository| {
            self.client.receive(repository, &digest.to_string(), Some(digest)).map(|(bytes, ..)| bytes)
        })
    }

    /// The bytes of a blob from `begin` up to `end`, or to its own end.
    ///
    /// # Errors
    /// No registry has it or gives ranges of it, or none answers.
    pub fn blob(&mut self, digest: &Digest, begin: u64, end: u64) -> Result<BlobRange> {
        if self.redirects.len() > MOST_BLOBS {
            self.redirects.clear();
        }
        let redirect = self.redirects.entry(*digest).or_default();
        let http = &self.client.http;
        let mut first_error = None;
        for repository in self.source.repositories.iter() {
            let location = BlobLocation::Repository(Arc::clone(repository));
            let asked = self.client.insist(repository, &format!("the blob {digest}"), TRIES, || {
                let (response, _) = redirect.ask(http, (digest, &location), Some((begin, end - 1)))?;
                let text = header_text(response.headers(), header::CONTENT_RANGE).unwrap_or_default();
                match content_range(text) {
                    Some((first, ..)) if first == begin => {}
                    // A server without ranges sends all.
                    _ if begin == 0 && response.status() == StatusCode::OK => {}
                    _ => {
                        return Err(Failure::Nonsense(format!(
                            "asked for bytes from {begin} on, got {text:?}"
                        )));
                    }
                }
                Ok(BlobRange(Box::new(response.into_body().into_reader().take(end - begin))))
            });
            match asked {
                Ok(range) => return Ok(range),
                Err(e) => first_error = first_error.or(Some(e)),
            }
            redirect.forget();
        }
        Err(first_error.unwrap_or_else(|| unreachable!("a source has repositories")))
    }
}
