//! Patterns for paths: `*`, `?`, `[a-z]` and `\` within a name, as Go's `filepath.Match` has them, and `**` for directories.

/// A pattern that paths can be compared with, in a time that grows with both lengths only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    tokens: Vec<Token>,
    /// The length of the shortest path that can be meant.
    shortest: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// Any byte but a slash.
    Any,
    /// Any number of these.
    Star,
    /// Any number of directories, with the slashes behind them.
    Directories,
    /// All that may follow.
    Rest,
    /// One byte of these ranges; or none of them.
    Class {
        is_negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

/// Whether a path has characters that make it a pattern.
#[must_use]
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

impl Pattern {
    /// A pattern for whole paths. A bracket that nothing closes stands for itself.
    #[must_use]
    pub fn of_path(text: &[u8]) -> Self {
        Self::of_tokens(tokens(text, true))
    }

    /// A pattern for a name. There `**` is `*`.
    #[must_use]
    pub fn of_name(text: &[u8]) -> Self {
        Self::of_tokens(tokens(text, false))
    }

    fn of_tokens(tokens: Vec<Token>) -> Self {
        let is_byte = |token: &&Token| matches!(token, Token::Byte(_) | Token::Any | Token::Class { .. });
        let shortest = tokens.iter().filter(is_byte).count();
        Self { tokens, shortest }
    }

    /// Whether a path is meant.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        self.compare(path, false).0
    }

    /// Whether a path is meant, or a directory that it is in; and how many steps that took, each of some nanoseconds.
    #[must_use]
    pub fn matches_part(&self, path: &[u8]) -> (bool, u64) {
        self.compare(path, true)
    }

    /// Follows all ways to read the pattern at once. As many as the path has bytes, about, can be open at a time: a pattern that needs a
    /// longer path is not looked at.
    fn compare(&self, path: &[u8], with_directories: bool) -> (bool, u64) {
        // Most patterns of most lists.
        let begins_otherwise =
            matches!(self.tokens.first(), Some(Token::Byte(first)) if path.first() != Some(first));
        if begins_otherwise || path.len() < self.shortest {
            return (false, 1);
        }
        let last = 2 * self.tokens.len();
        let [mut states, mut next] = [StateSet::new(last + 2), StateSet::new(last + 2)];
        self.enter(&mut states, 0);
        let mut steps = 1;
        for byte in path {
            if with_directories && *byte == b'/' && states.has[last] {
                return (true, steps);
            }
            steps += states.all.len() as u64;
            for state in &states.all {
                self.step(&mut next, *state, *byte);
            }
            std::mem::swap(&mut states, &mut next);
            next.clear();
            if states.all.is_empty() {
                return (false, steps);
            }
        }
        (states.has[last], steps)
    }

    /// Adds the state before a token, and those that are reached from there without a byte.
    fn enter(&self, states: &mut StateSet, token: usize) {
        states.add(2 * token);
        match self.tokens.get(token) {
            Some(Token::Star | Token::Rest) => self.enter(states, token + 1),
            Some(Token::Directories) => {
                states.add(2 * token + 1);
                self.enter(states, token + 1);
            }
            _ => {}
        }
    }

    fn step(&self, next: &mut StateSet, state: usize, byte: u8) {
        let (at, is_among) = (state / 2, state % 2 == 1);
        match self.tokens.get(at) {
            Some(Token::Directories) if is_among => {
                next.add(state);
                if byte == b'/' {
                    self.enter(next, at + 1);
                }
            }
            Some(Token::Byte(wanted)) if *wanted == byte => self.enter(next, at + 1),
            Some(Token::Any) if byte != b'/' => self.enter(next, at + 1),
            Some(Token::Star) if byte != b'/' => self.enter(next, at),
            Some(Token::Rest) => self.enter(next, at),
            Some(Token::Class { is_negated, ranges }) if byte != b'/' => {
                let is_in = ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte));
                if is_in != *is_negated {
                    self.enter(next, at + 1);
                }
            }
            _ => {}
        }
    }
}

/// Ways to read a pattern so far. There are two for each token: before it, and among the directories that it stands for.
struct StateSet {
    has: Vec<bool>,
    all: Vec<usize>,
}

impl StateSet {
    fn new(count: usize) -> Self {
        Self { has: vec![false; count], all: vec![] }
    }

    fn add(&mut self, state: usize) {
        if !std::mem::replace(&mut self.has[state], true) {
            self.all.push(state);
        }
    }

    fn clear(&mut self) {
        self.all.drain(..).for_each(|state| self.has[state] = false);
    }
}

