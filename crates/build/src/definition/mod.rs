//! Apptainer's definition files as the stages that a Dockerfile would have, so that they are planned, carried out and cached alike.
//!
//! What sections mean is what Apptainer's documentation says, and where that leaves it open, what it does:
//! <https://apptainer.org/docs/user/latest/definition_files.html>.

mod debootstrap;
mod files;
mod scripts;
mod sections;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::dockerfile::{
    DebootstrapInstruction, Dockerfile, DockerfileError, Instruction, InstructionStep, LONGEST,
    MOST_INSTRUCTIONS, Stage, StageFrom,
};
use sections::{Section, StageText};

pub use scripts::{AFTER, BEFORE, ENTRY, LABELS, SOMEBODY, VARIABLES, labels};

/// What a definition is read with.
#[derive(Debug, Clone, Default)]
pub struct DefinitionOptions {
    /// Values of arguments.
    pub args: BTreeMap<String, String>,
    /// Where relative paths of files count from.
    pub here: PathBuf,
    /// The directory that files may come from.
    pub context: PathBuf,
    /// Whether `%test` is not run.
    pub no_test: bool,
}

/// Whether a file is a definition: by its name, or because its first line that says anything is a `Bootstrap`.
#[must_use]
pub fn is_definition(name: Option<&Path>, text: &str) -> bool {
    let named = name.is_some_and(|name| {
        let is_called = |known: &str| name.file_name().is_some_and(|name| name == known);
        name.extension().is_some_and(|end| end == "def") || is_called("Apptainer") || is_called("Singularity")
    });
    let said = text.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    named || said.is_some_and(sections::is_bootstrap)
}

/// Reads a definition.
///
/// # Errors
/// The definition cannot be read, or asks for what is not supported.
pub fn parse(text: &str, options: &DefinitionOptions) -> Result<Dockerfile, DockerfileError> {
    if text.len() > LONGEST {
        return Err(DockerfileError::new(1, format!("the file is longer than {LONGEST} bytes")));
    }
    if let Some(at) = text.find('\0') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(DockerfileError::new(line, "a byte of zero: this is not a text file"));
    }
    let mut used_args = BTreeSet::new();
    let stages = sections::read(text, &options.args, &mut used_args)?;
    if stages.is_empty() {
        return Err(DockerfileError::new(1, "no Bootstrap: nothing to build")
            .hint("a definition begins with `Bootstrap: docker` and `From: IMAGE`"));
    }
    let mut file = Dockerfile {
        escape: '\\',
        syntax: None,
        args: vec![],
        stages: vec![],
        is_definition: true,
        used_args,
    };
    for (at, stage) in stages.iter().enumerate() {
        // Others are made anew for a change of their own only.
        let text = (at + 1 == stages.len()).then_some(text);
        let translated = Translator { stage, text, options, before: &file.stages, steps: vec![] }.stage()?;
        file.stages.push(translated);
        if file.stages.iter().map(|stage| stage.steps.len()).sum::<usize>() > MOST_INSTRUCTIONS {
            return Err(DockerfileError::new(stage.line, format!("more than {MOST_INSTRUCTIONS} steps")));
        }
    }
    Ok(file)
}

/// Sections, and why some are refused.
const KNOWN: [&str; 9] =
    ["help", "files", "labels", "environment", "post", "runscript", "test", "startscript", "arguments"];

fn check_section(section: &Section) -> Result<(), DockerfileError> {
    let bad = |what: &str, hint: &str| {
        Err(DockerfileError::new(section.line, format!("%{}: {what}", section.name)).hint(hint))
    };
    match &*section.name {
        name if KNOWN.contains(&name) => Ok(()),
        "setup" | "pre" => bad(
            "not supported: it would run on the host",
            "what it makes can be put into the context, and %files copies it",
        ),
        name if name.starts_with("app") => {
            bad("not supported", "install the program in %post, and start it in %runscript")
        }
        _ => bad("no such section", &format!("%{} are known", KNOWN.join(", %"))),
    }
}

/// Makes a stage of a Dockerfile of one of a definition.
struct Translator<'a> {
    stage: &'a StageText,
    /// The whole definition, which the last stage keeps.
    text: Option<&'a str>,
    options: &'a DefinitionOptions,
    before: &'a [Stage],
    steps: Vec<InstructionStep>,
}

