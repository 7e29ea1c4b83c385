//! Back from a plan to what was asked for. A plan that comes from a file is carried out only if `skiff run` would make the very same here:
//! so it gives its user nothing that the command line would not.

use std::path::{Path, PathBuf};

use skiff_spec::fault::{Fault, Result};
use skiff_spec::plan::{Base, Mount, Plan, Propagation, Source, Upper};

use crate::mount_words::TMPFS;
use crate::{Facts, PlanOptions, RootOptions, build, parse_mount};

/// What a plan of `skiff run` is called.
pub const RUN: &str = "run";

/// What is to be done about a plan that is not made here.
pub const AGAIN: &str = "print the plan anew: skiff run --dry-run --json ...";

/// The directory that the user was in when the plan was made, as far as it shows that. By words it is said by going there.
pub fn working_dir(plan: &Plan) -> Option<PathBuf> {
    plan.mounts.iter().find_map(|mount| match &mount.source {
        Source::WorkingDir(path) => Some(path.clone()),
        _ => None,
    })
}

/// The options of `skiff run` that give this plan, with changes in `upper`.
///
/// # Errors
/// There are none.
pub fn asked_for(plan: &Plan, facts: &Facts<'_>, upper: &Upper) -> Result<RootOptions> {
    if plan.untrusted && plan.base == Base::Host {
        return Err(unlike("untrusted"));
    }
    // Without a home there may be one mount more, or less.
    with_home(plan, facts, upper, false).or_else(|why| with_home(plan, facts, upper, true).map_err(|_| why))
}

fn with_home(plan: &Plan, facts: &Facts<'_>, upper: &Upper, no_home: bool) -> Result<RootOptions> {
    let asked = RootOptions {
        mounts: plan.devices.asked.clone(),
        net: Some(plan.net.clone()),
        hostname: plan.hostname.clone(),
        no_home,
        // As the words have it.
        contain: plan.contain || plan.untrusted,
        untrusted: plan.untrusted,
        writable: !plan.read_only,
        ..RootOptions::default()
    };
    let made =
        |asked: &RootOptions| build(PlanOptions::new(RUN, upper.clone(), asked.clone()), facts.clone());
    let mut usual = made(&asked)?.mounts;
    let (mut mounts, mut strange) = (asked.mounts.clone(), None);
    for mount in &plan.mounts {
        match (usual.iter().position(|one| one == mount), words_for(mount)) {
            (Some(at), _) => drop(usual.swap_remove(at)),
            (None, Some(words)) => mounts.push(words),
            // It may be there because of the others.
            (None, None) => strange = strange.or(Some(mount)),
        }
    }
    let asked = RootOptions { mounts, ..asked };
    match (difference(plan, &made(&asked)?), strange) {
        (None, _) => Ok(asked),
        (Some("mounts"), Some(mount)) => {
            let target = mount.target.display();
            Err(Fault::new(format!("plan: mount {target}: not one that `skiff run` makes here")).hint(AGAIN))
        }
        (Some(part), _) => Err(unlike(part)),
    }
}

/// How users write a mount, if they can.
fn words_for(mount: &Mount) -> Option<String> {
    let target = mount.target.to_str()?;
    let text = match &mount.source {
        Source::Bind(source) => {
            let flags = [mount.read_only.then_some("ro"), mount.propagation.map(propagation_word)];
            let flags = flags.into_iter().flatten().collect::<Vec<_>>().join(",");
            let colon = if flags.is_empty() { "" } else { ":" };
            format!("{}:{target}{colon}{flags}", source.to_str()?)
        }
        Source::Memory { mode, size } => {
            let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
            let read_only = if mount.read_only { ",ro" } else { "" };
            format!("{TMPFS}{target}:mode={mode:o}{size}{read_only}")
        }
        // The file that it was read from is in no plan, and of no concern: what the user has imported is looked up by what it is.
        Source::Image(_) => return Some(crate::data_words::word("/data", target)),
        _ => return None,
    };
    parse_mount(&text).ok().filter(|read| read == mount).map(|_| text)
}

fn propagation_word(propagation: Propagation) -> &'static str {
    match propagation {
        Propagation::Private => "rprivate",
        Propagation::Slave => "rslave",
        Propagation::Unbindable => "unbindable",
    }
}

/// The first part in which two plans differ.
fn difference(one: &Plan, other: &Plan) -> Option<&'static str> {
    #[rustfmt::skip]
    let Plan {
        name, route, base, layers, stored_layers, upper, read_only, dumpable, contain, untrusted, unpacked, accounts, mounts, devices, net,
        hostname, shims, ssh_user,
    } = one;
    let parts = [
        ("name", *name == other.name),
        ("route", *route == other.route),
        ("base", *base == other.base),
        ("layers", *layers == other.layers),
        ("stored_layers", *stored_layers == other.stored_layers),
        ("upper", *upper == other.upper),
        ("read_only", *read_only == other.read_only),
        ("dumpable", *dumpable == other.dumpable),
        ("contain", *contain == other.contain),
        ("untrusted", *untrusted == other.untrusted),
        ("unpacked", *unpacked == other.unpacked),
        ("accounts", *accounts == other.accounts),
        ("mounts", *mounts == other.mounts),
        ("devices", *devices == other.devices),
        ("net", *net == other.net),
        ("hostname", *hostname == other.hostname),
        ("shims", *shims == other.shims),
        ("ssh_user", *ssh_user == other.ssh_user),
    ];
    parts.into_iter().find(|(_, is_same)| !is_same).map(|(part, _)| part)
}

fn unlike(part: &str) -> Fault {
    Fault::new(format!("plan: {part:?} is not what `skiff run` makes of it here"))
        .hint(format!("the site's configuration, your own, or your groups may have changed since: {AGAIN}"))
}

/// Refuses a plan with a mount of something that is gone.
pub fn refuse_missing(plan: &Plan) -> Result<()> {
    let is_gone =
        |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    for mount in plan.mounts.iter().filter(|mount| !mount.optional) {
        if let Source::Bind(path) = &mount.source
            && is_gone(path)
        {
            let path = path.display();
            return Err(Fault::new(format!("plan: mount {path}: there is no such file or directory"))
                .hint(format!("put it back, or {AGAIN}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
