//! From the text of a Dockerfile to its instructions' lines: directives, comments, continuations and here-documents.

use super::DockerfileError;
use super::words::{expand, split_quoted};

/// An instruction as it stands in the file, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionLine {
    /// Number of its first line, from 1.
    pub number: usize,
    /// The instruction, in capitals.
    pub word: String,
    /// What is behind it, without continuations and comments.
    pub rest: String,
    /// The here-documents that follow it.
    pub heredocs: Vec<Heredoc>,
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heredoc {
    /// What it is called, which is also the line that ends it.
    pub name: String,
    /// The document's lines, without leading tabs where `<<-` asked for that.
    pub content: String,
    /// The document's lines as they stand.
    pub raw: String,
    /// Whether variables in it have their values: the name is not quoted.
    pub is_expanded: bool,
}

/// What a Dockerfile consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLines {
    /// The character that continues lines and escapes others.
    pub escape: char,
    /// The name of the program that would be asked to read the file.
    pub syntax: Option<String>,
    /// The instructions.
    pub lines: Vec<InstructionLine>,
}

/// Instructions that may have here-documents.
const WITH_HEREDOCS: [&str; 3] = ["RUN", "COPY", "ADD"];
/// The instruction that has another one.
const TRIGGER: &str = "ONBUILD";

/// Reads the lines.
///
/// # Errors
/// A directive makes no sense, or a here-document has no end.
pub fn read(text: &str) -> Result<SourceLines, DockerfileError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let physical: Vec<&str> = text.lines().collect();
    let Directives { escape, syntax } = directives(&physical)?;
    let mut reader = Reader { physical, at: 0, escape };
    let mut lines = vec![];
    while let Some(line) = reader.next_line()? {
        lines.push(line);
    }
    Ok(SourceLines { escape, syntax, lines })
}

struct Directives {
    escape: char,
    syntax: Option<String>,
}

/// Comments of the form `# NAME=VALUE` at the very beginning.
fn directives(physical: &[&str]) -> Result<Directives, DockerfileError> {
    let mut found = Directives { escape: '\\', syntax: None };
    let mut seen: Vec<String> = vec![];
    for (at, line) in physical.iter().enumerate() {
        // Programs for the shell may read the file, too.
        if at == 0 && line.starts_with("#!") {
            continue;
        }
        let Some((name, value)) = line.trim().strip_prefix('#').and_then(|comment| comment.split_once('='))
        else {
            break;
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        if !matches!(&*name, "escape" | "syntax" | "check") {
            break;
        }
        if seen.contains(&name) {
            return Err(DockerfileError::new(at + 1, format!("directive {name} is given twice")));
        }
        match (&*name, value) {
            ("escape", "\\" | "`") => found.escape = if value == "`" { '`' } else { '\\' },
            ("escape", _) => {
                return Err(DockerfileError::new(at + 1, format!("directive escape={value}: not supported"))
                    .hint("it is \\ or `"));
            }
            ("syntax", value) => found.syntax = Some(value.into()),
            _ => {}
        }
        seen.push(name);
    }
    Ok(found)
}

/// Whether an instruction may have here-documents.
fn has_heredocs(word: &str, rest: &str) -> bool {
    WITH_HEREDOCS.contains(&word) && super::command::list(rest).is_none()
}

/// Reads the one instruction of a trigger, which stands in `line`.
///
/// # Errors
/// There are more, or as [`read`].
pub fn read_trigger(line: usize, text: &str) -> Result<InstructionLine, DockerfileError> {
    let mut reader = Reader { physical: text.lines().collect(), at: 0, escape: '\\' };
    let mut next = || reader.next_line().map_err(|e| DockerfileError { line, ..e });
    let nothing =
        InstructionLine { number: line, word: String::new(), rest: String::new(), heredocs: vec![] };
    let read = next()?.map_or(nothing, |read| InstructionLine { number: line, ..read });
    match next()? {
        None => Ok(read),
        Some(_) => Err(DockerfileError::new(line, "ONBUILD: more than one instruction")),
    }
}

struct Reader<'a> {
    physical: Vec<&'a str>,
    at: usize,
    escape: char,
}

