//! The time of day, as files and messages hold it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A day in seconds.
pub const DAY: u64 = 24 * 60 * 60;

/// Seconds since 1970 by this host's clock; 0 where that says an earlier time.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether something was done less than `seconds` ago. A time that another host's clock has put ahead of this one's counts by its distance.
#[must_use]
pub fn was_within(seconds: u64, time: u64) -> bool {
    now().abs_diff(time) < seconds
}
