//! Each flag reaches the planner from each command that has it: one that is declared and then forgotten would do nothing, silently.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{Arg, Args, Command};
use skiff_cli::{
    self as cli, Cli, ClusterCommand, EnvCommand, EnvSubcommand, HostArgs, InstanceCommand, NodesCommand,
    RootArgs, SlurmCommand,
};
use skiff_plan::inside::ProcessArgs;
use skiff_plan::{RootOptions, RootSource};
use skiff_slurm::container_options;
use skiff_spec::job;
use skiff_spec::network::Net;

/// The arguments of a group, with a value for each that takes one.
fn flags_of<A: Args>() -> Vec<Vec<String>> {
    let group = A::augment_args(Command::new("group"));
    group.get_arguments().flat_map(spellings).collect()
}

/// All that can be written for a flag.
fn spellings(arg: &Arg) -> Vec<Vec<String>> {
    let value = arg.get_action().takes_values().then(|| value(arg.get_id().as_str()));
    let longs = [arg.get_long().into_iter().collect(), arg.get_all_aliases().unwrap_or_default()].concat();
    let shorts = [arg.get_short().into_iter().collect(), arg.get_all_short_aliases().unwrap_or_default()];
    let longs = longs.into_iter().map(|long| format!("--{long}"));
    let shorts = shorts.concat().into_iter().map(|short| format!("-{short}"));
    longs.chain(shorts).map(|flag| std::iter::once(flag).chain(value.map(String::from)).collect()).collect()
}

/// A value unlike the one that is meant if nothing is said.
fn value(id: &str) -> &'static str {
    match id {
        "env" => "A=1",
        "env_files" => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/variables"),
        "tmpfs" => "/scratch",
        "shm_size" => "64M",
        "device" => "/dev/fuse",
        "gpus" => "2",
        "module" => "fabric",
        "mpi" => "host",
        "workdir" => "/srv",
        "hostname" => "n1",
        "ulimits" => "nofile=512",
        "user" => "www-data",
        "pull" => "always",
        "mounts" => "/data:/in:ro",
        "net" => "private",
        "script" | "image" => "debian:12",
        "name" => "kept",
        "kept_variables" => "PATH",
        "unshare" => "net",
        "modules" => "cxi",
        "save" => "/data/image.erofs",
        "entrypoint" => "/bin/echo",
        _ => panic!("--{id}: say here what a test is to give it"),
    }
}

/// What the words ask for, without what lies below and what is run, in which commands differ.
fn asked(before: &[&str], flag: &[String], behind: &[&str]) -> RootOptions {
    let words = before.iter().copied().chain(flag.iter().map(String::as_str)).chain(behind.iter().copied());
    let words: Vec<OsString> = words.map(OsString::from).collect();
    let asked = match Cli::read(&words).command {
        cli::CliCommand::Run(run) => run.options().expect("options"),
        cli::CliCommand::Shell(shell) => shell.options(),
        cli::CliCommand::Instance(InstanceCommand::Start(start)) => start.options(),
        cli::CliCommand::Env(EnvSubcommand::Environment(EnvCommand::Create { host, .. })) => host.into(),
        cli::CliCommand::Cluster(ClusterCommand::Run(run)) => {
            RootOptions { inside: run.inside, ..run.host.into() }
        }
        cli::CliCommand::Cluster(ClusterCommand::Machines(NodesCommand::Up(up))) => up.host.into(),
        _ => panic!("{words:?}: asks nothing of a root"),
    };
    RootOptions { source: RootSource::Host, argv: vec![], ..asked }
}

#[test]
fn every_flag_of_a_root_reaches_the_planner_from_every_command() {
    let commands: [(&[&str], &[&str]); 3] = [
        (&["skiff", "run"], &["--entrypoint=/bin/sh", "debian:12"]),
        (&["skiff", "shell"], &["debian:12"]),
        (&["skiff", "instance", "start"], &["--entrypoint=/bin/sh", "debian:12", "web"]),
    ];
    for flag in flags_of::<RootArgs>() {
        let [run, shell, start] = commands.map(|(before, behind)| asked(before, &flag, behind));
        let without = asked(commands[0].0, &[], commands[0].1);
        assert_ne!(run, without, "run {flag:?}: changes nothing");
        assert_eq!(shell, run, "shell {flag:?}");
        assert_eq!(start, run, "instance start {flag:?}");
    }
}

