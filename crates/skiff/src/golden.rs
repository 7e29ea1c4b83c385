//! Words of the command line and the plans that come of them, over made-up facts: one file each in `tests/golden`, so that a change of
//! any plan is seen in review. `SKIFF_GOLDEN=write cargo test -p skiff golden` writes them anew.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use skiff_app as app;
use skiff_cdi::HostMount;
use skiff_cli::{
    AppCommand, Cli, CliCommand, ClusterCommand, EnvCommand, EnvSubcommand, InstanceCommand, NodesCommand,
    RunArgs, SlurmCommand, StartArgs,
};
use skiff_cluster::wire;
use skiff_cluster::{container, local, node};
use skiff_env::root;
use skiff_instance::{foreground, start};
use skiff_launch::sealed_box::{self, Opener};
use skiff_plan::devices::DeviceFacts;
use skiff_plan::{BaseFacts, Facts, PlanOptions, Relocation, RootOptions, RootSource, build, relocate};
use skiff_runtime::environments::Environment;
use skiff_runtime::record::InstanceDir;
use skiff_slurm as slurm;
use skiff_spec::config::{Config, Slurm as Site};
use skiff_spec::device::{DeviceLibrary, DeviceLink, DeviceSupport, NeededGlibc};
use skiff_spec::image::ImageId;
use skiff_spec::job::{JobImage, Snapshot};
use skiff_spec::members;
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, File as PlanFile, Identity, Plan, Route, Upper};
use skiff_spec::scratch::ScratchPlace;
use skiff_spec::settings::Settings;
use skiff_sys::IgnoreError;

/// A file's name, the machine that it is for, and the words.
const CASES: [(&str, Machine, &str); 52] = [
    ("run-host", HELPER, "run -- true"),
    ("run-host-me", HELPER, "run --me -- true"),
    ("run-host-rootless", ROOTLESS, "run -- true"),
    ("run-host-one-disk", ONE_DISK, "run -- true"),
    ("run-host-mounts", HELPER, "run -v /data -v /data/in:/in:ro -- true"),
    (
        "run-host-shm-size",
        HELPER,
        "run --shm-size 64M --mount type=bind,source=/data,target=/in,readonly -- true",
    ),
    ("run-host-hostname", HELPER, "run --hostname n1 --ulimit nofile=64 -- true"),
    ("run-image-hostname-net-site", HELPER, "run --net lab --hostname n1.example debian:12"),
    ("run-host-contain", HELPER, "run --contain -- true"),
    ("run-host-no-home", HELPER, "run --no-home -- true"),
    ("run-host-net-none", HELPER, "run --net none -- true"),
    ("run-host-net-private", HELPER, "run --net private -- true"),
    ("run-host-net-private-contain", HELPER, "run --net private --contain -- true"),
    ("run-host-net-site", HELPER, "run --net lab -- true"),
    ("run-host-net-site-own-hosts", HELPER, "run --net lab -v /data/hosts:/etc/hosts -- true"),
    ("run-host-checkpoint", HELPER, "run --checkpoint calc -- true"),
    ("run-image", HELPER, "run debian:12"),
    ("run-image-rootless", ROOTLESS, "run debian:12"),
    ("run-image-writable", HELPER, "run --writable debian:12 true"),
    ("run-image-base", HELPER, "run --base image:debian:12 --root -u www-data -w /srv -e A=1 -- true"),
    (
        "run-image-tmpfs",
        HELPER,
        "run --contain --tmpfs /scratch:size=1M,mode=700 --device /dev/fuse -v /data:/a:ro,z,/data/in:/b debian:12 -- true",
    ),
    ("run-image-gpus", HELPER, "run --gpus all debian:12"),
    ("run-image-gpus-contain", HELPER, "run --contain --gpus all -v /data:/usr/lib debian:12"),
    ("run-image-containall", HELPER, "run -C debian:12"),
    ("run-image-no-home", HELPER, "run --no-home -v /data debian:12"),
    ("run-image-untrusted", HELPER, "run --untrusted -v /data:/data:ro debian:12"),
    ("run-image-untrusted-net", HELPER, "run --untrusted --net private debian:12"),
    ("run-image-net-site", HELPER, "run --net lab debian:12"),
    ("run-image-checkpoint", ROOTLESS, "run --checkpoint calc --net none debian:12 true"),
    ("shell-image", HELPER, "shell debian:12"),
    ("shell-image-untrusted", HELPER, "shell --untrusted --writable debian:12"),
    ("env-host", HELPER, "env create dev"),
    ("env-host-rootless", ROOTLESS, "env create dev --net none"),
    ("env-host-net-site", HELPER, "env create dev -v /data:/in:ro --net lab"),
    ("env-image", HELPER, "env create dev --base image:debian:12 -v /data --net private"),
    ("instance-host", HELPER, "instance start --net none host web true"),
    ("instance-host-checkpoint-site", HELPER, "instance start --checkpoint --net lab host web true"),
    ("instance-image", HELPER, "instance start --writable -C -v /data image:debian:12 web"),
    ("instance-image-net-site", HELPER, "instance start --net lab debian:12 web"),
    ("instance-env", HELPER, "instance start -v /more env:dev web true"),
    ("instance-env-net", ROOTLESS, "instance start --net none --checkpoint env:dev web true"),
    ("restore-env", HELPER, "checkpoint restore web again"),
    ("job-env", HELPER, "slurm submit --environment dev"),
    ("job-image", HELPER, "slurm submit --container-image debian:12"),
    (
        "job-image-options",
        HELPER,
        "slurm submit --container-image debian:12 --container-readonly \
      --no-container-mount-home --container-mounts /data:/in:ro --container-name kept",
    ),
    ("cluster-run-host", HELPER, "cluster run -- true"),
    ("cluster-run-image", HELPER, "cluster run --base image:debian:12 --net lab --mount /data -- true"),
    ("cluster-run-dir", HELPER, "cluster run --base dir:/data/root -- true"),
    ("cluster-node-host", HELPER, "cluster up lab --slurm --here --nodes 2"),
    ("cluster-node-hosts", HELPER, "cluster up lab --slurm --base dir:/data/root --hostfile hosts"),
    ("app-image", HELPER, "app notebook --image debian:12"),
    ("app-image-rootless", ROOTLESS, "app desktop --image debian:12"),
];

