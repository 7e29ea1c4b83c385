//! Which machine an image is for, and which of an index's images suits one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Operating system, architecture and variant, in the names that Go and therefore OCI use: `linux/arm/v7`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// "linux".
    pub os: String,
    /// "amd64", "arm64" ...
    pub architecture: String,
    /// "v7" of "arm"; nothing where there is only one, or the first is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// Why a text names no platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("architecture {text:?} is unknown; known are {}", KNOWN.join(", "))]
pub struct PlatformError {
    text: String,
}

/// OCI's names of what Linux runs on.
const KNOWN: &[&str] =
    &["amd64", "arm64", "386", "arm", "ppc64le", "s390x", "riscv64", "loong64", "mips64le"];

impl Platform {
    /// A platform of Linux; spellings of one and the same thing become the same.
    #[must_use]
    pub fn linux(architecture: &str, variant: Option<&str>) -> Platform {
        Platform::new("linux", architecture, variant)
    }

    /// As an index or an image's configuration says it. Spellings of one and the same thing become the same.
    #[must_use]
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Platform {
        let (architecture, implied) = go_name(architecture);
        let variant = match (architecture, variant.filter(|v| !v.is_empty()).or(implied)) {
            ("arm64", Some("v8" | "8")) | ("amd64", Some("v1")) => None,
            ("arm", None) => Some("v7"),
            (_, variant) => variant,
        };
        let variant = variant.map(|v| if v.starts_with('v') { v.into() } else { format!("v{v}") });
        Platform { os: os.into(), architecture: architecture.into(), variant }
    }

    /// The machine this program was built for.
    #[must_use]
    pub fn host() -> Platform {
        Platform::linux(std::env::consts::ARCH, None)
    }

    /// How well an image for `offered` suits: the lower the better; nothing if it cannot run.
    ///
    /// A later variant of an architecture runs what was made for an earlier one, but arm64 promises nothing for arm.
    #[must_use]
    pub fn distance(&self, offered: &Platform) -> Option<u32> {
        if self.os != offered.os || self.architecture != offered.architecture {
            return None;
        }
        self.level().checked_sub(offered.level())
    }

    /// The same, where this may be the machine that asks: without a variant, amd64 stands for all levels of x86-64 that the processor has. The
    /// closest to the first one is the best: it runs on the most nodes of a cluster.
    #[must_use]
    pub fn suits(&self, offered: &Platform) -> Option<u32> {
        let is_own = self.architecture == "amd64" && self.variant.is_none();
        self.distance(offered).or_else(|| {
            let is_one = self.os == offered.os && self.architecture == offered.architecture;
            (is_own && is_one && offered.level() <= own_x86_level()).then(|| offered.level())
        })
    }

