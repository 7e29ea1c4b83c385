//! Words of an instruction: quotes, escapes and variables, as BuildKit reads them.

#[cfg(test)]
mod tests;

use std::iter::Peekable;
use std::str::Chars;

use super::substitute::{PatternError, replaced, without_prefix, without_suffix};

/// What a word cannot be read for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// A quote that nothing ends.
    #[error("unclosed quote {0}")]
    Quote(char),
    /// Braces that do not name a variable.
    #[error("`{0}` is not a variable: write $NAME, ${{NAME}} or ${{NAME:-DEFAULT}}")]
    Substitution(String),
    /// A modifier of BuildKit's that is not known here.
    #[error("`{0}`: only the modifiers :- - :+ + :? ? # ## % %% / and // of a variable are known")]
    Modifier(String),
    /// Nothing can be taken from the value.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A variable that must have a value.
    #[error("variable {name}: {why}")]
    Missing {
        /// The variable.
        name: String,
        /// What the Dockerfile says.
        why: String,
    },
    /// Variables that double one another.
    #[error("longer than {LONGEST_WORD} bytes with the values of its variables")]
    Long,
    /// Braces within braces, too many.
    #[error("variables are nested more than {MOST_NESTED} deep")]
    Nested,
}

/// So deep may `${A:-${B:-...}}` be nested.
const MOST_NESTED: usize = 32;

/// A word without its quotes and escapes, and with the values of its variables.
///
/// # Errors
/// A quote or brace is not closed, or a variable is missing that must have a value.
pub fn expand(word: &str, escape: char, value: &dyn Fn(&str) -> Option<String>) -> Result<String, WordError> {
    Expander::new(word, escape, value, true).until(None)
}

/// A text with the values of its variables. Quotes in it are characters as others.
///
/// # Errors
/// As [`expand`].
pub fn expand_text(
    text: &str,
    escape: char,
    value: &dyn Fn(&str) -> Option<String>,
) -> Result<String, WordError> {
    Expander::new(text, escape, value, false).until(None)
}

/// No word or text is longer with its values.
const LONGEST_WORD: usize = super::LONGEST;

struct Expander<'a> {
    chars: Peekable<Chars<'a>>,
    escape: char,
    value: &'a dyn Fn(&str) -> Option<String>,
    depth: usize,
    has_quotes: bool,
    /// Whether escapes stay, for whoever reads a pattern.
    keeps_escapes: bool,
}

impl<'a> Expander<'a> {
    fn new(text: &'a str, escape: char, value: &'a dyn Fn(&str) -> Option<String>, has_quotes: bool) -> Self {
        Self { chars: text.chars().peekable(), escape, value, depth: 0, has_quotes, keeps_escapes: false }
    }

    /// Reads up to `end`, which is taken away, or to the end of the word.
    fn until(&mut self, end: Option<char>) -> Result<String, WordError> {
        let mut read = String::new();
        while let Some(c) = self.chars.next() {
            if read.len() > LONGEST_WORD {
                return Err(WordError::Long);
            }
            match c {
                _ if Some(c) == end => return Ok(read),
                '\'' if self.has_quotes => self.single_quoted(&mut read)?,
                '"' if self.has_quotes => self.double_quoted(&mut read)?,
                '$' => read.push_str(&self.variable()?),
                // At the very end of a word it stands for nothing.
                c if c == self.escape => {
                    read.extend(self.keeps_escapes.then_some(c));
                    read.extend(self.chars.next());
                }
                c => read.push(c),
            }
        }
        match end {
            Some(_) => Err(WordError::Substitution(format!("${{...{read}"))),
            None => Ok(read),
        }
    }

    fn single_quoted(&mut self, read: &mut String) -> Result<(), WordError> {
        loop {
            match self.chars.next() {
                Some('\'') => return Ok(()),
                Some(c) => read.push(c),
                None => return Err(WordError::Quote('\'')),
            }
        }
    }

    /// The escape character keeps its meaning in front of a quote, a dollar sign and itself only.
    fn double_quoted(&mut self, read: &mut String) -> Result<(), WordError> {
        loop {
            match self.chars.next() {
                Some('"') => return Ok(()),
                Some('$') => read.push_str(&self.variable()?),
                Some(c) if c == self.escape => match self.chars.next() {
                    Some(next) if next == '"' || next == '$' || next == self.escape => {
                        read.extend(self.keeps_escapes.then_some(c));
                        read.push(next);
                    }
                    next => {
                        read.push(c);
                        read.extend(next);
                    }
                },
                Some(c) => read.push(c),
                None => return Err(WordError::Quote('"')),
            }
        }
    }

    /// What stands for a dollar sign and what follows it.
    fn variable(&mut self) -> Result<String, WordError> {
        if self.chars.next_if_eq(&'{').is_some() {
            return self.braced();
        }
        let name = self.name();
        Ok(if name.is_empty() { "$".into() } else { (self.value)(&name).unwrap_or_default() })
    }

