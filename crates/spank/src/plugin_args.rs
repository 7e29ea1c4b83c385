//! The arguments of our line in plugstack.conf.

use std::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const DEFAULT_PROGRAM: &str = "/usr/bin/skiff";

/// What the administrator may set.
#[derive(Debug, PartialEq)]
pub struct PluginArgs {
    /// `skiff=PATH`: the program; it must have the same path on all nodes.
    pub skiff: PathBuf,
    /// `containers=no`: without the options that are called as in Pyxis, for sites where Pyxis has them.
    pub containers: bool,
}

impl PluginArgs {
    /// # Safety
    /// `argv` must point to `argc` C strings, or be null with `argc` zero.
    pub unsafe fn parse(argc: c_int, argv: *const *const c_char) -> Self {
        let count = usize::try_from(argc).unwrap_or(0);
        let words = (0..count).filter_map(|index| {
            // SAFETY: the caller promises `argc` elements.
            let word = unsafe { *argv.add(index) };
            // SAFETY: each of them is a C string.
            (!word.is_null()).then(|| unsafe { CStr::from_ptr(word) }.to_bytes())
        });
        Self::from_words(words)
    }

    fn from_words<'a>(words: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut args = Self { skiff: DEFAULT_PROGRAM.into(), containers: true };
        for word in words {
            match (word, word.strip_prefix(b"skiff=")) {
                (_, Some(path)) if path.starts_with(b"/") => {
                    args.skiff = Path::new(std::ffi::OsStr::from_bytes(path)).into()
                }
                (b"containers=no", _) => args.containers = false,
                (b"containers=yes", _) => args.containers = true,
                _ => crate::ffi::error(&format!(
                    "plugstack.conf: unknown argument '{}'; known are skiff=/ABSOLUTE/PATH and containers=yes|no",
                    String::from_utf8_lossy(word)
                )),
            }
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::PluginArgs;

    #[test]
    fn the_program_can_be_set() {
        let cases: [(&[&[u8]], &str); 4] = [
            (&[], "/usr/bin/skiff"),
            (&[b"skiff=/opt/skiff/bin/skiff"], "/opt/skiff/bin/skiff"),
            (&[b"skiff=relative"], "/usr/bin/skiff"),
            (&[b"other=1", b"skiff=/a"], "/a"),
        ];
        for (words, path) in cases {
            let args = PluginArgs::from_words(words.iter().copied());
            assert_eq!((args.skiff.to_str(), args.containers), (Some(path), true));
        }
        assert!(!PluginArgs::from_words([&b"containers=no"[..]].into_iter()).containers);
    }
}
