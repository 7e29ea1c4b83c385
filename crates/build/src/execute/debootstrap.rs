//! The first files of a Debian, made by the host's own `mmdebstrap` or `debootstrap`.
//!
//! What is made is chosen by whoever has written the definition, and scripts of packages are run for it: so all runs as root of a container that
//! has the host's programs, read-only, and nothing else of it; what comes of it is the layer alone, which is mounted there. Packages are
//! taken only with a signature that the host's keyring has the key of: no word of the definition becomes an option.

use std::path::Path;

use skiff_spec::fault::{Fault, Result};
use skiff_spec::ids::COUNT;
use skiff_spec::plan::{Mount, Source, Upper};

use super::{Builder, PLACES, StepFault};
use crate::cache;
use crate::container::{ReadyMounts, StageFiles};
use crate::dockerfile::DebootstrapInstruction;
use crate::plan::RunAction;

/// Where the new root is for the program.
const TARGET: &str = "/target";
/// Upper directory for what the tool writes outside the new root; it is discarded.
const TOOL: &str = "tool";
/// The keys with which packages must be signed.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// As Apptainer has it: what Debian needs to install more.
const VARIANT: &str = "--variant=minbase";

/// The host's programs and libraries. On most hosts all but the first are links into it.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// What these look for in `/etc`, and all on the host know.
const SETTINGS: [&str; 14] = [
    "/etc/alternatives",
    "/etc/debian_version",
    "/etc/dpkg",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/perl",
    "/etc/protocols",
    "/etc/ssl/certs",
];
/// Empty directories, which are those of temporary files, of settings of apt's and keys that the host has for itself, and of devices in the new root.
const EMPTY: [(&str, u32); 5] = [
    ("/tmp", 0o1777),
    ("/var/tmp", 0o1777),
    ("/etc/apt/apt.conf.d", 0o755),
    ("/etc/apt/trusted.gpg.d", 0o755),
    ("/target/dev", 0o755),
];
/// Devices in the new root: scripts of packages need them, and nobody may make any in a user namespace, or mount these later.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// What each of the two is called as, and how.
enum Tool {
    Mmdebstrap,
    Debootstrap,
}

/// Runs the program. The new root is told nothing of the host.
const SCRIPT: &str = r#""$@" && rm -f /target/etc/hostname /target/etc/resolv.conf"#;

impl Tool {
    /// The one that the host has.
    fn found() -> Result<Self> {
        let is_there = |places: &[&str]| places.iter().any(|place| Path::new(place).is_file());
        if is_there(&["/usr/bin/mmdebstrap"]) {
            Ok(Self::Mmdebstrap)
        } else if is_there(&["/usr/sbin/debootstrap", "/usr/bin/debootstrap"]) {
            Ok(Self::Debootstrap)
        } else {
            Err(Fault::new("mmdebstrap and debootstrap are not installed").hint(
                "administrator: apt-get install mmdebstrap, or debootstrap; or begin with an image of a registry: Bootstrap: docker",
            ))
        }
    }

    /// The command.
    fn words(&self, packages: &DebootstrapInstruction) -> Vec<String> {
        let DebootstrapInstruction { suite, mirror, packages } = packages;
        let mut words: Vec<String> = ["/bin/sh", "-c", SCRIPT, "sh"].map(String::from).into();
        words.extend(match self {
            // The devices are there already, and nothing can be mounted; it is not to look for another keyring by the release's name.
            Self::Mmdebstrap => [
                "mmdebstrap",
                "--mode=root",
                "--format=directory",
                "--skip=check/empty,check/signed-by,chroot/mount",
            ]
            .map(String::from),
            // Without a keyring it would only warn, and elsewhere than in a container it would make devices.
            Self::Debootstrap => {
                ["/usr/bin/env", "container=lxc", "debootstrap", "--force-check-gpg"].map(String::from)
            }
        });
        words.extend([VARIANT.into(), format!("--keyring={KEYRING}")]);
        if !packages.is_empty() {
            words.push(format!("--include={}", packages.join(",")));
        }
        words.extend([suite.clone(), TARGET.into(), mirror.clone()]);
        words
    }
}

