//! Options of another program, read from a table, and written as Skiff's.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use skiff_spec::fault::{Fault, Result};

use super::{missing, untranslated};
use crate::elsewhere;

/// What becomes of an option.
#[derive(Clone, Copy, Debug)]
pub enum Becomes {
    /// Ours of this name, with the value that is given.
    Value(&'static str),
    /// These words; the option has no value, or says whether it is meant: `--rm=true`.
    Words(&'static [&'static str]),
    /// What a function makes of the value: words, or nothing if it cannot be translated.
    Made(fn(&str) -> Option<Vec<String>>),
}

/// Nothing: what the option asks for is so in any case.
pub const AS_EVER: Becomes = Becomes::Words(&[]);

/// An option by all its names, with the dashes.
pub type Rule = (&'static [&'static str], Becomes);

/// Options in front of other words.
pub struct Translated<'a> {
    /// In Skiff's words.
    pub options: Vec<OsString>,
    /// The names of those that were given, as the table has them first.
    pub given: Vec<&'static str>,
    /// The words behind.
    pub rest: &'a [OsString],
    /// Whether `--` stands in front of these.
    pub has_dashes: bool,
}

impl Translated<'_> {
    /// Whether an option was given, by its first name.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    /// The words behind, where all of them are names. No option is among those that `--` marks as names, though to Skiff it would be one.
    pub fn names(&self, program: &str) -> Result<Vec<OsString>> {
        if self.has_dashes {
            self.rest.iter().try_for_each(|word| refuse_dash(program, word))?;
        }
        Ok(self.rest.to_vec())
    }
}

/// Refuses a name that Skiff would take for an option. Images, containers and their files are never called so.
pub fn refuse_dash(program: &str, word: &OsString) -> Result<()> {
    if !word.as_bytes().starts_with(b"-") || word == "-" {
        return Ok(());
    }
    Err(Fault::new(format!("{program}: {}: no name begins with a dash", word.display()))
        .hint("what stands behind `--` is a name, never an option: check who chose it"))
}

/// Translates options up to the first word that is none, or `--`, which is skipped. The word behind that one is never an option: a script
/// writes `--` in front of a name that somebody else has chosen.
pub fn translate<'a>(program: &str, rules: &[&[Rule]], words: &'a [OsString]) -> Result<Translated<'a>> {
    let (mut done, mut rest) =
        (Translated { options: vec![], given: vec![], rest: &[], has_dashes: false }, words);
    while let [word, behind @ ..] = rest {
        let Some(text) = word.to_str().filter(|text| text.starts_with('-') && *text != "-") else { break };
        rest = behind;
        if text == "--" {
            rest.first().map_or(Ok(()), |word| refuse_dash(program, word))?;
            done.has_dashes = true;
            break;
        }
        let pieces = match text.strip_prefix("--") {
            Some(_) => vec![
                text.split_once('=').map_or((text.into(), None), |(name, value)| (name.into(), Some(value))),
            ],
            None => letters(rules, text),
        };
        for (name, value) in pieces {
            let refused = || untranslated(program, &name, elsewhere::option(&[], &name));
            let (names, becomes) = find(rules, &name).ok_or_else(refused)?;
            if let (Becomes::Words(ours), Some(value)) = (becomes, value)
                && !is_meant(program, (&name, value), ours)?
            {
                continue;
            }
            done.given.push(names[0]);
            let mut value = || match value {
                Some(value) => Ok(value.to_owned()),
                None => {
                    let (first, behind) = rest
                        .split_first()
                        .ok_or_else(|| missing(program, &format!("{name}: no value given")))?;
                    rest = behind;
                    first
                        .to_str()
                        .map(String::from)
                        .ok_or_else(|| untranslated(program, &format!("{name} {first:?}"), None))
                }
            };
            match becomes {
                Becomes::Words(ours) => done.options.extend(ours.iter().map(OsString::from)),
                Becomes::Value(ours) => done.options.push(format!("{ours}={}", value()?).into()),
                Becomes::Made(make) => {
                    let value = value()?;
                    let made = make(&value).ok_or_else(|| {
                        let nearest = names.iter().find_map(|name| elsewhere::option(&[], name));
                        untranslated(program, &format!("{name} {value}"), nearest)
                    })?;
                    done.options.extend(made.into_iter().map(OsString::from));
                }
            }
        }
    }
    done.rest = rest;
    Ok(done)
}

/// Whether an option without a value is on, where it says so itself. What is so in any case cannot be switched off.
fn is_meant(program: &str, (name, value): (&str, &str), ours: &[&str]) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" => Ok(true),
        "false" | "f" | "0" if !ours.is_empty() => Ok(false),
        _ => Err(untranslated(program, &format!("{name}={value}"), elsewhere::option(&[], name))),
    }
}

fn find(rules: &[&[Rule]], name: &str) -> Option<Rule> {
    rules.iter().flat_map(|rules| rules.iter()).find(|(names, _)| names.contains(&name)).copied()
}

/// The options of a word with one dash: letters, the last of which may have a value behind it.
fn letters<'a>(rules: &[&[Rule]], word: &'a str) -> Vec<(String, Option<&'a str>)> {
    let mut found = vec![];
    for (at, letter) in word.char_indices().skip(1) {
        let name = format!("-{letter}");
        let behind = &word[at + letter.len_utf8()..];
        let takes = matches!(find(rules, &name), Some((_, Becomes::Value(_) | Becomes::Made(_))));
        if (takes && !behind.is_empty()) || behind.starts_with('=') {
            found.push((name, Some(behind.strip_prefix('=').unwrap_or(behind))));
            break;
        }
        found.push((name, None));
    }
    found
}
