//! The bed's network: a bridge on the login node, one address for each node, and a way out if asked for.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::bed::{Bed, LOGIN};
use super::process::wait_for;

const BRIDGE: &str = "br0";

/// The login node's address.
pub const LOGIN_ADDRESS: &str = "10.77.0.1";

/// A node's address; nodes are called n1, n2, ...
pub fn node_address(node: &str) -> anyhow::Result<String> {
    let index: u8 =
        node.trim_start_matches('n').parse().with_context(|| format!("{node} is no node's name"))?;
    Ok(format!("10.77.0.{}", 10 + index))
}

/// The text of /etc/hosts.
pub fn hosts(bed: &Bed) -> anyhow::Result<String> {
    let mut text = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n{LOGIN_ADDRESS} {LOGIN}\n");
    for node in bed.args.node_names() {
        text += &format!("{} {node}\n", node_address(&node)?);
    }
    Ok(text)
}

/// Sets the login node's own interfaces up.
pub fn set_up_login() -> anyhow::Result<()> {
    ip(&format!(
        "link set lo up\nlink add {BRIDGE} type bridge\naddr add {LOGIN_ADDRESS}/24 dev {BRIDGE}\nlink set {BRIDGE} up\n"
    ))
}

/// On the login node: plugs a cable in whose other end is in the network namespace of process `pid`.
pub fn connect(node: &str, pid: u32) -> anyhow::Result<()> {
    let script = format!(
        "link add v-{node} type veth peer name e-{node} netns {pid}\nlink set v-{node} master {BRIDGE} up\n"
    );
    // The cable of a node that has just died goes when its network namespace does, a moment after its processes.
    let mut last = None;
    wait_for(&format!("the network of {node}"), Duration::from_secs(5), || {
        last = ip(&script).err();
        Ok(last.is_none().then_some(()))
    })
    .map_err(|late| last.take().unwrap_or(late))
}

/// On a node: waits for the cable and sets the interfaces up.
pub fn set_up_node(node: &str) -> anyhow::Result<()> {
    let device = format!("e-{node}");
    let cable = std::path::PathBuf::from(format!("/proc/self/net/dev_snmp6/{device}"));
    wait_for(&format!("{device} on {node}"), Duration::from_secs(10), || Ok(cable.exists().then_some(())))?;
    let address = node_address(node)?;
    ip(&format!("link set lo up\naddr add {address}/24 dev {device}\nlink set {device} up\n"))
}

/// Gives the network namespace of process `pid` a way out through a user-mode network stack: nothing of the
/// machine's own network changes, and it ends with its parent.
pub fn connect_outside(pid: u32, log: std::fs::File) -> anyhow::Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "slirp4netns", "--configure", "--mtu=65520"])
        .args([&pid.to_string(), "tap0"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start slirp4netns")
}

fn ip(script: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip")?;
    child.stdin.take().context("ip has no standard input")?.write_all(script.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::node_address;

    #[test]
    fn every_node_has_an_address_of_its_own() {
        assert_eq!(node_address("n1").ok().as_deref(), Some("10.77.0.11"));
        assert_eq!(node_address("n64").ok().as_deref(), Some("10.77.0.74"));
        assert_eq!(node_address("ctl").expect_err("no node").to_string(), "ctl is no node's name");
    }
}
