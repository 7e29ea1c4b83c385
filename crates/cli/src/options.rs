//! From the words of the command line to what is asked of a root. Each conversion names every field of what it converts, so that a new flag
//! does not compile until it is carried on.

use std::ffi::OsString;

use skiff_plan::inside::ProcessArgs;
use skiff_plan::{RootOptions, RootSource, SHARED_MEMORY, TMPFS};
use skiff_spec::fault::{Fault, Result};

use super::root::{ContainArgs, HostArgs, RootArgs};
use super::{RunArgs, ShellArgs, StartArgs};

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
        let mut mounts = host.mounts;
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

/// What takes no more flags takes changes.
impl From<HostArgs> for RootOptions {
    fn from(args: HostArgs) -> Self {
        let mounts = args.words();
        Self { mounts, net: args.net, writable: true, ..Self::default() }
    }
}