impl Reader<'_> {
    fn next_line(&mut self) -> Result<Option<InstructionLine>, DockerfileError> {
        let (number, text) = loop {
            let Some(line) = self.physical.get(self.at) else { return Ok(None) };
            self.at += 1;
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = self.at;
            let text = self.with_continuations(line);
            // A continuation of nothing.
            if !text.trim().is_empty() {
                break (number, text);
            }
        };
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (word, rest) = (word.to_uppercase(), rest.trim().to_owned());
        let mut line = InstructionLine { number, word, rest, heredocs: vec![] };
        if has_heredocs(&line.word, &line.rest) {
            line.heredocs = self.heredocs(number, &line.rest)?;
        }
        if line.word == TRIGGER
            && let Some((word, rest)) = line.rest.split_once(char::is_whitespace)
            && has_heredocs(&word.to_uppercase(), rest)
        {
            // They stay in the text, which is read when the trigger is carried out.
            let docs = self.heredocs(number, rest)?;
            line.rest.extend(docs.iter().map(|doc| format!("\n{}{}", doc.raw, doc.name)));
        }
        Ok(Some(line))
    }

    /// The line with those that continue it. Comments between them are left out, and so are empty lines.
    fn with_continuations(&mut self, first: &str) -> String {
        let (mut text, mut goes_on) = self.without_continuation(first);
        while goes_on {
            let Some(next) = self.physical.get(self.at) else { break };
            self.at += 1;
            let begin = next.trim_start();
            if begin.is_empty() || begin.starts_with('#') {
                continue;
            }
            let (part, more) = self.without_continuation(next);
            text.push_str(&part);
            goes_on = more;
        }
        text
    }

    /// Two escape characters at the end are one that is escaped.
    fn without_continuation(&self, line: &str) -> (String, bool) {
        let end = line.trim_end_matches([' ', '\t']);
        match end.strip_suffix(self.escape) {
            Some(part) if !part.ends_with(self.escape) => (part.into(), true),
            _ => (line.into(), false),
        }
    }

    fn heredocs(&mut self, number: usize, rest: &str) -> Result<Vec<Heredoc>, DockerfileError> {
        let words = heredoc_words(split_quoted(rest, self.escape), self.escape);
        let begun = words.iter().filter_map(|word| begin(word, self.escape));
        let mut found = vec![];
        for (name, is_expanded, strips_tabs) in begun.collect::<Vec<_>>() {
            let (mut content, mut raw, mut ended) = (String::new(), String::new(), false);
            while let Some(line) = self.physical.get(self.at) {
                self.at += 1;
                let stripped = if strips_tabs { line.trim_start_matches('\t') } else { line };
                if stripped == name {
                    ended = true;
                    break;
                }
                content.extend([stripped, "\n"]);
                raw.extend([line, "\n"]);
            }
            if !ended {
                return Err(DockerfileError::new(number, format!("here-document {name} has no end"))
                    .hint(format!("a line with {name} alone ends it")));
            }
            found.push(Heredoc { name, content, raw, is_expanded });
        }
        Ok(found)
    }
}

/// The words of an instruction, with what begins a here-document and its name as one word: `<< NAME`, as shells have it, too.
#[must_use]
pub fn heredoc_words(split: Vec<String>, escape: char) -> Vec<String> {
    let mut words: Vec<String> = vec![];
    for word in split {
        match words.last_mut() {
            Some(before) if is_operator(before) => {
                // Behind a blank it belongs to the name.
                before.extend(word.starts_with('-').then_some(escape));
                before.push_str(&word);
            }
            _ => words.push(word),
        }
    }
    words
}

/// Whether a word is `<<` or `<<-` alone, so that the name is the next one.
fn is_operator(word: &str) -> bool {
    let rest = word.trim_start_matches(|c: char| c.is_ascii_digit());
    matches!(rest, "<<" | "<<-")
}

/// What a word `<<NAME` begins: its name, whether variables in it have their values, and whether it loses leading tabs.
fn begin(word: &str, escape: char) -> Option<(String, bool, bool)> {
    let text = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
    let (text, strips_tabs) = text.strip_prefix('-').map_or((text, false), |text| (text, true));
    if text.contains('<') {
        return None;
    }
    // A name is no variable.
    let name = expand(text, escape, &|name| Some(format!("${name}"))).ok().filter(|name| !name.is_empty())?;
    Some((name, !is_quoted(text, escape), strips_tabs))
}

fn is_quoted(text: &str, escape: char) -> bool {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => return true,
            c if c == escape => {
                chars.next();
            }
            _ => {}
        }
    }
    false
}

/// Whether a word begins a here-document; its name then.
#[must_use]
pub fn heredoc_name(word: &str, escape: char) -> Option<String> {
    begin(word, escape).map(|(name, ..)| name)
}
