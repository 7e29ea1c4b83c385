//! Who has which address: files in `/run/skiff/net/NETWORK/`, one for each address, made under a lock.
//!
//! No file says whether an address is free: the kernel does. A lease holds as long as the namespace with its device lives,
//! and nobody need give it back; the kernel forgets a namespace's number when it goes. What the files tell is which
//! number to ask for, and for people, whose it is.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::network::{Again, Claim, Lease, NetName, Network, hardware_address};

use crate::claim::{KEY, Key};
use crate::device;
use crate::netlink::Netlink;

/// Where leases are.
pub const DIR: &str = "/run/skiff/net";

/// What to do where an address is in use.
pub const IN_USE: &str = "end what has it, then try again: `skiff instance list`, `skiff net show`";

/// The leases of a network, locked.
pub struct Leases {
    dir: PathBuf,
    _lock: OwnedFd,
}

/// An address that was free.
pub struct Taken {
    /// It.
    pub address: Ipv4Addr,
    /// Who may still have it, on another node: for whom it was kept once, or somebody of whom nothing is known since the last boot.
    pub perhaps: Option<Lease>,
    /// What was written down of it before.
    pub before: Option<Lease>,
}

impl Leases {
    /// Those of `name`.
    pub fn lock(name: &NetName) -> Result<Self> {
        let dir = Path::new(DIR).join(name.as_str());
        fs::create_dir_all(&dir).context(|| dir.display().to_string())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = openat(CWD, &dir, flags, Mode::empty()).context(|| dir.display().to_string())?;
        flock(&lock, FlockOperation::LockExclusive).context(|| dir.display().to_string())?;
        Ok(Self { dir, _lock: lock })
    }

    /// Takes the lowest free address for a namespace that the kernel on the host calls `space`.
    pub fn take(&self, host: &mut Netlink, network: &Network, node: &str, lease: &Lease) -> Result<Taken> {
        let about = |why: String| Error::new(format!("network {}: {why}", lease.network));
        let mut of_user = 0;
        let mut free = None;
        for address in network.addresses(node).map_err(about)? {
            match self.holder(host, address)? {
                Some(uid) if uid == lease.uid => of_user += 1,
                Some(_) => {}
                None => free = free.or(Some(address)),
            }
            if free.is_some() && network.most_each.is_none() {
                break;
            }
        }
        refuse_more(network, of_user).map_err(about)?;
        let hint = format!(
            "end an environment on it, or ask the administrator for more: `skiff net show {}`",
            lease.network
        );
        let address =
            free.ok_or_else(|| about("all of its addresses on this node are taken".into()).hint(hint))?;
        let before = self.read(address)?;
        let perhaps = match &before {
            Some(old) => old.until.is_some().then(|| old.clone()),
            None => Some(Lease { uid: Lease::UNKNOWN, ..lease.clone() }),
        };
        self.write(address, lease)?;
        Ok(Taken { address, perhaps, before })
    }

    /// Takes an address that the user had before and that was kept for him, on this node or on another.
    pub fn take_again(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        lease: &Lease,
        (Again { claim, moves }, key): (&Again, Option<&Key>),
    ) -> Result<Taken> {
        let address = claim.address;
        let what = format!("network {}: address {address}", lease.network);
        let about = |why: String| Error::new(format!("{what}: {why}"));
        if !network.has_member(address) {
            return Err(about("none of its members' any more".into()));
        }
        let old = self.read(address)?;
        if let Some(old) = &old
            && self.lives(host, old, address)?
        {
            return Err(about("somebody has it, on this node".into()).hint(IN_USE));
        }
        let until = match &old {
            // Of an address that another node gives away, this one knows no more than that until that time.
            Some(old)
                if old.uid == lease.uid && (network.gives_away(node, address) || old.is_kept(now())) =>
            {
                old.until
            }
            Some(old) if old.is_kept(now()) && old.uid != Lease::UNKNOWN => {
                return Err(about("it is kept for somebody else".into()));
            }
            _ => Some(proved(network, lease, claim, key).map_err(|e| e.about(&what))?),
        };
        let mut of_user = 0;
        for (other, held) in all(&self.dir)? {
            let counts = held.uid == lease.uid && other != address && network.most_each.is_some();
            of_user += u32::from(counts && self.is_held(host, &held, other)?);
        }
        refuse_more(network, of_user).map_err(about)?;
        let new = Lease { until, ..lease.clone() };
        self.write(address, &new)?;
        // As long as it is kept for him, only he can have it.
        let moves = *moves && new.is_kept(now());
        Ok(Taken { address, perhaps: (!moves).then_some(new), before: old })
    }

