//! Dockerfiles as plain data: read, and refused where they ask for what is not supported. Nothing is looked up here.
//!
//! What instructions mean is what Docker's reference says, and where that leaves it open, what BuildKit does:
//! <https://docs.docker.com/reference/dockerfile/>. Variables still stand as they are written, since their values depend on the images below.

pub mod command;
mod instruction;
mod lines;
mod mount;
mod substitute;
#[cfg(test)]
mod tests;
mod transfer;
pub mod words;

use std::collections::BTreeSet;

pub use command::Command;
pub use instruction::{
    CopyInstruction, CopySource, DebootstrapInstruction, DirectoryCopy, Healthcheck, Instruction,
    RunInstruction,
};
pub use lines::Heredoc;
use lines::InstructionLine;
pub use mount::{MountInstruction, MountKind};

/// A Dockerfile is not longer, in bytes.
pub const LONGEST: usize = 4 << 20;
/// A Dockerfile has not more instructions.
pub(crate) const MOST_INSTRUCTIONS: usize = 10_000;

/// Why a Dockerfile cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct DockerfileError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
    /// How to mend it; empty if there is nothing to say.
    pub hint: String,
}

impl DockerfileError {
    /// A fault without a hint.
    #[must_use]
    pub fn new(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into(), hint: String::new() }
    }

    /// Adds how to mend it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

/// An instruction and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionStep {
    /// Number of its first line, from 1.
    pub line: usize,
    /// The instruction in one line, as people read it.
    pub text: String,
    /// What it is.
    pub instruction: Instruction,
}

/// What a stage begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageFrom {
    /// What FROM says: an image, a stage before, or `scratch`.
    Written(String),
    /// An image of this name, to be pulled if need be.
    Image(String),
    /// An image of the user's list, or in a file or directory.
    Local(String),
    /// No files.
    Scratch,
}

/// A stage, from its FROM to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Number of FROM's line.
    pub line: usize,
    /// What it begins with.
    pub from: StageFrom,
    /// The platform, as written.
    pub platform: Option<String>,
    /// Name of the stage, in lowercase.
    pub name: Option<String>,
    /// The stage's instructions.
    pub steps: Vec<InstructionStep>,
}

/// A Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// The character that escapes others.
    pub escape: char,
    /// The program that Docker would ask to read it.
    pub syntax: Option<String>,
    /// The arguments before the first stage, with their lines.
    pub args: Vec<(usize, String, Option<String>)>,
    /// The stages; at least one.
    pub stages: Vec<Stage>,
    /// Whether it is made of a definition of Apptainer's.
    pub is_definition: bool,
    /// Arguments that have their values already.
    pub used_args: BTreeSet<String>,
}

/// Reads a Dockerfile.
///
/// # Errors
/// It cannot be read, or asks for what is not supported.
pub fn parse(text: &str) -> Result<Dockerfile, DockerfileError> {
    if text.len() > LONGEST {
        return Err(DockerfileError::new(1, format!("the file is longer than {LONGEST} bytes")));
    }
    if let Some(at) = text.find('\0') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(DockerfileError::new(line, "a byte of zero: this is not a text file"));
    }
    let lines::SourceLines { escape, syntax, lines } = lines::read(text)?;
    if let Some(line) = lines.get(MOST_INSTRUCTIONS) {
        return Err(DockerfileError::new(line.number, format!("more than {MOST_INSTRUCTIONS} instructions")));
    }
    let (stages, used_args) = (vec![], BTreeSet::new());
    let mut file = Dockerfile { escape, syntax, args: vec![], stages, is_definition: false, used_args };
    for line in lines {
        if line.word == "FROM" {
            let stage = from(&line, escape)?;
            if let Some(name) = &stage.name
                && file.stages.iter().any(|before| before.name.as_ref() == Some(name))
            {
                return Err(DockerfileError::new(line.number, format!("FROM: two stages are called {name}")));
            }
            file.stages.push(stage);
            continue;
        }
        let instruction = instruction::parse(&line, escape)?;
        match (file.stages.last_mut(), instruction) {
            (Some(stage), instruction) => {
                let text = shown(&line);
                stage.steps.push(InstructionStep { line: line.number, text, instruction });
            }
            (None, Instruction::Arg(args)) => {
                file.args.extend(args.into_iter().map(|(name, value)| (line.number, name, value)));
            }
            (None, _) => {
                return Err(DockerfileError::new(line.number, format!("{}: no FROM before it", line.word))
                    .hint("only ARG may stand before the first FROM"));
            }
        }
    }
    match file.stages.is_empty() {
        true => Err(DockerfileError::new(1, "no FROM: nothing to build").hint("FROM IMAGE, or FROM scratch")),
        false => Ok(file),
    }
}

/// Reads an instruction that an image has for those who build on it.
///
/// # Errors
/// As [`parse()`].
pub fn parse_trigger(line: usize, text: &str) -> Result<InstructionStep, DockerfileError> {
    let of_trigger = lines::read_trigger(line, text)?;
    if matches!(&*of_trigger.word, "FROM" | "ONBUILD" | "MAINTAINER") {
        return Err(DockerfileError::new(line, format!("ONBUILD {}: not allowed", of_trigger.word)));
    }
    let instruction = instruction::parse(&of_trigger, '\\')?;
    Ok(InstructionStep { line, text: shown(&of_trigger), instruction })
}

/// Longer than this no instruction is shown.
const LONGEST_SHOWN: usize = 200;

fn shown(line: &InstructionLine) -> String {
    let text = format!("{} {}", line.word, line.rest);
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text.trim_end().into(),
    }
}

fn from(line: &InstructionLine, escape: char) -> Result<Stage, DockerfileError> {
    let bad = |what: String| DockerfileError::new(line.number, format!("FROM: {what}"));
    let (flags, rest) = command::flags(&line.rest, escape);
    let mut platform = None;
    for flag in flags {
        match (&*flag.name, flag.value) {
            ("platform", Some(value)) => platform = Some(value),
            (name, _) => {
                return Err(
                    bad(format!("--{name}: not supported")).hint("only --platform=OS/ARCHITECTURE is")
                );
            }
        }
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (from, name) = match words[..] {
        [from] => (from, None),
        [from, word, name] if word.eq_ignore_ascii_case("as") => (from, Some(name.to_lowercase())),
        _ => return Err(bad("write FROM IMAGE, or FROM IMAGE AS NAME".into())),
    };
    if let Some(name) = &name
        && !is_stage_name(name)
    {
        return Err(bad(format!("{name:?} is not a name of a stage"))
            .hint("a name begins with a letter, and has letters, digits, `-`, `_` and `.`"));
    }
    let from = StageFrom::Written(from.into());
    Ok(Stage { line: line.number, from, platform, name, steps: vec![] })
}

fn is_stage_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c))
}
