//! Mounts as users write them: `SOURCE[:TARGET[:OPTIONS]]` with the options of Docker and Podman, several with commas between as for
//! Apptainer, or `type=bind,source=...,target=...`.

use std::path::{Component, Path, PathBuf};

use skiff_edf::MountFlag;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::plan::{Mount, Propagation, Source, inside};
use skiff_spec::size;

use crate::data_words::{DataWord, data_word};
use crate::device_words::{self, DEVICE};

/// In front of the target of an empty file system in memory; `--tmpfs` makes it, and what users write never begins so.
pub const TMPFS: &str = "tmpfs:";

/// Further options that change nothing here: there are no labels of SELinux inside, and what is written on the host shows at once.
const AS_EVER: [&str; 6] = ["z", "Z", "consistent", "cached", "delegated", "nocopy"];

/// Options of file systems in memory that change nothing here.
const AS_EVER_IN_MEMORY: [&str; 6] = ["rw", "exec", "nosuid", "nodev", "noatime", "notmpcopyup"];

/// The most permissions that a file system in memory has.
const MOST_MODE: u32 = 0o1777;

/// A mount that is written alone: in the configuration, or for a job.
pub fn parse_mount(text: &str) -> Result<Mount> {
    if let Some(rest) = text.strip_prefix(TMPFS) {
        return in_memory(rest);
    }
    if let Some(device) = text.strip_prefix(DEVICE) {
        return of_device(device);
    }
    let mut parts = text.splitn(3, ':');
    let source = parts.next().unwrap_or_default();
    let target = parts.next().filter(|t| !t.is_empty()).unwrap_or(source);
    let (mut read_only, mut propagation) = (false, None);
    for option in parts.next().iter().flat_map(|options| options.split(',')) {
        match MountFlag::parse(option) {
            Some(MountFlag::AsEver) => {}
            Some(MountFlag::ReadOnly) => read_only = true,
            Some(MountFlag::Private) => propagation = Some(Propagation::Private),
            Some(MountFlag::Slave) => propagation = Some(Propagation::Slave),
            Some(MountFlag::Unbindable) => propagation = Some(Propagation::Unbindable),
            None if option == "readonly" => read_only = true,
            None if AS_EVER.contains(&option) => {}
            // Files with data are read by the store.
            Some(MountFlag::Squashfs) | None => return Err(bad(text, &refusal(option))),
        }
    }
    Ok(Mount { propagation, ..bind(text, source, target, read_only)? })
}

/// Why an option of a mount is refused.
fn refusal(option: &str) -> String {
    match option {
        option if option.contains(':') => "too many colons".into(),
        "U" => "U would change the owner of the host's files".into(),
        "shared" | "rshared" => "what is mounted inside does not come out".into(),
        option => format!("the option {option:?} is not known"),
    }
}

/// All mounts of one word of the command line, but those of files with data: what is in these shows only when the store has read them.
pub fn parse_mounts(text: &str) -> Result<Vec<Mount>> {
    parse_all(text, &|_| Ok(None))
}

/// All mounts of one word in their order, where the store has read the files with data.
///
/// # Errors
/// One is not sound; or it has not, as what starts here cannot have such files.
pub fn with_data(text: &str, data: &[Mount]) -> Result<Vec<Mount>> {
    let of_data = |word: &DataWord| {
        let found = data.iter().rev().find(|mount| mount.target == Path::new(&word.target));
        found.cloned().map(Some).ok_or_else(|| {
            Error::new(format!("mount of {}: not possible in what starts here", word.file))
                .hint("skiff run, shell, instance start, and jobs in containers mount such files")
        })
    };
    parse_all(text, &of_data)
}

