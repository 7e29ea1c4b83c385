//! The version of the kernel, and the name of the host.

/// Whether this is Linux `major.minor` or newer.
#[must_use]
pub fn is_at_least(major: u32, minor: u32) -> bool {
    version(&rustix::system::uname().release().to_string_lossy()) >= (Some(major), Some(minor))
}

/// The name that this host gives itself.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The first two numbers of a release, as `uname -r` prints it.
fn version(release: &str) -> (Option<u32>, Option<u32>) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (release, is) in [
            ("6.3.0", true),
            ("6.12-1-amd64", true),
            ("10.0", true),
            ("6.1.0-25-amd64", false),
            ("5.14.0-503.el9", false),
            ("6", false),
            ("", false),
        ] {
            assert_eq!(version(release) >= (Some(6), Some(3)), is, "{release}");
        }
    }
}
