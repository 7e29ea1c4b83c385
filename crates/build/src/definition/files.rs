//! `%files`: what is copied from the host, or from a stage before, as `cp -r` would.

use std::path::{Component, Path, PathBuf};

use super::Translator;
use super::sections::Section;
use crate::dockerfile::{CopyInstruction, CopySource, DirectoryCopy, DockerfileError, Instruction};

impl Translator<'_> {
    /// What stages have is copied first, as in Apptainer.
    pub(super) fn files(&mut self) -> Result<(), DockerfileError> {
        for is_from_stage in [true, false] {
            for section in self.named("files") {
                let from = self.files_from(section)?;
                if from.is_some() == is_from_stage {
                    self.section(section, from.as_deref())?;
                }
            }
        }
        Ok(())
    }

    /// The stage that `%files from STAGE` names.
    fn files_from(&self, section: &Section) -> Result<Option<String>, DockerfileError> {
        let args = section.args.split('#').next().unwrap_or_default();
        let words: Vec<&str> = args.split_whitespace().collect();
        match words[..] {
            [] => Ok(None),
            ["from", stage] => match self.number(stage) {
                Some(number) => Ok(Some(number.to_string())),
                None => Err(DockerfileError::new(
                    section.line,
                    format!("%files from {stage}: no stage before it"),
                )
                .hint("Stage: NAME in its header names a stage")),
            },
            _ => Err(DockerfileError::new(section.line, format!("%files {args}: not known"))
                .hint("%files from STAGE")),
        }
    }

    /// Stages are found by number: a name could be one of an image.
    fn number(&self, name: &str) -> Option<usize> {
        self.before.iter().position(|stage| stage.name.as_deref() == Some(&*name.to_lowercase()))
    }

    fn section(&mut self, section: &Section, from: Option<&str>) -> Result<(), DockerfileError> {
        for (at, line) in section.body.lines().enumerate() {
            let number = section.line + 1 + at;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words = words(line);
            let (Some(source), rest) = (words.first(), &words[1.min(words.len())..]) else { continue };
            let copy = self.line(number, source, rest.first().map(String::as_str), from)?;
            self.push(number, format!("%files {line}"), Instruction::Copy(copy));
        }
        Ok(())
    }

    fn line(
        &self,
        number: usize,
        source: &str,
        destination: Option<&str>,
        from: Option<&str>,
    ) -> Result<CopyInstruction, DockerfileError> {
        let bad = |what: String, hint: &str| Err(DockerfileError::new(number, what).hint(hint));
        if destination.is_none() && source.contains(['*', '?', '[']) {
            return bad(
                format!("%files {source}: no destination"),
                "name the directory that the files go to",
            );
        }
        let destination = destination.unwrap_or(source);
        let found = match from {
            Some(_) => clean(Path::new("/"), source),
            None => {
                let path = clean(&self.options.here, source);
                match path.strip_prefix(&self.options.context) {
                    Ok(inside) => Path::new("/").join(inside),
                    Err(_) => {
                        return bad(
                            format!("%files {source}: outside of {}", self.options.context.display()),
                            "name a directory that has all files as the context: skiff build -f FILE.def DIR",
                        );
                    }
                }
            }
        };
        let slash = if destination.ends_with('/') { "/" } else { "" };
        let destination = clean(Path::new("/"), destination);
        let shown = |path: &Path| literal(&path.to_string_lossy());
        Ok(CopyInstruction {
            from: from.map(String::from),
            directories: DirectoryCopy::LikeCp,
            sources: vec![CopySource::Path(shown(&found))],
            destination: format!(
                "{}{}",
                shown(&destination).trim_end_matches('/'),
                slash_of(&destination, slash)
            ),
            ..CopyInstruction::default()
        })
    }
}

fn slash_of<'a>(destination: &Path, slash: &'a str) -> &'a str {
    if destination == Path::new("/") { "/" } else { slash }
}

/// The same for whoever reads words of a Dockerfile: `%files` has no variables and no quotes.
fn literal(text: &str) -> String {
    let mut literal = String::new();
    for c in text.chars() {
        // What is escaped in a pattern of Apptainer's shell is escaped in ours.
        literal.extend(matches!(c, '$' | '"' | '\'' | '\\').then_some('\\'));
        literal.push(c);
    }
    literal
}

/// A path without `.` and `..`, from `base` on unless it is absolute.
fn clean(base: &Path, path: &str) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for part in base.join(path).components() {
        match part {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

/// Words with blanks between, of which quotes keep some. Nothing is special between them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (vec![], String::new(), None);
    for c in line.chars() {
        match quote {
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}
