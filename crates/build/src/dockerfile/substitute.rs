//! What `#`, `%` and `/` behind a variable's name do with its value, by a shell's patterns: `*`, `?`, and backslashes before these.

/// Why nothing can be matched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A backslash that escapes nothing.
    #[error("`{0}`: a backslash in a pattern stands before *, ?, }}, / or another one only")]
    Escape(String),
    /// Matching would take too long.
    #[error("a value or pattern is too long for # % or /")]
    TooLong,
}

/// Values that are longer, in characters, would take too long.
const LONGEST_VALUE: usize = 1024;
/// And so would patterns.
const LONGEST_PATTERN: usize = 128;

/// A part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// This character.
    Char(char),
    /// One character.
    One,
    /// Any number of characters.
    Many,
}

/// The value without what the pattern matches at its beginning: the shortest or the longest.
pub fn without_prefix(value: &str, pattern: &str, is_longest: bool) -> Result<String, PatternError> {
    let (pieces, value) = read(pattern, value)?;
    Ok(value[ends(&pieces, &value, is_longest).unwrap_or(0)..].iter().collect())
}

/// The same for its end.
pub fn without_suffix(value: &str, pattern: &str, is_longest: bool) -> Result<String, PatternError> {
    let (mut pieces, mut value) = read(pattern, value)?;
    pieces.reverse();
    value.reverse();
    let left = &value[ends(&pieces, &value, is_longest).unwrap_or(0)..];
    Ok(left.iter().rev().collect())
}

/// The value with another text in the place of what the pattern matches: the first, or all.
pub fn replaced(value: &str, pattern: &str, text: &str, is_all: bool) -> Result<String, PatternError> {
    let (pieces, value) = read(pattern, value)?;
    let (mut replaced, mut at, mut is_done) = (String::new(), 0, false);
    while at <= value.len() {
        let found = if is_done { None } else { ends(&pieces, &value[at..], true) };
        if found.is_some() {
            replaced.push_str(text);
            is_done = !is_all;
        }
        match found {
            Some(len) if len > 0 => at += len,
            _ => {
                replaced.extend(value.get(at));
                at += 1;
            }
        }
    }
    Ok(replaced)
}

fn read(pattern: &str, value: &str) -> Result<(Vec<Piece>, Vec<char>), PatternError> {
    let value: Vec<char> = value.chars().collect();
    let mut pieces = vec![];
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            '*' => Piece::Many,
            '?' => Piece::One,
            // A brace or a slash would end the pattern otherwise.
            '\\' => match chars.next() {
                Some(next @ ('*' | '?' | '\\' | '}' | '/')) => Piece::Char(next),
                _ => return Err(PatternError::Escape(pattern.into())),
            },
            c => Piece::Char(c),
        });
    }
    match pieces.len() > LONGEST_PATTERN || value.len() > LONGEST_VALUE {
        true => Err(PatternError::TooLong),
        false => Ok((pieces, value)),
    }
}

/// How many characters at the beginning are matched, at least or at most.
fn ends(pieces: &[Piece], value: &[char], is_longest: bool) -> Option<usize> {
    // Which parts may come next: that is all there is to know of what was read.
    let mut states = vec![false; pieces.len() + 1];
    states[0] = true;
    pass_stars(pieces, &mut states);
    let mut end = states[pieces.len()].then_some(0);
    for (at, c) in value.iter().enumerate() {
        if end.is_some() && !is_longest {
            break;
        }
        let mut next = vec![false; states.len()];
        for (number, piece) in pieces.iter().enumerate().filter(|(number, _)| states[*number]) {
            match piece {
                Piece::Many => next[number] = true,
                Piece::One => next[number + 1] = true,
                Piece::Char(wanted) => next[number + 1] |= wanted == c,
            }
        }
        pass_stars(pieces, &mut next);
        states = next;
        if states[pieces.len()] {
            end = Some(at + 1);
        }
        if !states.contains(&true) {
            break;
        }
    }
    end
}

fn pass_stars(pieces: &[Piece], states: &mut [bool]) {
    for (number, piece) in pieces.iter().enumerate() {
        if states[number] && *piece == Piece::Many {
            states[number + 1] = true;
        }
    }
}
