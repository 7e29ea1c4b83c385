//! Options and commands of Docker, Podman, Apptainer and others that Skiff has not: for each the nearest word.

/// Options as they are typed, and what to do instead.
#[rustfmt::skip]
const OPTIONS: [(&[&str], &str); 21] = [
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
    (&["--env-host"], "all variables are passed on, but for --cleanenv"),
];

/// Commands as they are typed, and what to do instead.
#[rustfmt::skip]
const COMMANDS: [(&[&str], &str); 14] = [
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
    (&["sif", "overlay", "cache"], "`skiff inspect IMAGE`, `skiff store du` and `skiff store gc`"),
    (&["machine", "system", "info"], "`skiff doctor` checks this host, `skiff config` shows its settings"),
];

/// What to do in the place of an option, as the parser quotes it: `--name`, or a letter of several.
pub fn option(word: &str) -> Option<&'static str> {
    nearest(&OPTIONS, word.split('=').next().unwrap_or(word))
}

/// What to do in the place of a command.
pub fn command(word: &str) -> Option<&'static str> {
    nearest(&COMMANDS, word)
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
        assert!(option("--memory=1g").is_some() && option("--nosuch").is_none());
        assert!(command("attach").is_some() && command("").is_none());
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
        for (words, nearest) in OPTIONS.iter().chain(&COMMANDS) {
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
