//! Options and commands of Docker, Podman, Apptainer and others that Skiff has not: for each the nearest word.

/// Options as they are typed, and what to do instead.
#[rustfmt::skip]
const OPTIONS: [(&[&str], &str); 23] = [
    (&["--overlay"], "changes are kept in an environment: `skiff env create NAME --base image:IMAGE`, then `skiff env enter NAME`"),
    (&["-W", "--scratch", "-S"], "/tmp and /var/tmp are the command's own; to keep them: -v DIR:/tmp, and in memory: --tmpfs DIR; the directory to start in: -w DIR"),
    (&["--publish", "-p", "--publish-all", "-P", "--expose"], "without --net the host's ports are used directly; with --net NETWORK the instance has an address of its own"),
    (&["--privileged", "--cap-add", "--add-caps", "--allow-setuid", "--keep-privs"], "nothing inside has more rights than you outside; --root is root over your own files"),
    (&["--cap-drop", "--drop-caps", "--security-opt", "--security", "--no-privs"], "a program that runs as yourself has no capabilities; --untrusted also takes away the network, your files and many system calls"),
    (&["--nvccli"], "--nv: Skiff reads the files of the Container Device Interface (docs/gpus.md)"),
    (&["--memory", "-m", "--memory-swap", "--cpus", "--cpuset-cpus", "--cpu-shares", "--pids-limit", "--blkio-weight"], "limits are the job manager's: `srun --mem=4G --cpus-per-task=2 skiff run ...`"),
    (&["--restart"], "an instance is started once; a job is restarted by the job manager: `sbatch --requeue`"),
    (&["--userns", "--uidmap", "--gidmap", "--subuidname"], "--me runs as yourself, --root as root inside, --user NAME as a user of the image"),
    (&["--ipc", "--pid", "--uts", "--cgroupns", "--cgroup-parent", "--cgroups"], "each run has processes and shared memory of its own; `skiff exec NAME COMMAND` enters an instance's"),
    (&["--dns", "--dns-search", "--add-host", "--hostfile-entry"], "/etc/hosts and /etc/resolv.conf are the host's; -v FILE:/etc/hosts:ro gives another"),
    (&["--label", "-l", "--annotation", "--cidfile", "--log-driver", "--log-opt", "--pidfile"], "an instance is found by its name: --name NAME, `skiff ps --json`"),
    (&["--volumes-from"], "name the directories: -v DIR:DIR"),
    (&["--home", "-H"], "-v DIR:/home/YOU gives another home, --no-home none"),
    (&["--compat"], "--containall, with --writable for changes that are discarded, is the nearest"),
    (&["--sandbox", "-s"], "an environment takes changes: `skiff env create NAME --base image:IMAGE`"),
    (&["--app"], "name the program: `skiff run IMAGE /scif/apps/NAME/scif/runscript`"),
    (&["--health-cmd", "--no-healthcheck", "--health-interval"], "nothing checks an instance's health; `skiff ps` shows whether it is running"),
    (&["--runtime", "--isolation", "--oci"], "there is one runtime; `skiff doctor` shows what it can do on this host"),
    (&["--since", "--until", "--timestamps", "-t"], "an instance's output is kept as it was written, without times: `skiff logs --tail LINES NAME` prints its end"),
    (&["--cuda", "--amd", "--hip"], "--nv adds NVIDIA's GPUs, --rocm AMD's, --gpus all those that this host has"),
    (&["--environment", "--edf"], "a definition stands in the place of the image: `skiff run FILE.toml COMMAND`; in jobs: `srun --environment=NAME COMMAND`"),
    (&["--env-host"], "all variables are passed on, but for --cleanenv"),
];

