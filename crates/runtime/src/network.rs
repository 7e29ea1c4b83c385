//! Networks of the site's, from the user's side: how this program gets onto one.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_launch::hosts;
use skiff_sandbox::helper::Helper;
use skiff_sandbox::stack::StackLimit;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::network::{DIR, NetName, Network, Reservation};
use skiff_spec::plan::{HOSTS, Plan, Source};
use skiff_spec::wire::{ON_NETWORK, Request};
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_sys::process;
use skiff_user::context::UserContext;
use skiff_user::named;

/// How this program was called.
struct Call {
    /// The words of the command line, without the helper's.
    words: Vec<OsString>,
    /// The network that the helper has put it on; empty if that was to follow a process.
    network: Option<String>,
    /// Our address there.
    address: Option<Ipv4Addr>,
    /// What had been resolved before we came there, as a file in memory.
    resolved: Option<OwnedFd>,
}

/// In the place of a descriptor: there is none.
const NOTHING: &str = "-";
/// What errors call what goes with us onto a network.
const RESOLVED: &str = "what was planned before the network was joined";

static CALL: OnceLock<Call> = OnceLock::new();

/// The words of our command line. If the helper has started us again, without its own, and from the directory where we were.
pub fn words() -> Result<&'static [OsString]> {
    if CALL.get().is_none() {
        let call = call()?;
        CALL.get_or_init(|| call);
    }
    Ok(CALL.get().map_or(&[], |call| &call.words))
}

/// Our address on the network of the site's that the helper has put us on; nothing if it has not.
pub fn address() -> Option<Ipv4Addr> {
    CALL.get()?.address
}

fn call() -> Result<Call> {
    let (mut network, mut address, mut resolved) = (None, None, None);
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_else(|| "skiff".into());
    let mut words: Vec<OsString> = words.collect();
    if words.first().is_some_and(|word| word == ON_NETWORK) && words.len() >= 6 {
        let rest = words.split_off(6);
        let text = |at: usize| words[at].to_string_lossy().into_owned();
        let inherited = |at: usize, what: &str| {
            let fd = text(at).parse();
            let fd =
                fd.map_err(|_| Error::new(format!("{ON_NETWORK}: {:?}: not a descriptor", words[at])))?;
            process::inherited_fd(fd).context(|| what.to_owned())
        };
        let cwd = inherited(3, "working directory")?;
        rustix::process::fchdir(&cwd).context(|| "working directory")?;
        let stack = StackLimit::from_word(&text(4))
            .ok_or_else(|| Error::new(format!("{ON_NETWORK}: {:?}: not a limit of the stack", words[4])))?;
        stack.apply().context(|| "limit of the stack")?;
        resolved = if words[5] == NOTHING { None } else { Some(inherited(5, RESOLVED)?) };
        network = Some(text(1));
        address = text(2).parse().ok();
        words = rest;
    }
    words.insert(0, program);
    Ok(Call { words, network, address, resolved })
}

/// Goes on in a new network namespace on this network of the site's, if there is one to be on and we are not on it: this program, from its
/// beginning, which finds by [`attached`] what has been resolved so far.
pub fn attach<T: Serialize>(
    context: &UserContext,
    network: Option<&NetName>,
    resolved: impl FnOnce() -> T,
) -> Result<()> {
    let Some(name) = network.filter(|name| !is_on(name)) else { return Ok(()) };
    let text = serde_json::to_vec(&resolved()).map_err(|e| Error::new(format!("{RESOLVED}: {e}")))?;
    let file = memfd_create("skiff-plan", MemfdFlags::CLOEXEC).context(|| RESOLVED)?;
    let file = std::fs::File::from(file);
    file.write_all_at(&text, 0).context(|| RESOLVED)?;
    Err(start_again(context, name, &Request::Network { name: name.clone() }, Some(file.as_fd())))
}

/// What had been resolved before we came onto the network, if anything had.
pub fn attached<T: DeserializeOwned>() -> Result<Option<T>> {
    let Some(file) = CALL.get().and_then(|call| call.resolved.as_ref()) else { return Ok(None) };
    let file = std::fs::File::from(file.try_clone().context(|| RESOLVED)?);
    let mut text = vec![0; usize::try_from(file.metadata().context(|| RESOLVED)?.len()).unwrap_or(0)];
    file.read_exact_at(&mut text, 0).context(|| RESOLVED)?;
    serde_json::from_slice(&text).map(Some).map_err(|e| Error::new(format!("{RESOLVED}: {e}")))
}

/// Whether this program has been started again on that network of the site's.
pub fn is_on(name: &NetName) -> bool {
    CALL.get().and_then(|call| call.network.as_deref()) == Some(name.as_str())
}

/// As [`attach`], but with nothing resolved: all is looked up again there.
pub fn join(context: &UserContext, network: Option<&NetName>) -> Result<()> {
    match network.filter(|name| !is_on(name)) {
        Some(name) => Err(start_again(context, name, &Request::Network { name: name.clone() }, None)),
        None => Ok(()),
    }
}

