//! The programs that vendors' files name for a runtime to start. None is ever started here: what the known ones do is done by Skiff itself, or
//! is left out where a container of the user's own needs nothing of it.

use std::path::{Component, Path};

/// What a hook stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CdiHook {
    /// Links: where each leads to, and where it is.
    Links(Vec<Link>),
    /// The linker's cache is to know the libraries in these directories.
    Libraries(Vec<String>),
    /// Nothing is lost without it.
    Needless,
    /// What it does is left out, and the user is told.
    Ignored {
        /// The word for what the program is to do.
        name: String,
        /// What is not done.
        why: &'static str,
    },
    /// Nobody here knows what the program does.
    Unknown {
        /// The program, and the word that says what it is to do.
        name: String,
    },
}

/// A symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it leads.
    pub target: String,
    /// Where it is.
    pub link: String,
}

/// Programs whose words are known, by the last part of their paths: NVIDIA's and AMD's.
const KNOWN_PROGRAMS: [&str; 3] = ["nvidia-ctk", "nvidia-cdi-hook", "amd-ctk"];

/// Hooks that change nothing here, as nobody in a container of the user's own can make device nodes.
const NEEDLESS: [&str; 2] = ["disable-device-node-modification", "noop"];

/// Hooks that are left out.
const IGNORED: [(&str, &str); 4] = [
    ("enable-cuda-compat", "the image's own CUDA compatibility libraries are not put before the driver's"),
    ("chmod", "modes of the host's device directories stay as they are"),
    ("update-application-profile", "EGL and Vulkan programs are not told which GPUs they have"),
    ("apply-cuda-memory-limits", "no limit is set for the memory of a GPU"),
];

/// What a hook's program and words mean.
///
/// # Errors
/// Words of a known hook that make no sense.
pub(crate) fn understand(path: &str, args: &[&str]) -> Result<CdiHook, String> {
    let program = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path);
    // The first word is the program's own name; older files have `hook` in front of what it is to do.
    let mut words = args.get(1..).unwrap_or_default().iter().copied().skip_while(|word| *word == "hook");
    let name = words.next().unwrap_or_default();
    if !KNOWN_PROGRAMS.contains(&program) {
        return Ok(CdiHook::Unknown { name: format!("{program} {name}").trim_end().into() });
    }
    let words: Vec<&str> = words.collect();
    if NEEDLESS.contains(&name) {
        return Ok(CdiHook::Needless);
    }
    if let Some((name, why)) = IGNORED.iter().find(|(known, _)| *known == name) {
        return Ok(CdiHook::Ignored { name: (*name).into(), why });
    }
    match name {
        "create-symlinks" => {
            values(&words, "--link")?.into_iter().map(link).collect::<Result<_, _>>().map(CdiHook::Links)
        }
        "update-ldcache" => {
            let folders = values(&words, "--folder")?;
            folders.into_iter().map(folder).collect::<Result<_, _>>().map(CdiHook::Libraries)
        }
        name => Ok(CdiHook::Unknown { name: format!("{program} {name}").trim_end().into() }),
    }
}

/// The values of a flag, which is written `--flag VALUE` or `--flag=VALUE`.
fn values<'a>(words: &[&'a str], flag: &str) -> Result<Vec<&'a str>, String> {
    let mut found = vec![];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some((name, value)) if name == flag => found.push(value),
            _ if *word == flag => found.push(words.next().ok_or_else(|| format!("{flag} without a value"))?),
            // Where the host's program is, which is not used.
            Some(("--ldconfig-path", _)) => {}
            _ if *word == "--ldconfig-path" => drop(words.next()),
            _ => return Err(format!("the hook has a word {word:?} that is not known")),
        }
    }
    Ok(found)
}

