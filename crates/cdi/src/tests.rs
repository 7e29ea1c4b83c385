use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::*;

/// As `nvidia-ctk cdi generate` writes them, for two GPUs; and as `amd-ctk cdi generate` does.
const NVIDIA: &str = include_str!("../tests/data/nvidia.yaml");
const AMD: &str = include_str!("../tests/data/amd.json");

fn file(name: &str, text: &str, priority: usize) -> CdiFile {
    let (description, problems) = CdiDescription::parse(text, name.ends_with("json"));
    CdiFile { path: name.into(), priority, description, problems }
}

fn catalog(files: &[(&str, &str, usize)]) -> Catalog {
    Catalog { files: files.iter().map(|(name, text, priority)| file(name, text, *priority)).collect() }
}

fn names(found: &[FoundDevice<'_>]) -> String {
    found.iter().map(|found| found.device.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn only(ids: &[&str]) -> Granted {
    Granted::Only(ids.iter().map(ToString::to_string).collect())
}

#[test]
fn vendors_files_are_sound() {
    for (name, text) in [("nvidia.yaml", NVIDIA), ("amd.json", AMD)] {
        assert_eq!(file(name, text, 0).problems, vec![], "{name}");
    }
    let catalog = catalog(&[("/etc/cdi/nvidia.yaml", NVIDIA, 0), ("/var/run/cdi/amd.json", AMD, 1)]);
    assert_eq!(catalog.kinds(), ["amd.com/gpu", "nvidia.com/gpu"]);
    let found = catalog.resolve(&[DeviceRequest::nvidia()], &Granted::Everything).expect("GPUs");
    let needs = Needs::of(&found).expect("all of it");
    assert!(needs.mounts.iter().all(|mount| mount.read_only));
    assert!(needs.variables.contains(&("NVIDIA_VISIBLE_DEVICES".into(), "void".into())));
    assert!(needs.nodes.iter().any(|node| node.inside == "/dev/nvidiactl"));
    assert!(needs.library_dirs.contains(&"/lib/x86_64-linux-gnu".into()));
    let link = needs.links.iter().find(|link| link.link.ends_with("/libcuda.so")).expect("a link");
    assert_eq!(link.target, "libcuda.so.1");
    let found = catalog.resolve(&[DeviceRequest::amd()], &only(&["1"])).expect("GPUs");
    let nodes = Needs::of(&found).expect("all of it").nodes;
    let nodes: Vec<_> = nodes.iter().map(|node| node.inside.as_str()).collect();
    assert_eq!(nodes, ["/dev/dri/card2", "/dev/dri/renderD129", "/dev/kfd"]);
}

#[test]
fn requests_are_dockers() {
    let these = |ids: &[&str]| Ok(WhichGpus::These(ids.iter().map(ToString::to_string).collect()));
    for (text, want) in [
        ("all", Ok(WhichGpus::All)),
        ("2", Ok(WhichGpus::Count(2))),
        ("0,2", these(&["0", "2"])),
        ("device=0", these(&["0"])),
        ("\"device=0,1\"", these(&["0", "1"])),
        ("\"device=0,1\",capabilities=utility,driver=nvidia", these(&["0", "1"])),
        ("count=3,capabilities=compute", Ok(WhichGpus::Count(3))),
        ("count=all", Ok(WhichGpus::All)),
        ("2,capabilities=utility", Ok(WhichGpus::Count(2))),
        ("all,capabilities=utility", Ok(WhichGpus::All)),
        ("device=2,capabilities=utility", these(&["2"])),
        ("capabilities=utility,device=2", these(&["2"])),
        ("0,2,capabilities=utility", these(&["0", "2"])),
        ("GPU-61a2c7f4-0b1a", these(&["GPU-61a2c7f4-0b1a"])),
        ("0:1", these(&["0:1"])),
    ] {
        assert_eq!(
            DeviceRequest::gpus(text),
            want.map(|which| DeviceRequest::Gpus { kind: None, which }),
            "{text}"
        );
    }
    for text in ["", "0", "-2", "a b", "dev=0", "count=x", "device=", "../x", "0,,1", "capabilities=gpu"] {
        assert!(DeviceRequest::gpus(text).is_err(), "{text:?}");
    }
}

#[test]
fn nobody_gets_more_than_the_job_was_given() {
    let catalog = catalog(&[("nvidia.yaml", NVIDIA, 0)]);
    let gpus = |words: &str, granted: &Granted| {
        let request = match words.strip_prefix("device ") {
            Some(name) => DeviceRequest::Device(DeviceName::parse(name).expect("a name")),
            None => DeviceRequest::gpus(words).expect("a request"),
        };
        catalog.resolve(&[request], granted).map(|found| names(&found)).map_err(|e| e.message)
    };
    let everything = &Granted::Everything;
    for (words, granted, want) in [
        ("all", everything, "all"),
        ("1", everything, "0"),
        ("2", everything, "0 1"),
        ("device=1", everything, "1"),
        ("device nvidia.com/gpu=all", everything, "all"),
        ("all", &only(&["1"]), "1"),
        ("1", &only(&["1"]), "1"),
        ("all", &only(&["0", "1"]), "0 1"),
        ("device nvidia.com/gpu=all", &only(&["0"]), "0"),
        ("device nvidia.com/gpu=0", &only(&["0"]), "0"),
    ] {
        assert_eq!(gpus(words, granted).as_deref(), Ok(want), "{words} {granted:?}");
    }
    for (words, granted, want) in [
        ("3", everything, "this host has 2"),
        ("device=7", everything, "GPU 7 of nvidia.com/gpu: not described; there are 0, 1, all"),
        ("device nvidia.com/gpu=9", everything, "not one of nvidia.com/gpu, which has 0, 1, all"),
        ("device nvidia.com/mig=9", everything, "no file describes nvidia.com/mig, only nvidia.com/gpu"),
        ("all", &only(&[]), "this job has no GPU"),
        ("2", &only(&["1"]), "this job has 1"),
        ("device=0,1", &only(&["1"]), "this job has not been given it, but 1"),
        ("device nvidia.com/gpu=0", &only(&["1"]), "this job has not been given it"),
    ] {
        let why = gpus(words, granted).expect_err(words);
        assert!(why.contains(want), "{words}: {why}");
    }
    let maker = DeviceRequest::Gpus { kind: None, which: WhichGpus::IfGranted };
    assert_eq!(catalog.resolve(std::slice::from_ref(&maker), &only(&[])).expect("none").len(), 0);
    assert_eq!(names(&catalog.resolve(std::slice::from_ref(&maker), &only(&["1"])).expect("one")), "1");
    assert_eq!(Catalog::default().resolve(&[maker], &only(&["1"])).expect("none").len(), 0);
}

#[test]
fn gpus_that_were_not_picked_are_left_out() {
    let catalog = catalog(&[("nvidia.yaml", NVIDIA, 0), ("amd.json", AMD, 0)]);
    let device = |name: &str| DeviceRequest::Device(DeviceName::parse(name).expect("a name"));
    let gpus = |words: &str| DeviceRequest::gpus(words).expect("a request");
    let maker = || DeviceRequest::Gpus { kind: None, which: WhichGpus::IfGranted };
    for (requests, devices, left_out) in [
        (vec![device("nvidia.com/gpu=0"), maker()], "0", "/dev/nvidia1"),
        (vec![device("nvidia.com/gpu=all"), maker()], "all", ""),
        (vec![gpus("device=1")], "1", "/dev/nvidia0"),
        (vec![gpus("1")], "0", "/dev/nvidia1"),
        (vec![gpus("0,1")], "0 1", ""),
        (vec![gpus("device=1"), gpus("all")], "1 all", ""),
        (vec![gpus("all")], "all", ""),
        (vec![maker()], "all", ""),
        (vec![device("amd.com/gpu=0")], "0", "/dev/dri/card2 /dev/dri/renderD129"),
    ] {
        let found = catalog.resolve(&requests, &Granted::Everything).expect("GPUs");
        assert_eq!(names(&found), devices, "{requests:?}");
        assert_eq!(catalog.nodes_left_out(&requests, &found).join(" "), left_out, "{requests:?}");
    }
}

#[test]
fn grants_are_read_from_what_managers_set() {
    for (variables, want) in [
        (&[][..], Granted::Everything),
        (&[("CUDA_VISIBLE_DEVICES", "0")], Granted::Everything),
        (&[("SLURM_JOB_ID", "1")], only(&[])),
        (&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_GPUS", "0,2-4")], only(&["0", "2", "3", "4"])),
        (&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_GPUS", "0,1"), ("SLURM_STEP_GPUS", "1")], only(&["1"])),
        (&[("SLURM_JOB_ID", "1"), ("CUDA_VISIBLE_DEVICES", "GPU-1-2")], only(&["GPU-1-2"])),
        (&[("SLURM_JOB_ID", "1"), ("CUDA_VISIBLE_DEVICES", "NoDevFiles")], only(&[])),
        (&[("SLURM_JOB_ID", "1"), ("ROCR_VISIBLE_DEVICES", "3")], only(&["3"])),
        (&[("PBS_JOBID", "1")], Granted::Everything),
        (&[("PBS_JOBID", "1"), ("CUDA_VISIBLE_DEVICES", "2")], only(&["2"])),
    ] {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        assert_eq!(Granted::of(value), want, "{variables:?}");
    }
}

#[test]
fn a_job_is_told_why_no_file_describes_its_gpus() {
    let zero = || DeviceRequest::Device(DeviceName::parse("nvidia.com/gpu=0").expect("a name"));
    let maker = || DeviceRequest::Gpus { kind: None, which: WhichGpus::IfGranted };
    let why = |files: &[(&str, &str, usize)], request: DeviceRequest, granted: &Granted| {
        catalog(files).resolve(&[request], granted).map(|found| names(&found)).map_err(|e| e.message)
    };
    let both = [("/etc/a.yaml", NVIDIA, 0), ("/etc/b.yaml", NVIDIA, 0)];
    let no_yaml = [("/etc/a.yaml", "kind: [", 0)];
    let of_others = [("/etc/a.yaml", "cdiVersion: '0.5.0'\nkind: a.b/c\ndevices: []\n", 0)];
    let of_gpus = [("/etc/a.yaml", "cdiVersion: '0.5.0'\nkind: nvidia.com/gpu\ndevices: []\n", 0)];
    for (files, want) in [
        (&both[..], "both /etc/a.yaml and /etc/b.yaml describe it"),
        (&no_yaml, "no file describes a GPU (nvidia.com/gpu); /etc/a.yaml is not used: "),
        (&[], "no file describes a GPU (nvidia.com/gpu)"),
    ] {
        let why = why(files, zero(), &only(&["0"])).expect_err(want);
        assert!(why.contains(want), "{why}");
    }
    // An image's maker wants them where there are some: only what may have been about GPUs is a fault.
    for (files, is_fault) in [(&both[..], true), (&no_yaml, true), (&of_gpus, true), (&of_others, false)] {
        assert_eq!(why(files, maker(), &Granted::Everything).is_err(), is_fault, "{files:?}");
        assert_eq!(why(files, maker(), &only(&[])), Ok(String::new()));
    }
}

#[test]
fn a_hint_is_for_the_vendor_and_the_host() {
    let hint = |files: &[(&str, &str, usize)], request: DeviceRequest| {
        catalog(files).resolve(&[request], &Granted::Everything).expect_err("not there").hint
    };
    let nvidia = [("/etc/cdi/nvidia.yaml", NVIDIA, 0)];
    let device = |name: &str| DeviceRequest::Device(DeviceName::parse(name).expect("a name"));
    assert_eq!(hint(&nvidia, DeviceRequest::amd()), "this host's GPUs are nvidia.com/gpu: skiff cdi list");
    let of_amd = "administrator: amd-ctk cdi generate --output=/etc/cdi/amd.json";
    let of_nvidia = "administrator: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";
    assert_eq!(hint(&[], DeviceRequest::amd()), of_amd);
    assert_eq!(hint(&[], device("amd.com/gpu=0")), of_amd);
    assert_eq!(hint(&[], DeviceRequest::nvidia()), of_nvidia);
    assert!(hint(&[], DeviceRequest::gpus("all").expect("a request")).starts_with(of_nvidia));
    assert_eq!(hint(&[], device("x.org/net=a")), "administrator: put the vendor's file into /etc/cdi");
    assert_eq!(hint(&nvidia, device("x.org/net=a")), "skiff cdi list");
}

const SMALL: &str =
    "cdiVersion: '0.5.0'\nkind: a.b/c\ndevices:\n- name: x\n  containerEdits:\n    env: [A=1]\n";

#[test]
fn later_directories_count_and_equals_exclude_each_other() {
    let other = SMALL.replace("A=1", "A=2");
    let name = DeviceName::parse("a.b/c=x").expect("a name");
    let value = |files: &[(&str, &str, usize)]| {
        let catalog = catalog(files);
        let found = catalog.find(&name).map(|found| found.device.edits.variables[0].1.clone());
        found.map_err(|e| e.message)
    };
    assert_eq!(value(&[("/etc/a.yaml", SMALL, 0), ("/run/a.yaml", &other, 1)]).as_deref(), Ok("2"));
    let why = value(&[("/etc/a.yaml", SMALL, 0), ("/etc/b.yaml", &other, 0)]).expect_err("a conflict");
    assert_eq!(why, "device a.b/c=x: both /etc/a.yaml and /etc/b.yaml describe it");
    let both = catalog(&[("/etc/a.yaml", NVIDIA, 0), ("/etc/b.yaml", NVIDIA, 0)]);
    let why = both.resolve(&[DeviceRequest::nvidia()], &Granted::Everything).expect_err("a conflict").message;
    assert_eq!(why, "device nvidia.com/gpu=0: both /etc/a.yaml and /etc/b.yaml describe it");
    let three = [("/etc/a.yaml", SMALL, 0), ("/etc/b.yaml", &other, 0), ("/run/a.yaml", SMALL, 1)];
    assert_eq!(value(&three).as_deref(), Ok("1"));
    let why = value(&[("/etc/a.yaml", "devices: 1", 0)]).expect_err("a broken one");
    assert!(why.contains("/etc/a.yaml is not used: "), "{why}");
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_key() {
    for (from, to, want) in [
        ("'0.5.0'", "0.9.9", "line 1: cdiVersion: version \"0.9.9\" is not known"),
        ("'0.5.0'", "0.5", "line 1: cdiVersion: a number in the place of text"),
        ("kind: a.b/c", "kind: gpu", "line 2: kind: \"gpu\" is not VENDOR/CLASS"),
        ("kind: a.b/c\n", "", "line 1: the key \"kind\" is missing"),
        ("name: x", "name: 7", "line 4: devices[0].name: a number in the place of text"),
        ("name: x", "name: ../x", "line 4: devices[0].name: the device's name"),
        ("env: [A=1]", "envs: [A=1]", "line 6: devices[0].containerEdits.envs: there is no such key"),
        ("env: [A=1]", "env: A=1", "line 6: devices[0].containerEdits.env: text in the place of a list"),
        ("env: [A=1]", "env: [A]", "line 6: devices[0].containerEdits.env[0]: not NAME=VALUE"),
        (
            "env: [A=1]",
            "mounts: [{hostPath: /a, containerPath: /b/../c}]",
            "containerPath: path \"/b/../c\" holds `..`",
        ),
        ("env: [A=1]", "mounts: [{hostPath: a, containerPath: /c}]", "hostPath: path \"a\" is not absolute"),
        (
            "env: [A=1]",
            "mounts: [{hostPath: /a, containerPath: /}]",
            "would cover what is the container's own",
        ),
        ("env: [A=1]", "mounts: [{hostPath: /a, containerPath: /run/skiff}]", "would cover"),
        ("env: [A=1]", "mounts: [{hostPath: /a, containerPath: /b, type: ext4}]", "type \"ext4\""),
        ("env: [A=1]", "mounts: [{hostPath: /a}]", "the key \"containerPath\" is missing"),
        ("env: [A=1]", "deviceNodes: [{path: /etc/x}]", "is not below /dev"),
        ("env: [A=1]", "deviceNodes: [{path: /dev/x, permissions: rx}]", "permissions \"rx\""),
        ("env: [A=1]", "deviceNodes: [{path: /dev/x, major: -1}]", "not a number from 0 on"),
        ("env: [A=1]", "hooks: [{hookName: never, path: /x}]", "\"never\" is not when a hook runs"),
        (
            "env: [A=1]",
            "hooks: [{hookName: createContainer, path: /usr/bin/nvidia-ctk, args: [x, hook, create-symlinks, --link, '../../a::/b']}]",
            "the target leads out of the root",
        ),
        ("env: [A=1]", "additionalGids: [5]", "it needs version 0.7.0, and the file says 0.5.0"),
        ("env: [A=1]", "netDevices: [{hostInterfaceName: a, name: b}]", "it needs version 1.1.0"),
        ("- name: x", "- name: x\n- name: x", "a second device \"x\""),
        ("devices:", "devices: []\nx:", "no devices in it"),
        ("kind:", "Kind:", "line 2: Kind: there is no such key"),
        ("kind:", "kind: [", "not YAML"),
    ] {
        let text = SMALL.replacen(from, to, 1);
        let (_, problems) = CdiDescription::parse(&text, false);
        let said: Vec<String> = problems.iter().map(Problem::text).collect();
        assert!(said.iter().any(|said| said.contains(want)), "{text}\n{said:?}");
    }
    let (_, problems) = CdiDescription::parse(&SMALL.replace("env:", "evn:"), false);
    assert_eq!(problems[0].hint, "\"env\" may be meant");
}

#[test]
fn what_would_take_a_foreign_program_is_refused_when_it_is_asked_for() {
    for (edits, want) in [
        (
            "hooks: [{hookName: createContainer, path: /opt/x/setup, args: [setup, now]}]",
            "names the hook \"setup now\"",
        ),
        ("netDevices: [{hostInterfaceName: eth7, name: eth0}]", "wants the network device eth7"),
    ] {
        let text = SMALL.replace("env: [A=1]", edits).replace("0.5.0", "1.1.0");
        let catalog = catalog(&[("/etc/cdi/a.yaml", &text, 0)]);
        let found = catalog.find(&DeviceName::parse("a.b/c=x").expect("a name")).expect("a device");
        let why = Needs::of(&[found]).expect_err(edits);
        assert!(why.message.contains(want), "{why:?}");
    }
}

#[test]
fn files_that_are_none_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("a.yaml"), SMALL).expect("written");
    fs::write(path("b.txt"), "no").expect("written");
    fs::write(path("c.json"), "{").expect("written");
    let long = fs::File::create(path("d.yaml")).expect("made");
    long.set_len(100 << 20).expect("long");
    rustix::fs::mkfifoat(rustix::fs::CWD, path("e.yaml"), rustix::fs::Mode::RUSR).expect("a pipe");
    fs::create_dir(path("f.yaml")).expect("made");
    fs::write(path("g.yaml"), [0xff]).expect("written");
    let catalog = Catalog::read(&[dir.path().into(), "/nonexistent".into()]);
    let problems: Vec<(PathBuf, String)> = catalog
        .files
        .iter()
        .map(|file| {
            let name = file.path.strip_prefix(dir.path()).map(Path::to_owned).expect("in it");
            (name, file.problems.first().map(Problem::text).unwrap_or_default())
        })
        .collect();
    let said = |name: &str| {
        problems.iter().find(|(path, _)| path == Path::new(name)).map(|(_, said)| said.as_str()).expect(name)
    };
    assert_eq!((problems.len(), said("a.yaml")), (6, ""));
    assert!(said("c.json").contains("not JSON"), "{}", said("c.json"));
    assert_eq!(said("d.yaml"), "longer than 4 MiB");
    assert_eq!((said("e.yaml"), said("f.yaml"), said("g.yaml")), ("not a file", "not a file", "not UTF-8"));
}

#[test]
fn the_linkers_cache_has_ours_in_front_and_keeps_the_rest() {
    let library = |name: &str, path: &str| Library { name: name.into(), path: path.into() };
    let base = merged(
        None,
        &[library("libc.so.6", "/lib/libc.so.6"), library("libcuda.so.1", "/compat/libcuda.so.1")],
    );
    let both = merged(Some(&base), &[library("libcuda.so.1", "/lib/libcuda.so.550")]);
    assert_eq!(ld_cache::paths_of(&both, "libcuda.so.1"), ["/lib/libcuda.so.550", "/compat/libcuda.so.1"]);
    assert_eq!(ld_cache::paths_of(&both, "libc.so.6"), ["/lib/libc.so.6"]);
    assert_eq!(merged(Some(b"no cache"), &[]), merged(None, &[]));
    // Entries that all name one long text.
    let mut bomb = merged(None, &vec![library("a", &"x".repeat(4000)); 20_000]);
    let path: [u8; 4] = bomb[56..60].try_into().expect("a place");
    bomb[48..].chunks_exact_mut(24).take(20_000).for_each(|entry| entry[8..12].copy_from_slice(&path));
    assert_eq!(merged(Some(&bomb), &[]), merged(None, &[]));
    // What this host's own linker has written.
    let host = fs::read("/etc/ld.so.cache").expect("this host's linker has a cache");
    ld_cache::check(&host);
    assert!(ld_cache::is_in_order(&host) && ld_cache::is_in_order(&both));
}

#[test]
fn this_hosts_glibc_has_what_its_libraries_need() {
    let open = |name: &str| {
        ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib"]
            .iter()
            .find_map(|dir| fs::File::open(format!("{dir}/{name}")).ok())
            .unwrap_or_else(|| panic!("no {name} where systems have it"))
    };
    let (libc, libm) = (open("libc.so.6"), open("libm.so.6"));
    let (libc, libm) = (ElfFacts::of(&libc).expect("a library"), ElfFacts::of(&libm).expect("a library"));
    assert_eq!((libc.soname.as_deref(), libm.soname.as_deref()), (Some("libc.so.6"), Some("libm.so.6")));
    assert!(
        libc.has >= Some(GlibcVersion(2, 17)) && libm.needs > Some(GlibcVersion(2, 1)),
        "{libc:?} {libm:?}"
    );
    assert!(libm.needs <= libc.has, "{libc:?} {libm:?}");
}

proptest! {
    #[test]
    fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz::cdi(&bytes);
    }

    #[test]
    fn no_change_of_a_file_breaks_it(at in 0usize..NVIDIA.len(), length in 0usize..40, with in "[ -~\n]{0,12}") {
        let end = (at + length).min(NVIDIA.len());
        if NVIDIA.is_char_boundary(at) && NVIDIA.is_char_boundary(end) {
            fuzz::cdi(format!("{}{with}{}", &NVIDIA[..at], &NVIDIA[end..]).as_bytes());
        }
    }
}
