//! Room in a file that is allocated before it is written to. Written into such room, data costs the kernel half the processor's time
//! (docs/image-files.md): it need not reserve and find a place for each block by itself. And what is allocated at once lies together.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::FallocateFlags;

use skiff_erofs::tree::BLOCK;

/// So much at once.
const STEP: u64 = 64 << 20;
/// For less it is not worth the call.
const LEAST: u64 = 1 << 20;

/// The room that one writer, who goes from one place to a later one, has allocated.
#[derive(Default)]
pub(crate) struct Preallocation {
    room: Range<u64>,
    /// There is none to be had in this way.
    refused: bool,
}

impl Preallocation {
    /// Sees to it that the bytes `from..to`, which are written next, have room, and what follows until `limit`, where others' begins, too.
    /// Where it cannot, they are written without.
    pub fn reach(&mut self, file: BorrowedFd<'_>, from: u64, to: u64, limit: u64) {
        if self.refused || to <= self.room.end || to > limit {
            return;
        }
        let start = from.max(self.room.end);
        let end = start.saturating_add(STEP).max(to).next_multiple_of(BLOCK).min(limit);
        if end - start < LEAST {
            return;
        }
        match rustix::fs::fallocate(file, FallocateFlags::empty(), start, end - start) {
            Ok(()) if self.room.is_empty() => self.room = start..end,
            Ok(()) => self.room.end = end,
            // That there is no room is said by the write that finds none: what was promised may be more than what comes.
            Err(_) => self.refused = true,
        }
    }

    /// Where the room ends that was allocated: with a block.
    pub fn end(&self) -> u64 {
        self.room.end
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn room_is_there_before_it_is_needed_and_never_beyond_the_limit() {
        let file = tempfile::tempfile().unwrap();
        let stored = || file.metadata().unwrap().blocks() * 512;
        let mut allocated = Preallocation::default();
        let limit = 4096 + 3 * LEAST;
        allocated.reach(file.as_fd(), 4096, 9000, limit);
        assert_eq!((allocated.end(), stored() / LEAST), (limit, 3));
        // There is nothing more to be had, and what is behind is others'.
        allocated.reach(file.as_fd(), limit, limit + LEAST, limit);
        allocated.reach(file.as_fd(), limit + LEAST, limit + 2 * LEAST, limit);
        assert_eq!((allocated.end(), file.metadata().unwrap().len()), (limit, limit));
    }

    #[test]
    fn whoever_goes_on_gets_more() {
        let file = tempfile::tempfile().unwrap();
        let mut allocated = Preallocation::default();
        for at in [0, STEP - 1, STEP] {
            allocated.reach(file.as_fd(), at, at + 1, u64::MAX);
        }
        assert_eq!((allocated.end(), file.metadata().unwrap().blocks() * 512), (2 * STEP, 2 * STEP));
    }

    #[test]
    fn without_room_there_is_none() {
        let (nowhere, mut allocated) = (File::open("/dev/null").unwrap(), Preallocation::default());
        allocated.reach(nowhere.as_fd(), 0, LEAST, 2 * LEAST);
        assert_eq!(allocated.end(), 0);
    }
}
