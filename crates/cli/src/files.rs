//! Which files of the host a command line names, for whoever has to look at them before they are opened.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, CommandFactory};

use crate::Cli;

/// Options and arguments that name files of the host; `cp` says itself which of its paths is the host's.
const NAMING: [&str; 13] = [
    "base",
    "context",
    "described",
    "env_files",
    "file",
    "hostfile",
    "image",
    "mounts",
    "of",
    "password_file",
    "plan",
    "target",
    "export",
];

/// The argument of `skiff run` whose first word, the image, can be a file of the host.
const RUN: &str = "run";
const COMMAND: &str = "command";

/// What separates a path from what stands before and behind it: `type=bind,source=DIR`, `DIR:TARGET:ro`, `oci-archive:FILE:NAME`.
const SEPARATORS: [u8; 3] = [b':', b',', b'='];

/// Whether a command line can name a file that is `meant`. It may say so of one that does not: this looks at words alone, while
/// [`named_files`] needs the description of all commands, which takes milliseconds.
#[must_use]
pub fn may_name(words: &[OsString], meant: impl Fn(&Path) -> bool) -> bool {
    words.iter().any(|word| {
        let bytes = word.as_bytes();
        // A value may stand behind a letter: `-v/tmp/a:/b`.
        let is_short = bytes.starts_with(b"-") && !bytes.starts_with(b"--");
        (is_short && bytes.contains(&b'/')) || parts(word).any(|part| meant(&part))
    })
}

/// All that may be a path of the host's in a command line that has been read without a fault. What is none does no harm in it.
#[must_use]
pub fn named_files(words: &[OsString]) -> Vec<PathBuf> {
    let Ok(matches) = Cli::command().try_get_matches_from(words) else { return vec![] };
    let mut found = vec![];
    let mut level = Some(("", &matches));
    while let Some((name, matches)) = level {
        found.extend(NAMING.iter().flat_map(|id| raw(matches, id)));
        if name == RUN {
            found.extend(image(matches, words));
        }
        level = matches.subcommand();
    }
    found.into_iter().flat_map(parts).collect()
}

/// The first of the words behind the options, unless dashes stand before it: then that is a command over the host's root.
fn image<'a>(matches: &'a ArgMatches, words: &[OsString]) -> Option<&'a OsStr> {
    let command: Vec<_> = raw(matches, COMMAND).collect();
    let before = words.len().checked_sub(command.len() + 1).and_then(|at| words.get(at));
    command.first().copied().filter(|_| before.is_none_or(|word| word != "--"))
}

fn raw<'a>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = &'a OsStr> {
    matches.try_get_raw(id).ok().flatten().into_iter().flatten()
}

fn parts(value: &OsStr) -> impl Iterator<Item = PathBuf> {
    let parts = value.as_bytes().split(|byte| SEPARATORS.contains(byte)).filter(|part| !part.is_empty());
    parts.map(|part| OsStr::from_bytes(part).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_alone_tell_of_most_lines_that_they_name_none() {
        let in_tmp = |part: &Path| part.starts_with("/tmp");
        for (line, want) in [
            ("env list", false),
            ("run -e A=/usr debian:12 ls", false),
            ("run -it debian:12", false),
            ("import /tmp/x", true),
            ("run --volume=/tmp/a:/b x", true),
            ("run -v/tmp/a:/b x", true),
            // More than is asked for.
            ("run -v/srv/a:/b x", true),
            ("env exec dev -- cat /tmp/x", true),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(may_name(&words, in_tmp), want, "{line}");
        }
    }

    #[test]
    fn what_may_be_a_file_of_the_host() {
        for (line, want) in [
            ("run /tmp/x.sqsh cat /tmp/inside", "/tmp/x.sqsh"),
            ("run -v /tmp/a:/b:ro -e A=/tmp/c -w /tmp/d -- ls", "/tmp/a /b ro"),
            (
                "run --mount type=bind,source=/tmp/a,target=/b debian:12 ls",
                "type bind source /tmp/a target /b debian 12",
            ),
            ("env create --base image:/tmp/x dev -v /tmp/a:/b", "image /tmp/x /tmp/a /b"),
            ("build -f /tmp/f -t x /tmp/c", "/tmp/f /tmp/c"),
            ("import oci-archive:/tmp/x:name", "oci-archive /tmp/x name"),
            ("export debian oci-archive:/tmp/y", "debian oci-archive /tmp/y"),
            ("instance start /tmp/x.sif web sleep /tmp/z", "/tmp/x.sif"),
            ("login --username a --password-file /tmp/p x.org", "/tmp/p"),
            ("cluster run --hostfile /tmp/h -- ./x", "/tmp/h host"),
            ("env exec dev -- cat /tmp/x", ""),
        ] {
            let words: Vec<OsString> =
                ["skiff"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let mut found: Vec<_> =
                named_files(&words).iter().map(|path| path.display().to_string()).collect();
            let mut want: Vec<_> = want.split_whitespace().map(str::to_owned).collect();
            found.sort();
            want.sort();
            assert_eq!(found, want, "{line}");
            let quick = |path: &str| may_name(&words, |part| part == Path::new(path));
            let mut absolute = want.iter().filter(|path| path.starts_with('/'));
            assert!(absolute.all(|path| quick(path)), "{line}: seen by words alone");
        }
    }
}
