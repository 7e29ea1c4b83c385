//! `skiff net`: the networks there are, who is on them, and whether they would work here.

use std::path::Path;

use serde::Serialize;
use skiff_cli::NetCommand;
use skiff_net::{lease, node};
use skiff_output as output;
use skiff_runtime::network::{self, all, read};
use skiff_site::account;
use skiff_spec::fault::Result;
use skiff_spec::network::{DIR, Lease, NetName, Network};
use skiff_user::context::UserContext;

/// Does what was asked; the exit code.
pub fn run(command: &NetCommand) -> Result<i32> {
    match command {
        NetCommand::List(output) => list(output.json).map(|()| 0),
        NetCommand::Show { name, output } => show(name, output.json).map(|()| 0),
        NetCommand::Release { name, address } => {
            network::free(&UserContext::load()?, name, *address).map(|()| 0)
        }
        NetCommand::Check { name, output } => check(name.as_ref(), output.json),
    }
}

#[derive(Serialize)]
struct Listed {
    name: NetName,
    /// Nothing if the description makes no sense.
    #[serde(flatten)]
    network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    in_use: usize,
}

fn leases(name: &NetName) -> Result<Vec<(std::net::Ipv4Addr, Lease)>> {
    lease::held(&Path::new(lease::DIR).join(name.as_str()))
}

fn list(json: bool) -> Result<()> {
    let listed = |name: NetName| -> Result<Listed> {
        let (network, error) = match read(&name) {
            Ok(network) => (Some(network), None),
            Err(e) => (None, Some(e.message)),
        };
        Ok(Listed { in_use: leases(&name)?.len(), name, network, error })
    };
    let all = all()?.into_iter().map(listed).collect::<Result<Vec<_>>>()?;
    if json {
        return output::json(&all);
    }
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    output::table(&["NAME", "KIND", "SUBNET", "PARENT", "IN USE"], &rows)
}

fn row(listed: &Listed) -> Vec<String> {
    let dash = || "-".to_owned();
    let (kind, subnet, parent) = match &listed.network {
        Some(n) => (n.kind.to_string(), n.subnet.to_string(), n.parent.clone().unwrap_or_else(dash)),
        None => ("unreadable".into(), dash(), dash()),
    };
    vec![listed.name.to_string(), kind, subnet, parent, listed.in_use.to_string()]
}

#[derive(Serialize)]
struct Shown {
    name: NetName,
    #[serde(flatten)]
    network: Network,
    node: String,
    leases: Vec<ShownLease>,
}

#[derive(Serialize)]
struct ShownLease {
    address: std::net::Ipv4Addr,
    user: String,
    /// Until when it is kept for an instance that was saved.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "output::as_time_if_any")]
    until: Option<u64>,
}

/// Whose a lease is.
pub fn user_name(uid: u32) -> String {
    match uid {
        Lease::UNKNOWN => "?".into(),
        uid => account::user(uid).map_or_else(|| uid.to_string(), |user| user.name),
    }
}

fn show(name: &NetName, json: bool) -> Result<()> {
    let leases = leases(name)?
        .into_iter()
        .map(|(address, lease)| ShownLease { address, user: user_name(lease.uid), until: lease.until })
        .collect();
    let shown = Shown { name: name.clone(), network: read(name)?, node: node()?, leases };
    if json {
        return output::json(&shown);
    }
    let n = &shown.network;
    let mut lines = vec![("kind", n.kind.to_string()), ("subnet", n.subnet.to_string())];
    lines.extend(n.parent.clone().map(|parent| ("parent", parent)));
    lines.extend(n.gateway.map(|gateway| ("gateway", gateway.to_string())));
    lines.extend(n.mtu.map(|mtu| ("mtu", mtu.to_string())));
    let node = &shown.node;
    let addresses = match n.addresses(node) {
        Ok(_) => format!(
            "{} on node {node}; at most {} of one user's, {} of them kept when others need them",
            n.capacity(node),
            n.most_each(node),
            n.most_kept_each(node)
        ),
        Err(why) => why,
    };
    lines.push(("addresses", addresses));
    for (name, value) in lines {
        output::line(&format!("{name:<12} {value}"))?;
    }
    if shown.leases.is_empty() {
        return Ok(());
    }
    let kept = |lease: &ShownLease| lease.until.map_or_else(|| "-".into(), output::time);
    let row = |l: &ShownLease| vec![l.address.to_string(), l.user.clone(), kept(l)];
    let rows: Vec<Vec<String>> = shown.leases.iter().map(row).collect();
    output::line("")?;
    output::table(&["ADDRESS", "USER", "KEPT UNTIL"], &rows)
}

/// How a network is found on this node.
#[derive(Serialize)]
pub struct Checked {
    name: NetName,
    /// The name by its earlier key.
    network: NetName,
    /// Whether nothing is wrong.
    pub ok: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    wrong: Vec<String>,
}

/// Looks at one network, or at all.
pub fn checked(name: Option<&NetName>) -> Result<Vec<Checked>> {
    let names = name.map_or_else(all, |name| Ok(vec![name.clone()]))?;
    let mut checked = vec![];
    for network in names {
        let wrong = match read(&network) {
            Ok(read) => skiff_net::wrong_here(&network, &read, &node()?),
            Err(e) if name.is_some() && !Path::new(&format!("{DIR}/{network}.toml")).exists() => {
                return Err(e);
            }
            Err(e) => vec![e.message],
        };
        checked.push(Checked { name: network.clone(), network, ok: wrong.is_empty(), wrong });
    }
    Ok(checked)
}

fn check(name: Option<&NetName>, json: bool) -> Result<i32> {
    let checked = checked(name)?;
    if json {
        output::json(&checked)?;
    } else {
        for one in &checked {
            let state = if one.ok { "pass" } else { "fail" };
            output::line(&format!("{state}  {}", one.network))?;
            for wrong in &one.wrong {
                output::line(&format!("      {wrong}"))?;
            }
        }
    }
    Ok(i32::from(!checked.iter().all(|one| one.ok)))
}
