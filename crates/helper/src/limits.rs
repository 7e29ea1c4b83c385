//! Resource limits. The caller's would let a user choose at which moment the kernel ends a helper, or what it cannot open then.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a helper has at least, and what it starts to ask the name services; nothing means no limit. Descriptors are more than a walk through the
/// host's directories ever has open. The limits that are not here are on what no helper does.
const LEAST: [(Resource, Option<u64>); 8] = [
    (Resource::Cpu, None),
    (Resource::Rttime, None),
    (Resource::Fsize, None),
    (Resource::As, None),
    (Resource::Data, None),
    (Resource::Stack, Some(8 << 20)),
    (Resource::Nofile, Some(1024)),
    (Resource::Nproc, None),
];

/// The limits of the caller's that are lifted. Whatever becomes a program of the caller's restores them before.
pub struct LiftedLimits([Option<Rlimit>; LEAST.len()]);

impl LiftedLimits {
    /// Lifts those that are lower than a helper needs.
    pub fn lift() -> Self {
        Self(LEAST.map(|(resource, least)| {
            let own = getrlimit(resource);
            let wanted = Rlimit { current: higher(own.current, least), maximum: higher(own.maximum, least) };
            if wanted == own {
                return None;
            }
            // Root in a container may have no right to more than the hard limit.
            let most = Rlimit { current: own.maximum, maximum: own.maximum };
            setrlimit(resource, wanted).or_else(|_| setrlimit(resource, most)).ok().map(|()| own)
        }))
    }

    /// Gives this process the caller's own again, which anybody may: none is higher than what there is.
    pub fn restore(&self) -> std::io::Result<()> {
        for ((resource, _), own) in LEAST.into_iter().zip(self.0) {
            if let Some(own) = own {
                setrlimit(resource, own)?;
            }
        }
        Ok(())
    }
}

/// The higher of two limits.
fn higher(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.max(other?))
}
