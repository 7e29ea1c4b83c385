//! Compares version numbers as deb-version(7) describes.

use std::cmp::Ordering;

/// Compares versions: `[EPOCH:]UPSTREAM[-REVISION]`.
#[must_use]
pub fn compare(a: &str, b: &str) -> Ordering {
    let ((epoch_a, up_a, rev_a), (epoch_b, up_b, rev_b)) = (split(a), split(b));
    epoch_a.cmp(&epoch_b).then_with(|| part(up_a, up_b)).then_with(|| part(rev_a, rev_b))
}

fn split(version: &str) -> (u64, &[u8], &[u8]) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
    (epoch.parse().unwrap_or(0), upstream.as_bytes(), revision.as_bytes())
}

/// A tilde comes before the end, the end before letters, and these before all else.
fn rank(byte: Option<&u8>) -> i32 {
    match byte {
        None => 0,
        Some(digit) if digit.is_ascii_digit() => 0,
        Some(letter) if letter.is_ascii_alphabetic() => i32::from(*letter),
        Some(b'~') => -1,
        Some(other) => i32::from(*other) + 256,
    }
}

/// By turns what is no number, and numbers.
fn part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        let is_word = |text: &[u8]| text.first().is_some_and(|byte| !byte.is_ascii_digit());
        while is_word(a) || is_word(b) {
            let order = rank(a.first()).cmp(&rank(b.first()));
            if order.is_ne() {
                return order;
            }
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
        }
        let (number_a, rest_a) = number(a);
        let (number_b, rest_b) = number(b);
        let order = number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b));
        if order.is_ne() {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
    Ordering::Equal
}

/// The digits at the beginning without leading zeros, of any number, and the rest.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const VERSIONS: [&str; 26] = [
        "0",
        "1",
        "1.0",
        "1.0-1",
        "1.0-1+b1",
        "1.0~rc1-1",
        "1.0~~",
        "1.00",
        "1:0.1",
        "2:0",
        "10",
        "9",
        "1.2.3-4.5",
        "1.2.3-4",
        "1.2.3a",
        "1.2.3+dfsg-1",
        "1.2.3~",
        "1.a",
        "1.A",
        "1.+",
        "1.2-3-4",
        "20221231",
        "1.0-1~deb12u1",
        "1.0-1+deb12u1",
        "000",
        "99999999999999999999999",
    ];

    #[test]
    fn versions_are_in_the_order_of_the_manual() {
        for (older, newer) in [
            ("1.0~rc1", "1.0"),
            ("1.0", "1.0-1"),
            ("1.9", "1.10"),
            ("1.10", "1:0.1"),
            ("1.0-1", "1.0-1+b1"),
            ("1.0-1~deb12u1", "1.0-1"),
            ("1.0a", "1.0+"),
            ("~~", "~~a"),
            ("~", ""),
        ] {
            assert_eq!(compare(older, newer), Ordering::Less, "{older} {newer}");
            assert_eq!(compare(newer, older), Ordering::Greater, "{newer} {older}");
        }
        assert_eq!(compare("1.00-0", "0:1.0"), Ordering::Equal);
    }

    #[test]
    fn dpkg_has_the_same_order() {
        let dpkg =
            |a: &str, op: &str, b: &str| Command::new("dpkg").args(["--compare-versions", a, op, b]).status();
        if dpkg("1", "lt", "2").is_err() {
            assert!(std::env::var_os("CI").is_none(), "dpkg is not installed");
            println!("SKIPPED: dpkg is not installed");
            return;
        }
        for (n, a) in VERSIONS.iter().enumerate() {
            for b in &VERSIONS[n..] {
                let op = match compare(a, b) {
                    Ordering::Less => "lt",
                    Ordering::Equal => "eq",
                    Ordering::Greater => "gt",
                };
                assert!(dpkg(a, op, b).unwrap().success(), "dpkg --compare-versions {a} {op} {b}");
            }
        }
    }
}
