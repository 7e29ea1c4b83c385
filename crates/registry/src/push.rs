//! Pushing: blobs and a manifest into a repository, each only if it is not there.
//!
//! A blob goes in one request. If that is cut off, the registry is asked how much it has, and gets the rest; one that does not say so gets
//! the blob from its beginning.
//! <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#push>

use std::cell::Cell;
use std::sync::Arc;

use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256;
use skiff_oci::reference::Named;
use ureq::http::{HeaderName, Method, Response, Uri, header};

use super::failure::{Failure, RegistryError};
use super::http::{HttpRequest, RequestBody, authority, header_text, lead, read_body};
use super::manifest;
use super::repository::{Repository, Wish};
use super::upload::Upload;
use super::{Client, Error, Result};

/// So many bytes more than before are worth as many tries again.
const PROGRESS: u64 = 8 << 20;
/// An answer to who pushes has next to nothing in it.
const MAX_ANSWER: u64 = 1 << 20;

/// What came of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PushSummary {
    /// Bytes of the blobs that were sent; what was there already is not among them.
    pub sent: u64,
    /// How each blob came to be there, in the order in which they were given.
    pub arrivals: Vec<BlobArrival>,
}

/// How a blob came to be in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobArrival {
    /// The repository had it.
    Exists,
    /// The registry had it in another repository.
    Mounted,
    /// The layer was sent.
    Sent,
}

impl Client {
    /// Pushes an image.
    ///
    /// # Errors
    /// registries.conf blocks the registry, or it does not take the image; a blob that is to be sent cannot be read.
    pub fn push(
        &self,
        to: &Named,
        blobs: &[Upload<'_>],
        (media_type, manifest): (&'static str, &[u8]),
    ) -> Result<PushSummary> {
        let mounts = blobs.iter().any(|blob| other_repository(to, blob).is_some());
        match self.push_with(to, blobs, (media_type, manifest), mounts) {
            // A repository that is gone or private by now is a reason to refuse all. Nothing is mounted then.
            Err(Error::Registry(e)) if mounts && e.failure.is_refusal() => {
                self.push_with(to, blobs, (media_type, manifest), false)
            }
            done => done,
        }
    }

    fn push_with(
        &self,
        to: &Named,
        blobs: &[Upload<'_>],
        (media_type, manifest): (&'static str, &[u8]),
        mounts: bool,
    ) -> Result<PushSummary> {
        // Never to a mirror: those only give.
        let endpoint =
            self.conf.endpoints(to)?.pop().unwrap_or_else(|| unreachable!("an image has a repository"));
        let from = blobs.iter().filter_map(|blob| other_repository(to, blob).filter(|_| mounts)).collect();
        let repository = Repository::new(endpoint, Arc::clone(&self.credentials), false).for_push(&from);
        let push = Push { client: self, repository: &repository, to, mounts };
        let digest = sha256(manifest);
        let (tag, object) = (to.wanted(), format!("the manifest of {to}"));
        if push.insist(&object, || push.has_manifest(&tag, &digest))? {
            return Ok(PushSummary { sent: 0, arrivals: vec![BlobArrival::Exists; blobs.len()] });
        }
        let mut summary = PushSummary::default();
        for blob in blobs {
            let arrival = push.blob(blob)?;
            summary.arrivals.push(arrival);
            if arrival == BlobArrival::Sent {
                summary.sent += blob.size;
            }
        }
        push.insist(&object, || push.manifest(&tag, &digest, (media_type, manifest)))?;
        Ok(summary)
    }
}

/// Another repository of the registry that has a blob.
fn other_repository<'a>(to: &Named, blob: &Upload<'a>) -> Option<&'a str> {
    let from = blob.from?;
    (from.server() == to.server() && from.repository() != to.repository()).then(|| from.repository())
}

struct Push<'a> {
    client: &'a Client,
    repository: &'a Repository,
    to: &'a Named,
    /// Whether blobs that other repositories have are mounted.
    mounts: bool,
}

impl Push<'_> {
    fn insist<T>(&self, object: &str, ask: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let tries = self.client.http.settings().tries;
        self.client.insist(self.repository, object, tries, ask).map_err(|e| match e {
            Error::Registry(e) => RegistryError::of_push(*e).into(),
            other => other,
        })
    }

