//! What ADD brings from other servers: files, and the files of repositories.

use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use skiff_copy::Rights;
use skiff_output as output;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::clock::now;
use skiff_tar::TarEntry;

use super::{Shape, begin_unpacking, both, copy_chosen, place, unpack};
use crate::archive::{self, PlainArchive};
use crate::context::mode::ModeChange;
use crate::context::sink::{EntrySink, Naming, PIECE, PackedStream};
use crate::context::{ChosenSource, Found, SourceTree};
use crate::plan::{CopyAction, PlannedSource};
use crate::remote::Remotes;
use crate::room::WorkRoom;

/// Permission bits of a file of another server, as in Docker.
const FILE_MODE: u16 = 0o600;

/// Copies what one source of another server's is into the root whose process 1 is `target`.
pub fn copy(
    source: &PlannedSource,
    (remotes, clone): (&Remotes, &Path),
    (tree, action): (SourceTree<'_>, &CopyAction),
    target: BorrowedFd<'_>,
) -> Result<()> {
    match source {
        PlannedSource::Remote { address, name, digest, unpacks } => {
            let file = remotes.file(address, digest)?;
            match unpacks.then(|| as_archive(&file, address, &remotes.room)).transpose()?.flatten() {
                Some(archive) => {
                    unpack(archive.file, &place(action, Shape::Several, target)?, Rights::AsPacked, target)
                }
                None => copy_file(&file, name, action, target),
            }
        }
        PlannedSource::Repository { repository, commit, keeps_git } => {
            let cloned = remotes.git.clone_to(repository, commit, *keeps_git, (clone, &remotes.room))?;
            if cloned.has_submodules {
                output::note(&format!("{}: submodules are not fetched", repository.shown()));
            }
            let of = format!("{}: ", repository.shown());
            let tree = SourceTree { root: cloned.files.as_fd(), of: &of, rules: None, ..tree };
            copy_chosen(tree, &[ChosenSource::Path(Found::whole_tree())], action, target)?;
            std::fs::remove_dir_all(clone).context(|| clone.display().to_string())
        }
        PlannedSource::Path(_) | PlannedSource::Text { .. } => Ok(()),
    }
}

fn as_archive(file: &File, address: &str, room: &WorkRoom) -> Result<Option<PlainArchive>> {
    let own = file.try_clone().context(|| address.to_owned())?;
    (&own).rewind().context(|| address.to_owned())?;
    archive::plain(own, address.to_owned(), room)
}

/// Copies a file. It is its owner's only, unless `--chmod` says something else.
fn copy_file(file: &File, name: &str, action: &CopyAction, target: BorrowedFd<'_>) -> Result<()> {
    if !name.is_empty() && action.excluded().are_left_out(name.as_bytes())? {
        return Ok(());
    }
    let place = place(action, Shape::File, target)?;
    let rights = place.owner.map_or(Rights::AsPacked, |(user, group)| Rights::OwnedBy(user, group));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let unpacking = begin_unpacking(&read, &place, rights, target)?;
    drop(read);
    let packed = pack_one(file, name, action.mode.as_ref(), &place.naming, File::from(write));
    both(packed, unpacking.end()?).map(drop)
}

fn pack_one(
    mut file: &File,
    name: &str,
    mode: Option<&ModeChange>,
    naming: &Naming,
    out: File,
) -> Result<String> {
    let about = || name.to_owned();
    let size = file.metadata().context(about)?.len();
    let mut packed = PackedStream::new(BufWriter::with_capacity(PIECE, out), naming.clone());
    let mtime = i64::try_from(now()).unwrap_or(0);
    let entry = TarEntry::plain_file(name.as_bytes().to_vec(), size);
    let mode = mode.map_or(FILE_MODE, |change| change.apply(FILE_MODE, false));
    packed.entry(&TarEntry { mtime, mode, ..entry })?;
    file.rewind().context(about)?;
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer).context(about)? {
            0 => return packed.finish(),
            count => packed.data(&buffer[..count])?,
        }
    }
}