fn tokens(mut text: &[u8], is_path: bool) -> Vec<Token> {
    let mut found: Vec<Token> = vec![];
    while let Some((first, rest)) = text.split_first() {
        text = rest;
        let token = match first {
            b'*' => {
                let stars = text.iter().take_while(|byte| **byte == b'*').count();
                text = &text[stars..];
                match (stars > 0 && is_path, text.strip_prefix(b"/"), text.is_empty()) {
                    (false, ..) => Token::Star,
                    (true, Some(behind), _) => {
                        text = behind;
                        Token::Directories
                    }
                    (true, None, true) => Token::Rest,
                    (true, None, false) => Token::Directories,
                }
            }
            b'?' => Token::Any,
            b'[' => match class(text) {
                Some((token, behind)) => {
                    text = behind;
                    token
                }
                None => Token::Byte(b'['),
            },
            b'\\' => match text.split_first() {
                Some((next, behind)) => {
                    text = behind;
                    Token::Byte(*next)
                }
                None => Token::Byte(b'\\'),
            },
            byte => Token::Byte(*byte),
        };
        // Twice the same is once: each is entered from the one before.
        if !matches!(token, Token::Star | Token::Rest | Token::Directories) || found.last() != Some(&token) {
            found.push(token);
        }
    }
    found
}

/// Reads what follows `[`.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let (is_negated, mut text) = match text {
        [b'^', rest @ ..] => (true, rest),
        text => (false, text),
    };
    let mut ranges = vec![];
    loop {
        if let [b']', behind @ ..] = text
            && !ranges.is_empty()
        {
            return Some((Token::Class { is_negated, ranges }, behind));
        }
        let (low, rest) = class_byte(text)?;
        let (high, rest) = match rest {
            [b'-', rest @ ..] => class_byte(rest)?,
            rest => (low, rest),
        };
        ranges.push((low, high));
        text = rest;
    }
}

fn class_byte(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [b'\\', byte, rest @ ..] => Some((*byte, rest)),
        [b'-' | b']' | b'\\', ..] | [] => None,
        [byte, rest @ ..] => Some((*byte, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_gos() {
        for (pattern, name, want) in [
            ("abc", "abc", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "a", true),
            ("a*", "ab/c", false),
            ("a*b*c*d*e*/f", "axbxcxdxe/f", true),
            ("a*b?c*x", "abxbbxdbxebxczzx", true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^e-g]", "abc", true),
            (r"a\*b", "a*b", true),
            (r"a\*b", "ab", false),
            ("a?b", "a/b", false),
            (r"[\]a]", "]", true),
            (r"[x\-]", "-", true),
            ("[", "[", true),
            ("**", "ab", true),
        ] {
            assert_eq!(
                Pattern::of_name(pattern.as_bytes()).matches(name.as_bytes()),
                want,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn paths_are_dockers() {
        for (pattern, path, want) in [
            ("**", "file", true),
            ("**", "a/b/c", true),
            ("**/b", "b", true),
            ("**/b", "a/c/b", true),
            ("**/b", "ab", false),
            ("a/**", "a/b/c", true),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/xb", false),
            ("**/*.go", "x/y.go", true),
            ("*/*", "a/b", true),
            ("*/*", "a/b/c", false),
        ] {
            assert_eq!(
                Pattern::of_path(pattern.as_bytes()).matches(path.as_bytes()),
                want,
                "{pattern} {path}"
            );
        }
    }

    #[test]
    fn a_directory_on_the_way_is_enough_where_it_may_be() {
        for (pattern, path, want) in [
            ("a", "a/b", true),
            ("a/*", "a/b/c", true),
            ("**/b", "a/b/c/d", true),
            ("b", "a/b", false),
            ("a/b/c", "a/b", false),
            ("a", "ab/c", false),
        ] {
            let pattern_of_path = Pattern::of_path(pattern.as_bytes());
            assert_eq!(pattern_of_path.matches_part(path.as_bytes()).0, want, "{pattern} {path}");
        }
    }

    #[test]
    fn the_work_depends_on_the_path_and_not_on_the_length_of_the_pattern() {
        let (path, star) =
            ("a".repeat(200), |count| Pattern::of_path(format!("**/{}b", "a*".repeat(count)).as_bytes()));
        assert_eq!(star(20_000).matches_part(path.as_bytes()), (false, 1));
        let (is_meant, steps) = star(199).matches_part(path.as_bytes());
        assert!(!is_meant && (10_000..200_000).contains(&steps), "{steps}");
        let literal = Pattern::of_path(b"**/node_modules").matches_part(b"src/a/very/long/way/to/a/file.txt");
        assert!(!literal.0 && literal.1 < 100, "{literal:?}");
    }

    #[test]
    fn many_stars_take_no_longer() {
        let pattern = Pattern::of_path("*a".repeat(500).as_bytes());
        assert!(
            !pattern.matches(
                "a".repeat(4000).as_bytes().iter().chain(b"b").copied().collect::<Vec<_>>().as_slice()
            )
        );
    }
}
