//! From wishes and configuration to a plan: which mounts an environment over the host has. Touches nothing; looks only at
//! what the host has where.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use skiff_sandbox::{Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, Base, Mount, Plan, Route, Source, Upper, inside};

use crate::cli::Contain;
use crate::context::{Context, is_inside};

/// What the user asked for, beyond the configuration.
#[derive(Default)]
pub struct Wishes {
    /// `SOURCE[:TARGET[:ro]]`, the later the stronger.
    pub mounts: Vec<String>,
    /// Read-only directories between the base and the upper, topmost first.
    pub layers: Vec<PathBuf>,
    /// Further mounts that the job manager needs.
    pub services: Vec<PathBuf>,
    /// Whether the user's home is left out; what an image has in its place stays.
    pub no_home: bool,
    /// Whether all of the host is left out that programs can do without: see [`Plan::contain`].
    pub contain: bool,
    /// Whether nobody trusts the programs: see [`Plan::untrusted`].
    pub untrusted: bool,
}

impl Wishes {
    /// To leave this out.
    pub fn of(contain: &Contain) -> Self {
        Self { no_home: contain.no_home, contain: contain.is_wanted(), ..Self::default() }
    }
}

/// Parts of a system that may lie on a disk of their own; a clone of `/` does not show them.
const PARTS: [&str; 5] = ["/usr", "/var", "/opt", "/srv", "/usr/local"];

/// The plan of an environment over the host's root.
pub fn host(context: &Context, name: &str, upper: Upper, wishes: Wishes) -> Result<Plan> {
    refuse_inside(context)?;
    let mut mounts = system_mounts(wishes.contain);
    mounts.extend(separate_parts());
    mounts.push(memory("/run", 0o755));
    mounts.extend(services(context, &wishes));
    mounts.extend([own("tmp", "/tmp"), own("vartmp", "/var/tmp")]);
    mounts.extend(home(&context.home, &wishes));
    mounts.extend(asked_for(context, &wishes)?);
    let shims = shims(context, &wishes);
    Ok(Plan {
        name: name.into(),
        route: context.route(),
        base: Base::Host,
        layers: wishes.layers,
        upper,
        read_only: false,
        dumpable: false,
        contain: wishes.contain,
        untrusted: wishes.untrusted,
        unpacked: None,
        accounts: Accounts::default(),
        mounts,
        net: Net::Host,
        shims,
    })
}

/// The commands that are handed to the host.
pub fn shims(context: &Context, wishes: &Wishes) -> Vec<PathBuf> {
    if wishes.contain { vec![] } else { context.config.slurm.shims() }
}

/// The mounts of the configuration and those that the user wants, the later the stronger.
pub fn asked_for(context: &Context, wishes: &Wishes) -> Result<Vec<Mount>> {
    let mut mounts = vec![];
    for text in context.config.mounts.iter().filter(|_| !wishes.contain) {
        mounts.push(Mount { optional: true, ..parse_mount(text)? });
    }
    for text in &wishes.mounts {
        mounts.push(parse_mount(text)?);
    }
    Ok(mounts)
}

/// Lets what runs in it be dumped by its user. The helper's view of the host is an overlay, and of a file in an overlay on an overlay
/// `/proc/PID/maps` tells another number than `stat` does, which CRIU takes for another file: there fuse-overlayfs has to do. A pseudo
/// terminal gets its old number again, so no other environment, nor the host, may have that.
pub fn make_dumpable(plan: &mut Plan) {
    plan.dumpable = true;
    if !plan.mounts.contains(&terminals()) {
        plan.mounts.push(terminals());
    }
    if plan.base == Base::Host {
        plan.route = Route::Rootless;
    }
}

/// Refuses inside an environment: the helper has no power there.
pub fn refuse_inside(context: &Context) -> Result<()> {
    if context.route() == Route::Helper && is_inside() {
        return Err(Error::new("this is the inside of an environment, from where no other can be used")
            .hint("leave it first, or ask for it from another login"));
    }
    Ok(())
}

pub fn bind(source: &str, target: &str) -> Mount {
    Mount { source: Source::Bind(source.into()), target: target.into(), read_only: false, optional: true }
}

pub fn memory(target: &str, mode: u32) -> Mount {
    Mount { source: Source::Memory { mode }, target: target.into(), read_only: false, optional: false }
}

pub fn own(name: &str, target: &str) -> Mount {
    Mount { source: Source::Own(name.into()), target: target.into(), read_only: false, optional: false }
}

fn terminals() -> Mount {
    Mount { source: Source::Terminals, target: "/dev/pts".into(), read_only: false, optional: false }
}

/// The devices that programs expect everywhere, and that give nobody anything of the host's.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// What the kernel shows. Contained, that is without the host's devices and terminals; and `/sys` takes no writes: through the user's own
/// control groups there, all that the user runs on the host could be killed.
pub fn system_mounts(contain: bool) -> Vec<Mount> {
    let mut mounts = vec![
        Mount { source: Source::Proc, target: "/proc".into(), read_only: false, optional: false },
        Mount { read_only: contain, ..bind("/sys", "/sys") },
    ];
    if contain {
        let source = Source::Devices;
        mounts.push(Mount { source, target: "/dev".into(), read_only: false, optional: false });
        mounts.extend(DEVICES.map(|device| Mount { optional: false, ..bind(device, device) }));
        mounts.push(terminals());
    } else {
        mounts.push(Mount { optional: false, ..bind("/dev", "/dev") });
    }
    mounts.push(memory("/dev/shm", 0o1777));
    mounts.push(Mount {
        source: Source::Mqueue,
        target: "/dev/mqueue".into(),
        read_only: false,
        // In the host's directory there may be no place for it.
        optional: !contain,
    });
    mounts
}

