//! From the words of the command line to what is asked of a root. Each conversion names every field of what it converts, so that a new flag
//! does not compile until it is carried on.

use std::ffi::OsString;

use skiff_plan::device_words::{AMD, NVIDIA};
use skiff_plan::inside::ProcessArgs;
use skiff_plan::{DEVICE, GPUS, RootOptions, RootSource, SHARED_MEMORY, TMPFS};
use skiff_spec::fault::{Fault, Result};

use super::root::{ContainArgs, HostArgs, RootArgs};
use super::{RunArgs, ShellArgs, StartArgs};

/// In a word for GPUs: each that there is.
const ALL: &str = "all";

impl RunArgs {
    /// What `skiff run` asks for.
    pub fn options(&self) -> Result<RootOptions> {
        let Self {
            root,
            base,
            entrypoint,
            untrusted,
            over_host,
            command,
            // Whether it is shown or an instance, and what is accepted for habit, asks nothing of the root.
            show: _,
            plan: _,
            checkpoint: _,
            checkpoint_every: _,
            detach: _,
            name: _,
            habit,
        } = self;
        let (source, argv) = match (base, &command[..]) {
            (Some(base), words) => (RootSource::of_base(base)?, words),
            (None, [image, words @ ..]) if !over_host => match image.to_str() {
                // The dashes that Apptainer's users and Charliecloud's put in front of the command.
                Some(image) => {
                    let words =
                        if words.first().is_some_and(|word| word == "--") { &words[1..] } else { words };
                    (RootSource::Image(image.into()), words)
                }
                None => return Err(Fault::new(format!("image {image:?}: not a name"))),
            },
            (None, words) => (RootSource::Host, words),
        };
        if habit.read_only && source == RootSource::Host {
            return Err(Fault::new(
                "--read-only: the host's root takes changes, and they go with the command",
            )
            .hint("a mount may be read-only: -v DIR:DIR:ro"));
        }
        let asked = RootOptions {
            source,
            argv: argv.into(),
            entrypoint: entrypoint.clone(),
            read_only: habit.read_only,
            ..root.clone().into()
        };
        Ok(if *untrusted { asked.untrusted() } else { asked })
    }
}

impl ShellArgs {
    /// What `skiff shell` asks for: the image's best shell.
    pub fn options(&self) -> RootOptions {
        let Self { root, untrusted, show: _, habit, image } = self;
        let words = ["-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh"];
        let asked = RootOptions {
            source: RootSource::Image(image.clone()),
            argv: words.map(OsString::from).into(),
            entrypoint: Some("/bin/sh".into()),
            read_only: habit.read_only,
            ..root.clone().into()
        };
        if *untrusted { asked.untrusted() } else { asked }
    }
}

impl StartArgs {
    /// What `skiff instance start` asks for; what lies below is looked up.
    pub fn options(&self) -> RootOptions {
        let Self {
            root,
            checkpoint: _,
            checkpoint_every: _,
            entrypoint,
            show: _,
            of: _,
            instance: _,
            command,
        } = self;
        let dumpable = self.checkpointable();
        let asked = RootOptions::from(root.clone());
        RootOptions {
            argv: command.clone(),
            entrypoint: entrypoint.clone(),
            inside: ProcessArgs { root: asked.inside.root || dumpable, ..asked.inside },
            dumpable,
            ..asked
        }
    }
}

impl From<RootArgs> for RootOptions {
    fn from(args: RootArgs) -> Self {
        let RootArgs { inside, writable, tmpfs, shm_size, hostname, ulimits, user, pull, host, contain } =
            args;
        let ContainArgs { contain, containall, no_home } = contain;
        let host = Self::from(host);
        let shared = shm_size.map(|size| format!("{TMPFS}{SHARED_MEMORY}:size={size}"));
        let mut mounts = picked_by_variable(host.mounts, &inside.settings());
        mounts.extend(tmpfs.into_iter().map(|dir| format!("{TMPFS}{dir}")).chain(shared));
        Self {
            inside: ProcessArgs { cleanenv: inside.cleanenv || containall, ..inside },
            user,
            hostname,
            ulimits,
            pull,
            contain: contain || containall,
            no_home,
            ..Self { writable, mounts, ..host }
        }
    }
}

/// The kinds of GPUs that `--gpus all` and the vendors' own options ask for, and the variables by which the vendors' tools pick some.
const PICKED_BY: [(&str, &str, &str); 2] =
    [(NVIDIA, "nvidia.com/gpu", "NVIDIA_VISIBLE_DEVICES"), (AMD, "amd.com/gpu", "AMD_VISIBLE_DEVICES")];

/// With the GPUs that a variable names in the place of all: `--nv -e NVIDIA_VISIBLE_DEVICES=0`, as vendors' tools understand it.
fn picked_by_variable(words: Vec<String>, settings: &[(OsString, OsString)]) -> Vec<String> {
    let last = |name: &str| settings.iter().rev().find(|(known, _)| known == name)?.1.to_str();
    let is_list = |value: &&str| !["", "all", "none", "void"].contains(value);
    let picked = |word: &str| {
        let which = word.strip_prefix(GPUS)?;
        let is_meant = |vendor: &str| which == vendor || which == ALL;
        PICKED_BY.iter().filter(|(vendor, ..)| is_meant(vendor)).find_map(|(_, kind, name)| {
            let ids = last(name).filter(is_list)?.split(',');
            Some(ids.map(|id| format!("{DEVICE}{kind}={}", id.trim())).collect::<Vec<_>>())
        })
    };
    words.into_iter().flat_map(|word| picked(&word).unwrap_or_else(|| vec![word])).collect()
}

/// What takes no more flags takes changes.
impl From<HostArgs> for RootOptions {
    fn from(args: HostArgs) -> Self {
        let mounts = args.words();
        Self { mounts, net: args.net, writable: true, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendors_variable_picks_of_all_gpus() {
        for (word, setting, want) in [
            ("gpus:all", "NVIDIA_VISIBLE_DEVICES=0,2", "device:nvidia.com/gpu=0 device:nvidia.com/gpu=2"),
            ("gpus:nvidia", "NVIDIA_VISIBLE_DEVICES=GPU-1", "device:nvidia.com/gpu=GPU-1"),
            ("gpus:amd", "AMD_VISIBLE_DEVICES=1", "device:amd.com/gpu=1"),
            ("gpus:all", "AMD_VISIBLE_DEVICES=1", "device:amd.com/gpu=1"),
            ("gpus:amd", "NVIDIA_VISIBLE_DEVICES=1", "gpus:amd"),
            ("gpus:all", "NVIDIA_VISIBLE_DEVICES=all", "gpus:all"),
            ("gpus:all", "NVIDIA_VISIBLE_DEVICES=none", "gpus:all"),
            ("gpus:all", "CUDA_VISIBLE_DEVICES=0", "gpus:all"),
            // The option itself says which GPUs.
            ("gpus:1", "NVIDIA_VISIBLE_DEVICES=1", "gpus:1"),
            ("gpus:device=0", "NVIDIA_VISIBLE_DEVICES=1", "gpus:device=0"),
            ("/a:/b", "NVIDIA_VISIBLE_DEVICES=1", "/a:/b"),
        ] {
            let (name, value) = setting.split_once('=').expect("a setting");
            let settings = [("NVIDIA_VISIBLE_DEVICES", "all"), (name, value)];
            let settings = settings.map(|(name, value)| (name.into(), value.into()));
            assert_eq!(picked_by_variable(vec![word.into()], &settings).join(" "), want, "{word} {setting}");
        }
    }
}
