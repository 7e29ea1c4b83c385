//! Archives that ADD unpacks: tar files, plain or packed as `skiff import` takes them.

use std::fs::File;

use rustix::fs::{OFlags, SeekFrom, seek};
use skiff_image::Error;
use skiff_image::source::plain_archive;
use skiff_image::transport::FilePart;
use skiff_spec::fault::{Context as _, Result};
use skiff_store::ours;
use skiff_tar::TarReader;

use crate::context::{ChosenSource, Found, SourceTree};
use crate::room::WorkRoom;

/// Takes the archives out of what was chosen, each as a plain tar file that is read from its beginning. All else stays.
///
/// # Errors
/// A packed one cannot be unpacked.
pub fn take(tree: SourceTree<'_>, chosen: &mut Vec<ChosenSource<'_>>, room: &WorkRoom) -> Result<Vec<File>> {
    let mut archives = vec![];
    let mut rest = vec![];
    for one in chosen.drain(..) {
        let archive = match &one {
            ChosenSource::Path(found) if !found.is_directory && !tree.is_excluded(&found.name) => {
                of_tree(tree, found, room)?
            }
            _ => None,
        };
        match archive {
            Some(file) => archives.push(file),
            None => rest.push(one),
        }
    }
    *chosen = rest;
    Ok(archives)
}

fn of_tree(tree: SourceTree<'_>, found: &Found, room: &WorkRoom) -> Result<Option<File>> {
    let shown = tree.shown(&found.path);
    let file = tree.open(&found.path, OFlags::RDONLY | OFlags::NONBLOCK).context(|| shown.clone())?;
    plain(File::from(file), shown, room)
}

/// The plain archive that a file is, if it is one.
///
/// # Errors
/// The file cannot be read, or there is no room for what it unpacks to.
pub fn plain(file: File, shown: String, room: &WorkRoom) -> Result<Option<File>> {
    if !file.metadata().context(|| shown.clone())?.is_file() {
        return Ok(None);
    }
    let part = FilePart::whole(file, shown.clone()).map_err(ours)?;
    let plain = match plain_archive(part, room.path()) {
        // What only begins like a packed file is a file.
        Err(Error::Foreign { .. } | Error::BadLayer { .. }) => return Ok(None),
        plain => plain.map_err(ours)?,
    };
    if !is_tar(&plain).context(|| shown.clone())? {
        return Ok(None);
    }
    seek(&plain, SeekFrom::Start(0)).context(|| shown)?;
    Ok(Some(plain))
}

/// Whether the first entry of an archive can be read.
fn is_tar(file: &File) -> std::io::Result<bool> {
    let mut head = vec![0; 64 << 10];
    let mut len = 0;
    while len < head.len() {
        match skiff_sys::positional::read_at(std::os::fd::AsFd::as_fd(file), &mut head[len..], len as u64)? {
            0 => break,
            count => len += count,
        }
    }
    head.truncate(len);
    Ok(len >= 512
        && head.iter().any(|byte| *byte != 0)
        && matches!(TarReader::new(&head[..]).next_entry(), Ok(Some(_))))
}