    /// A name: letters, digits and underscores; or digits; or one of the shell's own characters.
    fn name(&mut self) -> String {
        let mut name = String::new();
        match self.chars.peek() {
            Some(c) if c.is_ascii_digit() => {
                while let Some(c) = self.chars.next_if(char::is_ascii_digit) {
                    name.push(c);
                }
            }
            Some(c) if c.is_alphabetic() || *c == '_' => {
                while let Some(c) = self.chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                    name.push(c);
                }
            }
            Some('@' | '*' | '#' | '?' | '-' | '$' | '!') => name.extend(self.chars.next()),
            _ => {}
        }
        name
    }

    fn braced(&mut self) -> Result<String, WordError> {
        let name = self.name();
        if name.is_empty() {
            let next: String = self.chars.by_ref().take(1).collect();
            return Err(WordError::Substitution(format!("${{{next}")));
        }
        let is_colon = match self.chars.next() {
            Some('}') => return Ok((self.value)(&name).unwrap_or_default()),
            Some(':') => true,
            Some(c @ ('-' | '+' | '?')) => return self.modified(&name, c, false),
            Some(c @ ('#' | '%')) => return self.trimmed(&name, c),
            Some('/') => return self.substituted(&name),
            Some(c) => return Err(WordError::Substitution(format!("${{{name}{c}"))),
            None => return Err(WordError::Substitution(format!("${{{name}"))),
        };
        match self.chars.next() {
            Some(c @ ('-' | '+' | '?')) => self.modified(&name, c, is_colon),
            Some(c @ ('#' | '%')) => self.trimmed(&name, c),
            Some(c) => Err(WordError::Modifier(format!("${{{name}:{c}"))),
            None => Err(WordError::Substitution(format!("${{{name}:"))),
        }
    }

    /// A pattern up to `end`, or what goes in its place.
    fn pattern(&mut self, end: char) -> Result<String, WordError> {
        let kept = std::mem::replace(&mut self.keeps_escapes, true);
        let pattern = self.nested(end);
        self.keeps_escapes = kept;
        pattern
    }

    /// What is in braces, up to `end`.
    fn nested(&mut self, end: char) -> Result<String, WordError> {
        self.depth += 1;
        if self.depth > MOST_NESTED {
            return Err(WordError::Nested);
        }
        let word = self.until(Some(end))?;
        self.depth -= 1;
        Ok(word)
    }

    /// `${NAME#PATTERN}` and `${NAME%PATTERN}`; the longest match counts where the sign is doubled.
    fn trimmed(&mut self, name: &str, sign: char) -> Result<String, WordError> {
        let pattern = self.pattern('}')?;
        let (is_longest, pattern) = match pattern.strip_prefix(sign) {
            Some(pattern) => (true, pattern),
            None => (false, &*pattern),
        };
        let value = (self.value)(name).unwrap_or_default();
        Ok(match sign {
            '#' => without_prefix(&value, pattern, is_longest),
            _ => without_suffix(&value, pattern, is_longest),
        }?)
    }

    /// `${NAME/PATTERN/TEXT}`; all matches count where the first slash is doubled.
    fn substituted(&mut self, name: &str) -> Result<String, WordError> {
        let is_all = self.chars.next_if_eq(&'/').is_some();
        let (pattern, text) = (self.pattern('/')?, self.pattern('}')?);
        Ok(replaced(&(self.value)(name).unwrap_or_default(), &pattern, &text, is_all)?)
    }

    /// With a colon, a variable without characters counts as missing.
    fn modified(&mut self, name: &str, modifier: char, is_colon: bool) -> Result<String, WordError> {
        let kept = std::mem::replace(&mut self.keeps_escapes, false);
        let word = self.nested('}')?;
        self.keeps_escapes = kept;
        let value = (self.value)(name).filter(|value| !is_colon || !value.is_empty());
        match (modifier, value) {
            ('+', value) => Ok(value.map(|_| word).unwrap_or_default()),
            (_, Some(value)) => Ok(value),
            ('-', None) => Ok(word),
            (_, None) => {
                let why = if word.is_empty() { "it has no value".into() } else { word };
                Err(WordError::Missing { name: name.into(), why })
            }
        }
    }
}

/// Words with whitespace between, where quotes and escapes keep whitespace in a word. They stay in it, to be read by [`expand`].
#[must_use]
pub fn split_quoted(text: &str, escape: char) -> Vec<String> {
    let (mut words, mut word, mut quote) = (vec![], String::new(), None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match quote {
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(open) if c == open => quote = None,
            // Nothing is special between single quotes.
            _ if c == escape && quote != Some('\'') => {
                word.push(c);
                word.extend(chars.next());
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