fn link(text: &str) -> Result<Link, String> {
    let (target, link) = text.split_once("::").ok_or_else(|| format!("link {text:?} is not TARGET::LINK"))?;
    let refuse = |why: &str| Err(format!("link {text:?}: {why}"));
    let has_parent = |path: &str| Path::new(path).components().any(|part| part == Component::ParentDir);
    if target.is_empty() || !link.starts_with('/') || Path::new(link).file_name().is_none() {
        return refuse("the link's place is not an absolute path, or its target is empty");
    }
    if has_parent(link) {
        return refuse("the link's place holds `..`");
    }
    let place = Path::new(link);
    if ["/proc", "/sys", "/run/skiff"].iter().any(|own| place.starts_with(own)) {
        return refuse("the link's place is the container's own");
    }
    // Counted from where the link is: one that leads above the root is meant for something outside.
    let mut depth = place.parent().map_or(0, |dir| dir.components().count().saturating_sub(1));
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir if depth == 0 => return refuse("the target leads out of the root"),
            Component::ParentDir => depth -= 1,
            Component::RootDir => depth = 0,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
    }
    match text.contains(char::is_control) {
        true => refuse("a control character"),
        false => Ok(Link { target: target.into(), link: link.into() }),
    }
}

fn folder(text: &str) -> Result<String, String> {
    let path = Path::new(text);
    let is_sound = path.is_absolute()
        && !path.components().any(|part| part == Component::ParentDir)
        && !text.contains(char::is_control);
    if is_sound {
        Ok(text.into())
    } else {
        Err(format!("folder {text:?} is not an absolute path without `..`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, words: &str) -> Result<CdiHook, String> {
        understand(path, &words.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn the_hooks_that_everybodys_files_name_are_understood() {
        let links = |pairs: &[(&str, &str)]| {
            let link =
                |(target, link): &(&str, &str)| Link { target: (*target).into(), link: (*link).into() };
            CdiHook::Links(pairs.iter().map(link).collect())
        };
        let hook = "/usr/bin/nvidia-cdi-hook";
        for (path, words, want) in [
            (
                hook,
                "nvidia-cdi-hook create-symlinks --link libcuda.so.1::/lib/libcuda.so",
                links(&[("libcuda.so.1", "/lib/libcuda.so")]),
            ),
            (
                "/usr/bin/nvidia-ctk",
                "nvidia-ctk hook create-symlinks --link=../a::/b/c --link /x::/y",
                links(&[("../a", "/b/c"), ("/x", "/y")]),
            ),
            (
                hook,
                "nvidia-cdi-hook update-ldcache --folder /lib --folder=/lib/vdpau --ldconfig-path /sbin/ldconfig",
                CdiHook::Libraries(vec!["/lib".into(), "/lib/vdpau".into()]),
            ),
            (hook, "nvidia-cdi-hook disable-device-node-modification", CdiHook::Needless),
            (
                "/opt/evil/run",
                "run create-symlinks --link a::/b",
                CdiHook::Unknown { name: "run create-symlinks".into() },
            ),
            (hook, "nvidia-cdi-hook brew --coffee", CdiHook::Unknown { name: "nvidia-cdi-hook brew".into() }),
            (hook, "", CdiHook::Unknown { name: "nvidia-cdi-hook".into() }),
        ] {
            assert_eq!(of(path, words).as_ref(), Ok(&want), "{words}");
        }
        assert!(matches!(
            of(hook, "x enable-cuda-compat --host-driver-version=1"),
            Ok(CdiHook::Ignored { .. })
        ));
    }

    #[test]
    fn links_that_lead_outside_are_refused() {
        for link in [
            "a",
            "a::",
            "::/b",
            "a::b",
            "a::/../b",
            "../../a::/b/c",
            "/..::/b",
            "a::/",
            "a::/proc/x",
            "x/../../../y::/b/c",
        ] {
            assert!(
                of("/usr/bin/nvidia-ctk", &format!("x hook create-symlinks --link {link}")).is_err(),
                "{link}"
            );
        }
        for words in ["--folder lib", "--folder /a/../b", "--folder", "--fold /a"] {
            assert!(of("/usr/bin/nvidia-ctk", &format!("x hook update-ldcache {words}")).is_err(), "{words}");
        }
    }
}
