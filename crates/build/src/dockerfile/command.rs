//! The parts of an instruction behind its name: flags, lists in JSON, names with values, durations.

use super::words::split_quoted;

/// A command: words, or a line for the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A program and its arguments.
    Exec(Vec<String>),
    /// A line for the stage's shell.
    Shell(String),
}

impl Command {
    /// A list in JSON is words; all else is the shell's.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        list(text).map_or_else(|| Self::Shell(text.into()), Self::Exec)
    }

    /// The words that are run, where the stage has this shell.
    #[must_use]
    pub fn words(&self, shell: &[String]) -> Vec<String> {
        match self {
            Self::Exec(words) => words.clone(),
            Self::Shell(line) => shell.iter().cloned().chain([line.clone()]).collect(),
        }
    }
}

/// A list of texts in JSON.
#[must_use]
pub fn list(text: &str) -> Option<Vec<String>> {
    if !text.trim_start().starts_with('[') {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Instructions that may have a list in JSON.
pub const LISTS: [&str; 7] = ["ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME"];

/// Whether a text is a list in JSON, but not of texts alone: no command is meant by that.
#[must_use]
pub fn is_mixed_list(text: &str) -> bool {
    list(text).is_none() && serde_json::from_str::<Vec<serde_json::Value>>(text).is_ok()
}

/// A list in JSON, or words with whitespace between. Quotes have no effect on these.
#[must_use]
pub fn list_or_words(text: &str) -> Vec<String> {
    list(text).unwrap_or_else(|| text.split_whitespace().map(String::from).collect())
}

/// A flag in front of an instruction's words: `--NAME[=VALUE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Name of the flag, without dashes.
    pub name: String,
    /// What is behind the equals sign.
    pub value: Option<String>,
}

/// The flags at the beginning, and what is behind them.
#[must_use]
pub fn flags(text: &str, escape: char) -> (Vec<Flag>, String) {
    let mut found = vec![];
    let mut rest = text.trim_start();
    while rest.starts_with("--") {
        // The first word alone: whatever is behind it may have quotes of its own.
        let end = end_of_word(rest, escape);
        let (word, behind) = rest.split_at(end);
        rest = behind.trim_start();
        if word == "--" {
            break;
        }
        let word = word.trim_start_matches("--");
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        found.push(Flag { name: name.into(), value: value.map(String::from) });
    }
    (found, rest.to_owned())
}

/// Where the first word ends, of whose whitespace some may be quoted.
fn end_of_word(text: &str, escape: char) -> usize {
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match quote {
            None if c.is_whitespace() => return at,
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ if c == escape && quote != Some('\'') => {
                chars.next();
            }
            _ => {}
        }
    }
    text.len()
}

/// `A=B C="D E"`, or of one alone `A B`: names and values, quotes and all.
///
/// # Errors
/// Says what is missing.
pub fn pairs(text: &str, escape: char) -> Result<Vec<(String, String)>, String> {
    let words = split_quoted(text, escape);
    let Some(first) = words.first() else { return Err("the instruction has no arguments".into()) };
    if !first.contains('=') {
        let (name, value) = text
            .trim()
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("{first} has no value: write NAME=VALUE"))?;
        return Ok(vec![(name.into(), value.trim().into())]);
    }
    let pair = |word: &String| match word.split_once('=') {
        Some(("", _)) => Err(format!("{word} has no name: write NAME=VALUE")),
        Some((name, value)) => Ok((name.into(), value.into())),
        None => Err(format!("{word} has no value: write NAME=VALUE")),
    };
    words.iter().map(pair).collect()
}

/// A length of time as Go writes it, in nanoseconds: `1m30s`, `1.5h`, `500ms`, `0`.
#[must_use]
pub fn duration(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut sum) = (text, 0.0);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(end);
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let (_, factor) = UNITS.iter().find(|(known, _)| *known == unit)?;
        sum += number.parse::<f64>().ok()? * factor;
        rest = behind;
    }
    // Go's own has 63 bits: 292 years.
    (0.0..9.2e18).contains(&sum).then_some(sum as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_words() {
        let flag =
            |name: &str, value: Option<&str>| Flag { name: name.into(), value: value.map(String::from) };
        for (text, want, rest) in [
            ("--from=a --link x y", vec![flag("from", Some("a")), flag("link", None)], "x y"),
            ("--network=none -- --odd", vec![flag("network", Some("none"))], "--odd"),
            ("x --from=a", vec![], "x --from=a"),
            (r#"--chown="a b" x"#, vec![flag("chown", Some(r#""a b""#))], "x"),
            ("--a", vec![flag("a", None)], ""),
        ] {
            assert_eq!(flags(text, '\\'), (want, rest.into()), "{text}");
        }
    }

    #[test]
    fn durations_are_gos() {
        for (text, want) in [
            ("30s", Some(30_000_000_000)),
            ("1m30s", Some(90_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            ("250ms", Some(250_000_000)),
            ("0", Some(0)),
            ("", None),
            ("5", None),
            ("5x", None),
            ("-5s", None),
            ("s", None),
            ("9999999999999h", None),
        ] {
            assert_eq!(duration(text), want, "{text}");
        }
    }

    #[test]
    fn pairs_of_names_and_values() {
        let pair = |name: &str, value: &str| (String::from(name), String::from(value));
        assert_eq!(pairs("a=1 b='x y'", '\\'), Ok(vec![pair("a", "1"), pair("b", "'x y'")]));
        assert_eq!(pairs("a  x y=z", '\\'), Ok(vec![pair("a", "x y=z")]));
        for text in ["", "a", "a=1 b", "=x"] {
            assert!(pairs(text, '\\').is_err(), "{text:?}");
        }
    }
}
