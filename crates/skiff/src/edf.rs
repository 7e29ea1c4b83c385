//! `skiff edf`: environment definition files, shown and checked. What starts by them is `skiff run FILE.toml` and `srun --environment=`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_cli::EdfCommand;
use skiff_edf::{Definition, DefinitionMountKind, escaped};
use skiff_output as output;
use skiff_plan::definition::{AnnotatedHooks, image, mount_words, read, with_context};
use skiff_plan::device_words::request;
use skiff_plan::{DEVICE, parse_mounts};
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::{Fault, Result};
use skiff_user::context::UserContext;

/// Does what was asked; the exit code.
pub fn run(command: &EdfCommand) -> Result<i32> {
    match command {
        EdfCommand::List(output) => list(&UserContext::load()?, output.json).map(|()| 0),
        EdfCommand::Check { definitions, output } => check(&UserContext::load()?, definitions, output.json),
        EdfCommand::Show { definition, output } => {
            show(&UserContext::load()?, definition, output.json).map(|()| 0)
        }
        EdfCommand::New { image } => output::bytes(new(image).as_bytes()).map(|()| 0),
    }
}

#[derive(Serialize)]
struct ListedDefinition {
    name: String,
    file: PathBuf,
    /// Nothing if it names none, or is not sound.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn list(context: &UserContext, json: bool) -> Result<()> {
    let listed = |(name, file): (String, PathBuf)| match read(context, &name) {
        Ok(found) => ListedDefinition { name, file, image: found.image, error: None },
        Err(e) => ListedDefinition { name, file, image: None, error: Some(e.message) },
    };
    let all: Vec<_> = with_context(context, |all| all.names()).into_iter().map(listed).collect();
    if json {
        return output::json(&all);
    }
    let row = |d: &ListedDefinition| {
        let image =
            d.image.clone().or_else(|| d.error.as_ref().map(|_| "not sound: `skiff edf check`".into()));
        vec![d.name.clone(), image.unwrap_or_else(|| "-".into()), d.file.display().to_string()]
    };
    output::table(&["NAME", "IMAGE", "FILE"], &all.iter().map(row).collect::<Vec<_>>())
}

/// What was found about one definition.
#[derive(Serialize)]
struct CheckedDefinition {
    definition: String,
    /// What keeps it from starting.
    errors: Vec<String>,
    /// What is not as it says.
    notes: Vec<String>,
}

fn check(context: &UserContext, words: &[String], json: bool) -> Result<i32> {
    let all = || with_context(context, |all| all.names()).into_iter().map(|(name, _)| name).collect();
    let is_all = words.is_empty();
    let words: Vec<String> = if is_all { all() } else { words.to_vec() };
    if words.is_empty() {
        let dirs = with_context(context, |all| all.directories());
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        return Err(Fault::new(format!("there are no definitions in {}", dirs.join(", ")))
            .hint("`skiff edf new` prints one to start from; a file is named with a / or with .toml"));
    }
    let checked: Vec<_> = words.iter().map(|word| check_one(context, word, is_all)).collect();
    if json {
        output::json(&checked)?;
    } else {
        for CheckedDefinition { definition, errors, notes } in &checked {
            match errors.is_empty() {
                true => output::line(&format!("{definition}: sound"))?,
                false => errors.iter().try_for_each(|error| output::line(&told_of(definition, error)))?,
            }
            notes.iter().try_for_each(|note| output::line(&format!("{definition}: note: {note}")))?;
        }
    }
    Ok(i32::from(checked.iter().any(|one| !one.errors.is_empty())))
}

/// An error with the definition that it is of, which it may name itself.
fn told_of(definition: &str, error: &str) -> String {
    let is_named = error.starts_with(definition) || error.starts_with(&format!("definition {definition}:"));
    if is_named { error.to_owned() } else { format!("{definition}: {error}") }
}

/// A fault in one line.
fn in_a_line(Fault { message, hint, .. }: Fault) -> String {
    if hint.is_empty() { message } else { format!("{message} ({hint})") }
}

/// Looks at one definition. Where all are looked at, those that name no image are there for others to build upon.
fn check_one(context: &UserContext, word: &str, is_all: bool) -> CheckedDefinition {
    let definition = word.to_owned();
    let found = match read(context, word) {
        Ok(found) => found,
        Err(e) => {
            let of_keys = with_context(context, |all| all.errors(word));
            let of_keys: Vec<_> =
                of_keys.into_iter().map(|e| Fault::new(e.to_string()).hint(e.hint)).collect();
            // What is wrong with the values, or in a file below, is known one at a time.
            let errors = if of_keys.is_empty() { vec![e] } else { of_keys };
            return CheckedDefinition {
                definition,
                errors: errors.into_iter().map(in_a_line).collect(),
                notes: vec![],
            };
        }
    };
    let (mut errors, mut notes): (Vec<String>, Vec<String>) = (vec![], vec![]);
    match image(&found, word) {
        Err(_) if is_all => notes.push("it names no image; others may build upon it".into()),
        Err(e) => errors.push(in_a_line(e)),
        Ok(_) => {}
    }
    for mount in &found.mounts {
        if let Err(e) = mount_words(mount).and_then(|words| parse_mounts(&words)) {
            errors.push(e.message);
        } else if let Err(e) = Path::new(&mount.source).metadata() {
            errors.push(format!("mount {}: {e}", mount.source));
        }
    }
    let device_words = found.devices.iter().map(|device| request(&format!("{DEVICE}{device}")));
    errors.extend(device_words.filter_map(|device| device.err().map(|e| e.message)));
    notes.extend(AnnotatedHooks::here(context, &found).notes);
    let value = |name: &str| own_variable(name.as_ref()).and_then(|value| value.into_string().ok());
    for (name, template) in &found.env {
        if let Err(e) = template.fill(&value) {
            notes.push(format!("env.{name}: {e}; the image may set it"));
        }
    }
    CheckedDefinition { definition, errors, notes }
}

