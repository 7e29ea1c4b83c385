//! Skiff called as `docker`, `podman`, `apptainer`, `singularity` or `ch-run`, by a link of that name: the common calls of these, in
//! Skiff's own words. What is not translated is refused by its name; nothing is left out silently that would change a result.

mod apptainer;
mod ch_run;
mod docker;
mod options;

use std::ffi::{OsStr, OsString};

use skiff_spec::fault::{Fault, Result};

/// Commands of Skiff that stand for one of another program: the words of each behind `skiff`, to be run in this order.
pub type Commands = Vec<Vec<OsString>>;

/// Translates the words behind the program's name; nothing if that is not one of those.
pub fn translate(name: &OsStr, words: &[OsString]) -> Option<Result<Commands>> {
    match name.to_str()? {
        name @ ("docker" | "podman") => Some(docker::translate(name, words)),
        name @ ("apptainer" | "singularity") => Some(apptainer::translate(name, words)),
        name @ "ch-run" => Some(ch_run::translate(name, words)),
        _ => None,
    }
}

/// The variables that hold mounts for a program of this name, as `SKIFF_BIND` does here.
pub fn bind_variables(name: &OsStr) -> &'static [&'static str] {
    match name.to_str() {
        Some("apptainer") => &["APPTAINER_BIND", "APPTAINER_BINDPATH"],
        Some("singularity") => &["SINGULARITY_BIND", "SINGULARITY_BINDPATH"],
        _ => &[],
    }
}

/// What of another program's words has no translation.
fn untranslated(program: &str, what: &str, nearest: Option<&str>) -> Fault {
    Fault::new(format!("{program}: {what} is not translated to Skiff's words")).hint(
        nearest
            .unwrap_or("`skiff help` lists Skiff's own commands, and `skiff help run` the options of `run`"),
    )
}

/// What of another program's words is not there.
fn missing(program: &str, what: &str) -> Fault {
    Fault::new(format!("{program} {what}"))
        .hint("an option may have taken it for its value; `skiff help` lists Skiff's own commands")
}

/// Words of our own.
fn own(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests;
