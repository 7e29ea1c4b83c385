//! Words for files with a file system in them, which stand among those for mounts: `FILE:TARGET:sqsh`.

use skiff_edf::MountFlag;

/// A file and where it is to be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataWord {
    /// Path of the file.
    pub file: String,
    /// Where its files are to be, inside.
    pub target: String,
}

/// The word of the mounts for a file.
#[must_use]
pub fn word(file: &str, target: &str) -> String {
    format!("{file}:{target}:sqsh")
}

/// What a part of a word for mounts says of such a file; nothing if it is another mount.
pub(crate) fn data_word(piece: &str) -> Option<DataWord> {
    let mut parts = piece.splitn(3, ':');
    let (file, target, options) = (parts.next()?, parts.next()?, parts.next()?);
    let mut options = options.split([',', '+']);
    options.any(is_data).then(|| DataWord { file: file.into(), target: target.into() })
}

/// Whether it is the option that says so.
pub(crate) fn is_data(option: &str) -> bool {
    MountFlag::parse(option) == Some(MountFlag::Squashfs)
}

/// Whether a part of a word for mounts is such a file.
pub(crate) fn is_one(piece: &str) -> bool {
    data_word(piece).is_some()
}
