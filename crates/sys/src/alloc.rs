//! The allocator of programs that live for milliseconds.
//!
//! musl's own asks the kernel for a page or two at a time and gives them back at once: in a start that allocates a few
//! hundred times, a tenth of a millisecond of `mmap`, `munmap` and page faults. Here the first allocations lie one behind the
//! other in a block of the program's zeroed memory, which costs nothing until it is touched. What does not fit any more, so
//! most of a long life, is the system allocator's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: usize = 256 << 10;
const ALIGNMENT: usize = 4096;
/// How many bytes the kernel gives pages for at once.
const AT_ONCE: usize = 16 << 10;

/// To be made the `#[global_allocator]` of a program.
pub struct Arena {
    block: Block,
    used: AtomicUsize,
    first: usize,
}

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

// SAFETY: every byte of the block is given to one owner at a time, by the compare-and-exchange on `used`.
unsafe impl Sync for Arena {}

impl Arena {
    /// An empty one. For what is going to be used in any case, at least `first` bytes, the kernel gives several pages at once, in a quarter of
    /// the time that they take one by one; but not all of them, as a start should begin its helper soon.
    #[must_use]
    pub const fn new(first: usize) -> Self {
        Self { block: Block(UnsafeCell::new([0; SIZE])), used: AtomicUsize::new(0), first }
    }

    fn start(&self) -> *mut u8 {
        self.block.0.get().cast()
    }

    /// Where in the block a pointer points to, if it does.
    fn place(&self, pointer: *mut u8) -> Option<usize> {
        let at = (pointer as usize).wrapping_sub(self.start() as usize);
        (at < SIZE).then_some(at)
    }

    /// Moves the end of what is used from `from` to `to`, if `from` is still where it is.
    fn move_end(&self, from: usize, to: usize) -> bool {
        self.used.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn populate(&self, from: usize, to: usize) {
        if from < to {
            // SAFETY: all of it is in the block, and no byte changes. (Before Linux 5.14 nothing happens at all.)
            unsafe { libc::madvise(self.start().add(from).cast(), to - from, libc::MADV_POPULATE_WRITE) };
        }
    }

    fn take(&self, layout: Layout) -> Option<*mut u8> {
        if layout.align() > ALIGNMENT {
            return None;
        }
        loop {
            let used = self.used.load(Ordering::Relaxed);
            let at = used.checked_next_multiple_of(layout.align())?;
            let end = at.checked_add(layout.size()).filter(|end| *end <= SIZE)?;
            if self.move_end(used, end) {
                self.populate(used.next_multiple_of(AT_ONCE), end.next_multiple_of(AT_ONCE).min(self.first));
                // SAFETY: `at` is at most SIZE, so the result is in the block or at its end.
                return Some(unsafe { self.start().add(at) });
            }
        }
    }
}

// SAFETY: `take` gives aligned memory that nobody else has; what is outside the block came from the system's allocator and goes
// back there. Memory is given to the next one only when its owner has given it back.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        self.take(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.place(pointer) {
            // Only the last one can be given again; that suffices to grow and drop buffers.
            Some(at) => {
                self.move_end(at + layout.size(), at);
            }
            // SAFETY: it is not in the block, so it came from there.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(at) = self.place(pointer) else {
            // SAFETY: it is not in the block, so it came from there.
            return unsafe { System.realloc(pointer, layout, size) };
        };
        let grown = at.checked_add(size).filter(|end| *end <= SIZE);
        if grown.is_some_and(|end| self.move_end(at + layout.size(), end)) || size <= layout.size() {
            return pointer;
        }
        // SAFETY: the caller promises a size that makes a layout; old and new do not overlap, and the new is larger.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(pointer, new, layout.size());
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_apart_and_keep_their_bytes() {
        let arena = Arena::new(64 << 10);
        let layout = |size, align| Layout::from_size_align(size, align).expect("a sound layout");
        let mut all: Vec<(*mut u8, Layout, u8)> = vec![];
        for n in 0..4000usize {
            let layout = layout(n % 257 + 1, 1 << (n % 8));
            // SAFETY: sizes are not zero; what is written lies within what was given.
            unsafe {
                let p = arena.alloc(layout);
                assert!(!p.is_null() && (p as usize).is_multiple_of(layout.align()));
                p.write_bytes(n as u8, layout.size());
                all.push((p, layout, n as u8));
            }
            if n % 3 == 0 {
                let (p, old, byte) = all.remove(n / 3 % all.len());
                // SAFETY: `p` has this layout, and is replaced by what it becomes.
                unsafe {
                    let size = old.size() * 2;
                    let p = arena.realloc(p, old, size);
                    assert!((0..old.size()).all(|i| *p.add(i) == byte));
                    p.write_bytes(byte, size);
                    all.push((p, Layout::from_size_align(size, old.align()).expect("a sound layout"), byte));
                }
            }
            if n % 5 == 0 {
                let (p, layout, _) = all.remove(n % all.len());
                // SAFETY: it has this layout and is used no more.
                unsafe { arena.dealloc(p, layout) };
            }
        }
        for (p, layout, byte) in all {
            // SAFETY: still ours; each is given back once.
            unsafe {
                assert!((0..layout.size()).all(|i| *p.add(i) == byte));
                arena.dealloc(p, layout);
            }
        }
    }
}
