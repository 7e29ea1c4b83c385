//! A depot's directory, as nodes look for it: its file system may not be mounted yet.

use std::path::Path;

use rustix::process::Uid;
use skiff_site::TrustedDir;
use skiff_spec::fault::Result;

/// By this directory a depot is told from a place where one will be mounted.
pub(crate) const SNAPSHOTS: &str = "snapshots";

/// The depot of this user; nothing where there is none.
pub(crate) fn find(depot: &Path, user: Uid) -> Result<Option<TrustedDir>> {
    let Some(depot) = TrustedDir::find(depot, user.as_raw())? else { return Ok(None) };
    Ok(depot.stat(SNAPSHOTS)?.is_some().then_some(depot))
}
