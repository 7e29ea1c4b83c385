//! One HTTP request: over kept connections, through the proxy, with a limit to every wait, redirects followed with care.

use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use skiff_sys::IgnoreError;
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use ureq::{Agent, Body, SendBody};

use super::ClientSettings;
use super::failure::Failure;
use super::retry::retry_after;
use super::upload::{Unreadable, Upload};
use super::{proxy, tls};

/// More redirects are a loop.
const MAX_REDIRECTS: usize = 8;
/// How much of an error's explanation is read, in bytes.
const MAX_EXPLANATION: u64 = 16 << 10;
/// Big enough that a blob costs few system calls.
const INPUT_BUFFER: usize = 256 << 10;

/// Above this many bytes a server is asked first whether it wants them: one that refuses closes the connection, and with it goes the reason.
const MAX_UNASKED: u64 = 1 << 20;

/// What to request.
#[derive(Clone)]
pub(super) struct HttpRequest<'a> {
    pub method: Method,
    pub uri: Uri,
    /// Sent to the first server only, never to where it redirects.
    pub authorization: Option<String>,
    pub accept: Option<&'static str>,
    /// First and last byte.
    pub range: Option<(u64, u64)>,
    /// What is sent along.
    pub content: RequestBody<'a>,
}

/// What a request brings.
#[derive(Clone)]
pub(super) enum RequestBody<'a> {
    /// Nothing, as a request that only asks.
    Nothing,
    /// A form.
    Form(String),
    /// Some bytes of a media type; none of them are content, too.
    Bytes(&'static str, &'a [u8]),
    /// A blob from this byte on; whether a header is to say from which.
    Blob(&'a Upload<'a>, u64, bool),
}

impl<'a> HttpRequest<'a> {
    pub(super) fn get(uri: Uri) -> HttpRequest<'a> {
        let (method, content) = (Method::GET, RequestBody::Nothing);
        HttpRequest { method, uri, authorization: None, accept: None, range: None, content }
    }
}

/// The connections of one pull.
pub(super) struct Http {
    settings: ClientSettings,
    agents: Mutex<HashMap<(String, bool), Agent>>,
    closed: AtomicBool,
}

impl Http {
    pub(super) fn new(settings: ClientSettings) -> Http {
        Http { settings, agents: Mutex::default(), closed: AtomicBool::new(false) }
    }

    pub(super) fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    /// Breaks all connections, those in use too: nothing waits for a server any more.
    pub(super) fn shutdown(&self) {
        let mut agents = self.agents();
        self.closed.store(true, Ordering::Relaxed);
        for (_, agent) in agents.drain() {
            agent.shutdown();
        }
    }

