//! `network` and `follow`: moves the caller's `skiff` into another network namespace, which is on a network of the site.
//!
//! The host owns that namespace: a process in it has no more power over it than over the host's own network. This program enters
//! the namespace, gives up all privileges and executes `skiff` again, which continues there. The network's description, a file
//! of root's, says who may enter. With `follow`, a process of the same user must be in the namespace already.

use std::ffi::{CString, OsString};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use skiff_net::site_key::KEY;
use skiff_net::tunnel::{MUNGE_KEY, TunnelSecret};
use skiff_sandbox::command::own_args;
use skiff_sandbox::mounts;
use skiff_spec::account::{Group, User};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::network::{DIR, NetName, Network};
use skiff_spec::wire::ON_NETWORK;
use skiff_sys::mount::{MountAttr, set_attributes};
use skiff_sys::ns;
use skiff_sys::process::exec;
use zeroize::Zeroizing;

use crate::caller::Caller;
use crate::namespaces::{check_owner, open_ns, own_proc};
use crate::{files, writer};

/// Goes on in a new namespace on a network. Returns only if that fails.
pub fn enter(caller: &Caller, name: &NetName) -> Result<()> {
    join(caller, name).and_then(|address| become_skiff(caller, name.as_str(), &address.to_string()))
}

/// Goes on in the namespace of a process. Returns as above.
pub fn follow(caller: &Caller, pid: u32) -> Result<()> {
    move_to(caller, pid).and_then(|()| become_skiff(caller, "", ""))
}

fn join(caller: &Caller, name: &NetName) -> Result<Ipv4Addr> {
    let network = allowed(caller, name)?;
    let secret = secret(&network)?;
    skiff_net::enter_hosts()?;
    skiff_net::enter(name, &network, &skiff_net::node()?, caller.uid, secret.as_ref())
}

/// What the keys of an encrypted network come from: the site's key, or else munge's.
pub fn secret(network: &Network) -> Result<Option<TunnelSecret>> {
    if !network.encrypt {
        return Ok(None);
    }
    let found = match files::read_secret_if_exists(KEY)? {
        Some(key) => Some((KEY, key)),
        None => files::read_services_secret_if_exists(MUNGE_KEY)?.map(|key| (MUNGE_KEY, key)),
    };
    let secret = |(path, content): (&str, Zeroizing<Vec<u8>>)| {
        TunnelSecret::new(&content).map_err(|why| Error::new(format!("{path}: {why}")))
    };
    found.map(secret).transpose()
}

/// A network, if the caller may use it.
pub fn allowed(caller: &Caller, name: &NetName) -> Result<Network> {
    let path = path(name);
    let mut network = read(name)?.ok_or_else(|| {
        Error::new(format!("network {name}: there is none of that name"))
            .hint("`skiff net list` shows those there are")
    })?;
    network.resolve_reach(read)?;
    let (users, groups) = (files::read_accounts("/etc/passwd")?, files::read_accounts("/etc/group")?);
    let gids: Vec<u32> = caller.groups.iter().copied().chain([caller.gid]).collect();
    if caller.uid != 0
        && !network.allows(
            caller.uid,
            &gids,
            |name| User::named(&users, name).map(|user| user.uid),
            |name| Group::named(&groups, name).map(|group| group.gid),
        )
    {
        return Err(Error::new(format!("network {name}: access denied"))
            .hint(format!("administrator: see `users` and `groups` in {path}; list by number who is not in /etc/passwd or /etc/group")));
    }
    Ok(network)
}

fn path(name: &NetName) -> String {
    format!("{DIR}/{name}.toml")
}

fn read(name: &NetName) -> Result<Option<Network>> {
    let path = path(name);
    let Some(text) = files::read_if_exists(&path)? else { return Ok(None) };
    Network::parse(&text).map(Some).map_err(|why| Error::new(format!("{path}: {why}")))
}

fn move_to(caller: &Caller, pid: u32) -> Result<()> {
    let about = || format!("process {pid}");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).context(about)?;
    let user = open_ns(proc.as_fd(), "user").context(about)?;
    check_owner(caller, user.as_fd(), &about())?;
    let net = open_ns(proc.as_fd(), "net").context(about)?;
    let ours = open_ns(own_proc()?.as_fd(), "user").context(about)?;
    if !ns::belongs_to(net.as_fd(), ours.as_fd()).context(about)? {
        return Err(Error::new(format!("process {pid}: its network is not one of the site's")));
    }
    move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).context(about)
}

/// `/sys` as it is in the network namespace that the caller is in, read-only, if that is one of the host's, but not the host's own: the kernel shows in
/// it the devices of that, and gives it only to who has rights over it.
pub fn devices() -> Result<Option<OwnedFd>> {
    let open = |path: &str| {
        openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).context(|| path.to_owned())
    };
    let net = open("/proc/thread-self/ns/net")?;
    let id = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_ino).context(|| "network namespace");
    if id(&net)? == id(&open("/proc/1/ns/net")?)? {
        return Ok(None);
    }
    let ours = open_ns(own_proc()?.as_fd(), "user").context(|| "user namespace")?;
    if !ns::belongs_to(net.as_fd(), ours.as_fd()).context(|| "network namespace")? {
        return Ok(None);
    }
    let devices = mounts::made_up("sysfs").context(|| "/sys of the network")?;
    set_attributes(devices.as_fd(), MountAttr::RDONLY, false).context(|| "/sys of the network")?;
    Ok(Some(devices))
}

/// Becomes the caller again, and `skiff`, with the words and variables that we were given for it.
fn become_skiff(caller: &Caller, network: &str, address: &str) -> Result<()> {
    let program = writer::program()?;
    let words = ["skiff", ON_NETWORK, network, address].map(OsString::from).into_iter().chain(own_args(2));
    let c = |word: OsString| CString::new(word.into_vec()).map_err(|_| Error::new("a zero byte in a word"));
    let argv = words.map(c).collect::<Result<Vec<_>>>()?;
    // All, under the names that they have: which of them are heard, `skiff` decides.
    let envp = std::env::vars_os().map(|(name, value)| {
        let mut variable = name;
        variable.push("=");
        variable.push(value);
        c(variable)
    });
    let envp = envp.collect::<Result<Vec<_>>>()?;
    caller.come_back().context(|| format!("user {}", caller.uid))?;
    caller.restore_signals();
    Err(exec(program.as_os_str(), &argv, &envp)).context(|| program.display().to_string())
}
