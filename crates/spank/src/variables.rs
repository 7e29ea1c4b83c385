//! Pyxis' variables: each stands for an option of containers that is not given.

use std::ffi::{CStr, CString};
use std::sync::Mutex;

use crate::ffi::{c_string, own_variable, unset_own_variable};

/// Variables with a value, and their options.
const VALUES: [(&str, &CStr); 7] = [
    ("PYXIS_CONTAINER_IMAGE", c"--container-image"),
    ("PYXIS_CONTAINER_MOUNTS", c"--container-mounts"),
    ("PYXIS_CONTAINER_WORKDIR", c"--container-workdir"),
    ("PYXIS_CONTAINER_NAME", c"--container-name"),
    ("PYXIS_CONTAINER_SAVE", c"--container-save"),
    ("PYXIS_CONTAINER_ENV", c"--container-env"),
    ("PYXIS_CONTAINER_UNSHARE", c"--container-unshare"),
];

/// Variables that say yes or no, and the options for either.
const SWITCHES: [(&str, [&CStr; 2]); 6] = [
    ("PYXIS_CONTAINER_MOUNT_HOME", [c"--container-mount-home", c"--no-container-mount-home"]),
    ("PYXIS_CONTAINER_REMAP_ROOT", [c"--container-remap-root", c"--no-container-remap-root"]),
    ("PYXIS_CONTAINER_ENTRYPOINT", [c"--container-entrypoint", c"--no-container-entrypoint"]),
    ("PYXIS_CONTAINER_ENTRYPOINT_LOG", [c"--container-entrypoint-log", c""]),
    ("PYXIS_CONTAINER_WRITABLE", [c"--container-writable", c"--container-readonly"]),
    ("PYXIS_CONTAINER_READONLY", [c"--container-readonly", c"--container-writable"]),
];

/// What the forgotten variables said. The later parts of a heterogeneous job are meant as well.
static FORGOTTEN: Mutex<Vec<(&str, CString)>> = Mutex::new(vec![]);

/// The words that were typed, with those that variables stand for. Without an image or a name these mean nothing.
pub fn with_variables(typed: Vec<CString>) -> Vec<CString> {
    merged(typed, |name| own_variable(name).and_then(c_string).or_else(|| forgotten(name)))
}

fn merged(typed: Vec<CString>, value: impl Fn(&str) -> Option<CString>) -> Vec<CString> {
    let mut words = typed.clone();
    for (variable, option) in VALUES {
        if !has(&words, option)
            && let Some(value) = value(variable)
            && let Ok(word) = CString::new([option.to_bytes(), b"=", value.to_bytes()].concat())
        {
            words.push(word);
        }
    }
    for (variable, [yes, no]) in SWITCHES {
        let is_said = has(&words, yes) || has(&words, no);
        let word = match value(variable).filter(|_| !is_said).as_deref().and_then(answer) {
            Some(true) => yes,
            Some(false) => no,
            None => continue,
        };
        words.extend((!word.is_empty()).then(|| word.to_owned()));
    }
    let is_container = [c"--container-image", c"--container-name"].iter().any(|option| has(&words, option));
    if is_container { words } else { typed }
}

fn has(words: &[CString], option: &CStr) -> bool {
    let is_it = |word: &CString| match word.to_bytes().strip_prefix(option.to_bytes()) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"="),
        None => false,
    };
    !option.is_empty() && words.iter().any(is_it)
}

fn answer(value: &CStr) -> Option<bool> {
    match value.to_bytes().to_ascii_lowercase().as_slice() {
        b"1" | b"true" | b"yes" | b"on" => Some(true),
        b"0" | b"false" | b"no" | b"off" => Some(false),
        _ => None,
    }
}

fn forgotten(name: &str) -> Option<CString> {
    value_of(&FORGOTTEN.lock().ok()?, name)
}

fn value_of(variables: &[(&str, CString)], name: &str) -> Option<CString> {
    variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
}

/// Keeps the variables from the job: they were of its own container, and in its steps they would ask for others.
pub fn forget() {
    if let Ok(mut forgotten) = FORGOTTEN.lock() {
        forgotten.extend(set_variables(|name| own_variable(name).and_then(c_string)));
    }
    names().for_each(unset_own_variable);
}

fn names() -> impl Iterator<Item = &'static str> {
    let values = VALUES.iter().map(|(variable, _)| *variable);
    values.chain(SWITCHES.iter().map(|(variable, _)| *variable))
}

/// Pyxis' variables that are set, with their values.
fn set_variables(value: impl Fn(&str) -> Option<CString>) -> Vec<(&'static str, CString)> {
    names().filter_map(|name| Some((name, value(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_from_the_job_still_counts_for_its_later_parts() {
        let set = |name: &str| match name {
            "PYXIS_CONTAINER_IMAGE" => Some(c"a".to_owned()),
            "PYXIS_CONTAINER_READONLY" => Some(c"1".to_owned()),
            _ => None,
        };
        let want = [c"--container-image=a".to_owned(), c"--container-readonly".to_owned()];
        assert_eq!(merged(vec![], set), want);
        let kept = set_variables(set);
        assert_eq!(merged(vec![], |name| value_of(&kept, name)), want);
        assert_eq!(set_variables(|_| None), vec![], "they are no longer set for the next part");
    }

    #[test]
    fn a_variable_stands_for_an_option_that_is_not_given() {
        let of = |typed: &[&str], variables: &[(&str, &str)]| {
            let typed = typed.iter().map(|word| CString::new(*word).expect("a word")).collect();
            let value = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| CString::new(*value).expect("a value"))
            };
            let words = merged(typed, value);
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let image = ("PYXIS_CONTAINER_IMAGE", "a");
        for (typed, variables, want) in [
            (&[][..], &[image][..], "--container-image=a"),
            (&["--container-image=b"], &[image], "--container-image=b"),
            (&[], &[("PYXIS_CONTAINER_MOUNTS", "/a")], ""),
            (
                &["--container-name=x"],
                &[("PYXIS_CONTAINER_MOUNTS", "/a")],
                "--container-name=x --container-mounts=/a",
            ),
            (&[], &[image, ("PYXIS_CONTAINER_READONLY", "yes")], "--container-image=a --container-readonly"),
            (&[], &[image, ("PYXIS_CONTAINER_READONLY", "0")], "--container-image=a --container-writable"),
            (&[], &[image, ("PYXIS_CONTAINER_WRITABLE", "perhaps")], "--container-image=a"),
            (&[], &[image, ("PYXIS_CONTAINER_ENTRYPOINT_LOG", "0")], "--container-image=a"),
            (
                &["--no-container-mount-home"],
                &[image, ("PYXIS_CONTAINER_MOUNT_HOME", "1")],
                "--no-container-mount-home --container-image=a",
            ),
        ] {
            assert_eq!(of(typed, variables), want, "{typed:?} {variables:?}");
        }
    }
}
