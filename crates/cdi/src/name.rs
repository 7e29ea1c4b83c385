//! What devices are called: `vendor.com/class=name`.

use std::fmt;

/// The name of a device, as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceName {
    /// Vendor and class, with a slash between.
    pub kind: String,
    /// The device of this kind.
    pub device: String,
}

/// All devices of a kind.
pub const ALL: &str = "all";

/// The longest class, in bytes.
const LONGEST_CLASS: usize = 63;
/// The longest vendor, in bytes.
const LONGEST_VENDOR: usize = 253;

impl DeviceName {
    /// Reads `vendor.com/class=name`.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, device) = text.split_once('=').ok_or("no `=` with the device's name behind it")?;
        check_kind(kind)?;
        check_device(device)?;
        Ok(Self { kind: kind.into(), device: device.into() })
    }

    /// Whether a text is meant to be such a name, and no path.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        !text.starts_with(['/', '.'])
            && text.contains('=')
            && text.split('=').next().is_some_and(|kind| kind.contains('/'))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}={}", self.kind, self.device)
    }
}

/// Whether a text is a kind: `vendor.com/class`.
pub(crate) fn check_kind(kind: &str) -> Result<(), String> {
    let (vendor, class) = kind.split_once('/').ok_or_else(|| format!("{kind:?} is not VENDOR/CLASS"))?;
    check_part("vendor", vendor, LONGEST_VENDOR)?;
    check_part("class", class, LONGEST_CLASS)
}

fn check_part(what: &str, part: &str, longest: usize) -> Result<(), String> {
    let is_sound = part.starts_with(|c: char| c.is_ascii_alphabetic())
        && part.ends_with(|c: char| c.is_ascii_alphanumeric())
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    match part.len() {
        0 => Err(format!("the {what} is empty")),
        length if length > longest => Err(format!("the {what} has more than {longest} characters")),
        _ if is_sound => Ok(()),
        _ => Err(format!(
            "the {what} {part:?} is not made of letters, digits, `-`, `_` and `.`, a letter first"
        )),
    }
}

/// Whether a text is the name of a device.
pub(crate) fn check_device(name: &str) -> Result<(), String> {
    let is_sound = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
    match name {
        "" => Err("the device's name is empty".into()),
        _ if is_sound => Ok(()),
        _ => Err(format!("the device's name {name:?} is not made of letters, digits, `-`, `_`, `.` and `:`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_specifications() {
        for text in [
            "nvidia.com/gpu=0",
            "nvidia.com/gpu=all",
            "nvidia.com/gpu=0:1",
            "nvidia.com/gpu=GPU-61a2c7f4-0b1a-4f5e-8d5f-0a1b2c3d4e5f",
            "foo.bar.baz/foo-bar123.B_az=x",
        ] {
            assert_eq!(DeviceName::parse(text).map(|name| name.to_string()).as_deref(), Ok(text));
            assert!(DeviceName::is_meant(text));
        }
        for text in [
            "nvidia.com/gpu",
            "gpu=0",
            "/gpu=0",
            "nvidia.com/=0",
            "nvidia.com/gpu=",
            "1.com/gpu=0",
            "a/b/c=0",
            "a/b=x/y",
            "a/b=-x",
            "a/b=..",
            "a/b =x",
            "a./b=x",
        ] {
            assert!(DeviceName::parse(text).is_err(), "{text}");
        }
        assert!(DeviceName::parse(&format!("a/{}=x", "b".repeat(64))).is_err());
        for text in ["/dev/dri/by-path/a=b", "./x/y=z", "fuse", "a=b/c"] {
            assert!(!DeviceName::is_meant(text), "{text}");
        }
    }
}
