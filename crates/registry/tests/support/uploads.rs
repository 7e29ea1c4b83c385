//! A registry that takes uploads, in memory, and lets them go wrong as told. Unlike Debian's it goes on with an upload that was cut off.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};

use skiff_oci::hash::sha256;

use super::web::{Head, Listener, answer};

/// What goes wrong with one request that is to change something.
#[derive(Debug, Clone)]
pub enum UploadFault {
    /// Nothing, with this one.
    Nothing,
    /// The connection ends after so many bytes of the content, which are kept.
    Cut(usize),
    /// The same, and nothing is known of the upload any more.
    Forget(usize),
    /// All is taken, and the connection ends without an answer.
    Mute,
    /// Another status, with a header.
    Status(&'static str, &'static str, String),
    /// The answer names another digest.
    Lie,
}

#[derive(Default)]
struct State {
    blobs: HashMap<String, Vec<u8>>,
    /// By repository and tag.
    manifests: HashMap<String, Vec<u8>>,
    /// By their paths.
    uploads: HashMap<String, Vec<u8>>,
    faults: VecDeque<UploadFault>,
    /// Whether a password is wanted.
    closed: bool,
    /// Requests: method, path, and whether with a password or token.
    seen: Vec<(String, String, bool)>,
    /// Bytes of contents that came.
    received: usize,
}

pub struct Uploads {
    pub server: String,
    state: Arc<Mutex<State>>,
    _listener: Listener,
}

impl Uploads {
    pub fn start() -> Uploads {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        // What goes wrong here is what the test is about.
        let listener = Listener::start("127.0.0.1:0", move |connection| {
            serve(connection, &shared).ok();
        });
        Uploads { server: listener.address.to_string(), state, _listener: listener }
    }

    pub fn faults(&self, faults: &[UploadFault]) {
        lock(&self.state).faults.extend(faults.iter().cloned());
    }

    pub fn close(&self) {
        lock(&self.state).closed = true;
    }

    pub fn blob(&self, digest: &str) -> Option<Vec<u8>> {
        lock(&self.state).blobs.get(digest).cloned()
    }

    pub fn manifest(&self, path: &str) -> Option<Vec<u8>> {
        lock(&self.state).manifests.get(path).cloned()
    }

    /// What was asked, and how many bytes came, since the last call.
    pub fn seen(&self) -> (Vec<(String, String, bool)>, usize) {
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.seen), std::mem::take(&mut state.received))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no panic in the registry")
}

fn serve(connection: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let mut peek = [0];
    // A client that tries TLS first: this is not TLS.
    if connection.peek(&mut peek)? == 1 && peek[0] == 0x16 {
        return Ok(());
    }
    let mut to = connection.try_clone()?;
    let mut from = BufReader::new(connection);
    while let Some(head) = Head::read(&mut from)? {
        let method = head.line.split(' ').next().unwrap_or_default().to_owned();
        let has_login = head.get("authorization").is_some();
        let fault = {
            let mut state = lock(state);
            state.seen.push((method.clone(), head.path().into(), has_login));
            if state.closed && !has_login {
                drop(state);
                answer(&mut to, "401 Unauthorized", &[("www-authenticate", "Basic realm=x")], b"{}")?;
                continue;
            }
            let changes = ["POST", "PUT", "PATCH"].contains(&method.as_str());
            if changes { state.faults.pop_front() } else { None }
        };
        if head.get("expect").is_some() {
            to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let limit = match fault {
            Some(UploadFault::Cut(after) | UploadFault::Forget(after)) => after.min(head.length()),
            _ => head.length(),
        };
        let mut content = vec![];
        from.by_ref().take(limit as u64).read_to_end(&mut content)?;
        if !respond(state, (&method, head.path()), content, fault, &mut to)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the connection goes on.
fn respond(
    state: &Mutex<State>,
    (method, whole): (&str, &str),
    content: Vec<u8>,
    fault: Option<UploadFault>,
    to: &mut TcpStream,
) -> io::Result<bool> {
    let mut state = lock(state);
    state.received += content.len();
    let (path, query) = whole.split_once('?').unwrap_or((whole, ""));
    let last = path.rsplit('/').next().unwrap_or_default();
    match &fault {
        Some(UploadFault::Status(status, name, value)) => {
            return answer(to, status, &[(name, value)], b"{}").map(|()| true);
        }
        Some(UploadFault::Cut(_)) => {
            state.uploads.entry(path.into()).or_default().extend(content);
            return Ok(false);
        }
        Some(UploadFault::Forget(_)) => {
            state.uploads.remove(path);
            return Ok(false);
        }
        _ => {}
    }
    let is_there = |there: bool| if there { "200 OK" } else { "404 Not Found" };
    let range = |length: usize| format!("0-{}", length.saturating_sub(1));
    match method {
        "HEAD" if path.contains("/blobs/") => answer(to, is_there(state.blobs.contains_key(last)), &[], b""),
        "HEAD" => {
            let digest = state.manifests.get(path).map(|manifest| sha256(manifest).to_string());
            let digest = digest.unwrap_or_default();
            answer(to, is_there(!digest.is_empty()), &[("docker-content-digest", &digest)], b"")
        }
        "POST" => {
            let mounted = query.strip_prefix("mount=").and_then(|query| query.split('&').next());
            if mounted.is_some_and(|digest| state.blobs.contains_key(digest)) {
                return answer(to, "201 Created", &[("location", path)], b"").map(|()| true);
            }
            let location = format!("{path}{}", state.seen.len());
            state.uploads.insert(location.clone(), vec![]);
            answer(to, "202 Accepted", &[("location", &location), ("range", "0-0")], b"")
        }
        "GET" if path.contains("/uploads/") => match state.uploads.get(path) {
            Some(there) => {
                answer(to, "204 No Content", &[("location", path), ("range", &range(there.len()))], b"")
            }
            None => answer(to, "404 Not Found", &[], b"{}"),
        },
        "PATCH" => {
            let upload = state.uploads.entry(path.into()).or_default();
            upload.extend(content);
            let range = range(upload.len());
            answer(to, "202 Accepted", &[("location", path), ("range", &range)], b"")
        }
        "PUT" if path.contains("/uploads/") => {
            let mut upload = state.uploads.remove(path).unwrap_or_default();
            upload.extend(content);
            let digest = sha256(&upload).to_string();
            if query != format!("digest={digest}") {
                let why =
                    br#"{"errors":[{"code":"DIGEST_INVALID","message":"provided digest did not match"}]}"#;
                return answer(to, "400 Bad Request", &[], why).map(|()| true);
            }
            let told = if matches!(fault, Some(UploadFault::Lie)) {
                sha256(b"").to_string()
            } else {
                digest.clone()
            };
            state.blobs.insert(digest, upload);
            if matches!(fault, Some(UploadFault::Mute)) {
                return Ok(false);
            }
            answer(to, "201 Created", &[("docker-content-digest", &told)], b"")
        }
        "PUT" => {
            let digest = sha256(&content).to_string();
            state.manifests.insert(path.into(), content);
            answer(to, "201 Created", &[("docker-content-digest", &digest)], b"")
        }
        _ => answer(to, "200 OK", &[], b"{}"),
    }
    .map(|()| true)
}
