//! Takes from a process, for good, what no program inside may have.

use skiff_spec::fault::{Context, Result};

/// Takes what no program inside may have out of what an exec could bring.
pub(crate) fn drop_bounding() -> Result<()> {
    skiff_sys::caps::drop_from_bounding(skiff_sys::caps::INSIDE_ROOT)
        .context(|| "capabilities of a process inside")
}

/// Makes this process what every program inside is: without the capabilities that reach beyond, for good; and without some system
/// calls, if it gets the filter.
pub(crate) fn confine(filter: bool) -> Result<()> {
    skiff_sys::caps::set_to(skiff_sys::caps::INSIDE_ROOT).context(|| "capabilities of a process inside")?;
    rustix::thread::set_no_new_privs(true).context(|| "no_new_privs")?;
    if !filter {
        return Ok(());
    }
    skiff_sys::seccomp::load()
        .context(|| "system call filter")
        .map_err(|e| e.hint("the kernel needs CONFIG_SECCOMP_FILTER and must allow one more user namespace (user.max_user_namespaces)"))
}

/// Process 1 needs no more than any root inside has: so whoever took it over inside would gain nothing. (At the end: until
/// then it has to mount.)
pub(crate) fn confine_init() -> Result<()> {
    drop_bounding()?;
    drop_permitted()
}

/// The second half of it.
pub(crate) fn drop_permitted() -> Result<()> {
    skiff_sys::caps::set_to(skiff_sys::caps::INSIDE_ROOT).context(|| "capabilities of process 1")?;
    rustix::thread::set_no_new_privs(true).context(|| "no_new_privs")
}
