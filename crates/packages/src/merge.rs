//! Three databases become one: what the base's has become since the ancestor is replayed under the user's own changes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ancestor::{Ancestor, Known};
use crate::stanza::{Database, Stanza};

/// A package that is another one now, or was or is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageChange {
    /// Name of the package, with its architecture where several may be there.
    pub name: String,
    /// The version before; nothing if it was not there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub was: Option<String>,
    /// The version now; nothing if it is not there any more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub now: Option<String>,
}

/// A package that both have changed; the user's stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Name of the package, with its architecture where several may be there.
    pub name: String,
    /// The user's version; nothing if they have removed it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub yours: Option<String>,
    /// The host's version; nothing if it has been removed there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host: Option<String>,
}

/// A package of the user's that needs one that the host has removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmet {
    /// The user's package.
    pub name: String,
    /// What it needs.
    pub needs: String,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedDatabase {
    /// The status file; the user's own if nothing was to be changed.
    pub text: Option<Vec<u8>>,
    /// What has been merged by now. Its mark and its lists are those of the ancestor before.
    pub ancestor: Ancestor,
    /// What was taken from the base.
    pub changes: Vec<PackageChange>,
    /// What both have changed since.
    pub conflicts: Vec<Conflict>,
    /// Packages of the user's that lack something now.
    pub unmet: Vec<Unmet>,
}

/// Merges. `is_users` tells of a package whether the user has unpacked or removed it themselves. Without an ancestor that alone decides.
#[must_use]
pub fn merge(
    ancestor: Option<&Ancestor>,
    user: &Database<'_>,
    base: &Database<'_>,
    is_users: &dyn Fn(&str) -> bool,
) -> MergedDatabase {
    let mut merging = Merging {
        ancestor,
        user,
        base,
        stanzas: user.clone(),
        merged: MergedDatabase {
            text: None,
            ancestor: ancestor.cloned().unwrap_or_default(),
            changes: vec![],
            conflicts: vec![],
            unmet: vec![],
        },
    };
    let known = ancestor.into_iter().flat_map(|ancestor| ancestor.packages.keys().map(String::as_str));
    let named = ancestor.into_iter().flat_map(|ancestor| ancestor.conflicts.iter().map(String::as_str));
    let keys: BTreeSet<&str> = user.keys().chain(base.keys()).chain(known).chain(named).collect();
    keys.into_iter().for_each(|key| merging.package(key, is_users));
    merging.end(is_users)
}

/// What has changed in a base from one ancestor to the next.
#[must_use]
pub fn summary(before: &Ancestor, now: &Ancestor) -> Vec<PackageChange> {
    let keys: BTreeSet<&String> = before.packages.keys().chain(now.packages.keys()).collect();
    let installed = |of: &Ancestor, key| of.packages.get(key).and_then(|known| known.installed.clone());
    let changes = keys.into_iter().map(|key| PackageChange {
        name: key.clone(),
        was: installed(before, key),
        now: installed(now, key),
    });
    changes.filter(|change| change.was != change.now).collect()
}

struct Merging<'a, 'b> {
    ancestor: Option<&'b Ancestor>,
    user: &'b Database<'a>,
    base: &'b Database<'a>,
    stanzas: Database<'a>,
    merged: MergedDatabase,
}

impl Merging<'_, '_> {
    fn package(&mut self, key: &str, is_users: &dyn Fn(&str) -> bool) {
        let (user, base) = (self.user.get(key), self.base.get(key));
        let hash = |stanza: Option<Stanza<'_>>| stanza.map(Stanza::hash);
        let (users, bases) = (hash(user), hash(base));
        let known = self.ancestor.map(|ancestor| ancestor.packages.get(key).map(|known| known.hash));
        if users == bases {
            self.merged.ancestor.conflicts.remove(key);
            return self.note(key);
        }
        if known == Some(bases) {
            return;
        }
        if base.is_some_and(|base| !base.is_settled()) {
            // An administrator's dpkg is at work, and will change it again.
            return;
        }
        let is_changed = known.is_some_and(|known| users != known);
        if !is_changed && !is_users(key) {
            self.take(key);
        } else if known.is_some() {
            let version = |stanza: Option<Stanza<'_>>| stanza.and_then(Stanza::installed);
            let conflict = Conflict { name: key.to_owned(), yours: version(user), host: version(base) };
            // One package or none at all is no contradiction that anybody would see.
            if conflict.yours != conflict.host {
                self.merged.conflicts.push(conflict);
                self.merged.ancestor.conflicts.insert(key.to_owned());
            }
        }
        self.note(key);
    }

    fn take(&mut self, key: &str) {
        let version = |stanza: Option<Stanza<'_>>| stanza.and_then(Stanza::installed);
        let (was, now) = (version(self.user.get(key)), version(self.base.get(key)));
        match self.base.get(key) {
            Some(stanza) => self.stanzas.stanzas.insert(key.to_owned(), stanza),
            None => self.stanzas.stanzas.remove(key),
        };
        self.merged.text = Some(vec![]);
        if was != now {
            self.merged.changes.push(PackageChange { name: key.to_owned(), was, now });
        }
    }

    /// The base's package has been dealt with.
    fn note(&mut self, key: &str) {
        match Known::of(self.base, key) {
            Some(known) => self.merged.ancestor.packages.insert(key.to_owned(), known),
            None => self.merged.ancestor.packages.remove(key),
        };
    }

    fn end(mut self, is_users: &dyn Fn(&str) -> bool) -> MergedDatabase {
        if let Some(text) = &mut self.merged.text {
            for stanza in self.stanzas.stanzas.values() {
                text.extend_from_slice(stanza.text());
                text.extend_from_slice(b"\n\n");
            }
        }
        let removed: BTreeSet<&str> = self
            .merged
            .changes
            .iter()
            .filter(|change| change.now.is_none())
            .map(|change| bare(&change.name))
            .collect();
        if !removed.is_empty() {
            let own = self.stanzas.keys().filter(|key| self.base.get(key).is_none() || is_users(key));
            for key in own {
                let stanza = self.stanzas.get(key).filter(|stanza| stanza.installed().is_some());
                let needs = stanza.into_iter().flat_map(Stanza::needs).filter(|name| removed.contains(name));
                let unmet = needs.map(|needs| Unmet { name: key.to_owned(), needs: needs.to_owned() });
                self.merged.unmet.extend(unmet);
            }
        }
        self.merged
    }
}

/// Without an architecture.
fn bare(key: &str) -> &str {
    key.split(':').next().unwrap_or(key)
}

#[cfg(test)]
mod tests;
