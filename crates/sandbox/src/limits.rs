//! The resource limits that a command is to have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::limit::{LimitKind, ResourceLimit, is_above, shown};

fn resource(kind: LimitKind) -> Resource {
    match kind {
        LimitKind::Core => Resource::Core,
        LimitKind::Cpu => Resource::Cpu,
        LimitKind::Data => Resource::Data,
        LimitKind::Fsize => Resource::Fsize,
        LimitKind::Locks => Resource::Locks,
        LimitKind::Memlock => Resource::Memlock,
        LimitKind::Msgqueue => Resource::Msgqueue,
        LimitKind::Nice => Resource::Nice,
        LimitKind::Nofile => Resource::Nofile,
        LimitKind::Nproc => Resource::Nproc,
        LimitKind::Rss => Resource::Rss,
        LimitKind::Rtprio => Resource::Rtprio,
        LimitKind::Rttime => Resource::Rttime,
        LimitKind::Sigpending => Resource::Sigpending,
        LimitKind::Stack => Resource::Stack,
    }
}

/// Gives this process these limits.
///
/// # Errors
/// The first that the kernel refuses.
pub fn apply(limits: &[ResourceLimit]) -> std::io::Result<()> {
    for limit in limits {
        setrlimit(resource(limit.kind()), Rlimit { current: limit.soft(), maximum: limit.hard() })?;
    }
    Ok(())
}

/// Refuses a limit above the hard limit of this process, which no unprivileged process can raise.
///
/// # Errors
/// Such a limit, with both numbers.
pub fn refuse_above_own(limits: &[ResourceLimit]) -> Result<()> {
    for limit in limits {
        let most = getrlimit(resource(limit.kind())).maximum;
        if is_above(limit.hard(), most) {
            let (name, hard, most) = (limit.kind().name(), shown(limit.hard()), shown(most));
            return Err(Fault::new(format!("--ulimit {name}: {hard} is above your hard limit, {most}"))
                .hint("`ulimit -Ha` shows your hard limits; the administrator sets them (limits.conf)"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_above_the_hard_one() {
        let most = getrlimit(Resource::Nofile).maximum.expect("the kernel bounds descriptors");
        let fitting = format!("nofile=1:{most}").parse().expect("a limit");
        let above = format!("nofile=1:{}", most + 1).parse().expect("a limit");
        assert_eq!(refuse_above_own(&[fitting]), Ok(()));
        let why = refuse_above_own(&[fitting, above]).expect_err("above").to_string();
        assert!(why.contains(&most.to_string()) && why.contains(&(most + 1).to_string()), "{why}");
    }
}
