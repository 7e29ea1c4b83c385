//! What may have been meant by a word that is not a command.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use skiff_nearest::slips;
use skiff_spec::fault::Fault;

use crate::elsewhere;

/// Options that all commands have which run something inside.
const IDENTITY: [&str; 3] = ["--root", "--fakeroot", "--me"];
const OF_ENTERING: &str = "it is for the commands that run something: `skiff env enter`, `skiff env exec`, `skiff run` and `skiff exec`";

/// Options of all commands that start something inside.
const OF_STARTING: [&str; 3] = ["--gpus", "--nv", "--rocm"];
const WHERE_STARTED: &str =
    "GPUs are given where something starts: `skiff run`, `skiff instance start` and `skiff env create`";

/// Apptainer's users name the file that is to be made, too.
const OF_BUILDING: &str = "`skiff build -t NAME FILE.def` makes an image of your list, and `skiff export NAME FILE.sqsh` writes a file of it that Apptainer runs";

/// Apptainer's users have an image of a registry made a file so.
const OF_REGISTRIES: [&str; 4] = ["docker://", "library://", "oras://", "shub://"];
const OF_FETCHING: &str = "`skiff pull NAME` gets an image of a registry (debian:12, or SERVER/NAME:TAG), and `skiff export NAME FILE.sqsh` writes a file of it";

/// What to do in the place of an option, a command or a value that others have, and Skiff has not.
/// `said` are the words behind `skiff`.
pub fn foreign(e: &clap::Error, said: &[&str]) -> Option<Fault> {
    let quoted = |kind| match e.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match e.kind() {
        ErrorKind::UnknownArgument => {
            let word = quoted(ContextKind::InvalidArg)?;
            unknown_argument(word, said)
        }
        ErrorKind::ValueValidation => {
            let of = quoted(ContextKind::InvalidArg).and_then(|of| of.split(' ').next());
            let option = of.filter(|of| of.starts_with('-'));
            Some(bad_value((option, quoted(ContextKind::InvalidValue)?), &e.source()?.to_string(), said))
        }
        ErrorKind::InvalidSubcommand => {
            let word = quoted(ContextKind::InvalidSubcommand)?;
            Some(
                Fault::new(format!("{word}: Skiff has no such command"))
                    .hint(elsewhere::command(said, word)?),
            )
        }
        _ => None,
    }
}

/// What is said of an option or a word that the command has not.
fn unknown_argument(word: &str, said: &[&str]) -> Option<Fault> {
    let of_others = || Fault::new(format!("{word}: not an option of this command"));
    let nearest = elsewhere::option(said, word);
    if IDENTITY.contains(&word) {
        return Some(of_others().hint(nearest.unwrap_or(OF_ENTERING)));
    }
    if OF_STARTING.contains(&word) {
        return Some(of_others().hint(nearest.unwrap_or(WHERE_STARTED)));
    }
    let unexpected = || Fault::new(format!("build: unexpected argument {word}"));
    if said.first() == Some(&"build") {
        if OF_REGISTRIES.iter().any(|begin| word.starts_with(begin)) {
            return Some(unexpected().hint(OF_FETCHING));
        }
        if [".def", ".sif", ".sqsh"].iter().any(|end| word.ends_with(end)) {
            return Some(unexpected().hint(OF_BUILDING));
        }
    }
    Some(Fault::new(format!("{word}: Skiff has no such option")).hint(nearest?))
}

/// What is said of a value that an option or an argument does not take. `why` names the value where our own types say it.
fn bad_value((option, value): (Option<&str>, &str), why: &str, said: &[&str]) -> Fault {
    let message = match why.contains(value) {
        true => why.to_owned(),
        false => format!("{value:?}: {why}"),
    };
    let message = match option {
        Some(option) => format!("{option}: {message}"),
        None => message,
    };
    // A shell makes the user's home of a lone `~`, and of `~1` and `~0` a directory that it has noted.
    let hint = match said {
        ["env", "diff" | "history" | "tag" | "rollback" | "clone" | "export", ..]
            if value.starts_with('/') =>
        {
            "a shell may make a path of ~N: write @~N, such as @~1; a snapshot is a tag, @~N, or digits of an id"
        }
        _ => "",
    };
    Fault::new(message).hint(hint)
}