    /// Checks that an image suits, if it says what platform it is for. `object` names it.
    ///
    /// # Errors
    /// [`Error::NoPlatform`].
    pub fn check(&self, object: impl Into<String>, offered: Option<&Platform>) -> Result<(), Error> {
        match offered {
            Some(offered) if self.suits(offered).is_none() => Err(Error::NoPlatform {
                object: object.into(),
                wanted: self.to_string(),
                offered: offered.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether programs for `offered` run where this is the machine's own, as far as its name tells: which level of it a program wants it
    /// finds out by itself.
    #[must_use]
    pub fn runs(&self, offered: &Platform) -> bool {
        let pair = (self.architecture.as_str(), offered.architecture.as_str());
        self.os == offered.os && (pair.0 == pair.1 || matches!(pair, ("amd64", "386") | ("arm64", "arm")))
    }

    /// The number in the variant's name; the first variant where there is none.
    fn level(&self) -> u32 {
        let first = match self.architecture.as_str() {
            "arm" => 7,
            "arm64" => 8,
            _ => 1,
        };
        let number = |v: &String| v.trim_start_matches('v').parse().ok();
        self.variant.as_ref().map_or(Some(first), number).unwrap_or(u32::MAX)
    }
}

/// The level of x86-64 that this processor has, as the psABI defines them: <https://gitlab.com/x86-psABIs/x86-64-ABI>.
#[cfg(target_arch = "x86_64")]
fn own_x86_level() -> u32 {
    macro_rules! has {
        ($($feature:tt)*) => { true $(&& std::arch::is_x86_feature_detected!($feature))* };
    }
    let second = has!("cmpxchg16b" "popcnt" "sse3" "ssse3" "sse4.1" "sse4.2");
    let third = second && has!("avx" "avx2" "bmi1" "bmi2" "f16c" "fma" "lzcnt" "movbe");
    let fourth = third && has!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl");
    1 + u32::from(second) + u32::from(third) + u32::from(fourth)
}

#[cfg(not(target_arch = "x86_64"))]
fn own_x86_level() -> u32 {
    0
}

/// OCI's name for what `uname -m`, Debian or Rust call otherwise, and the variant that such a name implies.
fn go_name(name: &str) -> (&str, Option<&str>) {
    match name {
        "x86_64" | "x86-64" => ("amd64", None),
        "aarch64" | "armv8" | "armv8l" => ("arm64", None),
        "i386" | "i486" | "i586" | "i686" | "x86" => ("386", None),
        "armhf" | "armv7" | "armv7l" => ("arm", Some("v7")),
        "armel" | "armv6" | "armv6l" => ("arm", Some("v6")),
        "powerpc64le" | "ppc64el" => ("ppc64le", None),
        "loongarch64" => ("loong64", None),
        "riscv64gc" => ("riscv64", None),
        name => (name, None),
    }
}

/// What `--arch` takes: `arm64`, `aarch64`, `arm/v7`, `linux/amd64`.
impl FromStr for Platform {
    type Err = PlatformError;
    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let refuse = || PlatformError { text: text.chars().take(80).collect() };
        let lower = text.to_ascii_lowercase();
        let mut parts = lower.strip_prefix("linux/").unwrap_or(&lower).split('/');
        let platform = Platform::linux(parts.next().unwrap_or_default(), parts.next());
        let is_sound = |v: &String| v.len() > 1 && v.len() < 4 && v[1..].bytes().all(|b| b.is_ascii_digit());
        if parts.next().is_some()
            || !KNOWN.contains(&platform.architecture.as_str())
            || !platform.variant.iter().all(is_sound)
        {
            return Err(refuse());
        }
        Ok(platform)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().expect("a known platform")
    }

    #[test]
    fn machines_run_what_is_theirs_and_what_their_predecessors_ran() {
        for (machine, image, runs) in [
            ("amd64", "amd64", true),
            ("amd64", "amd64/v3", true),
            ("amd64", "386", true),
            ("arm64", "arm/v7", true),
            ("amd64", "arm64", false),
            ("386", "amd64", false),
        ] {
            assert_eq!(platform(machine).runs(&platform(image)), runs, "{image} on {machine}");
        }
        assert!(!platform("amd64").runs(&Platform::new("windows", "amd64", None)));
    }

    #[test]
    fn many_names_mean_one_thing() {
        for (text, name) in [
            ("x86_64", "linux/amd64"),
            ("amd64/v1", "linux/amd64"),
            ("AMD64", "linux/amd64"),
            ("linux/aarch64", "linux/arm64"),
            ("arm64/v8", "linux/arm64"),
            ("arm", "linux/arm/v7"),
            ("armv6l", "linux/arm/v6"),
            ("arm/7", "linux/arm/v7"),
            ("i686", "linux/386"),
            ("ppc64el", "linux/ppc64le"),
            ("amd64/v3", "linux/amd64/v3"),
        ] {
            assert_eq!(platform(text).to_string(), name, "{text}");
            assert_eq!(platform(name), platform(text), "{name}");
        }
        for bad in ["", "sparc", "windows/amd64", "linux/arm/v7/x", "arm/x", "arm/v", "amd64/../x", "ü"] {
            assert_eq!(bad.parse::<Platform>(), Err(PlatformError { text: bad.into() }));
        }
        assert_eq!(Platform::host().os, "linux");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_level_that_the_processor_has_will_do() {
        let own = platform("amd64");
        assert!((1..=4).contains(&own_x86_level()));
        for level in 1..=5 {
            let offered = Platform::linux("amd64", Some(&format!("v{level}")));
            assert_eq!(own.suits(&offered).is_some(), level <= own_x86_level(), "{offered}");
            assert_eq!(own.check("x", Some(&offered)).is_ok(), level <= own_x86_level(), "{offered}");
        }
        assert!(own.suits(&platform("amd64")) < own.suits(&platform("amd64/v2")));
        assert_eq!(platform("amd64/v2").suits(&platform("amd64/v3")), None, "asked for by name");
        assert_eq!(platform("arm64").suits(&platform("amd64")), None);
    }

    #[test]
    fn an_earlier_variant_will_do_and_a_later_one_will_not() {
        assert_eq!(platform("arm/v7").distance(&platform("arm/v6")), Some(1));
        assert_eq!(platform("arm/v6").distance(&platform("arm/v7")), None);
        assert_eq!(platform("amd64").distance(&platform("amd64/v2")), None);
        assert_eq!(platform("amd64/v3").distance(&platform("amd64")), Some(2));
        assert_eq!(platform("arm64").distance(&platform("arm/v7")), None);
        assert_eq!(platform("arm64").distance(&Platform::new("linux", "arm64", Some("v8"))), Some(0));
        assert_eq!(platform("amd64").distance(&Platform::new("windows", "amd64", None)), None);
    }
}
