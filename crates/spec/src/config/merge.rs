//! Texts of configuration made into one, the later the stronger; errors and warnings name file and line.

use std::fmt;
use std::ops::Range;

use toml::de::DeTable;
use toml::{Table, Value};

use super::{Config, NO_HELPER, SITE_ONLY};

/// Why a configuration was not taken: `FILE:LINE:COLUMN: REASON`.
#[derive(Debug, thiserror::Error)]
#[error("{origin}{place}: {reason}")]
pub struct ConfigError {
    /// The file.
    pub origin: String,
    /// Whether the administrator wrote it.
    pub site: bool,
    place: String,
    reason: String,
}

/// One text of configuration.
pub struct ConfigText {
    /// The file, for messages.
    pub origin: String,
    /// Content of the file.
    pub text: String,
    /// Whether the administrator wrote it.
    pub site: bool,
}

/// What texts come to.
#[derive(Debug)]
pub struct Merged {
    /// The configuration.
    pub config: Config,
    /// What users' texts say that is not theirs to say.
    pub ignored: Vec<Ignored>,
}

/// A setting of a user's that was not taken: `FILE:LINE: KEY is ignored: REASON`.
#[derive(Debug)]
pub struct Ignored {
    /// The file.
    pub origin: String,
    /// Line number, from 1.
    pub line: usize,
    /// The dotted name.
    pub key: String,
    reason: &'static str,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, line, key, reason } = self;
        write!(f, "{origin}:{line}: `{key}` is ignored: only the site's configuration can set it ({reason})")
    }
}

/// Merges texts, the later the stronger.
///
/// # Errors
/// Names the file and the place.
pub fn merge(texts: &[ConfigText]) -> Result<Merged, ConfigError> {
    let mut tables = vec![];
    let mut locked: Vec<String> = vec![];
    for text in texts {
        let table: Table = text.text.parse().map_err(|error| text.error(&error))?;
        if let (true, Some(Value::Array(names))) = (text.site, table.get("lock")) {
            locked.extend(names.iter().filter_map(|n| n.as_str().map(String::from)));
        }
        tables.push(table);
    }
    let mut whole = Table::new();
    let mut ignored = vec![];
    for (text, table) in texts.iter().zip(&mut tables) {
        if !text.site {
            ignored.extend(text.restrict(table, &locked));
        }
        overlay(&mut whole, table.clone());
    }
    let mut config: Config = match Value::Table(whole).try_into() {
        Ok(config) => config,
        Err(error) => return Err(culprit(texts, tables, &error)),
    };
    config.lock = locked;
    Ok(Merged { config, ignored })
}

/// Which of the texts it is that has something Skiff does not know, or of another type. Only a text's own parser knows the line.
fn culprit(texts: &[ConfigText], tables: Vec<Table>, error: &toml::de::Error) -> ConfigError {
    let wrong = texts.iter().zip(tables).find(|(_, table)| Config::is_not(table));
    match wrong {
        Some((text, _)) => {
            text.error(&toml::from_str::<Config>(&text.text).err().unwrap_or_else(|| error.clone()))
        }
        None => ConfigError {
            origin: "configuration".into(),
            site: texts.iter().all(|text| text.site),
            place: String::new(),
            reason: error.message().into(),
        },
    }
}

impl Config {
    fn is_not(table: &Table) -> bool {
        Value::Table(table.clone()).try_into::<Self>().is_err()
    }
}

impl ConfigText {
    /// With the line itself, as the parser does not say which key it was.
    fn error(&self, error: &toml::de::Error) -> ConfigError {
        let (mut place_in, mut reason) = (String::new(), error.message().trim().replace('\n', ", "));
        if let Some((line, column)) = error.span().map(|span| place(&self.text, &span)) {
            place_in = format!(":{line}:{column}");
            let shown: String =
                self.text.lines().nth(line - 1).unwrap_or_default().trim().chars().take(60).collect();
            if !shown.is_empty() {
                reason += &format!(" in `{shown}`");
            }
        }
        ConfigError { origin: self.origin.clone(), site: self.site, place: place_in, reason }
    }

    /// Takes from a user's table what is not for users to set.
    fn restrict(&self, table: &mut Table, locked: &[String]) -> Vec<Ignored> {
        // Nothing is lost by this: `lock` protects from the one who would write it here.
        table.remove("lock");
        let site_only = SITE_ONLY.iter().filter(|(key, _)| !(*key == "helper" && is_no_helper(table)));
        let names: Vec<_> =
            site_only.copied().chain(locked.iter().map(|name| (name.as_str(), "it is locked"))).collect();
        let removed = names.into_iter().filter(|(key, _)| remove(table, key));
        removed
            .map(|(key, reason)| Ignored {
                origin: self.origin.clone(),
                line: self.line(key),
                key: key.into(),
                reason,
            })
            .collect()
    }

    /// Where a key stands; the first line if that cannot be said.
    fn line(&self, dotted: &str) -> usize {
        let Ok(table) = DeTable::parse(&self.text) else { return 1 };
        let (mut table, mut at) = (table.into_inner(), 0);
        for name in dotted.split('.') {
            let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
            at = key.span().start;
            let Some(inner) = value.get_ref().as_table() else { break };
            table = inner.clone();
        }
        place(&self.text, &(at..at)).0
    }
}

fn is_no_helper(table: &Table) -> bool {
    table.get("helper").and_then(Value::as_str) == Some(NO_HELPER)
}

/// The line and column where a range of a text begins, from 1, the column in characters.
#[must_use]
pub fn place(text: &str, span: &Range<usize>) -> (usize, usize) {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

fn overlay(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(b)), Value::Table(a)) => overlay(b, a),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

/// Whether there was anything to remove.
fn remove(table: &mut Table, dotted: &str) -> bool {
    match dotted.split_once('.') {
        None => table.remove(dotted).is_some(),
        Some((head, rest)) => match table.get_mut(head) {
            Some(Value::Table(inner)) => remove(inner, rest),
            _ => false,
        },
    }
}
