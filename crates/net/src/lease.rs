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

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::network::{Lease, NetName, Network, hardware_address};

use crate::device;
use crate::netlink::Netlink;

/// Where leases are.
pub const DIR: &str = "/run/skiff/net";

/// The leases of a network, locked.
pub struct Leases {
    dir: PathBuf,
    _lock: OwnedFd,
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
    pub fn take(&self, host: &mut Netlink, network: &Network, node: &str, lease: &Lease) -> Result<Ipv4Addr> {
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
        if network.most_each.is_some_and(|most| of_user >= most) {
            let why = format!("you have {of_user} of its addresses on this node, and nobody may have more");
            return Err(about(why).hint("end an environment on it: `skiff ps`"));
        }
        let hint = format!(
            "end an environment on it, or ask the administrator for more: `skiff net show {}`",
            lease.network
        );
        let address =
            free.ok_or_else(|| about("all of its addresses on this node are taken".into()).hint(hint))?;
        let file = self.dir.join(address.to_string());
        // Whole or not at all: a lease that cannot be written must not be.
        let new = self.dir.join(".new");
        fs::write(&new, lease.to_text())
            .and_then(|()| fs::rename(&new, &file))
            .context(|| file.display().to_string())?;
        Ok(address)
    }

    /// Who has an address, if anybody still has.
    fn holder(&self, host: &mut Netlink, address: Ipv4Addr) -> Result<Option<u32>> {
        let file = self.dir.join(address.to_string());
        let Some(lease) = read(&file)? else { return Ok(None) };
        Ok(lives(host, &lease, address).context(|| file.display().to_string())?.then_some(lease.uid))
    }

    /// The addresses of those that have gone, and how many have not. Removes what is left of the former, if it is to.
    pub fn sweep(&self, host: &mut Netlink, remove: bool) -> Result<(Vec<Ipv4Addr>, usize)> {
        let (mut gone, mut held) = (vec![], 0);
        for (address, lease) in all(&self.dir)? {
            if lives(host, &lease, address).context(|| self.dir.display().to_string())? {
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
