//! The calls of Docker and Podman. A container of theirs shows nothing of the host but its mounts, and its program is root: so that is asked for.

use std::ffi::OsString;

use skiff_spec::fault::Result;

use super::options::{AS_EVER, Becomes, Rule, translate as options};
use super::{Commands, missing, own, untranslated};
use crate::elsewhere;

/// Of `run` and `create`.
#[rustfmt::skip]
const RUN: [Rule; 26] = [
    (&["--detach", "-d"], Becomes::Words(&["--detach"])),
    (&["--rm"], Becomes::Words(&["--rm"])),
    (&["--interactive", "-i"], AS_EVER),
    (&["--tty", "-t"], AS_EVER),
    (&["--init"], AS_EVER),
    (&["--quiet", "-q"], AS_EVER),
    (&["--replace"], AS_EVER),
    (&["--sig-proxy"], AS_EVER),
    (&["--read-only"], AS_EVER),
    (&["--env", "-e"], Becomes::Value("--env")),
    (&["--env-file"], Becomes::Value("--env-file")),
    (&["--volume", "-v"], Becomes::Made(volume)),
    (&["--mount"], Becomes::Value("--mount")),
    (&["--tmpfs"], Becomes::Value("--tmpfs")),
    (&["--shm-size"], Becomes::Value("--shm-size")),
    (&["--hostname", "-h"], Becomes::Value("--hostname")),
    (&["--ulimit"], Becomes::Value("--ulimit")),
    (&["--device"], Becomes::Value("--device")),
    (&["--gpus"], Becomes::Value("--gpus")),
    (&["--name"], Becomes::Value("--name")),
    (&["--workdir", "-w"], Becomes::Value("--workdir")),
    (&["--user", "-u"], Becomes::Value("--user")),
    (&["--entrypoint"], Becomes::Value("--entrypoint")),
    (&["--network", "--net"], Becomes::Made(network)),
    (&["--platform"], Becomes::Value("--platform")),
    (&["--pull"], Becomes::Made(pull)),
];

const EXEC: [Rule; 5] = [
    (&["--interactive", "-i"], AS_EVER),
    (&["--tty", "-t"], AS_EVER),
    (&["--env", "-e"], Becomes::Value("--env")),
    (&["--workdir", "-w"], Becomes::Value("--workdir")),
    (&["--user", "-u"], Becomes::Value("--user")),
];

const LISTS: [Rule; 5] = [
    (&["--all", "-a"], Becomes::Words(&["--all"])),
    (&["--quiet", "-q"], Becomes::Words(&["--quiet"])),
    (&["--format"], Becomes::Value("--format")),
    (&["--no-trunc"], AS_EVER),
    (&["--noheading"], AS_EVER),
];

const OTHERS: [Rule; 10] = [
    (&["--no-trunc"], Becomes::Words(&["--no-trunc"])),
    (&["--force", "-f"], Becomes::Words(&["--force"])),
    (&["--follow"], Becomes::Words(&["--follow"])),
    (&["--time", "-t"], Becomes::Value("--time")),
    (&["--signal", "-s"], Becomes::Value("--signal")),
    (&["--username", "-u"], Becomes::Value("--username")),
    (&["--password-stdin"], Becomes::Words(&["--password-stdin"])),
    (&["--platform"], Becomes::Value("--platform")),
    (&["--quiet", "-q"], Becomes::Words(&["--quiet"])),
    (&["--format"], Becomes::Value("--format")),
];

const LOGS: [Rule; 2] =
    [(&["--follow", "-f"], Becomes::Words(&["--follow"])), (&["--tail", "-n"], Becomes::Value("--tail"))];

const COPY: [Rule; 4] = [
    (&["--archive", "-a"], Becomes::Words(&["--archive"])),
    (&["--follow-link", "-L"], Becomes::Words(&["--follow-link"])),
    (&["--overwrite"], AS_EVER),
    (&["--quiet", "-q"], AS_EVER),
];

const PUSH: [Rule; 2] = [
    (&["--quiet", "-q"], Becomes::Words(&["--quiet"])),
    // No signature is made or looked for by a push.
    (&["--disable-content-trust"], AS_EVER),
];

const COMMIT: [Rule; 5] = [
    (&["--author", "-a"], Becomes::Value("--author")),
    (&["--change", "-c"], Becomes::Value("--change")),
    (&["--message", "-m"], Becomes::Value("--message")),
    // No container is paused here: what its programs write meanwhile may be half there.
    (&["--pause", "-p"], AS_EVER),
    (&["--quiet", "-q"], Becomes::Words(&["--quiet"])),
];

const BUILD: [Rule; 14] = [
    (&["--tag", "-t"], Becomes::Value("--tag")),
    (&["--file", "-f"], Becomes::Value("--file")),
    (&["--build-arg"], Becomes::Value("--build-arg")),
    (&["--secret"], Becomes::Value("--secret")),
    (&["--ssh"], Becomes::Value("--ssh")),
    (&["--label"], Becomes::Value("--label")),
    (&["--target"], Becomes::Value("--target")),
    (&["--platform"], Becomes::Value("--platform")),
    (&["--no-cache"], Becomes::Words(&["--no-cache"])),
    (&["--quiet", "-q"], Becomes::Words(&["--quiet"])),
    // Nothing is left of the containers in any case, and commands are shown as lines.
    (&["--rm"], AS_EVER),
    (&["--force-rm"], AS_EVER),
    (&["--progress"], Becomes::Made(|_| Some(vec![]))),
    (&["--load"], AS_EVER),
];

/// A mount. A bare word names a volume there, which nothing here keeps.
fn volume(value: &str) -> Option<Vec<String>> {
    value.starts_with(['/', '.', '~']).then(|| vec![format!("--volume={value}")])
}