#[test]
fn untrusted_means_the_same_in_a_shell() {
    let flag = ["--untrusted".to_owned()];
    let run = asked(&["skiff", "run"], &flag, &["--entrypoint=/bin/sh", "debian:12"]);
    assert_eq!(asked(&["skiff", "shell"], &flag, &["debian:12"]), run);
    assert!(run.untrusted && run.contain && run.inside.untrusted && run.inside.cleanenv && run.inside.me);
    assert_eq!(run.net(), Net::None);
}

#[test]
fn what_connects_to_the_host_reaches_the_planner_from_every_command() {
    let commands: [(&[&str], &[&str]); 3] = [
        (&["skiff", "env", "create"], &["dev"]),
        (&["skiff", "cluster", "run"], &["--", "true"]),
        (&["skiff", "cluster", "up"], &["--slurm", "lab"]),
    ];
    for flag in flags_of::<HostArgs>() {
        let of_run = asked(&["skiff", "run", "--writable"], &flag, &["--", "true"]);
        for (before, behind) in commands {
            assert_eq!(asked(before, &flag, behind), of_run, "{before:?} {flag:?}");
            assert_ne!(asked(before, &[], behind), of_run, "{before:?} {flag:?}: changes nothing");
        }
    }
    for flag in flags_of::<ProcessArgs>() {
        let of_run = asked(&["skiff", "run", "--writable"], &flag, &["--", "true"]);
        assert_eq!(asked(&["skiff", "cluster", "run"], &flag, &["--", "true"]), of_run, "{flag:?}");
    }
}

/// What a job carries of the words of Slurm's commands.
fn container(flag: &[String]) -> job::JobContainer {
    let words = ["skiff", "slurm", "submit", "--container-image=debian:12"].map(OsString::from);
    let words = words.into_iter().chain(flag.iter().map(OsString::from)).collect::<Vec<_>>();
    let cli::CliCommand::Slurm(SlurmCommand::Submit(submit)) = Cli::read(&words).command else {
        panic!("{words:?}")
    };
    let image = job::JobImage { id: skiff_spec::image::ImageId([1; 32]), reference: "debian:12".into() };
    container_options::described(&submit.container, Some(image), false, || Ok("/depot".into()))
        .expect("a container")
}

#[test]
fn every_option_of_slurm_reaches_the_job() {
    // What is so without them; and a script's container is only noted where it is saved.
    let usual = ["script", "image", "home", "no_root", "no_entrypoint", "entrypoint_log", "writable"];
    // What a job itself does, or each of its tasks.
    let of_the_job = ["name", "kept_variables", "save"];
    let group = cli::ContainerArgs::augment_args(Command::new("group"));
    let without = container(&[]);
    for arg in group.get_arguments().filter(|arg| !usual.contains(&arg.get_id().as_str())) {
        let id = arg.get_id().as_str();
        // This one takes no program.
        let flag = match arg.get_action().takes_values() {
            true => vec![format!("--{}={}", arg.get_long().expect("a name"), value(id))],
            false => vec![format!("--{}", arg.get_long().expect("a name"))],
        };
        let with = container(&flag);
        assert_ne!(with, without, "{flag:?}: changes nothing");
        let is_asked = RootOptions::from(&with) != RootOptions::from(&without);
        assert_eq!(is_asked, !of_the_job.contains(&id), "{flag:?}");
    }
}

#[test]
fn the_plug_in_has_the_same_options() {
    let group = cli::ContainerArgs::augment_args(Command::new("group"));
    let read: BTreeSet<_> = group.get_arguments().filter_map(Arg::get_long).collect();
    let source = include_str!("../../spank/src/option.rs");
    let told: BTreeSet<_> = source
        .split("c\"")
        .filter_map(|text| text.split_once('"').map(|(name, _)| name))
        .filter(|name| name.starts_with("container-") || name.starts_with("no-container-"))
        .chain(["script"])
        .collect();
    assert_eq!(told, read);
}
