//! A network of the site's in a network namespace of the environment's own: the helper joins the two, and gives what keeps them joined.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::Pid;
use skiff_spec::network::{Claim, NetName};
use skiff_spec::wire::Request;

use crate::helper::Helper;
use crate::{Error, Result};

/// One that is there. It ends with this.
pub struct Connection {
    /// The environment's address.
    pub address: Ipv4Addr,
    _between: OwnedFd,
}

impl Connection {
    /// Joins the network namespace of process `pid`. With a claim it gets that address, and is shut out until somebody inside opens it
    /// (`skiff_net::gate`).
    pub fn make(helper: Option<&Path>, pid: Pid, name: &NetName, again: Option<&Claim>) -> Result<Self> {
        let about = || format!("network {name}");
        let helper = helper.ok_or_else(|| {
            Error::new(format!("{}: only the helper can put you on it", about()))
                .hint("have the helper installed, or use --net private")
        })?;
        let helper = Helper::spawn(helper)?;
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        helper.ask(&Request::Connect { pid, name: name.clone(), again: again.cloned() }, &[])?;
        let answer = helper.answer();
        helper.finish();
        let (address, mut fds) = answer?;
        let between =
            fds.pop().ok_or_else(|| Error::new(format!("{}: an answer without its descriptor", about())))?;
        Ok(Self { address: address.into(), _between: between })
    }
}
