//! From wishes and configuration to a plan: which mounts an environment over the host has. Touches nothing; looks only at
//! what the host has where.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use skiff_sandbox::{Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, Base, Mount, Plan, Route, Source, Upper, inside};

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
    /// Whether an image's own idea of the user's home is to stay.
    pub no_home: bool,
}

/// Parts of a system that may lie on a disk of their own; a clone of `/` does not show them.
const PARTS: [&str; 5] = ["/usr", "/var", "/opt", "/srv", "/usr/local"];

/// The plan of an environment over the host's root.
pub fn host(context: &Context, name: &str, upper: Upper, wishes: Wishes) -> Result<Plan> {
    refuse_inside(context)?;
    let mut mounts = system_mounts();
    mounts.extend(separate_parts());
    mounts.push(memory("/run", 0o755));
    mounts.extend(services(context, &wishes));
    mounts.extend([own("tmp", "/tmp"), own("vartmp", "/var/tmp")]);
    mounts.extend(home(&context.home));
    for text in context.config.mounts.iter() {
        mounts.push(Mount { optional: true, ..parse_mount(text)? });
    }
    for text in &wishes.mounts {
        mounts.push(parse_mount(text)?);
    }
    Ok(Plan {
        name: name.into(),
        route: context.route(),
        base: Base::Host,
        layers: wishes.layers,
        upper,
        read_only: false,
        dumpable: false,
        unpacked: None,
        accounts: Accounts::default(),
        mounts,
        net: Net::Host,
        shims: context.config.slurm.shims(),
    })
}

/// Lets what runs in it be dumped by its user. The helper's view of the host is an overlay, and of a file in an overlay on an overlay
/// `/proc/PID/maps` tells another number than `stat` does, which CRIU takes for another file: there fuse-overlayfs has to do. A pseudo
/// terminal gets its old number again, so no other environment, nor the host, may have that.
pub fn make_dumpable(plan: &mut Plan) {
    plan.dumpable = true;
    plan.mounts.push(Mount {
        source: Source::Terminals,
        target: "/dev/pts".into(),
        read_only: false,
        optional: false,
    });
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

pub fn system_mounts() -> Vec<Mount> {
    vec![
        Mount { source: Source::Proc, target: "/proc".into(), read_only: false, optional: false },
        bind("/sys", "/sys"),
        Mount { optional: false, ..bind("/dev", "/dev") },
        memory("/dev/shm", 0o1777),
        Mount { source: Source::Mqueue, target: "/dev/mqueue".into(), read_only: false, optional: true },
    ]
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
    let mut mounts: Vec<Mount> = context.config.services.iter().map(|s| bind(s, s)).collect();
    mounts.extend(wishes.services.iter().map(|s| bind_path(s)));
    // Its target where it is a link into /run, which is new inside.
    if let Ok(real) = std::fs::canonicalize("/etc/resolv.conf")
        && real.starts_with("/run")
    {
        mounts.push(bind_path(&real));
    }
    mounts.push(bind_path(&PathBuf::from(format!("/run/user/{}", context.uid))));
    mounts
}

fn bind_path(path: &Path) -> Mount {
    Mount { source: Source::Bind(path.into()), target: path.into(), read_only: false, optional: true }
}

/// The user's home where it always is, and nobody else's.
pub fn home(home: &Path) -> Vec<Mount> {
    let mut mounts = vec![];
    if let Some(parent) = home.parent()
        && parent != Path::new("/")
    {
        mounts.push(Mount {
            source: Source::Memory { mode: 0o755 },
            target: parent.into(),
            read_only: false,
            optional: false,
        });
    }
    mounts.push(bind_path(home));
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
