//! Which images may be used: the site's and the user's `policy.json`. What is not understood there refuses.
//!
//! Format: containers-policy.json(5). Of its requirements `insecureAcceptAnything`, `reject` and `sigstoreSigned` by key are
//! known; the others refuse every image of their scope. Unlike with Podman the user's file cannot weaken the site's: an
//! image must meet both.

mod identity;
mod parse;
mod signature;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_oci::reference::Named;

use crate::Resolved;
use crate::error::{Error, Result};
use identity::IdentityMatch;
pub use signature::{PublicKey, Signature, read_payload};

/// The site's file.
pub const SITE_FILE: &str = "/etc/containers/policy.json";

/// All policies that an image must meet. With none, every image is accepted.
#[derive(Debug, Clone, Default)]
pub struct Policies(Vec<Policy>);

/// One file.
#[derive(Debug, Clone)]
pub struct Policy {
    file: String,
    default: Vec<Requirement>,
    /// By transport, then by scope; the scope "" is for all of the transport.
    transports: BTreeMap<String, BTreeMap<String, Vec<Requirement>>>,
}

/// What an image must meet.
#[derive(Debug, Clone)]
enum Requirement {
    Accept,
    Reject,
    /// A signature by one of the keys, for an identity that matches.
    Signed {
        keys: Vec<PublicKey>,
        identity: IdentityMatch,
    },
    /// Says what is not understood.
    Unknown(String),
}

impl Policies {
    /// Reads the site's file and the user's, those of them that there are.
    ///
    /// # Errors
    /// One cannot be read, or is no policy.
    pub fn load() -> Result<Policies> {
        let site = read(Path::new(SITE_FILE))?;
        Ok(Policies(site.into_iter().chain(Policies::of_user()?.0).collect()))
    }

    /// Reads the user's file alone: who makes images for others reads the site's, and knows no user's.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn of_user() -> Result<Policies> {
        let path = crate::user_dirs::config_home().map(|home| home.join("containers/policy.json"));
        Ok(Policies(path.map_or(Ok(None), |path| read(&path))?.into_iter().collect()))
    }

    /// The one of this text.
    ///
    /// # Errors
    /// It is no policy.
    pub fn of_text(text: Option<&PolicyFiles>) -> Result<Policies> {
        Ok(Policies(text.map(PolicyFiles::parse).transpose()?.into_iter().collect()))
    }

    /// These and no others.
    pub fn of(policies: Vec<Policy>) -> Policies {
        Policies(policies)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an image of a registry may be used. `fetch` brings its signatures, and is called only if some are demanded.
    ///
    /// # Errors
    /// It may not; or those of `fetch`.
    pub fn admit<E: From<Error>>(
        &self,
        image: &Resolved,
        fetch: impl FnOnce() -> Result<Vec<Signature>, E>,
    ) -> Result<(), E> {
        let mut fetch = Some(fetch);
        let mut signatures = None;
        for policy in &self.0 {
            for requirement in policy.for_image(&image.name) {
                if matches!(requirement, Requirement::Signed { .. })
                    && let Some(fetch) = fetch.take()
                {
                    signatures = Some(fetch()?);
                }
                let signatures = signatures.as_deref().unwrap_or_default();
                let digests = [image.digest, image.manifest_digest];
                requirement
                    .is_met(&image.name, &digests, signatures)
                    .map_err(|why| policy.refusal(&image.name, why))?;
            }
        }
        Ok(())
    }

    /// Whether every image of this name may be used, whatever it is and whoever made it.
    pub fn accepts_any(&self, image: &Named) -> bool {
        self.0.iter().all(|policy| policy.for_image(image).iter().all(|r| matches!(r, Requirement::Accept)))
    }

    /// Whether an image of a file or directory may be used; `transport` is its prefix: `oci`, `docker-archive` ... Where it is not
    /// known where it lies, it must be one that might lie anywhere.
    ///
    /// # Errors
    /// It may not. Signatures are not looked for, so where they are demanded it may not.
    pub fn admit_file(&self, transport: &str, path: Option<&Path>) -> Result<()> {
        for policy in &self.0 {
            for requirement in policy.for_path(transport, path) {
                let met = match requirement {
                    Requirement::Accept => Ok(()),
                    Requirement::Reject => Err("it is rejected there".into()),
                    Requirement::Signed { .. } => {
                        Err("it must be signed, and files carry no signatures".into())
                    }
                    Requirement::Unknown(what) => Err(format!("{what} is not understood")),
                };
                let shown = path.map_or("a file".into(), |path| path.display().to_string());
                met.map_err(|why| policy.refusal(&shown, why))?;
            }
        }
        Ok(())
    }
}

