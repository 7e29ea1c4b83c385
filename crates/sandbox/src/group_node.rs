//! A machine of a group, as it is asked for.

use rustix::process::Pid;
use skiff_spec::fault::Result;

use crate::helper::Layers;

/// What a machine has besides its root.
pub struct GroupNode<'a> {
    /// Host name of the machine.
    pub name: &'a str,
    /// How its network namespace gets a device, if it has one of its own.
    pub network: Option<NetworkSetup<'a>>,
}

/// How a machine gets into a network.
pub struct NetworkSetup<'a> {
    /// Gives its network namespace a device: called by the maker with a process in it.
    pub wire: &'a dyn Fn(Pid) -> Result<()>,
    /// Sets that up: called in the machine, with all rights over it.
    pub settle: &'a dyn Fn() -> Result<()>,
}

/// What a machine in the making has from its group.
pub(crate) struct GroupInputs<'a> {
    pub layers: Option<Layers>,
    pub ids: u32,
    pub machine: &'a GroupNode<'a>,
}
