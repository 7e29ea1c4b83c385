//! Packages of the user's that hide newer ones of the host's.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use skiff_packages::{Ancestor, Database, compare, field, merge, paragraphs};
use skiff_spec::fault::{Fault as Error, Result};

use super::base::{BaseDatabase, STATUS};
use super::own::{self, UsersFiles};
use super::{ancestor, has_own};

/// Where apt keeps what the host's repositories have.
const LISTS: &str = "/var/lib/apt/lists";
const LONGEST: u64 = 256 << 20;
/// A package whose version on the host is not the user's.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShadowedPackage {
    /// Name of the package, with its architecture where several may be there.
    pub name: String,
    /// The user's version; nothing if they have removed it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub yours: Option<String>,
    /// The host's version; nothing if it has been removed there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host: Option<String>,
    /// Whether both have changed it.
    pub conflict: bool,
    /// Whether the user holds it at its version.
    pub held: bool,
    /// Whether the host's version is of a security suite, as far as apt's lists on the host say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub security: Option<bool>,
}

/// Packages of the environment in `dir` that hide newer ones of the host's, or that both have changed.
///
/// # Errors
/// When one of the two databases cannot be read.
pub fn shadowed(dir: &Path) -> Result<Vec<ShadowedPackage>> {
    if !has_own(dir) {
        return Ok(vec![]);
    }
    let upper = own::open(&dir.join("upper"))?;
    let users = UsersFiles { upper: upper.as_fd() };
    let own = STATUS.trim_start_matches('/');
    let text = users.read(own)?;
    let parse = |e: skiff_packages::Error| Error::new(format!("/{own} of the environment: {e}"));
    let (files, before) = (BaseDatabase::read()?, ancestor(dir));
    let (user, base) = (Database::parse(&text).map_err(parse)?, files.database()?);
    // What the next session takes from the host hides nothing.
    let merged = merge(before.as_ref(), &user, &base, &|key| users.have(key));
    let user = match &merged.text {
        Some(text) => Database::parse(text).map_err(parse)?,
        None => user,
    };
    let mut found = differing(&user, &base, &merged.ancestor);
    mark_security(&mut found);
    Ok(found)
}

fn differing(user: &Database<'_>, base: &Database<'_>, ancestor: &Ancestor) -> Vec<ShadowedPackage> {
    let keys: BTreeSet<&str> = base.keys().chain(ancestor.conflicts.iter().map(String::as_str)).collect();
    let packages = keys.into_iter().map(|key| {
        let installed = |of: &Database<'_>| of.get(key).and_then(|stanza| stanza.installed());
        ShadowedPackage {
            name: key.to_owned(),
            yours: installed(user),
            host: installed(base),
            conflict: ancestor.conflicts.contains(key),
            held: user.get(key).is_some_and(|stanza| stanza.is_held()),
            security: None,
        }
    });
    let is_newer = |package: &ShadowedPackage| match (&package.yours, &package.host) {
        (Some(yours), Some(host)) => compare(yours, host).is_lt(),
        _ => false,
    };
    packages
        .filter(|package| is_newer(package) || (package.conflict && package.yours != package.host))
        .collect()
}

/// Looks for the host's versions in the lists of security suites.
fn mark_security(packages: &mut [ShadowedPackage]) {
    // These lists are large.
    let Ok(entries) = std::fs::read_dir(LISTS) else { return };
    if packages.is_empty() {
        return;
    }
    let is_list = |name: &OsStr| {
        let name = name.as_bytes();
        name.ends_with(b"_Packages") && name.windows(8).any(|part| part == b"security")
    };
    let lists = entries.flatten().filter(|entry| is_list(&entry.file_name()));
    for list in lists.take(64) {
        let mut text = vec![];
        let read =
            std::fs::File::open(list.path()).and_then(|file| file.take(LONGEST).read_to_end(&mut text));
        if read.is_err() {
            continue;
        }
        let offered: BTreeSet<_> = paragraphs(&text)
            .filter_map(|paragraph| Some((field(paragraph, "Package")?, field(paragraph, "Version")?)))
            .collect();
        for package in packages.iter_mut() {
            let name = package.name.split(':').next().unwrap_or_default();
            let version = package.host.as_deref().unwrap_or_default();
            let is_there = offered.contains(&(name.as_bytes(), version.as_bytes()));
            package.security = Some(package.security == Some(true) || is_there);
        }
    }
}
