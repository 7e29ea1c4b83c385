//! Where a blob is: a registry, or a server that a manifest names; and where that one has redirected to.

use std::sync::{Arc, Mutex, PoisonError};

use skiff_oci::digest::Digest;
use ureq::Body;
use ureq::http::{Method, Response, Uri};

use super::failure::Failure;
use super::http::{Http, HttpRequest, authority, is_good, status_failure};
use super::repository::{Repository, Wish};

/// Who has the blob.
pub(super) enum BlobLocation {
    /// A registry.
    Repository(Arc<Repository>),
    /// A server that the manifest names for a layer that registries may not distribute.
    Url(Uri),
}

impl BlobLocation {
    pub(super) fn server(&self) -> &str {
        match self {
            BlobLocation::Repository(repository) => &repository.server,
            BlobLocation::Url(uri) => authority(uri),
        }
    }

    /// What is noted of it beside the blob.
    pub(super) fn noted(&self, settings: &super::ClientSettings) -> Option<super::Origin> {
        match self {
            BlobLocation::Repository(repository) => repository.origin(settings),
            BlobLocation::Url(_) => None,
        }
    }

    fn insecure(&self) -> bool {
        matches!(self, BlobLocation::Repository(repository) if repository.insecure())
    }
}

/// Where the registry has redirected to for a blob, which will do for its other ranges too.
#[derive(Default)]
pub(super) struct Redirect(Mutex<Option<Uri>>);

impl Redirect {
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Asks for the blob, or for a range of it: its first and last byte.
    pub(super) fn ask(
        &self,
        http: &Http,
        (digest, origin): (&Digest, &BlobLocation),
        range: Option<(u64, u64)>,
    ) -> Result<(Response<Body>, Uri), Failure> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(location) = known {
            let (response, from) =
                http.send(&HttpRequest { range, ..HttpRequest::get(location) }, origin.insecure())?;
            if is_good(response.status()) {
                return Ok((response, from));
            }
            // Such addresses expire: the registry knows a new one.
            self.forget();
        }
        match origin {
            BlobLocation::Repository(repository) => {
                let path = format!("blobs/{digest}");
                let wish = Wish { method: &Method::GET, path: &path, accept: None, range };
                let (response, from) = repository.ask(http, wish)?;
                if !repository.is_here(&from) {
                    *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(from.clone());
                }
                Ok((response, from))
            }
            BlobLocation::Url(uri) => {
                let (response, from) =
                    http.send(&HttpRequest { range, ..HttpRequest::get(uri.clone()) }, false)?;
                if is_good(response.status()) { Ok((response, from)) } else { Err(status_failure(response)) }
            }
        }
    }
}
