//! A token service as registries trust one: signs JSON Web Tokens (ES256) with a key whose certificate the registry has.
//!
//! <https://distribution.github.io/distribution/spec/auth/jwt/>

use std::io::BufReader;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::json;

use super::server::{PASSWORD, USER};
use super::web::{Head, Listener, answer, read_exactly};

/// What it gives for the password of [`USER`] by the refresh-token way.
pub const IDENTITY_TOKEN: &str = "a-refresh-token";

#[derive(Default)]
struct State {
    given: u32,
    /// So many of the next ones have expired long ago.
    stale: u32,
    /// So many of the next requests fail.
    broken: u32,
}

pub struct TokenService {
    listener: Listener,
    state: Arc<Mutex<State>>,
    pub certificate: PathBuf,
}

struct Signer {
    key: EcdsaKeyPair,
    certificate: String,
}

impl TokenService {
    /// Keeps its key and certificate in `dir`. Anyone may pull from repositories that begin with `public/`.
    pub fn start(dir: &Path) -> TokenService {
        let (key, certificate) = make_certificate(dir, "token", &[]);
        let pem = std::fs::read_to_string(&certificate).expect("a certificate");
        let base64: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = Command::new("openssl")
            .args(["pkcs8", "-topk8", "-nocrypt", "-outform", "DER", "-in"])
            .arg(&key)
            .output()
            .expect("openssl");
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der.stdout, &SystemRandom::new());
        let signer = Signer { key: key.expect("a key"), certificate: base64 };
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let serve = move |connection| {
            serve(connection, &signer, &shared).ok();
        };
        TokenService { listener: Listener::start("127.0.0.1:0", serve), state, certificate }
    }

    pub fn realm(&self) -> String {
        format!("http://{}/token", self.listener.address)
    }

    /// The next tokens are useless.
    pub fn stale(&self, count: u32) {
        self.state.lock().expect("no panic").stale = count;
    }

    /// The next requests fail.
    pub fn broken(&self, count: u32) {
        self.state.lock().expect("no panic").broken = count;
    }

    /// How many tokens were given since the last call.
    pub fn given(&self) -> u32 {
        std::mem::take(&mut self.state.lock().expect("no panic").given)
    }
}

/// A key (PEM) and a certificate that signs itself, for these names.
pub fn make_certificate(dir: &Path, name: &str, alternatives: &[&str]) -> (PathBuf, PathBuf) {
    let (key, certificate) = (dir.join(format!("{name}.key")), dir.join(format!("{name}.crt")));
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]);
    openssl.args(["-subj", &format!("/CN={name}")]).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    if !alternatives.is_empty() {
        openssl.args(["-addext", &format!("subjectAltName={}", alternatives.join(","))]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    }
    let output = openssl.output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (key, certificate)
}

fn serve(connection: TcpStream, signer: &Signer, state: &Mutex<State>) -> std::io::Result<()> {
    let mut to = connection.try_clone()?;
    let mut from = BufReader::new(connection);
    while let Some(head) = Head::read(&mut from)? {
        let form = String::from_utf8_lossy(&read_exactly(&mut from, head.length())?).into_owned();
        let query = head.path().split_once('?').map_or("", |(_, query)| query).to_owned();
        let (status, body) = respond(&head, &format!("{query}&{form}"), signer, state);
        answer(&mut to, status, &[("content-type", "application/json")], body.as_bytes())?;
    }
    Ok(())
}

fn respond(head: &Head, query: &str, signer: &Signer, state: &Mutex<State>) -> (&'static str, String) {
    let mut state = state.lock().expect("no panic");
    if state.broken > 0 {
        state.broken -= 1;
        return ("503 Service Unavailable", String::new());
    }
    let password = format!("Basic {}", BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}")));
    let is_user = match (head.get("authorization"), parameter(query, "refresh_token")) {
        (Some(authorization), _) if authorization == password => true,
        (_, Some(token)) if token == IDENTITY_TOKEN => true,
        (None, None) => false,
        _ => return ("401 Unauthorized", json!({"details": "incorrect username or password"}).to_string()),
    };
    state.given += 1;
    let is_stale = state.stale > 0;
    state.stale = state.stale.saturating_sub(1);
    let scope = parameter(query, "scope").unwrap_or_default();
    let repository = scope.split(':').nth(1).unwrap_or_default();
    let access = match is_user || repository.starts_with("public/") {
        true => vec![json!({"type": "repository", "name": repository, "actions": ["pull"]})],
        false => vec![],
    };
    ("200 OK", json!({"token": signer.sign(&access, is_stale), "expires_in": 300}).to_string())
}

impl Signer {
    fn sign(&self, access: &[serde_json::Value], is_stale: bool) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let issued = if is_stale { now - 7200 } else { now };
        let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [self.certificate]});
        let claims = json!({
            "iss": "tests", "sub": USER, "aud": "tests", "jti": format!("{now}"),
            "iat": issued, "nbf": issued - 10, "exp": issued + 300, "access": access
        });
        let part = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&header), part(&claims));
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes()).expect("a signature");
        format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.replace("%3A", ":").replace("%2F", "/"))
}
