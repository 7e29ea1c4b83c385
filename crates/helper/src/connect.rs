//! `connect`, `leave` and `free`: join a network namespace that belongs to the caller to a network of the site's, keep its address for them, and
//! keep it no longer.
//!
//! In such a namespace they have all power: they may give themselves any address and send whatever frame they like. What leaves it passes a
//! namespace between, which belongs to the host, with filters that they cannot reach (`skiff_net::gate`). What they get is a descriptor of
//! that: to enter it, move a device there or ask what is in there takes capabilities over it, and those they have not.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_net::site_key::{KEY, SiteKey};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::network::{NetName, Reservation, ReservationRequest};
use skiff_sys::ns;

use crate::caller::Caller;
use crate::namespaces::{check_owner, open_ns};
use crate::{files, network};

/// Answers [`Connect`](skiff_spec::wire::Request::Connect).
pub fn make(
    caller: &Caller,
    pid: u32,
    name: &NetName,
    reserved: Option<&ReservationRequest>,
) -> Result<(Ipv4Addr, OwnedFd)> {
    let network = network::allowed(caller, name)?;
    let inside = own_space(caller, pid)?;
    let key = reserved.map_or(Ok(None), |_| key())?;
    let secret = network::secret(&network)?;
    skiff_net::enter_hosts()?;
    let reserved = reserved.map(|reserved| (reserved, key.as_ref()));
    let node = skiff_net::node()?;
    skiff_net::gate::connect(name, &network, (&node, caller.uid), inside.as_fd(), secret.as_ref(), reserved)
}

/// Answers [`Leave`](skiff_spec::wire::Request::Leave).
pub fn leave(caller: &Caller, name: &NetName, address: Ipv4Addr) -> Result<Reservation> {
    let network = network::allowed(caller, name)?;
    let key = key()?;
    skiff_net::enter_hosts()?;
    skiff_net::keep(name, &network, &skiff_net::node()?, (caller.uid, address), key.as_ref())
}

/// Answers [`Free`](skiff_spec::wire::Request::Free).
pub fn free(caller: &Caller, name: &NetName, address: Ipv4Addr) -> Result<()> {
    let network = network::allowed(caller, name)?;
    skiff_net::enter_hosts()?;
    skiff_net::free(name, &network, address, caller.uid)
}

/// The network namespace of a process, if both it and the user namespace that it belongs to are of the caller's making.
fn own_space(caller: &Caller, pid: u32) -> Result<OwnedFd> {
    let name = format!("process {pid}");
    let about = || name.clone();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).context(about)?;
    let user = open_ns(proc.as_fd(), "user").context(about)?;
    check_owner(caller, user.as_fd(), &name)?;
    let net = open_ns(proc.as_fd(), "net").context(about)?;
    if !ns::belongs_to(net.as_fd(), user.as_fd()).context(about)? {
        return Err(Error::new(format!("{name}: its network namespace belongs to another user namespace")));
    }
    Ok(net)
}

/// The site's key, if there is one.
fn key() -> Result<Option<SiteKey>> {
    let Some(content) = files::read_secret_if_exists(KEY)? else { return Ok(None) };
    SiteKey::new(&content).map(Some).map_err(|why| Error::new(format!("{KEY}: {why}")))
}
