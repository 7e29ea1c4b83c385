//! Who has which address: files in `/run/skiff/net/NETWORK/`, one for each address, which is locked while its file changes.
//!
//! No file says whether an address is free: the kernel does. A lease holds as long as the namespace with its device lives,
//! and nobody need give it back; the kernel forgets a namespace's number when it goes. What the files tell is which
//! number to ask for, and for people, whose it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::io::Errno;
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::network::{Lease, NetName, Network, hardware_address};
use skiff_sys::clock::now;

use crate::device;
use crate::lock::{LockScope, Locks};
use crate::netlink::Netlink;

/// Where leases are.
pub const DIR: &str = "/run/skiff/net";

/// What to do where an address is in use.
pub const IN_USE: &str = "end what has it, then try again: `skiff instance list`, `skiff net show`";

/// The leases of a network.
pub struct Leases {
    dir: PathBuf,
    pub(crate) locks: Locks,
}

/// An address that was free. It is locked as long as the [`Leases`] it is of are there, so that nobody takes it for free before its device is.
pub struct LockedAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// Who may still have it, on another node: for whom it was kept once, or somebody of whom nothing is known since the last boot.
    pub possible_holder: Option<Lease>,
    /// What was written down of it before.
    pub before: Option<Lease>,
}

/// What a look at all leases of a network has found.
pub struct Swept {
    /// The addresses of those whose namespace has gone.
    pub gone: Vec<Ipv4Addr>,
    /// Leases that are only kept for somebody.
    pub kept: Vec<(Ipv4Addr, Lease)>,
    /// Whether the devices that members share are in use, or about to be.
    pub in_use: bool,
}

impl Leases {
    /// Opens the leases of network `name`. Waits for nobody.
    pub fn open(name: &NetName) -> Result<Self> {
        let dir = Path::new(DIR).join(name.as_str());
        fs::create_dir_all(&dir).context(|| dir.display().to_string())?;
        Ok(Self { dir, locks: Locks::open(name)? })
    }

    /// Keeps the devices that members share from being removed meanwhile.
    pub fn use_devices(&self) -> Result<()> {
        self.locks.share(LockScope::Devices)
    }

    /// Takes the lowest free address, but for those to be `passed_by`, for a namespace that the kernel on the host calls `space`. If there is
    /// none, one that is kept for a user who has more than their share of those.
    pub fn take(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        lease: &Lease,
        passed_by: &[Ipv4Addr],
    ) -> Result<LockedAddress> {
        let about = |why: String| Fault::new(format!("network {}: {why}", lease.network));
        let known = self.check_user_limit(host, network, node, lease, None)?;
        let addresses = network.addresses(node).map_err(about)?;
        for address in addresses.filter(|address| !passed_by.contains(address)) {
            let is_held = |host: &mut Netlink| match known.get(&address) {
                Some(lease) => self.is_held(host, lease, address),
                None => Ok(false),
            };
            if !is_held(host)?
                && let Some(taken) = self.take_one(host, address, lease, None)?
            {
                return Ok(taken);
            }
        }
        for (address, kept) in self.reclaimable(host, network, node, &known)? {
            if !passed_by.contains(&address)
                && let Some(taken) = self.take_one(host, address, lease, Some(&kept))?
            {
                return Ok(taken);
            }
        }
        let hint = format!(
            "end an environment on it, or ask the administrator for more: `skiff net show {}`",
            lease.network
        );
        Err(about("all of its addresses on this node are taken".into()).hint(hint))
    }

    /// Takes an address, unless somebody else is about to, or has. One that is still `kept` as it was seen before counts as free.
    fn take_one(
        &self,
        host: &mut Netlink,
        address: Ipv4Addr,
        lease: &Lease,
        kept: Option<&Lease>,
    ) -> Result<Option<LockedAddress>> {
        if !self.locks.try_take(LockScope::Address(address))? {
            return Ok(None);
        }
        let before = self.read(address)?;
        let is_held = match &before {
            Some(old) if kept == Some(old) => self.lives(host, old, address)?,
            Some(old) => self.is_held(host, old, address)?,
            None => false,
        };
        if is_held {
            self.locks.release(LockScope::Address(address))?;
            return Ok(None);
        }
        let possible_holder = match &before {
            Some(old) => old.until.is_some().then(|| old.clone()),
            None => Some(Lease { uid: Lease::UNKNOWN, ..lease.clone() }),
        };
        self.write(address, lease)?;
        Ok(Some(LockedAddress { address, possible_holder, before }))
    }

