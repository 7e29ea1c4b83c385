//! The allocator of programs that live for milliseconds.
//!
//! musl's own asks the kernel for a page or two at a time and gives them back at once: in a start that allocates a few
//! hundred times, a tenth of a millisecond of `mmap`, `munmap` and page faults. Here the first allocations lie one behind the
//! other in a block of the program's zeroed memory, which costs nothing until it is touched. What does not fit any more, so
//! most of a long life, is the system allocator's; large blocks are kept for a while when they are given back.

mod spare;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use spare::{SpareBlocks, block_of};

const SIZE: usize = 256 << 10;
const ALIGNMENT: usize = 4096;
/// How many bytes the kernel gives pages for at once.
const AT_ONCE: usize = 16 << 10;

/// To be made the `#[global_allocator]` of a program.
pub struct Arena {
    block: Block,
    used: AtomicUsize,
    first: usize,
    spare: SpareBlocks,
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
        Self {
            block: Block(UnsafeCell::new([0; SIZE])),
            used: AtomicUsize::new(0),
            first,
            spare: SpareBlocks::new(),
        }
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
// back there, or is kept for the next one who wants such a large one. Memory is given to the next one only when its owner has given it back.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(pointer) = self.take(layout) {
            return pointer;
        }
        let Some(block) = block_of(layout) else {
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.alloc(layout) };
        };
        // SAFETY: a block is not empty.
        self.spare.take(block).unwrap_or_else(|| unsafe { System.alloc(block) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let dirty = self.take(layout).or_else(|| self.spare.take(block_of(layout)?));
        match dirty {
            // SAFETY: it has at least this size.
            Some(pointer) => unsafe { pointer.write_bytes(0, layout.size()) },
            // SAFETY: the caller's promises are passed on, and a block is not empty. New pages need no zeroing.
            None => return unsafe { System.alloc_zeroed(block_of(layout).unwrap_or(layout)) },
        }
        dirty.unwrap_or(std::ptr::null_mut())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match (self.place(pointer), block_of(layout)) {
            // Only the last one can be given again; that suffices to grow and drop buffers.
            (Some(at), _) => {
                self.move_end(at + layout.size(), at);
            }
            // SAFETY: it is not in the arena, so it is such a block.
            (None, Some(block)) => unsafe { self.spare.put(pointer, block) },
            // SAFETY: it is not in the arena, so it came from there.
            (None, None) => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that makes a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match self.place(pointer) {
            Some(at) => {
                let grown = at.checked_add(size).filter(|end| *end <= SIZE);
                if grown.is_some_and(|end| self.move_end(at + layout.size(), end)) || size <= layout.size() {
                    return pointer;
                }
            }
            None => match (block_of(layout), block_of(wanted)) {
                (Some(old), Some(new)) if old == new => return pointer,
                // SAFETY: it is neither in the arena nor a block, so it came from there, and goes on to be neither.
                (None, None) => return unsafe { System.realloc(pointer, layout, size) },
                _ => {}
            },
        }
        // SAFETY: old and new do not overlap, as the old one is given back when the bytes are copied.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                self.dealloc(pointer, layout);
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

    #[test]
    fn large_ones_are_given_again_whole_and_zeroed_where_that_is_promised() {
        let arena = Arena::new(64 << 10);
        let layout = |size| Layout::from_size_align(size, 8).expect("a sound layout");
        let sizes = [300 << 10, 97 << 10, 256 << 10, 320 << 10, 321 << 10, 1 << 20, 1088 << 10, 2 << 20];
        for size in sizes {
            // SAFETY: what is written and read lies within what was given, until it is given back.
            unsafe {
                let first = arena.alloc(layout(size));
                first.write_bytes(7, size);
                arena.dealloc(first, layout(size));
                let zeroed = arena.alloc_zeroed(layout(size));
                assert!((0..size).all(|i| *zeroed.add(i) == 0), "{size}");
                zeroed.write_bytes(9, size);
                let grown = arena.realloc(zeroed, layout(size), size + 5000);
                assert!((0..size).all(|i| *grown.add(i) == 9), "{size}");
                let less = arena.realloc(grown, layout(size + 5000), 1000);
                assert!((0..1000).all(|i| *less.add(i) == 9), "{size}");
                arena.dealloc(less, layout(1000));
            }
        }
        // SAFETY: given back before it is taken again.
        unsafe {
            // The arena has room for one of this size at most.
            let [_rest, one] = [arena.alloc(layout(SIZE)), arena.alloc(layout(262_190))];
            arena.dealloc(one, layout(262_190));
            assert_eq!(arena.alloc(layout(100 << 10)), one, "of the same kind");
        }
    }

    #[test]
    fn nobody_has_what_another_thread_has() {
        static ARENA: Arena = Arena::new(0);
        let threads: Vec<_> = (0..4u8)
            .map(|mark| {
                std::thread::spawn(move || {
                    let layout = Layout::from_size_align(256 << 10, 8).expect("a sound layout");
                    for turn in 0..500 {
                        // SAFETY: within what was given, which is given back once.
                        unsafe {
                            let mine: Vec<_> = (0..4).map(|_| ARENA.alloc(layout)).collect();
                            mine.iter().for_each(|p| p.write_bytes(mark, 64));
                            std::thread::yield_now();
                            for p in mine {
                                assert!((0..64).all(|i| *p.add(i) == mark), "thread {mark}, turn {turn}");
                                ARENA.dealloc(p, layout);
                            }
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
