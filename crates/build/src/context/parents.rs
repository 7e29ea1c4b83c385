//! Sources whose files keep their paths: `COPY --parents`. Where `/./` stands in a source, the path that is kept begins behind it.
//!
//! As in BuildKit links are followed in front of that and not behind it, and `**` means directories of any depth.

use std::collections::BTreeSet;

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Result};

use super::ignore::IgnoreRules;
use super::pattern::{Pattern, is_pattern};
use super::sink::EntrySink;
use super::{Found, SourceTree, joined};

/// What stands between the path that is dropped and the one that is kept.
const PIVOT: &str = "/./";
/// Directories of any depth.
const ANY_DEPTH: &[u8] = b"**";

impl SourceTree<'_> {
    /// What a source names, with the paths that it keeps.
    pub(super) fn select_with_paths(&self, source: &str) -> Result<Vec<Found>> {
        let (above, below) = source.split_once(PIVOT).unwrap_or(("", source));
        let pattern = self.names(below)?;
        let mut all = vec![];
        for top in self.select_places(above)? {
            let mut chosen = BTreeSet::<Vec<u8>>::new();
            for name in self.expand(&top.path, &pattern)? {
                // What is in a directory comes with it.
                let is_in_another =
                    chosen.contains(&b""[..]) || ancestors(&name).any(|above| chosen.contains(above));
                if !is_in_another && let Some(is_directory) = self.kind(&top.path, &name)? {
                    let path = joined(&top.path, &name);
                    all.push(Found { path, name: name.clone(), is_directory, keeps_path: true });
                    chosen.insert(name);
                }
            }
        }
        match all.is_empty() && !is_pattern(source.as_bytes()) {
            true => Err(self.missing(source, &self.names(source)?)),
            false => Ok(all),
        }
    }

    /// The paths below a directory that names and patterns mean, as far as directories on the way are there.
    fn expand(&self, top: &[u8], pattern: &[Vec<u8>]) -> Result<BTreeSet<Vec<u8>>> {
        let mut places = BTreeSet::from([vec![]]);
        for name in pattern {
            let mut next = BTreeSet::new();
            for place in places {
                if name == ANY_DEPTH {
                    next.extend(self.directories_in(top, place)?);
                } else if is_pattern(name) {
                    let like = Pattern::of_name(name);
                    let here = joined(top, &place);
                    let Some(dir) = self.directory(&here)? else { continue };
                    let names = self.names_in(&dir, &here)?.into_iter().filter(|name| like.matches(name));
                    next.extend(names.map(|name| joined(&place, &name)));
                } else {
                    next.insert(joined(&place, name));
                }
            }
            places = next;
        }
        Ok(places)
    }

    /// A directory and all those in it, at any depth.
    fn directories_in(&self, top: &[u8], place: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let (mut found, mut pending) = (vec![], vec![place]);
        while let Some(place) = pending.pop() {
            let here = joined(top, &place);
            if self.is_skipped(&here, &place)? {
                continue;
            }
            let Some(dir) = self.directory(&here)? else { continue };
            for name in self.names_in(&dir, &here)? {
                let stat = statat(&dir, &*name, AtFlags::SYMLINK_NOFOLLOW).context(|| self.shown(&here))?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    pending.push(joined(&place, &name));
                }
            }
            found.push(place);
        }
        Ok(found)
    }

    /// Whether a directory is at a path below another; nothing if nothing is there that is seen.
    fn kind(&self, top: &[u8], name: &[u8]) -> Result<Option<bool>> {
        let path = joined(top, name);
        let (above, last) = split(&path);
        if last.is_empty() {
            return Ok(Some(true));
        }
        let Some(dir) = self.directory(above)? else { return Ok(None) };
        let stat = match statat(&dir, last, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat.context(|| self.shown(&path))?,
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let may_have_seen = is_directory && self.rules.is_some_and(IgnoreRules::have_exceptions);
        Ok((!self.is_left_out(&path)? || may_have_seen).then_some(is_directory))
    }

    /// Emits what was found with its path, behind the directories of its path as far as these are not among those that were
    /// emitted before under the same names.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub fn emit_with_path(
        &self,
        found: &Found,
        before: &mut BTreeSet<(Vec<u8>, Vec<u8>)>,
        sink: &mut dyn EntrySink,
    ) -> Result<()> {
        let Found { path, name, is_directory, .. } = found;
        if (self.is_excluded(name)? && !is_directory) || self.is_skipped(path, name)? {
            return Ok(());
        }
        let top = path.len() - name.len();
        let own = is_directory.then_some(&**name).filter(|name| !name.is_empty());
        for name in ancestors(name).chain(own) {
            let path = &path[..top + name.len()];
            if before.insert((path.to_vec(), name.to_vec())) && !self.is_excluded(name)? {
                let Some(dir) = self.directory(path)? else { continue };
                sink.entry(&self.directory_entry(&dir, path, name)?)?;
            }
        }
        if *is_directory {
            return self.contents(path, name, sink);
        }
        let (above, last) = split(path);
        match self.directory(above)? {
            Some(dir) => self.child(&dir, last, path, name, sink).map(drop),
            None => Ok(()),
        }
    }
}

/// The paths of the directories on the way to a path, from the top.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| &path[..end])
}

/// A path's directory, and its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