/// A file, if it is there.
fn read(path: &Path) -> Result<Option<Policy>> {
    PolicyFiles::read(path)?.map(|text| text.parse()).transpose()
}

/// A policy's file and the keys that it names, wherever these lie: for a process that cannot open them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFiles {
    file: String,
    bytes: Vec<u8>,
    /// What was read at each path, or why it cannot be.
    keys: BTreeMap<String, Result<Vec<u8>, String>>,
}

impl PolicyFiles {
    /// The site's, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn of_site() -> Result<Option<PolicyFiles>> {
        PolicyFiles::read(Path::new(SITE_FILE))
    }

    fn read(path: &Path) -> Result<Option<PolicyFiles>> {
        let file = path.display().to_string();
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::Config { file, why: e.to_string() }),
        };
        let mut keys = BTreeMap::new();
        let mut read = |path: &str| {
            let key = std::fs::read(path).map_err(|e| e.to_string());
            keys.insert(path.to_owned(), key.clone());
            key
        };
        parse::policy(&file, &bytes, &mut read).map_err(|why| Error::Config { file: file.clone(), why })?;
        Ok(Some(PolicyFiles { file, bytes, keys }))
    }

    fn parse(&self) -> Result<Policy> {
        let mut known =
            |path: &str| self.keys.get(path).cloned().unwrap_or_else(|| Err("it was not read".into()));
        let policy = parse::policy(&self.file, &self.bytes, &mut known);
        policy.map_err(|why| Error::Config { file: self.file.clone(), why })
    }
}

impl Policy {
    /// Reads one; `file` is for messages.
    ///
    /// # Errors
    /// It is no policy.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Policy> {
        let mut read = |path: &str| std::fs::read(path).map_err(|e| e.to_string());
        parse::policy(file, bytes, &mut read).map_err(|why| Error::Config { file: file.into(), why })
    }

    fn refusal(&self, image: &impl std::fmt::Display, why: String) -> Error {
        Error::Refused { image: image.to_string(), policy: self.file.clone(), why }
    }

    fn for_image(&self, image: &Named) -> &[Requirement] {
        self.find("docker", image_scopes(image))
    }

    fn for_path(&self, transport: &str, path: Option<&Path>) -> Vec<&Requirement> {
        let Some(path) = path else {
            let scopes = self.transports.get(transport).into_iter().flat_map(BTreeMap::values);
            return scopes.flatten().chain(self.find(transport, vec![])).collect();
        };
        let scopes = path.ancestors().map(|p| p.display().to_string()).filter(|p| !p.is_empty());
        self.find(transport, scopes.collect()).iter().collect()
    }

    fn find(&self, transport: &str, scopes: Vec<String>) -> &[Requirement] {
        let Some(known) = self.transports.get(transport) else {
            return &self.default;
        };
        scopes.iter().find_map(|scope| known.get(scope)).or_else(|| known.get("")).unwrap_or(&self.default)
    }
}

/// From the image itself to all of its server's domain: the first that the policy has decides.
fn image_scopes(image: &Named) -> Vec<String> {
    let name = image.name();
    let mut scopes = vec![match image.digest() {
        Some(digest) => format!("{name}@{digest}"),
        None => format!("{name}:{}", image.wanted()),
    }];
    let cuts = name.match_indices('/').map(|(at, _)| at).rev();
    scopes.extend(std::iter::once(name.len()).chain(cuts).map(|end| name[..end].to_owned()));
    // `*.site.example` has the servers of that domain, whatever their ports.
    let host = image.server().split(':').next().unwrap_or_default();
    scopes.extend(host.match_indices('.').map(|(at, _)| format!("*{}", &host[at..])));
    scopes
}

impl Requirement {
    /// Says why not.
    fn is_met(&self, image: &Named, digests: &[Digest], signatures: &[Signature]) -> Result<(), String> {
        match self {
            Requirement::Accept => Ok(()),
            Requirement::Reject => Err("it is rejected there".into()),
            Requirement::Unknown(what) => Err(format!("{what} is not understood")),
            Requirement::Signed { .. } if signatures.is_empty() => Err("it has no signature".into()),
            Requirement::Signed { keys, identity } => {
                let mut reasons = vec![];
                for signature in signatures {
                    match signature.holds(keys, identity, image, digests) {
                        Ok(()) => return Ok(()),
                        Err(why) => reasons.push(why),
                    }
                }
                reasons.sort();
                reasons.dedup();
                Err(format!("none of its signatures counts: {}", reasons.join("; ")))
            }
        }
    }
}
