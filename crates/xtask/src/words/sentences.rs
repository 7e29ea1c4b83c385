//! Sentences of documents, manual pages and help texts, which nobody should have to read twice.

use super::Found;
use super::openings::doc;

/// Longer ones are refused; words.md asks for less.
const MOST_WORDS: usize = 40;

/// Adds the long sentences of a Markdown file: paragraphs and lists; no code, tables or headings.
pub fn find_in_markdown(file: &str, text: &str, found: &mut Found) {
    let mut paragraphs = Paragraphs::new(file, found);
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        // Four spaces behind an empty line begin code, in a list its next paragraph.
        let is_code = line.starts_with("    ") && paragraphs.words.is_empty();
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let item = line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or_else(|| numbered(line));
        match item {
            _ if in_code || is_code || line.is_empty() || line.starts_with("```") => paragraphs.end(),
            _ if line.starts_with(['#', '|', '<']) => paragraphs.end(),
            Some(item) => {
                paragraphs.end();
                paragraphs.add(number, item);
            }
            None => paragraphs.add(number, line),
        }
    }
    paragraphs.end();
}

fn numbered(line: &str) -> Option<&str> {
    let (number, item) = line.split_once(". ")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(item)
}

/// Adds those of a manual page: requests for a font are part of the text, all others end a paragraph.
pub fn find_in_roff(file: &str, text: &str, found: &mut Found) {
    let mut paragraphs = Paragraphs::new(file, found);
    for (number, line) in (1..).zip(text.lines()) {
        match line.strip_prefix('.').map(|request| request.split_once(' ').unwrap_or((request, ""))) {
            None => paragraphs.add(number, line),
            Some(("B" | "I" | "BR" | "BI" | "IR" | "RB" | "RI" | "IB", words)) => {
                paragraphs.add(number, words)
            }
            Some(_) => paragraphs.end(),
        }
    }
    paragraphs.end();
}

/// Adds those of doc comments.
pub fn find_in_help(file: &str, text: &str, found: &mut Found) {
    let mut paragraphs = Paragraphs::new(file, found);
    for (number, line) in (1..).zip(text.lines()) {
        match doc(line).filter(|line| !line.is_empty()) {
            Some(line) => paragraphs.add(number, line),
            None => paragraphs.end(),
        }
    }
    paragraphs.end();
}

struct Paragraphs<'a> {
    file: &'a str,
    found: &'a mut Found,
    /// The paragraph's words, and the lines that they are on.
    words: Vec<(usize, String)>,
}

impl<'a> Paragraphs<'a> {
    fn new(file: &'a str, found: &'a mut Found) -> Self {
        Self { file, found, words: vec![] }
    }

    fn add(&mut self, number: usize, line: &str) {
        self.words.extend(line.split_whitespace().map(|word| (number, word.to_owned())));
    }

    fn end(&mut self) {
        let mut sentence: Vec<(usize, String)> = vec![];
        let mut words = std::mem::take(&mut self.words).into_iter().peekable();
        while let Some(word) = words.next() {
            let ends = words.peek().is_none_or(|(_, next)| ends_sentence(&word.1, next));
            sentence.push(word);
            if ends {
                self.judge(&sentence);
                sentence.clear();
            }
        }
    }

    fn judge(&mut self, sentence: &[(usize, String)]) {
        let count = sentence.iter().filter(|(_, word)| word.contains(char::is_alphanumeric)).count();
        if count > MOST_WORDS {
            let file = self.file;
            let begin: Vec<&str> = sentence.iter().take(8).map(|(_, word)| word.as_str()).collect();
            let place = format!("{file}:{}: {count} words: {} ...", sentence[0].0, begin.join(" "));
            self.found.entry(format!("long {file}")).or_default().push(place);
        }
    }
}

/// Whether a sentence ends with `word`, if `next` comes behind it.
fn ends_sentence(word: &str, next: &str) -> bool {
    let word = word.trim_end_matches(['*', '_', ')', '"', '\'', '`', '”', '’', ']']);
    let short = ["e.g.", "i.e.", "vs.", "cf.", "etc."].contains(&word);
    let starts = |next: &str| {
        !next.trim_start_matches(['*', '_', '(', '"', '\'', '“', '[']).starts_with(char::is_lowercase)
    };
    word.ends_with(['.', '!', '?']) && !short && starts(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines on which long sentences begin.
    fn lines(find: fn(&str, &str, &mut Found), text: &str) -> Vec<String> {
        let mut found = Found::new();
        find("f", text, &mut found);
        let places = found.into_values().flatten();
        places.map(|place| place.split(": ").next().unwrap().to_owned()).collect()
    }

    fn words(count: usize) -> String {
        vec!["Word"; count].join(" ")
    }

    #[test]
    fn markdown() {
        let find = |text: &str| lines(find_in_markdown, text);
        let (most, more) = (words(40), words(41));
        assert!(find(&format!("{most}.\n{most}.\n\n{most}")).is_empty());
        assert_eq!(find(&format!("Short.\n{more}.\nShort.")), ["f:2"]);
        assert_eq!(find(&format!("{most}\nand more. Short.")), ["f:1"]);
        assert_eq!(find(&format!("- {more}\n- {most}\n1. {more}")), ["f:1", "f:3"]);
        assert!(find(&format!("# {more}\n| {more} |\n```\n{more}\n```\n\n    {more}\n")).is_empty());
        assert!(find(&format!("{most}. *Next* {}.", words(39))).is_empty());
        assert_eq!(find(&format!("{most}, e.g. word.")), ["f:1"]);
    }

    #[test]
    fn manual_pages_and_help() {
        let (half, most) = (words(21), words(40));
        assert_eq!(lines(find_in_roff, &format!(".SH {most} a b\n{half}\n.B {half}\n")), ["f:2"]);
        assert!(lines(find_in_roff, &format!("{half}\n.PP\n{half}")).is_empty());
        assert_eq!(lines(find_in_help, &format!("{half} {half}\n/// {half}\n/// {half}\n")), ["f:2"]);
    }
}
