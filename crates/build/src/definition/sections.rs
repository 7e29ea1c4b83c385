//! From the text of a definition to its stages' headers and sections.

use std::collections::{BTreeMap, BTreeSet};

use crate::dockerfile::{DockerfileError, LONGEST};

/// A stage, from its `Bootstrap` to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageText {
    /// Number of its first line, from 1.
    pub line: usize,
    /// The values of its header by their keys in lowercase, with their lines.
    pub header: BTreeMap<String, (usize, String)>,
    /// The sections in their order.
    pub sections: Vec<Section>,
}

/// A section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Number of the line with its name.
    pub line: usize,
    /// The section's name, in lowercase, without the percent sign.
    pub name: String,
    /// What is behind the name.
    pub args: String,
    /// The lines below.
    pub body: String,
}

/// What begins a stage.
const BOOTSTRAP: &str = "bootstrap:";

/// Whether a line begins a stage.
pub fn is_bootstrap(line: &str) -> bool {
    line.get(..BOOTSTRAP.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(BOOTSTRAP))
}

/// Reads the stages. The names of arguments that have been replaced are added to `used`.
///
/// # Errors
/// The text is not a definition, or an argument has no value.
pub fn read(
    text: &str,
    given: &BTreeMap<String, String>,
    used: &mut BTreeSet<String>,
) -> Result<Vec<StageText>, DockerfileError> {
    let mut stages: Vec<(usize, String)> = vec![];
    for (at, line) in text.lines().enumerate() {
        if is_bootstrap(line) {
            stages.push((at + 1, String::new()));
        }
        match stages.last_mut() {
            Some((_, text)) => text.extend([line, "\n"]),
            None if line.trim().is_empty() || line.trim_start().starts_with('#') => {}
            None => {
                return Err(DockerfileError::new(at + 1, "no Bootstrap before it")
                    .hint("a definition begins with `Bootstrap: docker` and `From: IMAGE`"));
            }
        }
    }
    stages.into_iter().map(|(line, text)| stage(line, &text, given, used)).collect()
}

fn stage(
    line: usize,
    text: &str,
    given: &BTreeMap<String, String>,
    used: &mut BTreeSet<String>,
) -> Result<StageText, DockerfileError> {
    let raw = sections(line, text)?;
    let mut values = BTreeMap::new();
    for section in raw.sections.iter().filter(|section| section.name == "arguments") {
        values.extend(section.body.lines().filter_map(argument));
    }
    // Names that only the section knows have been asked for as well.
    used.extend(given.keys().filter(|name| values.contains_key(*name)).cloned());
    values.extend(given.clone());
    let filled = Filler { line, text, values: &values, used }.fill()?;
    sections(line, &filled)
}

/// `NAME=VALUE` of `%arguments`. A remark or a line that is none counts for nothing, as in Apptainer.
fn argument(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
    let name = name.trim();
    (!name.is_empty()).then(|| (name.into(), value.trim().into()))
}

/// So many placeholders at most, with names of so many characters.
const MOST_PLACEHOLDERS: usize = 10_000;
const LONGEST_NAME: usize = 256;

/// Puts values in the place of `{{ NAME }}`.
struct Filler<'a> {
    line: usize,
    text: &'a str,
    values: &'a BTreeMap<String, String>,
    used: &'a mut BTreeSet<String>,
}

