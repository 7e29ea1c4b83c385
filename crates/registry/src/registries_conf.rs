//! Where an image is looked for: the site's and the user's `registries.conf`, as Podman and Skopeo read them.
//!
//! Format: containers-registries.conf(5), version 2. Unknown keys are ignored, as those programs do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use skiff_oci::reference::{DEFAULT_SERVER, Named, ShortName};

use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// What the files say together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistriesConf {
    search: Vec<String>,
    aliases: BTreeMap<String, String>,
    registries: BTreeMap<String, Registry>,
}

/// A place where an image may be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Host and port, as in references: `docker.io`.
    pub server: String,
    /// The path there.
    pub repository: String,
    /// Whether HTTP will do, and certificates are not looked at.
    pub insecure: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    unqualified_search_registries: Option<Vec<String>>,
    aliases: BTreeMap<String, String>,
    registry: Vec<Registry>,
    /// Version 1 had a table here.
    registries: Option<toml::Table>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Registry {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    mirror_by_digest_only: bool,
    mirror: Vec<Mirror>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Mirror {
    location: String,
    insecure: bool,
    pull_from_mirror: PullFrom,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PullFrom {
    #[default]
    All,
    DigestOnly,
    TagOnly,
}

impl RegistriesConf {
    /// Reads the user's file, else the site's, and all drop-ins of both, the user's last. Files that are missing say nothing.
    ///
    /// # Errors
    /// One cannot be read or is not of version 2.
    pub fn load() -> Result<RegistriesConf> {
        let mut conf = RegistriesConf::default();
        RegistriesConf::texts()?.iter().try_for_each(|(file, text)| conf.add(file, text))?;
        Ok(conf)
    }

    /// The texts that count, with their files' names, the weakest first: for a process that reads on behalf of another user.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn texts() -> Result<Vec<(String, String)>> {
        let mut texts = vec![];
        for file in files() {
            match std::fs::read_to_string(&file) {
                Ok(text) => texts.push((file.display().to_string(), text)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => {
                    return Err(Error::Config { file: file.display().to_string(), why: e.to_string() });
                }
            }
        }
        Ok(texts)
    }

    /// Adds the text of one more file, which wins over those before.
    ///
    /// # Errors
    /// It is not of version 2, or names what can be no registry.
    pub fn add(&mut self, file: &str, text: &str) -> Result<()> {
        let bad = |why: String| Error::Config { file: file.into(), why };
        let new: File = toml::from_str(text).map_err(|e| bad(e.to_string()))?;
        if new.registries.is_some() {
            return Err(bad("it is of version 1, which has [registries]; version 2 has [[registry]]".into()));
        }
        if let Some(search) = new.unqualified_search_registries {
            self.search = search;
        }
        self.aliases.extend(new.aliases);
        for mut registry in new.registry {
            if registry.prefix.is_empty() {
                registry.prefix.clone_from(&registry.location);
            }
            if registry.prefix.is_empty() {
                return Err(bad("a [[registry]] has neither prefix nor location".into()));
            }
            if registry.location.is_empty() && !registry.prefix.starts_with("*.") {
                registry.location.clone_from(&registry.prefix);
            }
            if registry.mirror.iter().any(|mirror| mirror.location.is_empty()) {
                return Err(bad(format!("a mirror of {} has no location", registry.prefix)));
            }
            self.registries.insert(registry.prefix.clone(), registry);
        }
        Ok(())
    }

    /// What a name without a server may mean, in the order to try.
    ///
    /// # Errors
    /// An alias or a server in the files is no name.
    pub fn candidates(&self, short: &ShortName) -> Result<Vec<Named>> {
        let bad = |why: String| Error::Config { file: "registries.conf".into(), why };
        if let Some(full) = self.aliases.get(short.repository()).filter(|full| !full.is_empty()) {
            let full: Named =
                full.parse().map_err(|e| bad(format!("alias of {}: {e}", short.repository())))?;
            return Ok(vec![short.alias(&full)]);
        }
        if self.search.is_empty() {
            return Ok(vec![short.at_docker_hub()]);
        }
        let below = |server: &String| {
            short.below(server).map_err(|e| bad(format!("unqualified-search-registries: {e}")))
        };
        self.search.iter().map(below).collect()
    }

    /// Where to look for an image, in the order to try: mirrors, then the place itself.
    ///
    /// # Errors
    /// The files forbid it, or lead to what is no repository.
    pub fn endpoints(&self, image: &Named) -> Result<Vec<Endpoint>> {
        let name = image.name();
        let Some((matched, registry)) = self.registry_of(&name) else {
            let (server, repository) = (image.server().into(), image.repository().into());
            return Ok(vec![Endpoint { server, repository, insecure: false }]);
        };
        if registry.blocked {
            return Err(Error::Blocked { image: image.to_string(), prefix: registry.prefix.clone() });
        }
        let by_digest = image.digest().is_some();
        let serves = |mirror: &&Mirror| match mirror.pull_from_mirror {
            PullFrom::All => by_digest || !registry.mirror_by_digest_only,
            PullFrom::DigestOnly => by_digest,
            PullFrom::TagOnly => !by_digest,
        };
        let mirrors = registry.mirror.iter().filter(serves).map(|m| (&m.location, m.insecure));
        let itself = std::iter::once((&registry.location, registry.insecure));
        mirrors
            .chain(itself)
            .map(|(location, insecure)| endpoint(&name, matched, location, insecure))
            .collect()
    }

    /// One more text, by which an image is looked for at this mirror before all other places.
    ///
    /// # Errors
    /// As of [`Self::endpoints`].
    pub fn text_with_mirror(&self, image: &Named, mirror: &Endpoint) -> Result<String> {
        let mut endpoints = self.endpoints(image)?;
        let place = |Endpoint { server, repository, insecure }: &Endpoint| {
            format!("location = \"{server}/{repository}\"\ninsecure = {insecure}\n")
        };
        let itself = endpoints.pop().map(|itself| place(&itself)).unwrap_or_default();
        let mut text = format!("[[registry]]\nprefix = \"{}\"\n{itself}", image.name());
        for mirror in std::iter::once(mirror).chain(&endpoints) {
            text.push_str("[[registry.mirror]]\n");
            text.push_str(&place(mirror));
        }
        Ok(text)
    }

    /// The entry with the longest prefix of `name`, and that prefix as it stands in the name.
    fn registry_of<'n>(&self, name: &'n str) -> Option<(&'n str, &Registry)> {
        let matching = self.registries.values().filter_map(|registry| {
            let matched = match registry.prefix.strip_prefix('*') {
                Some(domain) => {
                    let host = name.split(['/', ':']).next().unwrap_or_default();
                    host.ends_with(domain).then_some(host)?
                }
                None => name.strip_prefix(&registry.prefix).and_then(|rest| {
                    rest.is_empty()
                        .then_some(name)
                        .or_else(|| rest.starts_with(['/', ':']).then(|| &name[..registry.prefix.len()]))
                })?,
            };
            Some((registry.prefix.len(), matched, registry))
        });
        matching.max_by_key(|(length, ..)| *length).map(|(_, matched, registry)| (matched, registry))
    }
}

/// `name` with `location` in place of its beginning; an empty location leaves it as it is.
fn endpoint(name: &str, matched: &str, location: &str, insecure: bool) -> Result<Endpoint> {
    let rest = &name[matched.len()..];
    let full = if location.is_empty() { name.to_owned() } else { format!("{location}{rest}") };
    let bad = |why: String| Error::Config { file: "registries.conf".into(), why };
    let Some((server, repository)) = full.split_once('/') else {
        return Err(bad(format!("location {location} of {name} has no repository")));
    };
    let named = Named::new(server, repository, None, None).map_err(|e| bad(e.to_string()))?;
    // Docker Hub's own images are in `library` only there: a mirror has the path that was written.
    let repository = if server == DEFAULT_SERVER { named.repository().into() } else { repository.into() };
    Ok(Endpoint { server: named.server().into(), repository, insecure })
}

fn files() -> Vec<PathBuf> {
    if let Some(only) = std::env::var_os("CONTAINERS_REGISTRIES_CONF") {
        return vec![only.into()];
    }
    let site = Path::new("/etc/containers");
    let user = crate::user_dirs::config_home().map(|home| home.join("containers"));
    let main = user.iter().map(|dir| dir.join("registries.conf")).find(|file| file.exists());
    let mut files = vec![main.unwrap_or_else(|| site.join("registries.conf"))];
    for dir in std::iter::once(site).chain(user.as_deref()) {
        files.extend(drop_ins(&dir.join("registries.conf.d")));
    }
    files
}

/// The `*.conf` of a directory in the order of their names; none if there is no such directory.
fn drop_ins(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.filter(|file| file.extension().is_some_and(|e| e == "conf")).collect();
    files.sort();
    files
}
