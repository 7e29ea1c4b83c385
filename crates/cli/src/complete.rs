//! Completion of names: which kind of name may follow the words that are typed so far. Shells ask by `skiff complete -- WORDS`.

use std::collections::BTreeSet;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;

/// What may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// Environments.
    Environments,
    /// Environments, and their snapshots that have tags.
    Snapshots,
    /// Instances.
    Instances,
    /// Clusters.
    Clusters,
    /// Nodes of clusters.
    Nodes,
    /// Hosts that an instance may be moved to.
    Hosts,
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
        ("env", "clone" | "diff" | "tag" | "rollback" | "history" | "export" | "commit", "env") => {
            Some(Snapshots)
        }
        ("commit", _, "env") => Some(Anything),
        ("env", "diff" | "rollback", "snapshots" | "to") => Some(Snapshots),
        ("env", "create", _) | ("env", "commit", "image") | (_, _, "new") => None,
        ("env", _, "name" | "names") => Some(Environments),
        ("net", _, "name") => Some(Networks),
        ("cluster", "up", "name") => None,
        ("cluster", _, "name") => Some(Clusters),
        ("cluster", _, "node") => Some(Nodes),
        ("migrate" | "drain", _, "node" | "to") | ("job", _, "on" | "to") => Some(Hosts),
        ("instance", "start", "of") => Some(Origins),
        ("instance", "start", _) => None,
        ("instance" | "logs" | "migrate", _, "instance" | "instances")
        | ("checkpoint", "save", "instance") => Some(Instances),
        ("checkpoint" | "job", "restore" | "show" | "delete", "checkpoint" | "checkpoints") => {
            Some(Checkpoints)
        }
        ("job", "save" | "move", "instances") => Some(Instances),
        ("exec" | "stop" | "kill" | "rm" | "commit", _, "name" | "names") => Some(Anything),
        ("cp", _, "source" | "destination") => Some(Inside),
        ("run", _, "command") if position == 1 => Some(Images),
        ("pull" | "import" | "commit", ..) => None,
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
        Shell::Fish => generated + FISH + &fish_options(),
        _ => generated,
    }
}