/// Goes on in the network namespace of an environment's process 1, unless we are in it.
pub fn follow(context: &UserContext, name: &NetName, pid: Pid) -> Result<()> {
    let pid = pid.as_raw_nonzero().get().unsigned_abs();
    let space = |process: &str| {
        let path = format!("/proc/{process}/ns/net");
        std::fs::read_link(&path).context(|| path)
    };
    if space("self")? == space(&pid.to_string())? {
        return Ok(());
    }
    Err(start_again(context, name, &Request::Follow { pid }, None))
}

/// Has an address kept for us when the namespace that has it has gone: our reservation.
pub fn keep(context: &UserContext, name: &NetName, address: Ipv4Addr) -> Result<Reservation> {
    let helper = context.helper.as_deref().ok_or_else(|| {
        Error::new(format!("network {name}: only the helper can keep an address"))
            .hint("have the helper installed")
    })?;
    let helper = Helper::spawn(helper)?;
    helper.ask(&Request::Leave { name: name.clone(), address }, &[])?;
    let reservation = helper.reservation();
    helper.finish();
    reservation
}

/// Frees an address that is kept for us; any, for root.
pub fn free(context: &UserContext, name: &NetName, address: Ipv4Addr) -> Result<()> {
    let helper = context.helper.as_deref().ok_or_else(|| {
        Error::new(format!("network {name}: only the helper can free an address"))
            .hint("have the helper installed")
    })?;
    let helper = Helper::spawn(helper)?;
    helper.ask(&Request::Free { name: name.clone(), address }, &[])?;
    let answer = helper.done();
    helper.finish();
    answer
}

/// Why that was not possible; if it was, this does not return.
fn start_again(
    context: &UserContext,
    name: &NetName,
    request: &Request,
    resolved: Option<BorrowedFd<'_>>,
) -> Error {
    let Some(helper) = &context.helper else {
        return Error::new(format!("network {name}: only the helper can put you on it"))
            .hint("have the helper installed, or use --net private");
    };
    let again = || -> Result<std::convert::Infallible> {
        let cwd = openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let cwd = cwd.context(|| "working directory")?;
        process::keep_on_exec(cwd.as_fd()).context(|| "working directory")?;
        resolved.map_or(Ok(()), process::keep_on_exec).context(|| RESOLVED)?;
        let resolved = resolved.map_or_else(|| NOTHING.into(), |fd| fd.as_raw_fd().to_string());
        let mut words =
            [cwd.as_raw_fd().to_string(), StackLimit::own().to_word(), resolved].map(OsString::from).to_vec();
        words.extend(self::words()?.iter().skip(1).cloned());
        Helper::become_it(helper, request, &words)
    };
    match again() {
        Ok(never) => match never {},
        Err(e) => e,
    }
}

/// What this host has in it; nothing if it has none.
pub fn own_hosts() -> String {
    std::fs::read_to_string(HOSTS)
        .default_on_error("without the file no host has a name, as with an empty one")
}

/// The address that Debian gives a host's own name where it has none of a network.
const LOOPBACK: &str = "127.0.1.1";

/// What a plan's list of hosts says, if it has one: the host's own, but with the host's name and the plan's for the address on the network
/// that the helper has put us on.
pub fn hosts(plan: &Plan) -> Result<Option<String>> {
    let names = plan.mounts.iter().find_map(|mount| match &mount.source {
        Source::Hosts(names) => Some(names),
        _ => None,
    });
    let Some(also) = names else { return Ok(None) };
    let Some(address) = address() else {
        // On no network of the site's only a host name of its own is told.
        let own = Some((LOOPBACK.to_owned(), also.clone())).filter(|_| plan.hostname.is_some());
        return Ok(own.map(|own| hosts::hosts_with([own], &own_hosts())));
    };
    let mut names = vec![host_name()];
    names.extend(also.iter().filter(|name| **name != names[0]).cloned().collect::<Vec<_>>());
    Ok(Some(hosts::hosts_with([(address.to_string(), names)], &own_hosts())))
}

/// The networks of the site's that there are descriptions of.
pub fn all() -> Result<Vec<NetName>> {
    let entries = match std::fs::read_dir(DIR) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        other => other.context(|| DIR)?,
    };
    let mut names = vec![];
    for entry in entries {
        let name = entry.context(|| DIR)?.file_name();
        let name =
            name.to_str().and_then(|name| name.strip_suffix(".toml")).and_then(|name| name.parse().ok());
        names.extend(name);
    }
    names.sort();
    Ok(names)
}

/// The description of a network.
pub fn read(name: &NetName) -> Result<Network> {
    let path = format!("{DIR}/{name}.toml");
    match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::new(format!("network {name}: there is none of that name"))
                .hint(named::there_are(all()?)))
        }
        other => Network::parse(&other.context(|| path.clone())?)
            .map_err(|why| Error::new(format!("{path}: {why}"))),
    }
}
