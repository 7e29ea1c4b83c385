//! Tells code from comments and literals, to find where `unsafe` is a keyword.

/// The numbers of the lines where the keyword stands, not counting comments, strings and longer words.
pub fn unsafe_lines(text: &str) -> Vec<usize> {
    let mut lines = vec![];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest);
        if length > 0 {
            rest = &rest[length..];
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if &rest[..end] == "unsafe" {
                lines.push(text[..text.len() - rest.len()].matches('\n').count() + 1);
            }
            rest = &rest[end..];
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    lines
}

/// The length of the comment or literal that `text` begins with; 0 if with none.
pub fn skipped(text: &str) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(text.len());
    if text.starts_with("//") {
        return to(text.find('\n'));
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'));
    if let Some(after) = raw {
        let hashes = after.len() - after.trim_start_matches('#').len();
        if after[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = text.len() - after.len() + hashes + 1;
            return to(text[open..].find(&close).map(|at| open + at + close.len()));
        }
    }
    match text.chars().next() {
        Some('"') => to(closing_quote(&text[1..], '"').map(|at| at + 2)),
        // A quote opens a character, or is the mark of a lifetime, which has no closing one.
        Some('\'') => match text[1..].chars().next() {
            Some('\\') => to(closing_quote(&text[1..], '\'').map(|at| at + 2)),
            Some(c) if text[1 + c.len_utf8()..].starts_with('\'') => c.len_utf8() + 2,
            _ => 1,
        },
        _ => 0,
    }
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let (step, change) = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            break;
        }
    }
    at
}

fn closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyword_is_told_from_text() {
        let cases: &[(&str, &[usize])] = &[
            ("fn f() {\n    unsafe { g() }\n}", &[2]),
            ("#[unsafe(no_mangle)]", &[1]),
            ("// unsafe\n/* unsafe /* unsafe */ unsafe */ fn f() {}", &[]),
            ("let a = \"unsafe \\\" unsafe\"; let b = r#\"unsafe \" unsafe\"#; unsafe {}", &[1]),
            ("#![forbid(unsafe_code)]", &[]),
            ("fn f<'a>(c: char) { if c == '\"' || c == '\\'' { } } unsafe fn g() {}", &[1]),
            ("let bar = 1; r\"unsafe\"", &[]),
        ];
        for (text, lines) in cases {
            assert_eq!(&unsafe_lines(text), lines, "{text}");
        }
    }
}
