//! What leads out of a network namespace of an environment's own, which process 1 waits for.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::Pid;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::network::{Net, NetName, ReservationRequest};
use skiff_spec::plan::Plan;
use skiff_spec::wire::Request;

use crate::helper::Helper;
use crate::options::StartOptions;
use crate::uplink::Uplink;

/// One that is there. It ends with this.
pub(crate) enum WayOut {
    /// The user's own connections.
    User { _stack: Uplink },
    /// A network of the site's, where the environment has this address: the helper has joined the two, and given what keeps them joined.
    Site { address: Ipv4Addr, _between: OwnedFd },
}

impl WayOut {
    /// Whether an environment with this plan is to have one.
    pub fn is_wanted(plan: &Plan) -> bool {
        plan.net != Net::None && plan.net.is_own(plan.dumpable)
    }

    /// Makes the way out of the environment whose process 1 is `pid`. To an address that it is to have again it is shut, until somebody inside opens it
    /// (`skiff_net::gate`).
    pub fn make(pid: Pid, plan: &Plan, options: &StartOptions<'_>) -> Result<Option<Self>> {
        match &plan.net {
            Net::Private => Ok(Some(Self::User { _stack: Uplink::start(pid)? })),
            Net::Named(name) if Self::is_wanted(plan) => {
                connect(options.helper, pid, name, options.reserved).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn connect(
    helper: Option<&Path>,
    pid: Pid,
    name: &NetName,
    reserved: Option<&ReservationRequest>,
) -> Result<WayOut> {
    let helper = helper.ok_or_else(|| {
        Fault::new(format!("network {name}: only the helper can put you on it"))
            .hint("have the helper installed, or use --net private")
    })?;
    let helper = Helper::spawn(helper)?;
    let pid = pid.as_raw_nonzero().get().unsigned_abs();
    helper.ask(&Request::Connect { pid, name: name.clone(), reserved: reserved.cloned() }, &[])?;
    let answer = helper.connected();
    helper.finish();
    let (address, between) = answer?;
    Ok(WayOut::Site { address, _between: between })
}
