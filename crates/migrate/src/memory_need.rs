//! How much memory an instance takes that comes without a disk, and whether this host has it.

use skiff_checkpoint::memory;
use skiff_checkpoint::obstacles::SavedProcess;
use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};

use crate::talk::Offer;

/// So much of a process CRIU reads before it gives it back.
const TWICE: u64 = 128 << 20;
/// What else is in memory besides the pages: images, and the instance's files.
pub const SLACK: u64 = 64 << 20;

/// How much memory an instance takes that comes without a disk.
pub struct MemoryNeed {
    /// Of each process, bytes that come in CRIU's images.
    pub images: Vec<(i32, u64)>,
    /// Bytes that are there twice for a while.
    pub twice: u64,
    /// Bytes that all processes have.
    pub all: u64,
    /// Bytes that this host has for them.
    pub available: u64,
}

impl MemoryNeed {
    /// Refuses an instance that takes more than there is. CRIU gives back what it has read of an image, so that little is there twice: as an image, and
    /// as the process.
    pub fn of(offer: &Offer) -> Result<Self> {
        let memory = |process: &SavedProcess| {
            let direct = offer.direct.get(&process.pid).map_or(&[][..], Vec::as_slice);
            let direct =
                direct.iter().map(|(from, to)| to.saturating_sub(*from)).fold(0, u64::saturating_add);
            (process.pid, process.memory.saturating_sub(direct))
        };
        let processes = &offer.checkpoint.processes;
        let images: Vec<(i32, u64)> = processes.iter().map(memory).collect();
        let twice = images.iter().map(|(_, bytes)| *bytes.min(&TWICE)).fold(0, u64::saturating_add);
        let all = processes.iter().map(|process| process.memory).fold(0, u64::saturating_add);
        let wanted = all.saturating_add(twice).saturating_add(SLACK);
        let available = memory::available()?;
        if wanted > available {
            let (wanted, available) = (output::size(wanted), output::size(available));
            return Err(Error::new(format!(
                "no room: it needs {wanted} of memory, and {available} are available"
            ))
            .hint("--mode disk takes less at a time"));
        }
        Ok(Self { images, twice, all, available })
    }
}
