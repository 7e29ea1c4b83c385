//! Takes from a process, for good, what no program inside may have.

use rustix::process::Pid;
use rustix::thread::CapabilitySet;
use skiff_spec::fault::{Context, Result};
use skiff_spec::plan::Plan;
use skiff_sys::caps::{INSIDE_ROOT, INSIDE_ROOT_THAT_MOUNTS};

/// What programs inside have at most: decided when process 1 is made, and read from it ever after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confinement {
    capabilities: CapabilitySet,
}

impl Confinement {
    /// Of what changes files inside, and no more.
    pub const STRICT: Self = Self { capabilities: INSIDE_ROOT };

    /// Of an environment. Contained, the mounts keep something from root inside (`/sys` takes no writes); untrusted programs are kept from all;
    /// and CRIU restores only programs that no exec can give anything.
    pub fn of(plan: &Plan) -> Self {
        let is_strict = plan.contain || plan.untrusted || plan.dumpable;
        Self { capabilities: if is_strict { INSIDE_ROOT } else { INSIDE_ROOT_THAT_MOUNTS } }
    }

    /// Of what runs: its process 1 has what any root there may have.
    pub fn of_running(init: Pid) -> Result<Self> {
        let sets = rustix::thread::capabilities(Some(init)).context(|| "process 1 of the environment")?;
        Ok(Self { capabilities: sets.permitted & INSIDE_ROOT_THAT_MOUNTS })
    }

    /// Of this process, which has been confined before.
    pub fn of_this_process() -> Self {
        let has = |capability| rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false);
        Self {
            capabilities: if has(CapabilitySet::SYS_ADMIN) { INSIDE_ROOT_THAT_MOUNTS } else { INSIDE_ROOT },
        }
    }

    /// Takes what no program inside may have out of what an exec could bring.
    pub fn drop_bounding(self) -> Result<()> {
        skiff_sys::caps::drop_from_bounding(self.capabilities).context(|| "capabilities of a process inside")
    }

    /// Makes this process what every program inside is: without the capabilities that reach beyond, for good; and without some system
    /// calls, if it gets the filter. Where root inside may mount, setuid programs inside make root inside of others there, and of nobody
    /// anything else: the host's root has no id inside.
    pub fn confine(self, filter: bool) -> Result<()> {
        skiff_sys::caps::set_to(self.capabilities).context(|| "capabilities of a process inside")?;
        if self.capabilities == INSIDE_ROOT {
            no_new_privs()?;
        }
        if !filter {
            return Ok(());
        }
        skiff_sys::seccomp::load()
            .context(|| "system call filter")
            .map_err(|e| e.hint("the kernel needs CONFIG_SECCOMP_FILTER and must allow one more user namespace (user.max_user_namespaces)"))
    }

    /// Process 1 needs no more than any root inside has: so whoever took it over inside would gain nothing. (At the end: until
    /// then it has to mount.)
    pub fn confine_init(self) -> Result<()> {
        self.drop_bounding()?;
        self.drop_permitted()
    }

    /// The second half of it.
    pub fn drop_permitted(self) -> Result<()> {
        skiff_sys::caps::set_to(self.capabilities).context(|| "capabilities of process 1")?;
        no_new_privs()
    }
}

fn no_new_privs() -> Result<()> {
    rustix::thread::set_no_new_privs(true).context(|| "no_new_privs")
}
