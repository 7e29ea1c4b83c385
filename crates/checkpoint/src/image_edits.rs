//! What is changed in CRIU's images before anything is restored from them.

use std::path::Path;
use std::{fs, io};

use skiff_criu::file_locks::of_processes;
use skiff_criu::files_image::without_rights_of_deleted_sockets;
use skiff_spec::fault::{Context as _, Fault, Result};

/// The image, what is changed in it, and what is said of one that makes no sense.
type ImageEdit = (&'static str, fn(&[u8]) -> Option<Vec<u8>>, &'static str);

const EDITS: [ImageEdit; 2] = [
    // Skiff takes these locks again itself.
    ("filelocks.img", of_processes, "it does not say which locks there are"),
    ("files.img", without_rights_of_deleted_sockets, "it does not say which files were open"),
];

/// Changes the images in `dir`.
///
/// # Errors
/// An image makes no sense.
pub fn apply(dir: &Path) -> Result<()> {
    for (name, edit, fault) in EDITS {
        let path = dir.join(name);
        let about = || path.display().to_string();
        let image = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            image => image.context(about)?,
        };
        let edited = edit(&image).ok_or_else(|| Fault::new(format!("{}: {fault}", about())))?;
        if edited != image {
            fs::write(&path, edited).context(about)?;
        }
    }
    Ok(())
}
