//! How long somebody waits for another who makes the same image.
//!
//! That other may be another user, whose registry sends a byte a minute, or whose process has been frozen: so he is waited for only as
//! long as what he makes grows, and not for ever.

use std::time::{Duration, Instant};

/// What is no growth worth waiting for, in bytes.
const STEP: u64 = 8 << 20;

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// While nothing grows. Longer than it takes to sync and check a large image.
    pub stall: Duration,
    /// In all.
    pub longest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { stall: Duration::from_secs(60), longest: Duration::from_secs(900) }
    }
}

/// Someone who waits.
pub(super) struct Waiter {
    patience: Patience,
    begun: Instant,
    grown: Instant,
    bytes: u64,
}

impl Waiter {
    pub(super) fn new(patience: Patience) -> Waiter {
        let now = Instant::now();
        Waiter { patience, begun: now, grown: now, bytes: 0 }
    }

    /// Whether to wait on, where what is waited for has this many bytes now.
    pub(super) fn waits(&mut self, bytes: u64, now: Instant) -> bool {
        if bytes >= self.bytes.saturating_add(STEP) {
            (self.bytes, self.grown) = (bytes, now);
        }
        now - self.begun < self.patience.longest && now - self.grown < self.patience.stall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_waited_for_but_not_for_ever() {
        let second = Duration::from_secs(1);
        let mut waiter = Waiter::new(Patience { stall: 10 * second, longest: 60 * second });
        let begun = waiter.begun;
        let mut waits = |bytes, at| waiter.waits(bytes, begun + at * second);
        assert!(waits(0, 9) && waits(STEP, 9) && waits(STEP, 18));
        assert!(!waits(STEP + 1000, 19), "a trickle is no growth");
        assert!(waits(2 * STEP, 30) && waits(100 * STEP, 59));
        assert!(!waits(200 * STEP, 60), "not for ever");
    }
}
