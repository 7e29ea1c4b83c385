//! How long somebody waits for another who makes the same image.
//!
//! That other may be another user, whose registry sends a byte a minute, or whose processes are frozen. What a user's own processes make is
//! waited for as long as it grows, and a minute beyond. Another user's is waited for only while it grows faster than a slow network would
//! bring it: who stops to grow is given up within a second, for good, so nobody can be kept waiting a second time. The one who gives up
//! begins by themselves while the other goes on; neither begins anew for that, and whoever is first has made it for both.

use std::time::{Duration, Instant};

/// What is no growth worth waiting for, in bytes: of one's own, and of others.
const STEP: u64 = 8 << 20;
const STEP_OF_OTHERS: u64 = 4 << 20;

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// While nothing grows. Longer than it takes to sync and check a large image.
    pub stall: Duration,
    /// While nothing of another user's grows.
    pub stall_of_others: Duration,
    /// In all.
    pub longest: Duration,
    /// In all, while it is another user's.
    pub longest_of_others: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            stall: Duration::from_secs(60),
            stall_of_others: Duration::from_millis(700),
            longest: Duration::from_secs(900),
            longest_of_others: Duration::from_secs(900),
        }
    }
}

impl Patience {
    /// The same, but no more than this is spent on other users, whether what they make grows or not.
    #[must_use]
    pub fn for_others(self, budget: Duration) -> Patience {
        let stall_of_others = self.stall_of_others.min(budget);
        Patience { stall_of_others, longest_of_others: self.longest_of_others.min(budget), ..self }
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

    /// Whether to wait on, where what is waited for has this many bytes now, and `is_own` says whether it is made for the same user.
    pub(super) fn waits(&mut self, is_own: bool, bytes: u64, now: Instant) -> bool {
        let Patience { stall, stall_of_others, longest, longest_of_others } = self.patience;
        let (step, stall, longest) = match is_own {
            true => (STEP, stall, longest),
            false => (STEP_OF_OTHERS, stall_of_others, longest_of_others),
        };
        if bytes >= self.bytes.saturating_add(step) {
            (self.bytes, self.grown) = (bytes, now);
        }
        now - self.begun < longest && now - self.grown < stall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        let second = Duration::from_secs(1);
        Patience {
            stall: 10 * second,
            stall_of_others: second,
            longest: 60 * second,
            longest_of_others: 60 * second,
        }
    }

    #[test]
    fn growth_is_waited_for_but_not_for_ever() {
        let mut waiter = Waiter::new(patience());
        let begun = waiter.begun;
        let mut waits = |bytes, at| waiter.waits(true, bytes, begun + Duration::from_secs(at));
        assert!(waits(0, 9) && waits(STEP, 9) && waits(STEP, 18));
        assert!(!waits(STEP + 1000, 19), "a trickle is no growth");
        assert!(waits(2 * STEP, 30) && waits(100 * STEP, 59));
        assert!(!waits(200 * STEP, 60), "not for ever");
    }

    #[test]
    fn another_user_who_stops_is_not_waited_for() {
        let mut waiter = Waiter::new(patience());
        let begun = waiter.begun;
        let mut waits = |bytes, ms| waiter.waits(false, bytes, begun + Duration::from_millis(ms));
        assert!(waits(0, 900) && waits(STEP, 950) && waits(STEP, 1900), "it grows");
        assert!(!waits(STEP + (1 << 20), 2000), "it has stopped, or nearly");
    }

    #[test]
    fn what_is_spent_on_others_ends_though_what_they_make_grows() {
        let mut waiter = Waiter::new(patience().for_others(Duration::from_millis(300)));
        let begun = waiter.begun;
        let mut waits = |is_own, bytes, ms| waiter.waits(is_own, bytes, begun + Duration::from_millis(ms));
        assert!(waits(false, STEP, 100) && waits(false, 2 * STEP, 290));
        assert!(!waits(false, 3 * STEP, 300));
        assert!(waits(true, 4 * STEP, 9000), "one's own is waited for as ever");
    }
}
