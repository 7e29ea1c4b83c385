//! One repository at one server: how to reach it, and what to show there. Shared by all who ask it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use ureq::Body;
use ureq::http::{Method, Response, Uri, header};

use super::challenge::{self, Challenge};
use super::failure::Failure;
use super::http::{Http, HttpRequest, authority, is_good, status_failure};
use super::is_loopback;
use super::token::{self, Asker};
use crate::auth::{Credential, Credentials};
use crate::registries_conf::Endpoint;

/// Where the images of docker.io really are.
const DOCKER_HUB: &str = "registry-1.docker.io";

/// Who is asked for what is called `server` in names of images.
#[must_use]
pub fn asked_for(server: &str) -> &str {
    if server == "docker.io" { DOCKER_HUB } else { server }
}
/// How often in one request a new token is asked for: the one held may have expired, and so may its successor.
const MAX_RENEWALS: u32 = 2;

/// A repository at a server.
pub(super) struct Repository {
    pub(super) server: String,
    /// The path at the server.
    pub(super) path: String,
    insecure: bool,
    /// Whether it stands in for the repository that the name says.
    pub(super) is_mirror: bool,
    /// What a token is to allow.
    scopes: Vec<String>,
    credentials: Arc<Credentials>,
    /// `https://HOST`, once it is known whether it is https.
    base: Mutex<Option<String>>,
    held: Mutex<Held>,
}

/// What the last answers taught us to send.
#[derive(Default, Clone)]
struct Held {
    authorization: Option<String>,
    /// Counts renewals, so that of many who find it expired only the first renews it.
    generation: u64,
}

/// What to ask of a repository.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub method: &'a Method,
    /// Below `/v2/REPOSITORY/`.
    pub path: &'a str,
    pub accept: Option<&'static str>,
    pub range: Option<(u64, u64)>,
}

impl Repository {
    pub(super) fn new(endpoint: Endpoint, credentials: Arc<Credentials>, is_mirror: bool) -> Repository {
        let Endpoint { server, repository, insecure } = endpoint;
        // As Docker does: what never leaves the machine needs no TLS.
        let insecure = insecure || is_loopback(host_of(&server));
        Repository {
            server,
            scopes: vec![format!("repository:{repository}:pull")],
            path: repository,
            insecure,
            is_mirror,
            credentials,
            base: Mutex::default(),
            held: Mutex::default(),
        }
    }

    /// For who pushes there, and would have blobs of other repositories of the server mounted.
    pub(super) fn for_push(self, from: &BTreeSet<&str>) -> Repository {
        let own = format!("repository:{}:pull,push", self.path);
        let others = from.iter().map(|from| format!("repository:{from}:pull"));
        Repository { scopes: std::iter::once(own).chain(others).collect(), ..self }
    }

    pub(super) fn insecure(&self) -> bool {
        self.insecure
    }

    /// Whether an answer came from this server, and not from where it redirected to.
    pub(super) fn is_here(&self, from: &Uri) -> bool {
        let base = asked_for(&self.server);
        authority(from) == base
    }

    /// Asks, with a token where one is wanted. Gives good answers (200, 206), and where they came from.
    pub(super) fn ask(&self, http: &Http, wish: Wish<'_>) -> Result<(Response<Body>, Uri), Failure> {
        let uri = self.uri(http, wish.path)?;
        let Wish { accept, range, .. } = wish;
        let request = HttpRequest { method: wish.method.clone(), accept, range, ..HttpRequest::get(uri) };
        let (response, from) = self.ask_as_user(http, request, &self.scopes, None)?;
        if is_good(response.status()) { Ok((response, from)) } else { Err(status_failure(response)) }
    }

    /// Sends something, and gives the answer with a status that is not a failure. A token goes to this server only, wherever it has said
    /// that the bytes are to go.
    pub(super) fn send(
        &self,
        http: &Http,
        request: HttpRequest<'_>,
    ) -> Result<(Response<Body>, Uri), Failure> {
        let (response, from) = self.ask_as_user(http, request, &self.scopes, None)?;
        if response.status().is_success() { Ok((response, from)) } else { Err(status_failure(response)) }
    }

