//! Programs that keep credentials: `docker-credential-NAME get|store|erase`, a line or JSON on stdin, JSON on stdout.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use skiff_sys::IgnoreError;

use super::{Credential, Secret};
use crate::error::{Error, Result};

/// The user's name that stands for "the secret is an identity token".
const TOKEN_USER: &str = "<token>";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    username: String,
    secret: String,
}

/// Asks for a server's credential; nothing if the helper has none.
pub(super) fn get(name: &str, server: &str) -> Result<Option<Credential>> {
    let output = ask(name, "get", server.as_bytes())?;
    if !output.status.success() {
        return if says_none(&output) { Ok(None) } else { Err(failed(name, "get", server, &output)) };
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .map_err(|e| bad(name, format!("its answer for {server} is not a credential: {e}")))?;
    let secret = Secret(answer.secret);
    Ok(Some(if answer.username == TOKEN_USER {
        Credential::IdentityToken(secret)
    } else {
        Credential::Basic { user: answer.username, password: secret }
    }))
}

/// Gives it a credential to keep.
pub(super) fn store(name: &str, server: &str, user: &str, password: &Secret) -> Result<()> {
    let entry = serde_json::json!({"ServerURL": server, "Username": user, "Secret": password.0});
    let output = ask(name, "store", entry.to_string().as_bytes())?;
    if output.status.success() { Ok(()) } else { Err(failed(name, "store", server, &output)) }
}

/// Lets it forget a credential; whether it had one.
pub(super) fn erase(name: &str, server: &str) -> Result<bool> {
    if get(name, server)?.is_none() {
        return Ok(false);
    }
    let output = ask(name, "erase", server.as_bytes())?;
    if output.status.success() { Ok(true) } else { Err(failed(name, "erase", server, &output)) }
}

fn ask(name: &str, action: &str, input: &[u8]) -> Result<Output> {
    // The name comes from a file: it must not lead to another directory.
    if name.contains('/') {
        return Err(bad(name, "its name holds a slash".into()));
    }
    let cannot = |e: std::io::Error| bad(name, format!("cannot run it: {e}"));
    let mut child = Command::new(format!("docker-credential-{name}"))
        .arg(action)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input).ignore_error("a helper that does not read says by its status what it wants");
    }
    child.wait_with_output().map_err(cannot)
}

/// The words that the protocol has for it.
fn says_none(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stdout);
    text.contains("credentials not found")
}

fn failed(name: &str, action: &str, server: &str, output: &Output) -> Error {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said: String = String::from_utf8_lossy(&said).trim().chars().take(200).collect();
    bad(name, format!("{action} for {server} failed ({}): {said}", output.status))
}

fn bad(name: &str, why: String) -> Error {
    Error::CredentialHelper { name: name.into(), why }
}
