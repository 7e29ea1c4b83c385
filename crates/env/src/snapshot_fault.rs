//! Errors of snapshots, the depot and caches as the command line shows them.

use skiff_spec::fault::Fault as Error;

/// An error of the environment's contents, as the command line shows it.
pub fn ours(e: skiff_snapshot::Error) -> Error {
    match e {
        skiff_snapshot::Error::Untrusted(e) => e.into(),
        e => {
            let hint = e.hint().unwrap_or_default();
            Error::new(e.to_string()).hint(hint)
        }
    }
}
