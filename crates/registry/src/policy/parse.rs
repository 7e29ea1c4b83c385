//! From JSON to a policy. Strict: a misspelt key must not become an open door.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use skiff_oci::reference::Named;

use super::identity::IdentityMatch;
use super::signature::PublicKey;
use super::{Policy, Requirement};

/// No policy is longer, in bytes.
const MAX_FILE: usize = 4 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Vec<Unique<Value>>,
    #[serde(default)]
    transports: Unique<Unique<Vec<Unique<Value>>>>,
}

/// An object none of whose keys comes twice.
struct Unique<T>(BTreeMap<String, T>);

impl<T> Default for Unique<T> {
    fn default() -> Self {
        Unique(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
            type Value = Unique<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique<T>, A::Error> {
                let mut known = BTreeMap::new();
                while let Some((key, value)) = entries.next_entry::<String, T>()? {
                    if known.contains_key(&key) {
                        return Err(A::Error::custom(format!("{key:?} comes twice")));
                    }
                    known.insert(key, value);
                }
                Ok(Unique(known))
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}

/// Gives what is in a file, or why it cannot be read.
type Read<'a> = &'a mut dyn FnMut(&str) -> Result<Vec<u8>, String>;

pub(super) fn policy(file: &str, bytes: &[u8], read: Read<'_>) -> Result<Policy, String> {
    if bytes.len() > MAX_FILE {
        return Err(format!("it is longer than {MAX_FILE} bytes"));
    }
    let parsed: File = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let mut transports = BTreeMap::new();
    for (transport, scopes) in parsed.transports.0 {
        let mut known = BTreeMap::new();
        for (scope, list) in scopes.0 {
            let requirements = requirements(list, &format!("{transport} {scope:?}"), read)?;
            known.insert(scope, requirements);
        }
        transports.insert(transport, known);
    }
    Ok(Policy { file: file.into(), default: requirements(parsed.default, "default", read)?, transports })
}

fn requirements(list: Vec<Unique<Value>>, place: &str, read: Read<'_>) -> Result<Vec<Requirement>, String> {
    if list.is_empty() {
        return Err(format!("the requirements of {place} are an empty list"));
    }
    Ok(list.into_iter().map(|object| requirement(object.0.into_iter().collect(), read)).collect())
}

/// What is not understood becomes a requirement that nothing meets, so that images of other scopes are not concerned.
fn requirement(object: Map<String, Value>, read: Read<'_>) -> Requirement {
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "insecureAcceptAnything" if object.len() == 1 => Requirement::Accept,
        "reject" if object.len() == 1 => Requirement::Reject,
        "sigstoreSigned" => signed(Value::Object(object), read).unwrap_or_else(Requirement::Unknown),
        kind => Requirement::Unknown(format!("the requirement {kind:?}")),
    }
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Signed {
    #[serde(rename = "type")]
    _kind: String,
    key_path: Option<String>,
    key_paths: Option<Vec<String>>,
    key_data: Option<String>,
    key_datas: Option<Vec<String>>,
    signed_identity: Option<Value>,
}

fn signed(object: Value, read: Read<'_>) -> Result<Requirement, String> {
    let signed: Signed =
        serde_json::from_value(object).map_err(|e| format!("the requirement sigstoreSigned ({e})"))?;
    let Signed { key_path, key_paths, key_data, key_datas, signed_identity, .. } = signed;
    let (paths, datas) = match (key_path, key_paths, key_data, key_datas) {
        (Some(path), None, None, None) => (vec![path], vec![]),
        (None, Some(paths), None, None) => (paths, vec![]),
        (None, None, Some(data), None) => (vec![], vec![data]),
        (None, None, None, Some(datas)) => (vec![], datas),
        _ => return Err("sigstoreSigned without exactly one of keyPath, keyPaths, keyData, keyDatas".into()),
    };
    let mut keys = vec![];
    for path in paths {
        let pem = read(&path).map_err(|e| format!("the key {path} ({e})"))?;
        keys.push(PublicKey::from_pem(&pem).map_err(|why| format!("the key {path} ({why})"))?);
    }
    for data in datas {
        let pem = BASE64_STANDARD.decode(data).map_err(|_| "a keyData that is no base64".to_owned())?;
        keys.push(PublicKey::from_pem(&pem).map_err(|why| format!("a keyData ({why})"))?);
    }
    if keys.is_empty() {
        return Err("sigstoreSigned without a key".into());
    }
    Ok(Requirement::Signed {
        keys,
        identity: signed_identity.map_or(Ok(IdentityMatch::RepoDigestOrExact), identity)?,
    })
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum RawIdentity {
    MatchExact {},
    MatchRepoDigestOrExact {},
    MatchRepository {},
    ExactReference { docker_reference: String },
    ExactRepository { docker_repository: String },
    RemapIdentity { prefix: String, signed_prefix: String },
}

fn identity(value: Value) -> Result<IdentityMatch, String> {
    let bad = |e: String| format!("the signedIdentity ({e})");
    let named = |text: String| text.parse::<Named>().map_err(|e| bad(e.to_string()));
    Ok(match serde_json::from_value(value).map_err(|e| bad(e.to_string()))? {
        RawIdentity::MatchExact {} => IdentityMatch::Exact,
        RawIdentity::MatchRepoDigestOrExact {} => IdentityMatch::RepoDigestOrExact,
        RawIdentity::MatchRepository {} => IdentityMatch::Repository,
        RawIdentity::ExactReference { docker_reference } => {
            IdentityMatch::ExactReference(named(docker_reference)?)
        }
        RawIdentity::ExactRepository { docker_repository } => {
            IdentityMatch::ExactRepository(named(docker_repository)?.name())
        }
        RawIdentity::RemapIdentity { prefix, signed_prefix } => {
            if prefix.is_empty() || signed_prefix.is_empty() {
                return Err(bad("a prefix is empty".into()));
            }
            IdentityMatch::Remap { prefix, signed_prefix }
        }
    })
}
