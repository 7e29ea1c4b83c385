//! This node: what Slurm calls it, and where things of a job lie on it.

use std::path::{Path, PathBuf};

use rustix::process::getuid;
use skiff_env::deploy::node_name;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::SUBMIT_DIR;
use skiff_sys::path::canonical;
use skiff_user::context::UserContext;

/// In the directory of the job's supervisor: what the job's root is over, if that is an image.
pub const IMAGE: &str = "image.json";

/// Where slurmd puts batch scripts.
pub fn spool(context: &UserContext) -> PathBuf {
    if !context.config.slurm.spool.is_empty() {
        return PathBuf::from(&context.config.slurm.spool);
    }
    let setting = super::setting("SlurmdSpoolDir");
    let host = node_name();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    PathBuf::from(
        setting.unwrap_or_else(|| "/var/spool/slurmd".into()).replace("%h", &short).replace("%n", &host),
    )
}

/// Where the step was submitted from, if this node has that: Slurm starts its tasks there, unless it was told of another directory.
pub fn working_dir() -> Option<PathBuf> {
    let named = ["PWD", SUBMIT_DIR].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut real = named.filter(|dir| dir.is_absolute()).filter_map(|dir| canonical(&dir).ok());
    real.find(|dir| dir.is_dir() && dir != Path::new("/"))
}

/// A directory in the user's part of the job's.
pub fn private_dir(dir: &Path) -> Result<TrustedDir> {
    let made = TrustedDir::make(dir, getuid().as_raw(), 0o700).and_then(TrustedDir::private);
    made.map_err(|e| {
        let e = Error::from(e);
        match e.hint.is_empty() {
            true => {
                e.hint("the prolog makes the job's directory: check that this node's plugstack.conf names the plug-in")
            }
            false => e,
        }
    })
}
