//! The parsers of what registries and configuration files say, for fuzzing: each takes any bytes, tells whether they were
//! taken, and panics where what must hold of what was taken does not.

use skiff_spec::platform::Platform;
use skiff_spec::reference::{ImageReference, Named};

use crate::auth::{AuthFile, Credentials};
use crate::manifest::{self, Document, ImageConfig, MAX_LAYERS};
use crate::policy::{Policies, Policy, PublicKey, read_payload};
use crate::registries_conf::RegistriesConf;
use crate::registry::{challenge, explanation, parse_token};

/// What a user may write for an image.
pub fn reference(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(named) = text.parse::<Named>() {
        assert_eq!(named.to_string().parse(), Ok(named), "shown, it means something else");
    }
    let Ok(reference) = text.parse::<ImageReference>() else {
        return false;
    };
    assert_eq!(reference.to_string().parse(), Ok(reference), "shown, it means something else");
    true
}

/// A manifest, an index or a configuration.
pub fn document(bytes: &[u8]) -> bool {
    let platform = Platform::linux("amd64", None);
    match manifest::parse("fuzzed", bytes, None) {
        Ok(Document::Manifest(manifest)) => {
            assert!(manifest.layers.len() <= MAX_LAYERS);
            manifest.bytes();
            true
        }
        Ok(Document::Index(index)) => {
            if let Ok(chosen) = index.choose("fuzzed", &platform) {
                assert!(index.entries.iter().any(|entry| entry.manifest == *chosen));
            }
            true
        }
        Err(_) => ImageConfig::parse("fuzzed", bytes).is_ok(),
    }
}

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
        Credentials::of(vec![file]).find("a.example", "b/c").ok();
    }
    true
}

/// `policy.json`.
pub fn policy(bytes: &[u8]) -> bool {
    PublicKey::from_pem(bytes).ok();
    // A key's path would be opened.
    if String::from_utf8_lossy(bytes).contains("Path") {
        return false;
    }
    let Ok(policy) = Policy::parse("fuzzed", bytes) else {
        return false;
    };
    Policies::of(vec![policy]).admit_file("oci", std::path::Path::new("/a/b")).ok();
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
        conf.candidates(&short).ok();
    }
    true
}