fn network(value: &str) -> Option<Vec<String>> {
    match value {
        "host" | "none" => Some(vec![format!("--net={value}")]),
        "bridge" | "default" | "slirp4netns" | "pasta" => Some(vec!["--net=private".into()]),
        _ => None,
    }
}

fn pull(value: &str) -> Option<Vec<String>> {
    matches!(value, "always" | "missing" | "never").then(|| vec![format!("--pull={value}")])
}

/// One command.
pub fn translate(program: &str, words: &[OsString]) -> Result<Commands> {
    let words = match words {
        // The long forms: `docker container ls`, `docker image rm`.
        [group, rest @ ..] if group == "container" || group == "image" => {
            return grouped(program, group == "image", rest);
        }
        words => words,
    };
    let (command, rest) = words.split_first().map_or((None, words), |(first, rest)| (first.to_str(), rest));
    one(program, command.unwrap_or("help"), rest).map(|words| vec![words])
}

fn grouped(program: &str, is_image: bool, words: &[OsString]) -> Result<Commands> {
    let (command, rest) =
        words.split_first().map_or(("help", words), |(first, rest)| (first.to_str().unwrap_or("?"), rest));
    let command = match (command, is_image) {
        ("ls" | "list", true) => "images",
        ("rm" | "remove", true) => "rmi",
        ("ls" | "list", false) => "ps",
        (other, _) => other,
    };
    one(program, command, rest).map(|words| vec![words])
}

fn one(program: &str, command: &str, words: &[OsString]) -> Result<Vec<OsString>> {
    if let Some(ours) = ours_of(command).filter(|_| words.first().is_some_and(|word| word == "--help")) {
        return Ok(own(&["help", ours]));
    }
    let ours = |begin: &[&str], tables: &[&[Rule]]| {
        let read = options(program, tables, words)?;
        let names = read.names(program)?;
        Ok([own(begin), read.options, names].concat())
    };
    match command {
        "run" => run(program, words),
        "exec" => {
            let read = options(program, &[&EXEC], words)?;
            Ok([own(&["exec"]), read.options, read.rest.to_vec()].concat())
        }
        "ps" => ours(&["ps"], &[&LISTS]),
        "images" => {
            // All of ours are shown in any case.
            let mut words = ours(&["images"], &[&LISTS])?;
            words.retain(|word| word != "--all");
            Ok(words)
        }
        "rmi" => {
            // One that is in use stays in any case, and its name goes.
            let mut words = ours(&["rmi"], &[&OTHERS])?;
            words.retain(|word| word != "--force");
            Ok(words)
        }
        // There `-f` follows, and it is no force.
        "logs" => ours(&["logs"], &[&LOGS]),
        // There `-f` is a format.
        "inspect" => ours(&["inspect"], &[&[(&["--format", "-f"], Becomes::Value("--format"))]]),
        "pull" | "rm" | "stop" | "kill" | "tag" | "history" | "login" | "logout" => {
            ours(&[command], &[&OTHERS])
        }
        "push" => ours(&["push"], &[&PUSH]),
        "cp" => ours(&["cp"], &[&COPY]),
        "commit" => ours(&["commit"], &[&COMMIT]),
        "build" => ours(&["build"], &[&BUILD]),
        "load" => file(program, words, |file, _| vec!["import".into(), file]),
        "save" => file(program, words, |file, rest| {
            let target = [OsString::from("docker-archive:"), file].into_iter().collect::<OsString>();
            [own(&["export"]), rest.to_vec(), vec![target]].concat()
        }),
        "version" | "--version" => Ok(own(&["version"])),
        "help" | "--help" | "-h" => Ok(own(&["help"])),
        other => Err(untranslated(program, other, elsewhere::command(&[other], other))),
    }
}

/// Our command of which `--help` tells.
fn ours_of(command: &str) -> Option<&str> {
    const ALIKE: [&str; 18] = [
        "run", "exec", "ps", "images", "rmi", "logs", "inspect", "pull", "rm", "stop", "kill", "tag",
        "history", "login", "logout", "cp", "commit", "build",
    ];
    match command {
        "load" => Some("import"),
        "save" => Some("export"),
        alike => ALIKE.contains(&alike).then_some(alike),
    }
}

/// As root in an image that takes changes, and with nothing of the host.
fn run(program: &str, words: &[OsString]) -> Result<Vec<OsString>> {
    let read = options(program, &[&RUN], words)?;
    if read.rest.is_empty() {
        return Err(missing(program, "run: no image given"));
    }
    let mut ours = own(&["run", "--containall", "--no-home"]);
    if !read.has("--user") {
        ours.push("--root".into());
    }
    if !read.has("--read-only") {
        ours.push("--writable".into());
    }
    Ok([ours, read.options, read.rest.to_vec()].concat())
}

/// `load -i FILE` and `save -o FILE IMAGE`; what comes by a pipe has no name here.
fn file(
    program: &str,
    words: &[OsString],
    make: fn(OsString, &[OsString]) -> Vec<OsString>,
) -> Result<Vec<OsString>> {
    let rules: [Rule; 3] = [
        (&["--input", "-i"], Becomes::Value("FILE")),
        (&["--output", "-o"], Becomes::Value("FILE")),
        (&["--quiet", "-q"], AS_EVER),
    ];
    let read = options(program, &[&rules], words)?;
    let named =
        read.options.first().and_then(|word| word.to_str()).and_then(|word| word.strip_prefix("FILE="));
    let file = named.ok_or_else(|| {
        untranslated(
            program,
            "an archive from standard input or to standard output",
            Some("name the file: load -i FILE, save -o FILE IMAGE; or `skiff import - NAME`"),
        )
    })?;
    Ok(make(file.into(), &read.names(program)?))
}