    /// Asks, and follows redirects. Gives the answer, whatever its status, and where it came from.
    pub(super) fn send(
        &self,
        request: &HttpRequest<'_>,
        insecure: bool,
    ) -> Result<(Response<Body>, Uri), Failure> {
        let mut uri = request.uri.clone();
        for _ in 0..=MAX_REDIRECTS {
            let same_server =
                authority(&uri) == authority(&request.uri) && uri.scheme() == request.uri.scheme();
            let response = self.send_once(request, &uri, same_server, insecure)?;
            let location = match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => response.headers().get(header::LOCATION),
                _ => return Ok((response, uri)),
            };
            let location = location
                .and_then(|l| l.to_str().ok())
                .ok_or_else(|| Failure::Nonsense(format!("{} redirects to nowhere", authority(&uri))))?;
            uri = lead(&uri, location, insecure)?;
        }
        Err(Failure::Nonsense(format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn send_once(
        &self,
        request: &HttpRequest<'_>,
        uri: &Uri,
        same_server: bool,
        insecure: bool,
    ) -> Result<Response<Body>, Failure> {
        let mut builder = Request::builder().method(request.method.clone()).uri(uri.clone());
        if let Some(authorization) = request.authorization.as_ref().filter(|_| same_server) {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        if let Some(accept) = request.accept {
            builder = builder.header(header::ACCEPT, accept);
        }
        if let Some((first, last)) = request.range {
            builder = builder.header(header::RANGE, format!("bytes={first}-{last}"));
        }
        let agent = self.agent(uri, insecure)?;
        let bad = |e: ureq::http::Error| Failure::Nonsense(format!("a request that cannot be sent: {e}"));
        let answer = match &request.content {
            RequestBody::Nothing => agent.run(builder.body(()).map_err(bad)?),
            RequestBody::Form(form) => {
                let builder = builder.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
                agent.run(builder.body(form.as_str()).map_err(bad)?)
            }
            RequestBody::Bytes(media_type, bytes) => {
                let builder = builder.header(header::CONTENT_TYPE, *media_type);
                agent.run(builder.body(*bytes).map_err(bad)?)
            }
            RequestBody::Blob(blob, begin, with_range) => {
                let mut builder = builder
                    .header(header::CONTENT_TYPE, "application/octet-stream")
                    .header(header::CONTENT_LENGTH, blob.size - begin);
                if *with_range {
                    builder = builder.header(header::CONTENT_RANGE, format!("{begin}-{}", blob.size - 1));
                }
                if blob.size - begin > MAX_UNASKED {
                    builder = builder.header(header::EXPECT, "100-continue");
                }
                let mut reader = blob.reader(*begin)?;
                agent.run(builder.body(SendBody::from_reader(&mut reader)).map_err(bad)?)
            }
        };
        answer.map_err(|e| connection_failure(e, uri, self.settings.resolve))
    }

    fn agent(&self, uri: &Uri, insecure: bool) -> Result<Agent, Failure> {
        let key = (format!("{}://{}", uri.scheme_str().unwrap_or_default(), authority(uri)), insecure);
        let mut agents = self.agents();
        if self.closed.load(Ordering::Relaxed) {
            return Err(Failure::Cancelled);
        }
        if let Some(agent) = agents.get(&key) {
            return Ok(agent.clone());
        }
        let agent = self.new_agent(uri, insecure)?;
        agents.insert(key, agent.clone());
        Ok(agent)
    }

    fn new_agent(&self, uri: &Uri, insecure: bool) -> Result<Agent, Failure> {
        let ClientSettings { resolve, connect, stall, parallel, certificates, certs_d, agent, .. } =
            &self.settings;
        let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let through = proxy::proxy_for(scheme, host, port, |name| std::env::var(name).ok());
        let through = through.map(|proxy| {
            let bad = |_| Failure::Nonsense(format!("the proxy {proxy:?} in the environment is no URL"));
            ureq::Proxy::new(&proxy).map_err(bad)
        });
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(*resolve))
            .timeout_connect(Some(*connect))
            .timeout_per_read(Some(*stall))
            .timeout_per_write(Some(*stall))
            .input_buffer_size(INPUT_BUFFER)
            .max_idle_connections(4 * parallel)
            .max_idle_connections_per_host(*parallel)
            .user_agent(agent)
            .proxy(through.transpose()?);
        if scheme == "https" {
            config = config.tls_config(tls::config(authority(uri), certificates, certs_d, insecure)?);
        }
        Ok(config.build().into())
    }

    fn agents(&self) -> MutexGuard<'_, HashMap<(String, bool), Agent>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the standard library's message begins where a name leads to no address; the error has no kind of its own.
const LOOKUP: &str = "failed to lookup address information";

/// Host and port.
pub(super) fn authority(uri: &Uri) -> &str {
    uri.authority().map_or("", |authority| authority.as_str())
}

fn connection_failure(error: ureq::Error, uri: &Uri, resolve: Duration) -> Failure {
    let server = authority(uri);
    match error {
        ureq::Error::Rustls(
            e @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented),
        ) => Failure::Certificate(format!("the certificate of {server} is not to be trusted: {e}")),
        ureq::Error::Io(e) => io_failure(e, server),
        ureq::Error::Timeout(ureq::Timeout::Resolve) => {
            let limit = resolve.as_secs_f32();
            Failure::Unanswered(format!("the name service has not said within {limit} s where {server} is"))
        }
        ureq::Error::Timeout(reason) => {
            Failure::Connection(format!("no answer from {server} in time ({reason})"))
        }
        ureq::Error::HostNotFound => Failure::Unresolved(format!("the host {server} is not known")),
        ureq::Error::ConnectProxyFailed(why) => {
            Failure::Connection(format!("the proxy refuses {server}: {why}"))
        }
        other => Failure::Connection(format!("{server}: {other}")),
    }
}

/// What went wrong while an answer was read. TLS and time limits hide in it.
pub(super) fn io_failure(error: std::io::Error, server: &str) -> Failure {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    if let Some(e @ rustls::Error::InvalidCertificate(_)) = inner {
        return Failure::Certificate(format!("the certificate of {server} is not to be trusted: {e}"));
    }
    if error.get_ref().is_some_and(|e| e.is::<Unreadable>()) {
        return Failure::Unreadable(error.to_string());
    }
    match error.kind() {
        _ if error.to_string().starts_with(LOOKUP) => Failure::Unresolved(format!("{server}: {error}")),
        std::io::ErrorKind::TimedOut => Failure::Connection(format!("{server} has gone silent")),
        _ => Failure::Connection(format!("{server}: {error}")),
    }
}

/// A small body, all of it.
pub(super) fn read_body(response: Response<Body>, limit: u64, server: &str) -> Result<Vec<u8>, Failure> {
    let expected = response.body().content_length();
    let mut bytes = vec![];
    let mut reader = response.into_body().into_reader().take(limit + 1);
    reader.read_to_end(&mut bytes).map_err(|e| io_failure(e, server))?;
    let got = bytes.len() as u64;
    match expected {
        _ if got > limit => Err(Failure::Nonsense(format!("the answer has more than {limit} bytes"))),
        Some(expected) if got < expected => Err(Failure::Short { got, expected }),
        _ => Ok(bytes),
    }
}

/// The failure that a status means, with the server's explanation.
pub(super) fn status_failure(response: Response<Body>) -> Failure {
    let status = response.status();
    let retry_after = header_text(response.headers(), header::RETRY_AFTER)
        .and_then(|value| retry_after(value, SystemTime::now()));
    let mut text = vec![];
    response
        .into_body()
        .into_reader()
        .take(MAX_EXPLANATION)
        .read_to_end(&mut text)
        .ignore_error("an explanation that breaks off explains less; that is all");
    Failure::Status { status: status.as_u16(), message: explanation(&text), retry_after }
}

pub(super) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Registries explain in JSON: `{"errors": [{"code": ..., "message": ...}]}`; token services: `{"details": ...}`.
pub fn explanation(text: &[u8]) -> String {
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(text) else {
        return String::new();
    };
    let message =
        [&json["errors"][0]["message"], &json["errors"][0]["code"], &json["details"], &json["message"]]
            .into_iter()
            .find_map(|value| value.as_str().filter(|text| !text.is_empty()))
            .unwrap_or_default();
    message.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// Where a server sends who asks it, if that is not from TLS to where all can read what is sent.
pub(super) fn lead(from: &Uri, location: &str, insecure: bool) -> Result<Uri, Failure> {
    let next = join(from, location)?;
    if from.scheme_str() == Some("https") && next.scheme_str() != Some("https") && !insecure {
        return Err(Failure::Certificate(format!("it redirects from HTTPS to {next}")));
    }
    Ok(next)
}

/// Where a redirect leads (RFC 3986, 5.2, without `..`: what a server writes is sent back as it is).
pub(super) fn join(base: &Uri, location: &str) -> Result<Uri, Failure> {
    let (scheme, server) = (base.scheme_str().unwrap_or("https"), authority(base));
    let full = if location.starts_with("http://") || location.starts_with("https://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{server}{location}")
    } else {
        let path = base.path();
        format!("{scheme}://{server}{}{location}", &path[..=path.rfind('/').unwrap_or(0)])
    };
    let uri: Uri = full.parse().map_err(|_| Failure::Nonsense(format!("redirect to {location:?}")))?;
    match uri.host() {
        Some(host) if !host.is_empty() => Ok(uri),
        _ => Err(Failure::Nonsense(format!("redirect to {location:?}"))),
    }
}

/// Whether it is a status that has what was asked for.
pub(super) fn is_good(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 206)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        let base: Uri = "https://a.example:5000/v2/x/blobs/y?q".parse().expect("a URI");
        for (location, expected) in [
            ("https://b.example/z?sig=1", Some("https://b.example/z?sig=1")),
            ("//b.example/z", Some("https://b.example/z")),
            ("/z", Some("https://a.example:5000/z")),
            ("z", Some("https://a.example:5000/v2/x/blobs/z")),
            ("https:///z", None),
            ("http://", None),
            ("/a b", None),
        ] {
            assert_eq!(join(&base, location).ok().map(|u| u.to_string()).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn explanations_are_short_and_plain() {
        let text = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest \u001b[31munknown"}]}"#;
        assert_eq!(explanation(text), "manifest [31munknown");
        assert_eq!(
            explanation(br#"{"details":"incorrect username or password"}"#),
            "incorrect username or password"
        );
        assert_eq!(explanation(b"<html>"), "");
    }
}
