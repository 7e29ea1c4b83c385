#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

//! # The way through it
//!
//! ```text
//! Client::resolve(NAME, PLATFORM)  -> manifest, configuration, and the Repositories they came from
//! Client::fetch(SOURCE, BLOBS)     -> Fetch: threads that bring blobs into a directory, in parallel ranges
//! Fetch::blob(DESCRIPTOR)          -> Growing: that blob's bytes, readable while they arrive
//! ```
//!
//! Blocking: its only threads are those of a [`Fetch`].

mod artifact;
pub mod auth;
mod challenge;
mod chunks;
mod download;
mod error;
mod failure;
mod fetch;
#[doc(hidden)]
pub mod fuzz;
mod growing;
mod http;
mod ingest;
mod location;
mod memory;
mod origin;
mod parts;
mod pieces;
pub mod policy;
mod proxy;
mod push;
pub mod registries_conf;
mod repository;
mod retry;
mod tls;
mod token;
mod transfer;
mod upload;
mod user_dirs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_oci::reference::{Named, ShortName};
use ureq::http::{Method, header};

pub use download::download;
pub use error::{Error, Result, Told};
pub use failure::{Failure, RegistryError};
pub use fetch::Fetch;
pub use growing::{BlobReader, Event, Growing, Status, Tell};
pub use ingest::BlobDir;
pub use origin::Origin;
pub use parts::{BlobRange, ImageParts};
pub use push::{BlobArrival, PushSummary};
pub use repository::asked_for;
use skiff_oci::hash;
use skiff_oci::manifest::{self, Descriptor, Document, ImageConfig, MAX_DOCUMENT, Manifest};
pub use tls::{Certificates, site_places};
pub use upload::{ReadFrom, Upload};

use crate::auth::{Credential, Credentials};
use crate::registries_conf::{Endpoint, RegistriesConf};
use http::{Http, header_text, read_body};
use repository::{Repository, Wish};

/// An index may lead to an index, but not for long.
pub const MAX_INDEXES: usize = 3;
/// A mirror that fails is not insisted on.
const MIRROR_TRIES: u32 = 2;
/// For how long a server is looked for whose name leads nowhere.
const UNRESOLVED: Duration = Duration::from_millis(600);

/// How to deal with servers.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// What the program is called in requests: `NAME/VERSION`.
    pub agent: String,
    /// How long the name service may take to say where a server is: [`Self::PATIENT`] or [`Self::HASTY`].
    pub resolve: Duration,
    /// How long a connection may take to come about.
    pub connect: Duration,
    /// How long a server may be silent within a request.
    pub stall: Duration,
    /// How often in a row something may fail.
    pub tries: u32,
    /// How many requests may be under way at once.
    pub parallel: usize,
    /// How many bytes of a blob are asked for at once.
    pub chunk: u64,
    /// How many bytes of what has come may be in memory until they are unpacked.
    pub memory: u64,
    /// The user's own certificates.
    pub certificates: Certificates,
    /// Directories of certificates for all users, a directory per server in them.
    pub certs_d: Vec<PathBuf>,
}

impl ClientSettings {
    /// For what can wait for the name service. Where the first of its servers is down, the C library asks the next one after 5 s; it gives up
    /// after 20 s (two servers, asked twice).
    pub const PATIENT: Duration = Duration::from_secs(20);
    /// For a person who waits for the first sign.
    pub const HASTY: Duration = Duration::from_millis(700);
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            agent: concat!("skiff/", env!("CARGO_PKG_VERSION")).into(),
            resolve: Self::PATIENT,
            connect: Duration::from_secs(10),
            // A registry that fetches from another one first is silent for long.
            stall: Duration::from_secs(60),
            tries: 6,
            parallel: 8,
            chunk: 8 << 20,
            // All that is under way, and both ends of some blobs.
            memory: 96 << 20,
            certificates: Certificates::default(),
            certs_d: tls::certs_d(),
        }
    }
}

/// Asks registries on behalf of one user.
pub struct Client {
    http: Http,
    conf: RegistriesConf,
    credentials: Arc<Credentials>,
}

/// Where an image was found; its blobs are there too.
#[derive(Clone)]
pub struct Repositories {
    /// Repositories that may have the layers, the one that gave the manifest first.
    repositories: Arc<[Arc<Repository>]>,
}

impl Repositories {
    /// A source that another process knows.
    pub fn elsewhere() -> Repositories {
        Repositories { repositories: Arc::new([]) }
    }
}

