//! `skiff cp`: from where to where.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::name::EnvName;

#[derive(Args)]
pub struct CopyArgs {
    /// Follow a symbolic link in the place of SOURCE
    #[arg(short = 'L', long)]
    pub follow_link: bool,
    /// Keep modes as they are, whatever your umask; times are kept in any case, owners never
    #[arg(short = 'a', long)]
    pub archive: bool,
    /// Accepted for habit: no progress is shown
    #[arg(short = 'q', long, hide = true)]
    pub quiet: bool,
    /// What to copy: NAME:PATH in an instance or environment, a path of the host, or `-` for a tar stream
    pub source: OsString,
    /// Where to: a path or NAME:PATH, or `-` for a tar stream
    pub destination: OsString,
}

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// A tar stream: standard input or output.
    Stream,
    /// A path of the host.
    Host(PathBuf),
    /// A path from the root of what has a name.
    Inside(EnvName, PathBuf),
}

impl CopyEnd {
    /// Reads `-`, `NAME:PATH` or a path. One with a slash before its first colon is a path of the host's, as with Docker.
    ///
    /// # Errors
    /// An empty word, or a name that nothing can have.
    pub fn read(word: &OsStr) -> Result<Self> {
        let bytes = word.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':');
        match colon.map(|at| (&bytes[..at], &bytes[at + 1..])) {
            _ if bytes.is_empty() => {
                Err(Fault::new("cp: a path is empty").hint("name a file, or `.` for the current directory"))
            }
            _ if bytes == b"-" => Ok(Self::Stream),
            Some((name, path)) if !name.contains(&b'/') => {
                let shown = word.display();
                let text = std::str::from_utf8(name).ok();
                let name = text.and_then(|text| text.parse().ok()).ok_or_else(|| {
                    Fault::new(format!("{shown}: not a valid name before the colon"))
                        .hint(format!("for a file of the host's: ./{shown}"))
                })?;
                if path.is_empty() {
                    return Err(Fault::new(format!("{shown}: no path after the colon"))
                        .hint(format!("to copy everything: {shown}/")));
                }
                // As with Docker, what is no absolute path counts from the root.
                Ok(Self::Inside(name, [OsStr::new("/"), OsStr::from_bytes(path)].iter().collect()))
            }
            _ => Ok(Self::Host(word.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        let inside = |name: &str, path: &str| Ok(CopyEnd::Inside(name.parse().expect("a name"), path.into()));
        let host = |path: &str| Ok(CopyEnd::Host(path.into()));
        for (word, want) in [
            ("-", Ok(CopyEnd::Stream)),
            ("web:/etc/issue", inside("web", "/etc/issue")),
            ("web:etc/", inside("web", "/etc/")),
            ("web:a:b", inside("web", "/a:b")),
            ("web:/a/.", inside("web", "/a/.")),
            ("./web:x", host("./web:x")),
            ("/a:b", host("/a:b")),
            ("file", host("file")),
            ("", Err(())),
            ("web:", Err(())),
            (".x:y", Err(())),
            (":/x", Err(())),
        ] {
            assert_eq!(CopyEnd::read(OsStr::new(word)).map_err(drop), want, "{word}");
        }
        // A path keeps its end, by which the contents of a directory are meant.
        let Ok(CopyEnd::Inside(_, path)) = CopyEnd::read(OsStr::new("web:/a/.")) else { panic!("no path") };
        assert!(path.as_os_str().as_bytes().ends_with(b"/."));
    }
}
