//! Single mounts of a plan.

use std::path::{Component, Path, PathBuf};

use skiff_spec::plan::{Mount, Source, inside};

/// What the host has there, if anything.
pub fn bind(source: &str, target: &str) -> Mount {
    Mount {
        source: Source::Bind(source.into()),
        target: target.into(),
        read_only: false,
        optional: true,
        propagation: None,
    }
}

/// The directory that the user is in, at the same path; nothing if that can be no mount's. A plan's may be anybody's.
pub fn working_dir(dir: &Path) -> Option<Mount> {
    let is_strange = dir.components().any(|c| c == Component::ParentDir);
    if !dir.is_absolute() || dir.parent().is_none() || is_strange || dir.starts_with(inside::DIR) {
        return None;
    }
    let source = Source::WorkingDir(dir.into());
    Some(Mount { source, target: dir.into(), read_only: false, optional: true, propagation: None })
}

/// An empty file system in memory.
pub fn memory(target: &str, mode: u32) -> Mount {
    Mount {
        source: Source::Memory { mode, size: None },
        target: target.into(),
        read_only: false,
        optional: false,
        propagation: None,
    }
}

/// A directory of the environment's own.
pub fn own(name: &str, target: &str) -> Mount {
    Mount {
        source: Source::Own(name.into()),
        target: target.into(),
        read_only: false,
        optional: false,
        propagation: None,
    }
}

/// The program of the process whose child the command of an environment is that is to be saved.
pub fn reaper() -> Mount {
    let bytes = skiff_sys::reaper::program().iter();
    Mount {
        source: Source::Program(bytes.map(|byte| format!("{byte:02x}")).collect()),
        target: inside::REAPER.into(),
        read_only: true,
        optional: false,
        propagation: None,
    }
}

/// Pseudo terminals of the environment's own: with the ids that there are inside, so that root inside can give one to the group `tty`. And CRIU
/// gives each its old number again, so no other environment, nor the host, may have that.
pub fn terminals() -> Mount {
    Mount {
        source: Source::Terminals,
        target: "/dev/pts".into(),
        read_only: false,
        optional: false,
        propagation: None,
    }
}

/// The host's pseudo terminals, at which the user sits: beside the environment's own, under names of their own.
pub fn hosts_terminals() -> Mount {
    bind("/dev/pts", inside::TERMINALS)
}

/// The devices that programs expect everywhere, and that give nobody anything of the host's.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// What the kernel shows. Contained, that is without the host's devices and terminals; and `/sys` takes no writes: through the user's own
/// control groups there, all that the user runs on the host could be killed.
pub fn system_mounts(contain: bool) -> Vec<Mount> {
    let mut mounts = vec![
        Mount {
            source: Source::Proc,
            target: "/proc".into(),
            read_only: false,
            optional: false,
            propagation: None,
        },
        Mount { read_only: contain, ..bind("/sys", "/sys") },
    ];
    if contain {
        let source = Source::Devices;
        mounts.push(Mount {
            source,
            target: "/dev".into(),
            read_only: false,
            optional: false,
            propagation: None,
        });
        mounts.extend(DEVICES.map(|device| Mount { optional: false, ..bind(device, device) }));
        mounts.push(terminals());
    } else {
        mounts.push(Mount { optional: false, ..bind("/dev", "/dev") });
    }
    mounts.push(memory(crate::SHARED_MEMORY, 0o1777));
    mounts.push(Mount {
        source: Source::Mqueue,
        target: "/dev/mqueue".into(),
        read_only: false,
        // In the host's directory there may be no place for it.
        optional: !contain,
        propagation: None,
    });
    mounts
}

/// What the host has at this path, if anything.
pub fn bind_path(path: &Path) -> Mount {
    Mount {
        source: Source::Bind(path.into()),
        target: path.into(),
        read_only: false,
        optional: true,
        propagation: None,
    }
}

/// The user's home where it always is, and nobody else's; contained, an empty directory.
pub fn home(home: &Path, no_home: bool, contain: bool) -> Vec<Mount> {
    let empty = |target: &Path, mode| Mount {
        source: Source::Memory { mode, size: None },
        target: target.into(),
        read_only: false,
        optional: false,
        propagation: None,
    };
    let homes = home.parent().filter(|parent| *parent != Path::new("/"));
    let mut mounts: Vec<Mount> = homes.map(|homes| empty(homes, 0o755)).into_iter().collect();
    match (no_home, contain) {
        (true, _) if homes.is_some() => {}
        (true, _) => mounts.push(empty(home, 0o755)),
        (false, true) => mounts.push(empty(home, 0o700)),
        (false, false) => mounts.push(bind_path(home)),
    }
    mounts
}

/// A directory for data that an image names may be no part of what makes the environment work.
pub fn is_sound(volume: &str, home: &Path) -> bool {
    let path = Path::new(volume);
    path.is_absolute()
        && path != Path::new("/")
        && !path.components().any(|c| c == Component::ParentDir)
        && !["/proc", "/sys", "/dev", "/run/skiff", "/home"].iter().any(|own| path.starts_with(own))
        && !home.parent().is_some_and(|homes| homes != Path::new("/") && path.starts_with(homes))
        && !path.starts_with(home)
}

/// With what the image has there, as everywhere else; changes go with the command.
pub fn volume(target: &str) -> Mount {
    Mount {
        source: Source::Volume,
        target: target.into(),
        read_only: false,
        optional: false,
        propagation: None,
    }
}

/// The file where the command of an instance writes its output, inside.
pub fn output(file: PathBuf) -> Mount {
    Mount {
        source: Source::Bind(file),
        target: inside::OUTPUT.into(),
        read_only: false,
        optional: false,
        propagation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contained_home_is_empty_and_none_is_none() {
        let of = |home: &str, no_home, contain| {
            let shown = |mount: &Mount| match &mount.source {
                Source::Bind(path) => format!("{}={}", mount.target.display(), path.display()),
                Source::Memory { mode, .. } => format!("{}={mode:o}", mount.target.display()),
                other => format!("{other:?}"),
            };
            super::home(Path::new(home), no_home, contain).iter().map(shown).collect::<Vec<_>>().join(" ")
        };
        for (home, no_home, contain, want) in [
            ("/home/a", false, false, "/home=755 /home/a=/home/a"),
            ("/home/a", false, true, "/home=755 /home/a=700"),
            ("/home/a", true, false, "/home=755"),
            ("/home/a", true, true, "/home=755"),
            ("/a", false, false, "/a=/a"),
            ("/a", true, false, "/a=755"),
        ] {
            assert_eq!(of(home, no_home, contain), want, "{home} {no_home} {contain}");
        }
    }
}