impl Filler<'_> {
    fn fill(&mut self) -> Result<String, DockerfileError> {
        let (mut filled, mut done, mut from, mut count) = (String::new(), 0, 0, 0);
        let line = self.line;
        let too_much = |what: String| Err(DockerfileError::new(line, what));
        while let Some(begin) = self.text[from..].find("{{").map(|at| from + at) {
            let Some((name, len)) = placeholder(&self.text[begin..]) else {
                from = begin + 1;
                continue;
            };
            let end = begin + len;
            from = end;
            count += 1;
            if count > MOST_PLACEHOLDERS {
                return too_much(format!("more than {MOST_PLACEHOLDERS} placeholders"));
            }
            if is_remark(&self.text[done..begin]) {
                continue;
            }
            let value = self.values.get(name).ok_or_else(|| {
                let line = self.line + self.text[..begin].matches('\n').count();
                DockerfileError::new(line, format!("{{{{ {name} }}}} has no value"))
                    .hint(format!("--build-arg {name}=VALUE gives one, or a line {name}=VALUE in %arguments"))
            })?;
            self.used.insert(name.into());
            filled.push_str(&self.text[done..begin]);
            filled.push_str(&self.nested(value));
            if filled.len() > LONGEST {
                return too_much(format!(
                    "with the values of its placeholders it is longer than {LONGEST} bytes"
                ));
            }
            done = end;
        }
        filled.push_str(&self.text[done..]);
        Ok(filled)
    }

    /// A value may name others; these are taken as they are.
    fn nested(&mut self, value: &str) -> String {
        let (mut filled, mut rest) = (String::new(), value);
        while let Some(at) = rest.find("{{") {
            let found = placeholder(&rest[at..])
                .and_then(|(name, len)| self.values.get(name).map(|value| (name, value, len)));
            let (text, len) = match found {
                Some((name, value, len)) => {
                    self.used.insert(name.into());
                    (value.as_str(), len)
                }
                None => ("{{", 2),
            };
            filled.extend([&rest[..at], text]);
            rest = &rest[at + len..];
        }
        filled + rest
    }
}

/// The name between braces, and how long it is with these.
fn placeholder(text: &str) -> Option<(&str, usize)> {
    let inner = text.strip_prefix("{{")?;
    // No name is longer: a file full of braces is not searched to its end for each.
    let near = inner.char_indices().nth(LONGEST_NAME).map_or(inner, |(at, _)| &inner[..at]);
    let (name, _) = near.split_once("}}")?;
    let len = name.len() + 4;
    let name = name.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, len))
}

/// Whether a placeholder behind this text stands in a remark: a number sign is before it on its line, and is not the first half of `#!`.
fn is_remark(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default();
    line.match_indices('#').any(|(at, _)| line[at + 1..].chars().next().is_some_and(|next| next != '!'))
}

fn sections(first: usize, text: &str) -> Result<StageText, DockerfileError> {
    let mut stage = StageText { line: first, header: BTreeMap::new(), sections: vec![] };
    let mut header = vec![];
    for (at, line) in text.lines().enumerate() {
        let number = first + at;
        if line.trim_start().starts_with('%') {
            if !line.starts_with('%') {
                return Err(DockerfileError::new(number, "a line in a section begins with `%`")
                    .hint("`%` begins a section, whose name must be the first word of its line, without blanks before it"));
            }
            let line = line.trim_start_matches('%');
            let (name, args) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            stage.sections.push(Section {
                line: number,
                name: name.to_ascii_lowercase(),
                args: args.trim().into(),
                body: String::new(),
            });
            continue;
        }
        match stage.sections.last_mut() {
            Some(section) => section.body.extend([line, "\n"]),
            None => header.push((number, line)),
        }
    }
    stage.header = read_header(&header)?;
    Ok(stage)
}

/// `KEY: VALUE`, of which a backslash at the end continues the line.
fn read_header(lines: &[(usize, &str)]) -> Result<BTreeMap<String, (usize, String)>, DockerfileError> {
    let mut header = BTreeMap::new();
    let mut begun: Option<(usize, String, String)> = None;
    for (number, line) in lines {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (first, key, value) = match begun.take() {
            Some((first, key, value)) => (first, key, value + line),
            None if line.is_empty() => continue,
            None => {
                let (key, value) = line.split_once(':').ok_or_else(|| {
                    DockerfileError::new(*number, format!("{line:?} is not a line of a header"))
                        .hint("KEY: VALUE")
                })?;
                (*number, key.trim().to_ascii_lowercase(), value.trim().to_owned())
            }
        };
        match value.strip_suffix('\\') {
            Some(part) => begun = Some((first, key, part.into())),
            None => {
                header.insert(key, (first, value));
            }
        }
    }
    header.extend(begun.map(|(first, key, value)| (key, (first, value))));
    Ok(header)
}
