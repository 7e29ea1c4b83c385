//! COPY and ADD: from the context, a stage or an image into the files of a stage.
//!
//! Where they go, a process in that root looks and makes directories; and in that root they are unpacked. So no link there leads anything out.

mod owner;
mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::io::{Errno, dup};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use skiff_copy::{CopyError, Destination, NotCopied, Rights, unpack_archive};
use skiff_output as output;
use skiff_sandbox::inside::{act_inside, begin_inside};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::clock::now;
use skiff_tar::TarEntry;

use crate::archive;
use crate::context::mode::ModeChange;
use crate::context::sink::{EntrySink, Naming, PIECE, PackedStream, Summed};
use crate::context::{ChosenSource, Found, MOST_LINKS, SourceTree};
use crate::dockerfile::DirectoryCopy;
use crate::plan::{CopyAction, PlannedSource};
use crate::remote::Remotes;

/// Permission bits of a here-document.
const TEXT_MODE: u16 = 0o644;

/// The sum of files of a context.
pub fn sum(tree: SourceTree<'_>, sources: &[PlannedSource]) -> Result<String> {
    let mut sum = Summed::default();
    emit(tree, &choose(sources, |path| tree.select(path))?, &mut sum)?;
    Ok(sum.finish())
}

/// What the sources mean, in their order, which is that of the sum as well.
fn choose(
    sources: &[PlannedSource],
    mut select: impl FnMut(&str) -> Result<Vec<Found>>,
) -> Result<Vec<ChosenSource<'_>>> {
    let mut chosen = vec![];
    for source in sources {
        match source {
            PlannedSource::Path(path) => chosen.extend(select(path)?.into_iter().map(ChosenSource::Path)),
            PlannedSource::Text { name, content } => chosen.push(ChosenSource::Text { name, content }),
            // They come apart, and have no sum here.
            PlannedSource::Remote { .. } | PlannedSource::Repository { .. } => {}
        }
    }
    match chosen.is_empty() && !sources.iter().all(PlannedSource::is_remote) {
        true => Err(Fault::new("no file matches").hint("at least one source must match a file")),
        false => Ok(chosen),
    }
}

/// What was chosen, as far as it decides what the destination is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    File,
    Directory,
    Several,
}

impl Shape {
    fn of(chosen: &[ChosenSource<'_>]) -> Self {
        match chosen {
            [ChosenSource::Path(found)] if found.keeps_path => Self::Several,
            [ChosenSource::Path(found)] if found.is_directory => Self::Directory,
            [_] => Self::File,
            _ => Self::Several,
        }
    }
}

fn emit(tree: SourceTree<'_>, chosen: &[ChosenSource<'_>], sink: &mut dyn EntrySink) -> Result<()> {
    let mut parents = BTreeSet::new();
    for one in chosen {
        match one {
            ChosenSource::Path(found) if found.keeps_path => {
                sink.source(&found.name, found.is_directory)?;
                tree.emit_with_path(found, &mut parents, sink)?;
            }
            ChosenSource::Path(found) => {
                sink.source(&found.name, found.is_directory)?;
                tree.emit(found, if found.is_directory { b"" } else { &found.name }, sink)?;
            }
            ChosenSource::Text { name, content } => {
                sink.source(name.as_bytes(), false)?;
                emit_text(name, content, tree.copy.mode, sink)?;
            }
        }
    }
    Ok(())
}

fn emit_text(name: &str, content: &str, mode: Option<&ModeChange>, sink: &mut dyn EntrySink) -> Result<()> {
    let entry = TarEntry::plain_file(name.as_bytes().to_vec(), content.len() as u64);
    let mtime = i64::try_from(now()).unwrap_or(0);
    let mode = mode.map_or(TEXT_MODE, |change| change.apply(TEXT_MODE, false));
    sink.entry(&TarEntry { mtime, mode, ..entry })?;
    sink.data(content.as_bytes())
}

/// Where files go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    directory: PathBuf,
    naming: Naming,
    owner: Option<(u32, u32)>,
}

