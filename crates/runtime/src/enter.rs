//! How a command gets into a running environment.

use std::path::Path;

use skiff_sandbox::join::{self, Failed, NetSpace};
use skiff_sandbox::session::Session;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::Identity;
use skiff_user::context::UserContext;

/// Starts a command in a running environment.
pub fn spawn(
    context: &UserContext,
    (init, pid, net): (&std::os::fd::OwnedFd, rustix::process::Pid, NetSpace),
    identity: Identity,
    command: &skiff_sandbox::command::CommandSpec,
    session: &Session,
) -> std::result::Result<skiff_sys::process::Child, Failed> {
    use std::os::fd::AsFd;
    let attr = session.spawn_attr(rustix::process::Signal::KILL.as_raw());
    match identity {
        Identity::Root => join::as_root(init.as_fd(), net, command, attr, session.mask()),
        Identity::Me => {
            join::as_me(helper_for_me(context)?, (pid, net.has_own_name()), command, attr, session.mask())
        }
    }
}

/// Where an environment on this network is: one of the site's we have joined by ourselves, unless it has power over it.
pub fn net_space(net: &Net, dumpable: bool) -> NetSpace {
    if net.is_own(dumpable) { NetSpace::Its } else { NetSpace::Ours }
}

/// The helper, without which nobody inside is themselves.
pub fn helper_for_me(context: &UserContext) -> Result<&Path> {
    context.helper.as_deref().ok_or_else(|| {
        Error::new("--me: without the helper you can only be root inside")
            .hint("have the helper installed, or leave --me away")
    })
}