    /// Whether the server takes this login.
    pub(super) fn try_login(&self, http: &Http, credential: &Credential) -> Result<(), Failure> {
        let uri = format!("{}/v2/", self.base(http)?).parse().map_err(|_| self.no_name())?;
        let (response, _) = self.ask_as_user(http, HttpRequest::get(uri), &[], Some(credential))?;
        if is_good(response.status()) { Ok(()) } else { Err(status_failure(response)) }
    }

    fn ask_as_user(
        &self,
        http: &Http,
        mut request: HttpRequest<'_>,
        scopes: &[String],
        credential: Option<&Credential>,
    ) -> Result<(Response<Body>, Uri), Failure> {
        let mut renewals = 0;
        let is_own = self.is_own(http, &request.uri)?;
        loop {
            let held = self.held().clone();
            request.authorization = held.authorization.filter(|_| is_own);
            let (response, from) = http.send(&request, self.insecure)?;
            let is_ours = is_own && authority(&from) == authority(&request.uri);
            if response.status().as_u16() != 401 || !is_ours {
                return Ok((response, from));
            }
            if renewals == MAX_RENEWALS || (renewals > 0 && is_basic(&request)) {
                let Failure::Status { message, .. } = status_failure(response) else {
                    unreachable!("a status")
                };
                return Err(Failure::Unauthorized(format!("it does not take the login ({message})")));
            }
            renewals += 1;
            let challenges = challenges(&response);
            // Read to its end, so that the connection is kept.
            status_failure(response);
            self.renew(http, held.generation, &challenges, scopes, credential)?;
        }
    }

    fn renew(
        &self,
        http: &Http,
        seen: u64,
        challenges: &[Challenge],
        scopes: &[String],
        credential: Option<&Credential>,
    ) -> Result<(), Failure> {
        // Held while the token service is asked: all others would ask it for the same.
        let mut held = self.held();
        if held.generation != seen {
            return Ok(());
        }
        let stored;
        let credential = match credential {
            Some(given) => Some(given),
            None => {
                let found = self.credentials.find(&self.server, &self.path);
                stored = found.map_err(|e| Failure::Unauthorized(e.to_string()))?;
                stored.as_ref()
            }
        };
        let asker = Asker { scopes, credential, insecure: self.insecure };
        held.authorization = Some(token::authorization(http, challenges, &asker)?);
        held.generation += 1;
        Ok(())
    }

    /// Whether an address is this server's own, and reached as it is.
    fn is_own(&self, http: &Http, uri: &Uri) -> Result<bool, Failure> {
        let base = format!("{}://{}", uri.scheme_str().unwrap_or_default(), authority(uri));
        Ok(self.base(http)? == base)
    }

    pub(super) fn uri(&self, http: &Http, path: &str) -> Result<Uri, Failure> {
        let uri = format!("{}/v2/{}/{path}", self.base(http)?, self.path);
        uri.parse().map_err(|_| self.no_name())
    }

    fn no_name(&self) -> Failure {
        Failure::Nonsense(format!("{} is no server's name", self.server))
    }

    /// Servers that may do without TLS are asked with it first.
    fn base(&self, http: &Http) -> Result<String, Failure> {
        let host = asked_for(&self.server);
        let secure = format!("https://{host}");
        if !self.insecure {
            return Ok(secure);
        }
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = &*base {
            return Ok(base.clone());
        }
        let plain = format!("http://{host}");
        let answers = |base: &str| -> Result<(), Failure> {
            let uri = format!("{base}/v2/").parse().map_err(|_| self.no_name())?;
            http.send(&HttpRequest::get(uri), true).map(|(response, _)| {
                status_failure(response);
            })
        };
        let found = match answers(&secure) {
            Ok(()) => secure,
            Err(_) => answers(&plain).map(|()| plain)?,
        };
        Ok(base.insert(found).clone())
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_basic(request: &HttpRequest) -> bool {
    request.authorization.as_ref().is_some_and(|value| value.starts_with("Basic "))
}

fn challenges(response: &Response<Body>) -> Vec<Challenge> {
    let headers = response.headers().get_all(header::WWW_AUTHENTICATE);
    headers.iter().filter_map(|value| value.to_str().ok()).flat_map(challenge::parse).collect()
}

/// `HOST` of `HOST:PORT`, `[::1]:PORT`.
fn host_of(server: &str) -> &str {
    match server.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => server.split(':').next().unwrap_or_default(),
    }
}
