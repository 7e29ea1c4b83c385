//! A node of a group, as it is asked for.

use rustix::process::Pid;
use skiff_spec::fault::Result;

use crate::helper::Layers;

/// What a node has besides its root.
pub struct GroupNode<'a> {
    /// Host name of the node.
    pub name: &'a str,
    /// How its network namespace gets a device, if it has one of its own.
    pub network: Option<NetworkSetup<'a>>,
}

/// How a node gets into a network.
pub struct NetworkSetup<'a> {
    /// Gives its network namespace a device: called by the maker with a process in it.
    pub wire: &'a dyn Fn(Pid) -> Result<()>,
    /// Sets that up: called in the node, with all rights over it.
    pub settle: &'a dyn Fn() -> Result<()>,
}

/// What a node in the making has from its group.
pub(crate) struct GroupInputs<'a> {
    pub layers: Option<Layers>,
    pub ids: u32,
    pub node: &'a GroupNode<'a>,
}
