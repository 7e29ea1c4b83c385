//! What is in a credential: on which host its user wants a receiver, and how that is to call back. Without the first, whoever holds the port
//! of an agent on some host could pass a credential on to the agent of another, which would start a receiver where nobody wanted one.

use std::net::IpAddr;

use skiff_ipc::{Codec, Framing, Protocol, Unanswered};
use skiff_launch::hosts;
use skiff_spec::fault::{Fault as Error, Result};

/// The longest payload, in bytes.
const LONGEST: usize = 16 << 10;

/// What a credential holds: `to NODE ADDRESS`, and behind that line the call.
pub struct BoundCall {
    /// The host, as its user has named it.
    node: String,
    /// Address that the connection to the host has.
    address: IpAddr,
    /// How its receiver is to call back: a line of JSON, which only that reads.
    call: Vec<u8>,
}

impl Codec for BoundCall {
    const LONGEST: usize = LONGEST;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        let bytes = [format!("to {} {}\n", self.node, self.address).as_bytes(), &self.call].concat();
        (bytes.len() <= LONGEST).then_some(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n').filter(|_| bytes.len() <= LONGEST)?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?.strip_prefix("to ")?;
        let (node, address) = line.split_once(' ')?;
        let address = address.parse().ok()?;
        let is_name = hosts::is_name(node) || node.parse::<IpAddr>().is_ok();
        is_name.then(|| Self { node: node.into(), address, call: bytes[end + 1..].into() })
    }
}

impl Protocol for BoundCall {
    type Answer = Unanswered;
    const NAME: &'static str = "Agent of a host";
    const SIDES: [&'static str; 2] = ["`skiff migrate`", "`skiff agent`, which is root's"];
    const FRAMING: Framing = Framing::Own(
        "It is the payload of a munge credential, a line behind which all is the receiver's. The answer is text for the user.",
    );
}

/// Seals a call for one host: as its user has named it, and by the address that the connection to it has. Nothing if it is too long.
pub fn bind(node: &str, address: IpAddr, call: &[u8]) -> Option<Vec<u8>> {
    BoundCall { node: node.into(), address: address.to_canonical(), call: call.into() }.to_bytes()
}

/// The call, if it is for this host: by the address at which the agent was reached, or by the host's name where addresses are
/// translated on the way.
///
/// # Errors
/// For which host it is.
pub fn call_for(payload: &[u8], here: &str, reached_at: IpAddr) -> Result<Vec<u8>> {
    let BoundCall { node, address, call } = BoundCall::from_bytes(payload).ok_or_else(|| {
        Error::new("the request does not say for which host it is")
            .hint("have the same version installed on both hosts")
    })?;
    let by_address = is_unique_to_one_host(address) && address == reached_at.to_canonical();
    let by_name = node != "localhost" && hosts::same(&node, here);
    match by_address || by_name {
        true => Ok(call),
        false => Err(Error::new(format!("the request is for {node} ({address}), and this is {here}"))
            .hint(format!(
                "if {here} is the host you meant, call it {here}; if not, connections to {node} are diverted: tell the administrator"
            ))),
    }
}

/// Whether no two hosts have this address: each has its own loopback and link-local ones.
fn is_unique_to_one_host(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_for_one_machine() {
        let at = |address: &str| address.parse::<IpAddr>().expect("an address");
        for (node, address, here, reached_at, want) in [
            ("n2", "10.0.0.2", "n2", "10.0.0.2", true),
            ("n2", "10.0.0.2", "n2", "::ffff:10.0.0.2", true),
            ("alias", "10.0.0.2", "n2", "10.0.0.2", true),
            ("10.0.0.2", "10.0.0.2", "n2", "10.0.0.2", true),
            // Translated on the way.
            ("n2", "192.0.2.9", "n2", "10.0.0.2", true),
            ("n2.example", "192.0.2.9", "n2", "10.0.0.2", true),
            // Passed on by another host.
            ("n9", "10.0.0.9", "n2", "10.0.0.2", false),
            ("n9", "127.0.0.1", "n2", "127.0.0.1", false),
            ("localhost", "127.0.0.1", "localhost", "127.0.0.1", false),
            ("n9", "fe80::1", "n2", "fe80::1", false),
            ("n9", "0.0.0.0", "n2", "0.0.0.0", false),
            ("n2.a.example", "10.0.0.9", "n2.b.example", "10.0.0.2", false),
        ] {
            let sealed = bind(node, at(address), b"{}\n").expect("a short call");
            let found = call_for(&sealed, here, at(reached_at));
            assert_eq!(found.as_deref().ok(), want.then_some(&b"{}\n"[..]), "{node} {address} {here}");
            // Whoever is led to another host is not told to name that one.
            let diverted = format!("if not, connections to {node} are diverted");
            assert!(found.map_or_else(|e| e.hint.contains(&diverted), |_| true), "{node} {address} {here}");
        }
    }

    #[test]
    fn what_names_no_machine() {
        let at = IpAddr::from([10, 0, 0, 2]);
        for sealed in [
            "",
            "{}\n",
            "to n2\n",
            "to n2 10.0.0.2",
            "to n2 x\n{}",
            "to \x1b[2J 10.0.0.2\n",
            " n2 10.0.0.2\n",
        ] {
            let refused = call_for(sealed.as_bytes(), "n2", at).expect_err("another host");
            let says = "the request does not say for which host it is";
            assert_eq!(refused.message, says, "{sealed:?}");
        }
    }
}
