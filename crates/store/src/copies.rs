//! Images that no registry has, on their way to the nodes of jobs: copies of their files in the user's depot, which all nodes share. A store of
//! a node's own imports them from there.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Stat, fstat};
use rustix::process::getuid;
use skiff_image::export::{Target, export};
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_site::TrustedDir;
use skiff_snapshot::FileChunks;
use skiff_spec::fault::{Context as _, Fault};
use skiff_spec::image::ImageId;
use skiff_sys::IgnoreError;
use skiff_sys::small_file::read_below;
use skiff_user::context::UserContext;
use skiff_user::dirs;

use crate::client;
use crate::error::Result;
use crate::index::ImageName;

/// In the depot: `ID-DIGEST.erofs`, the image and the digest of the copy, which is the image's id where that is imported.
const IMAGES: &str = "images";
const SUFFIX: &str = ".erofs";
/// Beside it: of which chunks it consists, so that nodes with similar images need not read all of it.
const CHUNKS: &str = ".chunks";
/// No list is longer: that of an image of 50 GB.
const LONGEST_LIST: u64 = 64 << 20;

/// A copy of an image.
pub struct ImageCopy {
    /// The file.
    pub path: PathBuf,
    /// What the image is called that is imported from it.
    pub id: ImageId,
}

/// Puts a copy of an imported image into a depot, unless there is one.
///
/// # Errors
/// The image is not in this host's store, or there is no room.
pub fn put(context: &UserContext, depot: &Path, entry: &ImageName) -> Result<()> {
    if entry.origin.is_none() || find(depot, entry.id)?.is_some() {
        return Ok(());
    }
    let dir = TrustedDir::make(&depot.join(IMAGES), getuid().as_raw(), 0o700).map_err(Fault::from)?;
    let image = client::open_image(context, entry)?;
    let new = dirs::new_name(&entry.id);
    let path = dir.path_of(&new);
    let exported = export(&image, &Target::Erofs(path.clone())).map_err(Into::into);
    let about = || path.display().to_string();
    let made = exported.and_then(|_| digest_of(File::open(&path).context(about)?, &path));
    let named = made.and_then(|id| {
        let name = format!("{}-{id}", entry.id);
        let list = || {
            let chunks = FileChunks::cut(File::open(&path).context(about)?, id.0).context(about)?;
            dir.write(format!("{name}{CHUNKS}"), &chunks.bytes(), 0o600).map_err(Fault::from)
        };
        list().ignore_error("nodes read all of the copy then");
        Ok(dir.rename(&new, &dir, format!("{name}{SUFFIX}")).map_err(Fault::from)?)
    });
    if named.is_err() {
        dir.remove_file(&new).map_err(Fault::from)?;
    }
    named
}

/// What commands that were killed have left of copies in a depot.
#[must_use]
pub fn leftovers(depot: &Path) -> Vec<PathBuf> {
    dirs::leftovers(&depot.join(IMAGES))
}

/// Removes those.
///
/// # Errors
/// As [`find`].
pub fn delete_leftovers(depot: &Path) -> Result<Vec<PathBuf>> {
    let left = leftovers(depot);
    let Some(dir) = existing(depot)? else { return Ok(vec![]) };
    for name in left.iter().filter_map(|path| path.file_name()) {
        dir.remove_file(name).map_err(Fault::from)?;
    }
    Ok(left)
}

/// The copy of an image in a depot.
///
/// # Errors
/// The depot's directory cannot be read, or is somebody else's.
pub fn find(depot: &Path, id: ImageId) -> Result<Option<ImageCopy>> {
    let Some(dir) = existing(depot)? else { return Ok(None) };
    let copy = names_of(&dir, id)?.into_iter().find_map(|name| {
        let digits = name.strip_suffix(SUFFIX)?.split_once('-')?.1;
        Some(ImageCopy { path: dir.path_of(&name), id: digits.parse().ok()? })
    });
    Ok(copy)
}

