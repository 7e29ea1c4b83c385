//! One file, as it stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skiff_nearest::nearest;
use skiff_spec::device::Compatibility;

/// What a module's file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleFile {
    /// What it is for, in a line.
    pub description: String,
    /// Who gets it.
    #[serde(default)]
    pub when: When,
    /// What else asks for it.
    #[serde(default)]
    pub provides: Option<Provided>,
    /// What the host must have: paths. Without them a module that nobody has asked for is left out.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Modules that it cannot be used with.
    #[serde(default)]
    pub conflicts: Vec<String>,
    /// The host's libraries that take the place of the image's own, which must have the same name and no newer interface.
    #[serde(default)]
    pub replaces: Vec<String>,
    /// How the versions of those and of the image's must match.
    #[serde(default)]
    pub compatibility: Compatibility,
    /// The host's libraries that programs find besides.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Directories with what these load when they run. They are mounted, and what their files need comes with them.
    #[serde(default)]
    pub plugins: Vec<String>,
    /// Files and directories of the host's: `PATH`, or `SOURCE:TARGET`, with `:ro` for such as cannot be written to.
    #[serde(default)]
    pub mounts: Vec<String>,
    /// Device nodes of the host's. A last part may have a `*`.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Variables, which the user's own win over.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// Who gets a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Who asks for it.
    #[default]
    Asked,
    /// Every container.
    Always,
}

/// What an option of its own asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provided {
    /// The host's MPI.
    Mpi,
}

impl ModuleFile {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Everything that is wrong with it, a line each.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let file: Self = toml::from_str(text).map_err(|e| vec![syntax(text, &e)])?;
        let problems = file.problems();
        if problems.is_empty() { Ok(file) } else { Err(problems) }
    }

    /// Whether it brings libraries, which may turn out not to fit a root.
    #[must_use]
    pub fn has_libraries(&self) -> bool {
        [&self.replaces, &self.libraries, &self.plugins].iter().any(|list| !list.is_empty())
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = vec![];
        let mut refuse = |key: &str, value: &str, why: &str| problems.push(format!("{key}: {value:?} {why}"));
        let is_text = |text: &str| !text.chars().any(char::is_control);
        if !is_text(&self.description) {
            refuse("description", &self.description, "is more than a line");
        }
        let paths = [("requires", &self.requires), ("devices", &self.devices), ("plugins", &self.plugins)];
        for (key, path) in paths.iter().flat_map(|(key, list)| list.iter().map(move |path| (*key, path))) {
            if !is_path(path) {
                refuse(key, path, "is not an absolute path");
            }
        }
        for path in self.devices.iter().filter(|path| !path.starts_with("/dev/")) {
            refuse("devices", path, "is not below /dev");
        }
        for mount in self.mounts.iter().filter(|mount| parse_mount(mount).is_none()) {
            refuse("mounts", mount, "is not PATH, SOURCE:TARGET or SOURCE:TARGET:ro with absolute paths");
        }
        for (key, list) in [("replaces", &self.replaces), ("libraries", &self.libraries)] {
            for library in list.iter().filter(|library| parse_library(library).is_none()) {
                refuse(key, library, "is not the name or the absolute path of a library, or LIBRARY:NAME");
            }
        }
        for (name, value) in &self.env {
            let is_name = !name.is_empty()
                && !name.starts_with(|c: char| c.is_ascii_digit())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_name {
                refuse("env", name, "is no name of a variable");
            }
            if value.contains('\0') {
                refuse("env", name, "has a zero byte in its value");
            }
        }
        problems
    }
}

/// Where TOML is broken, or what it has that no module has.
fn syntax(text: &str, e: &toml::de::Error) -> String {
    let line = e.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
    let message = e.message().trim_end().replace('\n', "; ");
    match meant(&message) {
        Some((unknown, meant)) => format!("line {line}: {unknown}: {meant:?} may be meant"),
        None => format!("line {line}: {message}"),
    }
}

/// What an unknown field or value is called, and the one that may be meant, of those that the message lists.
fn meant(message: &str) -> Option<(&str, &str)> {
    let (unknown, listed) = message.split_once(", expected ")?;
    let word = unknown.strip_prefix("unknown ")?.split('`').nth(1)?;
    let meant = nearest(word, listed.split('`').skip(1).step_by(2))?;
    Some((unknown, meant))
}

/// A mount's source, target, and whether it is read-only.
pub(crate) fn parse_mount(word: &str) -> Option<(&str, &str, bool)> {
    let (paths, read_only) = word.strip_suffix(":ro").map_or((word, false), |paths| (paths, true));
    let (source, target) = paths.split_once(':').unwrap_or((paths, paths));
    (is_path(source) && is_path(target) && target != "/").then_some((source, target, read_only))
}

/// A library, and the name that programs ask for it by, if that is not its own.
pub(crate) fn parse_library(word: &str) -> Option<(&str, Option<&str>)> {
    let (library, name) = word.split_once(':').map_or((word, None), |(library, name)| (library, Some(name)));
    let is_sound = (is_path(library) || is_name(library)) && name.is_none_or(is_name);
    is_sound.then_some((library, name))
}

fn is_path(text: &str) -> bool {
    let is_plain = |part: &str| !matches!(part, "." | "..");
    text.starts_with('/') && text.split('/').all(is_plain) && !text.contains([':', '\0', '\n'])
}

fn is_name(text: &str) -> bool {
    text.contains(".so") && !text.starts_with('.') && !text.contains(['/', ':', '\0', '\n'])
}