impl<'a> Translator<'a> {
    fn stage(mut self) -> Result<Stage, DockerfileError> {
        self.stage.sections.iter().try_for_each(check_section)?;
        let (from, keeps_scripts, first_files) = self.from()?;
        // A number is that of a stage, whatever another one is called.
        let name = self.stage.header.get("stage").map(|(_, name)| name.to_lowercase());
        let name = name.filter(|name| name.parse::<usize>().is_err());
        // Programs are run by whoever runs the image, and begin where that one is.
        let first = self.stage.line;
        self.push(first, "Bootstrap".into(), Instruction::Unset(&["User", "WorkingDir"]));
        if let Some(files) = first_files {
            let text = format!("{DEBOOTSTRAP} {} {}", files.suite, files.packages.join(" "));
            self.push(first, text.trim_end().into(), Instruction::Debootstrap(files));
        }
        self.files()?;
        self.scripts(keeps_scripts)?;
        let Self { stage, steps, .. } = self;
        Ok(Stage { line: stage.line, from, platform: None, name, steps })
    }

    fn push(&mut self, line: usize, text: String, instruction: Instruction) {
        self.steps.push(InstructionStep { line, text, instruction });
    }

    fn named(&self, name: &'a str) -> impl Iterator<Item = &'a Section> + use<'a> {
        self.stage.sections.iter().filter(move |section| section.name == name)
    }

    fn header(&self, key: &str) -> &str {
        self.stage.header.get(key).map_or("", |(_, value)| value)
    }

    /// A fault of a line of the header.
    fn bad<T>(&self, key: &str, what: impl Into<String>, hint: &str) -> Result<T, DockerfileError> {
        let line = self.stage.header.get(key).map_or(self.stage.line, |(line, _)| *line);
        Err(DockerfileError::new(line, what).hint(hint))
    }

    /// What the stage begins with; whether that may have scripts of Apptainer's itself; and what is installed first.
    fn from(&self) -> Result<(StageFrom, bool, Option<DebootstrapInstruction>), DockerfileError> {
        let bootstrap = self.header("bootstrap").to_ascii_lowercase();
        self.check_keys(bootstrap == DEBOOTSTRAP)?;
        if bootstrap == DEBOOTSTRAP {
            let value = |key: &str| self.stage.header.get(key).map(|(line, value)| (*line, &**value));
            let files = debootstrap::instruction(self.stage.line, value)?;
            return Ok((StageFrom::Scratch, false, Some(files)));
        }
        let from = self.header("from");
        if from.is_empty() && bootstrap != "scratch" {
            let what = format!("Bootstrap: {bootstrap}: no From");
            return self.bad("bootstrap", what, "From: IMAGE says what it begins with");
        }
        let (from, keeps_scripts) = match &*bootstrap {
            "docker" => (StageFrom::Image(self.in_registry(from)), false),
            "oras" => (StageFrom::Image(format!("oras://{from}")), true),
            "scratch" => (StageFrom::Scratch, false),
            "localimage" => (StageFrom::Local(from.into()), true),
            "docker-archive" | "oci-archive" | "oci" => (StageFrom::Local(from.into()), false),
            other => {
                let what = format!("Bootstrap: {other}: not supported");
                return self.bad("bootstrap", what, hint_for(other));
            }
        };
        Ok((from, keeps_scripts, None))
    }

    /// Refuses keys that would change nothing here.
    fn check_keys(&self, is_debootstrap: bool) -> Result<(), DockerfileError> {
        let mut keys = self.stage.header.keys();
        if let Some(key) = keys.clone().find(|key| key.starts_with("fingerprint")) {
            let hint = "leave it out, or check it yourself";
            return self.bad(key, "Fingerprints: signatures are not checked", hint);
        }
        let (more, known) = match is_debootstrap {
            true => (&debootstrap::HEADERS[..], "use Bootstrap, OSVersion, MirrorURL, Include or Stage"),
            false => (&[][..], "use Bootstrap, From or Stage"),
        };
        match keys.find(|key| !HEADERS.contains(&&***key) && !more.contains(&&***key)) {
            Some(key) => self.bad(key, format!("unknown header key {key}"), known),
            None => Ok(()),
        }
    }

    /// The name with the server and the part of it that older definitions say apart.
    fn in_registry(&self, from: &str) -> String {
        let parts = [self.header("registry"), self.header("namespace"), from.trim_start_matches("docker://")];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("/")
    }
}

/// A distribution's own tool makes the first files.
const DEBOOTSTRAP: &str = "debootstrap";

/// Keys of a header that change nothing here are taken, too.
const HEADERS: [&str; 6] = ["bootstrap", "from", "stage", "registry", "namespace", "includecmd"];

fn hint_for(bootstrap: &str) -> &'static str {
    match bootstrap {
        "docker-daemon" => "docker save -o FILE IMAGE, and then: Bootstrap: docker-archive, From: FILE",
        "library" | "shub" => "begin with an image of a registry: Bootstrap: docker",
        "yum" | "dnf" | "zypper" | "arch" | "busybox" => {
            "begin with an image of that distribution: Bootstrap: docker"
        }
        _ => "docker, oras, localimage, docker-archive, oci-archive, oci, debootstrap and scratch are",
    }
}
