//! As whom `ssh` of root inside logs in elsewhere: by the name of the login, if that is a plain one.

/// Whether a name can stand in a line of a configuration of `ssh`, and means nothing but itself there.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    let is_sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    !name.is_empty() && name.len() <= 256 && !name.starts_with('-') && name.chars().all(is_sound)
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn names_of_logins() {
        for (name, plain) in [
            ("alice", true),
            ("al.ice-2_x@SITE", true),
            ("", false),
            ("-oProxyCommand=x", false),
            ("a b", false),
            ("a\nb", false),
            ("é", false),
        ] {
            assert_eq!(is_plain(name), plain, "{name:?}");
        }
    }
}
