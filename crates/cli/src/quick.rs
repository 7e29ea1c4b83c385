//! What is read of the command line without the description of all commands, as programs write it a hundred times a second.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Args, FromArgMatches};
use skiff_oci_runtime::OciArgs;
use skiff_plan::inside::ProcessArgs;

use crate::CliCommand;
use crate::env::{EnvCommand, EnvSubcommand, ExecArgs};
use crate::run::RunArgs;

impl RunArgs {
    /// What stands before the words that were left over; the parser itself does not tell.
    pub fn look_for_dashes(&mut self, words: &[OsString]) {
        let before = words.len().checked_sub(self.command.len() + 1).and_then(|at| words.get(at));
        self.over_host = self.command.is_empty() || before.is_some_and(|word| word == "--");
    }
}

/// Reads what needs no description to be read: a program's words behind `--` or an image, and no option before. Programs that start
/// others write it so, a hundred times a second, and to describe all commands takes 0.2 ms, a tenth of a start.
pub fn plain(words: &[OsString]) -> Option<CliCommand> {
    let is_word = |word: &OsString| !word.as_bytes().starts_with(b"-");
    match words {
        [run, dashes, command @ ..] if run == "run" && dashes == "--" => {
            Some(CliCommand::Run(RunArgs { over_host: true, command: command.into(), ..RunArgs::default() }))
        }
        [run, command @ ..] if run == "run" && command.first().is_some_and(is_word) => {
            Some(CliCommand::Run(RunArgs { command: command.into(), ..RunArgs::default() }))
        }
        [env, exec, name, dashes, command @ ..]
            if env == "env" && exec == "exec" && dashes == "--" && !command.is_empty() =>
        {
            let name = name.to_str()?.parse().ok()?;
            let exec = ExecArgs { inside: ProcessArgs::default(), name, command: command.into() };
            Some(CliCommand::Env(EnvSubcommand::Environment(EnvCommand::Exec(exec))))
        }
        _ => None,
    }
}

/// Reads `run` with options by the description of that alone; what it cannot read is told by the whole.
pub fn run_alone(words: &[OsString]) -> Option<CliCommand> {
    if words.first()? != "run" {
        return None;
    }
    let alone = RunArgs::augment_args(clap::Command::new("run"));
    let mut run = RunArgs::from_arg_matches(&alone.try_get_matches_from(words).ok()?).ok()?;
    run.look_for_dashes(words);
    Some(CliCommand::Run(run))
}

/// The same of `oci`, which container engines call several times for a container.
pub fn oci_alone(words: &[OsString]) -> Option<CliCommand> {
    if words.first()? != "oci" {
        return None;
    }
    let alone = OciArgs::augment_args(clap::Command::new("oci"));
    Some(CliCommand::Oci(OciArgs::from_arg_matches(&alone.try_get_matches_from(words).ok()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

    #[test]
    fn words_read_quickly_are_read_as_described() {
        let plain_ones = [
            "run -- true",
            "run --",
            "run -- --help",
            "run -- a -- b",
            "run a",
            "run a b --me -- c",
            "run a -- b",
            "run a:1 -x --help",
            "env exec dev -- a -- -b --",
            "env exec dev -- a",
        ];
        let runs = [
            "run -e A=1 -- a",
            "run --me a b",
            "run -it --rm a -- --me",
            "run",
            "run --net none -v /a:/b a",
            "run -C --untrusted a",
        ];
        let others = [
            "env exec dev --",
            "env exec ../x -- a",
            "env list",
            "run --help",
            "run --mee a",
            "run --me --root a",
        ];
        let shown = |command: CliCommand| match command {
            CliCommand::Run(run) => format!("{run:?}"),
            CliCommand::Env(EnvSubcommand::Environment(EnvCommand::Exec(exec))) => format!("{exec:?}"),
            _ => String::new(),
        };
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let check = |line: &str, read: fn(&[OsString]) -> Option<CliCommand>| {
            let command = read(&words(line)).unwrap_or_else(|| panic!("{line}: not read"));
            let described = Cli::of(&words(&format!("skiff {line}"))).ok();
            assert_eq!(Some(shown(command)), described.map(|cli| shown(cli.command)), "{line}");
        };
        plain_ones.iter().for_each(|line| check(line, plain));
        plain_ones[..8].iter().chain(&runs).for_each(|line| check(line, run_alone));
        for line in others {
            let read = plain(&words(line)).or_else(|| run_alone(&words(line)));
            assert!(read.is_none(), "{line}");
        }
    }
}