    /// Whether a tag means this manifest already.
    fn has_manifest(&self, tag: &str, digest: &Digest) -> Result<bool, Failure> {
        let path = format!("manifests/{tag}");
        let wish = Wish { method: &Method::HEAD, path: &path, accept: Some(manifest::ACCEPTED), range: None };
        match self.repository.ask(&self.client.http, wish) {
            Ok((response, _)) => Ok(told_digest(&response).as_ref() == Some(digest)),
            Err(failure) if failure.is_missing() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn manifest(
        &self,
        tag: &str,
        digest: &Digest,
        (media_type, bytes): (&'static str, &[u8]),
    ) -> Result<(), Failure> {
        let uri = self.repository.uri(&self.client.http, &format!("manifests/{tag}"))?;
        let content = RequestBody::Bytes(media_type, bytes);
        self.send(HttpRequest { method: Method::PUT, content, ..HttpRequest::get(uri) }, Some(digest))
            .map(drop)
    }

    /// Brings a blob there. As long as more and more of it arrives, it may be cut off as often as it likes.
    fn blob(&self, blob: &Upload<'_>) -> Result<BlobArrival> {
        let (session, arrived) = (Cell::new(None), Cell::new(0));
        let object = format!("blob {}", blob.digest);
        loop {
            let before = arrived.get();
            match self.insist(&object, || self.blob_once(blob, &session, &arrived)) {
                Err(Error::Registry(e)) if e.failure.is_transient() && arrived.get() >= before + PROGRESS => {
                }
                done => return done,
            }
        }
    }

    /// One try: what has `arrived` by the `session` of the last one does not go again.
    fn blob_once(
        &self,
        blob: &Upload<'_>,
        session: &Cell<Option<Uri>>,
        arrived: &Cell<u64>,
    ) -> Result<BlobArrival, Failure> {
        // Also after a failure: of a request that was cut off at its very end only the answer is lost.
        if self.has_blob(&blob.digest)? {
            return Ok(BlobArrival::Exists);
        }
        let known = session.take().map(|at| self.progress(at, blob.size)).transpose()?.flatten();
        let (at, begin) = match known {
            Some(known) => known,
            None => match self.begin(blob)? {
                Some(at) => (at, 0),
                None => return Ok(BlobArrival::Mounted),
            },
        };
        session.set(Some(at.clone()));
        arrived.set(begin);
        if begin == 0 {
            self.finish(&at, &blob.digest, RequestBody::Blob(blob, 0, false))?;
            return Ok(BlobArrival::Sent);
        }
        let at = if begin < blob.size { self.rest(at, blob, begin)? } else { at };
        self.finish(&at, &blob.digest, RequestBody::Bytes("application/octet-stream", &[]))?;
        Ok(BlobArrival::Sent)
    }

    /// Brings what is missing of a blob; where the registry then is to be told that it is whole.
    fn rest(&self, at: Uri, blob: &Upload<'_>, begin: u64) -> Result<Uri, Failure> {
        let content = RequestBody::Blob(blob, begin, true);
        let rest = HttpRequest { method: Method::PATCH, content, ..HttpRequest::get(at) };
        self.location(self.send(rest, None)?).map(|(at, _)| at)
    }

    fn has_blob(&self, digest: &Digest) -> Result<bool, Failure> {
        let path = format!("blobs/{digest}");
        let wish = Wish { method: &Method::HEAD, path: &path, accept: None, range: None };
        match self.repository.ask(&self.client.http, wish) {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_missing() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Where a blob is to go; nothing if the registry has taken it from the other repository.
    fn begin(&self, blob: &Upload<'_>) -> Result<Option<Uri>, Failure> {
        let from = other_repository(self.to, blob).filter(|_| self.mounts);
        let mount = from.map(|from| format!("?mount={}&from={from}", blob.digest)).unwrap_or_default();
        let uri = self.repository.uri(&self.client.http, &format!("blobs/uploads/{mount}"))?;
        let content = RequestBody::Bytes("application/octet-stream", &[]);
        let answer =
            self.send(HttpRequest { method: Method::POST, content, ..HttpRequest::get(uri) }, None)?;
        if answer.0.status().as_u16() == 201 {
            return Ok(None);
        }
        self.location(answer).map(|(at, _)| Some(at))
    }

    /// Where the rest is to go of what was cut off, and how much is there; nothing if the registry does not know.
    fn progress(&self, at: Uri, size: u64) -> Result<Option<(Uri, u64)>, Failure> {
        match self.send(HttpRequest::get(at), None) {
            Ok(answer) => Ok(self.location(answer).ok().filter(|(_, arrived)| *arrived <= size)),
            // What it has forgotten it gets anew.
            Err(Failure::Status { status: 400..=499, .. }) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn finish(&self, at: &Uri, digest: &Digest, content: RequestBody<'_>) -> Result<(), Failure> {
        let join = if at.query().is_some() { '&' } else { '?' };
        let uri = format!("{at}{join}digest={digest}");
        let uri = uri.parse().map_err(|_| Failure::Nonsense(format!("upload to {uri:?}")))?;
        self.send(HttpRequest { method: Method::PUT, content, ..HttpRequest::get(uri) }, Some(digest))
            .map(drop)
    }

    /// Sends it; the answer has been read to its end, so that its connection is kept. `digest` is what the registry is to have understood.
    fn send(
        &self,
        request: HttpRequest<'_>,
        digest: Option<&Digest>,
    ) -> Result<(Response<()>, Uri), Failure> {
        let (response, from) = self.repository.send(&self.client.http, request)?;
        match (digest, told_digest(&response)) {
            (Some(sent), Some(got)) if *sent != got => {
                return Err(Failure::WrongDigest { got: got.to_string() });
            }
            _ => {}
        }
        let (parts, body) = response.into_parts();
        read_body(Response::new(body), MAX_ANSWER, authority(&from))?;
        Ok((Response::from_parts(parts, ()), from))
    }

    /// Where an answer says that the next bytes are to go, and how many are there.
    fn location(&self, (response, from): (Response<()>, Uri)) -> Result<(Uri, u64), Failure> {
        let location = header_text(response.headers(), header::LOCATION)
            .ok_or_else(|| Failure::Nonsense("it does not say where to upload".into()))?;
        let at = lead(&from, location, self.repository.insecure())?;
        let arrived = header_text(response.headers(), header::RANGE).map_or(0, arrived);
        Ok((at, arrived))
    }
}

fn told_digest<T>(response: &Response<T>) -> Option<Digest> {
    header_text(response.headers(), HeaderName::from_static("docker-content-digest"))?.parse().ok()
}

/// How many bytes are there by `FIRST-LAST`. Registries write `0-0` for none.
fn arrived(range: &str) -> u64 {
    let range = range.strip_prefix("bytes=").unwrap_or(range);
    match range.split_once('-').map(|(first, last)| (first, last.parse::<u64>())) {
        Some(("0", Ok(last))) if last > 0 => last.saturating_add(1),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_uploads() {
        for (range, bytes) in
            [("0-0", 0), ("0-9", 10), ("bytes=0-9", 10), ("5-9", 0), ("0--1", 0), ("", 0), ("0-x", 0)]
        {
            assert_eq!(arrived(range), bytes, "{range}");
        }
    }
}