    /// Keeps an address that the user has for when he comes back to it. Until when it is kept, which never becomes earlier: there may
    /// be a claim to it. One that another node has given him is kept there, and so no longer here.
    pub fn keep(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        (uid, address): (u32, Ipv4Addr),
    ) -> Result<u64> {
        let about = || format!("address {address}");
        let mut lease = self.read(address)?.ok_or_else(|| not_yours(address))?;
        if lease.uid != uid || !self.is_held(host, &lease, address)? {
            return Err(not_yours(address));
        }
        let until = match (lease.until, network.gives_away(node, address)) {
            (Some(until), false) => until,
            (until, _) => until.unwrap_or(0).max(kept_until(network)),
        };
        lease.until = Some(until);
        self.write(address, &lease).map_err(|e| e.about(&about()))?;
        Ok(until)
    }

    /// Keeps an address for who has it on another node.
    pub fn keep_for(&self, network: &Network, address: Ipv4Addr, lease: Lease) -> Result<()> {
        self.write(address, &Lease { until: Some(kept_until(network)), ..lease })
    }

    /// Has it that an address was never taken.
    pub fn put_back(&self, address: Ipv4Addr, before: Option<&Lease>) -> Result<()> {
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

    fn read(&self, address: Ipv4Addr) -> Result<Option<Lease>> {
        read(&self.dir.join(address.to_string()))
    }

    fn write(&self, address: Ipv4Addr, lease: &Lease) -> Result<()> {
        let file = self.dir.join(address.to_string());
        // Whole or not at all: a lease that cannot be written must not be.
        let new = self.dir.join(".new");
        fs::write(&new, lease.to_text())
            .and_then(|()| fs::rename(&new, &file))
            .context(|| file.display().to_string())
    }

    fn lives(&self, host: &mut Netlink, lease: &Lease, address: Ipv4Addr) -> Result<bool> {
        lives(host, lease, address).context(|| self.dir.join(address.to_string()).display().to_string())
    }

    fn is_held(&self, host: &mut Netlink, lease: &Lease, address: Ipv4Addr) -> Result<bool> {
        Ok(lease.is_kept(now()) || self.lives(host, lease, address)?)
    }

    /// Who has an address, if anybody still has, or for whom it is kept.
    fn holder(&self, host: &mut Netlink, address: Ipv4Addr) -> Result<Option<u32>> {
        let Some(lease) = self.read(address)? else { return Ok(None) };
        Ok(self.is_held(host, &lease, address)?.then_some(lease.uid))
    }

    /// The addresses of those that have gone, and how many have not. Removes what is left of the former, if it is to.
    pub fn sweep(&self, host: &mut Netlink, remove: bool) -> Result<(Vec<Ipv4Addr>, usize)> {
        let (mut gone, mut held) = (vec![], 0);
        for (address, lease) in all(&self.dir)? {
            if self.is_held(host, &lease, address)? {
                held += 1;
                continue;
            }
            if remove {
                let file = self.dir.join(address.to_string());
                fs::remove_file(&file).context(|| file.display().to_string())?;
            }
            gone.push(address);
        }
        Ok((gone, held))
    }
}

/// Until when an address is kept that is left now.
fn kept_until(network: &Network) -> u64 {
    now() + network.kept_hours * 3600
}

/// Whether a user may have one more.
fn refuse_more(network: &Network, of_user: u32) -> std::result::Result<(), String> {
    if network.most_each.is_none_or(|most| of_user < most) {
        return Ok(());
    }
    Err(format!("you have {of_user} of its addresses on this node, and nobody may have more"))
}

/// Until when another node keeps an address for a user, if that is proved.
fn proved(network: &Network, lease: &Lease, claim: &Claim, key: Option<&Key>) -> Result<u64> {
    if !network.spans_nodes() {
        return Err(Error::new("it was another node's, and this network's addresses stay where they are")
            .hint("restore the checkpoint on the node where it was saved"));
    }
    let (Some(key), Some(_)) = (key, &claim.proof) else {
        return Err(Error::new(format!("it was another node's, and without the site's key nobody can tell whose ({KEY})"))
            .hint("restore it on the node where it was saved; administrator: the same key on all nodes, before it is saved: docs/networks.md"));
    };
    if !key.proves(claim, lease.uid, &lease.network) {
        return Err(Error::new("it was not yours, or another key was in use then"));
    }
    if claim.until <= now() {
        return Err(Error::new("it is no longer kept for you")
            .hint("administrator: `kept_hours` in the network's description"));
    }
    Ok(claim.until)
}

fn not_yours(address: Ipv4Addr) -> Error {
    Error::new(format!("address {address}: you do not have it on this node"))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
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

/// Those of them whose namespace lives, as far as anybody may ask.
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
