//! Memory that comes before the processes it is of have been stopped: it waits in a file in memory until they are made here, the last that came
//! of each page.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use skiff_criu::page_protocol::{PAGE, PRESENT, PageServerCommand, process};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use crate::block::{Block, piece, zeros};
use crate::layout::{MemoryLayout, MemoryRanges};
use crate::page_io::{self, OTHER_SIDE, strange};

/// Memory that has been received before the processes are stopped.
#[derive(Debug)]
pub struct PrecopyBuffer {
    file: File,
    layout: MemoryLayout,
    /// Bytes that it may take.
    most: u64,
}

fn about() -> &'static str {
    "memory that comes ahead"
}

impl PrecopyBuffer {
    /// With room for what is in these ranges, but for so many bytes at most: what is known of how many there are is of before.
    ///
    /// # Errors
    /// When they are none, or descriptors are used up.
    pub fn new(ranges: &MemoryRanges, most: u64) -> Result<Self> {
        let layout = MemoryLayout::new(ranges)?;
        let file = File::from(memfd_create("early", MemfdFlags::CLOEXEC).context(about)?);
        ftruncate(&file, layout.size()).context(about)?;
        Ok(Self { file, layout, most })
    }

    /// Takes all that `crate::ahead` sends while the processes run; `tell` hears of every piece.
    ///
    /// # Errors
    /// When the connection is lost, what comes is not understood, or there is no memory.
    pub fn receive(&self, socket: &mut impl Read, mut tell: impl FnMut(u64)) -> Result<()> {
        let mut block = Block::new();
        loop {
            let (of, address, pages, flags) = match page_io::read(socket)? {
                PageServerCommand::Add { of, address, pages, flags } => (of, address, pages, flags),
                PageServerCommand::Open(_) => return Err(strange()),
                PageServerCommand::Close => return Ok(()),
            };
            let length = piece(address, pages).filter(|_| flags & PRESENT != 0).ok_or_else(strange)?;
            let place = process(of).and_then(|pid| self.layout.place(pid, address, length));
            let bytes = block.resize(length);
            socket.read_exact(bytes).context(|| OTHER_SIDE)?;
            self.file.write_all_at(bytes, place.ok_or_else(strange)?).context(about)?;
            let taken = self.file.metadata().context(about)?.blocks() * 512;
            if taken > self.most {
                return Err(Fault::new(format!(
                    "no room: more than {} MiB of memory have come",
                    self.most >> 20
                ))
                .hint("--mode disk takes less at a time"));
            }
            tell(length);
        }
    }

    /// Gives what has come of a process, for good.
    ///
    /// # Errors
    /// When nothing was to come of that.
    pub fn take(&self, pid: i32, address: u64, into: &mut [u8]) -> Result<()> {
        let place = self.layout.place(pid, address, into.len() as u64).ok_or_else(strange)?;
        self.file.read_exact_at(into, place).context(about)?;
        // A page with nothing in it does not come ahead: this one never came, or was taken before.
        if into.chunks(PAGE as usize).any(zeros) {
            return Err(strange());
        }
        self.give(pid, address, into.len() as u64);
        Ok(())
    }

    /// Gives the kernel the memory back that this has, if it has any.
    pub fn give(&self, pid: i32, address: u64, bytes: u64) {
        if let Some(place) = self.layout.place(pid, address, bytes) {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, how, place, bytes)
                .ignore_error("who wants it finds other memory; it only takes longer");
        }
    }
}

impl AsFd for PrecopyBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skiff_criu::page_protocol::{SHARED, of};

    fn add(flags: u16, pages: u64, address: u64, byte: u8) -> Vec<u8> {
        let there = if flags & PRESENT == 0 { 0 } else { pages * PAGE };
        [
            &PageServerCommand::Add { of: of(2), address, pages, flags }.bytes()[..],
            &vec![byte; there as usize],
        ]
        .concat()
    }

    fn early_for(most: u64) -> PrecopyBuffer {
        PrecopyBuffer::new(&MemoryRanges::from([(2, vec![(0x1000, 0x4000), (0x8000, 0x9000)])]), most)
            .expect("a file")
    }

    fn early() -> PrecopyBuffer {
        early_for(4 * PAGE)
    }

    #[test]
    fn the_last_that_came_of_a_page_is_there_once() {
        let early = early();
        let said =
            [add(PRESENT, 3, 0x1000, 1), add(PRESENT, 1, 0x8000, 2), add(PRESENT, 1, 0x2000, 3)].concat();
        let mut told = 0;
        early
            .receive(&mut &[said, PageServerCommand::Close.bytes().into()].concat()[..], |bytes| {
                told += bytes
            })
            .expect("taken");
        assert_eq!(told, 5 * PAGE);
        let mut there = vec![0; 0x3000];
        early.take(2, 0x1000, &mut there).expect("there");
        let pages: Vec<u8> = there.chunks(PAGE as usize).map(|page| page[17]).collect();
        assert_eq!(pages, [1, 3, 1]);
        assert_eq!(
            early.file.metadata().expect("known").blocks() * 512,
            PAGE,
            "the rest has been given back"
        );
        early.give(2, 0x8000, PAGE);
        early.give(2, 0xf000, PAGE);
        assert_eq!(early.file.metadata().expect("known").blocks(), 0);
        assert_eq!(early.take(2, 0x3000, &mut [0; 8192]), Err(strange()), "over its end");
        assert_eq!(early.take(2, 0x1000, &mut [0; 4096]), Err(strange()), "taken before");
    }

    #[test]
    fn what_is_cut_or_strange_is_an_error() {
        let shared = PageServerCommand::Add {
            of: 2 << 8 | u64::from(SHARED),
            address: 0x1000,
            pages: 1,
            flags: PRESENT,
        };
        let too_many = PageServerCommand::Add { of: of(2), address: 0x1000, pages: 1 << 60, flags: PRESENT };
        let (ends, strange) = ("failed to fill whole buffer", "not as they were announced");
        for (what, said, reason) in [
            ("nothing", vec![], ends),
            ("no end", add(PRESENT, 1, 0x1000, 1), ends),
            ("cut", add(PRESENT, 1, 0x1000, 1)[..100].to_vec(), ends),
            ("nowhere", add(PRESENT, 1, 0x5000, 1), strange),
            ("over an end", add(PRESENT, 2, 0x3000, 1), strange),
            ("no page", add(PRESENT, 0, 0x1000, 1), strange),
            ("none that came before", add(0, 1, 0x1000, 1), strange),
            ("too many", too_many.bytes().into(), strange),
            ("of no process", [&shared.bytes()[..], &[0; 4096]].concat(), strange),
            ("of one that comes", PageServerCommand::Open(of(2)).bytes().into(), strange),
        ] {
            let refused = early().receive(&mut &said[..], |_| ()).expect_err(what);
            assert_eq!(refused.message, format!("pages from the other side: {reason}"), "{what}");
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        let said: Vec<u8> = (1..=3).flat_map(|page| add(PRESENT, 1, 0x1000 * page, 1)).collect();
        let mut told = 0;
        let refused = early_for(2 * PAGE).receive(&mut &said[..], |bytes| told += bytes).expect_err("full");
        assert!(refused.message.starts_with("no room: "), "{refused}");
        assert_eq!(told, 2 * PAGE);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_take_the_receiver_down(said in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let mut told = 0;
            let taken = early().receive(&mut &said[..], |bytes| told += bytes);
            assert!(taken.is_err() || told == 0);
        }
    }
}
