//! Text for a terminal: names in it come from images, files and other hosts, and must not move the cursor, set the title or hide what stands
//! beside them.

use std::borrow::Cow;

use skiff_sys::error::is_disguise;

/// Lines as they are, but for characters that a terminal would obey: these are escaped.
pub fn readable(text: &str) -> Cow<'_, str> {
    escaped(text, &['\n', '\t'])
}

/// The same for what is to stay on one line.
pub fn readable_cell(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_odd = |c: char| is_disguise(c) && !kept.contains(&c);
    if !text.contains(is_odd) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !is_odd(c) {
            shown.push(c);
        } else if let Ok(byte) = u8::try_from(u32::from(c)) {
            shown.push_str(&byte.escape_ascii().to_string());
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    Cow::Owned(shown)
}

/// A text with words that are no longer than anybody reads, in characters: paths of deep trees have thousands.
pub fn shortened(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 1000;
    const KEPT: usize = 300;
    let words = || text.split_inclusive(char::is_whitespace);
    let is_long = |word: &str| word.len() > LONGEST;
    if !words().any(is_long) {
        return Cow::Borrowed(text);
    }
    let short = |word: &str| match is_long(word) {
        true => {
            let (begin, end) = (word.floor_char_boundary(KEPT), word.ceil_char_boundary(word.len() - KEPT));
            format!("{}[...]{}", &word[..begin], &word[end..])
        }
        false => word.to_owned(),
    };
    Cow::Owned(words().map(short).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_words_both_ends_are_shown() {
        let text = format!("cannot open {}: too deep\n", "/level".repeat(5000));
        let shown = shortened(&text).into_owned();
        assert!(
            shown.starts_with("cannot open /level/level") && shown.ends_with("/level: too deep\n"),
            "{shown}"
        );
        assert!(shown.contains("[...]") && shown.len() < 700, "{shown}");
        let plain = "word ".repeat(1000);
        assert_eq!(shortened(&plain), plain);
        assert!(shortened(&"é".repeat(2000)).chars().count() < 400);
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (text, lines, cell) in [
            ("plain é ü\n", "plain é ü\n", "plain é ü\\n"),
            ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b", "a\\x1b]0;title\\x07b"),
            ("\x1b[32mpass\x1b[0m", "\\x1b[32mpass\\x1b[0m", "\\x1b[32mpass\\x1b[0m"),
            ("\x1b[8mhidden", "\\x1b[8mhidden", "\\x1b[8mhidden"),
            ("a\u{202e}b\u{9b}c\r\td", "a\\u{202e}b\\x9bc\\r\td", "a\\u{202e}b\\x9bc\\r\\td"),
        ] {
            assert_eq!((readable(text).as_ref(), readable_cell(text).as_ref()), (lines, cell), "{text:?}");
        }
    }
}