/// Shown as they are, read-only: only what lies on the same file system as `/` can be written to.
fn separate_parts() -> Vec<Mount> {
    let device = |path: &str| Path::new(path).symlink_metadata().map(|m| m.dev()).ok();
    let root = device("/");
    let apart = |part: &str| {
        let parent = Path::new(part).parent().and_then(Path::to_str).unwrap_or("/");
        device(part).is_some_and(|d| Some(d) != root && Some(d) != device(parent))
    };
    PARTS
        .into_iter()
        .filter(|part| apart(part))
        .map(|part| Mount { read_only: true, ..bind(part, part) })
        .collect()
}

pub fn services(context: &Context, wishes: &Wishes) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = vec![];
    if !wishes.contain {
        mounts.extend(context.config.services.iter().map(|s| bind(s, s)));
        mounts.extend(wishes.services.iter().map(|s| bind_path(s)));
        mounts.push(bind_path(&PathBuf::from(format!("/run/user/{}", context.uid))));
    }
    // Its target where it is a link into /run, which is new inside.
    if let Ok(real) = std::fs::canonicalize("/etc/resolv.conf")
        && real.starts_with("/run")
    {
        mounts.push(bind_path(&real));
    }
    mounts
}

fn bind_path(path: &Path) -> Mount {
    Mount { source: Source::Bind(path.into()), target: path.into(), read_only: false, optional: true }
}

/// The user's home where it always is, and nobody else's; contained, an empty directory.
pub fn home(home: &Path, wishes: &Wishes) -> Vec<Mount> {
    let empty = |target: &Path, mode| Mount {
        source: Source::Memory { mode },
        target: target.into(),
        read_only: false,
        optional: false,
    };
    let homes = home.parent().filter(|parent| *parent != Path::new("/"));
    let mut mounts: Vec<Mount> = homes.map(|homes| empty(homes, 0o755)).into_iter().collect();
    match (wishes.no_home, wishes.contain) {
        (true, _) if homes.is_some() => {}
        (true, _) => mounts.push(empty(home, 0o755)),
        (false, true) => mounts.push(empty(home, 0o700)),
        (false, false) => mounts.push(bind_path(home)),
    }
    mounts
}

/// `SOURCE[:TARGET[:ro|rw]]`.
pub fn parse_mount(text: &str) -> Result<Mount> {
    let bad = |why: &str| {
        Error::new(format!("mount {text:?}: {why}"))
            .hint("it is written SOURCE[:TARGET[:ro]], both absolute paths")
    };
    let mut parts = text.split(':');
    let source = parts.next().unwrap_or_default();
    let target = parts.next().filter(|t| !t.is_empty()).unwrap_or(source);
    let read_only = match parts.next() {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(_) => return Err(bad("only ro and rw can follow the target")),
    };
    if parts.next().is_some() {
        return Err(bad("too many colons"));
    }
    for path in [source, target] {
        if !path.starts_with('/') {
            return Err(bad("a path is not absolute"));
        }
        if Path::new(path).components().any(|c| c == std::path::Component::ParentDir) {
            return Err(bad("a path holds `..`"));
        }
    }
    if target.trim_end_matches('/').is_empty() || Path::new(target).starts_with(inside::DIR) {
        return Err(bad("that target is the environment's own"));
    }
    Ok(Mount { source: Source::Bind(source.into()), target: target.into(), read_only, optional: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contained_home_is_empty_and_none_is_none() {
        let of = |home: &str, no_home, contain| {
            let wishes = Wishes { no_home, contain, ..Wishes::default() };
            let shown = |mount: &Mount| match &mount.source {
                Source::Bind(path) => format!("{}={}", mount.target.display(), path.display()),
                Source::Memory { mode } => format!("{}={mode:o}", mount.target.display()),
                other => format!("{other:?}"),
            };
            super::home(Path::new(home), &wishes).iter().map(shown).collect::<Vec<_>>().join(" ")
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

    #[test]
    fn mounts_as_written() {
        let m = |source: &str, target: &str, read_only| Mount {
            source: Source::Bind(source.into()),
            target: target.into(),
            read_only,
            optional: false,
        };
        for (text, want) in [
            ("/a", m("/a", "/a", false)),
            ("/a:/b", m("/a", "/b", false)),
            ("/a:/b:ro", m("/a", "/b", true)),
            ("/a::ro", m("/a", "/a", true)),
        ] {
            assert_eq!(parse_mount(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn mounts_refused() {
        for text in
            ["", "a", "/a:b", "/a:/b:xx", "/a:/b:ro:x", "/a/../b", "/a:/..", "/a:/", "/a:/run/skiff/host"]
        {
            assert!(parse_mount(text).is_err(), "{text}");
        }
    }
}
