//! Examples of the commands, for `--help` and the manual pages. A test reads each by the parser.

/// A command as it is typed after `skiff`, and its examples: what for, and the line.
type Examples = (&'static str, &'static [(&'static str, &'static str)]);

const ALL: &[Examples] = &[
    (
        "",
        &[
            ("Work in your default environment, then look at what you changed:", "skiff env enter"),
            ("", "skiff env diff"),
            ("Run a program of an image, with your home in it:", "skiff run debian:12 cat /etc/issue"),
            (
                "Run an MPI program in an image on two nodes:",
                "srun -N2 --mpi=pmix --container-image=debian:12 ./solver",
            ),
        ],
    ),
    (
        "run",
        &[
            (
                "Try an installation over the host's root; nothing of it stays:",
                "skiff run -- apt-get install -y hello",
            ),
            (
                "Run an image's own command, with a directory of the host:",
                "skiff run -v /project/data:/data:ro site/tool:1",
            ),
            ("Run a service in the background:", "skiff run -d --name cache --net private redis:7"),
            (
                "Run as yourself, in an empty home and without your variables:",
                "skiff run --me --containall debian:12 id",
            ),
            ("Run something you do not trust:", "skiff run --untrusted ./tool.sif input.txt"),
            ("See what would be done:", "skiff run --dry-run --net private debian:12"),
        ],
    ),
    (
        "shell",
        &[
            ("Look around in an image:", "skiff shell debian:12"),
            ("Try changes in it:", "skiff shell --writable --root debian:12"),
        ],
    ),
    (
        "env create",
        &[
            ("An environment over the host's root:", "skiff env create dev"),
            (
                "One over an image, with a shared file system:",
                "skiff env create --base image:debian:12 -v /project dev12",
            ),
        ],
    ),
    (
        "env enter",
        &[
            ("Enter the default environment as root:", "skiff env enter"),
            ("Enter another one as yourself:", "skiff env enter --me dev"),
        ],
    ),
    (
        "env exec",
        &[
            ("Install a package:", "skiff env exec dev -- apt-get install -y gcc"),
            ("Run as yourself:", "skiff env exec --me dev -- make"),
        ],
    ),
    (
        "env show",
        &[
            ("Show base, mounts and network:", "skiff env show dev"),
            ("For scripts:", "skiff env show --json dev"),
        ],
    ),
    (
        "env export",
        &[
            ("Take an environment to another site:", "skiff env export dev dev.skiff"),
            ("As it was in a snapshot:", "skiff env export dev@v1 v1.skiff"),
        ],
    ),
    (
        "env import",
        &[
            ("Make it there:", "skiff env import dev.skiff"),
            ("Of an image that `skiff commit` has made of one:", "skiff env import image:SERVER/team/dev:1"),
        ],
    ),
    (
        "env commit",
        &[(
            "For a registry, to make the same environment elsewhere:",
            "skiff env commit dev SERVER/team/dev:1",
        )],
    ),
    (
        "env clone",
        &[
            ("Try something in a copy:", "skiff env clone dev trial"),
            ("Have an old snapshot beside it:", "skiff env clone dev@v1 old"),
        ],
    ),
    ("env rename", &[("Rename an environment:", "skiff env rename trial dev2")]),
    ("env list", &[("For scripts:", "skiff env list --json")]),
    (
        "env diff",
        &[
            ("What you changed in the default environment:", "skiff env diff"),
            ("In another one:", "skiff env diff dev"),
            ("What changed since the snapshot before the newest:", "skiff env diff dev @~1"),
            ("Between two snapshots:", "skiff env diff dev v1 v2"),
        ],
    ),
    (
        "env refresh",
        &[
            ("What has the administrator changed since the environment began?", "skiff env refresh dev"),
            ("For a program:", "skiff env refresh --json dev"),
        ],
    ),
    (
        "env status",
        &[
            ("Does a package of yours hide a security update of the host's?", "skiff env status dev"),
            ("For a program:", "skiff env status --json dev"),
        ],
    ),
    (
        "env snapshot",
        &[
            ("As a job would take it:", "skiff env snapshot dev"),
            ("One to come back to:", "skiff env snapshot -t v1 -m stable dev"),
        ],
    ),
    (
        "env history",
        &[
            ("Which snapshots are there?", "skiff env history dev"),
            ("Which were there until one?", "skiff env history dev@v1"),
            ("For scripts:", "skiff env history --json dev"),
        ],
    ),
    (
        "env tag",
        &[
            ("Name the newest snapshot, and one by its id:", "skiff env tag dev v2"),
            ("", "skiff env tag dev@1a2b3c v1"),
            ("Run a job in it, today or in a year:", "srun --environment=dev@v1 ./solver"),
            ("Which tags are there?", "skiff env tag dev"),
            ("For scripts:", "skiff env tag --json dev"),
            ("Take the tag away:", "skiff env tag --remove dev@v1"),
            ("Correct what is said of a snapshot:", "skiff env tag -m stable dev@1a2b3c"),
        ],
    ),
    (
        "env rollback",
        &[
            ("See what would change, then go back:", "skiff env rollback --dry-run dev v1"),
            ("", "skiff env rollback dev v1"),
            ("Take that back:", "skiff env rollback dev @~1"),
        ],
    ),
    ("env stop", &[("End all processes in it; its files stay:", "skiff env stop dev")]),
    (
        "env rm",
        &[("See what would go, then remove it:", "skiff env rm --dry-run dev"), ("", "skiff env rm dev")],
    ),
    (
        "instance start",
        &[
            (
                "Run a service of an image in the background:",
                "skiff instance start --net private redis:7 cache",
            ),
            (
                "Start a computation that can be saved and moved:",
                "skiff instance start --checkpoint host sim ./simulate",
            ),
        ],
    ),
    ("instance list", &[("Show those that have ended, too:", "skiff instance list")]),
    ("instance exec", &[("A shell beside its command:", "skiff instance exec sim bash")]),
    ("instance logs", &[("Follow its output:", "skiff instance logs -f sim")]),
    ("instance stop", &[("Give it a minute to end:", "skiff instance stop --time 60 sim")]),
    ("instance rm", &[("Stop and remove two:", "skiff instance rm --force sim cache")]),
    ("checkpoint create", &[("In memory, for a quick restart:", "skiff checkpoint create --mem-dir before")]),
    (
        "checkpoint save",
        &[
            ("Save an instance and stop it:", "skiff checkpoint save sim"),
            (
                "Save it while it runs on, and keep the last five:",
                "skiff checkpoint save --leave-running --keep 5 sim",
            ),
        ],
    ),
    (
        "checkpoint every",
        &[
            ("As often as costs least, as long as it runs:", "skiff checkpoint every auto sim"),
            ("The last day's, one for each hour:", "skiff checkpoint every 1h --keep 24 sim"),
        ],
    ),
    (
        "checkpoint restore",
        &[
            (
                "After a failure, with the logs cut to where they were:",
                "skiff checkpoint restore --files truncate sim",
            ),
            ("Resume it, on this host or another:", "skiff checkpoint restore sim"),
            ("Resume an older state under a new name:", "skiff checkpoint restore sim@2 sim-again"),
        ],
    ),
    ("checkpoint list", &[("For scripts:", "skiff checkpoint list --json")]),
    ("checkpoint show", &[("How large it is, and what is in it:", "skiff checkpoint show sim")]),
    ("checkpoint export", &[("For another site:", "skiff checkpoint export sim sim.checkpoint")]),
    (
        "checkpoint import",
        &[("There (`skiff checkpoint restore sim` resumes it):", "skiff checkpoint import sim.checkpoint")],
    ),
    ("checkpoint delete", &[("Delete an older one:", "skiff checkpoint delete sim@1")]),
    (
        "oci create",
        &[("As an engine does, then start it:", "skiff oci create --bundle ./box --pid-file pid first")],
    ),
    ("oci start", &[("Begin its program:", "skiff oci start first")]),
    (
        "oci run",
        &[
            ("Create, start, wait, delete:", "skiff oci run --bundle ./box first"),
            ("As Slurm does:", "skiff oci --root=/tmp/oci.alice run n1.alice.7.0.0 -b box"),
        ],
    ),
    ("oci state", &[("As JSON:", "skiff oci state first")]),
    ("oci kill", &[("All of its processes, at once:", "skiff oci kill --all first KILL")]),
    (
        "oci delete",
        &[
            ("Whatever its state:", "skiff oci delete --force first"),
            ("What is left of calls of `run` that were killed:", "skiff oci delete --orphaned"),
        ],
    ),
    ("oci exec", &[("A shell in it:", "skiff oci exec --tty first sh")]),
    ("oci list", &[("All of yours:", "skiff oci list")]),
    ("oci ps", &[("By their PIDs:", "skiff oci ps --format json first")]),
    ("oci pause", &[("Pause it:", "skiff oci pause first")]),
    ("oci resume", &[("Resume it:", "skiff oci resume first")]),
    ("oci update", &[("Of processes 100 at most:", "skiff oci update --pids-limit 100 first")]),
    ("oci spec", &[("In a directory with `rootfs` in it:", "skiff oci spec --bundle ./box")]),
    ("oci features", &[("As JSON:", "skiff oci features")]),
    (
        "job checkpoint-on-signal",
        &[(
            "The last line of a batch script with `#SBATCH --requeue --signal=B:USR1@120`:",
            "exec skiff job checkpoint-on-signal host sim ./simulate",
        )],
    ),
    (
        "job save",
        &[
            (
                "All instances `rank` of the job's nodes, and let them run on:",
                "skiff job save --leave-running ring rank",
            ),
            ("Stop them all, without Slurm:", "skiff job save --on n1,n2 ring rank"),
            (
                "The last line of a batch script with `#SBATCH --requeue --signal=B:USR1@120`:",
                "exec skiff job save --on-signal --every auto ring rank",
            ),
        ],
    ),
    (
        "job restore",
        &[("In a batch script of as many nodes, until all have ended:", "skiff job restore --wait ring")],
    ),
    ("job move", &[("Empty two nodes of a job of four:", "skiff job move --on n1,n2 --to n3,n4 ring rank")]),
    (
        "migrate",
        &[
            ("See what would be moved, and what prevents it:", "skiff migrate --dry-run sim n2"),
            ("Move it with a short downtime:", "skiff migrate --mode precopy sim n2"),
        ],
    ),
    ("drain", &[("Empty a node before maintenance:", "skiff drain --to n2,n3 n1")]),
    ("agent", &[("As systemd starts it:", "skiff agent")]),
    (
        "ps",
        &[
            ("What of yours is running here:", "skiff ps"),
            ("The names of all, for scripts:", "skiff ps -a --format '{{.Name}}'"),
        ],
    ),
    (
        "exec",
        &[
            ("A shell beside an instance's command:", "skiff exec -it sim bash"),
            ("A command in an environment:", "skiff exec dev make"),
        ],
    ),
    (
        "cp",
        &[
            ("A file of an instance into the current directory:", "skiff cp sim:/var/log/sim.log ."),
            ("What a directory contains, into an environment:", "skiff cp ./tool/. dev:/opt/tool"),
            ("An archive into an instance:", "gzip -d <results.tar.gz | skiff cp - sim:/"),
        ],
    ),
    (
        "commit",
        &[
            ("An image of what an instance has become:", "skiff commit web web:patched"),
            ("What an environment has become, with a remark:", "skiff commit -m tuned dev solver:2"),
            (
                "With the host's root below it, so that it runs anywhere:",
                "skiff commit --full dev solver:full",
            ),
        ],
    ),
    (
        "build",
        &[
            ("What the Dockerfile of this directory says:", "skiff build -t solver:2 ."),
            ("With an argument:", "skiff build -t solver:2 --build-arg MPI=openmpi ."),
            ("What a definition file of Apptainer's says:", "skiff build solver.def"),
            ("See what would be run:", "skiff build --dry-run ."),
        ],
    ),
    ("logs", &[("Follow the output of an instance:", "skiff logs -f sim")]),
    (
        "stop",
        &[
            ("End your default environment's processes:", "skiff stop"),
            ("Stop an instance:", "skiff stop sim"),
        ],
    ),
    (
        "kill",
        &[
            ("End an instance at once:", "skiff kill sim"),
            ("Have a server read its configuration again:", "skiff kill -s HUP web"),
        ],
    ),
    (
        "rm",
        &[
            ("Remove an instance that has ended:", "skiff rm sim"),
            ("Stop and remove an environment:", "skiff rm -f dev"),
        ],
    ),
    ("tag", &[("A shorter name:", "skiff tag quay.io/team/tool:1.2 tool:stable")]),
    ("history", &[("How it was built:", "skiff history debian:12")]),
    ("version", &[("For a report:", "skiff version")]),
    ("help", &[("All options of a command:", "skiff help env create")]),
    (
        "app notebook",
        &[
            ("JupyterLab of your environment:", "skiff app notebook --environment dev"),
            (
                "Of an image, on a port you choose:",
                "skiff app notebook --image jupyter/scipy-notebook --port 8888",
            ),
        ],
    ),
    ("app desktop", &[("A desktop with one program:", "skiff app desktop -- xterm")]),
    ("app list", &[("Print the addresses again:", "skiff app list")]),
    (
        "cluster run",
        &[
            (
                "An MPI program of an image on the nodes of a job:",
                "sbatch -N4 --wrap 'skiff cluster run --base image:my-mpi -- mpirun ./solver'",
            ),
            ("On hosts reached by ssh:", "skiff cluster run --hostfile hosts.txt -- ./script.sh"),
        ],
    ),
    (
        "cluster up",
        &[
            ("A Slurm of your own with four nodes:", "skiff cluster up lab --slurm --nodes 4"),
            ("", "skiff cluster exec lab -- srun -N4 hostname"),
        ],
    ),
    ("cluster add", &[("Two more nodes:", "skiff cluster add lab --nodes 2")]),
    ("cluster remove", &[("One certain node:", "skiff cluster remove lab --node n3")]),
    ("cluster status", &[("The nodes of one cluster:", "skiff cluster status lab")]),
    ("cluster enter", &[("A shell on a node:", "skiff cluster enter --node n1 lab")]),
    ("cluster exec", &[("A command on the controller:", "skiff cluster exec lab -- sinfo")]),
    ("cluster down", &[("End it:", "skiff cluster down lab")]),
    ("cluster notebook", &[("Inside a job of several nodes:", "skiff cluster notebook")]),
    ("cluster desktop", &[("Inside a job of several nodes:", "skiff cluster desktop")]),
    ("edf list", &[("Which names has `srun --environment=`?", "skiff edf list")]),
    (
        "edf check",
        &[("All that are found by name:", "skiff edf check"), ("A file:", "skiff edf check ./solver.toml")],
    ),
    ("edf show", &[("With what it builds upon:", "skiff edf show pytorch")]),
    ("edf new", &[("Begin one:", "skiff edf new debian:12")]),
    (
        "cdi list",
        &[("The devices you may ask for:", "skiff cdi list"), ("", "skiff run --gpus 1 site/tool:1")],
    ),
    ("cdi check", &[("Is a file of a vendor's sound?", "skiff cdi check /etc/cdi/nvidia.yaml")]),
    (
        "module list",
        &[("The modules you may ask for:", "skiff module list"), ("", "skiff run --mpi auto site/solver:1")],
    ),
    ("module check", &[("Is a module sound?", "skiff module check ./cxi.toml")]),
    ("net list", &[("The networks you may use:", "skiff net list")]),
    ("net show", &[("Who has which address:", "skiff net show lab")]),
    (
        "net release",
        &[("Give back an address reserved for a saved instance:", "skiff net release lab 10.20.1.7")],
    ),
    ("net check", &[("Why does it not work on this node?", "skiff net check lab")]),
    (
        "pull",
        &[
            ("From Docker Hub:", "skiff pull debian:12"),
            ("For another platform:", "skiff pull --arch arm64 debian:12"),
            ("What Apptainer has pushed:", "skiff pull oras://registry.site/team/tool:1"),
        ],
    ),
    (
        "import",
        &[
            ("What `docker save` wrote:", "skiff import tool.tar site/tool:1"),
            ("One of several images in a file:", "skiff import docker-archive:all.tar:tool:1"),
            ("An image of Apptainer:", "skiff import tool.sif"),
            ("The files of a root, in an archive or a directory:", "skiff import root.tar.xz mine"),
        ],
    ),
    (
        "export",
        &[
            ("For `docker load`:", "skiff export debian:12 docker-archive:debian.tar"),
            ("For Apptainer and Enroot:", "skiff export debian:12 debian.sqsh"),
        ],
    ),
    (
        "push",
        &[
            ("By its own name:", "skiff push registry.site/team/tool:1"),
            ("Under another one:", "skiff push web:2 registry.site/team/web:2"),
        ],
    ),
    ("images", &[("Your images:", "skiff images")]),
    ("rmi", &[("Remove one from your list:", "skiff rmi debian:12")]),
    (
        "inspect",
        &[
            ("The entry point and variables of an image:", "skiff inspect debian:12"),
            ("Its files:", "skiff inspect --files debian:12"),
        ],
    ),
    (
        "login",
        &[
            ("To a registry:", "skiff login -u alice quay.io"),
            ("In scripts:", "skiff login -u alice --password-stdin quay.io"),
        ],
    ),
    ("logout", &[("From a registry:", "skiff logout quay.io")]),
    ("store du", &[("How full is it?", "skiff store du")]),
    ("store gc", &[("See what could go to stay below 200 GB:", "skiff store gc --budget 200G --dry-run")]),
    ("store verify", &[("Check all your images:", "skiff store verify")]),
    ("depot ls", &[("What needs your snapshots?", "skiff depot ls")]),
    ("depot du", &[("How much of it can go?", "skiff depot du")]),
    (
        "depot gc",
        &[
            ("See what has been unused for two days:", "skiff depot gc --days 2 --dry-run"),
            ("Remove all that nothing needs, where a quota is full:", "skiff depot gc --budget 0"),
        ],
    ),
    (
        "depot verify",
        &[
            ("Check all files:", "skiff depot verify"),
            ("Remove what is damaged:", "skiff depot verify --remove"),
        ],
    ),
    ("doctor", &[("What this host lacks:", "skiff doctor")]),
    ("sweep", &[("See what would be removed:", "skiff sweep --dry-run")]),
    ("config", &[("What is in force, and where it comes from:", "skiff config")]),
    ("completion", &[("For bash, without an installation:", "source <(skiff completion bash)")]),
];

