//! What is changed in CRIU's images at the save, as they are not to be restored as CRIU has written them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use skiff_criu::core_image::with_global_barriers;
use skiff_criu::file_locks::of_processes;
use skiff_criu::files_image::without_rights_of_deleted_sockets;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::kernel;

/// The image's new bytes; nothing if it is not such an image.
type ImageEdit = fn(&[u8]) -> Option<Vec<u8>>;

/// Changes the images in `dir`.
///
/// # Errors
/// An image makes no sense.
pub fn apply(dir: &Path) -> Result<()> {
    let reports_registrations = kernel::is_at_least(6, 3);
    for entry in fs::read_dir(dir).context(|| dir.display().to_string())? {
        let path = entry.context(|| dir.display().to_string())?.path();
        let Some(edit) = path.file_name().and_then(|name| edit_of(name, reports_registrations)) else {
            continue;
        };
        let about = || path.display().to_string();
        let image = fs::read(&path).context(about)?;
        let edited = edit(&image)
            .ok_or_else(|| Fault::new(format!("{}: not such an image as CRIU writes", about())))?;
        if edited != image {
            fs::write(&path, edited).context(about)?;
        }
    }
    Ok(())
}

/// What is changed in the image of this name.
fn edit_of(name: &OsStr, reports_registrations: bool) -> Option<ImageEdit> {
    match name.to_str()? {
        // Skiff takes these locks again itself.
        "filelocks.img" => Some(of_processes),
        "files.img" => Some(without_rights_of_deleted_sockets),
        name if name.starts_with("core-") && name.ends_with(".img") && !reports_registrations => {
            Some(with_global_barriers)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_images_are_edited_only_where_the_kernel_does_not_report_registrations() {
        let is_changed = |name: &str, reports| edit_of(OsStr::new(name), reports).is_some();
        for name in ["filelocks.img", "files.img"] {
            assert!(is_changed(name, false) && is_changed(name, true), "{name}");
        }
        assert!(is_changed("core-2.img", false) && !is_changed("core-2.img", true));
        assert!(!is_changed("pages-1.img", false) && !is_changed("core-2.img.tmp", false));
    }
}