/// The commands that a word may stand for, below the command it was typed after, or else anywhere: those a slip or two
/// away, and those below another command that are called so.
pub fn commands(after: &str, word: &str, whole: &clap::Command) -> Vec<String> {
    let mut found = vec![];
    for (path, names) in listed(whole) {
        found.extend(names.iter().filter_map(|name| slips(word, name)).min().map(|slips| (slips, path)));
    }
    found.sort();
    let mut paths: Vec<_> = found.into_iter().map(|(_, path)| path).collect();
    let below = format!("{} {after} ", whole.get_name());
    if paths.iter().any(|path| path.starts_with(&below)) {
        paths.retain(|path| path.starts_with(&below));
    }
    paths.truncate(3);
    paths
}

/// Every command as it is typed, and its last word with the other forms of it.
fn listed(whole: &clap::Command) -> Vec<(String, Vec<String>)> {
    let names = |c: &clap::Command| {
        std::iter::once(c.get_name()).chain(c.get_visible_aliases()).map(String::from).collect::<Vec<_>>()
    };
    let mut all = vec![];
    for command in whole.get_subcommands().filter(|c| !c.is_hide_set()) {
        let path = format!("{} {}", whole.get_name(), command.get_name());
        all.extend(command.get_subcommands().map(|c| (format!("{path} {}", c.get_name()), names(c))));
        all.push((path, names(command)));
    }
    all
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn an_option_of_other_commands_is_told() {
        let why = |line: &str| {
            let said: Vec<&str> = line.split(' ').skip(1).collect();
            let words = line.split(' ').map(Into::into).collect::<Vec<_>>();
            crate::Cli::of(&words).err().and_then(|e| foreign(&e, &said)).map(|fault| fault.message)
        };
        let told = Some("--root: not an option of this command".to_owned());
        assert_eq!(why("skiff env create img --root --base image:debian:12"), told);
        assert_eq!(why("skiff instance exec --root web id"), None);
        assert_eq!(why("skiff env create img --nosuch"), None);
        let told = Some("build: unexpected argument solver.def".to_owned());
        assert_eq!(why("skiff build out.sif solver.def"), told);
        assert_eq!(why("skiff env log"), Some("log: Skiff has no such command".to_owned()));
        assert_eq!(why("skiff build --pull ."), Some("--pull: Skiff has no such option".to_owned()));
    }

    #[test]
    fn a_hint_fits_the_command() {
        let hint = |line: &str| {
            let said: Vec<&str> = line.split(' ').skip(1).collect();
            let words = line.split(' ').map(Into::into).collect::<Vec<_>>();
            let fault = crate::Cli::of(&words).err().and_then(|e| foreign(&e, &said)).expect(line);
            format!("{} / {}", fault.message, fault.hint)
        };
        for (line, part) in [
            ("skiff build --fakeroot .", "needs no privilege"),
            ("skiff build --nv .", "`skiff run --nv IMAGE`"),
            ("skiff build r.sqsh docker://debian:12", "`skiff pull NAME`"),
            ("skiff env diff dev /home/alice /root", "write @~N"),
            ("skiff env enter dev@1", "`skiff env clone dev@1 NEW` makes"),
            ("skiff depot gc --days x", "--days: \"x\": invalid digit"),
            ("skiff run --ulimit nofile debian true", "--ulimit: \"nofile\": "),
        ] {
            let text = hint(line);
            assert!(text.contains(part) && !text.contains("invalid value"), "{line}: {text}");
        }
        assert!(hint("skiff env enter dev@1").starts_with("environment name \"dev@1\": an environment"));
    }

    #[test]
    fn what_people_type() {
        let whole = crate::Cli::command();
        for (after, word, meant) in [
            ("evn", "evn", &["skiff env"][..]),
            ("exce", "exce", &["skiff cluster exec", "skiff env exec", "skiff exec"]),
            ("enter", "enter", &["skiff cluster enter", "skiff env enter"]),
            ("env", "lst", &["skiff env list"]),
            ("net", "lst", &["skiff net list"]),
            ("ls", "ls", &["skiff checkpoint list", "skiff depot ls", "skiff env list"]),
            ("ENV", "ENV", &["skiff env"]),
            ("docter", "docter", &["skiff doctor"]),
            ("env", "snapshto", &["skiff env snapshot"]),
            ("net", "snapshto", &["skiff env snapshot"]),
        ] {
            assert_eq!(commands(after, word, &whole), meant, "{after} {word}");
        }
        for word in ["", "x", "nosuch", "kubernetes"] {
            assert!(commands(word, word, &whole).is_empty(), "{word}: {:?}", commands(word, word, &whole));
        }
    }
}