/// Commands as they are typed, and what to do instead.
#[rustfmt::skip]
const COMMANDS: [(&[&str], &str); 19] = [
    (&["buildx", "bake", "buildah"], "`skiff build -t NAME DIR` builds a Dockerfile"),
    (&["attach"], "`skiff logs -f NAME` follows an instance, `skiff exec NAME COMMAND` runs a command beside it"),
    (&["start", "restart", "create"], "`skiff run -d --name NAME IMAGE COMMAND` starts an instance"),
    (&["pause", "unpause"], "`skiff checkpoint save NAME`, and later `skiff checkpoint restore NAME`"),
    (&["volume", "volumes"], "a directory is a volume: -v DIR:DIR"),
    (&["network", "networks"], "`skiff net list`"),
    (&["port"], "an instance's ports are the host's; with --net NETWORK its address is in `skiff instance list --json`"),
    (&["wait"], "`skiff logs -f NAME` goes on until an instance ends, and `skiff instance list` shows how it ended"),
    (&["top", "stats"], "`skiff ps` shows what is running; `skiff exec NAME ps aux` its processes"),
    (&["search"], "`skiff pull NAME` tries the registries that the site has listed"),
    (&["compose", "pod", "swarm", "service", "stack"], "`skiff cluster up NAME --nodes N` has several nodes; `skiff run -d` each service"),
    (&["key", "sign", "verify"], "`skiff store verify` checks the files; policy.json says whose images are accepted (docs/registries.md)"),
    (&["sif", "cache"], "`skiff inspect IMAGE`, `skiff store du` and `skiff store gc`"),
    (&["overlay"], "changes are kept in an environment: `skiff env create NAME --base image:IMAGE`, then `skiff env enter NAME`"),
    (&["run-help"], "an image that was built from a definition file has it: `skiff run --entrypoint= IMAGE cat /.singularity.d/runscript.help`"),
    (&["gpu", "gpus", "device", "devices"], "`skiff cdi list` lists GPUs and other devices, `skiff run --gpus all IMAGE` adds GPUs"),
    (&["hook", "hooks"], "what hooks bring of the host's, modules do: `skiff module list`"),
    (&["builder"], "the cache of builds: `skiff build --prune` removes it"),
    (&["machine", "system", "info"], "`skiff doctor` checks this host, `skiff config` shows its settings"),
];

