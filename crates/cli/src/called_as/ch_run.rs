//! The calls of Charliecloud's `ch-run`. There as here one is oneself; the home is only mounted if it is asked for.

use std::ffi::OsString;

use skiff_spec::fault::Result;

use super::options::{AS_EVER, Becomes, Rule, translate as options};
use super::{Commands, missing, own};

#[rustfmt::skip]
const RUN: [Rule; 13] = [
    (&["--bind", "-b"], Becomes::Value("--bind")),
    (&["--cd", "-c"], Becomes::Value("--workdir")),
    (&["--home"], AS_EVER),
    (&["--write-fake", "-W"], Becomes::Words(&["--writable"])),
    (&["--set-env"], Becomes::Made(variable)),
    (&["--unset-env"], Becomes::Made(unset)),
    (&["--uid", "-u"], Becomes::Made(uid)),
    (&["--private-tmp", "-t"], AS_EVER),
    (&["--no-passwd"], AS_EVER),
    (&["--quiet", "-q"], AS_EVER),
    (&["--verbose", "-v"], AS_EVER),
    (&["--version"], AS_EVER),
    (&["--help"], AS_EVER),
];

/// `NAME=VALUE`, or a file of such lines.
fn variable(value: &str) -> Option<Vec<String>> {
    Some(vec![if value.contains('=') { format!("--env={value}") } else { format!("--env-file={value}") }])
}

fn unset(value: &str) -> Option<Vec<String>> {
    (value == "*").then(|| vec!["--cleanenv".into()])
}

fn uid(value: &str) -> Option<Vec<String>> {
    (value == "0").then(|| vec!["--root".into()])
}

/// One command.
pub fn translate(program: &str, words: &[OsString]) -> Result<Commands> {
    let read = options(program, &[&RUN], words)?;
    if read.has("--version") || read.has("--help") {
        return Ok(vec![own(&[if read.has("--version") { "version" } else { "help" }])]);
    }
    let (image, rest) = read.rest.split_first().ok_or_else(|| missing("ch-run:", "no image given"))?;
    let rest = if rest.first().is_some_and(|word| word == "--") { &rest[1..] } else { rest };
    let home = if read.has("--home") { own(&[]) } else { own(&["--no-home"]) };
    Ok(vec![
        [own(&["run", "--entrypoint="]), home, read.options, vec![image.clone()], rest.to_vec()].concat(),
    ])
}
