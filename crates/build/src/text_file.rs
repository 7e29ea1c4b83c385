//! Small text files that a user names.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::dockerfile::LONGEST;

/// A small text file, if it is there. Nothing waits for whoever would write to a pipe.
///
/// # Errors
/// As [`read_all`]; or it is not a file.
pub fn read_file(dir: impl AsFd, path: &Path) -> Result<Option<String>> {
    read_file_of(dir, path, &|_| Ok(()))
}

/// The same, if whose it is passes a check.
///
/// # Errors
/// As [`read_file`]; or those of the check.
pub fn read_file_of(
    dir: impl AsFd,
    path: &Path,
    check_owner: &dyn Fn(u32) -> Result<()>,
) -> Result<Option<String>> {
    let shown = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(dir, path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => File::from(file.context(|| shown.clone())?),
    };
    let found = file.metadata().context(|| shown.clone())?;
    check_owner(found.uid())?;
    match found.is_file() {
        true => read_all(file, &shown).map(Some),
        false => Err(Fault::new(format!("{shown}: not a file"))),
    }
}

/// A small text.
///
/// # Errors
/// The file is too long, or is no text in UTF-8.
pub fn read_all(from: impl Read, shown: &str) -> Result<String> {
    let mut bytes = vec![];
    from.take(LONGEST as u64 + 1).read_to_end(&mut bytes).context(|| shown.to_owned())?;
    if bytes.len() > LONGEST {
        return Err(Fault::new(format!("{shown}: longer than {LONGEST} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Fault::new(format!("{shown}: not a text in UTF-8")))
}
