//! An image's configuration: how its programs are run, and what its layers hold when unpacked.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::platform::Platform;
use serde::{Deserialize, Serialize};

use super::{MAX_DOCUMENT, or_default};
use crate::error::{Error, Result};

/// What the configuration says of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// What it runs on, if it says so.
    pub platform: Option<Platform>,
    /// When it was made (RFC 3339), as written.
    pub created: Option<String>,
    /// How its programs are run.
    pub exec: ExecConfig,
    /// The digest of each layer's tar stream, lowest first.
    pub diff_ids: Vec<Digest>,
    /// How it came to be.
    pub history: Vec<History>,
}

/// How an image's programs are run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all(deserialize = "PascalCase", serialize = "snake_case"), default)]
pub struct ExecConfig {
    /// `NAME=VALUE`.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// What is always run. `[""]`, which builders write to take away the one of an image below, is none.
    #[serde(deserialize_with = "program")]
    pub entrypoint: Vec<String>,
    /// Arguments of the entrypoint, or the command, where the user gives none.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// Where it begins; empty: `/`.
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    /// `USER[:GROUP]`, names or numbers.
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// Remarks.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Directories meant for data.
    #[serde(deserialize_with = "keys")]
    pub volumes: BTreeSet<String>,
    /// Ports its programs listen at: `80/tcp`.
    #[serde(deserialize_with = "keys")]
    pub exposed_ports: BTreeSet<String>,
    /// The signal that ends it kindly: a name or number.
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: Option<String>,
}

/// One step of an image's making.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct History {
    /// When (RFC 3339), as written.
    pub created: Option<String>,
    /// By which command.
    pub created_by: Option<String>,
    /// A remark.
    pub comment: Option<String>,
    /// Whether it made no layer.
    #[serde(deserialize_with = "or_default")]
    pub empty_layer: bool,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default, deserialize_with = "or_default")]
    architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    os: String,
    variant: Option<String>,
    created: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    config: ExecConfig,
    rootfs: RootFs,
    #[serde(default, deserialize_with = "or_default")]
    history: Vec<History>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Reads one. `object` names it in messages.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(object: &str, bytes: &[u8]) -> Result<ImageConfig> {
        let bad = |why: String| Error::BadManifest { object: object.into(), why };
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(bad(format!("it is longer than {MAX_DOCUMENT} bytes")));
        }
        let raw: Raw = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if raw.rootfs.kind != "layers" {
            return Err(bad(format!("its rootfs is of type {:?}, not \"layers\"", raw.rootfs.kind)));
        }
        let os = if raw.os.is_empty() { "linux" } else { &raw.os };
        let platform = (!raw.architecture.is_empty())
            .then(|| Platform::new(os, &raw.architecture, raw.variant.as_deref()));
        let Raw { created, config: exec, history, rootfs: RootFs { diff_ids, .. }, .. } = raw;
        Ok(ImageConfig { platform, created, exec, diff_ids, history })
    }
}

/// Words of a program, of which the first must be one.
fn program<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let words: Vec<String> = or_default(from)?;
    Ok(if words.first().is_some_and(String::is_empty) { vec![] } else { words })
}

/// Go's way to write a set: an object with empty values.
fn keys<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let object = Option::<BTreeMap<String, serde::de::IgnoredAny>>::deserialize(deserializer)?;
    Ok(object.unwrap_or_default().into_keys().collect())
}
