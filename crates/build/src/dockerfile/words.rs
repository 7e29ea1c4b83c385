//! Words of an instruction: quotes, escapes and variables, as BuildKit reads them.

use std::iter::Peekable;
use std::str::Chars;

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
    #[error("`{0}`: only the modifiers :- - :+ + :? and ? of a variable are supported")]
    Modifier(String),
    /// A variable that must have a value.
    #[error("variable {name}: {why}")]
    Missing {
        /// The variable.
        name: String,
        /// What the Dockerfile says.
        why: String,
    },
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
    let mut expander = Expander { chars: word.chars().peekable(), escape, value, depth: 0, has_quotes: true };
    expander.until(None)
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
    let mut expander =
        Expander { chars: text.chars().peekable(), escape, value, depth: 0, has_quotes: false };
    expander.until(None)
}

struct Expander<'a> {
    chars: Peekable<Chars<'a>>,
    escape: char,
    value: &'a dyn Fn(&str) -> Option<String>,
    depth: usize,
    has_quotes: bool,
}

impl Expander<'_> {
    /// Reads up to `end`, which is taken away, or to the end of the word.
    fn until(&mut self, end: Option<char>) -> Result<String, WordError> {
        let mut read = String::new();
        while let Some(c) = self.chars.next() {
            match c {
                _ if Some(c) == end => return Ok(read),
                '\'' if self.has_quotes => self.single_quoted(&mut read)?,
                '"' if self.has_quotes => self.double_quoted(&mut read)?,
                '$' => read.push_str(&self.variable()?),
                // At the very end of a word it stands for nothing.
                c if c == self.escape => read.extend(self.chars.next()),
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
                    Some(next) if next == '"' || next == '$' || next == self.escape => read.push(next),
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
            Some(c @ ('#' | '%' | '/')) => return Err(WordError::Modifier(format!("${{{name}{c}"))),
            Some(c) => return Err(WordError::Substitution(format!("${{{name}{c}"))),
            None => return Err(WordError::Substitution(format!("${{{name}"))),
        };
        match self.chars.next() {
            Some(c @ ('-' | '+' | '?')) => self.modified(&name, c, is_colon),
            Some(c) => Err(WordError::Modifier(format!("${{{name}:{c}"))),
            None => Err(WordError::Substitution(format!("${{{name}:"))),
        }
    }

    /// With a colon, a variable without characters counts as missing.
    fn modified(&mut self, name: &str, modifier: char, is_colon: bool) -> Result<String, WordError> {
        self.depth += 1;
        if self.depth > MOST_NESTED {
            return Err(WordError::Nested);
        }
        let word = self.until(Some('}'))?;
        self.depth -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str) -> Option<String> {
        let known = [
            ("PWD", "/home"),
            ("NULL", ""),
            ("1", "one"),
            ("1x", "wrong"),
            ("KOREAN", "한국어"),
            ("abc", "bar"),
        ];
        known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
    }

    /// The facts are those of BuildKit's own table of variables.
    #[test]
    fn words_are_buildkits() {
        for (word, want) in [
            ("hello", "hello"),
            ("he'll'o", "hello"),
            ("he'll''o'", "hello"),
            (r"he\'llo", "he'llo"),
            (r"he\\'llo'", r"he\llo"),
            (r"abc\tdef", "abctdef"),
            (r#""abc\tdef""#, r"abc\tdef"),
            (r#""abc\\tdef""#, r"abc\tdef"),
            (r"'abc\tdef'", r"abc\tdef"),
            (r#""he\"llo""#, "he\"llo"),
            (r#"'he\"llo'"#, r#"he\"llo"#),
            ("'hello there'", "hello there"),
            ("''", ""),
            (r#""""#, ""),
            ("he$PWD.", "he/home."),
            (r"he\$PWD", "he$PWD"),
            (r"he\\$PWD", r"he\/home"),
            ("he$PWD$PWD", "he/home/home"),
            (r#""he$PWD""#, "he/home"),
            ("'he$PWD'", "he$PWD"),
            (r#""he\$PWD""#, "he$PWD"),
            ("he$hi", "he"),
            ("he${hi}", "he"),
            ("he${PWD}x", "he/homex"),
            ("he${XXX:-000}xx", "he000xx"),
            ("he${PWD:-000}xx", "he/homexx"),
            ("he${XXX:-$PWD}xx", "he/homexx"),
            ("he${XXX:-${PWD:-yyy}}xx", "he/homexx"),
            ("he${XXX:-${YYY:-yyy}}xx", "heyyyxx"),
            ("he${NULL:-def}xx", "hedefxx"),
            ("he${NULL-def}xx", "hexx"),
            ("he${XXX-def}xx", "hedefxx"),
            ("he${XXX:+000}xx", "hexx"),
            ("he${PWD:+000}xx", "he000xx"),
            ("he${NULL:+000}xx", "hexx"),
            ("he${NULL+000}xx", "he000xx"),
            ("he${PWD:+${XXX:-alt}}xx", "healtxx"),
            ("he${XXX:-'a b'}", "hea b"),
            ("${PWD:?no}", "/home"),
            ("${NULL?no}", ""),
            ("$1x", "onex"),
            ("$.x", "$.x"),
            ("he$", "he$"),
            ("he\\", "he"),
            ("안녕$KOREAN", "안녕한국어"),
            ("$abc,$def", "bar,"),
            (r"\${foo}", "${foo}"),
        ] {
            assert_eq!(expand(word, '\\', &value).as_deref(), Ok(want), "{word}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for word in [
            "'",
            "he'llo",
            "\"x",
            "${",
            "${}",
            "${PWD",
            "${PWD:",
            "${PWD:}",
            "${PWD:-x",
            "${.x}",
            "${PWD x}",
            "${XXX:?}",
            "${NULL:?no}",
            "${PWD%/*}",
            "${PWD#/}",
            "${PWD/a/b}",
        ] {
            assert!(expand(word, '\\', &value).is_err(), "{word}");
        }
        assert_eq!(expand(&"${A:-".repeat(100_000), '\\', &value), Err(WordError::Nested));
        let missing = expand("${XXX:?set it}", '\\', &value).expect_err("missing").to_string();
        assert_eq!(missing, "variable XXX: set it");
    }

    #[test]
    fn texts_keep_their_quotes() {
        assert_eq!(
            expand_text("it's \"$PWD\" \\$PWD\n", '\\', &value).as_deref(),
            Ok("it's \"/home\" $PWD\n")
        );
    }

    #[test]
    fn another_escape_character() {
        assert_eq!(expand(r"c:\dir`$x", '`', &value).as_deref(), Ok(r"c:\dir$x"));
    }

    #[test]
    fn quotes_keep_whitespace_in_a_word() {
        for (text, want) in [
            ("a=1  b='x y'", vec!["a=1", "b='x y'"]),
            (r"a=x\ y b", vec![r"a=x\ y", "b"]),
            (r#"a="x \" y" b"#, vec![r#"a="x \" y""#, "b"]),
            (r"a='\' b", vec![r"a='\'", "b"]),
            ("", vec![]),
            (" \t ", vec![]),
        ] {
            assert_eq!(split_quoted(text, '\\'), want, "{text}");
        }
    }
}
