//! Archives that ADD unpacks: tar files, plain or packed as `skiff import` takes them.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{OFlags, SeekFrom, seek};
use skiff_image::Error;
use skiff_image::source::{plain_archive, plain_head};
use skiff_image::transport::FilePart;
use skiff_spec::fault::{Context as _, Result};
use skiff_store::ours;
use skiff_tar::TarReader;

use crate::context::{ChosenSource, Found, SourceTree};
use crate::room::{HeldRoom, WorkRoom};

/// So many bytes tell whether a file is a tar file: its first entry may have some extensions before it.
const HEAD: usize = 64 << 10;

/// A plain archive.
pub struct PlainArchive {
    /// To be read from here.
    pub file: File,
    _held: HeldRoom,
}

/// Takes the archives out of what was chosen, each as a plain tar file that is read from its beginning. All else stays.
///
/// # Errors
/// A packed one cannot be unpacked.
pub fn take(
    tree: SourceTree<'_>,
    chosen: &mut Vec<ChosenSource<'_>>,
    room: &WorkRoom,
) -> Result<Vec<PlainArchive>> {
    let mut archives = vec![];
    let mut rest = vec![];
    for one in chosen.drain(..) {
        let archive = match &one {
            ChosenSource::Path(found) if !found.is_directory && !tree.is_excluded(&found.name)? => {
                of_tree(tree, found, room)?
            }
            _ => None,
        };
        match archive {
            Some(archive) => archives.push(archive),
            None => rest.push(one),
        }
    }
    *chosen = rest;
    Ok(archives)
}

fn of_tree(tree: SourceTree<'_>, found: &Found, room: &WorkRoom) -> Result<Option<PlainArchive>> {
    let shown = tree.shown(&found.path);
    let file = tree.open(&found.path, OFlags::RDONLY | OFlags::NONBLOCK).context(|| shown.clone())?;
    plain(File::from(file), shown, room)
}

/// The plain archive that a file is, if it is one.
///
/// # Errors
/// The file cannot be read, or there is no room for what it unpacks to.
pub fn plain(file: File, shown: String, room: &WorkRoom) -> Result<Option<PlainArchive>> {
    let given = file.metadata().context(|| shown.clone())?;
    if !given.is_file() {
        return Ok(None);
    }
    let part = FilePart::whole(file, shown.clone()).map_err(ours)?;
    // A packed file that is no archive is copied: there need not be room for what is in it.
    let plain = plain_head(&part, HEAD).and_then(|head| match is_tar(&head) {
        true => plain_archive(part, room.path(), room.held()).map(Some),
        false => Ok(None),
    });
    let file = match plain {
        // What only begins like a packed file is a file.
        Ok(None) | Err(Error::Foreign { .. } | Error::BadLayer { .. }) => return Ok(None),
        Ok(Some(file)) => file,
        Err(error) => return Err(ours(error)),
    };
    seek(&file, SeekFrom::Start(0)).context(|| shown.clone())?;
    let found = file.metadata().context(|| shown)?;
    let is_given = (found.dev(), found.ino()) == (given.dev(), given.ino());
    let held = room.hold(if is_given { 0 } else { found.len() });
    Ok(Some(PlainArchive { file, _held: held }))
}

/// Whether the first entry of an archive that begins so can be read.
fn is_tar(head: &[u8]) -> bool {
    head.len() >= 512
        && head.iter().any(|byte| *byte != 0)
        && matches!(TarReader::new(head).next_entry(), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use skiff_tar::{TarEntry, Writer};

    use super::*;

    /// A zstd frame: these bytes, and 10 MiB of zeros.
    fn packed(first: &[u8]) -> File {
        let block = |kind: u32, size: usize| (((size as u32) << 3) | (kind << 1)).to_le_bytes()[..3].to_vec();
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x58];
        frame.extend(block(0, first.len()));
        frame.extend(first);
        for _ in 0..80 {
            frame.extend(block(1, 128 << 10));
            frame.push(0);
        }
        frame.extend([1, 0, 0]);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&frame).expect("written");
        file
    }

    #[test]
    fn what_is_no_archive_needs_no_room_and_what_is_one_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let room = WorkRoom::new(dir.path());
        let plain = |file| plain(file, "x".into(), &room);
        let mut tar = vec![];
        Writer::new(&mut tar).entry(&TarEntry::plain_file(b"large".to_vec(), 10 << 20)).expect("packed");
        let archive = plain(packed(&tar)).expect("inflated").expect("an archive");
        assert_eq!(room.held(), archive.file.metadata().expect("a file").len());
        assert!(room.held() > 10 << 20);
        drop(archive);
        assert_eq!(room.held(), 0);
        let mut own = tempfile::tempfile().expect("a file");
        own.write_all(&tar).expect("written");
        assert!(plain(own).expect("read").is_some());
        // As if nearly all were taken.
        let _others = room.hold(u64::MAX / 4);
        let refused = plain(packed(&tar)).map(drop).expect_err("no room").message;
        assert!(refused.contains(", and for what becomes of"), "{refused}");
        assert!(plain(packed(&[b'a'; 1024])).expect("looked at").is_none());
    }
}
