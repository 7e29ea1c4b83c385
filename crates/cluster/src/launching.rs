//! How agents get onto a cluster's hosts: which hosts those are, in which network the agents are to be, and where they call back.

use std::ffi::OsString;
use std::path::Path;

use skiff_launch::hosts::Host;
use skiff_launch::launching::{CallbackSetup, Launching, RemoteProgram};
use skiff_launch::manager::{self, ConnectMethod, Launch, Surroundings};
use skiff_output as output;
use skiff_runtime::network;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::network::{Net, Network, NetworkDriver};
use skiff_sys::kernel::host_name;
use skiff_user::context::UserContext;
use skiff_user::dirs::{make_private, own_dir_in};

/// Whom agents call.
pub const HEAD: &str = "the cluster's head";

/// Finds the hosts of a cluster: those of a file, or of the allocation that this is.
pub fn find(context: &UserContext, file: Option<&Path>, nodes: Option<u32>, net: &Net) -> Result<Launching> {
    refuse_useless(net)?;
    let (manager, mut hosts) = manager::find(&Surroundings::of_this_process(), file)?;
    if let Some(nodes) = nodes {
        let there = hosts.len();
        hosts.truncate(nodes as usize);
        if hosts.len() < nodes as usize {
            return Err(Error::new(format!("--nodes {nodes}: there are only {there} ({})", manager.name())));
        }
    }
    refuse_apart(net, hosts.len())?;
    Ok(Launching::new(manager, hosts, agent(context, net)?))
}

/// This host alone, so many times.
pub fn here(context: &UserContext, times: u16, net: &Net) -> Result<Launching> {
    refuse_useless(net)?;
    Ok(Launching::here(times, agent(context, net)?))
}

/// Opens the way in that agents started so need.
pub fn open(launching: &Launching, launches: &[Launch]) -> Result<CallbackSetup> {
    if launches.iter().any(|launch| launch.way == ConnectMethod::CallBackByFile) {
        make_private(launching.call_file().parent().unwrap_or(Path::new("/")))?;
    }
    launching.open(launches).map_err(|e| match e {
        skiff_launch::Error::System { ref object, .. } if Path::new(object) == launching.call_file() => {
            Error::from(e).hint("your home must take a small file: is it full?")
        }
        e => e.into(),
    })
}

/// Prints the hosts.
pub fn show_hosts(launching: &Launching) -> Result<()> {
    let slots = |host: &Host| host.slots.map_or_else(|| "its processors".into(), |slots| slots.to_string());
    output::line(&format!("manager      {}", launching.manager.name()))?;
    for host in &launching.hosts {
        output::line(&format!("host         {} (slots: {})", host.name, slots(host)))?;
    }
    Ok(())
}

/// Prints what starts the agents.
pub fn show_launches(launching: &Launching) -> Result<()> {
    for launch in launching.launches() {
        let words: Vec<_> = launch.argv.iter().map(|word| word.to_string_lossy()).collect();
        output::line(&format!("start        {}", words.join(" ")))?;
    }
    Ok(())
}

/// Whether this is an allocation of a manager that we know.
pub fn is_allocation() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    manager::is_allocation(&is_set)
}

/// What runs on each host. Its network is one that its host joins for it.
fn agent(context: &UserContext, net: &Net) -> Result<RemoteProgram> {
    let exe = std::env::current_exe().context(|| "own program")?;
    let mut argv: Vec<OsString> = vec![exe.into(), "cluster".into(), "agent".into()];
    if let Net::Named(name) = net {
        argv.extend(["--net".into(), name.as_str().into()]);
    }
    // On a file system that all hosts share.
    let dir = own_dir_in(context.data().join("clusters"))?;
    let call_file = dir.join(format!("{}.{}.call", host_name(), std::process::id()));
    Ok(RemoteProgram { argv, call_option: "--call", call_file })
}

fn refuse_useless(net: &Net) -> Result<()> {
    match net {
        Net::None | Net::Private => {
            Err(Error::new(format!("--net {net}: the hosts of a cluster must reach each other"))
                .hint("--net takes host, or one of the site's networks: `skiff net list`"))
        }
        Net::Host | Net::Named(_) => Ok(()),
    }
}

/// Refuses a network whose members on one host do not reach those on another. Whatever else is wrong with it, the hosts will say.
fn refuse_apart(net: &Net, hosts: usize) -> Result<()> {
    let network = match net {
        Net::Named(name) => network::read(name).ok(),
        Net::None | Net::Private | Net::Host => None,
    };
    if network.is_some_and(|network| keeps_apart(&network, hosts)) {
        return Err(Error::new(format!("--net {net}: its bridge stays on each host, and there are {hosts}"))
            .hint("administrator: a bridge joins hosts by its `parent`; other kinds do always"));
    }
    Ok(())
}

/// Whether members on one of so many hosts do not reach those on another.
fn keeps_apart(network: &Network, hosts: usize) -> bool {
    hosts > 1 && network.kind == NetworkDriver::Bridge && network.parent.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_on_a_network_where_its_hosts_reach_each_other() {
        for (net, reaches) in [("none", false), ("private", false), ("host", true), ("lab", true)] {
            let refused = refuse_useless(&net.parse().expect("a network")).err().map(|e| e.message);
            let want = format!("--net {net}: the hosts of a cluster must reach each other");
            assert_eq!(refused, (!reaches).then_some(want));
        }
        for (kind, hosts, apart) in [
            ("kind = \"bridge\"", 2, true),
            // Several containers of one host are on one bridge.
            ("kind = \"bridge\"", 1, false),
            ("kind = \"bridge\"\nparent = \"eth0\"", 2, false),
            ("kind = \"macvlan\"\nparent = \"eth0\"", 2, false),
        ] {
            let network = Network::parse(&format!("subnet = \"10.20.0.0/24\"\n{kind}")).expect("a network");
            assert_eq!(keeps_apart(&network, hosts), apart, "{kind} on {hosts}");
        }
    }
}