/// Bash parts words at `=`, `:` and `@`. Here they are whole again, and of a name only what comes behind the last of these is to be put in.
const BASH: &str = r#"
_skiff_or_names() {
    local rest=${COMP_LINE:0:COMP_POINT} typed=() parted=${COMP_WORDBREAKS//[^=:@]} word names name front=
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#typed[@]} == 0 || $rest == [[:space:]]* ]]; then typed+=(""); fi
        rest=${rest#"${rest%%[![:space:]]*}"}
        [[ $rest == "$word"* ]] || word=$rest
        rest=${rest#"$word"}
        typed[${#typed[@]}-1]+=$word
    done
    word=${typed[${#typed[@]}-1]}
    unset "typed[${#typed[@]}-1]"
    if [[ $word == --*=* ]]; then
        front=${word%%=*}=
        typed+=("${word%%=*}")
    fi
    COMPREPLY=()
    names=$(skiff complete -- "${typed[@]:1}" 2>/dev/null)
    for name in $names; do
        name=$front$name
        [[ $name == "$word"* ]] || continue
        [[ -z $parted ]] || name=${name#"${word%"${word##*["$parted"]}"}"}
        COMPREPLY+=("$name")
    done
    [[ ${#COMPREPLY[@]} == 0 ]] || return 0
    _skiff "$@"
    # What stands for a word in the usage is not one.
    typed=("${COMPREPLY[@]}")
    COMPREPLY=()
    for name in "${typed[@]}"; do [[ $name == [\<\[]* ]] || COMPREPLY+=("$name"); done
}
complete -F _skiff_or_names -o bashdefault -o default skiff
"#;

const ZSH: &str = r#"
_skiff_or_names() {
    local -a typed names
    local front
    typed=("${(@)words[2,CURRENT-1]}")
    if [[ $PREFIX == --*=* ]]; then
        front=${PREFIX%%=*}=
        typed+=("${PREFIX%%=*}")
    fi
    names=(${(f)"$(skiff complete -- "${(@)typed}" 2>/dev/null)"})
    (( $#names )) && compadd -- ${front}${^names} && return
    _skiff "$@"
}
compdef _skiff_or_names skiff
if [ "$funcstack[1]" = "_skiff" ]; then
    _skiff_or_names "$@"
fi
"#;

/// No files where a name fits. Behind an option fish looks only at what is said of that option: `fish_options`.
const FISH: &str = r#"
function __skiff_look_up
    set -l typed (commandline -opc)
    set -l word (commandline -ct)
    if string match -q -- '--*=*' "$word"
        set -l parts (string split -m 1 = -- "$word")
        set -a typed $parts[1]
        set word $parts[2]
    end
    set -g __skiff_names
    for name in (skiff complete -- $typed[2..] 2>/dev/null)
        test (string sub -l (string length -- "$word") -- $name) = "$word"
        and set -a __skiff_names $name
    end
    set -q __skiff_names[1]
end

function __skiff_behind
    contains -- (commandline -opc)[-1] $argv
    or contains -- (string split -m 1 = -- (commandline -ct))[1] $argv
    and __skiff_look_up
end

complete -c skiff -n __skiff_look_up -f -a '$__skiff_names'
"#;

/// A line for each option with a name behind it.
fn fish_options() -> String {
    let mut whole = crate::Cli::command();
    whole.build();
    let mut lines = BTreeSet::new();
    collect_options(&whole, &mut vec![], &mut lines);
    lines.into_iter().collect()
}

fn collect_options(command: &Command, path: &mut Vec<String>, lines: &mut BTreeSet<String>) {
    let above: Vec<&str> = path.iter().map(String::as_str).collect();
    for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        let longs: Vec<&str> = arg.get_long().into_iter().chain(aliases).collect();
        if !longs.is_empty() && of_argument(&above, arg.get_id().as_str(), 0).is_some() {
            let words = longs.iter().map(|long| format!(" --{long}")).collect::<String>();
            let names = longs.iter().map(|long| format!(" -l {long}")).collect::<String>();
            lines.insert(format!(
                "complete -c skiff -n '__skiff_behind{words}'{names} -x -a '$__skiff_names'\n"
            ));
        }
    }
    for below in command.get_subcommands() {
        path.push(below.get_name().to_owned());
        collect_options(below, path, lines);
        path.pop();
    }
}

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
            ("env history", Some(Snapshots)),
            ("env export", Some(Snapshots)),
            ("env commit", Some(Snapshots)),
            ("env diff", Some(Snapshots)),
            ("env diff dev", Some(Snapshots)),
            ("env diff dev@v1 dev@v2", Some(Snapshots)),
            ("env tag", Some(Snapshots)),
            ("env tag dev", None),
            ("env rollback --dry-run dev", Some(Snapshots)),
            ("env create", None),
            ("env create x --base", Some(Bases)),
            ("env clone", Some(Snapshots)),
            ("env clone a", None),
            ("env rename a", None),
            ("instance start", Some(Origins)),
            ("instance start x", None),
            ("instance logs -f", Some(Instances)),
            ("instance rm a", Some(Instances)),
            ("logs", Some(Instances)),
            ("exec -it", Some(Anything)),
            ("exec web", None),
            ("commit -m x", Some(Anything)),
            ("commit web", None),
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
            ("migrate sim", Some(Hosts)),
            ("drain", Some(Hosts)),
            ("drain n1 --to", Some(Hosts)),
            ("checkpoint save", Some(Instances)),
            ("checkpoint restore", Some(Checkpoints)),
            ("job restore", Some(Checkpoints)),
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
        let fish = fish_options();
        for line in ["--net --network' -l net -l network -x", "--node' -l node -x", "--base' -l base -x"] {
            assert!(fish.contains(line), "no {line} in {fish}");
        }
    }
}
