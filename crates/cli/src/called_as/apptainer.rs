//! The calls of Apptainer and Singularity. There as here one is oneself in a container, in one's home.

use std::ffi::OsString;
use std::path::Path;

use skiff_spec::fault::{Fault, Result};

use super::options::{AS_EVER, Becomes, Rule, refuse_dash, translate as options};
use super::{Commands, missing, own, untranslated};
use crate::elsewhere;

/// In front of the command.
const GLOBAL: [Rule; 5] = [
    (&["--quiet", "-q"], AS_EVER),
    (&["--silent", "-s"], AS_EVER),
    (&["--verbose", "-v"], AS_EVER),
    (&["--debug", "-d"], AS_EVER),
    (&["--nocolor"], AS_EVER),
];

const FAKEROOT: Rule = (&["--fakeroot", "-f"], Becomes::Words(&["--root"]));

/// Of `exec`, `run`, `shell` and `instance start`.
#[rustfmt::skip]
const RUN: [Rule; 29] = [
    (&["--bind", "-B"], Becomes::Value("--bind")),
    (&["--mount"], Becomes::Value("--mount")),
    (&["--env"], Becomes::Made(variables)),
    (&["--env-file"], Becomes::Value("--env-file")),
    (&["--hostname"], Becomes::Value("--hostname")),
    (&["--pwd", "--cwd"], Becomes::Value("--pwd")),
    (&["--network"], Becomes::Made(network)),
    (&["--net", "-n"], AS_EVER),
    (&["--scratch", "-S"], Becomes::Value("--tmpfs")),
    (&["--nv"], Becomes::Words(&["--nv"])),
    // By NVIDIA's own program there, by the files that it writes here.
    (&["--nvccli"], Becomes::Words(&["--nv"])),
    (&["--rocm"], Becomes::Words(&["--rocm"])),
    (&["--contain", "-c"], Becomes::Words(&["--contain"])),
    (&["--containall", "-C"], Becomes::Words(&["--containall"])),
    (&["--cleanenv", "-e"], Becomes::Words(&["--cleanenv"])),
    (&["--compat"], Becomes::Words(&["--containall", "--writable-tmpfs"])),
    (&["--no-home"], Becomes::Words(&["--no-home"])),
    FAKEROOT,
    (&["--writable-tmpfs"], Becomes::Words(&["--writable-tmpfs"])),
    (&["--userns", "-u"], AS_EVER),
    (&["--pid", "-p"], AS_EVER),
    (&["--ipc", "-i"], AS_EVER),
    (&["--no-init"], AS_EVER),
    (&["--no-eval"], AS_EVER),
    (&["--no-umask"], AS_EVER),
    (&["--no-mount"], Becomes::Made(no_mount)),
    (&["--disable-cache"], AS_EVER),
    (&["--unsquash"], AS_EVER),
    // A directory for files of /tmp: ours of that name is another thing.
    (&["-W", "--workdir"], Becomes::Made(|_| None)),
];

const PULL: [Rule; 5] = [
    (&["--force", "-F"], AS_EVER),
    (&["--disable-cache"], AS_EVER),
    (&["--arch"], Becomes::Value("--arch")),
    (&["--platform"], Becomes::Value("--platform")),
    (&["--name"], Becomes::Value("NAME")),
];

const BUILD: [Rule; 6] = [
    (&["--force", "-F"], AS_EVER),
    (&["--disable-cache"], AS_EVER),
    // Commands of a definition are root's in any case.
    (&["--fakeroot", "-f"], AS_EVER),
    (&["--arch"], Becomes::Value("--arch")),
    (&["--build-arg"], Becomes::Value("--build-arg")),
    (&["--notest", "-T"], Becomes::Words(&["--notest"])),
];

/// `A=1,B=2`.
fn variables(value: &str) -> Option<Vec<String>> {
    Some(value.split(',').map(|setting| format!("--env={setting}")).collect())
}

fn network(value: &str) -> Option<Vec<String>> {
    (value == "none").then(|| vec!["--net=none".into()])
}

fn no_mount(value: &str) -> Option<Vec<String>> {
    (value == "home").then(|| vec!["--no-home".into()])
}

/// One command, or two for a file that is made of a pulled image.
pub fn translate(program: &str, words: &[OsString]) -> Result<Commands> {
    if matches!(words.first().and_then(|word| word.to_str()), Some("--version" | "version")) {
        return Ok(vec![own(&["version"])]);
    }
    let read = options(program, &[&GLOBAL], words)?;
    let (command, rest) =
        read.rest.split_first().map_or((None, read.rest), |(first, rest)| (first.to_str(), rest));
    let one = |words| Ok(vec![words]);
    let is_help = rest.first().is_some_and(|word| word == "--help" || word == "-h");
    match command.unwrap_or("help") {
        "exec" if is_help => one(own(&["help", "run"])),
        command @ ("run" | "shell" | "instance" | "pull" | "inspect") if is_help => {
            one(own(&["help", command]))
        }
        "build" if is_help => one(own(&["help", "build"])),
        "exec" => one(entered(program, "exec", rest, &["run", "--entrypoint="])?),
        "run" => one(entered(program, "run", rest, &["run"])?),
        "shell" => one(entered(program, "shell", rest, &["shell"])?),
        "instance" => one(instance(program, rest)?),
        "pull" => pull(program, rest),
        "build" => build(program, rest),
        "inspect" => one([own(&["inspect"]), options(program, &[], rest)?.names(program)?].concat()),
        "help" | "--help" | "-h" => one(own(&["help"])),
        other => Err(untranslated(program, other, elsewhere::command(&[other], other))),
    }
}

