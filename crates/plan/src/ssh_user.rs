//! As whom `ssh` logs in elsewhere, and where it looks for keys: inside, its user is root.

use skiff_spec::plan::SshUser;

use crate::facts::Facts;

/// The user's name and home, if the name is known.
pub fn of(facts: &Facts<'_>) -> Option<SshUser> {
    facts.login.clone().map(|name| SshUser { name, home: facts.home.to_owned() })
}

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
