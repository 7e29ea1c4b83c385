//! The sender's end of the connection for pages: how fast it is, and whether what CRIU sends is packed on its way. Only a link that is slower
//! than packing gains by it; by any other the pages go from the processes into it, with nobody in between.

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use skiff_migrate::squeeze::{self, Sending};
use skiff_sandbox::{Context as _, Error, Result};

use super::talk::{Order, Report};
use super::way::Way;
use crate::cli::Compress;

/// Bytes by which it is found out: 32 ms at 1 Gbit/s.
const PROBE: usize = 4 << 20;
/// Bytes a second that a link must take so that nothing is packed: about what one processor packs.
const FAST: f64 = 250e6;
/// How long the other side may take to say that they have come.
const PATIENCE: Duration = Duration::from_secs(60);

/// It.
pub struct Pages {
    /// What CRIU talks to if its pages are packed.
    criu: OwnedFd,
    ours: Option<OwnedFd>,
    packed: bool,
    sending: Option<Sending>,
}

impl Pages {
    /// Before CRIU is started: it has what it may talk to from its beginning.
    pub fn prepare() -> Result<Self> {
        let (criu, ours) = squeeze::pair()?;
        Ok(Self { criu, ours: Some(ours), packed: false, sending: None })
    }

    /// What CRIU must have besides the connection.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.criu.as_fd()
    }

    /// Finds out whether they are to be packed, and says so to the other side.
    pub fn choose(&mut self, way: &mut Way, compress: Compress) -> Result<()> {
        self.packed = compress == Compress::Auto && speed(way)? < FAST;
        way.peer.tell(&Order::Memory { packed: self.packed })
    }

    /// Begins; the number of the descriptor that CRIU is to talk to.
    pub fn begin(&mut self, way: &Way) -> Result<i32> {
        match self.ours.take().filter(|_| self.packed) {
            Some(ours) => {
                self.sending = Some(Sending::begin(ours, way.goods.as_fd())?);
                Ok(self.criu.as_raw_fd())
            }
            None => Ok(way.goods.as_raw_fd()),
        }
    }

    /// CRIU has said all, or nothing more of it is wanted; how many bytes went by the link, if that was counted.
    pub fn end(&mut self) -> Result<Option<u64>> {
        self.sending.take().map(Sending::end).transpose()
    }
}

/// Bytes a second.
fn speed(way: &mut Way) -> Result<f64> {
    let about = || "connection for pages";
    way.peer.tell(&Order::Probe(PROBE as u64))?;
    let begun = Instant::now();
    let goods = way.goods.try_clone().context(about)?;
    std::fs::File::from(goods).write_all(&vec![0; PROBE]).context(about)?;
    match way.peer.hear(begun + PATIENCE)? {
        Report::Probed => Ok(PROBE as f64 / begun.elapsed().as_secs_f64()),
        Report::Failed(message, hint) => Err(Error { message, hint }),
        other => Err(super::hand_over::strange(&other)),
    }
}
