//! The base's database as it was at the last merge, in a form that is small: lines of text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::header::RpmPackage;
use crate::stanza::{Hash, hash_from_hex, hex};
use crate::{Conflict, Error};

/// The first line; another one was written by another version.
const HEAD: &str = "skiff-rpm-packages 1";

/// What has been merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RpmAncestor {
    /// By what its owner knows the base's database again: one line.
    pub mark: String,
    /// By key and hash the version of each package of the base's.
    pub(super) packages: BTreeMap<String, BTreeMap<Hash, String>>,
    /// Packages of which the user has kept their own, though the base's have changed, as they were then.
    pub conflicts: BTreeMap<String, Conflict>,
}

impl RpmAncestor {
    /// The ancestor that a base with these packages is from now on.
    #[must_use]
    pub fn of<'a>(base: impl IntoIterator<Item = &'a RpmPackage>, mark: String) -> Self {
        let mut ancestor = Self { mark, ..Self::default() };
        for package in base {
            let versions = ancestor.packages.entry(package.key.clone()).or_default();
            versions.insert(package.hash, package.version.clone());
        }
        ancestor
    }

    /// The same, after a merge that has left these conflicts.
    #[must_use]
    pub fn with_conflicts(self, conflicts: BTreeMap<String, Conflict>) -> Self {
        Self { conflicts, ..self }
    }

    /// Whether the base had this very package.
    #[must_use]
    pub fn has(&self, package: &RpmPackage) -> bool {
        self.packages.get(&package.key).is_some_and(|versions| versions.contains_key(&package.hash))
    }

    /// Whether the same packages are in both.
    #[must_use]
    pub fn has_same_packages(&self, other: &Self) -> bool {
        self.packages == other.packages
    }

    pub(super) fn hashes(&self, key: &str) -> BTreeSet<Hash> {
        self.packages.get(key).into_iter().flat_map(BTreeMap::keys).copied().collect()
    }

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n{}\n", self.mark.replace('\n', " "));
        let mut line = |words: std::fmt::Arguments<'_>| writeln!(text, "{words}").unwrap_or(());
        for (key, versions) in &self.packages {
            for (hash, version) in versions {
                line(format_args!("package {key} {} {version}", hex(hash)));
            }
        }
        for Conflict { name, yours, host } in self.conflicts.values() {
            let [yours, host] = [yours, host].map(|version| version.as_deref().unwrap_or("-"));
            line(format_args!("conflict {name} {yours} {host}"));
        }
        text
    }

    /// The mark of a text: its second line.
    #[must_use]
    pub fn mark_of(text: &str) -> Option<&str> {
        let mut lines = text.split('\n');
        (lines.next()? == HEAD).then(|| lines.next())?
    }

    /// From text.
    ///
    /// # Errors
    /// When it is none that [`RpmAncestor::to_text`] writes.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let mark = Self::mark_of(text).ok_or(Error::Record)?.to_owned();
        let mut ancestor = Self { mark, ..Self::default() };
        let lines = text.split('\n').skip(2).filter(|line| !line.is_empty());
        lines.into_iter().try_for_each(|line| ancestor.line(line).ok_or(Error::Record))?;
        Ok(ancestor)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, name, second, third] = words[..] else { return None };
        match kind {
            "package" => {
                let versions = self.packages.entry(name.to_owned()).or_default();
                versions.insert(hash_from_hex(second)?, third.to_owned());
            }
            "conflict" => {
                let [yours, host] = [second, third].map(|word| (word != "-").then(|| word.to_owned()));
                self.conflicts.insert(name.to_owned(), Conflict { name: name.to_owned(), yours, host });
            }
            _ => return None,
        }
        Some(())
    }
}