/// A made-up machine.
#[derive(Clone, Copy)]
struct Machine {
    route: Route,
    /// Parts of its root on file systems of their own.
    separate: &'static [&'static str],
    resolv_conf: Option<&'static str>,
}

const HELPER: Machine =
    Machine { route: Route::Helper, separate: &["/var"], resolv_conf: Some("/run/resolve/stub.conf") };
const ROOTLESS: Machine = Machine { route: Route::Rootless, ..HELPER };
const ONE_DISK: Machine = Machine { separate: &[], resolv_conf: None, ..HELPER };

const IMAGE: ImageId = ImageId([0xab; 32]);
const HOSTS: &str = "127.0.0.1 localhost\n10.1.0.7 storage\n";

/// A base as users write it; all images are one.
fn base(base: &str, route: Route) -> BaseFacts {
    let accounts = Accounts {
        users: vec!["alice:x:1000:1000:Alice:/home/alice:/bin/zsh".into()],
        groups: vec!["alice:x:1000:".into(), "chem:x:2000:".into()],
    };
    match base.strip_prefix("dir:") {
        Some(tree) => BaseFacts::Directory { tree: tree.into(), accounts },
        None if base == "host" => BaseFacts::Host { separate: vec![] },
        None => BaseFacts::Image {
            id: IMAGE,
            // The last two are the user's and the environment's own, whatever the image's maker says.
            volumes: ["/var/lib/db", "/home/alice/x", "/run/skiff"].map(String::from).into(),
            unpacked: (route == Route::Rootless).then(|| "/home/alice/store/trees/abab".into()),
            accounts,
        },
    }
}

fn config() -> Config {
    Config {
        mounts: vec!["/site/software:/opt/site:ro".into()],
        services: vec!["/etc/slurm".into(), "/run/munge".into()],
        slurm: Site { commands: vec!["srun".into()], ..Site::default() },
        ..Config::default()
    }
}

