//! Reads the files of configuration: the site's must be root's alone, and what is wrong with a user's own must not lock them out of
//! `skiff login`, so that is told apart.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{geteuid, getuid};
use skiff_spec::config::{self, ConfigError, ConfigText, Merged};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

use crate::context::is_inside;

/// No configuration is longer, and nobody waits for the end of one that has none.
const LONGEST: u64 = 1 << 20;

/// What the files say.
pub struct ConfigFiles {
    /// All of them, or only the site's if there is a fault in the user's own.
    pub merged: Merged,
    /// That fault.
    pub own_fault: Option<Error>,
}

/// Reads them.
pub fn read(home: &Path) -> Result<ConfigFiles> {
    let mut texts = vec![];
    for path in std::iter::once(config::SITE_FILE.into()).chain(site_files()?) {
        let about = |e: Error| e.hint("administrator: it must be a file of text that all users can read");
        let Some((text, _)) = read_text(&path).map_err(about)? else { continue };
        refuse_unless_roots(&path)?;
        texts.push(ConfigText { origin: path.display().to_string(), text, site: true });
    }
    let own = read_own(&own_file(home));
    let (own, own_fault) = own.map_or_else(|e| (None, Some(e)), |own| (own, None));
    let alone = texts.len();
    texts.extend(own);
    match config::merge(&texts) {
        Ok(merged) => Ok(ConfigFiles { merged, own_fault }),
        Err(e) if e.site => Err(error(&e)),
        Err(e) => {
            let merged = config::merge(&texts[..alone]).map_err(|e| error(&e))?;
            Ok(ConfigFiles { merged, own_fault: Some(error(&e)) })
        }
    }
}

fn error(e: &ConfigError) -> Error {
    let who = if e.site { "administrator: " } else { "" };
    Error::new(e.to_string()).hint(format!("{who}correct it, then `skiff config` shows what is in force"))
}

/// A variable that names no absolute path is to be ignored, says the specification of XDG_CONFIG_HOME.
fn own_file(home: &Path) -> PathBuf {
    let dir = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    dir.unwrap_or_else(|| home.join(".config")).join("skiff/config.toml")
}

/// In the name of the one who runs us, so it must be theirs: `sudo` may leave HOME another user's.
fn read_own(path: &Path) -> Result<Option<ConfigText>> {
    let about =
        |e: Error| e.hint("your configuration must be a file of text that is yours: correct or remove it");
    let Some((text, meta)) = read_text(path).map_err(about)? else { return Ok(None) };
    if ![0, getuid().as_raw()].contains(&meta.uid()) || meta.mode() & 0o002 != 0 {
        return Err(stranger(path, &meta)
            .hint("your configuration must be yours and not writable by others: chmod o-w"));
    }
    Ok(Some(ConfigText { origin: path.display().to_string(), text, site: false }))
}

/// A directory that cannot be listed is an error: what the site locks in there must not be missed.
fn site_files() -> Result<Vec<PathBuf>> {
    let about = || config::SITE_DIR;
    let entries = match std::fs::read_dir(config::SITE_DIR) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(vec![]),
        other => other
            .context(about)
            .map_err(|e| e.hint("administrator: all users must be able to list it: chmod 755"))?,
    };
    let mut files = vec![];
    for entry in entries {
        let path = entry.context(about)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What is in a file, if it is there. A FIFO, a device or a file without end is none, and nobody waits for it.
fn read_text(path: &Path) -> Result<Option<(String, Metadata)>> {
    let about = || path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: std::io::Result<OwnedFd> = openat(CWD, path, flags, Mode::empty()).map_err(Into::into);
    let file = match file {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        other => File::from(other.context(about)?),
    };
    let meta = file.metadata().context(about)?;
    if !meta.is_file() {
        return Err(Error::new(format!("{}: not a regular file", about())));
    }
    let mut bytes = vec![];
    file.take(LONGEST + 1).read_to_end(&mut bytes).context(about)?;
    if bytes.len() as u64 > LONGEST {
        return Err(Error::new(format!("{}: longer than {LONGEST} bytes", about())));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let valid = String::from_utf8_lossy(&e.as_bytes()[..e.utf8_error().valid_up_to()]).into_owned();
        let (line, column) = config::place(&valid, &(valid.len()..valid.len()));
        Error::new(format!("{}:{line}:{column}: not UTF-8", about()))
    })?;
    Ok(Some((text, meta)))
}

/// What the site decides must not be somebody else's word.
fn refuse_unless_roots(path: &Path) -> Result<()> {
    let inside = is_inside();
    for part in path.ancestors() {
        let meta = part.metadata().context(|| part.display().to_string())?;
        // Seen from inside an environment, root's files are the user's own, whoever they are there.
        let roots = meta.uid() == 0 || geteuid().is_root() || (inside && meta.uid() == getuid().as_raw());
        if !roots || meta.mode() & 0o022 != 0 {
            return Err(stranger(part, &meta).hint(
                "the site's configuration must belong to root and not be writable by others: chown root, chmod go-w",
            ));
        }
    }
    Ok(())
}

fn stranger(path: &Path, meta: &Metadata) -> Error {
    Error::new(format!(
        "{}: belongs to uid {} with mode {:o}",
        path.display(),
        meta.uid(),
        meta.mode() & 0o7777
    ))
}
