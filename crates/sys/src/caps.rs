//! Capabilities: what root inside an environment keeps, and how the rest goes away for good.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// What root inside an environment may still do: enough for package managers, daemons and `su`. Not in it, because they
/// reach beyond the environment or into the kernel: `SYS_ADMIN`, `NET_ADMIN`, `SYS_MODULE`, `SYS_PTRACE`, `MKNOD` ...
pub const INSIDE_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE);

/// The same for root in an environment that may mount, and open raw sockets. It is root of the user namespace that the mounts belong to, and
/// nothing of them is the host's: its user can do the same from outside. Raw sockets it gets only in a network of its own, as the kernel asks
/// the user namespace that the network belongs to; elsewhere the capability lets programs be executed that have it as a file, such as ping.
pub const INSIDE_ROOT_THAT_MOUNTS: CapabilitySet =
    INSIDE_ROOT.union(CapabilitySet::SYS_ADMIN).union(CapabilitySet::NET_RAW);

/// Takes all but `keep` out of the bounding set; what the thread has, it keeps.
///
/// # Errors
/// `EPERM` without `SETPCAP`.
pub fn drop_from_bounding(keep: CapabilitySet) -> io::Result<()> {
    for capability in 0..64u32 {
        if !keep.contains(CapabilitySet::from_bits_retain(1u64 << capability)) {
            // SAFETY: plain integers. (rustix takes only capabilities it has a name for; newer kernels have more.)
            let r = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
            if r != 0 {
                let e = io::Error::last_os_error();
                // The kernel ends its list with EINVAL.
                return if e.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(e) };
            }
        }
    }
    Ok(())
}

/// Makes `keep` all that this thread has, of what it had.
///
/// # Errors
/// `EPERM` if it did not have them.
pub fn set_to(keep: CapabilitySet) -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Whether this thread has no capability left in any set but the bounding one.
///
/// # Errors
/// What `capget` says.
pub fn none_left() -> io::Result<bool> {
    let sets = rustix::thread::capabilities(None)?;
    Ok(sets.effective.is_empty() && sets.permitted.is_empty() && sets.inheritable.is_empty())
}

/// Keeps only `keep` effective (permitted stays), for the duration of one operation.
///
/// # Errors
/// What `capset` says.
pub fn effective_only(keep: CapabilitySet) -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = keep;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Makes all that is permitted effective again.
///
/// # Errors
/// What `capset` says.
pub fn effective_all() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
