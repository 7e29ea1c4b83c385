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
    Ok(value[ends(&pieces, &value, is_longest)[0].unwrap_or(0)..].iter().collect())
}

/// The same for its end.
pub fn without_suffix(value: &str, pattern: &str, is_longest: bool) -> Result<String, PatternError> {
    let (mut pieces, mut value) = read(pattern, value)?;
    pieces.reverse();
    value.reverse();
    let left = &value[ends(&pieces, &value, is_longest)[0].unwrap_or(0)..];
    Ok(left.iter().rev().collect())
}

/// The value with another text in the place of what the pattern matches: the first, or all.
pub fn replaced(value: &str, pattern: &str, text: &str, is_all: bool) -> Result<String, PatternError> {
    let (pieces, value) = read(pattern, value)?;
    let ends = ends(&pieces, &value, true);
    let (mut replaced, mut at, mut is_done) = (String::new(), 0, false);
    while at <= value.len() {
        let found = ends[at].filter(|_| !is_done).map(|end| end - at);
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

/// Where what is matched ends, at the latest or the earliest, for each place where it may begin. From the end to the beginning, for all of them at once:
/// one after the other they would take as many times as long as the value has characters.
fn ends(pieces: &[Piece], value: &[char], is_longest: bool) -> Vec<Option<usize>> {
    let better = |one: Option<usize>, other: Option<usize>| match (one, other) {
        (Some(one), Some(other)) => Some(if is_longest { one.max(other) } else { one.min(other) }),
        (one, other) => one.or(other),
    };
    // Of the rest of the pattern from each piece on: where it ends that begins at this character, and at the next one.
    let mut here = vec![None; pieces.len() + 1];
    let mut behind = here.clone();
    let mut all = vec![None; value.len() + 1];
    for at in (0..=value.len()).rev() {
        here[pieces.len()] = Some(at);
        for (number, piece) in pieces.iter().enumerate().rev() {
            here[number] = match piece {
                Piece::Many => better(here[number + 1], behind[number]),
                Piece::One => behind[number + 1],
                Piece::Char(wanted) if value.get(at) == Some(wanted) => behind[number + 1],
                Piece::Char(_) => None,
            };
        }
        all[at] = here[0];
        std::mem::swap(&mut here, &mut behind);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// Whether the pattern matches all of the value, by the definition.
    fn is_match(pieces: &[Piece], value: &[char]) -> bool {
        match pieces.split_first() {
            None => value.is_empty(),
            Some((Piece::Many, rest)) => (0..=value.len()).any(|at| is_match(rest, &value[at..])),
            Some((Piece::One, rest)) => !value.is_empty() && is_match(rest, &value[1..]),
            Some((Piece::Char(c), rest)) => value.first() == Some(c) && is_match(rest, &value[1..]),
        }
    }

    #[test]
    fn matches_end_where_the_definition_says() {
        let numbers = |mut number: usize, base: usize, len: usize| {
            std::iter::repeat_with(move || (number % base, number /= base).0).take(len).collect::<Vec<_>>()
        };
        let pieces = [Piece::Many, Piece::One, Piece::Char('a'), Piece::Char('b')];
        for pattern in 0..256 {
            let pattern: Vec<Piece> = numbers(pattern, 4, 4).into_iter().map(|at| pieces[at]).collect();
            for value in 0..32 {
                let value: Vec<char> = numbers(value, 2, 5).into_iter().map(|at| ['a', 'b'][at]).collect();
                for begin in 0..=value.len() {
                    let found = |end: &usize| is_match(&pattern, &value[begin..*end]);
                    let longest = (begin..=value.len()).rev().find(found);
                    let shortest = (begin..=value.len()).find(found);
                    assert_eq!(ends(&pattern, &value, true)[begin], longest, "{pattern:?} {value:?}");
                    assert_eq!(ends(&pattern, &value, false)[begin], shortest, "{pattern:?} {value:?}");
                }
            }
        }
    }

    /// A plan may have 16 MiB of values: 16,000 times such ones.
    #[test]
    fn what_matches_nowhere_takes_no_longer_for_each_place_where_it_could_begin() {
        let value = "a".repeat(LONGEST_VALUE);
        let pattern = format!("{}b", "a*".repeat(LONGEST_PATTERN / 2 - 1));
        // What else the machine does takes none of it.
        let processor_time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
        let begun = processor_time();
        for _ in 0..200 {
            assert_eq!(replaced(&value, &pattern, "", true), Ok(value.clone()));
        }
        let took = processor_time() - begun;
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