    /// All leases, unless the user of a new one has as many as they may, not counting that of one address. Their other processes then wait until
    /// this one is done.
    pub(crate) fn check_user_limit(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        lease: &Lease,
        but_for: Option<Ipv4Addr>,
    ) -> Result<BTreeMap<Ipv4Addr, Lease>> {
        self.locks.take(LockScope::User(lease.uid))?;
        let known: BTreeMap<_, _> = all(&self.dir)?.into_iter().collect();
        let (mut held, mut kept) = (0, 0);
        for (address, of_user) in known.iter().filter(|(_, known)| known.uid == lease.uid) {
            if Some(*address) != but_for && self.is_held(host, of_user, *address)? {
                held += 1;
                kept += u32::from(!self.lives(host, of_user, *address)?);
            }
        }
        match network.most_each(node) {
            // Root could free all of them.
            most if held >= most && lease.uid != 0 => Err(Fault::new(format!(
                "network {}: you have {held} of its addresses on this node, {kept} of them kept for saved instances, and nobody may have more than {most}",
                lease.network
            ))
            .hint(format!("end what has one, or free one that is kept: `skiff net release {} ADDRESS`", lease.network))),
            _ => Ok(known),
        }
    }

    /// Keeps an address that was taken for who has it on another node.
    pub fn reserve_for(&self, network: &Network, address: Ipv4Addr, lease: Lease) -> Result<()> {
        self.write(address, &Lease { until: Some(kept_until(network)), ..lease })?;
        self.locks.release(LockScope::Address(address))
    }

    /// Has it that an address was never taken.
    pub fn restore_lease(&self, address: Ipv4Addr, before: Option<&Lease>) -> Result<()> {
        let file = self.dir.join(address.to_string());
        match before {
            Some(lease) => self.write(address, lease),
            None => fs::remove_file(&file).context(|| file.display().to_string()),
        }
    }

    /// Whether somebody has an address, at this moment.
    pub fn is_taken(&self, host: &mut Netlink, address: Ipv4Addr) -> Result<bool> {
        self.read(address)?.map_or(Ok(false), |lease| self.lives(host, &lease, address))
    }

    pub(crate) fn read(&self, address: Ipv4Addr) -> Result<Option<Lease>> {
        read(&self.dir.join(address.to_string()))
    }

    pub(crate) fn write(&self, address: Ipv4Addr, lease: &Lease) -> Result<()> {
        let file = self.dir.join(address.to_string());
        // Whole or not at all: a lease that cannot be written must not be.
        let new = self.dir.join(format!(".new.{address}"));
        fs::write(&new, lease.to_text())
            .and_then(|()| fs::rename(&new, &file))
            .context(|| file.display().to_string())
    }

    pub(crate) fn lives(&self, host: &mut Netlink, lease: &Lease, address: Ipv4Addr) -> Result<bool> {
        lives(host, lease, address).context(|| self.dir.join(address.to_string()).display().to_string())
    }

    pub(crate) fn is_held(&self, host: &mut Netlink, lease: &Lease, address: Ipv4Addr) -> Result<bool> {
        Ok(lease.is_kept(now()) || self.lives(host, lease, address)?)
    }

    /// Looks at all. Removes what is left of those that have gone, if it is to; then the devices that members share stay locked if nobody
    /// is there to use them.
    pub fn sweep(&self, host: &mut Netlink, remove: bool) -> Result<Swept> {
        let known = all(&self.dir)?.into_iter().map(|(address, _)| address).collect();
        self.sweep_addresses(host, known, remove)
    }

    fn sweep_addresses(&self, host: &mut Netlink, known: Vec<Ipv4Addr>, remove: bool) -> Result<Swept> {
        let mut swept =
            Swept { gone: vec![], kept: vec![], in_use: !self.locks.try_take(LockScope::Devices)? };
        for address in known {
            // Who is about to take it decides.
            if !self.locks.try_take(LockScope::Address(address))? {
                swept.in_use = true;
                continue;
            }
            // Not before: somebody may have taken it since it was listed, whose lease must stay.
            let Some(lease) = self.read(address)? else {
                self.locks.release(LockScope::Address(address))?;
                continue;
            };
            if self.lives(host, &lease, address)? {
                swept.in_use = true;
            } else if lease.is_kept(now()) {
                swept.kept.push((address, lease));
            } else {
                if remove {
                    self.restore_lease(address, None)?;
                }
                swept.gone.push(address);
            }
            self.locks.release(LockScope::Address(address))?;
        }
        Ok(swept)
    }
}