/// What a name led to.
#[derive(Clone)]
pub struct Resolved {
    /// The name, in full.
    pub name: Named,
    /// The digest that the name has in the registry: of the index, if there is one.
    pub digest: Digest,
    /// The digest of the manifest for the platform wanted.
    pub manifest_digest: Digest,
    /// The manifest.
    pub manifest: Manifest,
    /// Bytes of the manifest.
    pub manifest_bytes: Vec<u8>,
    /// What led to the manifest, itself included: the bytes and their media type, as the server says.
    pub documents: Vec<(Vec<u8>, Option<String>)>,
    /// The configuration.
    pub config: ImageConfig,
    /// Bytes of the configuration.
    pub config_bytes: Vec<u8>,
    /// Where to fetch its layers.
    pub source: Repositories,
}

/// Bytes, media type as the server says it, and digest of a manifest.
type SentManifest = (Vec<u8>, Option<String>, Digest);

struct Received {
    digest: Digest,
    bytes: Vec<u8>,
    content_type: Option<String>,
    document: Document,
}

impl Client {
    /// One with the site's and the user's configuration.
    pub fn new(settings: ClientSettings, conf: RegistriesConf, credentials: Credentials) -> Client {
        Client { http: Http::new(settings), conf, credentials: Arc::new(credentials) }
    }

    /// Completes a name without a server: the first of registries.conf's repositories that has it. Blocked ones are passed over.
    ///
    /// # Errors
    /// None has it, or one failed otherwise.
    pub fn complete(&self, short: &ShortName) -> Result<Named> {
        let mut candidates = self.conf.candidates(short)?;
        let last = candidates.pop().unwrap_or_else(|| short.at_docker_hub());
        for candidate in candidates {
            match self.digest(&candidate) {
                Ok(_) => return Ok(candidate),
                Err(Error::Registry(e)) if e.failure.is_missing() || is_denied(&e.failure) => {}
                // That one is not to be used says nothing of the others.
                Err(Error::Blocked { .. }) => {}
                // Another's image of this name could be in the next.
                Err(Error::Registry(e)) => return Err(e.while_searching(&candidate).into()),
                Err(other) => return Err(other),
            }
        }
        Ok(last)
    }

    /// The digest that a name has now: one HEAD, and nothing to read.
    ///
    /// # Errors
    /// The image is not there, or its server cannot be asked.
    pub fn digest(&self, image: &Named) -> Result<Digest> {
        let path = format!("manifests/{}", image.wanted());
        let wish = Wish { method: &Method::HEAD, path: &path, accept: Some(manifest::ACCEPTED), range: None };
        let object = format!("the digest of {image}");
        let (_, digest) = self.first_that_has(image, &object, |repository| {
            let (response, _) = repository.ask(&self.http, wish)?;
            let digest =
                header_text(response.headers(), header::HeaderName::from_static("docker-content-digest"));
            Ok(digest.and_then(|text| text.parse::<Digest>().ok()))
        })?;
        match (image.digest(), digest) {
            // What the name itself says no server may say otherwise.
            (Some(digest), _) => Ok(*digest),
            (None, Some(digest)) => Ok(digest),
            // Servers need not say it; what they give has it.
            (None, None) => Ok(self.document(image)?.1.digest),
        }
    }

    /// Finds an image, and reads its manifest and configuration.
    ///
    /// # Errors
    /// It is not there, not for this platform, not sound, or its server cannot be asked.
    pub fn resolve(&self, image: &Named, platform: &Platform) -> Result<Resolved> {
        let image = image.clone().with_default_tag();
        let (source, mut received) = self.document(&image)?;
        let digest = received.digest;
        let mut documents = vec![];
        for _ in 0..MAX_INDEXES {
            documents.push((received.bytes.clone(), received.content_type.take()));
            let index = match received.document {
                Document::Manifest(manifest) => {
                    let (config, config_bytes) = self.config(&source, &image, &manifest, platform)?;
                    let (name, manifest_digest) = (image, received.digest);
                    let manifest_bytes = received.bytes;
                    return Ok(Resolved {
                        name,
                        digest,
                        manifest_digest,
                        manifest,
                        manifest_bytes,
                        documents,
                        config,
                        config_bytes,
                        source,
                    });
                }
                Document::Index(index) => index,
            };
            let chosen = index.choose(&image.to_string(), platform)?;
            received = self.manifest_of(&source, &image, chosen)?;
        }
        let why = format!("more than {MAX_INDEXES} indexes lead from one to the next");
        Err(skiff_oci::Error::BadManifest { object: image.to_string(), why }.into())
    }