/// What a made-up GPU needs.
fn gpu() -> DeviceFacts {
    let library = "/usr/lib/libcuda.so.550";
    DeviceFacts {
        left_out_nodes: vec![],
        nodes: vec![("/dev/nvidia0".into(), "/dev/nvidia0".into())],
        mounts: vec![HostMount { host: library.into(), inside: library.into(), read_only: true }],
        support: DeviceSupport {
            asked: vec!["gpus:all".into()],
            devices: vec!["nvidia.com/gpu=all".into()],
            variables: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
            links: vec![DeviceLink { link: "/usr/lib/libcuda.so.1".into(), target: "libcuda.so.550".into() }],
            libraries: vec![DeviceLibrary { name: "libcuda.so.1".into(), path: library.into() }],
            glibc: Some(NeededGlibc { version: [2, 17], library: library.into(), optional: false }),
            ..DeviceSupport::default()
        },
        module_variables: vec![],
        left_out_modules: vec![],
    }
}

impl Machine {
    fn build(self, options: PlanOptions, over: &str) -> Plan {
        let mut over = base(over, self.route);
        if let BaseFacts::Host { separate } = &mut over {
            separate.extend(self.separate);
        }
        let facts = Facts {
            config: &config(),
            route: self.route,
            uid: 1000,
            home: Path::new("/home/alice"),
            resolv_conf: self.resolv_conf.map(PathBuf::from),
            working_dir: None,
            login: Some("alice".into()),
            agent_dir: None,
            devices: options.asked.mounts.iter().any(|word| word == "gpus:all").then(gpu),
            data: vec![],
            base: over,
        };
        build(options, facts).expect("a plan")
    }

    /// The plan that the command line would carry out.
    fn plan(self, words: &str) -> Plan {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        self.plan_of([&["skiff".into()], &words[..]].concat())
    }

    fn plan_of(self, words: Vec<OsString>) -> Plan {
        match Cli::read(&words).command {
            CliCommand::Run(run) => self.run(&run),
            CliCommand::Shell(shell) => self.command(shell.options()),
            CliCommand::Instance(InstanceCommand::Start(start)) => self.instance(&start),
            CliCommand::Env(EnvSubcommand::Environment(EnvCommand::Create { base, host, .. })) => {
                let settings = settings(host.words(), host.net.unwrap_or_default());
                self.build(root::options(&dev(), settings), &base)
            }
            CliCommand::Checkpoint(_) => self.restored(),
            CliCommand::Slurm(SlurmCommand::Submit(submit)) => self.job(&submit),
            CliCommand::Cluster(ClusterCommand::Run(run)) => {
                let members = [member("n1", "10.1.0.1"), member("n2", "10.1.0.2")];
                let made = vec![PlanFile { name: "nodes".into(), mode: 0o644, text: "n1\nn2\n".into() }];
                let (wanted, net) = (wanted(run.host.mounts), run.host.net.unwrap_or_default());
                let options = container::options(&wanted, memory(), &net, made, (&members, HOSTS));
                self.build(options, &run.base)
            }
            CliCommand::Cluster(ClusterCommand::Machines(NodesCommand::Up(up))) if up.here => {
                let dir = PathBuf::from("/home/alice/cluster/lab");
                let record = local::record::ClusterDir { name: up.name.clone(), dir };
                self.build(local::up::options(&up, memory(), None, &record), &up.base)
            }
            CliCommand::Cluster(ClusterCommand::Machines(NodesCommand::Up(up))) => {
                let (wanted, places) = (wanted(up.host.mounts), (memory(), "/tmp/log".into()));
                self.build(node::options(&wanted, places, &worker(), "secret".into(), HOSTS), &up.base)
            }
            CliCommand::App(AppCommand::Notebook(wanted) | AppCommand::Desktop(wanted)) => {
                let before = app::words_before(&wanted, self.route);
                self.plan_of([&["skiff".into()], &before[..], &["/bin/sh".into()]].concat())
            }
            _ => panic!("{words:?}: no plan comes of them"),
        }
    }

