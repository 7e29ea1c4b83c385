//! A text with variables in it: `${NAME}`, `${NAME:-what stands for it}`, and `$$` for a dollar sign.

use std::fmt;

/// A text, and where variables stand in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable { name: String, otherwise: Option<Template> },
}

/// Why a text is no template, or cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A `${` without its end.
    #[error("{0:?} has no }} at its end")]
    Open(String),
    /// What stands in braces is no name.
    #[error("{0:?} is not the name of a variable")]
    Name(String),
    /// Braces in braces in braces.
    #[error("variables in more than {MOST_NESTED} levels")]
    TooDeep,
    /// Nobody has set it.
    #[error("the variable {0} is not set")]
    Unset(String),
}

const MOST_NESTED: usize = 8;

impl Template {
    /// Reads one.
    ///
    /// # Errors
    /// All but [`TemplateError::Unset`].
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Self::parse_nested(text, 0)
    }

    fn parse_nested(text: &str, level: usize) -> Result<Self, TemplateError> {
        if level > MOST_NESTED {
            return Err(TemplateError::TooDeep);
        }
        let (mut parts, mut plain, mut rest) = (vec![], String::new(), text);
        while let Some(at) = rest.find('$') {
            plain.push_str(&rest[..at]);
            let behind = &rest[at + 1..];
            rest = match behind.chars().next() {
                Some('$') => {
                    plain.push('$');
                    &behind[1..]
                }
                Some('{') => {
                    let end = end_of(behind).ok_or_else(|| TemplateError::Open(rest[at..].into()))?;
                    parts.extend(taken(&mut plain));
                    parts.push(variable(&behind[1..end], level)?);
                    &behind[end + 1..]
                }
                // As it stands, like in the engine whose files these are.
                _ => {
                    plain.push('$');
                    behind
                }
            };
        }
        plain.push_str(rest);
        parts.extend(taken(&mut plain));
        Ok(Self { text: text.into(), parts })
    }

    /// The text with the values of its variables.
    ///
    /// # Errors
    /// [`TemplateError::Unset`] for one that has no value, and nothing stands for it.
    pub fn fill(&self, value: &dyn Fn(&str) -> Option<String>) -> Result<String, TemplateError> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Variable { name, otherwise } => match (value(name), otherwise) {
                    // As in a shell, `:-` counts for an empty one, too.
                    (Some(value), None) => filled.push_str(&value),
                    (Some(value), Some(_)) if !value.is_empty() => filled.push_str(&value),
                    (_, Some(otherwise)) => filled.push_str(&otherwise.fill(value)?),
                    (None, None) => return Err(TemplateError::Unset(name.clone())),
                },
            }
        }
        Ok(filled)
    }

    /// Whether it is the same with any variables.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }
}

/// A text as it has to be written to be itself when it is read.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut written = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let behind = rest[at..].trim_start_matches('$');
        let count = rest.len() - at - behind.len();
        written.push_str(&rest[..at]);
        // A single one is itself, unless a brace makes it a variable.
        let is_plain = count == 1 && !behind.starts_with('{');
        written.push_str(&"$".repeat(if is_plain { 1 } else { 2 * count }));
        rest = behind;
    }
    written.push_str(rest);
    written
}

/// As it was written.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn taken(plain: &mut String) -> Option<Part> {
    (!plain.is_empty()).then(|| Part::Text(std::mem::take(plain)))
}

/// Where the brace at the beginning is closed, with braces of variables in between.
fn end_of(braced: &str) -> Option<usize> {
    let mut open = 0usize;
    let mut before = ' ';
    for (at, c) in braced.char_indices() {
        match c {
            '{' if at == 0 || before == '$' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
        before = c;
    }
    None
}

fn variable(inner: &str, level: usize) -> Result<Part, TemplateError> {
    let (name, otherwise) = match inner.split_once(":-") {
        Some((name, text)) => (name, Some(Template::parse_nested(text, level + 1)?)),
        None => (inner, None),
    };
    let is_name = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    match is_name {
        true => Ok(Part::Variable { name: name.into(), otherwise }),
        false => Err(TemplateError::Name(name.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> String {
        let value = |name: &str| match name {
            "USER" => Some("alice".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        Template::parse(text).and_then(|t| t.fill(&value)).unwrap_or_else(|e| format!("! {e}"))
    }

    #[test]
    fn variables_are_filled_in_as_written_in_definitions() {
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("/scratch/${USER}/x", "/scratch/alice/x"),
            ("${USER}${USER}", "alicealice"),
            ("$${USER}", "${USER}"),
            ("$USER costs 5$", "$USER costs 5$"),
            ("${NONE:-x}${EMPTY:-y}${EMPTY}", "xy"),
            ("${NONE:-}", ""),
            ("${NONE:-/home/${USER}}/a", "/home/alice/a"),
            ("${NONE:-{x}", "{x"),
            ("${NONE}", "! the variable NONE is not set"),
            ("a${USER", "! \"${USER\" has no } at its end"),
            ("${}", "! \"\" is not the name of a variable"),
            ("${1}", "! \"1\" is not the name of a variable"),
            ("${a b}", "! \"a b\" is not the name of a variable"),
        ] {
            assert_eq!(filled(text), want, "{text}");
        }
        let deep = format!("{}x{}", "${A:-".repeat(20), "}".repeat(20));
        assert_eq!(Template::parse(&deep), Err(TemplateError::TooDeep));
    }

    proptest::proptest! {
        #[test]
        fn what_is_escaped_is_read_as_itself(text in "[${}:a-c -]{0,40}") {
            let read = Template::parse(&escaped(&text)).and_then(|template| template.fill(&|_| None));
            proptest::prop_assert_eq!(read, Ok(text));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[${}:a-c -]{0,40}|.{0,40}") {
            if let Ok(template) = Template::parse(&text) {
                proptest::prop_assert_eq!(template.to_string(), text.clone());
                if template.is_plain() && !text.contains('$') {
                    proptest::prop_assert_eq!(template.fill(&|_| None), Ok(text));
                }
            }
        }
    }
}
