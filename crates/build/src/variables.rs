//! What the scripts of a definition set, for the image's configuration: so that each command in the image has it, whatever starts that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use serde_json::Value;
use skiff_oci::manifest::Instructions;
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::definition::{AFTER, BEFORE, ENTRY, LABELS, SOMEBODY, VARIABLES, labels};

/// More than this no list has, in bytes.
const LONGEST: u64 = 4 << 20;

/// Variables that the shell sets, or that are somebody's.
const OF_NOBODY: [&str; 7] = ["_", "HOME", "LOGNAME", "OLDPWD", "PWD", "SHLVL", "USER"];

/// Whether a path of the image is one of those lists.
pub fn is_list(path: &[u8]) -> bool {
    path.strip_prefix(b"/").is_some_and(|path| path.starts_with(VARIABLES.as_bytes()))
}

/// Takes what the lists in a layer say into a configuration. Gives the names of variables that depend on who runs the image.
///
/// # Errors
/// A list cannot be read.
pub fn take(config: &mut Value, layer: &Path) -> Result<Vec<String>> {
    let (before, after) = match (list(layer, BEFORE)?, list(layer, AFTER)?) {
        (Some(before), Some(after)) => (before, after),
        (Some(_), None) => {
            return Err(Fault::new("%environment: it ends the shell before its end")
                .hint("what it sets is only known at its end: it may hold neither exit nor exec"));
        }
        (None, _) => return Ok(vec![]),
    };
    let mut instructions = Instructions::new(config);
    let dynamic = set(&mut instructions, &variables(&before), &variables(&after));
    if !dynamic.is_empty() && instructions.list("Entrypoint") == ENTRY[3..] {
        instructions.set("Entrypoint", ENTRY.map(String::from).to_vec());
    }
    if let Some(found) = list(layer, LABELS)? {
        instructions.add_labels(labels(&String::from_utf8_lossy(&found)));
    }
    config["config"] = instructions.into_config();
    Ok(dynamic)
}

fn set(
    instructions: &mut Instructions,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut dynamic = vec![];
    for (name, value) in after.iter().filter(|(name, value)| before.get(*name) != Some(*value)) {
        match value.contains(SOMEBODY) {
            true => dynamic.push(name.clone()),
            false => instructions.set_variable(name, value),
        }
    }
    let is_gone = |setting: &String| {
        let name = setting.split('=').next().unwrap_or_default();
        before.contains_key(name) && !after.contains_key(name)
    };
    let mut all = instructions.list("Env");
    all.retain(|setting| !is_gone(setting));
    instructions.set("Env", all);
    dynamic
}

/// A list, if the layer has it. Whoever made the layer chose what is in it: nothing is followed, and nothing waited for.
fn list(layer: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let shown = || format!("{VARIABLES}{name}");
    let dir = openat(CWD, layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let dir = dir.context(|| layer.display().to_string())?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(&dir, format!("{VARIABLES}{name}"), flags, Mode::empty(), how) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        file => File::from(file.context(shown)?),
    };
    if !file.metadata().context(shown)?.is_file() {
        return Err(Fault::new(format!("{}: not a file", shown())));
    }
    let mut bytes = vec![];
    file.take(LONGEST).read_to_end(&mut bytes).context(shown)?;
    Ok(Some(bytes))
}

/// `NAME=VALUE` with a zero byte behind each; names as a shell has them.
fn variables(bytes: &[u8]) -> BTreeMap<String, String> {
    let settings = bytes.split(|byte| *byte == 0).filter_map(|setting| std::str::from_utf8(setting).ok());
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let pairs = settings.filter_map(|setting| setting.split_once('='));
    let kept = pairs.filter(|(name, _)| is_name(name) && !OF_NOBODY.contains(name));
    kept.map(|(name, value)| (name.into(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_scripts_set_is_in_the_configuration() {
        let layer = tempfile::tempdir().expect("made");
        std::fs::create_dir(layer.path().join(".singularity.d")).expect("made");
        let write = |name: &str, text: &str| {
            std::fs::write(layer.path().join(format!("{VARIABLES}{name}")), text).expect("written");
        };
        let old = json!({"config": {"Env": ["PATH=/bin", "OLD=1", "GONE=1"], "Entrypoint": ["/.singularity.d/runscript"]}});
        let mut config = old.clone();
        assert_eq!(take(&mut config, layer.path()).expect("taken"), [""; 0]);
        assert_eq!(config, old, "a layer without lists");
        write(BEFORE, "PATH=/bin\0OLD=1\0GONE=1\0HOME=/home/skiff-somebody\0");
        write(
            AFTER,
            "PATH=/opt/bin:/bin\0OLD=1\0HOME=/x\0A=b=c\nd\0SHLVL=1\0BASH_FUNC_x%%=()\0odd\0MINE=/home/skiff-somebody/x\0",
        );
        write(LABELS, "# no\nmade.by alice  b\n");
        assert_eq!(take(&mut config, layer.path()).expect("taken"), ["MINE"]);
        let config = &config["config"];
        assert_eq!(config["Env"], json!(["OLD=1", "A=b=c\nd", "PATH=/opt/bin:/bin"]));
        assert_eq!(config["Labels"], json!({"made.by": "alice  b"}));
        assert_eq!(config["Entrypoint"], json!(ENTRY));
    }

    #[test]
    fn lists_lead_nowhere() {
        let layer = tempfile::tempdir().expect("made");
        std::os::unix::fs::symlink("/etc", layer.path().join(".singularity.d")).expect("made");
        assert!(take(&mut json!({}), layer.path()).is_err());
        let layer = tempfile::tempdir().expect("made");
        std::fs::create_dir_all(layer.path().join(format!("{VARIABLES}{BEFORE}"))).expect("made");
        assert!(take(&mut json!({}), layer.path()).is_err());
    }

    #[test]
    fn lists_are_no_files_of_the_image() {
        assert!(is_list(b"/.singularity.d/.variables.before"));
        assert!(!is_list(b"/.singularity.d/env") && !is_list(b"/x/.singularity.d/.variables.before"));
    }
}
