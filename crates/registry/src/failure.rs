//! Why a request to a registry failed, and whether asking again may help.

use std::time::Duration;

use skiff_oci::reference::Named;

/// The reason for a failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server answered, but not with what was asked for.
    #[error("{status} {}{}", phrase(*.status), detail(.message))]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server said about it.
        message: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// The credentials are missing or not taken.
    #[error("{0}")]
    Unauthorized(String),
    /// No connection came about, or it broke: refused, reset, silent.
    #[error("{0}")]
    Connection(String),
    /// The host's name led to no address.
    #[error("{0}")]
    Unresolved(String),
    /// The name service did not say in time where the host is.
    #[error("{0}")]
    Unanswered(String),
    /// The answer ended before it was complete.
    #[error("the answer ended after {got} of {expected} bytes")]
    Short {
        /// Bytes that came.
        got: u64,
        /// Bytes announced.
        expected: u64,
    },
    /// The bytes are others than asked for.
    #[error("the bytes have the digest {got}, not the one asked for")]
    WrongDigest {
        /// What came.
        got: String,
    },
    /// The answer makes no sense.
    #[error("{0}")]
    Nonsense(String),
    /// The server's certificate is not trusted.
    #[error("{0}")]
    Certificate(String),
    /// What is to be sent cannot be read here.
    #[error("{0}")]
    Unreadable(String),
    /// The pull was given up.
    #[error("it was given up")]
    Cancelled,
}

impl Failure {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Failure::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=504 | 509 | 520..=530),
            Failure::Connection(_)
            | Failure::Unresolved(_)
            | Failure::Unanswered(_)
            | Failure::Short { .. }
            | Failure::WrongDigest { .. } => true,
            Failure::Unauthorized(_)
            | Failure::Nonsense(_)
            | Failure::Certificate(_)
            | Failure::Unreadable(_)
            | Failure::Cancelled => false,
        }
    }

    /// Whether somebody who logs in to the server may get what was refused.
    pub fn may_need_login(&self) -> bool {
        matches!(self, Failure::Unauthorized(_) | Failure::Status { status: 401 | 403 | 429, .. })
    }

    /// Whether the object is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Failure::Status { status: 404 | 410, .. })
    }

    /// Whether the server, or who gives its tokens, would not do it.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Failure::Unauthorized(_) | Failure::Status { status: 400..=499, .. })
    }

    /// What the user can do about it, as one sentence without a full stop.
    pub(super) fn hint(&self, server: &str) -> Option<String> {
        match self {
            Failure::Unauthorized(_) | Failure::Status { status: 401 | 403, .. } => {
                Some("if the image exists and is private, log in to the server".into())
            }
            Failure::Status { status: 404, .. } => {
                Some("look at the spelling of the name and the tag".into())
            }
            Failure::Status { status: 429, .. } => Some(
                "the server limits how often it may be asked; wait, or log in to it for a higher limit"
                    .into(),
            ),
            Failure::Status { status: 500.., .. } => Some("the server has a problem; try again later".into()),
            Failure::Certificate(_) => Some(format!(
                "put the certificate of the server's authority into /etc/containers/certs.d/{server}/ca.crt, \
                 or set insecure = true for it in registries.conf"
            )),
            Failure::Connection(_) | Failure::Short { .. } => Some(
                "look at the server's name, the network and the proxy (HTTPS_PROXY, NO_PROXY); \
                 what was fetched is kept, and the same command goes on from there"
                    .into(),
            ),
            Failure::Unresolved(_) => Some(
                "look at the server's name and at the name service (/etc/resolv.conf); an image that is here runs without it"
                    .into(),
            ),
            Failure::Unanswered(_) => Some(
                "look at the name service (/etc/resolv.conf), one of whose servers may be down; `skiff pull IMAGE` waits for it up to 20 s"
                    .into(),
            ),
            Failure::WrongDigest { .. } => Some(
                "the server or something on the way damages what it gives out; tell its administrator".into(),
            ),
            Failure::Status { .. } | Failure::Nonsense(_) | Failure::Unreadable(_) | Failure::Cancelled => None,
        }
    }

    /// The same for who pushes.
    fn push_hint(&self, server: &str) -> Option<String> {
        let hint = match self {
            Failure::Unauthorized(_) | Failure::Status { status: 401 | 403, .. } => {
                "log in to the server as somebody who may push there"
            }
            Failure::Status { status: 404, .. } => {
                "look at the spelling of the name; some registries want a repository to be made before it is pushed to"
            }
            Failure::Status { status: 405, .. } => {
                "the registry takes no images: it is read-only, or a cache of another; push to another one"
            }
            Failure::Status { status: 400, .. } => "the registry does not take what came; push it again",
            Failure::Status { status: 413, .. } => {
                "the registry, or a proxy before it, takes no request of this size; ask its administrator"
            }
            Failure::Status { status: 507, .. } => "the registry has no space; ask its administrator",
            Failure::Connection(_) | Failure::Short { .. } => {
                "look at the server's name, the network and the proxy (HTTPS_PROXY, NO_PROXY); layers that are there are not sent again"
            }
            _ => return self.hint(server),
        };
        Some(hint.into())
    }
}

fn phrase(status: u16) -> &'static str {
    ureq::http::StatusCode::from_u16(status)
        .ok()
        .and_then(|s| s.canonical_reason())
        .unwrap_or("unknown status")
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// What a failed request was for; what went wrong; how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("registry {server}: cannot {} {object}: {failure}{}", if *.is_push { "push" } else { "get" }, after(*.tries))]
pub struct RegistryError {
    /// The server, as the user names it.
    pub server: String,
    /// What was asked for.
    pub object: String,
    /// How often it was tried in vain.
    pub tries: u32,
    /// The last failure.
    pub failure: Failure,
    /// Whether it was to be sent there.
    pub is_push: bool,
    pub(super) hint: Option<String>,
}

fn after(tries: u32) -> String {
    if tries > 1 { format!(" (tried {tries} times)") } else { String::new() }
}

impl RegistryError {
    pub(super) fn new(server: &str, object: impl Into<String>, tries: u32, failure: Failure) -> Self {
        let hint = failure.hint(server);
        RegistryError { server: server.into(), object: object.into(), tries, failure, is_push: false, hint }
    }

    /// The same of who pushes.
    pub(super) fn of_push(self) -> Self {
        let hint = self.failure.push_hint(&self.server);
        Self { is_push: true, hint, ..self }
    }

    /// The same of one of the registries in which a name without a server is searched.
    pub(super) fn while_searching(self, candidate: &Named) -> Self {
        let before = self.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        let hint = format!(
            "{} is searched before others for a name without a server (unqualified-search-registries in registries.conf), \
             and no other is asked in its place: to mean one, name it, as in {candidate}{before}",
            self.server
        );
        Self { hint: Some(hint), ..self }
    }

    /// How to mend it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}
