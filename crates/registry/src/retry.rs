//! How long to wait before asking again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use super::failure::Failure;

/// The first pause; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(200);
/// No pause of our own is longer.
const LONGEST: Duration = Duration::from_secs(20);
/// A server that wants to be left alone for longer is not waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// The pause before trying again after `failures` failures in a row; nothing if there is no use in it.
pub(super) fn pause(failure: &Failure, failures: u32, tries: u32) -> Option<Duration> {
    if !failure.is_transient() || failures >= tries {
        return None;
    }
    let own = jittered(FIRST.saturating_mul(1 << (failures.saturating_sub(1)).min(16)).min(LONGEST));
    match failure {
        Failure::Status { retry_after: Some(asked), .. } if *asked > PATIENCE => None,
        // A little later than asked: all who were sent away at once should not come back at once.
        Failure::Status { retry_after: Some(asked), .. } => Some(*asked + own / 4),
        _ => Some(own),
    }
}

/// Between half of it and all of it.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(std::process::id());
    pause.mul_f64(0.5 + (random % 1024) as f64 / 2048.0)
}

/// `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_retry_after_are_read() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").expect("a date");
        for (value, seconds) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("99999999999999999999999", Some(u64::from(u32::MAX))),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(retry_after(value, now).map(|d| d.as_secs()), seconds, "{value:?}");
        }
    }

    #[test]
    fn pauses_grow_and_end() {
        let reset = Failure::Connection("reset".into());
        for failures in 1..6 {
            let pause = pause(&reset, failures, 6).expect("another try");
            let most = FIRST * (1 << (failures - 1));
            assert!(pause >= most / 2 && pause <= most, "{failures}: {pause:?}");
        }
        assert_eq!(pause(&reset, 6, 6), None);
        assert!(pause(&reset, 40, 99).expect("another try") <= LONGEST);
        let status = |status, seconds| Failure::Status {
            status,
            message: String::new(),
            retry_after: Some(Duration::from_secs(seconds)),
        };
        let asked = pause(&status(429, 30), 1, 6).expect("another try").as_secs();
        assert!((30..=31).contains(&asked), "{asked}");
        assert_eq!(pause(&status(503, 3600), 1, 6), None, "an hour is too long");
        assert_eq!(pause(&status(404, 1), 1, 6), None, "it will not appear");
    }
}
