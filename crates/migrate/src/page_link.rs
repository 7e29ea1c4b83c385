//! The sender's end of the connection for pages: how fast it is, and whether what goes through it is packed on its way. Only a link that is slower
//! than packing gains by it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_cork;
use rustix::process::Pid;
use skiff_cli::Compress;
use skiff_criu::page_protocol::PAGE;
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

use crate::ahead::Precopy;
use crate::direct::{self, MemoryRanges, PageRun};
use crate::sort::Sorting;
use crate::squeeze::{self, Sending};
use crate::talk::{DestinationMessage, SourceMessage};
use crate::way::ReceiverLink;

/// Bytes by which it is found out: 32 ms at 1 Gbit/s.
const PROBE: usize = 4 << 20;
/// Bytes a second that a link must take so that nothing is packed: about what one processor packs.
const FAST: f64 = 250e6;
/// How long the other side may take to say that they have come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Transfer of the instance's memory.
pub struct Pages {
    /// What CRIU talks to.
    criu: OwnedFd,
    ours: Option<OwnedFd>,
    packed: bool,
    /// What sends some of them before the processes are stopped.
    ahead: Option<Precopy>,
    sorting: Option<Sorting>,
    sending: Option<Sending>,
}

/// What has been sent while CRIU spoke, and what is still to be.
#[derive(Default)]
pub struct Sorted {
    /// Memory that goes straight from the processes.
    pub runs: Vec<PageRun>,
    /// Bytes that went by the link, if they were counted.
    pub sent: Option<u64>,
}

impl Pages {
    /// Before CRIU is started: it has what it may talk to from its beginning.
    pub fn prepare() -> Result<Self> {
        let (criu, ours) = squeeze::pair()?;
        Ok(Self { criu, ours: Some(ours), packed: false, ahead: None, sorting: None, sending: None })
    }

    /// What CRIU must have.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.criu.as_fd()
    }

    /// Finds out whether they are to be packed, and says so to the other side.
    pub fn choose(&mut self, way: &mut ReceiverLink, compress: Compress) -> Result<()> {
        self.packed = compress == Compress::Auto && speed(way)? < FAST;
        way.peer.tell(&SourceMessage::Memory { packed: self.packed })
    }

    /// Begins to send what is in these ranges while the processes run.
    pub fn begin_ahead(
        &mut self,
        way: &ReceiverLink,
        inside: EnterTarget<'_>,
        ranges: &MemoryRanges,
    ) -> Result<&mut Precopy> {
        Ok(self.ahead.insert(Precopy::begin(inside, way.goods.as_fd(), self.packed, ranges)?))
    }

    /// Begins with what CRIU says of what descends from `init`; the number of the descriptor that CRIU is to talk to.
    pub fn begin(&mut self, way: &ReceiverLink, init: Pid, ranges: MemoryRanges) -> Result<i32> {
        let ours = self.ours.take().ok_or_else(|| Error::new("connection for pages: it has been used"))?;
        let out = if self.packed {
            let (end, theirs) = squeeze::pair()?;
            self.sending = Some(Sending::begin(theirs, way.goods.as_fd())?);
            end
        } else {
            cork(way, true)?;
            way.goods.try_clone().context(about)?
        };
        let stopped = self.ahead.as_ref().map(Precopy::stopped).transpose()?;
        self.sorting = Some(Sorting::begin(ours, out, (init, ranges), stopped)?);
        Ok(self.criu.as_raw_fd())
    }

    /// CRIU has said all, or nothing more of it is wanted.
    pub fn end(&mut self, way: &ReceiverLink) -> Result<Sorted> {
        let Some(sorting) = self.sorting.take() else { return Ok(Sorted::default()) };
        let runs = sorting.end();
        let sent = self.sending.take().map(Sending::end).transpose();
        if !self.packed {
            cork(way, false)?;
        }
        Ok(Sorted { runs: runs?, sent: sent? })
    }

    /// Sends what CRIU has left where it was, but for what is over there already. What is being done gives the number of bytes that went by the link, before it,
    /// too.
    pub fn send(
        &mut self,
        way: &ReceiverLink,
        inside: EnterTarget<'_>,
        runs: &[PageRun],
    ) -> Result<ReportingChild<u64>> {
        if let Some(ahead) = self.ahead.take() {
            return ahead.send(runs);
        }
        let goods = way.goods.as_fd();
        enter::begin(inside, &[goods], || {
            let sent = squeeze::through(goods, self.packed, |link| direct::send(runs, link))?;
            let all = || runs.iter().map(|run| run.pages * PAGE).sum();
            Ok(sent.unwrap_or_else(all))
        })
    }
}

fn about() -> &'static str {
    "connection for pages"
}

/// Whether small words wait for more.
fn cork(way: &ReceiverLink, so: bool) -> Result<()> {
    set_tcp_cork(&way.goods, so).context(about)
}

/// Bytes a second.
fn speed(way: &mut ReceiverLink) -> Result<f64> {
    way.peer.tell(&SourceMessage::Probe(PROBE as u64))?;
    let begun = Instant::now();
    let goods = way.goods.try_clone().context(about)?;
    File::from(goods).write_all(&vec![0; PROBE]).context(about)?;
    match way.peer.hear(begun + PATIENCE)? {
        DestinationMessage::Probed => Ok(PROBE as f64 / begun.elapsed().as_secs_f64()),
        DestinationMessage::Failed(message, hint) => Err(Error::new(message).hint(hint)),
        other => Err(super::hear::strange(&other)),
    }
}