/// A command in an image, or in an instance.
fn entered(program: &str, command: &str, words: &[OsString], ours: &[&str]) -> Result<Vec<OsString>> {
    let read = options(program, &[&RUN], words)?;
    let (image, rest) =
        read.rest.split_first().ok_or_else(|| missing(program, &format!("{command}: no image given")))?;
    if let Some(name) = image.to_str().and_then(|image| image.strip_prefix("instance://")) {
        let shell = own(&["/bin/sh"]);
        let command = if rest.is_empty() { &shell } else { rest };
        refuse_dash(program, &name.into())?;
        return Ok([own(&["exec"]), read.options, own(&[name]), command.to_vec()].concat());
    }
    let rest = if rest.first().is_some_and(|word| word == "--") { &rest[1..] } else { rest };
    Ok([own(ours), read.options, vec![known(program, image)?], rest.to_vec()].concat())
}

/// An image as we name it.
fn known(program: &str, image: &OsString) -> Result<OsString> {
    let nearest = "Skiff has images of registries (docker://NAME) and of files: `skiff import --help`";
    match image.to_str().and_then(|text| text.split_once("://")) {
        Some(("docker", name)) => refuse_dash(program, &name.into()).map(|()| name.into()),
        Some(("library" | "shub" | "http" | "https", _)) => {
            Err(untranslated(program, &image.to_string_lossy(), Some(nearest)))
        }
        _ => Ok(image.clone()),
    }
}

fn instance(program: &str, words: &[OsString]) -> Result<Vec<OsString>> {
    let (command, rest) =
        words.split_first().ok_or_else(|| missing(program, "instance: no command given"))?;
    match command.to_str() {
        Some("start" | "run") => {
            let read = options(program, &[&RUN], rest)?;
            match read.rest {
                [image, name, words @ ..] => {
                    refuse_dash(program, name)?;
                    let (begin, names) =
                        (own(&["instance", "start"]), vec![known(program, image)?, name.clone()]);
                    Ok([begin, read.options, names, words.to_vec()].concat())
                }
                _ => Err(missing(program, "instance start: no image and name given")),
            }
        }
        Some("list") => Ok(own(&["instance", "list"])),
        Some("stop") => {
            Ok([own(&["instance", "stop"]), options(program, &[], rest)?.names(program)?].concat())
        }
        _ => Err(untranslated(program, &format!("instance {}", command.to_string_lossy()), None)),
    }
}

/// `pull [FILE] docker://IMAGE`: without a file it is kept by its name.
fn pull(program: &str, words: &[OsString]) -> Result<Commands> {
    let read = options(program, &[&PULL], words)?;
    let named =
        |word: &OsString| word.to_str().and_then(|word| word.strip_prefix("NAME=")).map(OsString::from);
    let name = read.options.iter().find_map(named);
    let options: Vec<OsString> = read.options.iter().filter(|word| named(word).is_none()).cloned().collect();
    match (read.rest, name) {
        ([image], None) => Ok(vec![[own(&["pull"]), options, vec![known(program, image)?]].concat()]),
        ([image], Some(file)) => into_file(program, options, image, &file),
        ([file, image], None) => into_file(program, options, image, file),
        _ => Err(untranslated(program, "pull of several images", None)),
    }
}

/// `build FILE docker://IMAGE`, or `build FILE DEFINITION`.
fn build(program: &str, words: &[OsString]) -> Result<Commands> {
    let read = options(program, &[&BUILD], words)?;
    let is_own = |option: &OsString, begin: &str| option.to_str().is_some_and(|text| text.starts_with(begin));
    match read.rest {
        [file, image] if image.to_str().is_some_and(|image| image.starts_with("docker://")) => {
            let options = read.options.into_iter().filter(|option| is_own(option, "--arch")).collect();
            into_file(program, options, image, file)
        }
        [_, image] if image.to_str().is_some_and(|image| image.contains("://")) => {
            known(program, image).map(|_| ())?;
            Err(untranslated(program, "build from another image", Some("skiff pull, and skiff export")))
        }
        [_, _] if read.options.iter().any(|option| is_own(option, "--arch")) => {
            Err(untranslated(program, "build --arch", Some("a definition is built for this host only")))
        }
        [file, definition] => defined(program, read.options, definition, file),
        _ => Err(untranslated(program, "build", Some("skiff build FILE.def"))),
    }
}

/// An image of a definition is called as its file is to be, without what that ends in.
fn defined(
    program: &str,
    options: Vec<OsString>,
    definition: &OsString,
    file: &OsString,
) -> Result<Commands> {
    refuse_dash(program, definition)?;
    is_written(program, file)?;
    let stem = Path::new(file).file_stem().unwrap_or_default().to_ascii_lowercase();
    let build = [own(&["build", "-t"]), vec![stem.clone()], options, vec![definition.clone()]].concat();
    Ok(vec![build, [own(&["export"]), vec![stem, file.clone()]].concat()])
}

fn into_file(program: &str, options: Vec<OsString>, image: &OsString, file: &OsString) -> Result<Commands> {
    let image = known(program, image)?;
    is_written(program, file)?;
    let pull = [own(&["pull"]), options, vec![image.clone()]].concat();
    Ok(vec![pull, [own(&["export"]), vec![image, file.clone()]].concat()])
}

/// Refuses files of forms that are only read here.
fn is_written(program: &str, file: &OsString) -> Result<()> {
    refuse_dash(program, file)?;
    let text = file.to_string_lossy();
    if ![".sqsh", ".squashfs", ".erofs"].iter().any(|end| text.ends_with(end)) {
        let nearest = "name it FILE.sqsh, which Apptainer runs, too; or leave the file out: the image is kept by its name";
        return Err(Fault::new(format!("{program}: {text}: Skiff does not write SIF files")).hint(nearest));
    }
    Ok(())
}
