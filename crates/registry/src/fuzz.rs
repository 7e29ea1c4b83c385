//! The parsers of what registries and configuration files say, for fuzzing: each takes any bytes, tells whether they were taken, and panics
//! where what must hold of what was taken does not.

use skiff_oci::reference::{ImageReference, Named};
use skiff_sys::IgnoreError;

use crate::auth::{AuthFile, Credentials};
use crate::challenge;
use crate::http::explanation;
use crate::policy::{Policies, Policy, PublicKey, read_payload};
use crate::registries_conf::RegistriesConf;
use crate::token::parse_token;

/// `WWW-Authenticate`, a token service's answer, an error's explanation, a signature's payload.
pub fn answer(bytes: &[u8]) -> bool {
    let challenges = challenge::parse(&String::from_utf8_lossy(bytes));
    assert!(challenges.iter().all(|c| c.scheme == c.scheme.to_ascii_lowercase()));
    let token = parse_token(bytes);
    assert!(token.iter().all(|token| !token.contains(['\r', '\n'])), "a token that ends its header");
    assert!(explanation(bytes).chars().count() <= 200);
    !challenges.is_empty() || token.is_some() || read_payload(bytes).is_ok()
}

/// `auth.json`.
pub fn auth(bytes: &[u8]) -> bool {
    let Ok(file) = AuthFile::parse("fuzzed", bytes) else {
        return false;
    };
    // Where the file names a credential helper, that would be run.
    if !String::from_utf8_lossy(bytes).contains("cred") {
        Credentials::of(vec![file]).find("a.example", "b/c").ignore_error("only a panic counts");
    }
    true
}

/// `policy.json`.
pub fn policy(bytes: &[u8]) -> bool {
    PublicKey::from_pem(bytes).ignore_error("only a panic counts");
    // A key's path would be opened.
    if String::from_utf8_lossy(bytes).contains("Path") {
        return false;
    }
    let Ok(policy) = Policy::parse("fuzzed", bytes) else {
        return false;
    };
    Policies::of(vec![policy])
        .admit_file("oci", Some(std::path::Path::new("/a/b")))
        .ignore_error("only a panic counts");
    true
}

/// `registries.conf`.
pub fn registries(bytes: &[u8]) -> bool {
    let mut conf = RegistriesConf::default();
    if conf.add("fuzzed", &String::from_utf8_lossy(bytes)).is_err() {
        return false;
    }
    for name in ["a.example/b/c:1", "docker.io/library/debian", "localhost:5000/x"] {
        let Ok(name) = name.parse::<Named>() else { continue };
        if let Ok(endpoints) = conf.endpoints(&name) {
            assert!(!endpoints.is_empty(), "an image that is nowhere");
        }
    }
    if let Ok(ImageReference::Short(short)) = "debian:12".parse() {
        conf.candidates(&short).ignore_error("only a panic counts");
    }
    true
}