    fn run(self, run: &RunArgs) -> Plan {
        if let Some(name) = &run.checkpoint {
            return self.instance(&foreground::of_run(run, name).expect("an instance"));
        }
        self.command(run.options().expect("a name"))
    }

    fn command(self, asked: RootOptions) -> Plan {
        let over = match &asked.source {
            RootSource::Host => "host",
            RootSource::Image(_) => "image",
        };
        self.build(PlanOptions::new("run", memory(), asked), over)
    }

    fn instance(self, start: &StartArgs) -> Plan {
        let dir = PathBuf::from("/home/alice/instance").join(start.instance.as_str());
        let record = InstanceDir { name: start.instance.clone(), dir: dir.clone() };
        let upper = if start.checkpointable() { Upper::Directory(dir) } else { memory() };
        let options = start::options(start.options(), &record, upper);
        if start.of != "env:dev" {
            return self.build(options, &start.of);
        }
        let settings = settings(vec!["/data:/in".into()], Net::Private);
        let layers = vec!["/cache/top".into(), "/cache/bottom".into()];
        self.build(start::over_environment(options, settings, layers), "host")
    }

    /// What becomes of a saved instance's plan on another machine.
    fn restored(self) -> Plan {
        let saved = self.plan("instance start --checkpoint --net none env:dev web true");
        let to = Relocation {
            name: "again".into(),
            upper: Upper::Directory("/home/alice/instance/again".into()),
            layers: Some(vec!["/other/top".into(), "/other/bottom".into()]),
            unpacked: None,
            output: "/home/alice/instance/again/output".into(),
        };
        relocate(saved, to).expect("a plan")
    }

    fn job(self, submit: &skiff_cli::SubmitArgs) -> Plan {
        let services = vec![PathBuf::from("/var/spool/slurmd")];
        let temporary = Some(["/run/skiff/jobs/1/tmp", "/run/skiff/jobs/1/vartmp"].map(PathBuf::from));
        if submit.environment.is_some() {
            let (environment, snapshot, depot) = (dev().name, "cd".repeat(32), "/depot".into());
            let snapshot = Snapshot { environment, snapshot, depot, commit: None, devices: vec![] };
            let layers = vec!["/cache/top".into(), "/cache/bottom".into()];
            let options = slurm::job_supervisor::options(&snapshot, memory(), layers, services, temporary);
            return self.build(options, "host");
        }
        let image = submit.container.image.clone().map(|reference| JobImage { id: IMAGE, reference });
        let container =
            slurm::container_options::described(&submit.container, image, false, || Ok("/depot".into()));
        let container = container.expect("a container");
        let kept = container.name.is_some().then(|| Upper::Directory("/var/cache/jobs/1/kept".into()));
        let options = slurm::container::options(&container, kept.unwrap_or_else(memory), services, temporary);
        self.build(options, "image:debian:12")
    }
}

fn memory() -> Upper {
    Upper::Memory { size: "50%".into() }
}

fn dev() -> Environment {
    Environment::in_dir(Path::new("/home/alice/env"), "dev".parse().expect("a name"))
}

fn settings(mounts: Vec<String>, net: Net) -> Settings {
    Settings { name: dev().name, base: "host".into(), image: None, created: 1, mounts, net }
}

fn member(name: &str, address: &str) -> wire::ClusterMember {
    let place = wire::SshAddress {
        version: wire::VERSION.into(),
        address: address.parse().expect("an address"),
        port: 2222,
        host_key: format!("ssh-ed25519 HOST {name}"),
        user_key: format!("ssh-ed25519 USER {name}"),
        processors: 4,
        megabytes: 1024,
        opener: vec![],
    };
    wire::ClusterMember { name: name.into(), slots: 1, place }
}

fn wanted(mounts: Vec<String>) -> wire::ContainerSpec {
    wire::ContainerSpec {
        version: wire::VERSION.into(),
        name: "cluster-1".into(),
        hosts: vec!["n1".into(), "n2".into()],
        index: 0,
        duty: wire::Role::Script,
        root: wire::Root::Host,
        identity: Identity::Me,
        scratch: ScratchPlace::Memory,
        mounts,
        variables: vec![],
        silence: 30,
    }
}