fn parse_all(text: &str, of_data: &dyn Fn(&DataWord) -> Result<Option<Mount>>) -> Result<Vec<Mount>> {
    // What a described device needs is known only when the descriptions have been read.
    if device_words::request(text)?.is_some() {
        return Ok(vec![]);
    }
    if is_settings(text) {
        return Ok(vec![of_settings(text)?]);
    }
    let of_piece = |piece: &str| match data_word(piece) {
        Some(word) => of_data(&word),
        None => parse_mount(piece).map(Some),
    };
    Ok(pieces(text).into_iter().map(of_piece).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The same word with sources as absolute paths, where they are written as seen from `here`. What makes no sense stays as it is, for
/// [`parse_mounts`] to refuse.
pub fn absolute(text: &str, here: impl FnOnce() -> std::io::Result<PathBuf>) -> String {
    let key_of = |part: &str| ["source=", "src="].into_iter().find(|key| part.starts_with(key)).map(str::len);
    // Of each part, where a source begins in it, if one does.
    let parts: Vec<(&str, Option<usize>)> = match is_settings(text) {
        true => text.split(',').map(|part| (part, key_of(part))).collect(),
        false => pieces(text).into_iter().map(|part| (part, Some(0))).collect(),
    };
    let relative = |(part, at): (&'_ str, Option<usize>)| {
        at.filter(|at| !part[*at..].is_empty() && !part[*at..].starts_with(['/', ':']))
    };
    if !parts.iter().any(|part| relative(*part).is_some()) {
        return text.into();
    }
    let Ok(here) = here() else { return text.into() };
    let whole = |part: &(&str, Option<usize>)| match relative(*part) {
        Some(at) => format!("{}{}", &part.0[..at], from(&here, &part.0[at..])),
        None => part.0.to_owned(),
    };
    parts.iter().map(whole).collect::<Vec<_>>().join(",")
}

/// `rest` begins with a path as seen from `here`, which has no links in it: `..` at the beginning goes up.
fn from(here: &Path, rest: &str) -> String {
    let (mut dir, mut rest) = (here, rest);
    loop {
        rest = match rest.strip_prefix("..").filter(|rest| rest.is_empty() || rest.starts_with(['/', ':'])) {
            Some(above) => {
                dir = dir.parent().unwrap_or(dir);
                above
            }
            None => {
                match rest.strip_prefix('.').filter(|rest| rest.is_empty() || rest.starts_with(['/', ':'])) {
                    Some(here) => here,
                    None => break,
                }
            }
        };
        rest = rest.trim_start_matches('/');
    }
    let dir = dir.display().to_string();
    match rest.is_empty() || rest.starts_with(':') {
        true => format!("{dir}{rest}"),
        false => format!("{}/{rest}", dir.trim_end_matches('/')),
    }
}

/// The mounts of a list. A comma ends one only if a path follows: it may also stand in a path, or between options.
pub(crate) fn pieces(text: &str) -> Vec<&str> {
    let is_next = |rest: &str| rest.starts_with(['/', '.']);
    let mut starts = vec![0];
    starts.extend(text.match_indices(',').map(|(at, _)| at + 1).filter(|at| is_next(&text[*at..])));
    let ends = starts.iter().skip(1).map(|at| at - 1).chain([text.len()]);
    let ends: Vec<usize> = ends.collect();
    match text.starts_with(TMPFS) || text.starts_with(DEVICE) {
        true => vec![text],
        false => starts.into_iter().zip(ends).map(|(start, end)| &text[start..end]).collect(),
    }
}

/// Whether it is written with keys.
fn is_settings(text: &str) -> bool {
    let first = text.split([',', ':']).next().unwrap_or_default();
    ["type", "source", "src", "target", "destination", "dst"]
        .iter()
        .any(|key| first.strip_prefix(key).is_some_and(|rest| rest.starts_with('=')))
}

/// Docker's and Podman's `--mount type=bind,source=...,target=...[,readonly]`.
fn of_settings(text: &str) -> Result<Mount> {
    let (mut kind, mut source, mut target, mut options) = ("volume", None, None, vec![]);
    for setting in text.split(',') {
        match setting.split_once('=') {
            Some(("type", value)) => kind = value,
            Some(("source" | "src", value)) => source = Some(value),
            Some(("target" | "destination" | "dst", value)) => target = Some(value),
            Some(("readonly" | "ro", "true" | "1")) => options.push("ro".to_owned()),
            None if matches!(setting, "readonly" | "ro") => options.push("ro".to_owned()),
            Some(("readonly" | "ro", "false" | "0")) => {}
            Some(("bind-propagation", value @ ("private" | "rprivate" | "slave" | "rslave"))) => {
                options.push(value.to_owned());
            }
            Some(("tmpfs-size", value)) => options.push(format!("size={value}")),
            Some(("tmpfs-mode", value)) => options.push(format!("mode={value}")),
            _ => return Err(bad(text, &format!("the setting {setting:?} is not known"))),
        }
    }
    let target = target.ok_or_else(|| bad(text, "no target"))?;
    let options = options.join(",");
    match (kind, source) {
        ("bind", Some(source)) => parse_mount(&format!("{source}:{target}:rw,{options}")),
        ("bind", None) => Err(bad(text, "no source")),
        ("tmpfs", _) => in_memory(&format!("{target}:{options}")),
        (kind, _) => Err(Error::new(format!("mount {text:?}: type {kind} does not exist here"))
            .hint("mount a directory: type=bind,source=DIR,target=DIR")),
    }
}

/// `TARGET[:OPTIONS]`, an empty file system in memory there.
fn in_memory(text: &str) -> Result<Mount> {
    let bad = |why: &str| {
        Error::new(format!("--tmpfs {text}: {why}")).hint("it is written DIR[:size=64M,mode=1777,ro]")
    };
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    let (mut mode, mut limit, mut read_only) = (MOST_MODE, None, false);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("size", value)) => {
                limit = Some(
                    size::parse(value).filter(|size| *size > 0).ok_or_else(|| bad("the size is not one"))?,
                );
            }
            Some(("mode", value)) => {
                let read = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= MOST_MODE);
                mode = read.ok_or_else(|| bad("the mode is not one up to 1777"))?;
            }
            None if option == "ro" => read_only = true,
            None if AS_EVER_IN_MEMORY.contains(&option) => {}
            _ => return Err(bad(&format!("the option {option:?} is not known"))),
        }
    }
    let mount = bind(text, target, target, read_only)?;
    Ok(Mount { source: Source::Memory { mode, size: limit }, ..mount })
}

