//! What a helper gives up as soon as it knows what is wanted of it: a mistake in the rest of its work is then worth less to who finds it.
//!
//! What starts no program may not even do so, and has an empty bounding set. What becomes another program, in an environment, makes no system
//! call that nothing in there may make; that filter goes along, so its program has one and not two. (A filter and an empty bounding set take
//! 0.1 ms, so a start's are put in place while its caller is still making the process.) What goes on as `skiff` on the host gets no
//! filter: it would stay for all that is started there.

use rustix::thread::CapabilitySet;
use skiff_spec::fault::{Context, Result};
use skiff_spec::wire::Request;
use skiff_sys::{caps, seccomp};

/// To look at namespaces and files of others' processes.
const LOOK: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_OVERRIDE);
/// To make devices; and WireGuard's binds its port when it comes up, by the rights of who brings it up: ports below 1024 want another.
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_BIND_SERVICE);
/// To become somebody else.
const BECOME: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// For a request; nothing yet for those that prepare something first.
pub fn to(request: &Request) -> Result<()> {
    let admin = CapabilitySet::SYS_ADMIN;
    match request {
        Request::Refresh => for_good(admin),
        Request::Release => for_good(admin | BECOME | CapabilitySet::DAC_OVERRIDE),
        Request::Connect { .. } | Request::Leave { .. } | Request::Free { .. } => {
            for_good(admin | NETWORK | LOOK)
        }
        Request::Network { .. } | Request::Follow { .. } => {
            caps::set_to(admin | NETWORK | LOOK | BECOME).context(|| "capabilities")
        }
        Request::Layer { .. }
        | Request::Prepare { .. }
        | Request::Base { .. }
        | Request::Image { .. }
        | Request::Order { .. }
        | Request::Unfiltered => Ok(()),
        // Becomes the writer, which has nothing; the other two are refused as a first request.
        Request::Store | Request::Join { .. } | Request::Go => Ok(()),
    }
}

/// For giving an environment, and starting a command in it.
pub fn to_environment() -> Result<()> {
    to_unfiltered()?;
    seccomp::load().context(|| "giving up what is not needed")
}

/// The same for a command that gets no filter.
pub fn to_unfiltered() -> Result<()> {
    let all = [LOOK, BECOME, CapabilitySet::SYS_CHROOT, CapabilitySet::SETPCAP];
    caps::set_to(all.into_iter().fold(CapabilitySet::SYS_ADMIN, CapabilitySet::union))
        .context(|| "giving up what is not needed")
}

/// For what starts no program.
fn for_good(keep: CapabilitySet) -> Result<()> {
    caps::drop_from_bounding(CapabilitySet::empty())
        .and_then(|()| caps::set_to(keep))
        .and_then(|()| seccomp::load_without_exec())
        .context(|| "giving up what is not needed")
}