fn worker() -> wire::NodeSpec {
    let opener = Opener::generate(None).expect("a key");
    wire::NodeSpec {
        name: members::Member::Worker(1),
        members: vec![member("controller", "10.1.0.1"), member("n1", "10.1.0.2")],
        conf: "ClusterName=lab\n".into(),
        key: sealed_box::seal(b"secret", &opener.request(), None).expect("it seals"),
        log: None,
    }
}

/// A plan as it is kept: each mount is a line, so that differences are.
fn text(words: &str, plan: &Plan) -> String {
    let value = serde_json::to_value(plan).expect("JSON");
    let mut text = format!("{{\n  \"words\": {},\n", serde_json::Value::from(words));
    for (key, value) in value.as_object().expect("an object") {
        match value.as_array().filter(|list| key == "mounts" && !list.is_empty()) {
            Some(list) => {
                let lines: Vec<_> = list.iter().map(|mount| format!("    {mount}")).collect();
                writeln!(text, "  \"{key}\": [\n{}\n  ],", lines.join(",\n")).expect("memory");
            }
            None => writeln!(text, "  \"{key}\": {value},").expect("memory"),
        }
    }
    format!("{}\n}}\n", text.trim_end().trim_end_matches(','))
}

/// The lines of two texts that differ: all between what both begin and end with.
fn difference(was: &str, is: &str) -> String {
    let (was, is): (Vec<_>, Vec<_>) = (was.lines().collect(), is.lines().collect());
    let same = was.iter().zip(&is).take_while(|(a, b)| a == b).count();
    let (was, is) = (&was[same..], &is[same..]);
    let after = was.iter().rev().zip(is.iter().rev()).take_while(|(a, b)| a == b).count();
    let lines = |sign, lines: &[&str]| -> String {
        lines[..lines.len() - after].iter().map(|line| format!("  {sign} {}\n", line.trim())).collect()
    };
    lines('-', was) + &lines('+', is)
}

#[test]
fn plans_are_as_kept() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let renews = std::env::var_os("SKIFF_GOLDEN").is_some_and(|word| word == "write");
    let mut wrong = String::new();
    for (name, machine, words) in CASES {
        let is = text(&format!("skiff {words}"), &machine.plan(words));
        let path = dir.join(format!("{name}.json"));
        if renews {
            fs::write(&path, &is).expect("it can be written");
        }
        let was = fs::read_to_string(&path).default_on_error("a plan that is not there yet differs");
        if was != is {
            write!(wrong, "{name} (skiff {words}):\n{}", difference(&was, &is)).expect("memory");
        }
    }
    assert!(wrong.is_empty(), "plans have changed (SKIFF_GOLDEN=write keeps them):\n{wrong}");
    let kept = fs::read_dir(&dir).expect("the directory").flatten().map(|entry| entry.file_name());
    let cases = CASES.iter().map(|(name, ..)| OsString::from(format!("{name}.json")));
    assert_eq!(kept.collect::<BTreeSet<_>>(), cases.collect(), "each file is of a case");
}

#[test]
fn differences_are_lines() {
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n"), "  - b\n  + x\n  + y\n");
    assert_eq!(difference("a\n", "a\n"), "");
}

/// What is carried out would be another than what is printed. Where things are is exchanged in `planner`.
#[test]
fn nothing_changes_a_plan_that_was_built() {
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("the sources").flatten().map(|entry| entry.path()) {
            if entry.is_dir() {
                dirs.push(entry);
            } else if !entry.ends_with("golden.rs") && !entry.ends_with("plan/src/replay/tests.rs") {
                let text = fs::read_to_string(&entry).expect("a source");
                let changes = ["let mut plan", "&mut Plan", "..plan"].map(|part| text.contains(part));
                let knows_plans = text.contains("spec::plan::") || text.contains("skiff_plan");
                assert!(!(knows_plans && changes.contains(&true)), "{}: changes a plan", entry.display());
            }
        }
    }
}
