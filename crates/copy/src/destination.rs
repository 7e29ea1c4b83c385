//! Where a copy goes: what the user has named, and what is there.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use skiff_spec::fault::Fault;
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

use crate::Result;
use crate::stream::bad_stream;

/// How a directory is opened.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where to.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// As the user names it.
    pub path: &'a Path,
    /// What it is called in a directory that exists already; nothing if its contents are to go there.
    pub base: Option<&'a OsStr>,
    /// In front of paths in messages: whose they are.
    pub of: &'a str,
    /// Permission bits that nothing gets: who copies may be guarding against others on the host, and modes are what somebody inside has set.
    pub umask: u16,
    /// What files get besides.
    pub rights: Rights,
}

/// What files get of those that the stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Files belong to whoever unpacks them, without setuid and setgid bits.
    Plain,
    /// Files belong to the user and group with the numbers in the stream, with all bits.
    AsPacked,
    /// Files belong to this user and group, with all bits.
    OwnedBy(u32, u32),
}

impl Rights {
    /// The owner of a file that the stream says to be this one's.
    pub(crate) fn owner(self, packed: (u32, u32)) -> Option<(u32, u32)> {
        match self {
            Self::Plain => None,
            Self::AsPacked => Some(packed),
            Self::OwnedBy(user, group) => Some((user, group)),
        }
    }
}

/// What a destination comes to.
pub(crate) enum ResolvedDestination {
    /// A new name in a directory, or one that is replaced.
    In { parent: OwnedFd, name: Vec<u8>, shown: Vec<u8> },
    /// The contents of a directory.
    Contents { directory: OwnedFd, shown: Vec<u8> },
}

impl ResolvedDestination {
    pub(crate) fn of(to: Destination<'_>, is_directory: bool) -> Result<Self> {
        let Destination { path, base, of, .. } = to;
        let whole = shown(of, path);
        let text = show(&whole);
        // A link to a directory is followed, as the user has typed it. One to a file is replaced: it may have been put there.
        match std::fs::metadata(path)
            .and_then(|there| if there.is_dir() { Ok(there) } else { path.symlink_metadata() })
        {
            Ok(there) if there.is_dir() => {
                let directory = open_directory(path, &whole)?;
                match base {
                    Some(base) => {
                        Ok(Self::In { parent: directory, name: base.as_bytes().into(), shown: whole })
                    }
                    None if is_directory => Ok(Self::Contents { directory, shown: whole }),
                    None => Err(bad_stream("the contents of a directory are no file")),
                }
            }
            Ok(_) if is_directory => {
                Err(Fault::new(format!("{text} is a file; a directory cannot replace it"))
                    .hint("name a directory, or a name that does not exist yet")
                    .into())
            }
            Ok(there) if !there.is_file() && !there.is_symlink() => Err(Fault::new(format!(
                "{text}: it is a device, pipe or socket, which a copy does not replace"
            ))
            .hint("name a file or a directory; `-` is standard output, as a tar stream")
            .into()),
            Ok(_) => Self::named(path, of),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if path.as_os_str().as_bytes().ends_with(b"/") && !is_directory {
                    return Err(Fault::new(format!("{text}: no such directory"))
                        .hint("make it first, or leave the slash at its end away")
                        .into());
                }
                Self::named(path, of)
            }
            Err(e) => Err(SystemError::new("look at", &whole, e).into()),
        }
    }

    fn named(path: &Path, of: &str) -> Result<Self> {
        let Some(name) = path.file_name() else {
            let text = path.display();
            return Err(Fault::new(format!("{of}{text}: no file name at its end"))
                .hint("name the file that is to be made, or a directory that exists")
                .into());
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let shown = shown(of, &parent);
        Ok(Self::In { parent: open_directory(&parent, &shown)?, name: name.as_bytes().into(), shown })
    }
}

/// Opens a directory by the path that the user has given.
pub(crate) fn open_directory(path: &Path, shown: &[u8]) -> Result<OwnedFd> {
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    match openat(CWD, path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let shown = show(shown);
            Err(Fault::new(format!("{shown}: no such directory")).hint("make it first: mkdir -p").into())
        }
        opened => Ok(opened.on("open", shown)?),
    }
}

/// A path as messages have it.
pub(crate) fn shown(of: &str, path: &Path) -> Vec<u8> {
    [of.as_bytes(), path.as_os_str().as_bytes()].concat()
}