/// Copies files of the context, and what of other servers' stands beside them, into the root whose process 1 is `target`. Repositories are
/// cloned into a directory called `clone` meanwhile.
///
/// # Errors
/// They cannot be read or written, or are not those that were summed.
pub fn from_context(
    tree: SourceTree<'_>,
    (remotes, clone): (&Remotes, &Path),
    action: &CopyAction,
    target: BorrowedFd<'_>,
) -> Result<()> {
    for source in action.sources.iter().filter(|source| source.is_remote()) {
        remote::copy(source, (remotes, clone), (tree, action), target)?;
    }
    if action.sources.iter().all(PlannedSource::is_remote) {
        return Ok(());
    }
    let mut chosen = choose(&action.sources, |path| tree.select(path))?;
    let archives = if action.unpacks { archive::take(tree, &mut chosen, &remotes.room)? } else { vec![] };
    if archives.is_empty() {
        return match copy_chosen(tree, &chosen, action, target)? == action.sum {
            true => Ok(()),
            false => Err(changed()),
        };
    }
    let place = place(action, Shape::Several, target)?;
    check_sum(tree, action)?;
    for archive in archives {
        unpack(archive.file, &place, Rights::AsPacked, target)?;
    }
    if !chosen.is_empty() {
        copy_chosen(tree, &chosen, action, target)?;
    }
    // A plain archive is read where it is: it must be the one that was summed when it has been read, too.
    check_sum(tree, action)
}

