//! The last snapshot of each environment, by its name in the depot: a job that wants another environment than its own for one
//! of its steps has no way to the environment itself, which is on the login node.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::job::{Descriptor, Snapshot};
use skiff_spec::name::EnvName;

fn record(depot: &Path, name: &EnvName) -> PathBuf {
    depot.join("latest").join(name.as_str())
}

/// Writes down a snapshot just taken.
pub fn set(depot: &Path, snapshot: &Snapshot) -> Result<()> {
    let path = record(depot, &snapshot.environment);
    let shown = || path.display().to_string();
    let line = Descriptor::Snapshot(snapshot.clone())
        .to_line()
        .map_err(|e| Error::new(format!("job descriptor: {e}")))?;
    if fs::read_to_string(&path).is_ok_and(|text| text == line) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(depot)).context(shown)?;
    // Names of environments have no such end, so this is never one's.
    let new = path.with_file_name(format!(".new.{}.{}", snapshot.environment, std::process::id()));
    fs::write(&new, line).and_then(|()| fs::rename(&new, &path)).context(shown)
}

/// The last snapshot of an environment, if there is one.
pub fn get(depot: &Path, name: &EnvName) -> Result<Option<Descriptor>> {
    let path = record(depot, name);
    match fs::read_to_string(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).context(|| path.display().to_string()),
        Ok(line) => Descriptor::from_line(&line).map(Some).map_err(|e| {
            Error::new(format!("{}: {e}", path.display())).hint("the next submission writes it anew")
        }),
    }
}

/// Forgets that of an environment that is removed.
pub fn unset(depot: &Path, name: &EnvName) -> Result<()> {
    let path = record(depot, name);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context(|| path.display().to_string()),
        _ => Ok(()),
    }
}
