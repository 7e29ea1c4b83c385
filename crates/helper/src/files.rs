//! Files of root's, and their directories: refused where anybody else could have changed them, or, if they are secret, read them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use skiff_spec::fault::{Context, Fault as Error, Result};
use zeroize::Zeroizing;

/// Files of the administrator's are shorter.
const MOST_BYTES: i64 = 64 << 20;

/// An id that no file and no process of anybody's has: 2^32 - 2. (2^32 - 1 means "none" to the kernel.)
pub const NOBODY: u32 = u32::MAX - 1;
/// Uids from here on are people's, who are trusted with nothing.
pub const FIRST_PERSON: u32 = 1000;

/// A file of the administrator's, refused if anybody else could have written it.
pub fn read_if_exists(path: &str) -> Result<Option<String>> {
    let Some(bytes) = read_checked(path, 0o022, 0)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| Error::new(format!("{path}: not text in UTF-8")))
}

/// The text of `/etc/passwd` or `/etc/group`; empty if there is none. What is not UTF-8 is replaced: by `chfn` any user may put any bytes
/// into their own line, which is not to hide the others.
pub fn read_accounts(path: &str) -> Result<String> {
    let bytes = read_checked(path, 0o022, 0)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The same as [`read_if_exists`], refused if anybody else could have read it, too.
pub fn read_secret_if_exists(path: &str) -> Result<Option<Zeroizing<Vec<u8>>>> {
    Ok(read_checked(path, 0o077, 0)?.map(Zeroizing::new))
}

/// A secret of a service's, which may belong to a system user, as may the directory that it is in.
pub fn read_services_secret_if_exists(path: &str) -> Result<Option<Zeroizing<Vec<u8>>>> {
    Ok(read_checked(path, 0o077, FIRST_PERSON - 1)?.map(Zeroizing::new))
}

/// Others may not have the rights `refused` to it, nor may it belong to a uid above `last_owner`.
fn read_checked(path: &str, refused: u32, last_owner: u32) -> Result<Option<Vec<u8>>> {
    // No symbolic links: all of these are plain files below directories of root's.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let fd = match opened {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        other => other.context(|| path)?,
    };
    check_parents_of(path, last_owner)?;
    let stat = rustix::fs::fstat(&fd).context(|| path)?;
    refuse_unless_owned(&stat, Path::new(path), refused, last_owner)?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(Error::new(format!("{path}: not a plain file")));
    }
    // Half of it will not do: what stands in the rest would count as not said, whose subordinate ids are whose for one.
    if stat.st_size > MOST_BYTES {
        return Err(Error::new(format!("{path}: longer than {} MiB", MOST_BYTES >> 20)));
    }
    let mut bytes = vec![];
    File::from(fd).read_to_end(&mut bytes).context(|| path)?;
    Ok(Some(bytes))
}

/// Refuses a file that anybody but root could have written or put there.
pub fn check_file(path: &str) -> Result<()> {
    check_parents(path)?;
    refuse_unless_owned(&rustix::fs::lstat(path).context(|| path)?, Path::new(path), 0o022, 0)
}

/// Refuses a path that anybody but root could lead elsewhere.
pub fn check_parents(path: &str) -> Result<()> {
    check_parents_of(path, 0)
}

fn check_parents_of(path: &str, last_owner: u32) -> Result<()> {
    for part in Path::new(path).ancestors().skip(1) {
        let stat = rustix::fs::stat(part).context(|| part.display().to_string())?;
        refuse_unless_owned(&stat, part, 0o022, last_owner)?;
    }
    Ok(())
}

/// Refuses what belongs to a uid above `last_owner`, or to which others have one of the rights `refused`.
pub fn refuse_unless_owned(
    stat: &rustix::fs::Stat,
    path: &Path,
    refused: u32,
    last_owner: u32,
) -> Result<()> {
    if stat.st_uid <= last_owner && stat.st_mode & refused == 0 {
        return Ok(());
    }
    let hint = match refused {
        0o022 => "configuration must belong to root and not be writable by others: chown root, chmod go-w",
        _ => "what is secret must belong to root and be nobody else's to read: chown root, chmod 600",
    };
    Err(Error::new(format!(
        "{}: belongs to uid {} with mode {:o}",
        path.display(),
        stat.st_uid,
        stat.st_mode & 0o7777
    ))
    .hint(hint))
}
