//! The base's database as it was at the last merge, in a form that is small: lines of text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::Error;
use crate::records::Records;
use crate::stanza::{Database, Hash, hash_from_hex, hex};

/// The first line; another one was written by another version.
const HEAD: &str = "skiff-packages 1";
/// Between the lines of a record, which stand on one line.
const BREAK: char = '\u{1f}';

/// What has been merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ancestor {
    /// By what its owner knows the file again that it was made from: one line.
    pub mark: String,
    pub(crate) packages: BTreeMap<String, Known>,
    /// The lists in the base's database, by their files' names.
    pub records: BTreeMap<String, BTreeSet<Vec<u8>>>,
    /// Packages of which the user has kept their own, though the base's have changed.
    pub conflicts: BTreeSet<String>,
}

/// One package of the base's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// The version, if the package was there.
    pub(crate) installed: Option<String>,
    pub(crate) hash: Hash,
}

impl Ancestor {
    /// The ancestor that a base with this database is from now on.
    #[must_use]
    pub fn of(base: &Database<'_>, mark: String, lists: &[(&str, Records, &[u8])]) -> Self {
        let packages = base.keys().filter_map(|key| Some((key.to_owned(), Known::of(base, key)?))).collect();
        Self { packages, ..Self::default() }.of_base(mark, lists)
    }

    /// The same with another mark and other lists: those of the base whose packages have been merged.
    #[must_use]
    pub fn of_base(self, mark: String, lists: &[(&str, Records, &[u8])]) -> Self {
        let records = lists.iter().map(|(name, kind, text)| ((*name).to_owned(), kind.of(text))).collect();
        Self { mark, records, ..self }
    }

    /// As text. What cannot stand on a line is left out.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n{}\n", self.mark.replace('\n', " "));
        let mut line = |words: std::fmt::Arguments<'_>| writeln!(text, "{words}").unwrap_or(());
        for (key, Known { installed, hash }) in &self.packages {
            line(format_args!("package {key} {} {}", hex(hash), installed.as_deref().unwrap_or("-")));
        }
        for (name, records) in &self.records {
            line(format_args!("list {name}"));
            let whole = records.iter().filter_map(|record| std::str::from_utf8(record).ok());
            for record in whole.filter(|record| !record.contains(BREAK)) {
                line(format_args!("record {name} {}", record.replace('\n', &BREAK.to_string())));
            }
        }
        self.conflicts.iter().for_each(|key| line(format_args!("conflict {key}")));
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
    /// When it is none that [`Ancestor::to_text`] writes.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let mark = Self::mark_of(text).ok_or(Error::Record)?.to_owned();
        let mut ancestor = Self { mark, ..Self::default() };
        let lines = text.split('\n').skip(2).filter(|line| !line.is_empty());
        lines.into_iter().try_for_each(|line| ancestor.line(line).ok_or(Error::Record))?;
        Ok(ancestor)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "package" => {
                let (key, rest) = rest.split_once(' ')?;
                let (hex, installed) = rest.split_once(' ')?;
                let installed = (installed != "-").then(|| installed.to_owned());
                self.packages.insert(key.to_owned(), Known { installed, hash: hash_from_hex(hex)? });
            }
            "list" => {
                self.records.entry(rest.to_owned()).or_default();
            }
            "record" => {
                let (name, record) = rest.split_once(' ')?;
                self.records.get_mut(name)?.insert(record.replace(BREAK, "\n").into_bytes());
            }
            "conflict" => {
                self.conflicts.insert(rest.to_owned());
            }
            _ => return None,
        }
        Some(())
    }
}

impl Known {
    pub(crate) fn of(base: &Database<'_>, key: &str) -> Option<Self> {
        let stanza = base.get(key)?;
        Some(Self { installed: stanza.installed(), hash: stanza.hash() })
    }
}