/// A definition as it counts, in its own keys.
#[derive(Serialize)]
struct ShownDefinition {
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workdir: Option<PathBuf>,
    writable: bool,
    entrypoint: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

impl From<Definition> for ShownDefinition {
    fn from(definition: Definition) -> Self {
        let Definition { image, mounts, env, workdir, writable, entrypoint, devices, annotations, files: _ } =
            definition;
        let mount = |mount: skiff_edf::DefinitionMount| {
            let kind = if mount.kind == DefinitionMountKind::Squashfs { "sqsh" } else { "" };
            let flags: Vec<_> =
                [if mount.is_read_only { "ro" } else { "" }, mount.propagation.unwrap_or(""), kind]
                    .into_iter()
                    .filter(|flag| !flag.is_empty())
                    .collect();
            let colon = if flags.is_empty() { "" } else { ":" };
            format!("{}:{}{colon}{}", mount.source, mount.target, flags.join(","))
        };
        Self {
            image,
            mounts: mounts.into_iter().map(mount).collect(),
            workdir,
            writable,
            entrypoint,
            devices,
            env: env.into_iter().map(|(name, value)| (name, value.to_string())).collect(),
            annotations,
        }
    }
}

impl ShownDefinition {
    /// As a file has it, in which dollar signs may begin a variable. (Those of `env` stand as they were written.)
    fn escaped(self) -> Self {
        let all = |texts: Vec<String>| texts.iter().map(|text| escaped(text)).collect();
        let annotations = self.annotations.into_iter().map(|(name, value)| (name, escaped(&value))).collect();
        Self {
            image: self.image.as_deref().map(escaped),
            mounts: all(self.mounts),
            workdir: self
                .workdir
                .map(|dir| dir.to_str().map_or_else(|| dir.clone(), |dir| escaped(dir).into())),
            devices: all(self.devices),
            annotations,
            ..self
        }
    }
}

fn show(context: &UserContext, word: &str, json: bool) -> Result<()> {
    let found = read(context, word)?;
    let files: Vec<_> = found.files.iter().map(|file| format!("# from {}", file.display())).collect();
    let shown = ShownDefinition::from(found);
    if json {
        return output::json(&shown);
    }
    let shown = shown.escaped();
    let text = toml::to_string(&shown).map_err(|e| Fault::new(format!("definition {word}: {e}")))?;
    files.iter().try_for_each(|line| output::line(line))?;
    text.lines().try_for_each(output::line)
}

/// A definition with everything that one can say, most of it commented out.
fn new(image: &str) -> String {
    let image = toml::Value::from(image);
    format!(
        r#"# An environment definition file: skiff run FILE.toml, srun --environment=FILE.toml;
# in ~/.edf, or where EDF_PATH says, it goes by its name: srun --environment=NAME.
# ${{NAME}} is a variable of yours, ${{NAME:-text}} has text where it is not set.

image = {image}

# Another definition that this one builds upon, by its name or file.
# base_environment = "common"

# SOURCE:TARGET, with :ro for no changes; FILE:TARGET:sqsh mounts what is in a squashfs file.
# mounts = ["/scratch/${{USER}}:/scratch/${{USER}}", "/data:/data:ro"]

# Where programs start; otherwise where the image says.
# workdir = "/scratch/${{USER}}"

# Whether the image's files can be changed (changes are discarded), and whether its
# entry point is run.
# writable = true
# entrypoint = true

# Variables; the image's may stand in them, and an empty one is unset.
# [env]
# OMP_NUM_THREADS = "8"
# PATH = "/opt/tool/bin:${{PATH}}"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_to_start_from_is_sound_with_and_without_its_remarks() {
        let text = new("debian:12");
        let all = text
            .replace("\n# ", "\n")
            .lines()
            .skip(4)
            .filter(|line| line.contains('=') || line.starts_with('['))
            .collect::<Vec<_>>()
            .join("\n");
        for text in [text, all] {
            let read = |_: &Path| Ok(text.clone().into_bytes());
            let variable = |name: &str| (name == "USER").then(|| "alice".into());
            let context =
                skiff_edf::DefinitionContext { variable: &variable, home: "/home/alice".into(), read: &read };
            let without_base = text.replace("base_environment = \"common\"", "");
            let read = |_: &Path| Ok(without_base.clone().into_bytes());
            let found = Definition::read("x.toml", &skiff_edf::DefinitionContext { read: &read, ..context });
            assert_eq!(found.expect("sound").image.as_deref(), Some("debian:12"), "{text}");
        }
    }
}