    /// Whether a server takes this login.
    ///
    /// # Errors
    /// It does not, or cannot be asked.
    pub fn check_login(&self, server: &str, credential: &Credential) -> Result<()> {
        let named = Named::new(server, "login", None, None).map_err(Error::Reference)?;
        let mut endpoints = self.conf.endpoints(&named)?;
        let insecure = endpoints.pop().is_some_and(|itself| itself.insecure);
        let endpoint = Endpoint { server: named.server().into(), repository: String::new(), insecure };
        let repository = Repository::new(endpoint, Arc::clone(&self.credentials), false);
        let tries = self.http.settings().tries;
        self.insist(&repository, "a login", tries, || repository.try_login(&self.http, credential))
    }

    /// Begins to fetch blobs of an image into a directory.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn fetch(&self, source: &Repositories, dir: BlobDir) -> Result<Fetch> {
        Fetch::start(self.http.settings().clone(), source.clone(), dir, None)
    }

    /// As [`Client::fetch`], for another process, which is told of all that happens, and reads and hashes what comes.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn fetch_for(&self, source: &Repositories, dir: BlobDir, tell: Tell) -> Result<Fetch> {
        Fetch::start(self.http.settings().clone(), source.clone(), dir, Some(tell))
    }

    /// A small blob, all of it: a configuration, the payload of a signature.
    ///
    /// # Errors
    /// It cannot be had, is longer than a manifest may be, or is not what its descriptor says.
    pub fn small_blob(&self, source: &Repositories, object: &str, blob: &Descriptor) -> Result<Vec<u8>> {
        if blob.size > MAX_DOCUMENT {
            let why = format!("it has {} bytes; {MAX_DOCUMENT} are the limit", blob.size);
            return Err(skiff_oci::Error::BadManifest { object: object.into(), why }.into());
        }
        let path = format!("blobs/{}", blob.digest);
        self.ask_source(source, object, |repository| {
            let wish = Wish { method: &Method::GET, path: &path, accept: None, range: None };
            let (response, from) = repository.ask(&self.http, wish)?;
            let bytes = read_body(response, blob.size, http::authority(&from))?;
            checked(bytes, &blob.digest)
        })
    }

    /// A manifest beside an image, named by a tag of its own; nothing if there is none.
    ///
    /// # Errors
    /// The registry cannot be asked.
    pub fn beside(&self, source: &Repositories, image: &Named, tag: &str) -> Result<Option<Vec<u8>>> {
        let object = format!("{tag} of {}", image.name());
        match self.ask_source(source, &object, |repository| {
            self.receive(repository, tag, None).map(|(bytes, ..)| bytes)
        }) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::Registry(e)) if e.failure.is_missing() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The manifest of whatever an image's name means.
    fn manifest_bytes(&self, image: &Named) -> Result<(Repositories, Vec<u8>)> {
        self.manifest_as_sent(image).map(|(source, (bytes, ..))| (source, bytes))
    }

    fn manifest_as_sent(&self, image: &Named) -> Result<(Repositories, SentManifest)> {
        let wanted = image.wanted();
        self.first_that_has(image, &format!("the manifest of {image}"), |repository| {
            self.receive(repository, &wanted, image.digest())
        })
    }

    fn document(&self, image: &Named) -> Result<(Repositories, Received)> {
        let (source, (bytes, content_type, digest)) = self.manifest_as_sent(image)?;
        let document = manifest::parse(&format!("manifest of {image}"), &bytes, content_type.as_deref())?;
        Ok((source, Received { digest, bytes, content_type, document }))
    }

    fn manifest_of(&self, source: &Repositories, image: &Named, chosen: &Descriptor) -> Result<Received> {
        let object = format!("the manifest {} of {image}", chosen.digest);
        let wanted = chosen.digest.to_string();
        let (bytes, content_type, digest) = self.ask_source(source, &object, |repository| {
            self.receive(repository, &wanted, Some(&chosen.digest))
        })?;
        chosen.check(&object, &bytes)?;
        let document = manifest::parse(&object, &bytes, content_type.as_deref())?;
        Ok(Received { digest, bytes, content_type, document })
    }

    /// Bytes, media type and digest of what a tag or digest names.
    fn receive(
        &self,
        repository: &Repository,
        wanted: &str,
        pinned: Option<&Digest>,
    ) -> Result<SentManifest, Failure> {
        let path = format!("manifests/{wanted}");
        let wish = Wish { method: &Method::GET, path: &path, accept: Some(manifest::ACCEPTED), range: None };
        let (response, from) = repository.ask(&self.http, wish)?;
        let content_type = header_text(response.headers(), header::CONTENT_TYPE).map(String::from);
        let told = header_text(response.headers(), header::HeaderName::from_static("docker-content-digest"))
            .and_then(|text| text.parse::<Digest>().ok());
        let bytes = read_body(response, MAX_DOCUMENT, http::authority(&from))?;
        match pinned.or(told.as_ref()) {
            Some(digest) => checked(bytes, digest).map(|bytes| (bytes, content_type, *digest)),
            None => {
                let digest = hash::sha256(&bytes);
                Ok((bytes, content_type, digest))
            }
        }
    }

    fn config(
        &self,
        source: &Repositories,
        image: &Named,
        manifest: &Manifest,
        platform: &Platform,
    ) -> Result<(ImageConfig, Vec<u8>)> {
        let object = format!("the configuration of {image}");
        let bytes = self.small_blob(source, &object, &manifest.config)?;
        let config = ImageConfig::parse(&object, &bytes)?;
        manifest.check_config(&image.to_string(), &config, platform)?;
        Ok((config, bytes))
    }

    /// All repositories that may have an image, mirrors first.
    fn repositories(&self, image: &Named) -> Result<Vec<Arc<Repository>>> {
        let endpoints = self.conf.endpoints(image)?;
        let last = endpoints.len().saturating_sub(1);
        let repository =
            |(at, endpoint)| Arc::new(Repository::new(endpoint, Arc::clone(&self.credentials), at < last));
        Ok(endpoints.into_iter().enumerate().map(repository).collect())
    }

    /// Asks all repositories that may have an image, mirrors first; gives the answer, and the repositories with that one in front.
    fn first_that_has<T>(
        &self,
        image: &Named,
        object: &str,
        ask: impl Fn(&Repository) -> Result<T, Failure>,
    ) -> Result<(Repositories, T)> {
        let mut repositories = self.repositories(image)?;
        let last = repositories.len().saturating_sub(1);
        for at in 0..repositories.len() {
            let tries = self.http.settings().tries;
            let tries = if at < last { tries.min(MIRROR_TRIES) } else { tries };
            match self.insist(&repositories[at], object, tries, || ask(&repositories[at])) {
                Ok(answer) => {
                    repositories.rotate_left(at);
                    return Ok((Repositories { repositories: repositories.into() }, answer));
                }
                // Whatever a mirror lacks, the repository itself may have.
                Err(_) if at < last => {}
                Err(e) => return Err(e),
            }
        }
        unreachable!("an image has at least the repository that its name says")
    }

    /// Asks the repositories of an image in turn. If all fail, the error is that of the one that the name says.
    fn ask_source<T>(
        &self,
        source: &Repositories,
        object: &str,
        ask: impl Fn(&Repository) -> Result<T, Failure>,
    ) -> Result<T> {
        let mut error = None;
        for repository in source.repositories.iter() {
            match self.insist(repository, object, self.http.settings().tries, || ask(repository)) {
                Ok(answer) => return Ok(answer),
                // That a mirror lacks something says nothing of what it stands in for.
                Err(e) if error.is_none() || !repository.is_mirror => error = Some(e),
                Err(_) => {}
            }
        }
        Err(error.unwrap_or_else(|| unreachable!("a source has repositories")))
    }

    /// Tries again and again, with pauses, what may succeed later.
    fn insist<T>(
        &self,
        repository: &Repository,
        object: &str,
        tries: u32,
        mut ask: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T> {
        let (mut failures, begun) = (0, Instant::now());
        loop {
            let failure = match ask() {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            failures += 1;
            // Somebody waits, and a name service that is not there does not come soon.
            let is_soon = |pause: &Duration| {
                let is_unresolved = matches!(failure, Failure::Unresolved(_) | Failure::Unanswered(_));
                !is_unresolved || begun.elapsed() + *pause < UNRESOLVED
            };
            match retry::pause(&failure, failures, tries).filter(is_soon) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(RegistryError::new(&repository.server, object, failures, failure).into()),
            }
        }
    }
}

fn checked(bytes: Vec<u8>, digest: &Digest) -> Result<Vec<u8>, Failure> {
    let got = hash::digest_like(digest, &bytes);
    if got == *digest { Ok(bytes) } else { Err(Failure::WrongDigest { got: got.to_string() }) }
}

/// Docker Hub says so of what does not exist.
fn is_denied(failure: &Failure) -> bool {
    matches!(failure, Failure::Unauthorized(_) | Failure::Status { status: 401 | 403, .. })
}

/// Whether a host is this machine and can be no other.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