/// The examples of a command, named as it is typed after `skiff`; none where nobody has written any.
pub fn of(command: &str) -> &'static [(&'static str, &'static str)] {
    ALL.iter().find(|(name, _)| *name == command).map_or(&[], |(_, examples)| examples)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// The words after the last `skiff` of a line, which may stand in quotes or in `<( )`.
    fn words(line: &str) -> Option<Vec<OsString>> {
        let (_, after) = line.rsplit_once("skiff ")?;
        let after = after.trim_end_matches(['\'', ')']);
        Some(std::iter::once("skiff").chain(after.split(' ')).map(OsString::from).collect())
    }

    #[test]
    fn the_parser_takes_each_example() {
        for (name, examples) in ALL {
            for (what, line) in *examples {
                assert!(
                    what.len() + 2 <= 80 && line.len() + 4 <= 80,
                    "{name}: too wide for a terminal: {line}"
                );
                let Some(words) = words(line) else { continue };
                let read = Cli::of(&words);
                assert!(
                    read.is_ok(),
                    "{name}: {line}: {}",
                    read.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
        }
    }

    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{path} {}", sub.get_name()).trim().to_owned();
            if sub.has_subcommands() { leaves(sub, &path, found) } else { found.push(path) }
        }
    }

    #[test]
    fn each_command_has_examples_and_each_example_a_command() {
        let mut commands = vec![String::new()];
        leaves(&Cli::command(), "", &mut commands);
        let mut known: Vec<_> = ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
        commands.sort();
        known.sort();
        assert_eq!(commands, known);
    }
}
