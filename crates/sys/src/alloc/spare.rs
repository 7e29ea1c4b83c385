//! Large blocks that were given back, for those who want one next.
//!
//! Whoever passes on pieces of files takes a block of 256 KiB for each and gives it back a moment later. musl's allocator has each
//! from the kernel and returns it there: 64 page faults a piece, which took more than half of a relay's time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What is larger than this the system's allocator has from the kernel.
const SMALLEST: usize = 96 << 10;
/// All blocks of a kind are this large, and so many are kept: of all kinds less than 7 MiB.
const SMALLER: usize = 320 << 10;
const LARGER: usize = 1088 << 10;
/// What `malloc` aligns to.
const ALIGNMENT: usize = 16;

/// The blocks that nobody has.
pub(super) struct SpareBlocks {
    smaller: [AtomicPtr<u8>; 8],
    larger: [AtomicPtr<u8>; 4],
}

/// How large a block is where this is wanted, if blocks of that kind are kept.
pub(super) fn block_of(layout: Layout) -> Option<Layout> {
    let size = match layout.size() {
        _ if layout.align() > ALIGNMENT => return None,
        size if size <= SMALLEST || size > LARGER => return None,
        size if size <= SMALLER => SMALLER,
        _ => LARGER,
    };
    Layout::from_size_align(size, ALIGNMENT).ok()
}

impl SpareBlocks {
    pub(super) const fn new() -> Self {
        Self {
            smaller: [const { AtomicPtr::new(null_mut()) }; 8],
            larger: [const { AtomicPtr::new(null_mut()) }; 4],
        }
    }

    fn kept(&self, block: Layout) -> &[AtomicPtr<u8>] {
        if block.size() == SMALLER { &self.smaller } else { &self.larger }
    }

    /// One that is kept, with the bytes of whoever had it before.
    pub(super) fn take(&self, block: Layout) -> Option<*mut u8> {
        let mut kept = self.kept(block).iter();
        // Looked at first, as to exchange costs other processors more.
        kept.find_map(|place| {
            let is_empty = place.load(Ordering::Relaxed).is_null();
            let taken = if is_empty { null_mut() } else { place.swap(null_mut(), Ordering::Acquire) };
            (!taken.is_null()).then_some(taken)
        })
    }

    /// Keeps one, or gives it to the system's allocator.
    ///
    /// # Safety
    /// It came from [`Self::take`] or the system's allocator, for such a block, and nobody uses it any more.
    pub(super) unsafe fn put(&self, pointer: *mut u8, block: Layout) {
        let is_kept = self.kept(block).iter().any(|place| {
            place.compare_exchange(null_mut(), pointer, Ordering::Release, Ordering::Relaxed).is_ok()
        });
        if !is_kept {
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(pointer, block) };
        }
    }
}
