//! Completion of names: which kind of name may follow the words that are typed so far. Shells ask by `skiff complete -- WORDS`.

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;

/// What may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// Environments.
    Environments,
    /// Instances.
    Instances,
    /// Clusters.
    Clusters,
    /// Nodes of clusters.
    Nodes,
    /// Images.
    Images,
    /// Networks, and the words for those that every host has.
    Networks,
    /// Checkpoints.
    Checkpoints,
    /// Environments, instances and clusters.
    Anything,
    /// Environments and instances, with a colon behind: a path in them.
    Inside,
    /// What an instance is made of: `host`, an environment or an image.
    Origins,
    /// `host`, or an image with `image:` in front.
    Bases,
}

/// The kind of name that may follow these words, which come behind `skiff`; nothing if none may.
pub fn following(words: &[String]) -> Option<NameKind> {
    let mut whole = crate::Cli::command();
    whole.build();
    let (mut command, mut path, mut position, mut option) = (&whole, vec![], 1, None);
    for word in words {
        if option.take().is_some() {
            continue;
        }
        if word == "--" {
            return None;
        }
        if word.len() > 1 && word.starts_with('-') {
            option = awaiting_value(command, word);
        } else if let Some(below) = command.find_subcommand(word).filter(|_| position == 1) {
            path.push(below.get_name());
            command = below;
        } else {
            position += 1;
        }
    }
    if let Some(option) = option {
        return of_argument(&path, option.get_id().as_str(), 0);
    }
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    let last = positionals.last().filter(|arg| matches!(arg.get_action(), ArgAction::Append));
    let argument = positionals.get(position - 1).or(last)?;
    of_argument(&path, argument.get_id().as_str(), position)
}

/// The option of this word whose value is still to come.
fn awaiting_value<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let is_called = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
        }
        None => word.chars().nth(1).is_some_and(|short| word.len() == 2 && arg.get_short() == Some(short)),
    };
    command
        .get_arguments()
        .find(is_called)
        .filter(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
}

fn of_argument(path: &[&str], id: &str, position: usize) -> Option<NameKind> {
    use NameKind::*;
    let (group, command) = (path.first().copied()?, path.last().copied()?);
    match (group, command, id) {
        (_, _, "net") => Some(Networks),
        (_, _, "base") => Some(Bases),
        (_, _, "environment") => Some(Environments),
        ("env", "create", _) | (_, _, "new") => None,
        ("env", _, "name" | "names") => Some(Environments),
        ("net", _, "name") => Some(Networks),
        ("cluster", "up", "name") => None,
        ("cluster", _, "name") => Some(Clusters),
        ("cluster", _, "node") => Some(Nodes),
        ("instance", "start", "of") => Some(Origins),
        ("instance", "start", _) => None,
        ("instance" | "logs" | "migrate", _, "instance" | "instances")
        | ("checkpoint", "save", "instance") => Some(Instances),
        ("checkpoint", "restore" | "show" | "delete", "checkpoint" | "checkpoints") => Some(Checkpoints),
        ("exec" | "stop" | "kill" | "rm", _, "name" | "names") => Some(Anything),
        ("cp", _, "source" | "destination") => Some(Inside),
        ("run", _, "command") if position == 1 => Some(Images),
        ("pull" | "import", ..) => None,
        (_, _, "image" | "images") => Some(Images),
        _ => None,
    }
}

/// The script for a shell: what the parser knows, and names as they are when one is asked for.
pub fn script(shell: Shell) -> String {
    let mut generated = vec![];
    clap_complete::generate(shell, &mut crate::Cli::command(), "skiff", &mut generated);
    let generated = String::from_utf8_lossy(&generated).into_owned();
    match shell {
        Shell::Bash => generated + BASH,
        Shell::Zsh => match generated.rsplit_once("\nif [ \"$funcstack[1]\"") {
            Some((functions, _)) => functions.to_owned() + ZSH,
            None => generated,
        },
        Shell::Fish => generated + FISH,
        _ => generated,
    }
}

/// A colon parts words in bash: of an image's name only what comes behind it is to be put in.
const BASH: &str = r#"
_skiff_or_names() {
    local word=${COMP_LINE:0:COMP_POINT} name
    word=${word##* }
    _skiff "$@"
    while IFS= read -r name; do
        [[ $name == "$word"* ]] || continue
        [[ $word != *:* ]] || name=${name#"${word%:*}:"}
        COMPREPLY+=("$name")
    done < <(skiff complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
}
complete -F _skiff_or_names -o bashdefault -o default skiff
"#;

const ZSH: &str = r#"
_skiff_or_names() {
    local -a names
    names=(${(f)"$(skiff complete -- ${words[2,CURRENT-1]} 2>/dev/null)"})
    (( $#names )) && compadd -a names
    _skiff "$@"
}
compdef _skiff_or_names skiff
if [ "$funcstack[1]" = "_skiff" ]; then
    _skiff_or_names "$@"
fi
"#;

const FISH: &str = r#"
complete -c skiff -a '(skiff complete -- (commandline -opc)[2..] 2>/dev/null)'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_where_they_are_wanted() {
        use NameKind::*;
        for (line, want) in [
            ("", None),
            ("env", None),
            ("env exec", Some(Environments)),
            ("env exec --me", Some(Environments)),
            ("env exec -e A=1 -w /srv", Some(Environments)),
            ("env exec dev", None),
            ("env exec dev --", None),
            ("env rm one two", Some(Environments)),
            ("env create", None),
            ("env create x --base", Some(Bases)),
            ("env clone", Some(Environments)),
            ("env clone a", None),
            ("env rename a", None),
            ("instance start", Some(Origins)),
            ("instance start x", None),
            ("instance logs -f", Some(Instances)),
            ("instance rm a", Some(Instances)),
            ("logs", Some(Instances)),
            ("exec -it", Some(Anything)),
            ("exec web", None),
            ("cp", Some(Inside)),
            ("cp -L a", Some(Inside)),
            ("cp a b", None),
            ("stop", Some(Anything)),
            ("rm -f a", Some(Anything)),
            ("run", Some(Images)),
            ("run --net", Some(Networks)),
            ("run --net none", Some(Images)),
            ("run --network=none -v /a:/b", Some(Images)),
            ("run debian:12", None),
            ("run --", None),
            ("shell", Some(Images)),
            ("rmi a", Some(Images)),
            ("inspect", Some(Images)),
            ("pull", None),
            ("net show", Some(Networks)),
            ("cluster down", Some(Clusters)),
            ("cluster exec --node", Some(Nodes)),
            ("cluster up", None),
            ("migrate", Some(Instances)),
            ("checkpoint save", Some(Instances)),
            ("checkpoint restore", Some(Checkpoints)),
            ("nosuch", None),
        ] {
            let words: Vec<String> = line.split_whitespace().map(String::from).collect();
            assert_eq!(following(&words), want, "skiff {line}");
        }
    }

    #[test]
    fn scripts_ask_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(script(shell).contains("skiff complete -- "), "{shell}");
        }
    }
}
