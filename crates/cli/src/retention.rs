//! How many checkpoints of one name stay: so many of them, those that are not older, or both.

use std::fmt;
use std::str::FromStr;

/// Nobody reads through more.
const MOST: u32 = 1000;
/// Units of age, in seconds.
const UNITS: [(char, u64); 4] = [('m', 60), ('h', 3600), ('d', 86_400), ('w', 7 * 86_400)];

/// Which older checkpoints of a name stay; the newest does in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    number: Option<u32>,
    /// In seconds.
    age: Option<u64>,
}

impl Default for Retention {
    /// The newest alone.
    fn default() -> Self {
        Self { number: Some(1), age: None }
    }
}

impl Retention {
    /// How many there may be.
    pub fn number(self) -> u32 {
        self.number.unwrap_or(MOST)
    }

    /// Whether one that was made then (seconds since 1970) is too old.
    pub fn too_old(self, created: u64, now: u64) -> bool {
        self.age.is_some_and(|age| created.saturating_add(age) < now)
    }
}

impl FromStr for Retention {
    type Err = String;
    fn from_str(words: &str) -> Result<Self, String> {
        let mut keep = Self { number: None, age: None };
        for word in words.split(',') {
            let wrong =
                || format!("{word:?}: a number up to {MOST}, or an age as 30m, 12h, 7d or 2w, or both: 5,7d");
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let number = |text: &str| text.parse().ok().filter(|n| digits(text) && (1..=MOST).contains(n));
            let unit = UNITS.iter().find_map(|(unit, seconds)| Some((word.strip_suffix(*unit)?, seconds)));
            let again = match unit {
                Some((text, seconds)) => {
                    keep.age.replace(u64::from(number(text).ok_or_else(wrong)?) * seconds).is_some()
                }
                None => keep.number.replace(number(word).ok_or_else(wrong)?).is_some(),
            };
            if again {
                return Err(wrong());
            }
        }
        Ok(keep)
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number.map(|number| number.to_string());
        let age = self.age.map(|age| {
            let fits = UNITS.iter().rev().find(|(_, seconds)| age % seconds == 0);
            let (unit, seconds) = fits.copied().unwrap_or(UNITS[0]);
            format!("{}{unit}", age / seconds)
        });
        f.write_str(&[number, age].into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ages_and_nothing_else() {
        for (word, number, age) in [
            ("1", 1, None),
            ("7d", MOST, Some(604_800)),
            ("5,12h", 5, Some(43_200)),
            ("2w,3", 3, Some(1_209_600)),
        ] {
            let keep: Retention = word.parse().expect(word);
            assert_eq!((keep.number(), keep.age), (number, age), "{word}");
            assert_eq!(keep.to_string().parse(), Ok(keep), "{word}");
        }
        for bad in ["", "0", "1001", "0d", "-1", "d", "7y", "1,2", "1d,2d", "1,", "+1", "1 d"] {
            assert!(bad.parse::<Retention>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_too_old() {
        let keep: Retention = "1h".parse().expect("an age");
        assert!(!keep.too_old(1000, 1000 + 3600));
        assert!(keep.too_old(1000, 1000 + 3601));
        assert!(!"3".parse::<Retention>().expect("a number").too_old(0, u64::MAX));
    }
}
