//! What an image is made of, piece by piece, for who passes it on to others. Whoever uses it compares digests.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use skiff_oci::digest::Digest;
use skiff_oci::reference::Named;
use ureq::http::{StatusCode, header};

use super::failure::{Failure, RegistryError};
use super::http::header_text;
use super::location::{BlobLocation, Redirect};
use super::repository::Repository;
use super::transfer::content_range;
use super::{Client, Repositories};
use crate::error::Result;

/// Before a request is made once more. Others wait for it, and may ask the registry themselves.
const PAUSE: Duration = Duration::from_millis(200);
/// An image has fewer blobs.
const MOST_BLOBS: usize = 256;

/// An image in a registry, and whoever may ask for it.
pub struct ImageParts {
    client: Client,
    image: Named,
    source: Repositories,
    /// By blob, and the number of the repository that has redirected.
    redirects: Mutex<HashMap<(Digest, usize), Arc<Redirect>>>,
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
        let repositories = self.repositories(&image)?.into();
        Ok(ImageParts {
            client: self,
            image,
            source: Repositories { repositories },
            redirects: Mutex::default(),
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
        self.ask(&object, |_, repository| {
            self.client.receive(repository, &digest.to_string(), Some(digest)).map(|(bytes, ..)| bytes)
        })
    }

    /// The bytes of a blob from `begin` up to `end`, or to its own end.
    ///
    /// # Errors
    /// No registry has it or gives ranges of it, or none answers.
    pub fn blob(&self, digest: &Digest, begin: u64, end: u64) -> Result<BlobRange> {
        let range = Some((begin, end.saturating_sub(1)));
        self.ask(&format!("the blob {digest}"), |number, repository| {
            let location = BlobLocation::Repository(Arc::clone(repository));
            let redirect = self.redirect(digest, number);
            let (response, _) = redirect.ask(&self.client.http, (digest, &location), range)?;
            let text = header_text(response.headers(), header::CONTENT_RANGE).unwrap_or_default();
            match content_range(text) {
                Some((first, ..)) if first == begin => {}
                // A server without ranges sends all.
                _ if begin == 0 && response.status() == StatusCode::OK => {}
                _ => return Err(Failure::Nonsense(format!("asked for bytes from {begin} on, got {text:?}"))),
            }
            Ok(BlobRange(Box::new(response.into_body().into_reader().take(end - begin))))
        })
    }

    fn redirect(&self, digest: &Digest, repository: usize) -> Arc<Redirect> {
        let mut redirects = self.redirects.lock().unwrap_or_else(PoisonError::into_inner);
        if redirects.len() > MOST_BLOBS {
            redirects.clear();
        }
        Arc::clone(redirects.entry((*digest, repository)).or_default())
    }

    /// Asks one repository after the other. A request that may succeed later is made once more, unless the server has said when: nobody is to
    /// wait so long here.
    fn ask<T>(&self, object: &str, ask: impl Fn(usize, &Arc<Repository>) -> Result<T, Failure>) -> Result<T> {
        let mut last = None;
        for (number, repository) in self.source.repositories.iter().enumerate() {
            let is_worth_it = |failure: &Failure| {
                failure.is_transient() && !matches!(failure, Failure::Status { retry_after: Some(_), .. })
            };
            let again = |failure| match is_worth_it(&failure) {
                true => {
                    sleep(PAUSE);
                    ask(number, repository)
                }
                false => Err(failure),
            };
            match ask(number, repository).or_else(again) {
                Ok(answer) => return Ok(answer),
                Err(failure) => last = Some(RegistryError::new(&repository.server, object, 1, failure)),
            }
        }
        Err(last.unwrap_or_else(|| unreachable!("a source has repositories")).into())
    }
}
