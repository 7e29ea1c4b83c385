//! Sizes in bytes as people write them.

/// `20G`, `512MiB`, `1000000`; nothing for what is no size.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << unit)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, size) in [("0", 0), ("12", 12), ("20G", 20 << 30), ("512MiB", 512 << 20), ("3kB", 3072)] {
            assert_eq!(parse(text), Some(size), "{text}");
        }
        for text in ["", "G", "1.5G", "-1", "1X", "99999999999T"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