impl Builder<'_> {
    /// Makes them in `upper`.
    pub(super) fn debootstrap(
        &self,
        packages: &DebootstrapInstruction,
        proxies: &[(String, String)],
        upper: &Upper,
    ) -> std::result::Result<(), StepFault> {
        let (Upper::Scratch(path) | Upper::Directory(path)) = upper else {
            return Err(Fault::new("Bootstrap: debootstrap: the upper directory is in memory").into());
        };
        let tool = Tool::found()?;
        if !Path::new(KEYRING).is_file() {
            return Err(Fault::new(format!("{KEYRING} is missing: no signature could be checked"))
                .hint("administrator: apt-get install debian-archive-keyring")
                .into());
        }
        refuse_few_ids(&cache::ids(self.containers.context)?)?;
        let command = RunAction {
            words: tool.words(packages),
            env: VARIABLES.map(|(name, value)| (name.into(), value.into())).to_vec(),
            uncounted: proxies.to_vec(),
            workdir: "/".into(),
            user: "0".into(),
            no_network: false,
            mounts: vec![],
            is_test: false,
        };
        let ready = ReadyMounts { mounts: mounts(&path.join("upper")), ..ReadyMounts::default() };
        let nothing = StageFiles { image: None, layers: vec![] };
        self.command(&nothing, [self.new_upper(PLACES)?, self.new_upper(TOOL)?], (&command, &ready))
    }
}

const VARIABLES: [(&str, &str); 4] = [
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/"),
    ("LC_ALL", "C.UTF-8"),
    ("DEBIAN_FRONTEND", "noninteractive"),
];

fn mounts(target: &Path) -> Vec<Mount> {
    let shown = |source: Source, target: &str, read_only, optional| Mount {
        source,
        target: target.into(),
        read_only,
        optional,
        propagation: None,
    };
    let of_host = |path: &&str| shown(Source::Bind(path.into()), path, true, true);
    let empty = |(path, mode): (&str, u32)| shown(Source::Memory { mode, size: None }, path, false, false);
    let device = |name: &str| {
        shown(Source::Bind(Path::new("/dev").join(name)), &format!("{TARGET}/dev/{name}"), false, false)
    };
    let mut mounts: Vec<Mount> = PROGRAMS.iter().chain(&SETTINGS).map(of_host).collect();
    mounts.push(shown(Source::Bind(target.into()), TARGET, false, false));
    mounts.extend(EMPTY.map(empty));
    mounts.extend(DEVICES.map(device));
    mounts
}

/// Debian's packages have files of many users, up to `nobody`. `map` is as in `/proc/PID/uid_map`.
fn refuse_few_ids(map: &str) -> Result<()> {
    let fields: Vec<&str> = map.split_whitespace().collect();
    let count: u64 = fields.chunks(3).filter_map(|line| line.get(2)?.parse::<u64>().ok()).sum();
    if count >= COUNT.into() {
        return Ok(());
    }
    Err(Fault::new(format!("Bootstrap: debootstrap needs {COUNT} ids, and you have {count}")).hint(
        "administrator: install uidmap, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_checked_with_the_hosts_keys_whatever_the_definition_says() {
        let packages = DebootstrapInstruction {
            suite: "sid".into(),
            mirror: "http://h/debian".into(),
            packages: vec!["hello".into(), "g++".into()],
        };
        for (tool, want) in [
            (
                Tool::Mmdebstrap,
                "mmdebstrap --mode=root --format=directory --skip=check/empty,check/signed-by,chroot/mount",
            ),
            (Tool::Debootstrap, "/usr/bin/env container=lxc debootstrap --force-check-gpg"),
        ] {
            let rest = format!(
                "--variant=minbase --keyring={KEYRING} --include=hello,g++ sid /target http://h/debian"
            );
            assert_eq!(tool.words(&packages)[4..].join(" "), format!("{want} {rest}"));
        }
        let bare = Tool::Mmdebstrap.words(&DebootstrapInstruction { packages: vec![], ..packages });
        assert!(!bare.iter().any(|word| word.starts_with("--include")));
    }

    #[test]
    fn nothing_of_the_hosts_takes_changes() {
        for mount in mounts(Path::new("/layer")) {
            let is_own = mount.target.starts_with(TARGET) || matches!(mount.source, Source::Memory { .. });
            assert!(mount.read_only != is_own, "{mount:?}");
        }
    }

    #[test]
    fn whoever_has_few_ids_is_told() {
        refuse_few_ids("0 1000 1 1 100000 65535").expect("enough");
        for (map, count) in [("0 1000 1", "have 1"), ("0 1000 1 1 100000 999", "have 1000"), ("", "have 0")] {
            let fault = refuse_few_ids(map).expect_err(map);
            assert!(fault.message.contains(count), "{fault}");
        }
    }
}
