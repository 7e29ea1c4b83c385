//! A saved instance as a member of a network of the site's: its address and its connections come back with it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};
use skiff_ipc::ReportingChild;
use skiff_net::gate;
use skiff_runtime::network;
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::Started;
use skiff_spec::network::{Net, NetworkDriver, Reservation};
use skiff_sys::clock::now;
use skiff_sys::small_file;
use skiff_user::context::UserContext;

/// In a checkpoint: what this is.
const FILE: &str = "network.json";
/// Seconds after which a claim is asked for anew: it takes the helper some milliseconds, in which processes may stand still.
const RENEWED_AFTER: u64 = 60;

/// What there is of one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedInterface {
    kind: NetworkDriver,
    /// What gives it its address again.
    pub claim: Reservation,
}

impl SavedInterface {
    /// Of an instance that is to be saved, from when on its address is kept; nothing if it has none of its own.
    pub fn leaving(context: &UserContext, record: &InstanceDir, started: &Started) -> Result<Option<Self>> {
        let (Net::Named(name), Some(port)) = (&started.net, InstanceInterface::of(record, started)?) else {
            return Ok(None);
        };
        Ok(Some(Self { kind: port.kind, claim: network::keep(context, name, port.address)? }))
    }

    /// The same while the instance still has the address: on the way to another node only a reservation of the last minutes counts.
    pub fn renewed(&self, context: &UserContext, started: &Started) -> Result<Self> {
        let now = now();
        let claim = match &started.net {
            Net::Named(name) if now.saturating_sub(self.claim.in_use) > RENEWED_AFTER => {
                network::keep(context, name, self.claim.address)?
            }
            _ => self.claim.clone(),
        };
        Ok(Self { kind: self.kind, claim })
    }

    /// Of one that was saved into a checkpoint's directory.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        let text = match small_file::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.context(|| path.display().to_string())?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| Error::new(format!("{}: {e}", path.display())))
    }

    /// Puts it there.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec(self).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        fs::write(&path, text).context(|| path.display().to_string())
    }

    /// Where it is reached.
    pub fn port(&self) -> InstanceInterface {
        InstanceInterface { kind: self.kind, address: self.claim.address }
    }
}

/// Where an instance is reached, whose network namespace is the user's own: its end of the wire.
#[derive(Clone, Copy, Debug)]
pub struct InstanceInterface {
    kind: NetworkDriver,
    address: Ipv4Addr,
}

impl InstanceInterface {
    /// Finds the member of a running instance; nothing if it has none.
    pub fn of(record: &InstanceDir, started: &Started) -> Result<Option<Self>> {
        let Net::Named(name) = &started.net else { return Ok(None) };
        let kind = network::read(name)?.kind;
        Ok(Some(Self { kind, address: record.address()? }))
    }

    /// Lets it be heard. Its connections must be there: to what is for one that is not, the kernel answers that there is none.
    pub fn open(self, inside: EnterTarget<'_>) -> Result<()> {
        self.turn(inside, gate::open)
    }

    /// Shuts it out, so that nobody hears of the end of connections that are to go on elsewhere.
    pub fn shut(self, inside: EnterTarget<'_>) -> Result<()> {
        self.turn(inside, gate::shut)
    }

    /// Opens it again when whoever has shut it, and says so by the other end of `shut_by`, ends without a word.
    pub fn open_when_abandoned(
        self,
        inside: EnterTarget<'_>,
        shut_by: BorrowedFd<'_>,
    ) -> Result<ReportingChild<()>> {
        let Self { kind, address } = self;
        enter::begin(EnterTarget { number: None, ..inside }, &[shut_by], || {
            match retry_on_intr(|| rustix::io::read(shut_by, &mut [0])) {
                Ok(0) | Err(_) => gate::open(address, kind).context(|| format!("address {address}")),
                Ok(_) => Ok(()),
            }
        })
    }

    fn turn(
        self,
        inside: EnterTarget<'_>,
        gate: impl Fn(Ipv4Addr, NetworkDriver) -> io::Result<()>,
    ) -> Result<()> {
        let Self { kind, address } = self;
        enter::run(inside, &[], || gate(address, kind).context(|| format!("address {address}")))
    }
}