/// Until when an address is kept that is left now.
pub(crate) fn kept_until(network: &Network) -> u64 {
    now() + network.kept_hours * 3600
}

/// Whether the namespace of a lease has the device with its address.
fn lives(host: &mut Netlink, lease: &Lease, address: Ipv4Addr) -> io::Result<bool> {
    let found = device::find(host, device::INSIDE, Some(lease.space))?;
    Ok(found.is_some_and(|device| device.hardware == hardware_address(address)))
}

/// The leases in a directory, in order of their addresses.
pub fn all(dir: &Path) -> Result<Vec<(Ipv4Addr, Lease)>> {
    let mut leases = vec![];
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(leases),
        other => other.context(|| dir.display().to_string())?,
    };
    for entry in entries {
        let entry = entry.context(|| dir.display().to_string())?;
        let address = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(address) = address
            && let Some(lease) = read(&entry.path())?
        {
            leases.push((address, lease));
        }
    }
    leases.sort_by_key(|(address, _)| *address);
    Ok(leases)
}

/// Lists the leases whose namespace lives, as far as anybody may ask.
///
/// # Errors
/// That they cannot be read, or the kernel not be asked.
pub fn held(dir: &Path) -> Result<Vec<(Ipv4Addr, Lease)>> {
    let mut host = Netlink::open().context(|| dir.display().to_string())?;
    let mut leases = all(dir)?;
    leases.retain(|(_, lease)| {
        if lease.is_kept(now()) {
            return true;
        }
        let mut message = NsidMessage::default();
        message.attributes = vec![NsidAttribute::Id(lease.space)];
        host.ask(RouteNetlinkMessage::GetNsId(message), 0).is_ok()
    });
    Ok(leases)
}

fn read(file: &Path) -> Result<Option<Lease>> {
    match fs::read_to_string(file) {
        // What cannot be read is none of ours: only this program writes here, and in one piece.
        Ok(text) => Ok(Lease::parse(&text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).context(|| file.display().to_string()),
    }
}

/// The number by which the host's kernel knows a network namespace as long as that lives.
pub fn number_of(host: &mut Netlink, space: BorrowedFd<'_>) -> io::Result<i32> {
    let fd = u32::try_from(space.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let mut message = NsidMessage::default();
    message.attributes = vec![NsidAttribute::Fd(fd), NsidAttribute::Id(-1)];
    match host.tell(RouteNetlinkMessage::NewNsId(message), 0) {
        Err(e) if e.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
        other => other?,
    }
    let mut message = NsidMessage::default();
    message.attributes = vec![NsidAttribute::Fd(fd)];
    let answer = host.ask(RouteNetlinkMessage::GetNsId(message), 0)?;
    let Some(RouteNetlinkMessage::NewNsId(answer)) = answer else { return Err(Errno::NOENT.into()) };
    let number = answer.attributes.iter().find_map(|attribute| match attribute {
        NsidAttribute::Id(id) if *id >= 0 => Some(*id),
        _ => None,
    });
    number.ok_or_else(|| Errno::NOENT.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_after_it_was_listed_is_not_swept() {
        let dir = tempfile::tempdir().unwrap();
        let locks = Locks::open_in(dir.path(), &"locks".parse().unwrap()).unwrap();
        let leases = Leases { dir: dir.path().to_owned(), locks };
        let mut host = Netlink::open().unwrap();
        // No namespace has this number.
        let dead = Lease { network: "lab".parse().unwrap(), uid: 7, space: i32::MAX, until: None };
        let [stale, again, gone] = [1, 2, 3].map(|last| Ipv4Addr::new(10, 0, 0, last));
        for address in [stale, again] {
            leases.write(address, &dead).unwrap();
        }
        let listed = vec![stale, again, gone];
        let taken = Lease { until: Some(u64::MAX), ..dead };
        leases.write(again, &taken).unwrap();
        let swept = leases.sweep_addresses(&mut host, listed, true).unwrap();
        assert_eq!((swept.gone, swept.kept), (vec![stale], vec![(again, taken.clone())]));
        assert_eq!(leases.read(again).unwrap(), Some(taken));
        assert_eq!(leases.read(stale).unwrap(), None);
    }
}