/// `DEVICE[:TARGET[:rwm]]`.
fn of_device(text: &str) -> Result<Mount> {
    let mut parts = text.splitn(3, ':');
    let source = parts.next().unwrap_or_default();
    let target = parts.next().unwrap_or(source);
    let is_device = |path: &str| path.starts_with("/dev/");
    if !is_device(source) || !is_device(target) {
        return Err(Error::new(format!("--device {text}: not a path below /dev"))
            .hint("a device that a vendor describes is VENDOR/CLASS=NAME: skiff cdi list"));
    }
    let read_only = match parts.next().unwrap_or("rwm") {
        "" => return Err(Error::new(format!("--device {text}: no permissions")).hint("they are r, w and m")),
        letters if letters.chars().all(|letter| "rwm".contains(letter)) => !letters.contains('w'),
        _ => {
            return Err(
                Error::new(format!("--device {text}: unknown permissions")).hint("they are r, w and m")
            );
        }
    };
    bind(text, source, target, read_only)
}

fn bad(text: &str, why: &str) -> Error {
    Error::new(format!("mount {text:?}: {why}")).hint("it is written SOURCE[:TARGET[:ro]]")
}

/// A mount of the host's that is sound.
fn bind(text: &str, source: &str, target: &str, read_only: bool) -> Result<Mount> {
    for path in [source, target] {
        if !path.starts_with('/') {
            return Err(bad(text, "a path is not absolute"));
        }
        if Path::new(path).components().any(|c| c == Component::ParentDir) {
            return Err(bad(text, "a path holds `..`"));
        }
    }
    if target.trim_end_matches('/').is_empty() || Path::new(target).starts_with(inside::DIR) {
        return Err(bad(text, "that target is the environment's own"));
    }
    Ok(Mount {
        source: Source::Bind(source.into()),
        target: target.into(),
        read_only,
        optional: false,
        propagation: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mount: &Mount) -> String {
        let source = match &mount.source {
            Source::Bind(path) => path.display().to_string(),
            Source::Memory { mode, size } => format!("memory {mode:o} {}", size.unwrap_or(0)),
            other => format!("{other:?}"),
        };
        format!("{} <- {source}{}", mount.target.display(), if mount.read_only { " ro" } else { "" })
    }

    #[test]
    fn mounts_as_written() {
        for (text, want) in [
            ("/a", "/a <- /a"),
            ("/a:/b", "/b <- /a"),
            ("/a:/b:ro", "/b <- /a ro"),
            ("/a::ro", "/a <- /a ro"),
            ("/a:/b:rw", "/b <- /a"),
            ("/a:/b:ro,z", "/b <- /a ro"),
            ("/a:/b:Z,rprivate", "/b <- /a"),
            ("/a:/b,/c:/d:ro", "/b <- /a, /d <- /c ro"),
            ("/a:/b:ro,z,/c", "/b <- /a ro, /c <- /c"),
            ("/a,b:/c", "/c <- /a,b"),
            ("type=bind,source=/a,target=/b", "/b <- /a"),
            ("type=bind,src=/a,dst=/b,readonly", "/b <- /a ro"),
            ("source=/a,destination=/b,type=bind,ro=true", "/b <- /a ro"),
            ("type=bind,source=/a,target=/b,readonly=false", "/b <- /a"),
            ("type=tmpfs,target=/b,tmpfs-size=1M,tmpfs-mode=700", "/b <- memory 700 1048576"),
            ("type=tmpfs,dst=/b", "/b <- memory 1777 0"),
            ("tmpfs:/b", "/b <- memory 1777 0"),
            ("tmpfs:/b:rw,size=64m,mode=755,nosuid", "/b <- memory 755 67108864"),
            ("tmpfs:/b:ro", "/b <- memory 1777 0 ro"),
            ("device:nvidia.com/gpu=all", ""),
            ("gpus:\"device=0,1\"", ""),
            ("device:/dev/fuse", "/dev/fuse <- /dev/fuse"),
            ("device:/dev/sda:/dev/xvda:r", "/dev/xvda <- /dev/sda ro"),
        ] {
            let read = parse_mounts(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(read.iter().map(shown).collect::<Vec<_>>().join(", "), want, "{text}");
        }
    }

    #[test]
    fn mounts_refused() {
        for text in [
            "",
            "a",
            "/a:b",
            "/a:/b:xx",
            "/a:/b:ro:x",
            "/a/../b",
            "/a:/..",
            "/a:/",
            "/a:/run/skiff/host",
            "/a:/b:U",
            "/a:/b:rshared",
            "type=bind,target=/b",
            "type=bind,source=/a",
            "type=volume,source=a,target=/b",
            "source=/a,target=/b",
            "type=bind,source=/a,target=/b,odd",
            "type=bind,source=/a,target=/b,readonly=perhaps",
            "tmpfs:",
            "tmpfs:x",
            "tmpfs:/b:size=x",
            "tmpfs:/b:size=0",
            "tmpfs:/b:mode=4777",
            "tmpfs:/b:uid=3",
            "tmpfs:/run/skiff",
            "device:nvidia.com/gpu=",
            "gpus:",
            "gpus:0",
            "gpus:../x",
            "device:/etc/x",
            "device:/dev/a:/etc/x",
            "device:/dev/a:/dev/b:q",
            "device:/dev/../etc/x",
        ] {
            let why = parse_mounts(text).expect_err(text);
            assert!(!why.hint.is_empty(), "{text}: {why}");
        }
    }

    #[test]
    fn relative_sources_are_seen_from_where_the_user_is() {
        for (text, want) in [
            (".", "/w/x"),
            ("./a", "/w/x/a"),
            ("a", "/w/x/a"),
            ("./a:/b:ro", "/w/x/a:/b:ro"),
            (".:/b", "/w/x:/b"),
            ("..:/b", "/w:/b"),
            ("../a:/b", "/w/a:/b"),
            ("../../../a:/b", "/a:/b"),
            ("../..:/b", "/:/b"),
            (".a:/b", "/w/x/.a:/b"),
            ("..a:/b", "/w/x/..a:/b"),
            ("/a:/b,./c:/d", "/a:/b,/w/x/c:/d"),
            ("type=bind,source=./a,target=/b", "type=bind,source=/w/x/a,target=/b"),
            ("type=bind,src=a,target=/b,ro", "type=bind,src=/w/x/a,target=/b,ro"),
            ("tmpfs", "/w/x/tmpfs"),
            ("tmpfs:/b", "/w/x/tmpfs:/b"),
            (":/b", ":/b"),
            ("", ""),
        ] {
            assert_eq!(absolute(text, || Ok("/w/x".into())), want, "{text}");
        }
        let unasked = || -> std::io::Result<PathBuf> { panic!("nobody needs to know where the user is") };
        assert_eq!(absolute("/a:/b:ro,z,/c:/d", unasked), "/a:/b:ro,z,/c:/d");
    }
}
