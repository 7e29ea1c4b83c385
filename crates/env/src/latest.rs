//! The last snapshot of each environment, by its name in the depot: a job that wants another environment than its own for one
//! of its steps has no way to the environment itself, which is on the login node.

use std::path::Path;

use rustix::process::getuid;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::{JobSpec, Snapshot};
use skiff_spec::name::EnvName;

/// In a depot.
pub const DIR: &str = "latest";

fn records(depot: &Path) -> Result<Option<TrustedDir>> {
    Ok(TrustedDir::find(&depot.join(DIR), getuid().as_raw())?)
}

/// Writes down a snapshot just taken.
pub fn set(depot: &Path, snapshot: &Snapshot) -> Result<()> {
    let name = snapshot.environment.as_str();
    let line =
        JobSpec::Snapshot(snapshot.clone()).to_line().map_err(|e| Error::new(format!("job spec: {e}")))?;
    let records = TrustedDir::make(&depot.join(DIR), getuid().as_raw(), 0o755)?;
    if records.read(name).is_ok_and(|found| found.as_deref() == Some(line.as_bytes())) {
        return Ok(());
    }
    Ok(records.write(name, line.as_bytes(), 0o644)?)
}

/// The environments of which there is one.
pub fn names(depot: &Path) -> Result<Vec<EnvName>> {
    let Some(records) = records(depot)? else { return Ok(vec![]) };
    let names = records.names()?.into_iter().filter_map(|name| name.to_str()?.parse().ok());
    Ok(names.collect())
}

/// The last snapshot of an environment, if there is one.
pub fn get(depot: &Path, name: &EnvName) -> Result<Option<JobSpec>> {
    let Some(records) = records(depot)? else { return Ok(None) };
    let Some(line) = records.read(name.as_str())? else { return Ok(None) };
    let wrong = |e: &dyn std::fmt::Display| {
        Error::new(format!("{}: {e}", records.path_of(name.as_str()).display()))
            .hint("the next submission writes it anew")
    };
    let line = String::from_utf8(line).map_err(|e| wrong(&e))?;
    JobSpec::from_line(&line).map(Some).map_err(|e| wrong(&e))
}

/// Forgets that of an environment that is removed.
pub fn unset(depot: &Path, name: &EnvName) -> Result<()> {
    let Some(records) = records(depot)? else { return Ok(()) };
    Ok(records.remove_file(name.as_str())?)
}