/// Options and commands of git, Docker and others, as they are typed behind one of our commands, and what to do instead. Of these the nearest word
/// depends on the command.
#[rustfmt::skip]
const BEHIND: [(&str, &[&str], &str); 63] = [
    ("", &["save"], "`skiff export IMAGE docker-archive:FILE` writes an image to a file; `skiff checkpoint save NAME` saves an instance"),
    ("", &["load"], "`skiff import FILE` reads an image from a file"),
    ("env", &["log", "snapshots"], "`skiff env history NAME` lists an environment's snapshots"),
    ("env", &["save"], "`skiff env snapshot NAME` takes a snapshot; `skiff env export NAME FILE` writes a file"),
    ("env", &["revert", "restore", "checkout", "reset", "undo", "switch"], "`skiff env history NAME` lists snapshots, `skiff env rollback NAME REF` goes back to one"),
    ("env", &["delete", "destroy"], "`skiff env rm NAME` removes an environment"),
    ("env", &["branch", "fork"], "`skiff env clone NAME NEW` copies an environment, `skiff env clone NAME@REF NEW` one of its snapshots"),
    ("env", &["tags"], "`skiff env tag NAME` lists tags"),
    ("env", &["run"], "`skiff env exec NAME COMMAND`"),
    ("env", &["push", "pull"], "`skiff env commit NAME IMAGE` and `skiff push IMAGE` bring it to a registry; `skiff env import image:IMAGE` makes an environment of it"),
    ("env", &["prune", "gc", "clean"], "`skiff env rm NAME` removes an environment, `skiff depot gc` snapshots that nothing needs"),
    ("env", &["du", "df"], "`skiff depot du` shows what snapshots take up"),
    ("env", &["inspect", "info"], "`skiff env show NAME` shows an environment's settings, `skiff env history NAME` its snapshots"),
    ("env", &["untag"], "`skiff env tag --remove NAME@TAG` takes a tag away"),
    ("env create", &["--image", "--from"], "`skiff env create NAME --base image:IMAGE` makes an environment over an image"),
    ("env tag", &["-d", "--delete"], "`skiff env tag --remove NAME@TAG` takes a tag away"),
    ("env tag", &["-f", "--force"], "a tag does not move: `skiff env tag --remove NAME@TAG`, and then `skiff env tag NAME@REF TAG`"),
    ("env tag", &["-l", "--list"], "`skiff env tag NAME` lists tags"),
    ("env snapshot", &["--amend"], "`skiff env tag --message TEXT NAME@REF` gives a snapshot another message"),
    ("env history", &["-n", "--limit", "--max-count", "--oneline", "--graph"], "`skiff env history NAME | head -5` prints the newest; `skiff env history --format TEMPLATE NAME` prints some columns"),
    ("env diff", &["--stat", "--name-only", "--name-status"], "`skiff env diff NAME` prints a path on each line, with A, C or D: `skiff env diff NAME | wc -l` counts them"),
    ("env export", &["-o", "--output"], "name the file: `skiff env export NAME FILE`"),
    ("checkpoint", &["verify", "check", "fsck"], "`skiff checkpoint restore --dry-run NAME` reads all files of a checkpoint and checks them"),
    ("depot", &["clean", "prune", "rm"], "`skiff depot gc` removes what nothing needs"),
    ("store", &["clean", "prune", "rm"], "`skiff store gc` removes what nobody uses"),
    ("build", &["--progress"], "progress is on standard error: `skiff build --quiet` hides it"),
    ("build", &["--pull"], "FROM takes the image of your list; `skiff pull IMAGE` gets the one that its name means now"),
    ("build", &["--network", "--net"], "a RUN has the host's network; `RUN --network=none` has none"),
    ("build", &["-v", "--volume", "-B", "--bind"], "`RUN --mount=type=bind` shows files of the context to a command"),
    ("build", &["--cache-from", "--cache-to"], "the cache is in your state, which all hosts with your home share"),
    ("build", &["--squash", "--layers", "--rm", "--force-rm"], "the image is one file in any case, and nothing is left of containers"),
    ("build", &["--build-context"], "FROM and `COPY --from` take images of your list: `skiff import DIR NAME` makes one of a directory with a root's files"),
    ("build", &["--iidfile"], "the image's digest is printed: `skiff build -t NAME DIR >FILE`"),
    ("build", &["--load"], "the image is in your list in any case: `skiff images`"),
    ("build", &["--push"], "`skiff push IMAGE` sends it to a registry"),
    ("build", &["-o", "--output"], "`skiff export IMAGE FILE.sqsh` writes a file; `skiff export --help` lists the forms"),
    ("", &["test"], "`skiff build` runs %test; to run it again: `skiff run --entrypoint= IMAGE /.singularity.d/test`"),
    ("", &["image"], "`skiff images` lists your images, `skiff rmi IMAGE` removes one, `skiff store gc` removes those that nobody uses"),
    ("", &["prune"], "`skiff rmi IMAGE` removes an image from your list, `skiff store gc` removes those that nobody uses"),
    ("env", &["activate", "shell"], "`skiff env enter NAME` starts your shell in an environment"),
    ("env", &["install", "update", "upgrade", "add"], "packages are installed inside: `skiff env enter NAME`, and there dnf, apt, pip or what else the base has"),
    ("env", &["stash"], "`skiff env snapshot NAME` takes a snapshot, and `skiff env rollback NAME REF` goes back to one"),
    ("env", &["cp"], "`skiff env clone NAME NEW` copies an environment; `skiff cp FILE NAME:PATH` copies files into one"),
    ("depot", &["df"], "`skiff depot du` shows disk usage"),
    ("depot gc", &["--keep", "--keep-last"], "tags keep snapshots (`skiff env tag`), and `[history]` in the configuration says how many others stay"),
    ("depot gc", &["-n"], "`skiff depot gc --dry-run` prints what would be done"),
    ("depot gc", &["-a", "--all"], "`skiff depot gc --days 0` removes all that nothing needs, however new"),
    ("depot gc", &["-f", "--force"], "nothing is asked: `skiff depot gc` removes at once"),
    ("store", &["df"], "`skiff store du` shows disk usage"),
    ("store", &["ls", "list"], "`skiff images` lists your images; `skiff store du` shows what the store holds"),
    ("images", &["-a", "--all"], "`skiff images` lists all of your images in any case"),
    ("images", &["--digests"], "`skiff images --quiet` prints digests; `skiff images --json` prints names and digests"),
    ("build", &["-e", "--env"], "ENV in the Dockerfile sets a variable of the image; `skiff build --build-arg NAME=VALUE DIR` sets one of the build"),
    ("build", &["--nv", "--rocm", "--gpus"], "GPUs are given where an image runs: `skiff run --nv IMAGE`; a build has none"),
    ("cdi", &["generate", "create"], "the vendor's tool writes a file, as `nvidia-ctk cdi generate` does; `skiff cdi check` says whether it is sound"),
    ("cdi", &["show", "devices", "inspect"], "`skiff cdi list` lists devices, their files and nodes"),
    ("edf", &["create", "init", "template"], "`skiff edf new IMAGE` prints a definition to start from"),
    ("edf", &["validate", "verify", "lint"], "`skiff edf check FILE` says what is wrong with a definition"),
    ("edf", &["cat", "inspect", "view"], "`skiff edf show NAME` prints a definition with all that it builds upon"),
    ("edf", &["run", "exec"], "`skiff run FILE.toml COMMAND`; in jobs: `srun --environment=NAME COMMAND`"),
    ("module", &["load", "add", "use", "enable"], "`skiff run --module NAME IMAGE` adds a module; in jobs: `srun --container-module=NAME`"),
    ("module", &["avail", "available", "show", "spider", "whatis"], "`skiff module list` lists modules, `skiff module check` says what is wrong with them"),
    ("build", &["--root", "--fakeroot", "-F", "--force"], "a build needs no privilege; an older image gives its name to the new one"),
];

