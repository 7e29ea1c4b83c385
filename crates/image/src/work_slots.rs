//! Who may use the processors, the longest work first.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How many layers are unpacked side by side: one more than there are processors, since who writes waits for the disk now and then.
#[must_use]
pub fn default_threads() -> usize {
    1 + std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

/// Slots for work, of which there are few.
pub(crate) struct WorkSlots {
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    free: usize,
    /// Who waits: by how much work is left, then by number.
    waiting: BTreeSet<(u64, usize)>,
}

impl WorkSlots {
    pub fn new(slots: usize) -> WorkSlots {
        WorkSlots {
            state: Mutex::new(State { free: slots, waiting: BTreeSet::new() }),
            freed: Condvar::new(),
        }
    }

    /// Waits for a slot, and has it until what this gives is dropped. `work` is how much the one of this number has before it.
    pub fn acquire(&self, work: u64, number: usize) -> WorkSlot<'_> {
        let mut state = self.lock();
        state.waiting.insert((work, number));
        let mut state = self
            .freed
            .wait_while(state, |state| state.free == 0 || state.waiting.last() != Some(&(work, number)))
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting.remove(&(work, number));
        state.free -= 1;
        if state.free > 0 {
            // Whoever comes next was perhaps woken too early.
            self.freed.notify_all();
        }
        WorkSlot(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot, which is free again when this is dropped: by a panic too.
pub(crate) struct WorkSlot<'a>(&'a WorkSlots);

impl Drop for WorkSlot<'_> {
    fn drop(&mut self) {
        self.0.lock().free += 1;
        self.0.freed.notify_all();
    }
}
