//! The time of day, as files and messages hold it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970 by this host's clock; 0 where that says an earlier time.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