/// What to do in the place of an option, as the parser quotes it: `--name`, or a letter of several. `said` are the words behind `skiff`.
pub fn option(said: &[&str], word: &str) -> Option<&'static str> {
    let word = word.split('=').next().unwrap_or(word);
    behind(said, word).or_else(|| nearest(&OPTIONS, word))
}

/// What to do in the place of a command.
pub fn command(said: &[&str], word: &str) -> Option<&'static str> {
    behind(said, word).or_else(|| nearest(&COMMANDS, word))
}

fn behind(said: &[&str], word: &str) -> Option<&'static str> {
    let is_there = |path: &str| {
        let path: Vec<&str> = path.split(' ').filter(|part| !part.is_empty()).collect();
        // An option may stand anywhere behind a command, another command only at once.
        said.starts_with(&path) && (word.starts_with('-') || said.get(path.len()) == Some(&word))
    };
    let found = BEHIND.iter().find(|(path, words, _)| words.contains(&word) && is_there(path));
    found.map(|(.., nearest)| *nearest)
}

fn nearest(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(words, _)| words.contains(&word)).map(|(_, nearest)| *nearest)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_word_is_there_once_and_is_not_one_of_ours() {
        let whole = crate::Cli::command();
        let run = whole.find_subcommand("run").expect("run");
        let mut seen = std::collections::BTreeSet::new();
        for (words, _) in OPTIONS.iter().chain(&COMMANDS) {
            assert!(words.iter().all(|word| seen.insert(*word)), "{words:?}: twice");
        }
        for word in COMMANDS.iter().flat_map(|(words, _)| *words) {
            assert!(whole.find_subcommand(word).is_none(), "{word}: there is such a command");
        }
        let longs: Vec<_> = run.get_arguments().filter_map(clap::Arg::get_long).collect();
        for word in OPTIONS.iter().flat_map(|(words, _)| *words) {
            assert!(!longs.contains(&word.trim_start_matches('-')), "{word}: `skiff run` has it");
        }
        assert!(option(&[], "--memory=1g").is_some() && option(&[], "--nosuch").is_none());
        assert!(command(&[], "attach").is_some() && command(&[], "").is_none());
    }

    #[test]
    fn what_is_meant_depends_on_the_command() {
        for (line, at, begin) in [
            ("env log", 1, "`skiff env history NAME`"),
            ("env checkout dev", 1, "`skiff env history NAME` lists snapshots, `skiff env rollback"),
            ("save hello:2", 0, "`skiff export IMAGE"),
            ("depot prune", 1, "`skiff depot gc`"),
            ("env cp dev new", 1, "`skiff env clone NAME NEW`"),
            ("env activate dev", 1, "`skiff env enter NAME`"),
            ("env shell dev", 1, "`skiff env enter NAME`"),
            ("env gc", 1, "`skiff env rm NAME` removes an environment, `skiff depot gc`"),
            ("image ls", 0, "`skiff images` lists your images"),
            ("checkpoint verify sim", 1, "`skiff checkpoint restore --dry-run NAME`"),
            ("store ls", 1, "`skiff images`"),
            ("prune", 0, "`skiff rmi IMAGE`"),
            ("overlay create", 0, "changes are kept in an environment"),
            ("edf create", 1, "`skiff edf new IMAGE`"),
            ("module load cxi", 1, "`skiff run --module NAME IMAGE`"),
            ("cdi generate", 1, "the vendor's tool"),
            ("gpus", 0, "`skiff cdi list`"),
        ] {
            let said: Vec<&str> = line.split(' ').collect();
            let found = command(&said, said[at]).expect(line);
            assert!(found.starts_with(begin), "{line}: {found}");
        }
        assert_eq!([command(&["log"], "log"), command(&["net", "prune"], "prune")], [None, None]);
        assert!(
            option(&["env", "tag", "-d", "dev@v1"], "-d").is_some_and(|found| found.contains("--remove"))
        );
        assert!(
            option(&["build", "--pull", "."], "--pull")
                .is_some_and(|found| found.contains("`skiff pull IMAGE`"))
        );
        assert!(option(&["run", "-o"], "-o").is_none());
        for (line, word, part) in [
            ("build --fakeroot .", "--fakeroot", "needs no privilege"),
            ("build --nv .", "--nv", "`skiff run --nv IMAGE`"),
            ("depot gc -n", "-n", "--dry-run"),
            ("env create --image debian:12 dev", "--image", "--base image:IMAGE"),
            ("images --digests", "--digests", "--json"),
        ] {
            let said: Vec<&str> = line.split(' ').collect();
            assert!(option(&said, word).is_some_and(|found| found.contains(part)), "{line}");
        }
    }

    #[test]
    fn what_stands_behind_a_command_is_none_of_its_words() {
        let mut whole = crate::Cli::command();
        whole.build();
        for (path, words, _) in BEHIND {
            let parts = path.split(' ').filter(|part| !part.is_empty());
            let command = parts.fold(&whole, |command, part| command.find_subcommand(part).expect(path));
            for word in words {
                let is_known = command.find_subcommand(word).is_some()
                    || command.get_arguments().any(|arg| {
                        word.strip_prefix("--").is_some_and(|long| arg.get_long() == Some(long))
                            || word.len() == 2 && arg.get_short() == word.chars().nth(1)
                    });
                assert!(!is_known, "skiff {path} {word}: there is such a word");
            }
        }
    }

    /// The long options among words, without what stands behind them.
    fn longs(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split([' ', '/', '(', ')']).filter_map(|word| word.strip_prefix("--"));
        words
            .map(|word| word.split(['=', ',', ';', ':', '.']).next().unwrap_or(word))
            .filter(|word| !word.is_empty())
    }

    #[test]
    fn each_hint_names_commands_and_options_that_there_are() {
        let mut whole = crate::Cli::command();
        whole.build();
        let has = |command: &clap::Command, long: &str| {
            command.get_arguments().any(|arg| arg.get_long() == Some(long))
        };
        let behind = BEHIND.map(|(_, words, nearest)| (words, nearest));
        for (words, nearest) in OPTIONS.iter().chain(&COMMANDS).chain(&behind) {
            let run = whole.find_subcommand("run").expect("run");
            for (at, piece) in nearest.split('`').enumerate() {
                let quoted = piece.strip_prefix("skiff ").filter(|_| at % 2 == 1);
                match (quoted, at % 2) {
                    (Some(line), _) => {
                        let mut command = &whole;
                        for word in
                            line.split(' ').take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase()))
                        {
                            command = command
                                .find_subcommand(word)
                                .unwrap_or_else(|| panic!("{words:?}: {word} in {line}"));
                        }
                        assert!(!std::ptr::eq(command, &whole), "{words:?}: {line}");
                        for long in longs(line) {
                            assert!(has(command, long), "{words:?}: --{long} in {line}");
                        }
                    }
                    // Not in quotes: an option of ours.
                    (None, 0) => longs(piece).for_each(|long| assert!(has(run, long), "{words:?}: --{long}")),
                    (None, _) => {}
                }
            }
        }
    }
}
