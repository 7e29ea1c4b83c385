//! A network in namespaces of the user's own: a bridge in one, which others are joined to. It takes no rights on the host, and nothing leads
//! out of it.

use std::io;
use std::net::Ipv4Addr;

use rustix::process::Pid;
use skiff_spec::network::hardware_address;

use crate::device::{self, InterfaceConfig, Space};
use crate::host_link::host_hardware;
use crate::netlink::Netlink;

const BRIDGE: &str = "switch";

/// The bridge, in this process's network namespace.
pub struct Switch {
    netlink: Netlink,
    bridge: u32,
}

impl Switch {
    /// Makes it.
    ///
    /// # Errors
    /// `EPERM` if the namespace is not the user's, `EOPNOTSUPP` on a kernel without bridges.
    pub fn make() -> io::Result<Self> {
        let mut netlink = Netlink::open()?;
        device::bridge(&mut netlink, BRIDGE, None)?;
        let bridge = index(&mut netlink, BRIDGE)?;
        device::up(&mut netlink, bridge)?;
        Ok(Self { netlink, bridge })
    }

    /// Joins the network namespace of a process, where the device is to have this address. Its end here is called `name`, and is made
    /// anew if there is one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn join(&mut self, name: &str, member: Pid, address: Ipv4Addr) -> io::Result<()> {
        device::remove(&mut self.netlink, name)?;
        let hardware = hardware_address(address);
        let device = InterfaceConfig { space: Space::Of(member), hardware, mtu: None };
        device.veth(&mut self.netlink, name, host_hardware(address))?;
        let index = index(&mut self.netlink, name)?;
        device::attach(&mut self.netlink, index, self.bridge)?;
        device::up(&mut self.netlink, index)
    }
}

/// In a member: sets its devices up.
///
/// # Errors
/// What the kernel says.
pub fn settle(address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    for name in ["lo", device::INSIDE] {
        let index = index(&mut netlink, name)?;
        if name == device::INSIDE {
            device::set_address(&mut netlink, index, address, prefix, None)?;
        }
        device::up(&mut netlink, index)?;
    }
    Ok(())
}

fn index(netlink: &mut Netlink, name: &str) -> io::Result<u32> {
    let found = device::find(netlink, name, None)?;
    found.map(|device| device.index).ok_or_else(|| io::ErrorKind::NotFound.into())
}