/// Copies files as they are; gives their sum.
fn copy_chosen(
    tree: SourceTree<'_>,
    chosen: &[ChosenSource<'_>],
    action: &CopyAction,
    target: BorrowedFd<'_>,
) -> Result<String> {
    let place = place(action, Shape::of(chosen), target)?;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let rights = place.owner.map_or(Rights::AsPacked, |(user, group)| Rights::OwnedBy(user, group));
    let unpacking = begin_unpacking(&read, &place, rights, target)?;
    drop(read);
    let packed = pack(tree, chosen, &place.naming, File::from(write));
    let unpacked = unpacking.end()?;
    both(packed, unpacked)
}

fn check_sum(tree: SourceTree<'_>, action: &CopyAction) -> Result<()> {
    if sum(tree, &action.sources)? == action.sum { Ok(()) } else { Err(changed()) }
}

fn changed() -> Fault {
    Fault::new("the files of the context were changed while they were copied")
        .hint("build again when nobody writes to them")
}

/// Copies files of the root whose process 1 is `source` into that of `target`.
///
/// # Errors
/// They cannot be read or written.
pub fn from_root(
    source: BorrowedFd<'_>,
    of: &str,
    action: &CopyAction,
    target: BorrowedFd<'_>,
) -> Result<()> {
    // What is found there is sent from there, for each source.
    let mut found = act_inside(source, || {
        with_root(of, action, |tree| {
            let of_source = |source: &PlannedSource| match source {
                PlannedSource::Path(path) => tree.select(path),
                _ => Ok(vec![]),
            };
            action.sources.iter().map(of_source).collect::<Result<Vec<_>>>()
        })
    })?
    .into_iter();
    let chosen = choose(&action.sources, |_| Ok(found.next().unwrap_or_default()))?;
    let place = place(action, Shape::of(&chosen), target)?;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let rights = place.owner.map_or(Rights::AsPacked, |(user, group)| Rights::OwnedBy(user, group));
    let packing = begin_inside(source, &[write.as_fd()], || -> Result<String> {
        let out = dup(&write).context(|| "pipe")?;
        with_root(of, action, |tree| pack(tree, &chosen, &place.naming, File::from(out)))
    })?;
    drop(write);
    let unpacking = begin_unpacking(&read, &place, rights, target)?;
    drop(read);
    let unpacked = unpacking.end()?;
    let packed = packing.end()?;
    both(packed, unpacked).map(drop)
}

fn with_root<T>(of: &str, action: &CopyAction, act: impl FnOnce(SourceTree<'_>) -> Result<T>) -> Result<T> {
    let root = File::open("/").context(|| of.to_owned())?;
    let excluded = action.excluded();
    act(SourceTree { root: root.as_fd(), of, rules: None, is_roots: false, copy: action.options(&excluded) })
}

/// What was packed, where both sides have done theirs. Of two faults the stream's is the other's doing.
fn both(packed: Result<String>, unpacked: skiff_copy::Result<NotCopied>) -> Result<String> {
    match (packed, unpacked) {
        (Ok(sum), Ok(left_out)) => {
            left_out.notes().iter().for_each(|note| output::note(note));
            left_out.complete()?;
            Ok(sum)
        }
        (_, Err(CopyError::Here(fault))) => Err(fault),
        (Err(fault), _) | (_, Err(CopyError::Stream(fault))) => Err(fault),
    }
}

fn pack(tree: SourceTree<'_>, chosen: &[ChosenSource<'_>], naming: &Naming, out: File) -> Result<String> {
    let mut packed = PackedStream::new(BufWriter::with_capacity(PIECE, out), naming.clone());
    emit(tree, chosen, &mut packed)?;
    packed.finish()
}

type Unpacking = skiff_ipc::ReportingChild<skiff_copy::Result<NotCopied>>;

fn begin_unpacking(
    stream: &OwnedFd,
    place: &Place,
    rights: Rights,
    target: BorrowedFd<'_>,
) -> Result<Unpacking> {
    begin_inside(target, &[stream.as_fd()], || {
        let own = dup(stream).context(|| "pipe")?;
        let to = Destination { path: &place.directory, base: None, of: "", umask: 0, rights };
        unpack_archive(to, File::from(own))
    })
}

fn unpack(archive: File, place: &Place, rights: Rights, target: BorrowedFd<'_>) -> Result<()> {
    let rights = place.owner.map_or(rights, |(user, group)| Rights::OwnedBy(user, group));
    let unpacked = begin_unpacking(&OwnedFd::from(archive), place, rights, target)?.end()?;
    both(Ok(String::new()), unpacked).map(drop)
}

fn place(action: &CopyAction, shape: Shape, target: BorrowedFd<'_>) -> Result<Place> {
    act_inside(target, || make_place(action, shape))
}

/// Finds out where files go in the root that this process is in, and makes the directory. As in BuildKit `--chown` counts for it, `--chmod`
/// only for what is copied: a mode for files would keep everybody out of a directory.
fn make_place(action: &CopyAction, shape: Shape) -> Result<Place> {
    let path = Path::new(&action.destination);
    let owner = action.chown.as_deref().map(owner::of_chown).transpose()?;
    let is_directory = action.is_directory || shape == Shape::Several || path.is_dir();
    let (directory, naming) = match (shape, action.directories, path.parent(), path.file_name()) {
        (Shape::File, _, Some(parent), Some(name)) if !is_directory => {
            (parent, Naming::Only(name.as_bytes().to_vec()))
        }
        (_, DirectoryCopy::LikeCp, ..) if is_directory => (path, Naming::WithDirectory),
        _ => (path, Naming::Own),
    };
    let place = Place { directory: directory.into(), naming, owner };
    for path in make_directories(&place.directory)? {
        if let Some((user, group)) = owner {
            chown(&path, Some(user), Some(group)).context(|| path.display().to_string())?;
        }
    }
    Ok(place)
}

/// Makes a directory and those above it, as far as they are missing, in the root that this process is in. Gives those that it made.
fn make_directories(path: &Path) -> Result<Vec<PathBuf>> {
    make_below(path, MOST_LINKS)
}

fn make_below(path: &Path, links: usize) -> Result<Vec<PathBuf>> {
    let about = || path.display().to_string();
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(vec![]),
        Ok(_) => {
            return Err(Fault::new(format!("{} is a file; a directory cannot replace it", path.display())));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e).context(about),
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    // A link to what is not there yet: in the image it leads nowhere but there.
    if let Ok(target) = std::fs::read_link(path) {
        return match links.checked_sub(1) {
            Some(left) => make_below(&parent.join(target), left),
            None => Err(Fault::new(format!("{}: more than {MOST_LINKS} links on the way", path.display()))),
        };
    }
    let mut made = make_below(parent, links)?;
    std::fs::DirBuilder::new().mode(0o755).create(path).context(about)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).context(about)?;
    made.push(path.to_owned());
    Ok(made)
}

/// Makes the directory of WORKDIR in the root whose process 1 is `target`, and gives what it makes to `owner` (`USER[:GROUP]`). Tells whether
/// that could be: who has one id only has files of root's only.
///
/// # Errors
/// Something else has that name.
pub fn make_directory(path: &str, owner: Option<&str>, target: BorrowedFd<'_>) -> Result<bool> {
    act_inside(target, || {
        let made = make_directories(Path::new(path))?;
        let Some((user, group)) = owner.map(owner::of_user).transpose()? else { return Ok(true) };
        for path in &made {
            match chown(path, Some(user), Some(group)) {
                Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return Ok(false),
                changed => changed.context(|| path.display().to_string())?,
            }
        }
        Ok(true)
    })
}