/// Opens the copy that has this digest.
///
/// # Errors
/// As [`find`].
pub fn open(depot: &Path, copy: ImageId) -> Result<Option<File>> {
    let Some(dir) = existing(depot)? else { return Ok(None) };
    let end = format!("-{copy}{SUFFIX}");
    let names = dir.names().map_err(Fault::from)?;
    let Some(name) = names.into_iter().find(|name| name.to_string_lossy().ends_with(&end)) else {
        return Ok(None);
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    Ok(Some(dir.file(name, flags, 0).map_err(Fault::from)?.into()))
}

/// The chunks of the copy that has this digest and length; nothing if that is not known, as of copies that older versions made.
///
/// # Errors
/// As [`find`].
pub fn chunks(depot: &Path, copy: ImageId, length: u64) -> Result<Option<FileChunks>> {
    let Some(dir) = existing(depot)? else { return Ok(None) };
    let end = format!("-{copy}{CHUNKS}");
    let names = dir.names().map_err(Fault::from)?;
    let Some(name) = names.into_iter().find(|name| name.to_string_lossy().ends_with(&end)) else {
        return Ok(None);
    };
    let bytes = read_below(dir.as_fd(), &*name, LONGEST_LIST);
    // One that cannot be read is none: all of the copy is read then.
    Ok(bytes.ok().and_then(|bytes| FileChunks::parse(&bytes, (copy.0, length))))
}

/// Removes a copy that has another digest than its name says: the next submission makes another one. Whether it was removed.
///
/// # Errors
/// As [`find`], and when it cannot be read or removed.
pub fn remove_damaged(depot: &Path, copy: &ImageCopy) -> Result<bool> {
    let (Some(dir), Some(name)) = (existing(depot)?, copy.path.file_name()) else { return Ok(false) };
    let file = File::from(dir.file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0).map_err(Fault::from)?);
    let about = || copy.path.display().to_string();
    let opened = fstat(&file).context(about)?;
    if digest_of(file, &copy.path)? == copy.id {
        return Ok(false);
    }
    // One that a submission has put there meanwhile is sound.
    let is_same = |now: &Stat| (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino);
    let is_there = dir.stat(name).map_err(Fault::from)?.as_ref().is_some_and(is_same);
    if is_there {
        dir.remove_file(name).map_err(Fault::from)?;
    }
    Ok(is_there)
}

/// Room that all copies in a depot take up, in bytes, unfinished ones included.
///
/// # Errors
/// As [`find`].
pub fn usage(depot: &Path) -> Result<u64> {
    let Some(dir) = existing(depot)? else { return Ok(0) };
    let mut bytes = 0;
    for name in dir.names().map_err(Fault::from)? {
        let found = dir.stat(&name).map_err(Fault::from)?;
        bytes += found.map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
    }
    Ok(bytes)
}

/// Removes the copies of an image.
///
/// # Errors
/// As [`find`].
pub fn remove(depot: &Path, id: ImageId) -> Result<()> {
    let Some(dir) = existing(depot)? else { return Ok(()) };
    for name in names_of(&dir, id)? {
        dir.remove_file(name).map_err(Fault::from)?;
    }
    Ok(())
}

fn existing(depot: &Path) -> Result<Option<TrustedDir>> {
    Ok(TrustedDir::find(&depot.join(IMAGES), getuid().as_raw()).map_err(Fault::from)?)
}

fn names_of(dir: &TrustedDir, id: ImageId) -> Result<Vec<String>> {
    let begin = format!("{id}-");
    let names = dir.names().map_err(Fault::from)?;
    Ok(names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(&begin))
        .collect())
}

fn digest_of(mut file: File, path: &Path) -> Result<ImageId> {
    let about = || path.display().to_string();
    let mut hasher = Hasher::like(&Digest::Sha256([0; 32]));
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).context(about)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    crate::import::id_of(&hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_makes_any_more_is_left_over() {
        let depot = tempfile::tempdir().unwrap();
        let id = ImageId([7; 32]);
        assert_eq!(delete_leftovers(depot.path()).unwrap(), Vec::<PathBuf>::new(), "no copy yet");
        let dir = TrustedDir::make(&depot.path().join(IMAGES), getuid().as_raw(), 0o700).unwrap();
        // No process has it: it is above the kernel's limit.
        let dead = dirs::new_name(&id).replace(&std::process::id().to_string(), "4999999");
        let others = [dirs::new_name(&id), format!("{id}-{id}{SUFFIX}"), format!("{dead}elsewhere")];
        for name in others.iter().chain([&dead]) {
            std::fs::write(dir.path_of(name), "").unwrap();
        }
        assert_eq!(leftovers(depot.path()), [dir.path_of(&dead)]);
        assert_eq!(delete_leftovers(depot.path()).unwrap(), [dir.path_of(&dead)]);
        assert_eq!(dir.names().unwrap().len(), others.len());
    }

    #[test]
    fn a_copy_that_is_not_what_its_name_says_is_removed() {
        let depot = tempfile::tempdir().unwrap();
        let dir = TrustedDir::make(&depot.path().join(IMAGES), getuid().as_raw(), 0o700).unwrap();
        let image = ImageId([7; 32]);
        std::fs::write(dir.path_of("file"), "an image").unwrap();
        let id = digest_of(File::open(dir.path_of("file")).unwrap(), Path::new("file")).unwrap();
        let path = dir.path_of(format!("{image}-{id}{SUFFIX}"));
        std::fs::rename(dir.path_of("file"), &path).unwrap();
        let copy = find(depot.path(), image).unwrap().unwrap();
        assert!(!remove_damaged(depot.path(), &copy).unwrap() && path.exists());
        for damaged in ["an imago", "an im", ""] {
            std::fs::write(&path, damaged).unwrap();
            assert!(remove_damaged(depot.path(), &copy).unwrap() && !path.exists(), "{damaged}");
            assert!(find(depot.path(), image).unwrap().is_none());
        }
        remove_damaged(depot.path(), &copy).map(|_| ()).expect_err("it is gone");
    }
}
