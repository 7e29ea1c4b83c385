//! Where an image's layers came from, as far as that can be believed later: a repository behind HTTPS, whose server's certificate the
//! site's own authorities vouch for. Nothing that a user says about servers (their authorities, `insecure`, mirrors) makes one.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_oci::manifest::{self, Descriptor, MAX_DOCUMENT};
use skiff_sys::IgnoreError;
use ureq::http::Method;

use super::http::{Http, authority, read_body};
use super::repository::{Repository, Wish, asked_for};
use super::{Client, ClientSettings, Repositories, checked};
use crate::error::Result;
use crate::registries_conf::Endpoint;

/// No note of one is longer, in bytes.
const LONGEST: usize = 4096;

/// A repository at a server that is asked by verified HTTPS only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Host and port, as in references.
    pub server: String,
    /// The path there.
    pub repository: String,
}

impl Repository {
    /// Gives the repository as an origin, where a certificate that the site believes proves what server answers.
    pub(super) fn origin(&self, settings: &ClientSettings) -> Option<Origin> {
        let is_verified = !self.insecure() && settings.certificates.leave_to_site(asked_for(&self.server));
        (is_verified && !self.is_mirror).then(|| self.address())
    }

    fn address(&self) -> Origin {
        Origin { server: self.server.clone(), repository: self.path.clone() }
    }
}

impl Client {
    /// Where this image was found, if that can be an origin.
    pub fn origin(&self, source: &Repositories) -> Option<Origin> {
        source.repositories.first()?.origin(self.http.settings())
    }

    /// The repositories of an image that could be origins, if the site's authorities vouch for them.
    pub fn claimed_origins(&self, source: &Repositories) -> Vec<Origin> {
        let repositories =
            source.repositories.iter().filter(|repository| !repository.insecure() && !repository.is_mirror);
        repositories.map(|repository| repository.address()).collect()
    }

    /// Has an origin show that it gives this user this manifest and all of these layers.
    ///
    /// # Errors
    /// The origin denies one of them, or cannot be reached.
    pub fn ask_origin(&self, origin: &Origin, manifest: &Digest, layers: &[&Descriptor]) -> Result<()> {
        let settings = self.http.settings();
        let certificates = settings.certificates.without_authorities();
        let http = Http::new(ClientSettings { certificates, ..settings.clone() });
        let Origin { server, repository } = origin.clone();
        let repository = Repository::new(
            Endpoint { server, repository, insecure: false },
            Arc::clone(&self.credentials),
            false,
        );
        let object = format!("the manifest {manifest}, which you want to use,");
        self.insist(&repository, &object, settings.tries, || {
            let path = format!("manifests/{manifest}");
            let wish =
                Wish { method: &Method::GET, path: &path, accept: Some(manifest::ACCEPTED), range: None };
            let (response, from) = repository.ask(&http, wish)?;
            checked(read_body(response, MAX_DOCUMENT, authority(&from))?, manifest)
        })?;
        for layer in layers.iter().filter(|layer| layer.size > 0) {
            self.insist(&repository, &format!("the blob {}", layer.digest), settings.tries, || {
                let path = format!("blobs/{}", layer.digest);
                // Where a registry redirects to, it signs for GET and not for HEAD. One byte: only whether it gives it counts.
                let wish = Wish { method: &Method::GET, path: &path, accept: None, range: Some((0, 0)) };
                repository.ask(&http, wish).map(drop)
            })?;
        }
        Ok(())
    }
}

/// The origin that all bytes of a blob on disk have come from, noted beside it.
pub(super) struct Note {
    dir: Arc<OwnedFd>,
    name: String,
    state: Mutex<State>,
}

enum State {
    /// No byte is there.
    Empty,
    /// All that are there are this origin's, or nobody can say whose.
    From(Option<Origin>),
}

impl Note {
    pub(super) fn new(dir: &Arc<OwnedFd>, name: String, is_empty: bool) -> Note {
        let state = if is_empty { State::Empty } else { State::From(read(dir, &name)) };
        Note { dir: Arc::clone(dir), name, state: Mutex::new(state) }
    }

    /// All bytes are thrown away.
    pub(super) fn reset(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Empty;
    }

    /// The next bytes come from there. To be told before they do.
    pub(super) fn comes_from(&self, origin: Option<Origin>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match &*state {
            State::Empty => origin.filter(|origin| self.write(origin).is_ok()),
            State::From(None) => return,
            State::From(known) => known.clone().filter(|known| Some(known) == origin.as_ref()),
        };
        if known.is_none() {
            unlinkat(&self.dir, &self.name, AtFlags::empty()).ignore_error("nothing else could be done; and what stays says no more than that the blob's first bytes came from there");
        }
        *state = State::From(known);
    }

    fn write(&self, origin: &Origin) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, &self.name, flags, Mode::RUSR | Mode::WUSR)?;
        let text = serde_json::to_vec(origin).map_err(|_| rustix::io::Errno::INVAL)?;
        skiff_sys::positional::write_all_at(std::os::fd::AsFd::as_fd(&file), &text, 0)
    }
}

/// What such a note says.
pub(super) fn read(dir: &OwnedFd, name: &str) -> Option<Origin> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = vec![0; LONGEST];
    let length = skiff_sys::positional::read_at(std::os::fd::AsFd::as_fd(&file), &mut text, 0).ok()?;
    serde_json::from_slice(&text[..length]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(repository: &str) -> Option<Origin> {
        Some(Origin { server: "r.example".into(), repository: repository.into() })
    }

    #[test]
    fn bytes_of_two_places_have_no_origin() {
        let dir = tempfile::tempdir().unwrap();
        let fd: Arc<OwnedFd> = Arc::new(std::fs::File::open(dir.path()).unwrap().into());
        let note = |is_empty| Note::new(&fd, "blob.origin".into(), is_empty);
        for (first, then, expected) in [
            (origin("a"), origin("a"), origin("a")),
            (origin("a"), origin("b"), None),
            (origin("a"), None, None),
            (None, origin("a"), None),
        ] {
            let begun = note(true);
            begun.comes_from(first.clone());
            begun.comes_from(first);
            // Another process goes on with what is there.
            note(false).comes_from(then.clone());
            assert_eq!(read(&fd, "blob.origin"), expected);
            // All was wrong, and comes anew.
            begun.reset();
            begun.comes_from(then.clone());
            assert_eq!(read(&fd, "blob.origin"), then);
        }
    }
}
