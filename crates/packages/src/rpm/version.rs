//! Compares version numbers as RPM does (`rpmvercmp`).

use std::cmp::Ordering;

/// Compares versions: `[EPOCH:]VERSION-RELEASE`.
#[must_use]
pub fn compare(a: &str, b: &str) -> Ordering {
    let ((epoch_a, version_a, release_a), (epoch_b, version_b, release_b)) = (split(a), split(b));
    let parts = || part(version_a, version_b).then_with(|| part(release_a, release_b));
    epoch_a.cmp(&epoch_b).then_with(parts)
}

fn split(version: &str) -> (u32, &[u8], &[u8]) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (version, release) = rest.rsplit_once('-').unwrap_or((rest, ""));
    (epoch.parse().unwrap_or(0), version.as_bytes(), release.as_bytes())
}

/// By segments of digits or of letters; what is neither only separates them. A tilde is older than the end, a caret newer than that and older
/// than all else.
fn part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        (a, b) = (without_separators(a), without_separators(b));
        match (a.first(), b.first()) {
            (Some(b'~'), Some(b'~')) | (Some(b'^'), Some(b'^')) => (a, b) = (&a[1..], &b[1..]),
            (Some(b'~'), _) => return Ordering::Less,
            (_, Some(b'~')) => return Ordering::Greater,
            (Some(b'^'), None) => return Ordering::Greater,
            (None, Some(b'^')) => return Ordering::Less,
            (Some(b'^'), _) => return Ordering::Less,
            (_, Some(b'^')) => return Ordering::Greater,
            (None, other) => return if other.is_none() { Ordering::Equal } else { Ordering::Less },
            (_, None) => return Ordering::Greater,
            (Some(first), Some(_)) => {
                let is_number = first.is_ascii_digit();
                let (segment_a, rest_a) = segment(a, is_number);
                let (segment_b, rest_b) = segment(b, is_number);
                // Segments of two kinds: numbers are newer.
                if segment_b.is_empty() {
                    return if is_number { Ordering::Greater } else { Ordering::Less };
                }
                let order = match is_number {
                    true => number(segment_a, segment_b),
                    false => segment_a.cmp(segment_b),
                };
                if order.is_ne() {
                    return order;
                }
                (a, b) = (rest_a, rest_b);
            }
        }
    }
}

fn without_separators(text: &[u8]) -> &[u8] {
    let is_separator = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"~^".contains(byte);
    &text[text.iter().take_while(|byte| is_separator(byte)).count()..]
}

fn segment(text: &[u8], is_number: bool) -> (&[u8], &[u8]) {
    let belongs = |byte: &u8| if is_number { byte.is_ascii_digit() } else { byte.is_ascii_alphabetic() };
    text.split_at(text.iter().take_while(|byte| belongs(byte)).count())
}

fn number(a: &[u8], b: &[u8]) -> Ordering {
    let digits = |text: &[u8]| text.iter().skip_while(|digit| **digit == b'0').copied().collect::<Vec<u8>>();
    let (a, b) = (digits(a), digits(b));
    a.len().cmp(&b.len()).then_with(|| a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known of `rpmvercmp`.
    #[test]
    fn versions_are_in_the_order_of_rpm() {
        use Ordering::{Equal, Less};
        let table = [
            ("1.0", "1.0", Equal),
            ("1.0", "2.0", Less),
            ("2.0", "2.0.1", Less),
            ("2.0.1", "2.0.1a", Less),
            ("5.5p1", "5.5p2", Less),
            ("5.5p1", "5.5p10", Less),
            ("10xyz", "10.1xyz", Less),
            ("xyz10", "xyz10.1", Less),
            ("xyz.4", "8", Less),
            ("xyz.4", "2", Less),
            ("5.5p2", "5.6p1", Less),
            ("6.5p1", "5.6p1", Ordering::Greater),
            ("6.0", "6.0.rc1", Less),
            ("10a2", "10b2", Less),
            ("1.0aa", "1.0a", Ordering::Greater),
            ("10.0001", "10.1", Equal),
            ("10.0001", "10.0039", Less),
            ("4.999.9", "5.0", Less),
            ("20101121", "20101122", Less),
            ("2_0", "2.0", Equal),
            ("a+", "a_", Equal),
            ("+", "_", Equal),
            ("1.0~rc1", "1.0", Less),
            ("1.0~rc1", "1.0~rc2", Less),
            ("1.0~rc1~git123", "1.0~rc1", Less),
            ("1.0", "1.0^", Less),
            ("1.0^", "1.0^git1", Less),
            ("1.0^git1", "1.01", Less),
            ("1.0^20160101", "1.0.1", Less),
            ("1.0^20160101^git1", "1.0^20160102", Less),
            ("1.0~rc1^git1", "1.0~rc1", Ordering::Greater),
            ("1.0^git1~pre", "1.0^git1", Less),
            ("1b.fc17", "1.fc17", Less),
            ("1g.fc17", "1.fc17", Ordering::Greater),
            ("99999999999999999999999", "100000000000000000000000", Less),
        ];
        for (a, b, order) in table {
            // Known of RPM's own table: a letter behind a digit begins a segment.
            let (a, b) = (format!("{a}-1"), format!("{b}-1"));
            assert_eq!(compare(&a, &b), order, "{a} {b}");
            assert_eq!(compare(&b, &a), order.reverse(), "{b} {a}");
        }
    }

    #[test]
    fn epoch_counts_before_version_and_version_before_release() {
        assert_eq!(compare("1:1-1", "2-1"), Ordering::Greater);
        assert_eq!(compare("0:1-1", "1-1"), Ordering::Equal);
        assert_eq!(compare("1-2", "2-1"), Ordering::Less);
        assert_eq!(compare("1-1.el9", "1-2.el9"), Ordering::Less);
        assert_eq!(compare("1-1", "1"), Ordering::Greater);
    }

    #[test]
    fn rpm_has_the_same_order() {
        let versions = [
            "1", "1.0", "1.0.1", "1.01", "1a", "1.a", "1.A", "a", "~", "^", "1~", "1^", "1~^", "1^~",
            "1^1~a", "1.~1", "1_", "01", "1.0^a.b", "1~a1",
        ];
        for a in versions {
            let compared = versions.map(|b| format!("print(rpm.vercmp('{a}', '{b}'))")).join(" ");
            let mut rpm = std::process::Command::new("rpm");
            let Ok(said) = rpm.args(["--eval", &format!("%{{lua: {compared}}}")]).output() else {
                return println!("SKIPPED: rpm is not installed");
            };
            let ours = versions.map(|b| (part(a.as_bytes(), b.as_bytes()) as i8).to_string());
            let said = String::from_utf8(said.stdout).unwrap();
            assert_eq!(ours.concat(), said.trim(), "{a:?} and {versions:?}");
        }
    }
}
